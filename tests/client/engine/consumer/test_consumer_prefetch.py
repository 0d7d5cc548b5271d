"""Prefetch buffer and ack fast path: nothing lost, doubled, reordered or uncounted."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.arrow.entry_slice import BatchBudget
from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.enums import ConsumerType, SubscriptionMode
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema import AvroSchema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire.commands import Kind
from support.entry_bytes import batch_entry, single_entry
from support.fake_broker import FakeBroker, delivery, permits
from support.until import until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

FAST = {"starting_backoff_interval_ms": 20}


def batch(first: int, count: int) -> bytes:
    return batch_entry([b"%d" % number for number in range(first, first + count)], first_sequence_id=first)


def values(messages: Any) -> list[int]:
    return [int(message.data()) for message in messages]


class Application:
    """Takes as the APIs do: from the prefetch buffer, and when that is empty from the consumer."""

    def __init__(self, consumer: MultiTopicsConsumer) -> None:
        self.consumer = consumer
        consumer.start_prefetch()

    @property
    def prefetch(self) -> deque[Message]:
        return self.consumer.prefetched

    def take(self) -> Message | None:
        try:
            return self.prefetch.popleft()
        except IndexError:
            return self.consumer.dequeue()

    async def taken(self, count: int) -> list[int]:
        return values(await self.messages(count))

    async def messages(self, count: int) -> list[Message]:
        found: list[Message] = []

        def enough() -> bool:
            while len(found) < count and (message := self.take()) is not None:
                found.append(message)
            return len(found) >= count

        await until(enough)
        return found


def acked(broker: FakeBroker) -> list[int]:
    return [data.entryId for seen in broker.seen(Kind.ACK) for data in seen.command.ack.message_id]


@pytest.mark.asyncio
@pytest.mark.proves("C120")
async def test_prefetch_permits_returned_at_same_message(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    application = Application(await subscribed(cores(fake.url), receiver_queue_size=40))
    fake.peers[-1].send(delivery(0, batch(0, 37), 0), delivery(0, batch(37, 3), 1))
    for number in range(40):
        assert await application.taken(1) == [number]
        # Nobody comes for the next one, and all the same they are on their way.
        await asyncio.to_thread(fake.wait, Kind.FLOW, 1 + (number + 1) // 20)
        assert permits(fake) == [40] + [20] * ((number + 1) // 20)


@pytest.mark.asyncio
async def test_prefetch_only_what_can_be_read(fake: FakeBroker, cores: Cores) -> None:
    schema: Any = AvroSchema(
        schema_definition={"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    )
    config = ConsumerConfig(subscription_name="s")
    application = Application(await cores(fake.url).subscribe(["t"], config, VersionedDecoder(schema), None))

    def entry(numbers: range, version: bytes) -> bytes:
        return batch_entry([schema.encode({"n": number}) for number in numbers], schema_version=version)

    entries = [entry(range(3), b"\1"), entry(range(3, 5), b"\1"), entry(range(5, 8), b"\2")]
    fake.peers[-1].send(*[delivery(0, each, number) for number, each in enumerate(entries)])
    # How many are left in the buffer behind each message; nothing before its schema is known.
    left, found = [], []
    for number in range(8):
        (message,) = await application.messages(1)
        left.append(len(application.prefetch))
        # As `receive` does before it returns a message that was not in the buffer.
        version = message.entry.schema.wanted(message.schema_version_bytes())
        assert (version is not None) is (number in (0, 5))
        if version is not None:
            message.entry.schema.learn(version, schema.schema_info())
        found.append(message.value()["n"])
    assert found == list(range(8)) and left == [0, 1, 0, 1, 0, 0, 1, 0]


@pytest.mark.asyncio
async def test_prefetch_strict_pause_empties_buffer(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    application = Application(await subscribed(cores(fake.url), receiver_queue_size=100))
    fake.peers[-1].send(delivery(0, batch(0, 30), 0), delivery(0, batch(30, 10), 1))
    assert await application.taken(7) == list(range(7))
    first = application.take()
    assert first is not None and application.prefetch
    application.consumer.pause(strict=True)
    assert application.take() is None and not application.prefetch
    application.consumer.put_back([first])
    application.consumer.resume()
    assert await application.taken(33) == list(range(7, 40))


@pytest.mark.asyncio
async def test_prefetch_redeliver_all_empties_buffer(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=100, consumer_type=ConsumerType.Shared)
    application = Application(consumer)
    fake.peers[-1].send(delivery(0, batch(0, 60), 0))
    assert await application.taken(5) == list(range(5))
    consumer.redeliver_all()
    assert application.take() is None
    # 5 were taken and 55 dropped: more than half the queue.
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    assert permits(fake) == [100, 60]
    fake.peers[-1].send(delivery(0, batch(0, 60), 0))
    assert await application.taken(60) == list(range(60))


@pytest.mark.asyncio
async def test_prefetch_seek_empties_buffer_and_position(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    application = Application(await subscribed(cores(fake.url)))
    fake.peers[-1].send(delivery(0, batch(0, 30), 0))
    assert await application.taken(5) == list(range(5))
    await application.consumer.seek(MessageId.earliest)
    assert application.take() is None and application.consumer.dequeued_ids() == []
    fake.peers[-1].send(delivery(0, batch(0, 30), 0))
    assert await application.taken(3) == list(range(3))
    assert [place.batch_index() for place in application.consumer.dequeued_ids()] == [2]


@pytest.mark.asyncio
@pytest.mark.proves("C119")
async def test_prefetch_reader_continues_behind_dequeued(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    consumer = await subscribed(
        cores(fake.url, **FAST),
        subscription_mode=SubscriptionMode.NonDurable,
        start_message_id=MessageId.earliest,
        receiver_queue_size=100,
    )
    application = Application(consumer)
    fake.peers[-1].send(delivery(0, batch(0, 30), 7))
    assert await application.taken(12) == list(range(12))
    fake.peers[0].close(reset=True)
    again = (await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 2))[-1].command.subscribe
    assert (again.start_message_id.entryId, again.start_message_id.batch_index) == (7, 11)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    fake.peers[-1].send(delivery(0, batch(0, 30), 7))
    assert await application.taken(18) == list(range(12, 30))


@pytest.mark.asyncio
async def test_prefetch_closed_consumer_empties_buffer(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    application = Application(await subscribed(cores(fake.url)))
    fake.peers[-1].send(delivery(0, batch(0, 30), 0))
    assert await application.taken(5) == list(range(5))
    await application.consumer.close()
    with pytest.raises(AlreadyClosed):
        application.take()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "options",
    [
        {"receiver_queue_size": 0},
        {"auto_scaled_receiver_queue_size_enabled": True},
    ],
)
async def test_prefetch_disabled_when_each_message_counts(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, options: dict[str, Any]
) -> None:
    application = Application(await subscribed(cores(fake.url), **options))
    if options.get("receiver_queue_size") == 0:
        application.consumer.wait_then(lambda: None)
    fake.peers[-1].send(delivery(0, batch(0, 30), 0))
    assert await application.taken(5) == list(range(5)) and not application.prefetch


@pytest.mark.asyncio
async def test_prefetch_does_not_bypass_waiters(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    application = Application(await subscribed(cores(fake.url)))
    wakes = [lambda: None, lambda: None]
    for wake in wakes:
        application.consumer.wait_then(wake)
    fake.peers[-1].send(delivery(0, batch(0, 30), 0))
    assert await application.taken(1) == [0] and not application.prefetch
    application.consumer.forget_wait(wakes[0])
    assert await application.taken(1) == [1] and application.prefetch
    application.consumer.forget_wait(wakes[1])


@pytest.mark.asyncio
async def test_prefetch_several_topics_in_turns(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    application = Application(await subscribed(cores(fake.url)))
    fake.peers[-1].send(delivery(0, batch(0, 30), 0), delivery(0, batch(30, 10), 1), delivery(0, batch(40, 3), 2))
    assert await application.taken(5) == list(range(5)) and application.prefetch
    consumer = application.consumer
    other = next(iter(consumer.topics)).with_partition(0)
    await consumer.subscriptions.add_topic(other, 0)
    fake.peers[-1].send(delivery(1, batch(100, 40), 0), delivery(1, batch(140, 5), 1))
    await until(lambda: consumer.children[1].may_have_more())
    assert await application.taken(25) == list(range(5, 30))
    # From here on one entry of each in turns, or 32 messages of it.
    runs = [await application.taken(count) for count in (10, 32, 3, 8, 5)]
    assert runs == [
        list(range(30, 40)), list(range(100, 132)), list(range(40, 43)), list(range(132, 140)), list(range(140, 145)),
    ]  # fmt: skip
    assert application.take() is None


@pytest.mark.asyncio
async def test_prefetch_small_entries_together(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=400)
    application, child = Application(consumer), consumer.children[0]
    singles = [delivery(0, single_entry(b"%d" % number), number) for number in range(150)]
    fake.peers[-1].send(*singles, delivery(0, batch(150, 3), 150), delivery(0, batch(153, 1), 151))
    fake.peers[-1].send(*[delivery(0, single_entry(b"%d" % number), number) for number in range(154, 200)])
    # More than a few: no entry is decoded together with it.
    fake.peers[-1].send(delivery(0, batch(200, 50), 200))
    await until(lambda: child.queued_messages() == 250)
    assert await application.taken(1) == [0] and len(application.prefetch) == 128
    assert await application.taken(128) == list(range(1, 129)) and not application.prefetch
    # The next ones up to the permits that are due with message 199, which is dequeued by itself.
    assert await application.taken(1) == [129] and len(application.prefetch) == 69
    assert await application.taken(69) == list(range(130, 199))
    assert permits(fake) == [400]
    assert await application.taken(1) == [199]
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    assert await application.taken(2) == [200, 201]
    (place,) = consumer.dequeued_ids()
    assert (place.entry_id(), place.batch_index()) == (200, 1)
    assert child.queued_messages() == 48 and await application.taken(48) == list(range(202, 250))


@pytest.mark.asyncio
async def test_prefetch_small_entries_ack_by_bare_id(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url))
    application, child = Application(consumer), consumer.children[0]
    fake.peers[-1].send(*[delivery(0, batch(3 * number, 3), number) for number in range(4)])
    await until(lambda: child.queued_messages() == 12)
    assert await application.taken(6) == list(range(6)) and len(application.prefetch) == 6
    # Created elsewhere, the id has no batch size: that of the entry being dequeued is known, though later ones are
    # decoded.
    consumer.acknowledge_cumulative(MessageId(-1, 1, 1, 2))
    child.acks.flush()
    (ack,) = [each.command.ack for each in await asyncio.to_thread(fake.wait, Kind.ACK)]
    assert [(place.entryId, list(place.ack_set)) for place in ack.message_id] == [(1, [])]


@pytest.mark.asyncio
async def test_prefetch_unbatched_single_with_ack_timeout(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    application = Application(await subscribed(cores(fake.url), unacked_messages_timeout_ms=10_000))
    fake.peers[-1].send(*[delivery(0, single_entry(b"%d" % number), number) for number in range(5)])
    assert await application.taken(1) == [0] and not application.prefetch
    assert len(application.consumer.children[0].acks.unacked) == 1
    assert await application.taken(4) == [1, 2, 3, 4]


@pytest.mark.asyncio
async def test_prefetch_two_takers_of_topics_keep_order(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url))
    await consumer.subscriptions.add_topic(next(iter(consumer.topics)).with_partition(0), 0)
    first, second = Application(consumer), Application(consumer)
    for number in range(4):
        fake.peers[-1].send(delivery(0, batch(10 * number, 10), number))
        fake.peers[-1].send(delivery(1, batch(100 + 10 * number, 10), number))
    await until(lambda: all(child.queued_messages() == 40 for child in consumer.children))
    chance = random.Random(3)
    taken: list[int] = []
    # One thread holds on to a buffer while the other's dequeue makes another partition's the current one.
    held = consumer.prefetched
    while len(taken) < 80:
        if chance.random() < 0.3:
            held = consumer.prefetched
        if chance.random() < 0.5 and held:
            taken += values([held.popleft()])
        elif chance.random() < 0.2:
            message = consumer.dequeue()
            taken += values([message] if message is not None else [])
        else:
            taken += values([message for taker in (first, second) if (message := taker.take()) is not None])
    assert [number for number in taken if number < 100] == list(range(40))
    assert [number for number in taken if number >= 100] == list(range(100, 140))


@pytest.mark.asyncio
async def test_prefetch_ack_timeout_starts_at_first_message(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    consumer = await subscribed(
        cores(fake.url),
        consumer_type=ConsumerType.Shared,
        unacked_messages_timeout_ms=10_000,
        acknowledgment_group_time_ms=900,
    )
    application, acks = Application(consumer), consumer.children[0].acks
    fake.peers[-1].send(*[delivery(0, batch(10 * number, 10), number) for number in range(2)])
    messages = await application.messages(20)
    assert len(acks.unacked) == 2
    for message in messages[:10]:
        acks.fast_path.add(message)
    # Not in the group yet when the time of both entries is over: the acknowledged one is not redelivered.
    while len(acks.unacked):
        acks._unacked_tick()
    seen = await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    (asked,) = (each.command.redeliverUnacknowledgedMessages for each in seen)
    assert [place.entryId for place in asked.message_ids] == [1]


@pytest.mark.asyncio
async def test_prefetch_interleaved_calls_keep_order_and_count(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    chance = random.Random(5)
    consumer = await subscribed(cores(fake.url), receiver_queue_size=50)
    application, child = Application(consumer), consumer.children[0]
    count = first = 0
    while first < 3000:
        size = chance.choice((1, 2, 9, 40, 130))
        fake.peers[-1].send(delivery(0, batch(first, size), count))
        first, count = first + size, count + 1
    expected = 0

    def pause() -> None:
        consumer.pause(strict=True)
        assert application.take() is None
        consumer.resume()

    def put_back() -> None:
        nonlocal expected
        message = application.take()
        if message is not None:
            assert int(message.data()) == expected
            consumer.put_back([message])

    def rows() -> None:
        nonlocal expected
        taken = consumer.dequeue_slice(BatchBudget(chance.randrange(1, 60), 1 << 20))
        if taken is not None and taken[1] is not None:
            assert values(taken[1].messages()) == list(range(expected, expected + len(taken[1].messages())))
            expected += len(taken[1].messages())

    others = (
        pause,
        put_back,
        rows,
        child.has_queued,
        child.queued_messages,
        child.count_dequeued,
        consumer.dequeued_ids,
    )
    while expected < first:
        for _ in range(chance.randrange(1, 60)):
            message = application.take()
            if message is None:
                # Afterwards all that was sent has arrived.
                await consumer.client.partition_count(child.topic)
                break
            assert int(message.data()) == expected
            expected += 1
        chance.choice(others)()
    child.count_dequeued()
    assert application.take() is None and child.core.permits.to_return < child.core.permits.threshold
    await until(lambda: sum(permits(fake)) + child.core.permits.to_return == 50 + first)


# --- what the APIs note as acknowledged ----------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_ack_fast_path_groups_by_entry(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), acknowledgment_group_time_ms=50)
    application = Application(consumer)
    (pending,) = consumer.fast_acks.values()
    fake.peers[-1].send(*[delivery(0, batch(10 * number, 10), number) for number in range(4)])
    messages = await application.messages(40)
    shuffled = messages[:20]
    random.Random(1).shuffle(shuffled)
    missing = shuffled.pop(7)
    for message in [*shuffled, *messages[20:29], *messages[30:], *messages[30:33]]:
        pending.add(message)
    whole = {0, 1, 3} - {missing.message_id().entry_id()}
    await until(lambda: set(acked(fake)) == whole)
    pending.add(messages[29])
    await until(lambda: set(acked(fake)) == whole | {2})
    pending.add(missing)
    await until(lambda: sorted(acked(fake)) == [0, 1, 2, 3])
    assert consumer.children[0].acks.sent == 40


@pytest.mark.asyncio
async def test_ack_fast_path_close_sends_first(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), acknowledgment_group_time_ms=900)
    application = Application(consumer)
    (pending,) = consumer.fast_acks.values()
    fake.peers[-1].send(delivery(0, batch(0, 2), 0), delivery(0, batch(2, 1), 1))
    messages = await application.messages(3)
    for message in messages[:2]:
        pending.add(message)
    (report,) = await consumer.close()
    assert acked(fake) == [0] and (report.acks_sent, report.acks_left) == (2, 0)
    with pytest.raises(AlreadyClosed):
        pending.add(messages[2])
    assert len(pending) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "options",
    [
        {"ack_receipt_enabled": True},
        {"acknowledgment_group_time_ms": 0},
        {"acknowledgment_group_time_ms": 60_000},
        {"max_acknowledgment_group_size": 10},
    ],
)
async def test_ack_fast_path_off_with_consequences(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, options: dict[str, Any]
) -> None:
    consumer = await subscribed(cores(fake.url), **options)
    assert not consumer.fast_acks


@pytest.mark.asyncio
async def test_fork_clears_buffers(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    application = Application(await subscribed(cores(fake.url)))
    fake.peers[-1].send(delivery(0, batch(0, 30), 0))
    assert await application.taken(5) == list(range(5)) and application.prefetch
    application.consumer.clear_after_fork()
    assert not application.prefetch and not application.consumer.fast_acks
