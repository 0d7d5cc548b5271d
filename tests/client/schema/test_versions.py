"""Decoding with the writers' schemas of one topic."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import (
    AvroSchema,
    BytesSchema,
    InvalidRecord,
    KeyValueEncodingType,
    KeyValueSchema,
    StringSchema,
)
from pulsar_native.schema.auto import AutoConsumeSchema
from pulsar_native.schema.versions import VersionedDecoder


def definition(*names: str) -> dict[str, Any]:
    """Return a record of numbers, each with a default."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": "int", "default": 7} for name in names]}


OLD, NEW = AvroSchema(None, definition("a")), AvroSchema(None, definition("a", "b"))


def test_decoder_asks_once_for_each_version() -> None:
    decoder = VersionedDecoder(NEW)
    assert decoder.needs_writer and decoder.wanted(b"\1") == b"\1"
    assert decoder.wanted(None) is None and decoder.wanted(b"") is None
    decoder.learn(b"\1", OLD.schema_info())
    assert decoder.wanted(b"\1") is None and decoder.wanted(b"\2") == b"\2"


def test_decoder_reads_by_the_writers_definition() -> None:
    decoder = VersionedDecoder(NEW)
    decoder.learn(b"\1", OLD.schema_info())
    decoder.learn(b"\2", NEW.schema_info())
    assert decoder.decode(OLD.encode({"a": 1}), b"\1") == {"a": 1, "b": 7}
    assert decoder.decode(NEW.encode({"a": 1, "b": 2}), b"\2") == {"a": 1, "b": 2}


def test_decoder_unknown_version_raises() -> None:
    with pytest.raises(InvalidRecord, match="The writer's schema of version 0102 was not fetched"):
        VersionedDecoder(NEW).decode(OLD.encode({"a": 1}), b"\1\2")


def test_decoder_of_another_topic_knows_nothing() -> None:
    first = VersionedDecoder(NEW)
    first.learn(b"\1", OLD.schema_info())
    other = first.for_topic()
    assert other.wanted(b"\1") == b"\1" and other.info == first.info
    other.learn(b"\1", NEW.schema_info())
    assert first.decode(OLD.encode({"a": 1}), b"\1") == {"a": 1, "b": 7}


def test_decoder_without_writers_asks_for_none() -> None:
    for schema in (BytesSchema(), StringSchema()):
        decoder = VersionedDecoder(schema)
        assert not decoder.needs_writer and not decoder.takes_key
    assert VersionedDecoder(StringSchema()).decode(b"ab", b"\1") == "ab"
    assert VersionedDecoder(AutoConsumeSchema()).needs_writer


def test_decoder_of_pairs_takes_the_key() -> None:
    schema = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    decoder = VersionedDecoder(schema)
    assert decoder.takes_key
    assert decoder.decode_separated(b"k", b"v", None) == ("k", "v")
    assert decoder.decode_separated(None, None, None) == (None, None)


def test_decoder_at_version_is_the_writers_schema() -> None:
    decoder = VersionedDecoder(NEW)
    with pytest.raises(InvalidRecord, match="was not fetched"):
        decoder.at_version(b"\1")
    decoder.learn(b"\1", OLD.schema_info())
    schema = decoder.at_version(b"\1")
    assert schema.schema_info() == OLD.schema_info()
    assert schema.decode(OLD.encode({"a": 1})) == {"a": 1, "b": 7}
    with pytest.raises(InvalidConfiguration, match="only decodes"):
        schema.encode({"a": 1})


def test_decoder_at_version_of_a_pair_separates_the_key() -> None:
    pair = KeyValueSchema(OLD, NEW, KeyValueEncodingType.SEPARATED)
    decoder = VersionedDecoder(pair)
    decoder.learn(b"\1", KeyValueSchema(OLD, OLD, KeyValueEncodingType.SEPARATED).schema_info())
    schema = decoder.at_version(b"\1")
    one = OLD.encode({"a": 1})
    found = schema.decode_separated(one, one, None)
    assert schema.separates_key and (found.key, found.value) == ({"a": 1}, {"a": 1, "b": 7})


def test_decoder_at_version_without_writers_is_plain() -> None:
    schema = StringSchema()
    assert VersionedDecoder(schema).at_version(b"\1") is schema
