"""Messages whose writer's schema was deleted: they are received, decoding fails, and others are not held up."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pulsar_native import AdminClient, Client, ConsumerType, InitialPosition
from pulsar_native.asyncio import Client as AsyncClient
from pulsar_native.jobs.codecs import WriterSchema
from pulsar_native.jobs.matching_stream import MatchingStream, StreamOptions
from pulsar_native.schema import AvroSchema, InvalidRecord
from support.brokers import Broker, NewTopic

DEFINITION = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}


@pytest.fixture
def orphaned(broker: Broker, topic: NewTopic) -> str:
    """Give a topic with a message whose schema is deleted, and one of plain bytes behind it; "sub" waits for both."""
    name = topic()
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:
        client.subscribe(name, "sub", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
        producer = client.create_producer(name, schema=AvroSchema(None, DEFINITION))
        producer.send({"n": 1})
        producer.close()
        admin.delete_schema(name, force=True)
        client.create_producer(name).send(b"plain")
    return name


def test_receive_without_writer_schema_can_be_acknowledged(broker: Broker, orphaned: str) -> None:
    with Client(broker.service_url) as client:
        consumer = client.subscribe(orphaned, "sub", ConsumerType.Shared, schema=WriterSchema())
        first = consumer.receive(10_000)
        with pytest.raises(InvalidRecord, match="is no longer in the registry"):
            first.value()
        consumer.acknowledge(first)
        assert consumer.receive(10_000).value() == b"plain"


async def test_async_receive_without_writer_schema(broker: Broker, orphaned: str) -> None:
    async with AsyncClient(broker.service_url) as client:
        consumer = await client.subscribe(orphaned, "sub", ConsumerType.Shared, schema=WriterSchema())
        first = await consumer.receive(10_000)
        with pytest.raises(InvalidRecord, match="is no longer in the registry"):
            first.value()
        assert (await consumer.receive(10_000)).value() == b"plain"


async def test_stream_buries_a_message_without_schema(broker: Broker, orphaned: str) -> None:
    async def connect() -> AsyncClient:
        return AsyncClient(broker.service_url)

    options = StreamOptions("sub", (orphaned,))
    stream = MatchingStream(connect, options, logging.getLogger("tests"))
    events = stream.events()
    async with asyncio.timeout(30):
        event, delivery = await anext(events)
    assert event is not None and event["value"] == "plain"
    await stream.acknowledge(delivery)
    await stream.aclose()
    with Client(broker.service_url) as client:
        letters = client.subscribe(f"{orphaned}-sub-DLQ", "sub", ConsumerType.Shared)
        assert "no longer in the registry" in letters.receive(10_000).properties()["EXCEPTION_MESSAGE"]
