"""Permits: auto-scaled queues within the memory limit, strict pauses, and FLOW commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.engine.client import ClientCore
from pulsar_native.enums import ConsumerType
from pulsar_native.wire.commands import Kind
from support.entry_bytes import batch_entry, single_entry
from support.fake_broker import FakeBroker, delivery, permits
from support.until import until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

LIMIT = 100_000


def redelivered(broker: FakeBroker) -> list[int]:
    requests = [
        seen.command.redeliverUnacknowledgedMessages for seen in broker.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    ]
    return [data.entryId for request in requests for data in request.message_ids]


async def deliver(broker: FakeBroker, consumer: Any, *frames: bytes) -> None:
    """Deliver entries and wait until they are here."""
    (child,) = consumer.children
    before = len(child.core.all_deliveries)
    broker.peers[-1].send(*frames)
    await until(lambda: len(child.core.all_deliveries) == before + len(frames))


def singles(first: int, last: int, size: int = 10) -> list[bytes]:
    return [delivery(0, single_entry(bytes(size)), number) for number in range(first, last)]


def take_all(consumer: Any) -> int:
    number = 0
    while consumer.dequeue() is not None:
        number += 1
    return number


def find_empty(consumer: Any) -> None:
    """Wait for a message as a receiver does that finds none."""

    def wake() -> None:
        """Go on."""

    consumer.wait_then(wake)
    consumer.forget_wait(wake)


@pytest.mark.asyncio
@pytest.mark.proves("N4")
async def test_permits_scaled_queue_grows_when_emptied(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    core = cores(fake.url, memory_limit_bytes=LIMIT)
    consumer = await subscribed(core, receiver_queue_size=6, auto_scaled_receiver_queue_size_enabled=True)
    (child,) = consumer.children
    await asyncio.to_thread(fake.wait, Kind.FLOW, 1)
    next_entry = 0
    for size in (1, 2, 6, 6):
        assert child.core.permits.size == size and sum(permits(fake)) - next_entry <= size
        await deliver(fake, consumer, *singles(next_entry, next_entry + size))
        next_entry += size
        assert take_all(consumer) == size
        find_empty(consumer)
    # One message at a time, each waited for, is no reason to grow.
    slow = await subscribed(cores(fake.url), receiver_queue_size=6, auto_scaled_receiver_queue_size_enabled=True)
    for number in range(5):
        await deliver(fake, slow, *singles(number, number + 1))
        take_all(slow)
        find_empty(slow)
    assert slow.children[0].core.permits.size == 2


@pytest.mark.asyncio
@pytest.mark.proves("N4")
async def test_permits_scaled_queue_limited_by_memory(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    core = cores(fake.url, memory_limit_bytes=LIMIT)
    consumer = await subscribed(core, receiver_queue_size=64, auto_scaled_receiver_queue_size_enabled=True)
    (child,) = consumer.children
    for first in (0, 1, 3, 7, 15):
        await deliver(fake, consumer, *singles(first, first + child.core.permits.size, 20_000))
        take_all(consumer)
        find_empty(consumer)
    # Eight of 20 kB would not fit into 100 kB.
    assert child.core.permits.size == 4 and core.memory.used == 0


@pytest.mark.asyncio
@pytest.mark.proves("N4")
async def test_permits_scaled_queue_halves_over_limit(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    core = cores(fake.url, memory_limit_bytes=LIMIT)
    consumer = await subscribed(core, receiver_queue_size=8, auto_scaled_receiver_queue_size_enabled=True)
    (child,) = consumer.children
    entry = 0
    while child.core.permits.size < 8:
        size = child.core.permits.size
        await deliver(fake, consumer, *singles(entry, entry + size))
        entry += size
        take_all(consumer)
        find_empty(consumer)
    await until(lambda: sum(permits(fake)) == entry + 8)
    await deliver(fake, consumer, *singles(entry, entry + 8))
    entry += 8
    # Somebody else uses 96 % of the memory: half the queue is as much as is granted again.
    core.memory.reserve(96_000)
    assert take_all(consumer) == 8
    assert child.core.permits.size == 1
    await until(lambda: sum(permits(fake)) == entry + 1)
    # All of it, and more: one entry at a time, when nothing is here.
    core.memory.reserve(10_000)
    batch = delivery(0, batch_entry([b"x"] * 10), entry)
    await deliver(fake, consumer, batch)
    assert core.memory.received > 0
    seen = len(permits(fake))
    for left in range(9, -1, -1):
        assert len(permits(fake)) == seen, left
        assert consumer.dequeue() is not None
    await until(lambda: sum(permits(fake)) == entry + 11)
    assert core.memory.received == 0
    # With memory again, the queue grows again.
    core.memory.release(106_000)
    entry += 1
    await deliver(fake, consumer, *singles(entry, entry + 1))
    assert take_all(consumer) == 1
    find_empty(consumer)
    assert child.core.permits.size == 8


@pytest.mark.asyncio
@pytest.mark.proves("N3")
async def test_permits_strict_pause_hands_back_once(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=20, consumer_type=ConsumerType.Shared)
    (child,) = consumer.children
    chunk = single_entry(b"half", uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=8)
    batch = batch_entry([b"x"] * 5)
    await deliver(fake, consumer, *singles(0, 3), delivery(0, chunk, 3), delivery(0, batch, 4))
    consumer.pause(strict=True)
    await until(lambda: redelivered(fake) == [0, 1, 2, 4])
    assert [each.entry_id for each in child.core.all_deliveries] == [3] and consumer.dequeue() is None
    fake.peers[-1].send(*singles(1, 3), *singles(5, 6))
    await until(lambda: redelivered(fake) == [0, 1, 2, 4, 5])
    assert [each.entry_id for each in child.core.all_deliveries] == [3, 1, 2] and consumer.dequeue() is None
    assert permits(fake) == [20]
    # Three, the batch of five, and one were handed back, and one chunk was opened: ten, half the queue.
    consumer.resume()
    assert take_all(consumer) == 2
    await until(lambda: sum(permits(fake)) == 20 + 10)
