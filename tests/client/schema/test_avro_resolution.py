"""Values of an older Avro definition, read with a newer one."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import uuid
from typing import Any

import fastavro
import pytest

from pulsar_native.schema import AvroSchema

V0 = (0).to_bytes(8, "big")
TIME = 1_793_511_000_000
AT = dt.datetime(2026, 11, 1, 5, 30, tzinfo=dt.UTC)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}
UUID = {"type": "string", "logicalType": "uuid"}
DECIMAL: dict[str, Any] = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 2}
INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int", "default": 7}]}


def record(*fields: tuple[Any, ...], name: str = "R", **more: Any) -> dict[str, Any]:
    """Return a definition of fields, each with name, type and perhaps more."""
    made = [{"name": field[0], "type": field[1], **(field[2] if len(field) > 2 else {})} for field in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def without_logical_types(definition: Any) -> Any:
    """Return the definition of the plain values."""
    if isinstance(definition, list):
        return [without_logical_types(each) for each in definition]
    if isinstance(definition, dict):
        return {key: without_logical_types(each) for key, each in definition.items() if key != "logicalType"}
    return definition


def resolved(writer: dict[str, Any], reader: dict[str, Any], plain: dict[str, Any]) -> Any:
    """Return a value that was written as plain values of the writer's definition, read with the reader's."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(without_logical_types(writer)), plain)
    wrote = AvroSchema(writer).schema_info()
    return AvroSchema(reader).with_writer_schemas(lambda version: wrote).decode(out.getvalue(), V0)


@pytest.mark.parametrize(
    ("writer", "reader", "plain", "value"),
    [
        pytest.param("long", MILLIS, TIME, AT, id="long-millis"),
        pytest.param("int", MILLIS, 5000, dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC), id="int-millis"),
        pytest.param(MILLIS, "long", TIME, TIME, id="millis-long"),
        pytest.param(MILLIS, "double", TIME, float(TIME), id="millis-double"),
        pytest.param(MILLIS, LOCAL, TIME, AT.replace(tzinfo=None), id="millis-local"),
        pytest.param(MILLIS, MICROS, TIME, AT, id="millis-micros"),
        pytest.param({**MILLIS, "logicalType": "timestamp-nanos"}, MILLIS, TIME, AT, id="nanos-millis"),
        pytest.param(
            {**MILLIS, "type": "int"}, MILLIS, 5, dt.datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=dt.UTC), id="int-wrong"
        ),
        pytest.param(MILLIS, MILLIS, TIME, AT, id="millis-millis"),
        pytest.param("int", DATE, 20000, dt.date(2024, 10, 4), id="int-date"),
        pytest.param(DATE, "int", 20000, 20000, id="date-int"),
        pytest.param(DATE, "float", 20000, 20000.0, id="date-float"),
        pytest.param(DATE, MILLIS, 5, dt.datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=dt.UTC), id="date-millis"),
        pytest.param("bytes", DECIMAL, b"\1\0", decimal.Decimal("2.56"), id="bytes-decimal"),
        pytest.param("string", DECIMAL, "\1", decimal.Decimal("0.01"), id="string-decimal"),
        pytest.param(DECIMAL, "bytes", b"\1\0", b"\1\0", id="decimal-bytes"),
        pytest.param(DECIMAL, "string", b"a", "a", id="decimal-string"),
        pytest.param(DECIMAL, {**DECIMAL, "scale": 3}, b"\1\0", decimal.Decimal("2.56"), id="decimal-scale"),
        pytest.param(
            FIXED, {**DECIMAL, **FIXED, "precision": 4}, b"\1\0", decimal.Decimal("2.56"), id="fixed-decimal"
        ),
        pytest.param({**DECIMAL, **FIXED, "precision": 4}, FIXED, b"\1\0", b"\1\0", id="decimal-fixed"),
        pytest.param("string", UUID, str(uuid.UUID(int=5)), uuid.UUID(int=5), id="string-uuid"),
        pytest.param(UUID, "string", "no uuid", "no uuid", id="uuid-string"),
        pytest.param(UUID, "bytes", "é", "é".encode(), id="uuid-bytes"),
        pytest.param("long", ["null", MILLIS], TIME, AT, id="long-union"),
        pytest.param(["null", "long"], ["null", MILLIS], TIME, AT, id="union-union"),
        pytest.param(["null", "long", "string"], MILLIS, TIME, AT, id="union-millis"),
        pytest.param(["null", MILLIS], ["string", "long", "null"], TIME, TIME, id="union-order"),
        pytest.param(["string", "long"], [UUID, MILLIS], TIME, AT, id="union-of-logical"),
        pytest.param(["null", MILLIS], ["null", "long"], None, None, id="union-null"),
        pytest.param(
            {"type": "array", "items": "long"}, {"type": "array", "items": MILLIS}, [TIME, TIME], [AT, AT], id="array"
        ),
        pytest.param(
            {"type": "map", "values": ["null", DATE]}, {"type": "map", "values": ["null", "int"]},
            {"k": 5, "n": None}, {"k": 5, "n": None}, id="map",
        ),
        pytest.param(
            record(("x", "long"), name="I"), record(("y", MILLIS, {"aliases": ["x"]}), name="J", aliases=["I"]),
            {"x": TIME}, {"y": AT}, id="nested-aliases",
        ),
    ],
)  # fmt: skip
def test_readers_logical_type(writer: Any, reader: Any, plain: Any, value: Any) -> None:
    # A further field, since two definitions of one shape need no resolution.
    got = resolved(record(("a", writer), ("gone", "int")), record(("a", reader)), {"a": plain, "gone": 1})
    assert got == {"a": value}
    assert type(got["a"]) is type(value)


def test_named_type_read_as_two_types() -> None:
    writer = record(("a", record(("x", "long"), name="I")), ("b", "I"), ("c", "I"))
    reader = record(
        ("a", record(("x", MILLIS), name="p.I")), ("b", record(("x", "long"), name="q.I")), ("c", ["null", "p.I"])
    )
    got = resolved(writer, reader, {"a": {"x": TIME}, "b": {"x": TIME}, "c": {"x": TIME}})
    assert got == {"a": {"x": AT}, "b": {"x": TIME}, "c": {"x": AT}}


def test_writers_name_read_by_union_definition() -> None:
    writer = record(("a", INNER), ("b", "I"))
    assert resolved(writer, record(("b", ["null", INNER])), {"a": {"x": 1}, "b": {"x": 2}}) == {"b": {"x": 2}}


def test_recursive_type() -> None:
    writer = record(("at", "long"), ("next", ["null", "R"]))
    reader = record(("at", MILLIS), ("next", ["null", "R"]), ("day", DATE, {"default": 0}))
    got = resolved(writer, reader, {"at": TIME, "next": {"at": TIME, "next": None}})
    day = dt.date(1970, 1, 1)
    assert got == {"at": AT, "next": {"at": AT, "next": None, "day": day}, "day": day}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        pytest.param("bytes", "\u00ff\1", b"\xff\1", id="bytes"),
        pytest.param(FIXED, "\u00ff\1", b"\xff\1", id="fixed"),
        pytest.param("string", "é", "é", id="string"),
        pytest.param("double", 5, 5.0, id="double"),
        pytest.param("double", "NaN", "nan", id="nan"),
        pytest.param(MILLIS, TIME, AT, id="timestamp"),
        pytest.param(DATE, 0, dt.date(1970, 1, 1), id="date"),
        pytest.param(DECIMAL, "\1\0", decimal.Decimal("2.56"), id="decimal"),
        pytest.param(UUID, str(uuid.UUID(int=5)), uuid.UUID(int=5), id="uuid"),
        pytest.param(UUID, "no uuid", "no uuid", id="wrong"),
        pytest.param({"type": "enum", "name": "E", "symbols": ["A"]}, "A", "A", id="enum"),
        pytest.param(INNER, {}, {"x": 7}, id="record"),
        pytest.param(INNER, {"x": 8}, {"x": 8}, id="record-value"),
        pytest.param(record(("y", INNER, {"default": {}}), name="O"), {}, {"y": {"x": 7}}, id="record-in-record"),
        pytest.param({"type": "array", "items": INNER}, [{}], [{"x": 7}], id="array"),
        pytest.param({"type": "map", "values": MILLIS}, {"k": TIME}, {"k": AT}, id="map"),
        pytest.param(["null", "bytes"], None, None, id="null"),
        pytest.param([MILLIS, "null"], TIME, AT, id="union"),
        pytest.param(["bytes", "string"], "\u00ff", b"\xff", id="union-first"),
        pytest.param(["null", {"type": "array", "items": "bytes"}], ["\u00ff"], [b"\xff"], id="union-second"),
    ],
)
def test_default_of_an_added_field(kind: Any, default: Any, value: Any) -> None:
    got = resolved(record(("a", "int")), record(("a", "int"), ("b", kind, {"default": default})), {"a": 1})
    assert set(got) == {"a", "b"}
    assert got["a"] == 1
    assert str(got["b"]) == value if value == "nan" else got["b"] == value
    assert isinstance(got["b"], float) if value == "nan" else type(got["b"]) is type(value)


def test_default_by_name_of_a_type() -> None:
    reader = record(("b", INNER, {"default": {}}), ("c", "I", {"default": {"x": 9}}), ("a", "int"))
    assert resolved(record(("a", "int")), reader, {"a": 1}) == {"a": 1, "b": {"x": 7}, "c": {"x": 9}}


def test_resolution_changes_no_definition() -> None:
    # What was read with a default is written and read as before.
    schema = AvroSchema(record(("a", "int"), ("b", "string", {"default": "é"}), ("c", MILLIS, {"default": 0})))
    before = repr(schema._parsed)
    old = AvroSchema(record(("a", "int"))).schema_info()
    bound = schema.with_writer_schemas(lambda version: old)
    row = bound.decode(b"\2", V0)
    assert row == {"a": 1, "b": "é", "c": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)}
    assert repr(bound._parsed) == before
    assert schema.decode(schema.encode(row)) == row


def test_decode_many_has_readers_types() -> None:
    writer = AvroSchema(record(("a", "long")))
    bound = AvroSchema(record(("a", MILLIS))).with_writer_schemas(lambda version: writer.schema_info())
    assert bound.decode_many([writer.encode({"a": TIME}), None], V0) == [{"a": AT}, None]
