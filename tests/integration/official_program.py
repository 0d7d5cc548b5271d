"""A program as it is written for the official client; test_official_peer.py runs it with both packages.

Usage: official_program.py PACKAGE SERVICE_URL. Prints one JSON list per observation; nothing in it may depend on
the run.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib
import json
import re
import sys
import threading
import uuid
from typing import Any


def show(*what: Any) -> None:
    print(json.dumps([repr(each) if isinstance(each, bytes) else each for each in what]), flush=True)  # noqa: T201


def error_of(call: Any) -> str:
    """Return the name of the error a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "none"


def describe(message: Any) -> list[Any]:
    return [
        repr(message.data()), message.properties(), message.partition_key(), message.ordering_key(),
        message.event_timestamp(), message.redelivery_count(), message.publish_timestamp() > 1_600_000_000_000,
        message.topic_name().split("/")[-1][:5], message.message_id().partition(),
    ]  # fmt: skip


def publish_and_consume(pulsar: Any, client: Any, name: str) -> None:
    consumer = client.subscribe(
        name, "sub", consumer_type=pulsar.ConsumerType.Shared, consumer_name="me", receiver_queue_size=100,
        initial_position=pulsar.InitialPosition.Earliest, negative_ack_redelivery_delay_ms=200, properties={"a": "b"},
    )  # fmt: skip
    producer = client.create_producer(
        name, producer_name="writer", compression_type=pulsar.CompressionType.LZ4, batching_enabled=True,
        batching_max_messages=3, batching_max_publish_delay_ms=10, block_if_queue_full=True, properties={"k": "v"},
        send_timeout_millis=10_000, message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition,
    )  # fmt: skip
    show("names", producer.producer_name(), producer.last_sequence_id(), consumer.consumer_name())
    show("topics", producer.topic().endswith(name), consumer.topic().endswith(name), consumer.subscription_name())
    show("connected", producer.is_connected(), consumer.is_connected())
    show("sent", producer.send(b"one", properties={"x": "y"}, partition_key="key", event_timestamp=7).entry_id())
    done = threading.Event()
    results: list[Any] = []

    def sent(result: Any, message_id: Any) -> None:
        results.append((result == pulsar.Result.Ok, message_id.batch_index()))
        if len(results) == 3:
            done.set()

    for content in (b"two", b"three", b"four"):
        producer.send_async(content, sent, ordering_key="order")
    producer.flush()
    show("callbacks", done.wait(10), sorted(results))
    show("sequence", producer.last_sequence_id())
    producer.send(b"five")
    messages = [consumer.receive(10_000) for _ in range(5)]
    for message in messages:
        show("message", *describe(message))
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[4].message_id())
    for message in messages[1:4]:
        consumer.negative_acknowledge(message)
    again = [consumer.receive(10_000) for _ in range(3)]
    show("again", [repr(message.data()) for message in again], [message.redelivery_count() for message in again])
    for message in again:
        consumer.acknowledge(message)
    show("empty", error_of(lambda: consumer.receive(100)))
    producer.send(b"later", deliver_after=datetime.timedelta(milliseconds=1))
    show("delayed", repr(consumer.receive(10_000).data()))
    consumer.unsubscribe()
    producer.close()


def read_and_seek(pulsar: Any, client: Any, name: str) -> None:
    producer = client.create_producer(name)
    ids = [producer.send(b"%d" % number) for number in range(6)]
    show("order", ids == sorted(ids), ids[0] < ids[1], ids[0] == ids[1])
    copy = pulsar.MessageId.deserialize(ids[2].serialize())
    show("id", copy == ids[2], copy.partition(), copy.batch_index())
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    show("read", [repr(reader.read_next(10_000).data()) for _ in range(6)], reader.has_message_available())
    reader.seek(ids[3])
    show("sought", repr(reader.read_next(10_000).data()))
    inclusive = client.create_reader(name, ids[3], start_message_id_inclusive=True)
    show("inclusive", repr(inclusive.read_next(10_000).data()))
    reader.close()
    inclusive.close()
    consumer = client.subscribe(
        name, "batch", initial_position=pulsar.InitialPosition.Earliest,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(4, -1, 500), start_message_id_inclusive=True,
    )  # fmt: skip
    batch = consumer.batch_receive()
    show("batch", [repr(message.data()) for message in batch])
    consumer.acknowledge_cumulative(batch[-1])
    show("rest", [repr(message.data()) for message in consumer.batch_receive()])
    consumer.seek(ids[1])
    show("consumer sought", repr(consumer.receive(10_000).data()))
    show("last", consumer.get_last_message_id() == ids[-1])
    consumer.redeliver_unacknowledged_messages()
    consumer.close()


def listen(pulsar: Any, client: Any, name: str) -> None:
    heard: list[str] = []
    done = threading.Event()

    def listener(consumer: Any, message: Any) -> None:
        heard.append(repr(message.data()))
        consumer.acknowledge(message)
        if len(heard) == 3:
            done.set()

    consumer = client.subscribe([f"{name}-a", f"{name}-b"], "sub", message_listener=listener)
    for suffix in ("a", "b", "a"):
        client.create_producer(f"{name}-{suffix}").send(suffix.encode())
    show("heard", done.wait(10), sorted(heard))
    consumer.close()


def many_topics(pulsar: Any, client: Any, name: str) -> None:
    for suffix in ("a1", "xa1", "a2"):
        client.create_producer(f"{name}-{suffix}").send(suffix.encode())
    pattern = f"persistent://public/default/{name}-a.*"
    consumer = client.subscribe(
        re.compile(pattern), "sub", initial_position=pulsar.InitialPosition.Earliest, pattern_auto_discovery_period=1,
        regex_subscription_mode=pulsar.RegexSubscriptionMode.PersistentOnly,
    )  # fmt: skip
    show("pattern", consumer.topic() == pattern, sorted(repr(consumer.receive(10_000).data()) for _ in range(2)))
    show("no listener", error_of(consumer.pause_message_listener), error_of(consumer.get_last_message_id))
    show("second", error_of(lambda: client.subscribe(f"{name}-a1", "sub")))
    consumer.close()


def table_view(pulsar: Any, client: Any, name: str) -> None:
    schema = importlib.import_module(f"{pulsar.__name__}.schema").StringSchema()
    producer = client.create_producer(name, schema=schema)
    for key, value in (("a", "1"), ("b", "1"), ("a", "2")):
        producer.send(value, partition_key=key)
    view = client.create_table_view(name, subscription_name="mine", schema=schema)
    show("table", view.get("a"), view.get("b"), view.get("none"), len(view))
    there: list[list[str]] = []
    view.for_each(lambda key, value: there.append([key, value]))
    heard: list[list[str]] = []
    done = threading.Event()

    def listener(key: str, value: str) -> None:
        heard.append([key, value])
        if len(heard) == 4:
            done.set()

    view.for_each_and_listen(listener)
    for key, value in (("c", "1"), ("a", "3")):
        producer.send(value, partition_key=key)
    show("table heard", done.wait(10), sorted(there), sorted(heard[:2]), heard[2:], view.get("a"), len(view))
    view.close()


def records(pulsar: Any, client: Any, name: str) -> None:
    schema = importlib.import_module(f"{pulsar.__name__}.schema")

    class Color(schema.Record):  # type: ignore[misc, name-defined]
        red = schema.Integer()
        name = schema.String(default="none")

    for kind in (schema.JsonSchema, schema.AvroSchema):
        topic = f"{name}-{kind.__name__}"
        producer = client.create_producer(topic, schema=kind(Color))
        consumer = client.subscribe(topic, "sub", schema=kind(Color))
        producer.send(Color(red=5, name="rose"))
        producer.send(Color(red=1))
        values = [consumer.receive(10_000).value() for _ in range(2)]
        show(
            "record",
            kind.__name__,
            [[value.red, value.name] for value in values],
            values[0] == Color(red=5, name="rose"),
        )
        consumer.close()
    consumer = client.subscribe(f"{name}-text", "sub", schema=schema.StringSchema())
    client.create_producer(f"{name}-text", schema=schema.StringSchema()).send("grüße")
    show("text", consumer.receive(10_000).value())


def mistakes(pulsar: Any, client: Any, name: str) -> None:
    consumer = client.subscribe(name, "sub")
    show("busy", error_of(lambda: client.subscribe(name, "sub")))
    consumer.close()
    shared = client.subscribe(name, "shared", consumer_type=pulsar.ConsumerType.Shared)
    message_id = client.create_producer(name).send(b"x")
    show("cumulative", error_of(lambda: shared.acknowledge_cumulative(message_id)))
    named = client.create_producer(name, producer_name="taken")
    show("taken", error_of(lambda: client.create_producer(name, producer_name="taken")))
    named.close()
    show("closed", error_of(lambda: named.send(b"x")))
    shared.close()
    show("caught", issubclass(pulsar.Timeout, pulsar.PulsarException), issubclass(pulsar.ConsumerBusy, Exception))
    show("partitions", [each.rsplit("/", 1)[-1] for each in client.get_topic_partitions("some-topic")])


async def with_asyncio(package: str, url: str, name: str) -> None:
    module = importlib.import_module(f"{package}.asyncio")
    pulsar = importlib.import_module(package)
    client = module.Client(url)
    producer = await client.create_producer(name, batching_enabled=False)
    consumer = await client.subscribe(
        name, "sub", initial_position=pulsar.InitialPosition.Earliest, start_message_id_inclusive=True
    )
    ids = [await producer.send(b"%d" % number, properties={"n": str(number)}) for number in range(3)]
    await producer.flush()
    received = [await consumer.receive() for _ in range(3)]
    show("asyncio", [repr(message.data()) for message in received], [message.properties() for message in received])
    await consumer.acknowledge(received[0])
    await consumer.acknowledge_cumulative(received[2])
    await consumer.seek(ids[1])
    show("asyncio sought", repr((await consumer.receive()).data()))
    reader = await client.create_reader(name, pulsar.MessageId.earliest)
    show("asyncio read", repr((await reader.read_next()).data()), await reader.has_message_available())
    show("asyncio partitions", len(await client.get_topic_partitions(name)))
    for each in (reader, consumer, producer, client):
        await each.close()


def main() -> None:
    package, url = sys.argv[1:]
    pulsar = importlib.import_module(package)
    name = f"prog-{uuid.uuid4().hex[:10]}"
    options = {}
    if package == "pulsar":
        options["logger"] = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(url, operation_timeout_seconds=20, io_threads=1, message_listener_threads=2, **options)
    for part in (publish_and_consume, read_and_seek, listen, many_topics, table_view, records, mistakes):
        part(pulsar, client, f"{name}-{part.__name__}"[:40] + uuid.uuid4().hex[:6])
    client.close()
    show("closed twice", error_of(client.close))
    asyncio.run(with_asyncio(package, url, f"{name}-asyncio"))


if __name__ == "__main__":
    main()
