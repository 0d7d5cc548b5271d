"""Number of Python functions called per message, for each way to receive and to send: no clock, so never by chance."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import pulsar_native as pulsar
from pulsar_native import asyncio as pulsar_asyncio
from pulsar_native._message_fields import is_compiled
from support.brokers import Broker, NewTopic
from support.until import until

COUNT, BATCH = 1000, 100
# Calls at the end of an entry or turn: dequeue, decode, permits, acknowledgements of the last ones.
PER_TURN = 120
# `Message.data`, the creation of a message and the gathering of its acknowledgement are compiled where that is built.
DATA = MADE = GATHERED = 0 if is_compiled else 1
EARLIEST = pulsar.InitialPosition.Earliest


class Counter:
    """Counter of the calls of Python functions in the threads that it is installed in."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_on = False

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; for `sys.setprofile`."""
        if self.is_on and event == "call":
            self.calls += 1

    def of(self, function: Callable[[], object]) -> int:
        """Return the number of calls in this thread, without the function's own."""
        before = sys.getprofile()
        self.calls = -1
        sys.setprofile(self.profile)
        self.is_on = True
        try:
            function()
        finally:
            self.is_on = False
            sys.setprofile(before)
        return self.calls


@pytest.fixture
def client(broker: Broker) -> Iterator[pulsar.Client]:
    """Give a client."""
    with pulsar.Client(broker.service_url) as made:
        yield made


def publish(client: pulsar.Client, name: str, *, batched: bool = True, count: int = COUNT, **fields: Any) -> None:
    """Publish messages of different sizes, in batches of one size."""
    producer = client.create_producer(
        name, batching_enabled=batched, batching_max_messages=BATCH, batching_max_publish_delay_ms=60_000
    )
    for number in range(count):
        producer.send_async(b"x" * (number % 7 + 1), None, **fields)
    producer.flush()


async def subscribe(client: pulsar.Client, name: str, count: int = COUNT, **options: Any) -> Any:
    """Return a consumer with all messages queued, and permits that are not due before they were all received."""
    consumer = client.subscribe(name, "s", initial_position=EARLIEST, receiver_queue_size=4 * COUNT, **options)
    await until(lambda: sum(child.queued_messages() for child in consumer._inner.children) == count)
    return consumer


def each(consumer: Any, count: int = COUNT) -> Callable[[], None]:
    """Return what receives and acknowledges the messages one by one."""

    def run() -> None:
        for _ in range(count):
            message = consumer.receive(10_000)
            message.data()
            consumer.acknowledge(message)

    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"consumer_type": pulsar.ConsumerType.KeyShared},
        {"unacked_messages_timeout_ms": 60_000},
        {
            "consumer_type": pulsar.ConsumerType.Shared,
            "dead_letter_policy": pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=3),
        },
    ],
    ids=["plain", "key-shared", "ack-time-out", "dead-letters"],
)
async def test_receive_calls_per_message(client: pulsar.Client, topic: NewTopic, options: dict[str, Any]) -> None:
    name = topic()
    publish(client, name, partition_key="k", properties={"a": "b"})
    consumer = await subscribe(client, name, **options)
    assert Counter().of(each(consumer)) <= COUNT * (2 + DATA + MADE + GATHERED) + COUNT // BATCH * PER_TURN


async def test_receive_calls_with_partitions(client: pulsar.Client, topic: NewTopic) -> None:
    name = topic(partitions=4)
    for index in range(4):
        publish(client, f"{name}-partition-{index}", count=COUNT // 4)
    consumer = await subscribe(client, name)
    # A turn is at most 32 messages: of 250 messages in batches of 100 there are 10 turns.
    assert Counter().of(each(consumer)) <= COUNT * (2 + DATA + MADE + GATHERED) + 40 * PER_TURN


async def test_receive_calls_unbatched(client: pulsar.Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, batched=False, count=320)
    consumer = await subscribe(client, name, 320)
    # Decoding an entry takes about 30 calls, and 32 entries are decoded in a turn.
    assert Counter().of(each(consumer, 320)) <= 320 * (2 + DATA + MADE + 36) + 10 * PER_TURN


async def test_receive_calls_of_message_arriving_alone(client: pulsar.Client, topic: NewTopic) -> None:
    name = topic()
    consumer = await subscribe(client, name, 0)
    counts = []
    for _ in range(4):
        publish(client, name, batched=False, count=1)
        await until(lambda: consumer._inner.children[0].queued_messages() == 1)
        counts.append(Counter().of(each(consumer, 1)))
    # The first one is decoded as any entry is, in some 65 calls; then it is known what the entries are like. On a busy
    # machine acknowledgements may become due in between.
    assert min(counts[1:]) <= (35 if is_compiled else 55), counts


async def test_receive_calls_of_getters(client: pulsar.Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, partition_key="k", properties={"a": "b"}, event_timestamp=7)
    consumer = await subscribe(client, name)
    seen: list[tuple[Any, ...]] = []

    def run() -> None:
        for _ in range(COUNT):
            message = consumer.receive(10_000)
            message.message_id()
            seen.append(
                (message.partition_key(), message.properties(), message.event_timestamp(), message.publish_timestamp())
            )

    # The decoding of the fields, once. Without the compiled codec also `receive`, the getters, the look for the fields
    # and the loop over the properties.
    more = 0 if is_compiled else 13
    most = COUNT * (1 + MADE + more) + COUNT // BATCH * PER_TURN
    assert Counter().of(run) <= most
    assert {row[:3] for row in [(key, *pairs.items(), at) for key, pairs, at, _ in seen]} == {("k", ("a", "b"), 7)}


async def test_batch_receive_calls(client: pulsar.Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name)
    policy = pulsar.ConsumerBatchReceivePolicy(COUNT, 1 << 20, 10_000)
    consumer = await subscribe(client, name, batch_receive_policy=policy)
    received: list[Any] = []
    assert Counter().of(lambda: received.extend(consumer.batch_receive())) <= COUNT * MADE + COUNT // BATCH * PER_TURN
    assert len(received) == COUNT


def test_listener_calls_per_message(broker: Broker, topic: NewTopic) -> None:
    name, counter, done = topic(), Counter(), threading.Event()
    left = COUNT

    def listener(consumer: Any, message: Any) -> None:
        nonlocal left
        counter.is_on = True
        message.data()
        consumer.acknowledge(message)
        left -= 1
        if not left:
            counter.is_on = False
            done.set()

    with pulsar.Client(broker.service_url) as client:
        publish(client, name)
        # The loop's thread runs already: only the listener's is counted.
        threading.setprofile(counter.profile)
        try:
            client.subscribe(
                name, "s", initial_position=EARLIEST, receiver_queue_size=4 * COUNT, message_listener=listener
            )
            assert done.wait(30)
        finally:
            threading.setprofile(None)
    # The listener and `acknowledge`; entries may arrive one by one, each with a call of the listener's thread.
    assert counter.calls <= COUNT * (2 + DATA + MADE + GATHERED) + COUNT // BATCH * 2 * PER_TURN


async def test_asyncio_receive_calls_without_task_switch(
    broker: Broker, client: pulsar.Client, topic: NewTopic
) -> None:
    name = topic()
    publish(client, name)
    async with pulsar_asyncio.Client(broker.service_url) as own:
        consumer = await own.subscribe(name, "s", initial_position=EARLIEST, receiver_queue_size=4 * COUNT)
        await until(lambda: sum(child.queued_messages() for child in consumer._inner.children) == COUNT)

        async def receive_all() -> None:
            for _ in range(COUNT):
                message = await consumer.receive()
                message.data()
                await consumer.acknowledge(message)

        def run() -> None:
            # Nobody else runs: a coroutine that waits for something would not end here.
            with pytest.raises(StopIteration):
                receive_all().send(None)

        assert Counter().of(run) <= COUNT * (2 + DATA + MADE + GATHERED) + COUNT // BATCH * PER_TURN + 50


@pytest.mark.parametrize("fields", [{}, {"partition_key": "k", "properties": {"a": "b"}}], ids=["plain", "key"])
async def test_asyncio_send_calls_per_message(broker: Broker, topic: NewTopic, fields: dict[str, Any]) -> None:
    async with pulsar_asyncio.Client(broker.service_url) as own:
        producer = await own.create_producer(
            topic(), batching_enabled=True, batching_max_messages=BATCH, batching_max_publish_delay_ms=60_000,
            max_pending_messages=2 * COUNT,
        )  # fmt: skip
        sent: list[Any] = []

        def run() -> None:
            sent.extend(producer.send(b"hello", **fields) for _ in range(COUNT))

        # The generator's step for each; and without the compiled method that one, with all that it calls.
        usual = 1 if is_compiled else 14 if fields else 8
        assert Counter().of(run) <= COUNT * usual + COUNT // BATCH * 2 * PER_TURN
        assert len(set(await asyncio.gather(*sent))) == COUNT


@pytest.mark.parametrize(
    ("callback", "fields"),
    [
        (None, {}),
        (lambda _result, _id: None, {}),
        (None, {"partition_key": "k", "properties": {"a": "b"}, "event_timestamp": 7}),
    ],
    ids=["plain", "callback", "key-and-properties"],
)
def test_send_async_calls_per_message(
    client: pulsar.Client, topic: NewTopic, callback: Any, fields: dict[str, Any]
) -> None:
    producer = client.create_producer(
        topic(), batching_enabled=True, batching_max_messages=BATCH, batching_max_publish_delay_ms=60_000,
        max_pending_messages=2 * COUNT,
    )  # fmt: skip

    def run() -> None:
        for _ in range(COUNT):
            producer.send_async(b"hello", callback, **fields)

    # Compiled, no Python function runs for a message: only for the first and the last of a batch, which is encoded.
    # Else the method, the buffer's step, and for a key and properties the encoding of each.
    usual = 0 if is_compiled else 8 if fields else 2
    assert Counter().of(run) <= COUNT * usual + COUNT // BATCH * PER_TURN
    producer.flush()


def test_send_async_of_values_calls_per_message(client: pulsar.Client, topic: NewTopic) -> None:
    producer = client.create_producer(
        topic(), schema=pulsar.schema.StringSchema(), batching_enabled=True, batching_max_messages=BATCH,
        batching_max_publish_delay_ms=60_000, max_pending_messages=2 * COUNT,
    )  # fmt: skip
    outcomes: list[Any] = []

    def run() -> None:
        for number in range(COUNT):
            producer.send_async(f"value {number % 10}", None)

    # The schema encodes, which is a function of Python; a value that it refuses is not sent.
    usual = 1 if is_compiled else 7
    assert Counter().of(run) <= COUNT * usual + COUNT // BATCH * PER_TURN
    wrong: Any = 5
    for callback in (None, lambda *outcome: outcomes.append(outcome)):
        with pytest.raises(TypeError, match="type str, not int"):
            producer.send_async(wrong, callback)
    producer.flush()
    with client.create_reader(producer.topic(), pulsar.MessageId.earliest, pulsar.schema.StringSchema()) as reader:
        values = [reader.read_next(10_000).value() for _ in range(COUNT)]
        assert values == [f"value {number % 10}" for number in range(COUNT)] and not reader.has_message_available()
    assert not outcomes
