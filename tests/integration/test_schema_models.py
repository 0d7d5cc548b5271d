"""Dataclasses and pydantic models as records, through the real broker on both APIs."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pydantic
import pytest

import pulsar_native
import pulsar_native.schema as ours
from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import IncompatibleSchema
from support.brokers import Broker, NewTopic

EARLIEST = pulsar_native.InitialPosition.Earliest
MOMENT = datetime(2026, 11, 21, 12, 30, 0, 123456, UTC)


@dataclass
class Leg:
    origin: str
    dest: str


@dataclass
class Trip:
    carrier: str
    at: datetime
    price: Decimal
    legs: list[Leg] = field(default_factory=list)
    note: str | None = None


class Guest(pydantic.BaseModel):
    name: str
    born: datetime | None = None
    seats: list[int] = []


SAMPLES = [
    Trip("UA", MOMENT, Decimal("12.5"), [Leg("JFK", "BOS"), Leg("BOS", "LAX")], "n"),
    Guest(name="Ann", born=MOMENT, seats=[1, 2]),
]


@pytest.mark.parametrize("kind", [ours.AvroSchema, ours.JsonSchema])
@pytest.mark.parametrize("value", SAMPLES, ids=["dataclass", "pydantic"])
def test_objects_travel(client: Any, broker: Broker, topic: NewTopic, kind: Any, value: Any) -> None:
    name = topic()
    schema = kind(type(value))
    producer = client.create_producer(name, schema=schema)
    producer.send(value)
    message = client.subscribe(name, "s", schema=schema, initial_position=EARLIEST).receive(10_000)
    assert message.value() == value and type(message.value()) is type(value)
    registered = AdminClient(broker.admin_url).get_schema(name)
    assert registered is not None and registered.definition() == schema.schema_info().definition()
    # Another program's client of the topic sees a plain Avro definition, and can follow it.
    follower = client.subscribe(name, "any", schema=ours.AutoConsumeSchema(), initial_position=EARLIEST)
    assert isinstance(follower.receive(10_000).value(), ours.GenericRecord)


@pytest.mark.proves("C176")
@pytest.mark.parametrize("kind", [ours.AvroSchema, ours.JsonSchema])
def test_a_newer_class_reads_old_rows_with_its_defaults(client: Any, topic: NewTopic, kind: Any) -> None:
    name = topic()
    old: Any = make_dataclass("Row", [("first", int), ("second", str)])
    # Two fields more, in front of the old ones, too: only the writer's schema tells what the old bytes mean.
    new: Any = make_dataclass(
        "Row",
        [("second", str), ("at", datetime, field(default=MOMENT)), ("first", int, field(default=0)),
         ("more", str | None, field(default=None))],
    )  # fmt: skip
    client.create_producer(name, schema=kind(old)).send(old(1, "x"))
    client.create_producer(name, schema=kind(new)).send(new("y", MOMENT, 2, "m"))
    consumer = client.subscribe(name, "s", schema=kind(new), initial_position=EARLIEST)
    messages = [consumer.receive(10_000) for _ in range(2)]
    assert [message.int_schema_version() for message in messages] == [0, 1]
    assert [message.value() for message in messages] == [new("x", MOMENT, 1, None), new("y", MOMENT, 2, "m")]
    readers = [message.reader_schema() for message in messages]
    assert [reader.decode(message.data()) for reader, message in zip(readers, messages, strict=True)] == [
        message.value() for message in messages
    ]
    # JSON needs no writer's schema: it is the consumer's own.
    written = [kind(old), kind(new)] if kind is ours.AvroSchema else [kind(new)] * 2
    assert [reader.schema_info().data for reader in readers] == [schema.schema_info().data for schema in written]


@pytest.mark.proves("C177")
def test_strict_compatibility_refuses_an_incompatible_class_at_once(
    client: Any, broker: Broker, topic: NewTopic, namespace: Any
) -> None:
    space = namespace()
    broker.admin("PUT", f"namespaces/{space}/schemaCompatibilityStrategy", "FULL")
    name = topic("rows", namespace=space)
    old: Any = make_dataclass("Row", [("first", int)])
    without_default: Any = make_dataclass("Row", [("first", int), ("second", str)])
    client.create_producer(name, schema=ours.AvroSchema(old)).send(old(1))
    with pytest.raises(IncompatibleSchema, match="the topic's schema: version 0, AVRO") as caught:
        client.create_producer(name, schema=ours.AvroSchema(without_default))
    assert not caught.value.retryable
