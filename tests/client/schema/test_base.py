"""The base of schemas, bytes, and text."""

from __future__ import annotations

import copy

import pulsar.schema as official
import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import BytesSchema, InvalidRecord, Schema, SchemaInfo, SchemaType, StringSchema


@pytest.mark.parametrize("data", [b"", b"\x00\xff", b"x" * 100_000])
def test_bytes_are_kept(data: bytes) -> None:
    schema = BytesSchema()
    assert schema.encode(data) is data
    assert schema.encode(bytearray(data)) == schema.encode(memoryview(data)) == data  # type: ignore[arg-type]
    assert schema.decode_versioned(data, b"\x00" * 8) is data
    assert (schema.schema_info(), str(schema)) == (SchemaInfo("BYTES", SchemaType.BYTES), "BytesSchema")


@pytest.mark.parametrize("text", ["", "text", "ünïcode \U0001f600 \x00"])
def test_text_travels_as_the_official_client_writes_it(text: str) -> None:
    schema, peer = StringSchema(), official.StringSchema()
    assert schema.encode(text) == peer.encode(text)
    assert schema.decode(peer.encode(text)) == text == peer.decode(schema.encode(text))
    assert schema.schema_info() == SchemaInfo("STRING", SchemaType.STRING)


@pytest.mark.parametrize("value", [None, 3, "text", ["b"]])
def test_bytes_only(value: object) -> None:
    with pytest.raises(InvalidRecord, match="of type bytes, not"):
        BytesSchema().encode(value)  # type: ignore[arg-type]


def test_bytes_schema_error_names_fix() -> None:
    with pytest.raises(InvalidRecord, match=r"not str; pass text\.encode\(\), or give the producer a schema$"):
        BytesSchema().encode("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord, match=r"not dict; give the producer a schema$"):
        BytesSchema().encode({})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 3, b"text", "\ud800"])
def test_text_only(value: object) -> None:
    with pytest.raises(InvalidRecord):
        StringSchema().encode(value)  # type: ignore[arg-type]


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InvalidRecord, match="at byte 2"):
        StringSchema().decode(b"ab\xff")


class Reversed(Schema[str]):
    """A schema as users of the official client write it."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.JSON, {"type": "string"}, "reversed")

    def encode(self, obj: str) -> bytes:
        """Return the text backwards."""
        return obj[::-1].encode()

    def decode(self, data: bytes) -> str:
        """Return the text."""
        return data.decode()[::-1]


def test_a_schema_of_ones_own() -> None:
    schema = Reversed()
    assert schema.decode_versioned(schema.encode("abc"), b"\x00" * 8) == "abc"
    assert schema.with_writer_schemas(lambda version: pytest.fail("not needed")) is schema
    assert schema.schema_info() == SchemaInfo("reversed", SchemaType.JSON, b'{\n "type": "string"\n}')
    assert copy.deepcopy(schema) is schema


def test_a_definition_that_is_not_json() -> None:
    with pytest.raises(InvalidConfiguration, match="not JSON"):
        Schema(None, SchemaType.JSON, {"type": b"bytes"}, "x")


def test_schema_info_has_the_official_private_name() -> None:
    own: Schema[object] = Schema(list, SchemaType.JSON, {"type": "record"}, "MINE")
    assert own._schema_info is own.schema_info()
