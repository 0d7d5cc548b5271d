"""Arrow types of Spark's columns: timestamps in UTC, with the parameters of each PySpark."""

from __future__ import annotations

import pyarrow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_pulsar.arrow_types import arrow_schema, arrow_type

_UTC = pyarrow.timestamp("us", "UTC")
_TYPES: list[tuple[DataType, pyarrow.DataType]] = [
    (LongType(), pyarrow.int64()),
    (BinaryType(), pyarrow.binary()),
    (DecimalType(10, 2), pyarrow.decimal128(10, 2)),
    (TimestampType(), _UTC),
    (TimestampNTZType(), pyarrow.timestamp("us")),
    (ArrayType(TimestampType()), pyarrow.list_(_UTC)),
    (MapType(StringType(), TimestampType()), pyarrow.map_(pyarrow.string(), _UTC)),
    (StructType().add("at", TimestampType()), pyarrow.struct([("at", _UTC)])),
]


def test_arrow_type_timestamps_are_utc() -> None:
    assert [arrow_type(kind) for kind, _ in _TYPES] == [wanted for _, wanted in _TYPES]


def test_arrow_schema_has_each_column() -> None:
    columns = StructType()
    for number, (kind, _) in enumerate(_TYPES):
        columns.add(f"c{number}", kind, nullable=number % 2 == 0)
    found = arrow_schema(columns)
    assert found.names == columns.names
    assert found.types == [wanted for _, wanted in _TYPES]
    assert [field.nullable for field in found] == [field.nullable for field in columns]
