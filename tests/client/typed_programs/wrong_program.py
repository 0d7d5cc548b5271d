"""Program with mistakes that type checkers find: one at the end of each marked line, and no others.

It is read by type checkers (test_typing.py), not run.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulsar_native as pulsar
from pulsar_native import asyncio as pulsar_asyncio
from pulsar_native.schema import AvroSchema, StringSchema


@dataclass
class Order:
    customer: str
    amount: float


def sync_program(client: pulsar.Client) -> None:
    producer = client.create_producer("orders", schema=AvroSchema(Order))
    producer.send("text")  # wrong: another type of value
    producer.send(Order("ann", 1.5), schema=StringSchema())  # wrong: not the type of this schema
    producer.send_async(5, None)  # wrong: another type of value
    producer.send_many(["text"])  # wrong: another type of value
    client.create_producer("t").send("text")  # wrong: bytes without a schema
    consumer = client.subscribe("orders", "s", schema=AvroSchema(Order))
    str(consumer.receive().value().price)  # wrong: no such field
    bytes_consumer: pulsar.Consumer[bytes] = consumer  # wrong: another type of value
    bytes_consumer.close()
    client.create_producer("t", hashing_scheme=5)  # wrong: type of an option
    client.create_producer("t", colour="red")  # wrong: no such option
    client.subscribe("t", "s", subscription_mode=1)  # wrong: no such option
    client.create_reader("t", pulsar.MessageId.latest, key_hash_range=5)  # wrong: type of an option
    client.create_table_view("t", receiver_queue_size=5)  # wrong: no such option
    view = client.create_table_view("orders", schema=AvroSchema(Order))
    str(view["ann"].price)  # wrong: no such field
    str(view.get("ann").amount)  # wrong: it may be None


def push_consumer(client: pulsar.Client, config: pulsar.PushConsumerConfig) -> None:
    def handle(messages: list[pulsar.Message[str]], context: pulsar.ConsumeConcurrentlyContext) -> None:
        pass

    consumer = pulsar.PushConsumer[Order](client, config)
    consumer.subscribe("names", schema=StringSchema())  # wrong: another type of value
    consumer.register_message_listener(handle)  # wrong: another type of value


async def asyncio_program(client: pulsar_asyncio.Client) -> None:
    producer = await client.create_producer("orders", schema=AvroSchema(Order))
    await producer.send("text")  # wrong: another type of value
    await producer.enqueue(b"bytes")  # wrong: another type of value
    consumer = await client.subscribe("orders", "s", schema=AvroSchema(Order))
    str((await consumer.receive()).value().price)  # wrong: no such field
    pulsar_asyncio.Client("pulsar://localhost", memory_limit_bytes="5")  # wrong: type of an option
    pulsar_asyncio.Client("pulsar://localhost", colour="red")  # wrong: no such option
