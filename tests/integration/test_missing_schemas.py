"""Messages whose writer's schema was deleted: received, not decoded, others not held up; a topic made again."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pulsar_native import AdminClient, Client, ConsumerType, InitialPosition, MessageId
from pulsar_native.asyncio import Client as AsyncClient
from pulsar_native.jobs.codecs import WriterSchema
from pulsar_native.jobs.matching_stream import MatchingStream, StreamOptions
from pulsar_native.schema import AutoConsumeSchema, AvroSchema, InvalidRecord
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


@pytest.mark.parametrize("partitions", [0, 2])
async def test_topic_made_again_read_by_its_new_schema(broker: Broker, topic: NewTopic, partitions: int) -> None:
    name = topic(partitions=partitions)
    path = name.replace("://", "/") + ("/partitions" if partitions else "")
    async with AsyncClient(broker.service_url) as client:
        # They register no schema of their own, which would be the first of the topic that is made again.
        consumer = await client.subscribe(
            name,
            "sub",
            ConsumerType.Shared,
            schema=AutoConsumeSchema(),
            initial_position=InitialPosition.Earliest,
        )
        reader = await client.create_reader(name, MessageId.earliest, schema=AutoConsumeSchema())
        table = await client.create_table_view(name, schema=AutoConsumeSchema())
        changed = asyncio.Queue[object]()
        table.listen(lambda _key, value: changed.put_nowait(value))
        held = []
        for number, fields in enumerate((("low", "high"), ("high", "low"))):
            if number:
                broker.admin("DELETE", f"{path}?force=true&deleteSchema=true")
                if partitions:
                    broker.admin("PUT", path, partitions)
            types = [{"name": field, "type": "int"} for field in fields]
            schema: Any = AvroSchema(None, {"type": "record", "name": "R", "fields": types})
            value = {"low": number, "high": 100 + number}
            async with await client.create_producer(name, schema=schema) as producer:
                for key in "abcd":
                    await producer.send(value, partition_key=key)
            for _ in range(4):
                held.append(await consumer.receive(20_000))
                await consumer.acknowledge(held[-1])
                assert held[-1].int_schema_version() == 0 and held[-1].value() == value
                assert (await reader.read_next(20_000)).value() == value
                assert await asyncio.wait_for(changed.get(), 20) == value
        assert [message.value()["low"] for message in held] == [0] * 4 + [1] * 4
