"""Import of pyarrow where it is missing: the error of each feature names the extra."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pyarrow
import pytest

from pulsar_native.arrow.columns import arrow_schema
from pulsar_native.arrow.encode import TableRows
from pulsar_native.arrow.package import import_pyarrow
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.jobs.failures import JobRefused


def table_rows() -> TableRows:
    return TableRows(object(), value="value", key=None, properties=(), event_time=None, encode=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("feature", "error", "name"),
    [
        (arrow_schema, InvalidConfiguration, "arrow_schema"),
        (table_rows, InvalidConfiguration, "send_table"),
        (lambda: import_pyarrow("Parquet", JobRefused), JobRefused, "Parquet"),
    ],
)
def test_feature_without_pyarrow_names_the_extra(
    feature: Callable[[], Any], error: type[Exception], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(error, match=rf"^{name} needs .* pyarrow: pip install 'pulsar-native\[arrow\]'$") as caught:
        feature()
    assert isinstance(caught.value.__cause__, ImportError)


def test_import_pyarrow_returns_the_package() -> None:
    assert import_pyarrow("Parquet") is pyarrow
