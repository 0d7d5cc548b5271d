"""Arrow types of Spark's columns, by every PySpark from 4.0 on; timestamps are in UTC."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import DataType, StructType


def arrow_schema(columns: StructType) -> pyarrow.Schema:
    """Return the Arrow schema of Spark's columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(columns, **_in_utc(to_arrow_schema))


def arrow_type(kind: DataType) -> pyarrow.DataType:
    """Return the Arrow type of one of Spark's types."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, **_in_utc(to_arrow_type))


def _in_utc(function: Callable[..., object]) -> dict[str, Any]:
    # The time zone is a parameter since PySpark 4.2, and UTC by default before that.
    return {"timezone": "UTC"} if "timezone" in inspect.signature(function).parameters else {}
