"""Every other kind of schema shared with Java: primitives and dates, Protobuf, pairs, and the automatic ones."""

from __future__ import annotations

import base64
import datetime
import json
import math
from typing import Any

import pytest
from google.protobuf import timestamp_pb2, type_pb2

from pulsar_native import InitialPosition
from pulsar_native.admin import AdminClient
from pulsar_native.schema import (
    AutoConsumeSchema,
    AutoProduceBytesSchema,
    AvroSchema,
    BooleanSchema,
    DateSchema,
    DoubleSchema,
    FloatSchema,
    InstantSchema,
    Int8Schema,
    Int16Schema,
    Int32Schema,
    Int64Schema,
    InvalidRecord,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    LocalDateSchema,
    LocalDateTimeSchema,
    LocalTimeSchema,
    ProtobufNativeSchema,
    ProtobufSchema,
    Schema,
    StringSchema,
    TimeSchema,
    TimestampSchema,
)
from support.brokers import Broker, NewTopic
from support.java_peer import JavaClient, JavaError, JavaPeer

UTC = datetime.UTC
MOMENTS = [
    datetime.datetime(1970, 1, 1, tzinfo=UTC),
    datetime.datetime(2024, 2, 29, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime.datetime(1901, 1, 1, 12, tzinfo=UTC),
]


def millis(moment: datetime.datetime) -> int:
    """Return milliseconds since 1970."""
    return (moment - MOMENTS[0]) // datetime.timedelta(milliseconds=1)


DAYS = [datetime.date(1970, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
TIMES = [datetime.time(0), datetime.time(23, 59, 59, 999_999), datetime.time(12, 30, 15, 5)]
LOCAL = [datetime.datetime.combine(day, time) for day, time in zip(DAYS, TIMES, strict=True)]
# Java's name of the schema, ours, values, and how Java shows them; without the last, just so.
KINDS: dict[str, tuple[Schema[Any], list[Any], list[Any] | None]] = {
    "bool": (BooleanSchema(), [True, False], None),
    "int8": (Int8Schema(), [0, -128, 127], None),
    "int16": (Int16Schema(), [0, -(2**15), 2**15 - 1], None),
    "int32": (Int32Schema(), [0, -(2**31), 2**31 - 1], None),
    "int64": (Int64Schema(), [0, -(2**63), 2**63 - 1], None),
    "float": (FloatSchema(), [0.0, -0.25, math.inf, -math.inf, 2.0**20], None),
    "double": (DoubleSchema(), [0.0, 0.1, -1e308, math.inf, 5e-324], None),
    "date": (DateSchema(), MOMENTS, [millis(moment) for moment in MOMENTS]),
    "timestamp": (TimestampSchema(), MOMENTS, [millis(moment) for moment in MOMENTS]),
    "time": (TimeSchema(), [datetime.time(0), datetime.time(13, 5, 9, 7000)], [0, 47_109_007]),
    "instant": (
        InstantSchema(),
        [*MOMENTS, MOMENTS[0].replace(microsecond=1)],
        ["1970-01-01T00:00:00Z", "2024-02-29T23:59:59.999Z", "1901-01-01T12:00:00Z", "1970-01-01T00:00:00.000001Z"],
    ),
    "local_date": (LocalDateSchema(), DAYS, ["1970-01-01", "0001-01-01", "9999-12-31"]),
    "local_time": (LocalTimeSchema(), TIMES, ["00:00", "23:59:59.999999", "12:30:15.000005"]),
    "local_date_time": (
        LocalDateTimeSchema(), LOCAL, ["1970-01-01T00:00", "0001-01-01T23:59:59.999999", "9999-12-31T12:30:15.000005"],
    ),
}  # fmt: skip


@pytest.mark.proves("C173")
@pytest.mark.parametrize("kind", list(KINDS))
class TestPrimitives:
    """Numbers and dates."""

    def test_both_encode_alike(self, java_peer: JavaPeer, kind: str) -> None:
        java_peer.start()
        ours, values, shown = KINDS[kind]
        info, theirs = ours.schema_info(), java_peer.schema_info(kind)
        assert (info.type.name, info.data, dict(info.properties())) == (
            theirs["type"], theirs["schema"], theirs["properties"],
        )  # fmt: skip
        for value, there in zip(values, shown or values, strict=True):
            assert java_peer.decode(kind, ours.encode(value)) == there
            assert ours.decode(java_peer.encode(kind, there)) == value
            assert ours.encode(value) == java_peer.encode(kind, there)

    def test_both_ways_on_one_topic(
        self, plain_client: Any, java: JavaClient, broker: Broker, topic: NewTopic, kind: str
    ) -> None:
        ours, values, shown = KINDS[kind]
        name = topic()
        producer = plain_client.create_producer(name, schema=ours)
        for value in values:
            producer.send(value)
        java.producer(name, kind).send_all(shown or values)
        info = AdminClient(broker.admin_url).get_schema(name)
        assert info is not None and (info.version, info.type) == (0, ours.schema_info().type)
        for described in (kind, "auto_consume"):
            messages = java.consumer(name, described, schema=described).receive(2 * len(values))
            assert [message.value for message in messages] == (shown or values) * 2
        for number, schema in enumerate((ours, AutoConsumeSchema())):
            consumer = plain_client.subscribe(
                name, f"ours-{number}", schema=schema, initial_position=InitialPosition.Earliest
            )
            assert [consumer.receive(20_000).value() for _ in range(2 * len(values))] == values * 2
            consumer.close()


FLIGHT = {"carrier": "UA", "delay": 3, "distance": 5, "fuel": 1.5, "load": 0.5, "diverted": True}


def flight_schema(peer: JavaPeer, kind: str) -> AvroSchema[Any]:
    """Return ours with the definition of Java's class."""
    return AvroSchema(schema_definition=json.loads(peer.schema_info(f"{kind}:flight")["schema"]))


@pytest.mark.proves("C173", "C174")
@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
@pytest.mark.parametrize("kind", ["avro:flight", "int64"])
def test_pairs_go_both_ways(
    client: Any, java: JavaClient, broker: Broker, topic: NewTopic, kind: str, encoding: str
) -> None:
    described = {"key": "string", "value": kind, "encoding": encoding}
    of_value = Int64Schema() if kind == "int64" else flight_schema(java.peer, "avro")
    ours = KeyValueSchema(StringSchema(), of_value, KeyValueEncodingType(encoding))
    whole = {
        **FLIGHT,
        "raw": None,
        "cabin": "ECONOMY",
        "seat": {"row": 1, "letter": None},
        "stops": ["a"],
        "counts": {},
    }
    value: Any = 2**62 if kind == "int64" else whole
    pairs: list[tuple[Any, Any]] = [("k\u00e9y", value), ("", value), (None, value), ("k", None)]
    name = topic()
    producer = client.create_producer(name, schema=ours)
    for pair in pairs:
        producer.send(KeyValue(*pair))
    java.producer(name, described).send_all([{"key": key, "value": value} for key, value in pairs])
    info = AdminClient(broker.admin_url).get_schema(name)
    # Of pairs the broker compares the text, in which the official Python client and ours set blanks and Java does not.
    assert info is not None and info.version == (0 if kind == "int64" else 1)
    assert dict(info.properties())["kv.encoding.type"] == encoding
    messages = java.consumer(name, "typed", schema=described).receive(8)
    mine, other = messages[:4], messages[4:]
    assert [message.value for message in mine] == [message.value for message in other]
    assert [message.value for message in mine] == [{"key": key, "value": value} for key, value in pairs]
    # As they are stored: the same bytes in the same places.
    assert [(m.data, m.key, m.key_is_base64) for m in mine] == [(m.data, m.key, m.key_is_base64) for m in other]
    for number, schema in enumerate((ours, AutoConsumeSchema())):
        consumer = client.subscribe(name, f"ours-{number}", schema=schema, initial_position=InitialPosition.Earliest)
        assert [tuple(consumer.receive(20_000).value()) for _ in range(8)] == pairs * 2
    auto = java.consumer(name, "auto", schema="auto_consume").receive(8)
    assert [message.value for message in auto] == [message.value for message in messages]


PROTOBUF: dict[str, Any] = {
    "com.google.protobuf.Timestamp": timestamp_pb2.Timestamp(seconds=2**40, nanos=7),
    "com.google.protobuf.Type": type_pb2.Type(
        name="T\u00e9",
        fields=[type_pb2.Field(kind=type_pb2.Field.TYPE_INT32, number=3, name="x", packed=True)],
        oneofs=["a", "b"],
        syntax=type_pb2.SYNTAX_PROTO3,
    ),
}


@pytest.mark.proves("C173")
@pytest.mark.parametrize("native", [False, True], ids=["protobuf", "protobuf_native"])
@pytest.mark.parametrize("java_class", list(PROTOBUF), ids=lambda name: name.rpartition(".")[2])
def test_protobuf_goes_both_ways(
    plain_client: Any, java: JavaClient, broker: Broker, topic: NewTopic, java_class: str, native: bool
) -> None:
    value = PROTOBUF[java_class]
    described = f"protobuf{'_native' if native else ''}:{java_class}"
    ours: Schema[Any] = ProtobufNativeSchema(type(value)) if native else ProtobufSchema(type(value))
    data = base64.b64encode(value.SerializeToString()).decode()
    for ours_first in (True, False):
        name = topic()
        if ours_first:
            plain_client.create_producer(name, schema=ours).send(value)
            java.producer(name, described).send(data)
        else:
            java.producer(name, described).send(data)
            plain_client.create_producer(name, schema=ours).send(value)
        info = AdminClient(broker.admin_url).get_schema(name)
        assert info is not None and info.type.name == java.peer.schema_info(described)["type"]
        assert [message.value for message in java.consumer(name, "typed", schema=described).receive(2)] == [data] * 2
        consumer = plain_client.subscribe(name, "ours", schema=ours, initial_position=InitialPosition.Earliest)
        assert [consumer.receive(20_000).value() for _ in range(2)] == [value] * 2


@pytest.mark.proves("C173", "C176")
def test_whatever_the_topic_has_is_consumed_version_by_version(client: Any, java: JavaClient, topic: NewTopic) -> None:
    """The topic's versions come from both sides, with a schema for a single message of ours among them."""
    name = topic()
    definition: dict[str, Any] = {"type": "record", "name": "Flight", "namespace": "Schemas"}
    first = AvroSchema(schema_definition={**definition, "fields": [{"name": "delay", "type": ["null", "int"]}]})
    second = AvroSchema(
        schema_definition={
            **definition,
            "fields": [
                {"name": "note", "type": "string", "default": ""},
                {"name": "delay", "type": ["null", "int"], "default": None},
            ],
        }
    )
    producer = client.create_producer(name, schema=first, batching_enabled=False)
    producer.send({"delay": 1})
    producer.send({"note": "n", "delay": 2}, schema=second)
    producer.send({"delay": 3})
    expected = [{"delay": 1}, {"note": "n", "delay": 2}, {"delay": 3}]
    theirs = java.consumer(name, schema="auto_consume").receive(3)
    assert [message.value for message in theirs] == expected
    versions = [bytes(8), (1).to_bytes(8, "big"), bytes(8)]
    assert [message.schema_version for message in theirs] == versions
    consumer = client.subscribe(name, "ours", schema=AutoConsumeSchema(), initial_position=InitialPosition.Earliest)
    ours = [consumer.receive(20_000) for _ in range(3)]
    assert [dict(message.value()) for message in ours] == expected
    assert [message.schema_version_bytes() for message in ours] == versions


@pytest.mark.proves("C174")
def test_ready_made_bytes_are_checked_by_the_topic_of_the_other(client: Any, java: JavaClient, topic: NewTopic) -> None:
    whole = {**FLIGHT, "raw": None, "cabin": None, "seat": None, "stops": None, "counts": None}
    ours = flight_schema(java.peer, "avro")
    data = java.peer.encode("avro:flight", whole)
    of_java, of_us = topic(), topic()
    java.producer(of_java, "avro:flight")
    client.create_producer(of_us, schema=ours)
    mine = client.create_producer(of_java, schema=AutoProduceBytesSchema())
    theirs = java.producer(of_us, "auto_produce")
    mine.send(data)
    theirs.send(data)
    with pytest.raises(InvalidRecord):
        mine.send(b"\x09")
    with pytest.raises(JavaError):
        theirs.send(b"\x09")
    assert java.consumer(of_java, schema="avro:flight").receive()[0].value == whole
    consumer = client.subscribe(of_us, "ours", schema=ours, initial_position=InitialPosition.Earliest)
    message = consumer.receive(20_000)
    assert message.value() == whole and message.schema_version_bytes() == bytes(8)
