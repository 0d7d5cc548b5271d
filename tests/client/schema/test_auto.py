"""Schemas that follow the topic, without a broker: what they decode, check, and refuse."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.schema import AutoConsumeSchema, AutoProduceBytesSchema, GenericRecord, InvalidRecord, KeyValue
from pulsar_native.schema.versions import VersionedDecoder

NUMBER = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}
AVRO = ours.AvroSchema(NUMBER)
VERSION = bytes(8)


def following(schema: ours.Schema[Any]) -> ours.Schema[Any]:
    return AutoConsumeSchema().with_writer_schemas(lambda version: schema.schema_info())


def test_records_know_their_definition() -> None:
    record = following(AVRO).decode_versioned(b"\x02", VERSION)
    assert record == {"n": 1} and isinstance(record, GenericRecord)
    assert (record.schema_info, record.schema_version) == (AVRO.schema_info(), VERSION)
    copied = pickle.loads(pickle.dumps(record))
    assert copied == record and copied.schema_info == record.schema_info


def test_parts_of_pairs_are_records_too() -> None:
    separated = ours.KeyValueSchema(AVRO, ours.StringSchema(), ours.KeyValueEncodingType.SEPARATED)
    found = following(separated).decode_separated(b"\x02", b"v", VERSION)
    assert found == KeyValue({"n": 1}, "v") and isinstance(found, KeyValue)
    assert isinstance(found.key, GenericRecord) and found.key.schema_info.type is ours.SchemaType.AVRO
    inline = ours.KeyValueSchema(ours.StringSchema(), AVRO)
    data = inline.encode(KeyValue("k", {"n": 1}))
    assert following(inline).decode_versioned(data, VERSION) == KeyValue("k", {"n": 1})
    assert following(inline).decode_separated(b"k", None, VERSION) is None


def test_messages_without_a_schema_are_bytes() -> None:
    assert following(AVRO).decode_versioned(b"\xff", None) == b"\xff"
    assert AutoConsumeSchema().decode(b"\xff", VERSION) == b"\xff", "bound to no topic"
    assert following(AVRO).decode_separated(None, None, VERSION) is None


def test_null_messages_need_no_schema() -> None:
    def gone(version: bytes) -> ours.SchemaInfo:
        raise InvalidRecord("is no longer in the registry")

    forgetful = AutoConsumeSchema().with_writer_schemas(gone)
    protobuf = ours.SchemaInfo("p", ours.SchemaType.PROTOBUF, "{}")
    undecodable = AutoConsumeSchema().with_writer_schemas(lambda version: protobuf)
    for schema in (forgetful, undecodable, following(AVRO)):
        for key in (None, b"k"):
            assert schema.decode_separated(key, None, VERSION) is None
    for schema in (forgetful, undecodable):
        with pytest.raises(PulsarException):
            schema.decode_separated(b"k", b"\x02", VERSION)
    # A key that is part of the value is decoded.
    separated = ours.KeyValueSchema(ours.StringSchema(), AVRO, ours.KeyValueEncodingType.SEPARATED)
    assert following(separated).decode_separated(b"k", None, VERSION) == KeyValue("k", None)
    assert following(separated).decode_separated(None, None, VERSION) == KeyValue(None, None)


def test_a_version_is_looked_at_once() -> None:
    asked = []

    def find(version: bytes) -> ours.SchemaInfo:
        asked.append(version)
        return AVRO.schema_info()

    schema = AutoConsumeSchema().with_writer_schemas(find)
    for _ in range(3):
        schema.decode_versioned(b"\x02", VERSION)
    assert asked == [VERSION]
    decoder = VersionedDecoder(AutoConsumeSchema())
    assert decoder.needs_writer and decoder.takes_key
    assert not VersionedDecoder(ours.Int32Schema()).takes_key


def test_following_never_writes() -> None:
    for encode in (AutoConsumeSchema().encode, AutoConsumeSchema().encode_separated):
        with pytest.raises(InvalidConfiguration, match="AutoProduceBytesSchema"):
            encode(b"x")


def test_bytes_are_checked_once_the_topic_is_known() -> None:
    unbound = AutoProduceBytesSchema()
    assert unbound.follows_topic
    with pytest.raises(InvalidConfiguration, match="make a producer"):
        unbound.encode(b"")
    bound = unbound.for_topic(AVRO.schema_info())
    assert not bound.follows_topic and bound.schema_info() == AVRO.schema_info()
    assert bound.encode(b"\x02") == b"\x02" and bound.decode(b"\x02") == b"\x02"
    assert bound.encode(memoryview(b"\x02")) == b"\x02"  # type: ignore[arg-type]
    for bad, match in ((b"", "does not fit|do not fit"), (b"\x02\x00", "go on for 1 bytes")):
        with pytest.raises(InvalidRecord, match=match):
            bound.encode(bad)
    assert unbound.for_topic(None).encode(b"\xff") == b"\xff"


def test_schemas_that_cannot_be_checked_against() -> None:
    for schema in (AutoConsumeSchema(), AutoProduceBytesSchema()):
        with pytest.raises(InvalidConfiguration, match="cannot be checked"):
            AutoProduceBytesSchema(schema)


def test_json_definitions_that_are_not_avro_check_only_json() -> None:
    """Clients older than protocol version 13 registered JSON schemas in another form."""
    info = ours.SchemaInfo("x", ours.SchemaType.JSON, b'{"type": "object", "id": "urn:x", "properties": {}}')
    schema = AutoProduceBytesSchema().for_topic(info)
    assert schema.encode(b'{"a": 1}') == b'{"a": 1}'
    with pytest.raises(InvalidRecord, match="not JSON"):
        schema.encode(b"{")
