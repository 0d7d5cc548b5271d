"""PulsarSparkLoadOperator: what the load application would refuse is refused before Spark starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from support.tasks import context_of

ALL: dict[str, Any] = {"interval": "all"}
HOUR: dict[str, Any] = {"interval_start": "{{ a }}", "interval_end": "{{ b }}"}
RAW: dict[str, Any] = {"interval": "all", "value_format": "raw"}
DELTA: dict[str, Any] = {"output_format": "delta"}


def load(**arguments: Any) -> PulsarSparkLoadOperator:
    """Return the operator."""
    return PulsarSparkLoadOperator(**{"task_id": "load", "topic": "t", "output_path": "/x/y", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({**RAW, "value_schema": "a INT"}, "keeps the bytes of a value as they are: leave value_schema out, or set"),
        (
            {**ALL, "value_format": "auto", "value_mode": "PERMISSIVE", "corrupt_column": "__Key"},
            "corrupt_column is '__Key', the name of another column",
        ),
        ({**ALL, "metadata": ["__topik"]}, "metadata has no '__topik'; did you mean '__topic'"),
        ({**ALL, "partition_by": ["a", "A"]}, "partition_by names columns twice"),
        ({**ALL, "derive": {"a": "1", "A": "2"}}, "derive names columns twice"),
        ({**ALL, "derive": {"__Topic": "1"}}, r"derive must not replace metadata columns \(__Topic\)"),
        ({**ALL, "derive": {" ": "1"}}, "derive must be a dict of texts"),
        ({**ALL, "output_writer": "PyArrow"}, "output_writer='pyarrow', but value_format='json' is decoded by Spark"),
        ({**RAW, "output_writer": "pyarrow", "derive": {"a": "1"}}, "but derive is computed by Spark"),
        ({**RAW, "output_writer": "pyarrow", "partition_by": ["__topic"]}, "but partition_by makes folders"),
        ({**ALL, **DELTA}, "must know which rows of the table are the interval's"),
        ({**HOUR, **DELTA, "metadata": []}, "the column __publishTime in metadata"),
        ({"interval_start": "1", **DELTA, "source_options": {"endingOffsets": "latest"}}, "must know which rows"),
        ({**ALL, "min_rows": 1.5}, "min_rows must be a whole number of at least 0"),
        ({**ALL, "allow_empty": "yes"}, "allow_empty must be True or False"),
        ({**ALL, "commits": "/c"}, "commits needs since='last_success'"),
        ({**ALL, "source_options": {"Columns": "value"}}, "not have 'Columns': the argument metadata"),
        ({**ALL, "source_options": {"includeMetadata": "all"}}, "the argument metadata"),
        ({**ALL, "source_options": {"valueFormat": "auto"}}, "the argument value_format"),
        ({**ALL, "source_options": {"mode": "FAILFAST"}}, "the argument value_mode"),
        ({**ALL, "source_options": {"columnNameOfCorruptRecord": "a"}}, "the argument corrupt_column"),
        ({**ALL, "source_options": {"pushDownPredicate": "true"}}, "reads all rows"),
        ({**ALL, "source_options": {"timeSlackMs": "1", "timeslackms": "1"}}, "one option twice"),
    ],
    ids=[
        "raw_schema", "corrupt_column", "metadata", "partition_by_twice", "derive_twice", "derive_metadata",
        "derive_blank", "pyarrow_json", "pyarrow_derive", "pyarrow_folders", "overwrite_all", "overwrite_no_time",
        "overwrite_offsets", "min_rows", "allow_empty", "commits", "columns", "include_metadata", "value_format",
        "mode", "corrupt_option", "push_down", "option_twice",
    ],
)  # fmt: skip
def test_load_refused_combination_raises_at_parsing(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {**HOUR, **DELTA},
        {**DELTA, "source_options": {"startingTime": "{{ a }}", "EndingTime": "{{ b }}"}},
        {**ALL, **DELTA, "replace_where": "{{ a }}"},
        {**ALL, **DELTA, "write_mode": "Merge"},
        {**RAW, **DELTA, "write_mode": "merge", "partition_by": ["__topic"], "output_writer": "pyarrow"},
        {**RAW, "derive": {"VALUE": "upper(value)"}},
        {"since": "last_success", "commits": "/c", "min_rows": "5"},
    ],
    ids=["times", "options", "condition", "merge", "pyarrow", "derive", "commits"],
)
def test_load_combination_passes_parsing(arguments: dict[str, Any]) -> None:
    assert load(**arguments).task_id == "load"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source_options": {"failOnDataLos": "true"}}, "did you mean failOnDataLoss"),
        ({"source_options": {"timeSlackMs": "soon"}}, "timeSlackMs must be a whole number"),
        ({"source_options": {"maxBytesPerTrigger": "1"}}, "is not for batch reads"),
        ({"source_options": {"minPartitions": "2"}}, r"need admin\.url"),
        ({"value_format": "auto"}, r"valueFormat=auto needs admin\.url"),
        ({"value_format": "avro"}, r"needs admin\.url, or give value\.schema"),
        ({"output_path": "/x/.."}, "must name a folder of its own"),
        ({"partition_by": ["day"]}, "partition_by names day; the columns are"),
        ({"topic": "non-persistent://public/default/t"}, "is not persistent"),
        ({"interval": None, "interval_start": "1960-01-01", "interval_end": "2026-01-01"}, "a time before 1970"),
    ],
    ids=["name", "value", "stream", "split", "auto", "registered", "path", "columns", "topic", "time"],
)
def test_load_refused_request_starts_no_spark(
    arguments: dict[str, Any], message: str, connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(service_url="pulsar://127.0.0.1:1")
    monkeypatch.setattr(PulsarSparkLoadOperator, "_submit_with_connection", lambda *_: pytest.fail("it was submitted"))
    with pytest.raises(AirflowFailException, match=message):
        load(**{**RAW, **arguments}).execute(context_of())
