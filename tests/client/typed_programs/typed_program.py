"""Program of a user who checks types: every expression has the type that the schema says, in both APIs.

It is read by type checkers (test_typing.py), not run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, assert_type

import pulsar_native as pulsar
from pulsar_native import asyncio as pulsar_asyncio
from pulsar_native.schema import (
    AutoConsumeSchema,
    AvroSchema,
    Int64Schema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Record,
    Schema,
    String,
    StringSchema,
)


@dataclass
class Order:
    customer: str
    amount: float


class Flight(Record):
    carrier = String()
    delay = Integer()


class Reversed(Schema[str]):
    def encode(self, obj: str) -> bytes:
        return obj[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


def sync_program(client: pulsar.Client) -> None:
    producer = client.create_producer("orders", schema=AvroSchema(Order))
    assert_type(producer, pulsar.Producer[Order])
    assert_type(producer.send(Order("ann", 1.5), partition_key="ann"), pulsar.MessageId)
    producer.send(None, partition_key="ann")
    producer.send("text", schema=StringSchema(), properties={"a": "b"})
    producer.send_async(Order("ann", 1.5), None, deliver_after=5)
    producer.send_async("text", None, schema=StringSchema())
    producer.send_many([Order("ann", 1.5), Order("bob", 2.5)])
    producer.send_many(pulsar.NewMessage(content=Order("ann", each)) for each in range(3))

    consumer = client.subscribe("orders", "s", schema=AvroSchema(Order), enable_retry=True)
    assert_type(consumer, pulsar.Consumer[Order])
    assert_type(consumer.receive(), pulsar.Message[Order])
    assert_type(consumer.receive(timeout_millis=5).value(), Order)
    assert_type(consumer.receive().value().amount, float)
    messages = consumer.batch_receive()
    assert_type([message.value() for message in messages], list[Order])
    consumer.acknowledge(messages)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[0].message_id())
    consumer.reconsume_later(messages, 5)

    reader = client.create_reader("orders", pulsar.MessageId.earliest, AvroSchema(Order))
    assert_type(reader, pulsar.Reader[Order])
    assert_type(reader.read_next().value(), Order)


def table_views(client: pulsar.Client) -> None:
    view = client.create_table_view("orders", schema=AvroSchema(Order))
    assert_type(view, pulsar.TableView[Order])
    assert_type(view["ann"], Order)
    assert_type(view.get("ann"), Order | None)
    assert_type(view.get("ann", 0), Order | int)
    assert_type(view.snapshot(), dict[str, Order])
    assert_type([value.amount for value in view.values()], list[float])

    def changed(key: str, order: Order | None) -> None:
        assert_type(order, Order | None)

    view.listen(changed)
    view.for_each_and_listen(changed)
    view.for_each(lambda key, order: assert_type(order, Order))
    assert_type(client.create_table_view("t"), pulsar.TableView[bytes])


def push_consumers(client: pulsar.Client, config: pulsar.PushConsumerConfig) -> None:
    consumer = pulsar.PushConsumer[Order](client, config)
    consumer.subscribe("orders", schema=AvroSchema(Order))

    def handle(
        messages: list[pulsar.Message[Order]], context: pulsar.ConsumeConcurrentlyContext
    ) -> pulsar.ConsumeConcurrentlyStatus:
        assert_type(messages[0].value(), Order)
        return pulsar.ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer.register_message_listener(handle)
    consumer.register_filter_message_hook(lambda message: message.value().amount > 0)
    any_values: pulsar.PushConsumer = pulsar.PushConsumer(client, config)
    any_values.subscribe("orders", schema=AvroSchema(Order))
    any_values.subscribe("names", schema=StringSchema())


def sync_schemas(client: pulsar.Client, chosen: Schema[int] | None, unknown: Schema[Any]) -> None:
    plain = client.create_producer("t")
    assert_type(plain, pulsar.Producer[bytes])
    plain.send(b"bytes")
    assert_type(client.subscribe("t", "s").receive().value(), bytes)
    assert_type(client.create_reader("t", pulsar.MessageId.latest).read_next().data(), bytes)
    assert_type(client.create_producer("t", schema=JsonSchema(Flight)), pulsar.Producer[Flight])
    assert_type(client.subscribe("t", "s", schema=Reversed()).receive().value(), str)
    assert_type(client.subscribe("t", "s", schema=Int64Schema()).receive().value(), int)
    assert_type(client.create_producer("t", schema=chosen), pulsar.Producer[int])
    assert_type(client.create_producer("t", schema=unknown), pulsar.Producer[Any])
    assert_type(client.subscribe("t", "s", schema=AutoConsumeSchema()).receive().value(), Any)
    pairs = client.subscribe("t", "s", schema=KeyValueSchema(StringSchema(), Int64Schema()))
    assert_type(pairs.receive().value(), KeyValue[str, int])
    dictionaries = AvroSchema(None, {"type": "record", "name": "R", "fields": []})
    assert_type(client.subscribe("t", "s", schema=dictionaries).receive().value(), dict[str, object])


def listeners(client: pulsar.Client) -> None:
    def handle(consumer: pulsar.Consumer[Order], message: pulsar.Message[Order]) -> None:
        assert_type(message.value(), Order)
        consumer.acknowledge(message)

    def handle_any(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)

    def read(reader: pulsar.Reader[Order], message: pulsar.Message[Order]) -> None:
        assert_type(message.value(), Order)

    client.subscribe("t", "s", schema=AvroSchema(Order), message_listener=handle)
    client.subscribe("t", "s", schema=AvroSchema(Order), message_listener=handle_any)
    client.create_reader("t", pulsar.MessageId.latest, AvroSchema(Order), read)


def total(messages: list[pulsar.Message[Order]]) -> float:
    return sum(message.value().amount for message in messages)


def publish_all(producer: pulsar.Producer[Order], orders: list[Order]) -> None:
    for order in orders:
        producer.send(order)


def any_values(consumer: pulsar.Consumer, producer: pulsar.Producer, message: pulsar.Message) -> None:
    assert_type(consumer.receive().value(), Any)
    assert_type(message.value(), Any)
    producer.send(5)


def wider(consumer: pulsar.Consumer[Order]) -> pulsar.Consumer[object]:
    return consumer


async def asyncio_program(client: pulsar_asyncio.Client) -> None:
    producer = await client.create_producer("orders", schema=AvroSchema(Order))
    assert_type(producer, pulsar_asyncio.Producer[Order])
    assert_type(await producer.send(Order("ann", 1.5)), pulsar.MessageId)
    assert_type(await (await producer.enqueue(Order("ann", 1.5))), pulsar.MessageId)
    await producer.send("text", schema=StringSchema(), partition_key=b"k")

    async def rows() -> AsyncIterator[Order]:
        yield Order("ann", 1.5)

    await producer.send_many(rows())
    await producer.send_many([Order("ann", 1.5)])

    consumer = await client.subscribe("orders", "s", schema=AvroSchema(Order))
    assert_type(consumer, pulsar_asyncio.Consumer[Order])
    assert_type((await consumer.receive()).value(), Order)
    messages = await consumer.batch_receive()
    assert_type(messages, list[pulsar.Message[Order]])
    await consumer.acknowledge(messages)
    async for message in consumer:
        assert_type(message.value(), Order)

    reader = await client.create_reader("orders", pulsar.MessageId.earliest, AvroSchema(Order))
    assert_type(reader, pulsar_asyncio.Reader[Order])
    assert_type((await reader.read_next()).value(), Order)
    async for message in reader:
        assert_type(message.value(), Order)

    view = await client.create_table_view("orders", schema=AvroSchema(Order))
    assert_type(view, pulsar_asyncio.TableView[Order])
    assert_type(view["ann"].amount, float)

    assert_type(await client.create_producer("t"), pulsar_asyncio.Producer[bytes])
    assert_type((await (await client.subscribe("t", "s")).receive()).value(), bytes)


async def asyncio_push_consumer(client: pulsar_asyncio.Client, config: pulsar.PushConsumerConfig) -> None:
    consumer = pulsar_asyncio.PushConsumer[Order](client, config)
    consumer.subscribe("orders", schema=AvroSchema(Order))

    async def handle(
        messages: list[pulsar.Message[Order]], context: pulsar.ConsumeOrderlyContext
    ) -> pulsar.ConsumeOrderlyStatus:
        assert_type(messages[0].value(), Order)
        return pulsar.ConsumeOrderlyStatus.SUCCESS

    consumer.register_message_listener(orderly=handle)


def options() -> None:
    pulsar.Client("pulsar://localhost", None, 30, memory_limit_bytes=5, connections_per_broker=2)
    pulsar_asyncio.Client("pulsar://localhost", operation_timeout_seconds=5, memory_limit_bytes=5)
