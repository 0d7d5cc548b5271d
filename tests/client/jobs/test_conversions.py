"""Values with the types of a definition: texts of CSV files, values of tables, times of every source."""

from __future__ import annotations

import io
import json
from collections import deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from pulsar_native.jobs.codecs import Codec
from pulsar_native.jobs.conversions import logical_conversion, table_conversions
from pulsar_native.jobs.sources import MessageMapping, Source
from pulsar_native.schema import AvroSchema, InvalidRecord

_AT = datetime(2026, 1, 2, 3, 4, 5, 678_000)
_MILLIS = 1767323045678
_LONG = {"type": "long", "logicalType": "timestamp-millis"}
_UUID = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"


def record(kind: Any, **more: Any) -> dict[str, Any]:
    """Return the definition of records with the field `a`, and more."""
    fields = {"a": kind, **more}
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": each} for name, each in fields.items()]}


def logical(plain: str, of: str, **more: Any) -> dict[str, Any]:
    """Return a logical type."""
    return {"type": plain, "logicalType": of, **more}


def without_logical_type(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a definition with its plain type."""
    return {name: each for name, each in part.items() if name != "logicalType"}


def stored(definition: dict[str, Any], data: bytes | None) -> Any:
    """Return the field `a` of an Avro message as the number, bytes or text that is stored."""
    assert data is not None
    plain = json.loads(json.dumps(definition), object_hook=without_logical_type)
    found: Any = fastavro.schemaless_reader(io.BytesIO(data), plain, None)
    return found["a"]


# ---- texts of a CSV file ---------------------------------------------------------------------------------------------


def from_text(kind: Any, text: str, schema: str = "avro") -> Any:
    """Return what is decoded of the message made of a text."""
    codec = Codec(schema, record(kind), from_texts=True)
    data = codec.encode(codec.typed({"a": text}, "texts"))
    assert data is not None
    return AvroSchema(None, record(kind)).decode(data)["a"] if schema == "avro" else json.loads(data)["a"]


_PRICE = logical("bytes", "decimal", precision=6, scale=2)
_FIXED = logical("fixed", "decimal", precision=6, scale=2, name="Price", size=4)


@pytest.mark.parametrize("kind", [_PRICE, _FIXED, ["null", _PRICE]], ids=["bytes", "fixed", "nullable"])
@pytest.mark.parametrize("text", ["2.50", " 2.5", "-19.99", "2.500", "1e3", "0", "9999.99"])
def test_text_becomes_decimal(kind: Any, text: str) -> None:
    assert from_text(kind, text) == Decimal(text.strip())


@pytest.mark.parametrize("text", ["2.505", "10000", "1e4", "NaN", "Infinity", "1_000", "2,50", "", "x"])
def test_text_that_is_no_decimal_is_refused(text: str) -> None:
    words = f"the column 'a' holds '{text}', which is no decimal of 6 digits, 2 of them after the point"
    with pytest.raises(ValueError, match=words):
        from_text(_PRICE, text)


def test_text_of_a_decimal_type_by_its_name() -> None:
    definition = record(_FIXED, b="Price")
    codec = Codec("avro", definition, from_texts=True)
    assert codec.typed({"a": "1", "b": "2.5"}, "texts") == {"a": Decimal(1), "b": Decimal("2.5")}


def test_text_of_a_decimal_stays_in_json() -> None:
    assert from_text(_PRICE, "2.50", "json") == "2.50"
    with pytest.raises(ValueError, match="which is no decimal"):
        from_text(_PRICE, "2.505", "json")


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        (logical("int", "date"), "2026-01-02", 20455),
        (logical("int", "date"), "20455", 20455),
        (logical("int", "time-millis"), "03:04:05.678", 11045678),
        (logical("long", "time-micros"), "03:04:05.678901", 11045678901),
        (_LONG, "2026-01-02T03:04:05.678Z", _MILLIS),
        (_LONG, "2026-01-02 03:04:05.678000", _MILLIS),
        (_LONG, "2026-01-02T05:04:05.678+02:00", _MILLIS),
        (_LONG, str(_MILLIS), _MILLIS),
        (_LONG, "-5", -5),
        (["null", _LONG], "2026-01-02", 1767312000000),
        (logical("long", "timestamp-micros"), "2026-01-02T03:04:05.678901", _MILLIS * 1000 + 901),
        (logical("long", "timestamp-nanos"), "2026-01-02T03:04:05.678", _MILLIS * 1_000_000),
        (logical("long", "local-timestamp-millis"), "2026-01-02T03:04:05.678", _MILLIS),
        (logical("long", "local-timestamp-micros"), "2026-01-02T03:04:05.678", _MILLIS * 1000),
    ],
    ids=[
        "date", "days", "time_millis", "time_micros", "zone", "no_zone", "other_zone", "count", "negative", "day",
        "micros", "nanos", "local_millis", "local_micros",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("west_of_utc")
def test_text_becomes_time_in_utc(kind: Any, text: str, number: int) -> None:
    codec = Codec("avro", record(kind), from_texts=True)
    assert stored(record(kind), codec.encode(codec.typed({"a": text}, "texts"))) == number
    assert from_text(kind, text, "json") == number


@pytest.mark.parametrize(
    ("text", "found"),
    [(_UUID, _UUID), (_UUID.lower(), _UUID.lower()), (f" {{{_UUID}}}", _UUID.lower())],
    ids=["upper", "lower", "braces"],
)
@pytest.mark.parametrize("schema", ["avro", "json"])
def test_text_of_uuid_stays_as_written(schema: str, text: str, found: str) -> None:
    definition = record(logical("string", "uuid"))
    codec = Codec(schema, definition, from_texts=True)
    data = codec.encode(codec.typed({"a": text}, "texts"))
    assert data is not None
    assert (stored(definition, data) if schema == "avro" else json.loads(data)["a"]) == found


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "1_000"),
        ("double", "1_0.5"),
        (logical("string", "uuid"), "x"),
        (logical("int", "date"), "20260102"),
        (logical("int", "date"), "2026-01-02T00:00"),
        (logical("int", "time-millis"), "03:04+01:00"),
        (logical("int", "time-millis"), "03:04:05.6789"),
        (_LONG, "02/01/2026"),
        (_LONG, "2026-01-02T03:04:05.678901"),
        (_LONG, "1_000"),
        (logical("long", "timestamp-micros"), "2026-01-02T03:04:05.678901234"),
        (logical("long", "local-timestamp-millis"), "2026-01-02T03:04:05Z"),
    ],
    ids=[
        "int", "double", "uuid", "date_digits", "date_time", "time_zone", "time_micros", "other_format", "micros",
        "underscore", "nanos", "local_zone",
    ],
)  # fmt: skip
@pytest.mark.parametrize("schema", ["avro", "json"])
def test_text_that_is_not_exact_is_refused(kind: Any, text: str, schema: str) -> None:
    with pytest.raises(ValueError, match=r"the column 'a' holds '.*', which is no "):
        from_text(kind, text, schema)


# ---- rows of a table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", ["int", "long"])
def test_table_float_beyond_2_53_is_refused(plain: str) -> None:
    codec = Codec("avro", record(plain))
    assert codec.typed({"a": -3.0}, "table") == {"a": -3}
    assert codec.typed({"a": 2.0**53 - 1}, "table") == {"a": 2**53 - 1}
    for wrong in (2.0**53, -(2.0**60)):
        with pytest.raises(ValueError, match=r"the column 'a' holds the float .*Int64"):
            codec.typed({"a": wrong}, "table")


def test_table_conversions_leave_out_other_types() -> None:
    kinds = {"b": ["null", "bytes"], "c": {"type": "array", "items": "long"}, "d": ["null", "long"], "e": _PRICE}
    assert list(table_conversions(record("boolean", **kinds))) == ["d"]


def test_table_event_time_of_json_in_micros() -> None:
    codec = Codec("json", record(logical("long", "timestamp-micros")))
    parts = MessageMapping(event_time_field="a", key_field="a").parts(codec.typed({"a": _AT}, "table"))
    assert (parts.event_time, parts.key) == (_MILLIS, "2026-01-02 03:04:05.678000+00:00")
    assert codec.encode(parts.value) == b'{"a":%d000}' % _MILLIS


# ---- values of every source ------------------------------------------------------------------------------------------

_STRUCT = {"type": "record", "name": "S", "fields": [{"name": "at", "type": ["null", _LONG]}]}
_NESTED = [
    (_LONG, _AT, _MILLIS),
    (["null", _LONG], _AT, _MILLIS),
    ({"type": "array", "items": _LONG}, [_AT], [_MILLIS]),
    ({"type": "array", "items": _LONG}, deque([_AT]), [_MILLIS]),
    (["null", {"type": "array", "items": _LONG}], np.array([_AT], dtype=object), [_MILLIS]),
    ({"type": "map", "values": ["null", _LONG]}, {"x": _AT, "y": None}, {"x": _MILLIS, "y": None}),
    (_STRUCT, {"at": _AT}, {"at": _MILLIS}),
    ({"type": "array", "items": ["null", _STRUCT]}, [{"at": _AT}, None], [{"at": _MILLIS}, None]),
    (logical("long", "local-timestamp-millis"), _AT, _MILLIS),
]
_IDS = ["plain", "nullable", "array", "deque", "ndarray", "map", "record", "records", "local"]


@pytest.mark.parametrize(("kind", "value", "number"), _NESTED, ids=_IDS)
@pytest.mark.parametrize("rows", ["table", None])
@pytest.mark.usefixtures("west_of_utc")
def test_naive_times_are_in_utc(kind: Any, value: Any, number: Any, rows: str | None) -> None:
    for schema in ("avro", "json"):
        codec = Codec(schema, record(kind))
        data = codec.encode(codec.typed({"a": value}, rows))
        assert data is not None
        assert (stored(record(kind), data) if schema == "avro" else json.loads(data)["a"]) == number


@pytest.mark.usefixtures("west_of_utc")
def test_naive_times_in_envelopes_and_unions_are_in_utc() -> None:
    other = {"type": "record", "name": "T", "fields": [{"name": "at", "type": "string"}]}
    definition = record(["null", other, _STRUCT])
    codec = Codec("avro", definition)
    (item,) = Source.of([{"value": {"a": {"at": _AT}}}])
    value = MessageMapping(envelope=True).parts(codec.typed(item, None)).value
    assert stored(definition, codec.encode(value)) == {"at": _MILLIS}
    assert stored(definition, codec.encode({"a": ("S", {"at": _AT})})) == {"at": _MILLIS}


@pytest.mark.usefixtures("west_of_utc")
def test_naive_times_in_records_of_records_are_in_utc() -> None:
    fields = [{"name": "a", "type": _LONG}, {"name": "next", "type": ["null", "N"]}, {"name": "n", "type": "int"}]
    definition = {"type": "record", "name": "N", "namespace": "x.y", "fields": fields}
    value = {"a": _AT, "next": {"a": _AT, "next": None, "n": 2}, "n": 1}
    data = Codec("avro", definition).encode(value)
    assert data is not None
    assert AvroSchema(None, definition).decode(data)["next"] == {"a": _AT.replace(tzinfo=UTC), "next": None, "n": 2}


def test_times_with_a_zone_and_numbers_stay() -> None:
    zone = timezone(timedelta(hours=2))
    at = (_AT + timedelta(hours=2)).replace(tzinfo=zone)
    for value in (at, _MILLIS):
        data = Codec("avro", record({"type": "array", "items": _LONG})).encode({"a": [value]})
        assert stored(record({"type": "array", "items": _LONG}), data) == [_MILLIS]


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (logical("int", "date"), date(1970, 1, 3), 2),
        (logical("int", "time-millis"), time(0, 0, 1, 500_000), 1500),
        (logical("long", "time-micros"), time(0, 0, 1), 1_000_000),
        (logical("string", "uuid"), UUID(int=1), str(UUID(int=1))),
    ],
    ids=["date", "time_millis", "time_micros", "uuid"],
)
def test_nested_logical_types_become_json(kind: Any, value: Any, found: Any) -> None:
    data = Codec("json", record({"type": "array", "items": kind})).encode({"a": [value]})
    assert data is not None and json.loads(data) == {"a": [found]}


@pytest.mark.parametrize(
    ("kind", "value"), [(_LONG, time(1)), (logical("long", "time-micros"), _AT)], ids=["timestamp", "time"]
)
def test_time_of_another_logical_type_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidRecord, match=r"R\.a must be long"):
        Codec("json", record(kind)).encode({"a": value})


def test_logical_conversion_of_none_is_none() -> None:
    definition = record({"type": "array", "items": "long"}, next=["null", "R"])
    assert logical_conversion(definition, is_avro=True) is None
    assert logical_conversion(record(logical("string", "uuid")), is_avro=True) is None
    assert logical_conversion(record(_PRICE, next=["null", "string"]), is_avro=False) is None


@pytest.mark.usefixtures("west_of_utc")
def test_arrow_maps_and_nested_times_are_published() -> None:
    kinds = {"m": pa.map_(pa.string(), pa.timestamp("ms")), "at": pa.list_(pa.timestamp("us"))}
    table = pa.table({name: pa.array([value], kinds[name]) for name, value in (("m", [("k", _AT)]), ("at", [_AT]))})
    source = Source.of(table)
    assert [Codec(None, None).encode(row) for row in source] == [
        b'{"m":{"k":"2026-01-02T03:04:05.678000"},"at":["2026-01-02T03:04:05.678000"]}'
    ]
    definition = record("int", m={"type": "map", "values": _LONG}, at={"type": "array", "items": _LONG})
    definition["fields"].pop(0)
    for schema in ("avro", "json"):
        codec = Codec(schema, definition)
        (data,) = (codec.encode(codec.typed(row, source.rows)) for row in source)
        assert data is not None
        found = AvroSchema(None, definition).decode(data) if schema == "avro" else json.loads(data)
        at = _AT.replace(tzinfo=UTC) if schema == "avro" else _MILLIS
        assert found == {"m": {"k": at}, "at": [at]}
