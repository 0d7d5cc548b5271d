"""Decoding of record batches by a schema, without Spark and broker: equality of the paths, and wrong messages."""

from __future__ import annotations

import datetime
import decimal
import json
import logging
from typing import Any

import pyarrow as pa
import pytest

from pulsar_native.exceptions import InvalidMessage
from pulsar_native.schema import AvroSchema, Int64Schema, JsonSchema, SchemaInfo
from pyspark_pulsar.options import ValueOptions
from pyspark_pulsar.value_decoder import JsonDecoder, ValueDecoder, decoded
from pyspark_pulsar.value_schema import ValueSchema

TOPIC = "persistent://public/default/t"


def record(**fields: Any) -> dict[str, Any]:
    """Return the definition of a record."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def batch(*payloads: bytes | None, versions: list[int | None] | None = None) -> pa.RecordBatch:
    """Return a batch as the source reads it: entry ids count up."""
    count = len(payloads)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(payloads, pa.binary()),
            "__ledgerId": pa.array([5] * count, pa.int64()),
            "__entryId": pa.array(range(count), pa.int64()),
            "__batchIndex": pa.array([-1] * count, pa.int32()),
            "__schemaVersion": pa.array(versions or [None] * count, pa.int64()),
        }
    )


def decoder(info: SchemaInfo, find: Any = None, **options: str) -> ValueDecoder:
    """Return a decoder of all fields, with the entry id."""
    return ValueDecoder(TOPIC, ValueSchema.of(info, ("value", "__entryId"), ValueOptions(**options)), find)


def json_values(definition: dict[str, Any], *payloads: bytes | None) -> list[Any]:
    """Return the rows of JSON payloads with _corrupt, without the entry id."""
    made = decoder(JsonSchema(definition).schema_info(), mode="PERMISSIVE")
    found = made.decode(batch(*payloads))
    found.validate(full=True)
    return found.drop_columns(["__entryId"]).to_pylist()


SIMPLE = record(
    a=["null", "int"], s=["null", "string"], d="double", f="float", x={"type": "array", "items": "long"}, b="boolean"
)


def row(**values: Any) -> dict[str, Any]:
    """Return a row of SIMPLE."""
    return {"a": None, "s": None, "d": None, "f": None, "x": None, "b": None, "_corrupt": None, **values}


GOOD: list[tuple[bytes | None, dict[str, Any]]] = [
    (b'{"a": 1, "s": "\xc3\xa9\\n\\u00e9", "d": 1, "x": [1, 9007199254740993], "b": true, "o": {"a": 1}}',
     row(a=1, s="é\né", d=1.0, x=[1, 9007199254740993], b=True)),
    (b" \n{\n\"a\":\n2}\n", row(a=2)),
    (b"{}", row()),
    (None, row()),
    (b'{"a": null, "s": "}\\u007b{"}', row(s="}{{")),
    # Integers that the type does not hold exactly.
    (b'{"d": 9007199254740993, "f": 16777217}', row(d=9007199254740992.0, f=16777216.0)),
    (b'{"d": 100000000000000000000, "f": null}', row(d=1e20)),
]  # fmt: skip


def test_json_at_once_equals_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads, expected = zip(*GOOD, strict=True)
    with monkeypatch.context() as patched:
        patched.setattr(JsonDecoder, "_parsed_at_once", lambda self, payloads: None)
        slow = json_values(SIMPLE, *payloads)
    monkeypatch.setattr(JsonDecoder, "_decode_many", None)  # Not used where all is well.
    assert json_values(SIMPLE, *payloads) == slow == list(expected)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b" ", b"1", b"null", b"[1]", b'{"a": 1', b'{"a": 1}{"a": 2}', b'{"a": 1}\n{"a": 2}', b'{"a": "1"}',
        b'{"a": 1.5}', b'{"a": 99999999999}', b'{"a": true}', b'{"s": 1}', b'{"s": "\xff"}', b'{"b": 1}',
        b'{"x": {"y": 1}}', b'{"x": [[1]]}', b'{"d": "1"}', b'{"s": "a\nb"}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_json_wrong_payload_is_the_only_one(payload: bytes) -> None:
    found = json_values(SIMPLE, b'{"a": 1}', payload, b'{"a": 3}')
    assert found == [row(a=1), row(_corrupt=payload), row(a=3)]


@pytest.mark.parametrize(
    "payloads",
    [
        # As many objects as texts in all, but not one for each.
        [b'{"a": 1}{"a": 2}', b""],
        [b'{"a": 1}\n{"a": 2}', b" "],
        # Joined they would be one text in quotes, or one object.
        [b'{"s": "}', b'{"}'],
        [b'{"x": [{}', b"{}]}"],
    ],
)
def test_json_payloads_do_not_run_together(payloads: list[bytes]) -> None:
    assert json_values(SIMPLE, *payloads) == [row(_corrupt=payload) for payload in payloads]


def test_json_maps_and_bytes() -> None:
    definition = record(
        m={"type": "map", "values": "bytes"}, n={"type": "array", "items": record(y="bytes") | {"name": "N"}}
    )
    found = json_values(definition, b'{"m": {"k": "AP8="}, "n": [{"y": "eA=="}, null]}', b'{"m": {"k": "?"}}', b"{}")
    assert found == [
        {"m": [("k", b"\0\xff")], "n": [{"y": b"x"}, None], "_corrupt": None},
        {"m": None, "n": None, "_corrupt": b'{"m": {"k": "?"}}'},
        {"m": None, "n": None, "_corrupt": None},
    ]


@pytest.mark.parametrize("payload", [b'{"m": [1]}', b'{"m": "x"}', b'{"m": 5}', b'{"m": true}'])
def test_json_value_for_a_map_is_wrong(payload: bytes) -> None:
    definition = record(m={"type": "map", "values": "int"})
    assert json_values(definition, payload, b'{"m": {"k": 1}}') == [
        {"m": None, "_corrupt": payload},
        {"m": [("k", 1)], "_corrupt": None},
    ]


OLD = record(id="int")
NEW = record(id="long") | {
    "fields": [{"name": "name", "type": "string", "default": "-"}, {"name": "id", "type": "long"}]
}


def test_avro_schemas_are_found_once_per_version() -> None:
    infos = {0: AvroSchema(OLD).schema_info(), 1: AvroSchema(NEW).schema_info()}
    asked: list[int] = []

    def find(version: int) -> SchemaInfo:
        asked.append(version)
        return infos[version]

    old, new = AvroSchema(OLD).encode({"id": 1}), AvroSchema(NEW).encode({"id": 2, "name": "n"})
    made = decoder(infos[1], find, mode="PERMISSIVE")
    for _ in range(2):
        found = made.decode(batch(old, new, new, old, None, b"\x80", versions=[0, 1, None, 0, 1, 0]))
        assert found.drop_columns(["__entryId", "_corrupt"]).to_pylist() == [
            {"name": "-", "id": 1},
            {"name": "n", "id": 2},
            {"name": "n", "id": 2},
            {"name": "-", "id": 1},
            {"name": None, "id": None},
            {"name": None, "id": None},
        ]
        assert found["_corrupt"].to_pylist() == [None] * 5 + [b"\x80"]
    assert asked == [0, 1]


@pytest.mark.parametrize("more", [{}, {"x": {"type": "array", "items": "int"}}], ids=["flat", "array"])
@pytest.mark.parametrize("version", [None, 0], ids=["unversioned", "versioned"])
@pytest.mark.parametrize("columns", [("id", "ok"), ("ok",)], ids=["all", "some"])
def test_avro_bytes_after_the_record_are_wrong(
    more: dict[str, Any], version: int | None, columns: tuple[str, ...]
) -> None:
    schema = AvroSchema(record(id="long", ok="boolean", **more))
    info, good = schema.schema_info(), schema.encode({"id": 1, "ok": True, "x": []})
    payloads = [good, good + b"\0", b'{"id": 2, "ok": true}', good]

    def read(mode: str, *others: str) -> pa.RecordBatch:
        made = ValueDecoder(TOPIC, ValueSchema.of(info, (*columns, *others), ValueOptions(mode=mode)), lambda _: info)
        return made.decode(batch(*payloads, versions=[version] * len(payloads)))

    with pytest.raises(InvalidMessage, match=r"^Message 5:1 .*: bytes after the record: 1 \(ValueError\)\. Read with"):
        read("FAILFAST")
    assert read("DROPMALFORMED")["ok"].to_pylist() == [True, True]
    found = read("PERMISSIVE", "_corrupt")
    assert found["ok"].to_pylist() == [True, None, None, True]
    assert found["_corrupt"].to_pylist() == [None, *payloads[1:3], None]


def avro_rows(definition: dict[str, Any], value: dict[str, Any], *columns: str, **options: str) -> list[Any]:
    """Return the rows of one Avro message that are read with some of the columns."""
    made = ValueDecoder(
        TOPIC, ValueSchema.of(AvroSchema(definition).schema_info(), columns, ValueOptions(**options)), lambda _: None
    )
    return made.decode(batch(AvroSchema(definition).encode(value))).to_pylist()


POINT = {"type": "record", "name": "P", "namespace": "com.c", "fields": [{"name": "x", "type": "int"}]}
LINE = {"type": "record", "name": "L", "fields": [{"name": "p", "type": POINT}, {"name": "q", "type": "com.c.P"}]}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
@pytest.mark.parametrize("columns", ["a", "b", "c", "d", "e", "f", "g", "bc", "cb", "ga", "dg", "abcdefg"])
def test_avro_type_defined_in_a_field_left_out(columns: str, mode: str) -> None:
    types: list[Any] = [LINE, "com.c.P", ["null", "L"], {"type": "map", "values": "com.c.P"}, ENUM, "E"]
    fields = dict(zip("abcdef", types, strict=True)) | {"g": {"type": "array", "items": ["null", "com.b.L"]}}
    definition = record(**fields) | {"namespace": "com.b"}
    line = {"p": {"x": 1}, "q": {"x": 2}}
    value = {"a": line, "b": {"x": 3}, "c": line, "d": {"k": {"x": 4}}, "e": "A", "f": "B", "g": [None, line]}
    expected = value | {"d": [("k", {"x": 4})]}
    assert avro_rows(definition, value, *columns, mode=mode) == [{name: expected[name] for name in columns}]


def test_avro_versions_in_other_namespaces_resolve() -> None:
    old, new = (
        AvroSchema(record(a=POINT | {"namespace": name}, b=["null", "P"], c="P") | {"namespace": name})
        for name in ("com.old", "com.new")
    )
    value = {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}
    made = decoder(new.schema_info(), {0: old.schema_info()}.__getitem__)
    (found,) = made.decode(batch(old.encode(value), versions=[0])).to_pylist()
    assert found == {**value, "__entryId": 0}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int", "default": 7}]}
AT = datetime.datetime(2026, 11, 1, 5, 30, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("old", "new", "written", "read"),
    [
        pytest.param("long", MILLIS, 1793511000000, AT, id="long-millis"),
        pytest.param(MILLIS, "long", AT, 1793511000000, id="millis-long"),
        pytest.param(["null", "long"], ["null", MILLIS], 1793511000000, AT, id="nullable"),
        pytest.param("bytes", DECIMAL, b"\1\0", decimal.Decimal("2.56"), id="bytes-decimal"),
        pytest.param(DECIMAL, "bytes", decimal.Decimal("2.56"), b"\1\0", id="decimal-bytes"),
    ],
)
@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
def test_avro_logical_type_of_the_read(old: Any, new: Any, written: Any, read: Any, mode: str) -> None:
    writer, reader = AvroSchema(record(a=old)), AvroSchema(record(a=new))
    made = decoder(reader.schema_info(), {0: writer.schema_info()}.__getitem__, mode=mode)
    (found,) = made.decode(batch(writer.encode({"a": written}), versions=[0])).to_pylist()
    assert found == {"a": read, "__entryId": 0}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        pytest.param("bytes", "\u00ff\1", b"\xff\1", id="bytes"),
        pytest.param(INNER, {}, {"x": 7}, id="record"),
        pytest.param(MILLIS, 1793511000000, AT, id="timestamp"),
        pytest.param(DECIMAL, "\1\0", decimal.Decimal("2.56"), id="decimal"),
    ],
)
def test_avro_default_of_an_added_field(kind: Any, default: Any, value: Any) -> None:
    writer, definition = AvroSchema(record(i="int")), record(i="int", a=kind)
    definition["fields"][1]["default"] = default
    made = decoder(AvroSchema(definition).schema_info(), {0: writer.schema_info()}.__getitem__)
    (found,) = made.decode(batch(writer.encode({"i": 1}), versions=[0])).to_pylist()
    assert found == {"i": 1, "a": value, "__entryId": 0}


@pytest.mark.parametrize("column", ["_corrupt", "__entryId"])
@pytest.mark.parametrize(
    ("info", "payload"),
    [
        (AvroSchema(record(i="string")).schema_info(), b"\x50ab"),
        (JsonSchema(record(i="int")).schema_info(), b'{"i": "x"}'),
        (Int64Schema().schema_info(), b"x"),
    ],
)
def test_corrupt_is_found_without_value_columns(info: SchemaInfo, payload: bytes, column: str) -> None:
    mode = "PERMISSIVE" if column == "_corrupt" else "DROPMALFORMED"
    made = ValueDecoder(TOPIC, ValueSchema.of(info, (column,), ValueOptions(mode=mode)), lambda _: None)
    found = made.decode(batch(payload, None)).to_pylist()
    assert found == ([{column: payload}, {column: None}] if mode == "PERMISSIVE" else [{column: 1}])


def test_avro_failing_registry_fails_the_read() -> None:
    def find(version: int) -> SchemaInfo:
        raise ConnectionError("no registry")

    made = decoder(AvroSchema(OLD).schema_info(), find, mode="DROPMALFORMED")
    with pytest.raises(ConnectionError, match="no registry"):
        made.decode(batch(b"\x02", versions=[3]))


NUMBER = Int64Schema().schema_info()


def test_decode_failfast_names_topic_and_message() -> None:
    made = decoder(NUMBER)
    good = Int64Schema().encode(1)
    with pytest.raises(InvalidMessage, match=rf"Message 5:1 cannot be decoded by the schema of {TOPIC}: .*8 bytes"):
        made.decode(batch(good, b"x", b"y"))
    assert made.decode(batch(good, None)).to_pylist() == [{"value": 1, "__entryId": 0}, {"value": None, "__entryId": 1}]


def test_decode_dropped_messages_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    made = decoder(NUMBER, mode="DROPMALFORMED")
    good = Int64Schema().encode(1)
    with caplog.at_level(logging.WARNING, "pyspark_pulsar"):
        found = list(decoded(iter([batch(good, b"x", good), batch(b"y"), batch(good)]), made))
    # A batch without a row is not handed on.
    assert [each["__entryId"].to_pylist() for each in found] == [[0, 2], [0]]
    assert caplog.messages == [
        f"{TOPIC}: left out 2 of 5 messages that cannot be decoded; the first is 5:1: a message of INT64 has 8 bytes"
    ]
    caplog.clear()
    list(decoded(iter([batch(good)]), decoder(NUMBER, mode="DROPMALFORMED")))
    assert caplog.messages == []


def test_decode_json_makes_no_object_per_row() -> None:
    import tracemalloc

    rows = 20_000
    payload = json.dumps({"a": 1, "s": "text", "d": 1.5, "x": [1], "b": True}).encode()
    made, given = decoder(JsonSchema(SIMPLE).schema_info()), batch(*[payload] * rows)
    made.decode(given.slice(0, 1))
    tracemalloc.start()
    found = made.decode(given)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.num_rows == rows
    # A dictionary of five values has over 300 bytes.
    assert peak < rows * 10
