"""What only the asyncio API has: cancellation, iteration, many tasks, no thread, one loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from pulsar_native import (
    AlreadyClosed,
    ConsumerBatchReceivePolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    OperationNotSupported,
    Timeout,
)
from pulsar_native.asyncio import Client
from support.brokers import Broker, NewTopic

pytestmark = pytest.mark.asyncio

EARLIEST = InitialPosition.Earliest

Stats = Callable[[str], Any]


@pytest_asyncio.fixture
async def native(broker: Broker) -> AsyncIterator[Client]:
    """Give a client on the test's loop."""
    async with Client(broker.service_url) as made:
        yield made


@pytest.mark.proves("N8")
async def test_cancelling_loses_no_message(native: Client, topic: NewTopic) -> None:
    name = topic()
    consumer = await native.subscribe(name, "sub")
    producer = await native.create_producer(name, batching_max_publish_delay_ms=1)
    total, got = 400, []

    async def publish() -> None:
        for number in range(total):
            await producer.send(b"%d" % number)

    publishing = asyncio.ensure_future(publish())
    cancelled = 0
    while len(got) < total:
        # Some are cancelled while they wait, some just as their message arrives.
        task = asyncio.ensure_future(consumer.receive(10_000))
        for _ in range(len(got) % 4):
            await asyncio.sleep(0)
        if len(got) % 3 == 0 and not task.done():
            task.cancel()
        try:
            got.append(int((await task).data()))
        except asyncio.CancelledError:
            cancelled += 1
            got.append(int((await consumer.receive(10_000)).data()))
    await publishing
    assert got == list(range(total)) and cancelled > 20
    with pytest.raises(Timeout):
        await consumer.receive(100)


@pytest.mark.proves("N8")
async def test_cancelled_waiters_pass_their_turn_on(native: Client, topic: NewTopic) -> None:
    name = topic()
    consumer = await native.subscribe(name, "sub")
    producer = await native.create_producer(name, batching_enabled=False)
    waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    for number in range(5):
        await producer.send(b"%d" % number)
    assert [int((await task).data()) for task in waiting[1::2]] == list(range(5))


@pytest.mark.proves("N8")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
async def test_a_cancelled_batch_receive_gives_back(native: Client, topic: NewTopic, kind: ConsumerType) -> None:
    name = topic()
    policy = ConsumerBatchReceivePolicy(10, -1, 60_000)
    consumer = await native.subscribe(name, "sub", kind, batch_receive_policy=policy)
    producer = await native.create_producer(name, batching_max_publish_delay_ms=100)
    await producer.send(b"in work")
    await consumer.receive(10_000)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(4)))
    for _ in range(10):
        # The usual idiom for a time limit; one entry has all of them.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.batch_receive(), 0.05)
    messages = [await consumer.receive(10_000) for _ in range(4)]
    assert [int(message.data()) for message in messages] == list(range(4))
    assert {message.redelivery_count() for message in messages} == {0}
    with pytest.raises(Timeout):
        await consumer.receive(300)


@pytest.mark.proves("N8")
async def test_a_cancelled_send_is_sent_all_the_same(native: Client, topic: NewTopic) -> None:
    name = topic()
    producer = await native.create_producer(name, batching_max_publish_delay_ms=100)
    task = asyncio.ensure_future(producer.send(b"cancelled"))
    await asyncio.sleep(0)
    task.cancel()
    await producer.send(b"after")
    reader = await native.create_reader(name, MessageId.earliest)
    assert [(await reader.read_next(10_000)).data() for _ in range(2)] == [b"cancelled", b"after"]


@pytest.mark.parametrize("kind", ["create_producer", "subscribe"])
async def test_cancelled_creations_leave_nothing(native: Client, topic: NewTopic, stats: Stats, kind: str) -> None:
    name = topic()
    await (await native.create_producer(name)).close()
    await (await native.subscribe(name, "sub")).close()

    async def one(number: int) -> None:
        creation = native.create_producer(name) if kind == "create_producer" else native.subscribe(name, "sub")
        task = asyncio.ensure_future(creation)
        # From before the request is written until after its response.
        await asyncio.sleep(number % 20 / 1000)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).close()

    for number in range(200):
        await one(number)
    async with asyncio.timeout(20):
        while (left := stats(name))["publishers"] or left["subscriptions"]["sub"]["consumers"]:
            await asyncio.sleep(0.05)


async def test_iteration_ends_with_close(native: Client, topic: NewTopic) -> None:
    name = topic()
    producer = await native.create_producer(name)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(5)))
    consumer = await native.subscribe(name, "sub", initial_position=EARLIEST)
    reader = await native.create_reader(name, MessageId.earliest)
    for each in (consumer, reader):
        numbers = []
        async for message in each:
            numbers.append(int(message.data()))
            if len(numbers) == 5:
                await each.close()
        assert numbers == list(range(5))


async def test_no_thread_and_many_tasks(native: Client, topic: NewTopic) -> None:
    name = topic()
    producer = await native.create_producer(name, max_pending_messages=50, block_if_queue_full=True)
    consumer = await native.subscribe(name, "sub")
    # Asyncio itself has resolved the host's name in a thread of its own by now.
    before = threading.active_count()
    ids = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(1000)))
    assert len(set(ids)) == 1000
    received = await asyncio.gather(*(consumer.receive(10_000) for _ in range(1000)))
    assert [message.message_id() for message in received] == sorted(ids)
    assert threading.active_count() == before


async def test_a_client_stays_on_its_loop(native: Client, topic: NewTopic) -> None:
    await native.get_topic_partitions(topic())

    def elsewhere() -> Any:
        return asyncio.run(native.get_topic_partitions("other"))

    with pytest.raises(OperationNotSupported, match="loop"):
        await asyncio.to_thread(elsewhere)


async def test_closing_wakes_who_waits(native: Client, topic: NewTopic) -> None:
    consumer = await native.subscribe(topic(), "sub")
    task = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await task
