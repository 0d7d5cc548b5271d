"""Schemas shared with the Java client: values both ways, one version in the registry, evolution, refusals."""

from __future__ import annotations

import base64
import enum
import json
from typing import Any

import pytest

from pulsar_native import InitialPosition, MessageId
from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import IncompatibleSchema
from pulsar_native.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    SchemaType,
    String,
    StringSchema,
    schema_from_info,
)
from support.brokers import Broker, NewTopic
from support.java_peer import JavaClient, JavaError, JavaPeer


class Cabin(enum.Enum):
    """As in Schemas.java. In JSON a member is its value, in Java its name: they had better be the same."""

    ECONOMY = "ECONOMY"
    BUSINESS = "BUSINESS"


class Seat(Record):
    """As in Schemas.java."""

    row = Integer(required=True)
    letter = String()


class Flight(Record):
    """As in Schemas.java: Java's primitives are required, the others may be null."""

    carrier = String()
    delay = Integer()
    distance = Long(required=True)
    fuel = Double(required=True)
    load = Float(required=True)
    diverted = Boolean(required=True)
    raw = Bytes()
    cabin = CustomEnum(Cabin)
    seat = Seat()
    stops = Array(String())
    counts = Map(Integer())


FULL: dict[str, Any] = {
    "carrier": "\u00fcA \u4e2d\U0001f600", "delay": -(2**31), "distance": 2**63 - 1, "fuel": 0.1, "load": 0.25,
    "diverted": True, "raw": b"\x00\xff\x80", "cabin": "BUSINESS", "seat": {"row": 7, "letter": "B"},
    "stops": ["", "a", "\u00e9"], "counts": {"x": 1, "": -1},
}  # fmt: skip
EMPTY: dict[str, Any] = {
    "carrier": None, "delay": None, "distance": 0, "fuel": -0.0, "load": 0.0, "diverted": False, "raw": None,
    "cabin": None, "seat": None, "stops": [], "counts": {},
}  # fmt: skip


def samples(kind: str) -> list[dict[str, Any]]:
    """Return the values; of JSON without bytes, which each client writes in a way of its own (Java as base64)."""
    return [{**value, "raw": None} if kind == "json" else value for value in (FULL, EMPTY)]


def present(kind: str, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return values as they can be compared: Java leaves nulls out of JSON, and a dictionary shows what is there."""
    if kind == "avro":
        return values
    return [{name: part for name, part in value.items() if part is not None} for value in values]


def for_java(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value as the Java peer takes and gives it."""
    raw = value["raw"]
    return {**value, "raw": None if raw is None else base64.b64encode(raw).decode()}


def record_of(value: dict[str, Any]) -> Flight:
    """Return a value as our record."""
    cabin, seat = value["cabin"], value["seat"]
    return Flight(**{**value, "cabin": cabin and Cabin[cabin], "seat": seat and Seat(**seat)})


def javas_definition(peer: JavaPeer, kind: str) -> dict[str, Any]:
    """Return the Avro definition Java registers for its class."""
    definition: dict[str, Any] = json.loads(peer.schema_info(f"{kind}:flight")["schema"])
    return definition


OURS: dict[str, Any] = {"json": JsonSchema, "avro": AvroSchema}


@pytest.mark.proves("C175", "C176")
@pytest.mark.parametrize("kind", ["json", "avro"])
class TestRecords:
    """JSON and Avro, from record classes and from Java's own definition."""

    def test_java_reads_our_dictionaries(
        self, client: Any, java: JavaClient, broker: Broker, topic: NewTopic, kind: str
    ) -> None:
        """With Java's definition: one version in the registry, whoever comes first."""
        name = topic()
        schema = OURS[kind](schema_definition=javas_definition(java.peer, kind))
        producer = client.create_producer(name, schema=schema)
        for value in samples(kind):
            producer.send(value)
        java.producer(name, f"{kind}:flight").send(for_java(samples(kind)[0]))
        info = AdminClient(broker.admin_url).get_schema(name)
        assert info is not None and (info.version, info.type) == (0, SchemaType[kind.upper()])
        expected = [for_java(value) for value in (*samples(kind), samples(kind)[0])]
        for described in (f"{kind}:flight", "auto_consume"):
            messages = java.consumer(name, described, schema=described).receive(3)
            values = [message.value for message in messages]
            assert present(kind, values) == present(kind, expected)
            assert {message.schema_version for message in messages} == {bytes(8)}

    def test_java_reads_our_records(self, client: Any, java: JavaClient, topic: NewTopic, kind: str) -> None:
        """With our class: Java reads by what we registered, into its own class."""
        name = topic()
        producer = client.create_producer(name, schema=OURS[kind](Flight))
        for value in samples(kind):
            producer.send(record_of(value))
        expected = [for_java(value) for value in samples(kind)]
        for described in ("auto_consume", f"{kind}:flight") if kind == "json" else ("auto_consume",):
            messages = java.consumer(name, described.replace(":", "-"), schema=described).receive(2)
            assert [message.value for message in messages] == expected

    def test_we_read_javas(self, client: Any, java: JavaClient, broker: Broker, topic: NewTopic, kind: str) -> None:
        name = topic()
        java.producer(name, f"{kind}:flight").send_all([for_java(value) for value in samples(kind)])
        info = AdminClient(broker.admin_url).get_schema(name)
        assert info is not None and info.type is SchemaType[kind.upper()]
        assert json.loads(info.data) == javas_definition(java.peer, kind)
        definition = OURS[kind](schema_definition=javas_definition(java.peer, kind))
        consumer = client.subscribe(name, "ours", schema=definition, initial_position=InitialPosition.Earliest)
        messages = [consumer.receive(20_000) for _ in range(2)]
        assert [message.value() for message in messages] == present(kind, samples(kind))
        assert {message.schema_version_bytes() for message in messages} == {bytes(8)}
        # As the registry describes it, without knowing anything of the topic.
        read = [schema_from_info(info).decode(message.data()) for message in messages]
        assert read == present(kind, samples(kind))
        if kind == "json":
            assert JsonSchema(Flight).decode(messages[0].data()) == record_of(samples(kind)[0])

    def test_both_encode_alike(self, java_peer: JavaPeer, kind: str) -> None:
        """Each reads the other's bytes without a broker; Avro's bytes are the same to the last one."""
        java_peer.start()
        ours = OURS[kind](schema_definition=javas_definition(java_peer, kind))
        for value in samples(kind):
            theirs = java_peer.encode(f"{kind}:flight", for_java(value))
            assert [ours.decode(theirs)] == present(kind, [value])
            assert java_peer.decode(f"{kind}:flight", ours.encode(value)) == for_java(value)
            if kind == "avro":
                assert ours.encode(value) == theirs

    def test_an_incompatible_schema_is_refused_on_both_sides(
        self, client: Any, java: JavaClient, topic: NewTopic, kind: str
    ) -> None:
        other = {"type": "record", "name": "Flight", "fields": [{"name": "delay", "type": "string"}]}
        ours_first, theirs_first = topic(), topic()
        client.create_producer(ours_first, schema=OURS[kind](schema_definition=other))
        java.producer(theirs_first, f"{kind}:flight")
        for schema in (f"{kind}:flight", "string"):
            with pytest.raises(JavaError) as refused:
                java.producer(ours_first, schema)
            assert refused.value.type == "IncompatibleSchemaException"
        for ours in (OURS[kind](schema_definition=other), StringSchema()):
            with pytest.raises(IncompatibleSchema):
                client.create_producer(theirs_first, schema=ours)


@pytest.mark.proves("C176")
def test_each_reads_old_and_new_rows_of_the_other(
    client: Any, java: JavaClient, broker: Broker, topic: NewTopic
) -> None:
    """Java's class is the second version of ours and the first of the next topic: every row by its writer's schema."""
    name = topic()
    whole = javas_definition(java.peer, "avro")
    # Fields in another order and some missing: read by the reader's schema alone the bytes would mean something else.
    kept = [field for field in whole["fields"] if field["name"] in ("carrier", "distance", "delay", "diverted")]
    less = {**whole, "fields": [*reversed(kept), {"name": "gone", "type": "int", "default": 9}]}
    for number, field in enumerate(whole["fields"]):
        if "default" not in field:
            defaults: dict[str, Any] = {"boolean": False, "long": 5, "double": 1.5, "float": 0.5}
            whole["fields"][number] = {**field, "default": defaults[field["type"]]}
    older, newer = AvroSchema(schema_definition=less), AvroSchema(schema_definition=whole)
    row = {"carrier": "UA", "distance": 3, "delay": 4, "diverted": True, "gone": 1}
    client.create_producer(name, schema=older).send(row)
    client.create_producer(name, schema=newer).send(FULL)
    last = java.consumer(name, "auto", schema="auto_consume").receive(2)
    assert [message.schema_version for message in last] == [bytes(8), (1).to_bytes(8, "big")]
    assert last[0].value == row and last[1].value == for_java(FULL)
    consumer = client.subscribe(name, "ours", schema=newer, initial_position=InitialPosition.Earliest)
    old = consumer.receive(20_000).value()
    assert old == {**EMPTY, "carrier": "UA", "distance": 3, "delay": 4, "diverted": True, "fuel": 1.5, "load": 0.5} | {
        "stops": None,
        "counts": None,
    }
    assert consumer.receive(20_000).value() == FULL
    registered = AdminClient(broker.admin_url).get_schema(name)
    assert registered is not None and registered.version == 1


@pytest.mark.proves("C172")
def test_bytes_have_no_schema_on_either_side(client: Any, java: JavaClient, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    client.create_producer(name).send(b"\xff\x00")
    java.producer(name, "bytes").send(b"\x00\xff")
    assert AdminClient(broker.admin_url).get_schema(name) is None
    theirs = java.consumer(name, schema="bytes").receive(2)
    reader = client.create_reader(name, MessageId.earliest)
    ours = [reader.read_next(20_000) for _ in range(2)]
    assert [message.data for message in theirs] == [message.value() for message in ours] == [b"\xff\x00", b"\x00\xff"]
    assert {message.schema_version for message in theirs} | {message.schema_version_bytes() for message in ours} == {
        None
    }


def test_text_goes_both_ways(client: Any, java: JavaClient, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    texts = ["", "\u00fc\u4e2d\U0001f600", "x" * 5000]
    producer = client.create_producer(name, schema=StringSchema())
    for text in texts:
        producer.send(text)
    java.producer(name, "string").send_all(texts)
    assert [message.value for message in java.consumer(name, schema="string").receive(6)] == texts * 2
    consumer = client.subscribe(name, "ours", schema=StringSchema(), initial_position=InitialPosition.Earliest)
    assert [consumer.receive(20_000).value() for _ in range(6)] == texts * 2
    info = AdminClient(broker.admin_url).get_schema(name)
    assert info is not None and (info.version, info.type) == (0, SchemaType.STRING)


@pytest.mark.parametrize("kind", ["json:flight", "avro:flight", "string"])
def test_null_values_pass_a_schema(client: Any, java: JavaClient, topic: NewTopic, kind: str) -> None:
    name = topic()
    schema: Any = StringSchema()
    if kind != "string":
        schema = OURS[kind[:4]](schema_definition=javas_definition(java.peer, kind[:4]))
    client.create_producer(name, schema=schema).send(None, partition_key="k")
    java.producer(name, kind).send(None, key="k")
    assert [(message.value, message.key) for message in java.consumer(name, schema=kind).receive(2)] == [
        (None, "k")
    ] * 2
    consumer = client.subscribe(name, "ours", schema=schema, initial_position=InitialPosition.Earliest)
    for _ in range(2):
        message = consumer.receive(20_000)
        assert message.has_null_value() and message.value() is None and message.partition_key() == "k"
