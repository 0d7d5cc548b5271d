"""Whole programs as applications have them: several parts of the client together, and what they print."""

from __future__ import annotations

import asyncio
import base64
import enum
import json
import logging
import os
import tempfile
import threading
import time
from datetime import timedelta
from types import ModuleType
from typing import Any

from compat.program import Calls, Env, Observed, program, text


@program()
def producer_with_every_option(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, pulsar.schema.StringSchema(), None, 100, 1000, "me", 20_000, 1000,
        1000, False, {"a": "b"}, 30, pulsar.InitialPosition.Earliest, None, False, 5, True, False, None, None, True,
        pulsar.RegexSubscriptionMode.PersistentOnly, None, pulsar.ConsumerCryptoFailureAction.FAIL,
    )  # fmt: skip
    producer = client.create_producer(
        topic, "named", pulsar.schema.StringSchema(), 41, 10_000, pulsar.CompressionType.ZSTD, 100, 1000, True, True,
        10, 1024, 20, False, pulsar.PartitionsRoutingMode.UseSinglePartition, True, {"who": "me"},
        pulsar.BatchingType.KeyBased, None, None, pulsar.ProducerAccessMode.Shared, None,
    )  # fmt: skip
    calls = Calls()
    for number in range(30):
        producer.send_async(
            f"message {number}", calls, {"number": str(number)}, f"key-{number % 3}", None, None, None, False, 1000
        )
    producer.flush()
    calls.wait(30)
    messages = env.drain(consumer, 30)
    for message in messages:
        consumer.acknowledge(message)
    return {
        "results": sorted({result.name for result, _ in calls.seen}),
        "values": sorted(message.value() for message in messages),
        "in order": {
            key: [int(message.properties()["number"]) for message in messages if message.partition_key() == key]
            for key in ("key-0", "key-1", "key-2")
        },
        "times": sorted({message.event_timestamp() for message in messages}),
        "producers": sorted({message.producer_name() for message in messages}),
        "name": producer.producer_name(),
        "left": env.more(consumer),
    }


@program()
def consumer_with_listener(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, printed = env.client(), env.topic(), list[str]()
    done = threading.Event()

    def listener(consumer: Any, message: Any) -> None:
        printed.append(f"{consumer.topic()} got {text(message.data())} {message.properties()}")
        if message.data() == b"bad" and message.redelivery_count() == 0:
            consumer.negative_acknowledge(message)
            return
        consumer.acknowledge(message)
        if message.data() == b"bad":
            done.set()

    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, message_listener=listener, negative_ack_redelivery_delay_ms=100
    )
    producer = client.create_producer(topic)
    for content in (b"one", b"bad", b"two"):
        producer.send(content, properties={"length": str(len(content))})
    ended = done.wait(10)
    consumer.close()
    again = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    return {"ended": ended, "printed": [env.short(line) for line in printed], "left": env.more(again)}


@program()
def batch_receiving_loop(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(
        topic, "sub", batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(4, 1024 * 1024, 500),
        initial_position=pulsar.InitialPosition.Earliest,
    )  # fmt: skip
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=5)
    for number in range(10):
        producer.send_async(b"%d" % number, lambda result, place: None)
    producer.flush()
    sizes: list[int] = []
    contents: list[Any] = []
    while (batch := consumer.batch_receive()) or len(contents) < 10:
        sizes.append(len(batch))
        for message in batch:
            contents.append(text(message.data()))
            consumer.acknowledge(message)
    return {"contents": contents, "largest": max(sizes), "total": sum(sizes)}


@program(cases={"default": (None,), "given": (100,)})
def batch_receiving_policies(pulsar: ModuleType, env: Env, count: int | None) -> Observed:
    client, topic = env.client(), env.topic()
    policy = None if count is None else pulsar.ConsumerBatchReceivePolicy(count, 10, 300)
    consumer = client.subscribe(topic, "sub", batch_receive_policy=policy)
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(b"message %d" % number)
    env.wait_delivered(topic, 5)
    batch = consumer.batch_receive()
    began = time.monotonic()
    rest: list[Any] = []
    while more := consumer.batch_receive():
        rest += more
    return {
        "first": [text(each.data()) for each in batch],
        "rest": [text(each.data()) for each in rest],
        "soon": time.monotonic() - began < 2.5,
    }


@program(seconds=60)
def dead_letters_of_several_messages(pulsar: ModuleType, env: Env) -> Observed:
    """The dead-letter topic has its default name; what is handled stays out of it."""
    client, topic = env.client(), env.topic()
    dead = client.subscribe(topic + "-sub-DLQ", "check")
    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2),
        initial_position=pulsar.InitialPosition.Earliest,
    )  # fmt: skip
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number, partition_key=f"k{number}", event_timestamp=number + 1)
    seen: dict[str, int] = {}
    while sum(seen.values()) < 2 + 2 * 3:
        message = consumer.receive(10_000)
        content = message.data().decode()
        seen[content] = seen.get(content, 0) + 1
        if int(content) % 2:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    dead_letters = env.drain(dead, 2, 15_000)
    return {
        "seen": dict(sorted(seen.items())),
        "dead": sorted(text(each.data()) or "" for each in dead_letters),
        "keys": sorted(each.partition_key() for each in dead_letters),
        "times": sorted(each.event_timestamp() for each in dead_letters),
        "more": env.more(dead),
        "left": env.more(consumer),
    }


@program()
def reader_loops(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=3)
    contents, places = [], []
    while reader.has_message_available():
        message = reader.read_next()
        contents.append(text(message.data()))
        places.append(message.message_id().serialize())
    # The place is stored, and the next run goes on from it.
    later = client.create_reader(topic, pulsar.MessageId.deserialize(places[6]))
    rest = []
    while later.has_message_available():
        rest.append(text(later.read_next(5000).data()))
    later.seek(pulsar.MessageId.deserialize(places[1]))
    sought = []
    while later.has_message_available():
        sought.append(text(later.read_next(5000).data()))
    ended = env.error(lambda: reader.read_next(100))
    producer.send(b"new")
    available = env.until(reader.has_message_available)
    return {
        "contents": contents, "rest": rest, "sought": sought, "ended": ended,
        "new": [available, text(reader.read_next(5000).data())],
    }  # fmt: skip


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


def _order_classes(schema: ModuleType) -> tuple[Any, Any, Any]:
    class Address(schema.Record):  # type: ignore[misc, name-defined]
        street = schema.String(required=True)
        number = schema.Integer(default=1)

    class Item(schema.Record):  # type: ignore[misc, name-defined]
        name = schema.String()
        price = schema.Double(default=0.5)
        tags = schema.Array(schema.String())

    class Order(schema.Record):  # type: ignore[misc, name-defined]
        _avro_namespace = "com.example.orders"
        id = schema.Long(required=True)
        level = schema.CustomEnum(Level, default=Level.LOW)
        address = Address()
        items = schema.Array(Item())
        stock = schema.Map(Item())
        counts = schema.Map(schema.Integer())
        matrix = schema.Array(schema.Array(schema.Integer()))
        note = schema.String(default="none", required_default=True)
        paid = schema.Boolean(default=True)

    return Address, Item, Order


@program(cases={"json": ("JsonSchema",), "avro": ("AvroSchema",)})
def nested_records(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    schema = pulsar.schema
    address, item, order = _order_classes(schema)
    made, client, topic = getattr(schema, kind)(order), env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=made)
    producer = client.create_producer(topic, schema=made)
    full = order(
        id=2**40, level=Level.HIGH, address=address(street="Main"), items=[item(name="a", tags=["x", "y"]), item()],
        stock={"b": item(name="b", price=2.0)}, counts={"c": 3}, matrix=[[1, 2], [3]], paid=False,
    )  # fmt: skip
    few = order(id=1, items=[{"name": "dict"}], stock={"d": {"name": "in a map"}}, address={"street": "S"})
    few.note = None
    for each in (full, few):
        producer.send(each)
    first, second = (each.value() for each in env.drain(consumer, 2))
    return {
        "first": [
            first.id, first.level.name, first.address.street, first.address.number, first.items[0].name,
            first.items[0].tags, first.items[1].name, first.items[1].price, first.stock["b"].price,
            type(first.stock["b"]).__name__, first.counts, first.matrix, first.note, first.paid,
        ],
        "second": [
            second.id, second.level.name, second.address.street, second.items[0].name, second.items[0].price,
            second.stock["d"].name, second.counts, second.matrix, second.note, second.paid,
        ],
        "equal": [first == full, second == few, first == second, first != second],
        "definition": order.schema(),
        "registered": json.loads(made.schema_info().schema()),
    }  # fmt: skip


@program()
def schemas_evolve(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    def old() -> Any:
        class User(schema.Record):  # type: ignore[misc, name-defined]
            name = schema.String()
            age = schema.Integer(default=0, required_default=True)

        return User

    def new() -> Any:
        class User(schema.Record):  # type: ignore[misc, name-defined]
            name = schema.String()
            mail = schema.String(default="none", required_default=True)

        return User

    first, second = old(), new()
    client, topic = env.client(), env.topic()
    old_one = client.create_producer(topic, schema=schema.AvroSchema(first))
    old_one.send(first(name="a", age=5))
    new_one = client.create_producer(topic, schema=schema.AvroSchema(second))
    new_one.send(second(name="b", mail="b@x"))
    old_one.send(first(name="c"))
    reading = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema.AvroSchema(second))
    messages = [reading.read_next(5000) for _ in range(3)]
    return {
        "values": [[each.value().name, each.value().mail] for each in messages],
        "versions": len({each.schema_version() for each in messages}),
        "data": [each.data().hex() for each in messages],
    }


@program()
def asyncio_service(pulsar: ModuleType, env: Env) -> Observed:
    module = env.module("asyncio")

    async def main() -> Observed:
        client = module.Client(env.service_url, operation_timeout_seconds=10)
        requests, answers = env.topic("requests"), env.topic("answers")
        worker = await client.subscribe(requests, "workers", pulsar.ConsumerType.Shared)
        collector = await client.subscribe(answers, "me", schema=pulsar.schema.StringSchema())
        asking = await client.create_producer(requests, max_pending_messages=50)
        answering = await client.create_producer(answers, schema=pulsar.schema.StringSchema())

        async def work() -> None:
            while True:
                message = await worker.receive()
                await answering.send(
                    message.data().decode().upper(), properties={"to": message.properties()["id"]},
                    partition_key=message.partition_key(),
                )  # fmt: skip
                await worker.acknowledge(message)

        tasks = [asyncio.create_task(work()) for _ in range(2)]
        places = await asyncio.gather(
            *(asking.send(b"question", properties={"id": str(number)}, partition_key="k") for number in range(20))
        )
        got = []
        for _ in range(20):
            message = await asyncio.wait_for(collector.receive(), 10)
            got.append((message.value(), message.properties()["to"], message.partition_key()))
            await collector.acknowledge(message)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for each in (asking, answering, worker, collector):
            await each.close()
        await client.close()
        return {
            "places": len({str(each) for each in places}),
            "got": sorted(got, key=lambda each: int(each[1])),
            "ended": [type(each).__name__ for each in ended],
        }

    return env.run(main(), 25)


def _key_files(folder: str) -> tuple[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    public, private = os.path.join(folder, "public.pem"), os.path.join(folder, "private.pem")
    with open(public, "wb") as file:
        file.write(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
    with open(private, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
    return public, private


@program()
def encrypted_batches(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    with tempfile.TemporaryDirectory() as folder:
        reader = pulsar.CryptoKeyReader(*_key_files(folder))
        consumer = client.subscribe(topic, "able", crypto_key_reader=reader)
        action = pulsar.ConsumerCryptoFailureAction
        unable = client.subscribe(topic, "unable", crypto_failure_action=action.CONSUME)
        discarding = client.subscribe(topic, "discarding", crypto_failure_action=action.DISCARD)
        failing = client.subscribe(topic, "failing")
        producer = client.create_producer(
            topic, encryption_key="key", crypto_key_reader=reader, batching_enabled=True,
            batching_max_publish_delay_ms=2000,
        )  # fmt: skip
        for number in range(3):
            producer.send_async(b"secret %d" % number, lambda result, place: None, properties={"n": str(number)})
        producer.flush()
        raw = unable.receive(5000)
        context = raw.encryption_context()
        return {
            "able": [[text(each.data()), each.properties()] for each in env.drain(consumer, 3)],
            "raw": [b"secret" in raw.data(), context.batch_size(), context.is_decryption_failed()],
            "more raw": len(env.more(unable)),
            "discarding": env.more(discarding),
            "failing": env.more(failing),
            "name": context.keys()[0].key,
            "decrypted": consumer.get_last_message_id().batch_index(),
        }


@program()
def compacted_table(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic, schema=schema.StringSchema())
    for key, value in (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")):
        producer.send(value, partition_key=key)
    producer.send(None, partition_key="b")
    view = client.create_table_view(topic, schema=schema.StringSchema())
    seen: dict[str, Any] = {}
    view.for_each(lambda key, value: seen.update({key: value}))
    calls = Calls()
    view.for_each_and_listen(calls)
    early = sorted(calls.seen)
    producer.send("5", partition_key="d")
    called = env.until(lambda: ("d", "5") in calls.seen)
    return {
        "seen": seen, "early": early, "called": called, "length": len(view),
        "get": [view.get(key) for key in "abcd"],
    }  # fmt: skip


@program()
def pipeline_with_threads(pulsar: ModuleType, env: Env) -> Observed:
    """One thread receives, others process and acknowledge by id."""
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, receiver_queue_size=10)
    output = client.create_producer(env.topic("out"), block_if_queue_full=True, max_pending_messages=10)
    check = client.subscribe(env.topic("out"), "check")
    calls, queue, lock = Calls(), list[Any](), threading.Condition()

    def process() -> None:
        while True:
            with lock:
                lock.wait_for(lambda: queue)
                message = queue.pop(0)
            if message is None:
                return

            def sent(result: Any, place: Any, message: Any = message) -> None:
                if result == pulsar.Result.Ok:
                    consumer.acknowledge(message.message_id())
                calls(result, place)

            output.send_async(message.data() * 2, sent)

    threads = [threading.Thread(target=process) for _ in range(3)]
    for thread in threads:
        thread.start()
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send_async(b"%02d" % number, lambda result, place: None)
    producer.flush()
    for _ in range(40):
        message = consumer.receive(10_000)
        with lock:
            queue.append(message)
            lock.notify()
    called = calls.wait(40)
    with lock:
        queue += [None] * 3
        lock.notify_all()
    for thread in threads:
        thread.join(5)
    contents = sorted(text(each.data()) or "" for each in env.drain(check, 40))
    consumer.close()
    again = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    return {
        "called": called,
        "results": sorted({result.name for result, _ in calls.seen}),
        "contents": contents,
        "threads": [thread.is_alive() for thread in threads],
        "left": env.more(again),
    }


@program()
def request_and_late_reply(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    began = time.monotonic()
    producer.send(b"later", deliver_after=timedelta(milliseconds=1500))
    producer.send(b"now", ordering_key="order")
    first, second = env.drain(consumer, 2)
    return {
        "order": [text(first.data()), text(second.data())],
        "late": time.monotonic() - began > 1,
        "ordering": [first.ordering_key(), second.ordering_key()],
    }


# Where a client of another logger has been in the process, the official client may log to that one.
@program(own_process=True)
def logging_of_an_application(pulsar: ModuleType, env: Env) -> Observed:
    """A formatter and a filter of the application see the records as those of any other library."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    logger = logging.getLogger(f"application-{id(lines)}")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = Handler()
    handler.setFormatter(logging.Formatter("%(name)s|%(levelname)s|%(message)s"))
    logger.addHandler(handler)
    client = env.client(logger=logger)
    client.create_producer(env.topic()).send(b"x")
    failing = pulsar.Client("pulsar://127.0.0.1:1", logger=logger, operation_timeout_seconds=2)
    error = env.error(lambda: failing.create_producer("t"))
    failing.close()
    client.close()
    seen = list(lines)
    return {
        "form": all(line.startswith(logger.name + "|") for line in seen),
        "some": len(seen) > 0,
        "error": error,
    }


@program()
def ids_in_a_database(pulsar: ModuleType, env: Env) -> Observed:
    """An application stores ids as text and acknowledges by them in a later run."""
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=2000)
    for number in range(3):
        producer.send_async(b"%d" % number, lambda result, place: None)
    producer.flush()
    producer.send_async(b"3", lambda result, place: None)
    producer.flush()
    stored = [base64.b64encode(each.message_id().serialize()).decode() for each in env.drain(consumer, 4)]
    for each in stored[:3]:
        consumer.acknowledge(pulsar.MessageId.deserialize(base64.b64decode(each)))
    consumer.close()
    later = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    return {"left": sorted(str(each) for each in env.more(later, 1))}
