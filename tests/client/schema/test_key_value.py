"""KeyValue schemas: Java's bytes and definitions, nulls, and what does not fit.

The bytes come from Java: `Schema.KeyValue(Schema.STRING, Schema.INT32, KeyValueEncodingType.INLINE).encode(new
KeyValue<>("k\\u00fc", 7))` and so on.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import InvalidRecord, KeyValue, KeyValueEncodingType, KeyValueSchema, SchemaInfo, SchemaType
from pulsar_native.schema.key_value import definition_from_rest, split_info

INLINE = KeyValueSchema(ours.StringSchema(), ours.Int32Schema())
SEPARATED = KeyValueSchema(ours.StringSchema(), ours.Int32Schema(), KeyValueEncodingType.SEPARATED)
NUMBER = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}


@pytest.mark.parametrize(
    ("pair", "java"),
    [
        (KeyValue("k\u00fc", 7), "000000036bc3bc0000000400000007"),
        (KeyValue(None, 7), "ffffffff0000000400000007"),
        (KeyValue("k", None), "000000016bffffffff"),
        (KeyValue(None, None), "ffffffffffffffff"),
    ],
)
def test_inline_bytes_are_javas(pair: KeyValue[str, int], java: str) -> None:
    assert INLINE.encode(pair).hex() == java
    assert INLINE.decode(bytes.fromhex(java)) == pair


def test_separated_parts_and_nulls() -> None:
    number = b"\x00\x00\x00\x07"
    assert SEPARATED.encode_separated(KeyValue("k", 7)) == (b"k", number)
    assert SEPARATED.encode_separated(KeyValue(None, None)) == (None, None)
    assert SEPARATED.decode_separated(b"k", number, None) == KeyValue("k", 7)
    assert SEPARATED.decode_separated(None, None, None) == KeyValue(None, None)
    assert INLINE.decode_separated(b"ignored", None, None) is None
    for refused in (lambda: SEPARATED.encode(KeyValue("k", 7)), lambda: SEPARATED.decode(b"")):
        with pytest.raises(InvalidRecord, match="no part of the payload"):
            refused()


def test_what_the_registry_is_told() -> None:
    info = KeyValueSchema(ours.JsonSchema(schema_definition=NUMBER), ours.BytesSchema()).schema_info()
    key = json.dumps(NUMBER, indent=1).encode()
    assert (info.type, info.name()) == (SchemaType.KEY_VALUE, "KeyValue")
    assert info.data == len(key).to_bytes(4, "big") + key + bytes(4)
    assert info.properties() == {
        "key.schema.name": "JSON",
        "key.schema.type": "JSON",
        "key.schema.properties": "{}",
        "value.schema.name": "BYTES",
        "value.schema.type": "BYTES",
        "value.schema.properties": "{}",
        "kv.encoding.type": "INLINE",
    }
    parts = split_info(info)
    assert (parts[0].type, parts[0].data, parts[1].type, parts[2]) == (
        SchemaType.JSON,
        key,
        SchemaType.BYTES,
        KeyValueEncodingType.INLINE,
    )


def test_javas_definition_is_understood() -> None:
    # Java: Schema.KeyValue(Schema.JSON(Pojo.class), Schema.AVRO(Pojo.class), SEPARATED).getSchemaInfo()
    pojo = (
        b'{"type":"record","name":"Pojo","namespace":"Golden","fields":[{"name":"a","type":"int"},'
        b'{"name":"b","type":["null","string"],"default":null}]}'
    )
    flags = '{"__alwaysAllowNull":"true","__jsr310ConversionEnabled":"false"}'
    properties = {"key.schema.name": "", "key.schema.type": "JSON", "key.schema.properties": flags}
    properties |= {"value.schema.name": "", "value.schema.type": "AVRO", "value.schema.properties": flags}
    info = SchemaInfo(
        "KeyValue",
        SchemaType.KEY_VALUE,
        (len(pojo).to_bytes(4, "big") + pojo) * 2,
        properties | {"kv.encoding.type": "SEPARATED"},
    )
    schema: Any = ours.schema_from_info(info)
    assert schema.separates_key
    assert schema.decode_separated(b'{"a":1}', b"\x02\x00", None) == ({"a": 1}, {"a": 1, "b": None})
    assert split_info(info)[0].properties()["__alwaysAllowNull"] == "true"


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0", b"\0\0\0\x05k", b"\xff\xff\xff\xff", b"\xff" * 8 + b"x", b"\0\0\0\x01k\0\0\0\x09"]
)
def test_bytes_that_are_no_pair(data: bytes) -> None:
    with pytest.raises(InvalidRecord, match=r"pair|goes on"):
        INLINE.decode(data)
    with pytest.raises(InvalidRecord, match=r"pair|goes on"):
        INLINE.validate(data)


def test_values_that_are_no_pair() -> None:
    for schema, encode in ((INLINE, INLINE.encode), (SEPARATED, SEPARATED.encode_separated)):
        for value in ("k", ("k",), ("k", 1, 2), {"k": 1}):
            with pytest.raises(InvalidRecord, match="KeyValue"):
                encode(value)  # type: ignore[arg-type]
        assert schema.separates_key is (schema is SEPARATED)
    assert INLINE.encode(("k", 7)) == INLINE.encode(KeyValue("k", 7))  # type: ignore[arg-type]


def test_schemas_that_cannot_be_parts() -> None:
    with pytest.raises(InvalidConfiguration, match="key_schema cannot be of kind KEY_VALUE"):
        KeyValueSchema(INLINE, ours.StringSchema())
    with pytest.raises(InvalidConfiguration, match="value_schema must be a schema"):
        KeyValueSchema(ours.StringSchema(), str)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="KeyValueEncodingType"):
        KeyValueSchema(ours.StringSchema(), ours.StringSchema(), "INLINE")  # type: ignore[arg-type]


def test_parts_are_read_with_their_writers_schemas() -> None:
    wider = {**NUMBER, "fields": [*NUMBER["fields"], {"name": "more", "type": "string", "default": "-"}]}
    old = KeyValueSchema(ours.StringSchema(), ours.AvroSchema(schema_definition=NUMBER))
    new = KeyValueSchema(ours.StringSchema(), ours.AvroSchema(schema_definition=wider))
    bound = new.with_writer_schemas(lambda version: old.schema_info())
    assert bound is not new
    pair = bound.decode_versioned(old.encode(KeyValue("k", {"n": 1})), b"\0" * 8)
    assert pair == KeyValue("k", {"n": 1, "more": "-"})
    assert INLINE.with_writer_schemas(lambda version: old.schema_info()) is INLINE


def test_damaged_properties_are_named() -> None:
    info = INLINE.schema_info()
    broken = SchemaInfo(info.name(), info.type, info.data, {**info.properties(), "key.schema.type": "ODD"})
    with pytest.raises(InvalidRecord, match="damaged"):
        split_info(broken)
    with pytest.raises(InvalidRecord, match="not KEY_VALUE"):
        split_info(ours.StringSchema().schema_info())


def test_the_form_of_the_rest_interface() -> None:
    text = b'{"key":"","value":{"type":"record","name":"N","fields":[]}}'
    value = b'{"type":"record","name":"N","fields":[]}'
    assert definition_from_rest(text) == bytes(4) + len(value).to_bytes(4, "big") + value
    for broken in (b"", b"{}", b"[]", b'{"key":""}'):
        with pytest.raises(InvalidRecord, match="no object of key and value"):
            definition_from_rest(broken)
