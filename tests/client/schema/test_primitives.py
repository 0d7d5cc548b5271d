"""Primitive schemas against what Java writes.

The bytes come from Java: `Schema.INT32.encode(-2)`, `Schema.INSTANT.encode(Instant.ofEpochSecond(1700000000L,
123456789))` and so on, with the Java client 4.2.4; the names from `getSchemaInfo().getName()`.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest

import pulsar_native.schema as ours
from pulsar_native.schema import InvalidRecord, SchemaType, schema_from_info, wire_schema

MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
MICROS = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)

FROM_JAVA: list[tuple[Any, SchemaType, str, Any, str]] = [
    (ours.BooleanSchema, SchemaType.BOOLEAN, "Boolean", True, "01"),
    (ours.BooleanSchema, SchemaType.BOOLEAN, "Boolean", False, "00"),
    (ours.Int8Schema, SchemaType.INT8, "INT8", -2, "fe"),
    (ours.Int8Schema, SchemaType.INT8, "INT8", 127, "7f"),
    (ours.Int16Schema, SchemaType.INT16, "INT16", -2, "fffe"),
    (ours.Int16Schema, SchemaType.INT16, "INT16", 300, "012c"),
    (ours.Int32Schema, SchemaType.INT32, "INT32", -2, "fffffffe"),
    (ours.Int32Schema, SchemaType.INT32, "INT32", 70000, "00011170"),
    (ours.Int64Schema, SchemaType.INT64, "INT64", -2, "fffffffffffffffe"),
    (ours.Int64Schema, SchemaType.INT64, "INT64", 1 << 40, "0000010000000000"),
    (ours.FloatSchema, SchemaType.FLOAT, "Float", 1.5, "3fc00000"),
    (ours.DoubleSchema, SchemaType.DOUBLE, "Double", 1.5, "3ff8000000000000"),
    (ours.DoubleSchema, SchemaType.DOUBLE, "Double", -0.1, "bfb999999999999a"),
    (ours.DateSchema, SchemaType.DATE, "Date", MOMENT, "0000018bcfe5687b"),
    (
        ours.DateSchema,
        SchemaType.DATE,
        "Date",
        datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        "ffffffffffffffff",
    ),
    (ours.TimeSchema, SchemaType.TIME, "Time", time(1, 1, 1, 1000), "000000000037dcc9"),
    (ours.TimestampSchema, SchemaType.TIMESTAMP, "Timestamp", MOMENT, "0000018bcfe5687b"),
    (
        ours.InstantSchema,
        SchemaType.INSTANT,
        "Instant",
        datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        "ffffffffffffffff3b8b87c0",
    ),
    (ours.LocalDateSchema, SchemaType.LOCAL_DATE, "LocalDate", date(2026, 11, 21), "000000000000512a"),
    (ours.LocalDateSchema, SchemaType.LOCAL_DATE, "LocalDate", date(1969, 12, 31), "ffffffffffffffff"),
    (ours.LocalTimeSchema, SchemaType.LOCAL_TIME, "LocalTime", time(1, 2, 3, 4), "00000362d417bda0"),
    (
        ours.LocalDateTimeSchema,
        SchemaType.LOCAL_DATE_TIME,
        "LocalDateTime",
        datetime(2026, 11, 21, 1, 2, 3, 4),
        "000000000000512a00000362d417bda0",
    ),
    (
        ours.LocalDateTimeSchema,
        SchemaType.LOCAL_DATE_TIME,
        "LocalDateTime",
        datetime(1969, 12, 31, 23, 59, 59, 999999),
        "ffffffffffffffff00004e94914efc18",
    ),
]


@pytest.mark.parametrize(("kind", "number", "name", "value", "java"), FROM_JAVA)
def test_bytes_and_names_are_javas(kind: Any, number: SchemaType, name: str, value: Any, java: str) -> None:
    schema = kind()
    assert schema.encode(value).hex() == java
    back = schema.decode(bytes.fromhex(java))
    assert back == value and type(back) is type(value)
    info = schema.schema_info()
    assert (info.type, info.name(), info.data) == (number, name, b"")
    wire = wire_schema(schema)
    assert wire is not None and wire.type == int(number)
    assert type(schema_from_info(info)) is kind


def test_floats_of_four_bytes() -> None:
    # Java: Schema.FLOAT.encode(-0.1f), and of Float.NaN
    assert ours.FloatSchema().encode(-0.1).hex() == "bdcccccd"
    assert math.isnan(ours.FloatSchema().decode(bytes.fromhex("7fc00000")))
    assert ours.FloatSchema().encode(3) == ours.FloatSchema().encode(3.0)


def test_what_is_finer_than_the_unit_is_cut_as_in_java() -> None:
    # Java: Schema.TIMESTAMP and Schema.INSTANT of Instant.ofEpochSecond(1700000000L, 123456789)
    assert ours.TimestampSchema().encode(MICROS).hex() == "0000018bcfe5687b"
    assert ours.InstantSchema().decode(bytes.fromhex("000000006553f100075bcd15")) == MICROS
    assert ours.LocalTimeSchema().decode((1_999).to_bytes(8, "big")) == time(microsecond=1)


def test_moments_of_other_timezones_are_the_same_moments() -> None:
    east = MOMENT.astimezone(timezone(timedelta(hours=9)))
    assert ours.InstantSchema().encode(east) == ours.InstantSchema().encode(MOMENT)


def test_a_time_of_day_of_a_java_moment() -> None:
    # new java.sql.Time(ms) may hold any moment; only its time of day counts
    assert ours.TimeSchema().decode((86_400_000 * 3 + 1000).to_bytes(8, "big")) == time(0, 0, 1)
    assert ours.TimeSchema().decode((-1).to_bytes(8, "big", signed=True)) == time(23, 59, 59, 999000)


@pytest.mark.parametrize(
    ("schema", "value", "match"),
    [
        (ours.Int8Schema(), 128, "out of the range of INT8"),
        (ours.Int64Schema(), 1 << 63, "out of the range of INT64"),
        (ours.Int32Schema(), True, "type int, not bool"),
        (ours.Int32Schema(), "1", "type int, not str"),
        (ours.FloatSchema(), 1e39, "out of the range of FLOAT"),
        (ours.DoubleSchema(), 10**400, "out of the range of DOUBLE"),
        (ours.DoubleSchema(), "1", "type float"),
        (ours.BooleanSchema(), 1, "type bool"),
        (ours.DateSchema(), date(2026, 1, 1), "type datetime, not date"),
        (ours.TimestampSchema(), datetime(2026, 1, 1), "no timezone.*LocalDateTimeSchema"),
        (ours.InstantSchema(), datetime(2026, 1, 1), "no timezone"),
        (ours.LocalDateTimeSchema(), MOMENT, "without one, or use InstantSchema"),
        (ours.LocalDateTimeSchema(), 5, "type datetime"),
        (ours.LocalDateSchema(), MOMENT, "type date, not datetime"),
        (ours.LocalTimeSchema(), time(1, tzinfo=UTC), "no timezone"),
        (ours.TimeSchema(), MOMENT, "type time"),
    ],
)
def test_values_that_do_not_fit(schema: Any, value: Any, match: str) -> None:
    with pytest.raises(InvalidRecord, match=match):
        schema.encode(value)


@pytest.mark.parametrize(
    ("schema", "data", "match"),
    [
        (ours.Int32Schema(), b"\x00", "has 4 bytes, not 1"),
        (ours.BooleanSchema(), b"", "has 1 bytes, not 0"),
        (ours.InstantSchema(), b"\x7f" * 12, "years 1 to 9999"),
        (ours.LocalDateSchema(), b"\x7f" * 8, "years 1 to 9999"),
        (ours.LocalTimeSchema(), b"\x7f" * 8, "no time of day"),
    ],
)
def test_bytes_that_do_not_fit(schema: Any, data: bytes, match: str) -> None:
    with pytest.raises(InvalidRecord, match=match):
        schema.decode(data)
