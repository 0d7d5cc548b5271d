"""Decoding with the writers' schemas of one topic."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pydantic
import pytest
from google.protobuf.struct_pb2 import ListValue, Value

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import (
    Array,
    AutoProduceBytesSchema,
    AvroSchema,
    BytesSchema,
    CustomEnum,
    Int64Schema,
    Integer,
    InvalidRecord,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    ProtobufNativeSchema,
    ProtobufSchema,
    Record,
    Schema,
    SchemaInfo,
    StringSchema,
)
from pulsar_native.schema.auto import AutoConsumeSchema
from pulsar_native.schema.versions import TopicDecoder, VersionedDecoder


def definition(*names: str) -> dict[str, Any]:
    """Return a record of numbers, each with a default."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": "int", "default": 7} for name in names]}


V = b"\0" * 8
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


def test_decoder_missing_version_asked_again_later() -> None:
    now = 100.0
    decoder = VersionedDecoder(NEW, clock=lambda: now).for_topic()
    decoder.miss(b"\1")
    now += 4.9
    assert decoder.wanted(b"\1") is None and decoder.wanted(b"\2") == b"\2"
    now += 0.2
    assert decoder.wanted(b"\1") == b"\1"
    with pytest.raises(InvalidRecord, match="is no longer in the registry"):
        decoder.decode(OLD.encode({"a": 1}), b"\1")
    decoder.miss(b"\1")
    assert decoder.wanted(b"\1") is None
    # It was registered again.
    decoder.learn(b"\1", OLD.schema_info())
    now += 60
    assert decoder.wanted(b"\1") is None and decoder.decode(OLD.encode({"a": 1}), b"\1") == {"a": 1, "b": 7}


def test_topic_decoder_renewed_knows_nothing() -> None:
    topic = TopicDecoder(VersionedDecoder(NEW))
    before = topic.current
    before.learn(b"\1", OLD.schema_info())
    before.miss(b"\2")
    assert topic.current is before
    topic.renew()
    after = topic.current
    assert (after.wanted(b"\1"), after.wanted(b"\2")) == (b"\1", b"\2")
    after.learn(b"\1", NEW.schema_info())
    one = OLD.encode({"a": 1})
    assert before.decode(one, b"\1") == {"a": 1, "b": 7}
    assert after.decode(NEW.encode({"a": 1, "b": 2}), b"\1") == {"a": 1, "b": 2}


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


# --- pickled, copied --------------------------------------------------------------------------------------------------


class Level(Enum):
    LOW = 1
    HIGH = 2


class Part(Record):
    """Record in a record."""

    x = Integer()


class Whole(Record):
    """Record of the package's own class."""

    a = Integer()
    level = CustomEnum(Level)
    part = Part()
    parts = Array(Integer())


@dataclass
class Flight:
    """Record as a dataclass."""

    a: int
    at: datetime
    level: Level = Level.HIGH
    stops: list[str] = field(default_factory=list)


class Model(pydantic.BaseModel):
    """Record as a pydantic model."""

    a: int
    level: Level = Level.LOW


class OwnAvro(AvroSchema[Any]):
    """Subclass with a constructor of its own."""

    def __init__(self) -> None:
        super().__init__(Part)
        self.name = "own"


FLIGHT = Flight(1, datetime(2026, 5, 1, tzinfo=UTC), stops=["x"])
NESTED = {"type": "record", "name": "N", "fields": [{"name": "a", "type": {"type": "array", "items": "int"}}]}
LISTED = ListValue(values=[Value(number_value=3)])
PICKLED: dict[str, tuple[Schema[Any], Any]] = {
    **{
        f"{kind.__name__}-{name}": (kind(source), value)
        for kind in (AvroSchema, JsonSchema)
        for name, source, value in (
            ("record", Whole, Whole(a=1, level=Level.HIGH, part=Part(x=2), parts=[3])),
            ("dataclass", Flight, FLIGHT),
            ("pydantic", Model, Model(a=1)),
            ("dict", NESTED, {"a": [1]}),
            ("flat-dict", definition("a", "b"), {"a": 1, "b": 2}),
        )
    },
    "avro-subclass": (OwnAvro(), Part(x=1)),
    "key-value": (KeyValueSchema(AvroSchema(Flight), JsonSchema(Model)), KeyValue(FLIGHT, Model(a=1))),
    "protobuf": (ProtobufSchema(ListValue), LISTED),
    "protobuf-native": (ProtobufNativeSchema(ListValue), LISTED),
    "auto-produce": (AutoProduceBytesSchema(AvroSchema(Part)), AvroSchema(Part).encode(Part(x=1))),
    "text": (StringSchema(), "x"),
    "number": (Int64Schema(), 1),
    "bytes": (BytesSchema(), b"x"),
}


def again(schema: Any) -> Any:
    """Return the schema pickled and loaded, after it was copied."""
    copy.deepcopy(schema)
    return pickle.loads(pickle.dumps(schema))


@pytest.mark.parametrize("name", PICKLED)
def test_schema_pickles_before_and_after_use(name: str) -> None:
    schema, value = PICKLED[name]
    schema = copy.copy(schema)
    fresh = again(schema)
    data = schema.encode(value)
    schema.validate(data)
    assert schema.decode(data) == value
    for loaded in (fresh, again(schema)):
        assert type(loaded) is type(schema) and loaded.schema_info() == schema.schema_info()
        assert loaded.encode(value) == data and loaded.decode(data) == value


@pytest.mark.parametrize("name", PICKLED)
def test_decoder_pickles_with_writers(name: str) -> None:
    schema, value = PICKLED[name]
    decoder, data = VersionedDecoder(schema), schema.encode(value)
    decoder.learn(V, schema.schema_info())
    fresh = again(decoder)
    assert decoder.decode(data, V) == value
    for loaded in (fresh, again(decoder)):
        assert loaded.decode(data, V) == loaded.at_version(V).decode(data) == value
        assert again(loaded.at_version(V)).decode(data) == value
        assert loaded.wanted(V) is None and loaded.wanted(b"\1") == b"\1"


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        (AvroSchema(Flight), FLIGHT, None),
        (ProtobufNativeSchema(ListValue), LISTED, None),
        (KeyValueSchema(OLD, StringSchema()), KeyValue({"a": 1}, "x"), KeyValue({"a": 1}, "x")),
    ],
    ids=["avro", "protobuf-native", "key-value"],
)
def test_decoder_of_auto_consume_pickles(schema: Schema[Any], value: Any, found: Any) -> None:
    decoder, data = VersionedDecoder(AutoConsumeSchema()), schema.encode(value)
    decoder.learn(V, schema.schema_info())
    decoded = decoder.decode(data, V)
    assert found is None or decoded == found
    assert again(decoder).decode(data, V) == decoded


def test_pickled_decoder_resolves_another_writer() -> None:
    decoder = VersionedDecoder(KeyValueSchema(NEW, NEW))
    decoder.learn(V, KeyValueSchema(OLD, NEW).schema_info())
    data = KeyValueSchema(OLD, NEW).encode(KeyValue({"a": 1}, {"a": 2, "b": 3}))
    assert again(decoder).decode(data, V) == ({"a": 1, "b": 7}, {"a": 2, "b": 3})


def test_pickled_producer_check_of_topic_works() -> None:
    check = AutoProduceBytesSchema().for_topic(ProtobufNativeSchema(ListValue).schema_info())
    loaded = again(check)
    assert loaded.encode(LISTED.SerializeToString()) and isinstance(loaded.schema_info(), SchemaInfo)
    with pytest.raises(InvalidRecord):
        loaded.encode(b"\x0a\x09U")
