"""The Spark examples of the README files and the documentation pages run as they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.brokers import Broker
from support.examples import Example, examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# An option that older versions refuse.
_LIMITED = "maxMessagesPerTrigger"
_EXAMPLES = [
    pytest.param(each, marks=[pytest.mark.needs_spark("4.2")] if _LIMITED in each.code else [], id=str(each))
    for each in examples("spark")
]


@pytest.mark.parametrize("example", _EXAMPLES)
def test_example_runs_and_prints(
    example: Example, broker: Broker, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    # `getOrCreate` gives the example this session.
    code = compile(example.program(broker.service_url, broker.admin_url), str(example), "exec")
    exec(code, {"__name__": "__main__"})
    assert example.prints in capsys.readouterr().out
