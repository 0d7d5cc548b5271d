"""Codecs of jobs: values to bytes by schema, texts and table values by definition, messages to JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulsar_native.jobs.codecs import Codec, EncodedBytes, WriterSchema, decode
from pulsar_native.jobs.sources import Source
from pulsar_native.schema import (
    AvroSchema,
    InvalidRecord,
    JsonSchema,
    SchemaInfo,
    SchemaType,
    StringSchema,
)
from support.jobs import received

DEFINITION: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "n", "type": "int"}, {"name": "text", "type": ["null", "string"], "default": None}],
}


class Color(Enum):
    """An enumeration in a message."""

    RED = "red"


# ---- values to bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, None),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[1:3], b"bc"),
        ("ü", "ü".encode()),
        ("", b""),
        ({"a": [1, None, True]}, b'{"a":[1,null,true]}'),
        (UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (time(1, 2), b'"01:02:00"'),
    ],
)
def test_codec_without_schema_keeps_bytes_and_text(value: Any, encoded: bytes | None) -> None:
    codec = Codec(None, None)
    assert codec.encode(value) == encoded and codec.to_register is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": object()}, r"object has no form in JSON \(the field 'a'\)"),
        ({"a": 1, "b": b"x"}, r"bytes has no form in JSON \(the field 'b'\)"),
        ({"a": 1, "b": [float("inf")]}, r"Out of range.*\(the field 'b'\)"),
        (float("nan"), "cannot be written in JSON"),
        ({(1, 2): 3}, "cannot be written in JSON"),
        ({"a": {b"x": 1}}, r"bytes has no form in JSON \(the field 'a'\)"),
        ({"a": Color.RED}, "Color has no form in JSON"),
        ({"a": Decimal("NaN")}, r"NaN has no form in JSON \(the field 'a'\)"),
        ({"a": [Decimal("-Infinity")]}, r"-Infinity has no form in JSON \(the field 'a'\)"),
    ],
)
def test_codec_without_schema_refuses_other_values(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Codec(None, None).encode(value)


def test_codec_without_schema_keeps_a_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = ['{"a": 0.123456789012345678901}', '{"b":100000000.000000001, "é":"\\u00e9"}', '{"c": 1e400}']
    path.write_text("".join(f" {line}\r\n" for line in lines), encoding="utf-8")
    rows = list(Source.of_file(str(path), None))
    assert [Codec(None, None).encode(row) for row in rows] == [line.encode() for line in lines]
    assert rows[0] == {"a": 0.123456789012345678901}
    path.write_text('{"a": NaN}\n{"a": 1}\n')
    wrong, good = Source.of_file(str(path), None)
    assert Codec(None, None).encode(good) == b'{"a": 1}'
    with pytest.raises(ValueError, match="cannot be written in JSON"):
        Codec(None, None).encode(wrong)


@pytest.mark.parametrize("schema", ["json", "avro"])
def test_codec_registers_the_definition_given(schema: str) -> None:
    codec = Codec(schema, DEFINITION)
    assert isinstance(codec.to_register, EncodedBytes)
    info = codec.to_register.schema_info()
    assert info.type is SchemaType[schema.upper()] and json.loads(info.schema()) == DEFINITION
    data = codec.encode({"n": 1, "text": "a"})
    assert data is not None and codec.to_register.encode(data) is data and codec.to_register.decode(data) is data
    reader: Any = JsonSchema(None, DEFINITION) if schema == "json" else AvroSchema(None, DEFINITION)
    assert reader.decode(data) == {"n": 1, "text": "a"}


def test_codec_avro_refuses_unknown_fields() -> None:
    with pytest.raises(InvalidRecord, match="other"):
        Codec("avro", DEFINITION).encode({"n": 1, "other": 2})


def test_codec_of_strings_takes_only_text() -> None:
    codec = Codec("string", None)
    assert codec.encode("ü") == "ü".encode()
    assert codec.to_register is not None and codec.to_register.schema_info().type is SchemaType.STRING
    with pytest.raises(ValueError, match="str"):
        codec.encode(5)


def test_codec_description_depends_on_schema_and_definition() -> None:
    same = {name: DEFINITION[name] for name in reversed(DEFINITION)}
    assert Codec("avro", DEFINITION).description == Codec("avro", same).description
    assert len({Codec(*each).description for each in (("avro", DEFINITION), ("json", DEFINITION), (None, None))}) == 3


# ---- texts of a CSV file ---------------------------------------------------------------------------------------------


def texts(kind: Any) -> Codec:
    """Return the codec of rows with one column."""
    return Codec("json", {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}, from_texts=True)


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("int", "-5", -5),
        ("long", " 7", 7),
        ("double", "1e3", 1000.0),
        ("string", "", ""),
        ("boolean", " YES ", True),
        ("boolean", "0", False),
        ("bytes", "ü", "ü".encode()),
        (["null", "int"], "", None),
        (["null", "int"], "NA", None),
        (["null", "string"], "", None),
        (["null", "string"], "NA", "NA"),
        (["null", "string"], "null", "null"),
        (["null", {"type": "enum", "name": "E", "symbols": ["NA"]}], "NA", "NA"),
        (["null", "boolean"], "null", None),
        (["null", {"type": "long", "logicalType": "timestamp-millis"}], "12", 12),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", "A"),
        ("int", None, None),
        ("int", 5, 5),
    ],
)
def test_codec_converts_texts_by_type(kind: Any, text: Any, found: Any) -> None:
    assert texts(kind).typed({"a": text, "other": "x"}, "texts") == {"a": found, "other": "x"}


@pytest.mark.parametrize(("kind", "name"), [("int", "int"), ("double", "float"), ("boolean", "flag")])
def test_codec_wrong_text_names_the_column(kind: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"the column 'a' holds 'maybe', which is no {name}"):
        texts(kind).typed({"a": "maybe"}, "texts")


def test_codec_rows_of_other_sources_stay() -> None:
    row = {"a": "5"}
    assert texts("int").typed(row, None) is row
    assert Codec("json", DEFINITION).typed(row, "texts") is row
    assert texts("int").typed(["5"], "texts") == ["5"]


# ---- values of tables ------------------------------------------------------------------------------------------------

_AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
_LOGICAL = {"type": "long", "logicalType": "timestamp-millis"}


def test_codec_without_schema_writes_times_as_iso() -> None:
    row = {"at": _AT, "day": date(2026, 1, 2), "price": Decimal("1.10"), "none": None}
    encoded = Codec(None, None).encode(row)
    assert encoded is not None
    assert json.loads(encoded) == {
        "at": "2026-01-02T03:04:05.678000+00:00", "day": "2026-01-02", "price": "1.10", "none": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (_AT, "2026-01-02T03:04:05.678000+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), str(UUID(int=1))),
        (1.5, "1.5"),
        (True, "true"),
        ("x", "x"),
    ],
    ids=["time", "date", "decimal", "uuid", "float", "flag", "text"],
)
def test_codec_without_schema_writes_keys_as_text(key: Any, found: str) -> None:
    encoded = Codec(None, None).encode({"m": {key: {"at": _AT}}, "list": [{key: 1}], "n": 2})
    assert encoded is not None
    assert json.loads(encoded) == {"m": {found: {"at": _AT.isoformat()}}, "list": [{found: 1}], "n": 2}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (timedelta(0), "P0DT0S"),
        (timedelta(days=1, minutes=90), "P1DT5400S"),
        (timedelta(microseconds=1500), "P0DT0.0015S"),
        (-timedelta(days=2, seconds=0.25), "P-2DT-0.25S"),
        (ip_address("10.0.0.1"), "10.0.0.1"),
        (ip_network("fd00::/8"), "fd00::/8"),
        (ip_interface("10.0.0.1/24"), "10.0.0.1/24"),
    ],
)
def test_codec_writes_durations_and_addresses(value: Any, found: str) -> None:
    encoded = Codec(None, None).encode({"a": value})
    assert encoded is not None
    assert json.loads(encoded) == {"a": found}


@pytest.mark.parametrize("schema", ["json", "avro"])
@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("string", _AT, _AT.isoformat()),
        ("string", date(2026, 1, 2), "2026-01-02"),
        ("string", Decimal("1.10"), "1.10"),
        ("long", _AT, 1767323045678),
        ("long", _AT.replace(tzinfo=None), 1767323045678),
        ("int", 3.0, 3),
        (["null", "int"], None, None),
        ("double", Decimal("1.5"), 1.5),
        ({"type": "int", "logicalType": "date"}, date(1970, 1, 3), 2),
        (_LOGICAL, _AT, 1767323045678),
        (_LOGICAL, _AT.replace(tzinfo=None), 1767323045678),
    ],
)
def test_codec_gives_table_values_the_schema_type(schema: str, kind: Any, value: Any, found: Any) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    codec = Codec(schema, definition)
    data = codec.encode(codec.typed({"a": value}, "table"))
    assert data is not None
    decoded = (JsonSchema if schema == "json" else AvroSchema)(None, definition).decode(data)["a"]
    if isinstance(decoded, datetime):
        decoded = round(decoded.timestamp() * 1000)
    elif isinstance(decoded, date):
        decoded = decoded.toordinal() - date(1970, 1, 1).toordinal()
    assert decoded == found


@pytest.mark.parametrize(
    ("logical", "expected"),
    [
        ("timestamp-micros", 1767323045678000),
        ("timestamp-nanos", 1767323045678000000),
        ("local-timestamp-millis", 1767323045678),
    ],
)
def test_codec_json_times_in_units_of_logical_type(logical: str, expected: int) -> None:
    kind = {"type": "long", "logicalType": logical}
    codec = Codec("json", {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    data = codec.encode(codec.typed({"a": _AT}, "table"))
    assert data is not None and json.loads(data) == {"a": expected}


def test_codec_avro_local_time_loses_its_zone() -> None:
    kind = {"type": "long", "logicalType": "local-timestamp-millis"}
    codec = Codec("avro", {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    assert codec.typed({"a": _AT}, "table") == {"a": _AT.replace(tzinfo=None)}


# ---- messages to JSON ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "decoder", "found"),
    [
        (b"\xff", "bytes", ("/w==", "base64")),
        ("ü".encode(), "text", ("ü", "text")),
        (b'{"a": [1, NaN]}', "json", ({"a": [1, "nan"]}, "json")),
        (b"1e999", "json", ("inf", "json")),
        (b"text", "schema", ("text", "text")),
        (b"\xff", "schema", ("/w==", "base64")),
    ],
)
def test_decode_by_decoder(payload: bytes, decoder: str, found: tuple[Any, str]) -> None:
    assert decode(received(payload), decoder) == found


@pytest.mark.parametrize("decoder", ["bytes", "text", "json", "schema"])
def test_decode_null_value(decoder: str) -> None:
    assert decode(received(b"", null_value=True), decoder) == (None, "null")


def test_decode_by_schema_tells_text_from_json() -> None:
    assert decode(received(b"a", schema=StringSchema()), "schema") == ("a", "text")
    assert decode(received(b'{"n":1}', schema=JsonSchema(None, DEFINITION)), "schema") == ({"n": 1}, "json")


@pytest.mark.parametrize(
    ("decoder", "words"), [("text", r"not text in UTF-8 \(invalid start byte at byte 1\)"), ("json", "is not JSON")]
)
def test_decode_damaged_payload_raises(decoder: str, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        decode(received(b"a\xff"), decoder)


def test_writer_schema_finds_each_version_once() -> None:
    asked: list[bytes] = []

    def find(version: bytes) -> SchemaInfo:
        asked.append(version)
        return JsonSchema(None, DEFINITION).schema_info() if version == b"2" else StringSchema().schema_info()

    schema = WriterSchema().with_writer_schemas(find)
    for _ in range(2):
        assert schema.decode_versioned(b'{"n":1}', b"2") == {"n": 1}
        assert schema.decode_versioned(b"ab", b"3") == "ab"
    assert schema.decode_versioned(b"ab", None) == schema.decode(b"ab") == b"ab"
    assert asked == [b"2", b"3"]
    assert WriterSchema().decode_versioned(b"ab", b"2") == b"ab"
    with pytest.raises(InvalidRecord, match="decodes only"):
        schema.encode("x")


def test_codec_schema_in_any_case() -> None:
    assert Codec("String", None).to_register is not None
    with pytest.raises(ValueError, match="schema='jsn' is not known; did you mean 'json'"):
        Codec("jsn", {})
