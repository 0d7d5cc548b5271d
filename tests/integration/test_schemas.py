"""Schemas through the whole client: what the registry gets, what messages carry, and the official client as peer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pulsar as official
import pulsar.schema as official_schema
import pytest

import pulsar_native
import pulsar_native.schema as ours
from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import IncompatibleSchema
from pulsar_native.schema import InvalidRecord, SchemaType
from support.brokers import Broker, NewTopic


def flight(module: Any, **more: Any) -> Any:
    """Return the record class Flight of one side."""
    return type("Flight", (module.Record,), {"carrier": module.String(), "delay": module.Integer(), **more})


FLIGHT, OFFICIAL_FLIGHT = flight(ours), flight(official_schema)


@pytest.fixture
def client(broker: Broker) -> Iterator[pulsar_native.Client]:
    """Give our client."""
    made = pulsar_native.Client(broker.service_url)
    yield made
    made.close()


@pytest.fixture
def peer(broker: Broker) -> Iterator[official.Client]:
    """Give the official client."""
    logger = official.ConsoleLogger(official.LoggerLevel.Error)
    with closing(official.Client(broker.service_url, logger=logger)) as made:
        yield made


@pytest.mark.proves("C172")
def test_bytes_register_no_schema(broker: Broker, client: pulsar_native.Client, topic: NewTopic) -> None:
    name = topic()
    consumer = client.subscribe(name, "s")
    client.create_producer(name).send(b"\xff\x00")
    message = consumer.receive(10_000)
    assert (message.data(), message.value(), message.schema_version_bytes()) == (b"\xff\x00", b"\xff\x00", None)
    assert AdminClient(broker.admin_url).get_schema(name) is None


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_records_travel_to_and_from_the_official_client(
    broker: Broker, client: pulsar_native.Client, peer: official.Client, topic: NewTopic, kind: str
) -> None:
    name = topic(partitions=2)
    mine: Any = getattr(ours, kind)(FLIGHT)
    theirs = getattr(official_schema, kind)(OFFICIAL_FLIGHT)
    our_consumer = client.subscribe(name, "ours", schema=mine)
    their_consumer = peer.subscribe(name, "theirs", schema=theirs)
    client.create_producer(name, schema=mine).send(FLIGHT(carrier="UA", delay=3))
    peer.create_producer(name, schema=theirs).send(OFFICIAL_FLIGHT(carrier="AA", delay=None))
    expected = {("UA", 3), ("AA", None)}
    for consumer in (our_consumer, their_consumer):
        values = [consumer.receive(10_000).value() for _ in range(2)]
        assert {(value.carrier, value.delay) for value in values} == expected
    registered = AdminClient(broker.admin_url).get_schema(name)
    assert registered is not None and registered.version == 0


def test_text_travels_to_and_from_the_official_client(
    client: pulsar_native.Client, peer: official.Client, topic: NewTopic
) -> None:
    name = topic()
    our_consumer = client.subscribe(name, "ours", schema=ours.StringSchema())
    their_consumer = peer.subscribe(name, "theirs", schema=official_schema.StringSchema())
    client.create_producer(name, schema=ours.StringSchema()).send("from ours \u00fc")
    peer.create_producer(name, schema=official_schema.StringSchema()).send("from theirs \u00fc")
    for consumer in (our_consumer, their_consumer):
        values = {consumer.receive(10_000).value() for _ in range(2)}
        assert values == {"from ours \u00fc", "from theirs \u00fc"}


@pytest.mark.proves("C176")
def test_messages_carry_their_version_and_are_read_by_their_writers_schema(
    broker: Broker, client: pulsar_native.Client, topic: NewTopic
) -> None:
    name = topic()
    wider = flight(ours, note=ours.String(default="none", required_default=True))
    old, new = ours.AvroSchema(FLIGHT), ours.AvroSchema(wider)
    client.create_producer(name, schema=old).send(FLIGHT(carrier="UA", delay=3))
    client.create_producer(name, schema=new).send(wider(carrier="AA", delay=4, note="late"))
    consumer = client.subscribe(
        name, "s", schema=new, initial_position=pulsar_native.InitialPosition.Earliest, consumer_name="reader"
    )
    first, second = consumer.receive(10_000), consumer.receive(10_000)
    assert first.schema_version_bytes() == (0).to_bytes(8, "big")
    assert second.schema_version_bytes() == (1).to_bytes(8, "big")
    assert first.value() == wider(carrier="UA", delay=3, note="none")
    assert second.value() == wider(carrier="AA", delay=4, note="late")
    registered = AdminClient(broker.admin_url).get_schema(name, 1)
    assert registered is not None and registered.data == new.schema_info().data


@pytest.mark.proves("C177")
def test_an_incompatible_schema_ends_the_creation_at_once(client: pulsar_native.Client, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, schema=ours.AvroSchema(FLIGHT))
    other = type("Flight", (ours.Record,), {"delay": ours.String(required=True)})
    for create in (
        lambda: client.create_producer(name, schema=ours.AvroSchema(other)),
        lambda: client.subscribe(name, "s", schema=ours.AvroSchema(other)),
    ):
        began = time.monotonic()
        with pytest.raises(IncompatibleSchema):
            create()
        assert time.monotonic() - began < 5
    producer.send(FLIGHT(carrier="UA"))


@pytest.mark.parametrize("kind", [ours.AvroSchema, ours.JsonSchema])
def test_dictionaries_travel_with_a_definition(
    broker: Broker, client: pulsar_native.Client, topic: NewTopic, kind: Any
) -> None:
    name = topic()
    schema = kind(schema_definition=FLIGHT.schema())
    producer = client.create_producer(name, schema=schema)
    producer.send({"carrier": "UA", "delay": 3})
    strict = client.create_producer(name, schema=kind(schema_definition=FLIGHT.schema(), ignore_unknown_fields=False))
    with pytest.raises(InvalidRecord, match="did you mean 'delay'"):
        strict.send({"carrier": "UA", "delays": 3})
    sent = [{"carrier": "UA", "delay": 3}]
    if kind is ours.AvroSchema:
        # An unknown field is left out unless the schema is told otherwise, as by the official client.
        producer.send({"carrier": "AA", "delay": 4, "delays": 5})
        sent.append({"carrier": "AA", "delay": 4})
    else:
        with pytest.raises(InvalidRecord, match="did you mean 'delay'"):
            producer.send({"carrier": "AA", "delays": 5})
    info = AdminClient(broker.admin_url).get_schema(name)
    assert info is not None and info.type in (SchemaType.AVRO, SchemaType.JSON)
    reader = client.create_reader(name, pulsar_native.MessageId.earliest)
    decode = ours.schema_from_info(info).decode
    assert [decode(reader.read_next(10_000).data()) for _ in sent] == sent
    assert not reader.has_message_available()


def test_a_consumer_of_two_topics_decodes_each_by_its_own_versions(
    client: pulsar_native.Client, topic: NewTopic
) -> None:
    """Both topics have a version 0, and they differ: the order of the fields decides what the bytes mean."""

    def numbers(*names: str) -> ours.AvroSchema:
        fields = [{"name": name, "type": "int"} for name in names]
        return ours.AvroSchema(schema_definition={"type": "record", "name": "Numbers", "fields": fields})

    forward, backward = numbers("first", "second"), numbers("second", "first")
    one, two = topic("forward"), topic("backward")
    client.create_producer(one, schema=forward).send({"first": 1, "second": 2})
    client.create_producer(two, schema=backward).send({"first": 3, "second": 4})
    earliest = pulsar_native.InitialPosition.Earliest
    consumer = client.subscribe([one, two], "both", schema=forward, initial_position=earliest)
    found = sorted((consumer.receive(10_000).value() for _ in range(2)), key=lambda value: int(value["first"]))
    assert found == [{"first": 1, "second": 2}, {"first": 3, "second": 4}]
