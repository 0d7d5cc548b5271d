"""Consumer on a misbehaving broker: permits, damage, late copies, lost connections, failing seeks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer import ack_grouping_tracker, chunk_assembler, redeliver_all
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.enums import ConsumerType, SubscriptionMode
from pulsar_native.exceptions import AlreadyClosed, ConnectError, ConsumerBusy, NotConnected, PulsarException, Timeout
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.clock import LoopClock, stopped_clock
from support.entry_bytes import batch_entry, single_entry
from support.fake_broker import MAXU, FakeBroker, Peer, delivery, failure, frame, permits, swallow
from support.until import until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

FAST = {"starting_backoff_interval_ms": 20}
TOPIC = "persistent://public/default/t"


async def take(consumer: MultiTopicsConsumer, count: int = 1) -> list[Message]:
    """Return the next messages; fails when they do not come."""
    messages: list[Message] = []

    def enough() -> bool:
        while len(messages) < count and (message := consumer.dequeue()) is not None:
            messages.append(message)
        return len(messages) >= count

    await until(enough)
    return messages


async def round_trip(consumer: MultiTopicsConsumer) -> None:
    """Return when each side has processed what the other sent before: requests and answers keep their order."""
    await consumer.client.partition_count(TopicName.parse("another"))


async def nothing_comes(consumer: MultiTopicsConsumer) -> None:
    await round_trip(consumer)
    assert consumer.dequeue() is None


def acks(broker: FakeBroker) -> list[pb.CommandAck]:
    return [seen.command.ack for seen in broker.seen(Kind.ACK)]


def places(ack: pb.CommandAck) -> list[tuple[int, int]]:
    return [(data.ledgerId, data.entryId) for data in ack.message_id]


def deliver(broker: FakeBroker, *frames: bytes, peer: int = -1) -> None:
    broker.peers[peer].send(*frames)


def singles(first: int, last: int, consumer_id: int = 0) -> list[bytes]:
    """Return deliveries of one message each."""
    return [delivery(consumer_id, single_entry(b"%d" % number), number) for number in range(first, last)]


def close_consumer(consumer_id: int = 0) -> bytes:
    return frame(Kind.CLOSE_CONSUMER, close_consumer=pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=MAXU))


# --- permits ----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C120")
async def test_permits_returned_at_half_queue(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=100)
    deliver(fake, *singles(0, 100))
    await take(consumer, 49)
    await round_trip(consumer)
    assert permits(fake) == [100]
    await take(consumer, 1)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    deliver(fake, *singles(100, 260))
    await take(consumer, 210)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 6)
    assert permits(fake) == [100, 50, 50, 50, 50, 50]


@pytest.mark.asyncio
@pytest.mark.proves("C120")
async def test_permits_of_a_full_queue_written_together(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=10)
    batches = [batch_entry([b"%d" % number for number in range(10)]) for _ in range(3)]
    deliver(fake, *[delivery(0, batch, number) for number, batch in enumerate(batches)])
    await until(lambda: len(consumer.children[0].core.all_deliveries) == 3)
    await take(consumer, 19)
    await round_trip(consumer)
    # Ten messages are queued here: the broker, which has sent more than it may, would send nothing.
    assert permits(fake) == [10]
    await take(consumer, 6)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 6)
    assert permits(fake) == [10] + [5] * 5


@pytest.mark.asyncio
async def test_messages_that_arrive_together_as_one_by_one(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    consumer = await subscribed(cores(fake.url), consumer_type=ConsumerType.Shared)
    deliver(fake, b"".join(singles(0, 5)))
    assert [message.data() for message in await take(consumer, 5)] == [b"%d" % number for number in range(5)]
    consumer.pause(strict=True)
    deliver(fake, b"".join(singles(5, 8)))
    # Handed back as they arrive.
    await until(lambda: sum(len(each.message_ids) for each in redelivers(fake)) == 3)
    await nothing_comes(consumer)


@pytest.mark.asyncio
async def test_messages_that_arrive_together_outdated_dropped(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    consumer = await subscribed(cores(fake.url))
    core = consumer.children[0].core
    core.epoch = 2
    old = [delivery(0, single_entry(b"old"), number, epoch=1) for number in range(3)]
    deliver(fake, b"".join([*old, *singles(5, 7)]))
    assert [message.data() for message in await take(consumer, 2)] == [b"5", b"6"]
    assert core.permits.to_return == 5


@pytest.mark.asyncio
@pytest.mark.proves("C120")
@pytest.mark.parametrize(("size", "refill"), [(1, 1), (2, 1), (3, 1), (10, 5)])
async def test_permits_small_queue_never_zero(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, size: int, refill: int
) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=size)
    deliver(fake, *singles(0, 10))
    await take(consumer, 10)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 1 + 10 // refill)
    assert permits(fake) == [size] + [refill] * (10 // refill)


@pytest.mark.asyncio
@pytest.mark.proves("C120")
async def test_permits_count_filtered_messages(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=20)
    batch = batch_entry([b"%d" % number for number in range(10)])
    # A redelivery of a partly acknowledged batch costs only what is left, here the last three.
    deliver(fake, delivery(0, batch, 0), delivery(0, batch, 1, ack_set=[0b1110000000]))
    assert [message.data() for message in await take(consumer, 13)] == [b"%d" % n for n in (*range(10), 7, 8, 9)]
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    assert permits(fake) == [20, 10]
    compacted = batch_entry([b"%d" % number for number in range(10)], compacted_out=[0, 1, 2, 3, 4, 5, 6])
    deliver(fake, delivery(0, compacted, 2))
    assert [message.data() for message in await take(consumer, 3)] == [b"7", b"8", b"9"]
    # Three from before, and ten, of which seven were never seen.
    await asyncio.to_thread(fake.wait, Kind.FLOW, 3)
    assert permits(fake) == [20, 10, 10]


@pytest.mark.asyncio
@pytest.mark.proves("C121")
async def test_permits_not_returned_for_older_attachment(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    consumer = await subscribed(cores(fake.url, **FAST), receiver_queue_size=10)
    (child,) = consumer.children
    deliver(fake, *singles(0, 10))
    await take(consumer, 3)
    await until(child.may_have_more)
    deliver(fake, close_consumer())
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 2)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    # What was queued is dropped, as the broker delivers it again.
    assert consumer.dequeue() is None
    deliver(fake, *singles(3, 8))
    assert [message.data() for message in await take(consumer, 4)] == [b"3", b"4", b"5", b"6"]
    assert permits(fake) == [10, 10]
    await take(consumer, 1)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 3)
    assert permits(fake) == [10, 10, 5]


# --- what cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C124", "N5")
@pytest.mark.parametrize("broker", [None, pb.BrokerEntryMetadata(broker_timestamp=1, index=2)], ids=["plain", "broker"])
async def test_damaged_entry_acked_with_validation_error(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, broker: pb.BrokerEntryMetadata | None
) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=2)
    damaged = bytearray(batch_entry([b"x", b"y"], broker=broker))
    damaged[-1] ^= 1
    deliver(fake, delivery(0, bytes(damaged), 5), delivery(0, single_entry(b"next"), 6))
    (message,) = await take(consumer)
    assert message.data() == b"next"
    (seen,) = await asyncio.to_thread(fake.wait, Kind.ACK)
    assert seen.command.ack.validation_error == pb.CommandAck.ChecksumMismatch
    assert places(seen.command.ack) == [(1, 5)] and seen.command.ack.ack_type == pb.CommandAck.Individual
    await until(lambda: sum(permits(fake)) == 4)
    assert list(consumer.children[0].undecodable.discarded) == [MessageId(-1, 1, 5, -1)]


# --- late copies ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C128")
async def test_late_copy_of_acked_entry_dropped(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=4, acknowledgment_group_time_ms=60_000)
    deliver(fake, *singles(0, 4))
    messages = await take(consumer, 4)
    consumer.acknowledge([messages[2].message_id()])
    consumer.owner(messages[1].message_id()).acknowledge_cumulative(messages[1].message_id())
    deliver(fake, *singles(0, 5))
    assert [message.data() for message in await take(consumer, 2)] == [b"3", b"4"]
    # The copies left out gave their permits back.
    await until(lambda: sum(permits(fake)) == 4 + 4 + 4)
    assert acks(fake) == []


@pytest.mark.asyncio
@pytest.mark.proves("C135", "C128")
async def test_late_copy_of_batch_delivers_rest(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    consumer = await subscribed(cores(fake.url), acknowledgment_group_time_ms=1)
    batch = batch_entry([b"0", b"1", b"2"])
    deliver(fake, delivery(0, batch, 7))
    messages = await take(consumer, 3)
    consumer.acknowledge([messages[0].message_id()])
    # As the official client writes them, without the batch's size.
    consumer.acknowledge([MessageId(-1, 1, 7, 2)])
    await clock.advance(0.5)
    await round_trip(consumer)
    assert acks(fake) == []
    deliver(fake, delivery(0, batch, 7))
    (rest,) = await take(consumer)
    assert rest.data() == b"1"
    consumer.acknowledge([rest.message_id()])
    (seen,) = await asyncio.to_thread(fake.wait, Kind.ACK)
    assert places(seen.command.ack) == [(1, 7)] and not seen.command.ack.message_id[0].ack_set


@pytest.mark.asyncio
@pytest.mark.parametrize("cumulative", [True, False])
async def test_rewound_subscription_redelivers_acked(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, cumulative: bool
) -> None:
    # Somebody resets the cursor: the broker closes the consumer, and delivers from there when it is back.
    consumer = await subscribed(cores(fake.url, **FAST), acknowledgment_group_time_ms=0)
    deliver(fake, *singles(0, 4))
    messages = await take(consumer, 4)
    if cumulative:
        consumer.owner(messages[3].message_id()).acknowledge_cumulative(messages[3].message_id())
    else:
        consumer.acknowledge([message.message_id() for message in messages])
    await asyncio.to_thread(fake.wait, Kind.ACK)
    deliver(fake, close_consumer())
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    deliver(fake, *singles(1, 4))
    assert [message.data() for message in await take(consumer, 3)] == [b"1", b"2", b"3"]


# --- acknowledging ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C138")
async def test_ack_grouping_sends_few_frames(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), consumer_type=ConsumerType.Shared, acknowledgment_group_time_ms=100)
    for number in range(5000):
        consumer.acknowledge([MessageId(-1, 1, number)])
    await until(lambda: sum(len(ack.message_id) for ack in acks(fake)) == 5000)
    assert len(acks(fake)) <= 6
    assert [place for ack in acks(fake) for place in places(ack)] == [(1, number) for number in range(5000)]


@pytest.mark.asyncio
@pytest.mark.proves("C138", "C189")
async def test_close_sends_acks_and_wakes_receivers(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), acknowledgment_group_time_ms=60_000)
    woken: list[int] = []
    consumer.wait_then(lambda: woken.append(1))
    consumer.acknowledge([MessageId(-1, 1, 3)])
    consumer.owner(MessageId(-1, 1, 2)).acknowledge_cumulative(MessageId(-1, 1, 2))
    await consumer.close()
    kinds = [seen.command.type for seen in fake.seen(Kind.ACK, Kind.CLOSE_CONSUMER)]
    assert kinds == [Kind.ACK, Kind.ACK, Kind.CLOSE_CONSUMER]
    assert woken
    with pytest.raises(AlreadyClosed):
        consumer.dequeue()
    with pytest.raises(AlreadyClosed):
        consumer.acknowledge([MessageId(-1, 1, 4)])


@pytest.mark.asyncio
async def test_acks_during_outage_sent_before_permits(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url, starting_backoff_interval_ms=100), acknowledgment_group_time_ms=1)
    # A reset takes along what was not read yet.
    await asyncio.to_thread(fake.wait, Kind.FLOW)
    fake.peers[0].close(reset=True)
    await until(lambda: not consumer.is_connected)
    consumer.acknowledge([MessageId(-1, 1, 3)])
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    after = [seen.command.type for seen in fake.seen() if seen.peer.number == 1]
    assert after.index(Kind.SUBSCRIBE) < after.index(Kind.ACK) < after.index(Kind.FLOW)
    assert [places(ack) for ack in acks(fake)] == [[(1, 3)]]


@pytest.mark.asyncio
async def test_nack_during_outage_requested_after_it(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    options = {"consumer_type": ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 1}
    consumer = await subscribed(cores(fake.url, starting_backoff_interval_ms=100), **options)
    (child,) = consumer.children
    await asyncio.to_thread(fake.wait, Kind.FLOW)
    fake.peers[0].close(reset=True)
    await until(lambda: not consumer.is_connected)
    child.negative_acknowledge(MessageId(-1, 1, 3))
    await until(lambda: redelivers(fake))
    assert [data.entryId for request in redelivers(fake) for data in request.message_ids] == [3]


# --- redelivery -------------------------------------------------------------------------------------------------


def redelivers(broker: FakeBroker) -> list[pb.CommandRedeliverUnacknowledgedMessages]:
    seen = broker.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    return [each.command.redeliverUnacknowledgedMessages for each in seen]


@pytest.mark.asyncio
@pytest.mark.proves("C146")
async def test_nacks_close_together_make_one_request(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, loop_clock = stopped_clock(monkeypatch, ack_grouping_tracker), LoopClock(monkeypatch)

    async def advance(seconds: float) -> None:
        clock.advance(seconds)
        await loop_clock.advance(seconds)
        await round_trip(consumer)

    consumer = await subscribed(
        cores(fake.url, operation_timeout_seconds=600),
        consumer_type=ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=60_000,
    )
    # The three fall into one slice, of 256 ms or more, or into two; and two that follow each other are due together.
    (child,) = consumer.children
    for place in (MessageId(-1, 1, 5), MessageId(-1, 1, 3, 0), MessageId(-1, 1, 3, 1)):
        child.negative_acknowledge(place)
    await advance(59)
    assert redelivers(fake) == []
    await advance(2)
    (request,) = redelivers(fake)
    # By entry: the batch index counts for nothing.
    assert [(data.ledgerId, data.entryId) for data in request.message_ids] == [(1, 3), (1, 5)]
    await advance(300)
    assert len(redelivers(fake)) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C144")
async def test_redeliver_some_keeps_others_queued(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(
        cores(fake.url), consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    deliver(fake, *singles(0, 5))
    (first,) = await take(consumer)
    consumer.children[0].negative_acknowledge(first.message_id())
    await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert [message.data() for message in await take(consumer, 4)] == [b"1", b"2", b"3", b"4"]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=lambda kind: kind.name)
async def test_redeliver_all_sends_gathered_acks_first(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, kind: ConsumerType
) -> None:
    # Acknowledged, but not sent before the request, it would come again.
    consumer = await subscribed(cores(fake.url), consumer_type=kind, acknowledgment_group_time_ms=60_000)
    fake.set_last(2)
    deliver(fake, *singles(0, 3))
    first, *_ = await take(consumer, 3)
    consumer.acknowledge([first.message_id()])
    consumer.redeliver_all()
    await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    sent = [seen.command.type for seen in fake.seen(Kind.ACK, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)]
    assert sent == [Kind.ACK, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES]
    assert places(acks(fake)[0]) == [(1, 0)]


@pytest.mark.asyncio
@pytest.mark.proves("C145")
async def test_redeliver_all_empties_queue_drops_old(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=10)
    deliver(fake, *singles(0, 8))
    await take(consumer, 2)
    await until(lambda: len(consumer.children[0].core.all_deliveries) == 6)
    consumer.redeliver_all()
    (request,) = [seen.command.redeliverUnacknowledgedMessages
                  for seen in await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)]  # fmt: skip
    assert (len(request.message_ids), request.consumer_epoch) == (0, 1)
    # The six it threw away, and the two taken: the broker gives none back by itself.
    await until(lambda: sum(permits(fake)) == 18)
    # On their way when the request was made, and then what it asked for.
    deliver(fake, delivery(0, single_entry(b"old"), 8, epoch=0), delivery(0, single_entry(b"0"), 0, epoch=1))
    (message,) = await take(consumer)
    assert message.data() == b"0"
    await nothing_comes(consumer)


@pytest.mark.asyncio
@pytest.mark.proves("C96", "C142")
async def test_ack_timeout_requests_redelivery(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(
        cores(fake.url),
        consumer_type=ConsumerType.Shared,
        unacked_messages_timeout_ms=1000,
        unacked_messages_tick_ms=100,
        acknowledgment_group_time_ms=0,
    )
    deliver(fake, *singles(0, 3))
    started = time.monotonic()
    messages = await take(consumer, 3)
    consumer.acknowledge([messages[1].message_id()])
    (seen,) = await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert 0.99 <= seen.at - started < 1.6
    (request,) = redelivers(fake)
    assert [data.entryId for data in request.message_ids] == [0, 2]


# --- chunks -----------------------------------------------------------------------------------------------------


def chunk(number: int, entry: int | None = None) -> bytes:
    """Return the delivery of a chunk, by default entry of the same number, of a message of two."""
    fields = {"uuid": "m", "chunk_id": number, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
    return delivery(0, single_entry(b"%d" % number, **fields), number if entry is None else entry)


READER = {"subscription_mode": SubscriptionMode.NonDurable, "start_message_id": MessageId.earliest}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("stop", "go_on", "options"),
    [
        pytest.param(PartitionConsumer.detached, PartitionConsumer.reconnect, READER, id="reader"),
        pytest.param(PartitionConsumer.detached, PartitionConsumer.reconnect, {}, id="subscription"),
        # Its only permit was that of the chunk.
        pytest.param(lambda child: child.pause(strict=False), PartitionConsumer.resume, {}, id="pause"),
        pytest.param(
            lambda child: child.on_active_change(False),
            lambda child: child.on_active_change(True),
            {"consumer_type": ConsumerType.Failover},
            id="inactive",
        ),
    ],
)
async def test_chunks_expire_only_while_others_can_come(
    fake: FakeBroker,
    cores: Cores,
    subscribed: Subscribed,
    monkeypatch: pytest.MonkeyPatch,
    stop: Callable[[PartitionConsumer], None],
    go_on: Callable[[PartitionConsumer], None],
    options: dict[str, Any],
) -> None:
    clock = stopped_clock(monkeypatch, chunk_assembler)
    consumer = await subscribed(cores(fake.url, **FAST), receiver_queue_size=1, **options)
    (child,) = consumer.children
    deliver(fake, chunk(0))
    await until(child.may_have_more)
    stop(child)
    assert consumer.dequeue() is None and len(child.chunks) == 1
    clock.advance(61)
    child._chunk_assembler._timer()
    clock.advance(59)
    go_on(child)
    await until(lambda: child.is_connected and child.acks.unsent() == 0)
    # It has its whole time again; what the broker delivers again was dropped.
    clock.advance(59)
    child._chunk_assembler._timer()
    deliver(fake, chunk(0), chunk(1))
    assert [message.data() for message in await take(consumer)] == [b"01"]
    assert child.acks.unsent() == 0 and not acks(fake)


@pytest.mark.asyncio
async def test_reader_reattached_gets_a_complete_message_again(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    consumer = await subscribed(cores(fake.url, **FAST), **READER)
    (child,) = consumer.children
    around = [chunk(0, 0), *singles(1, 2), chunk(1, 2)]
    deliver(fake, *around)
    await until(lambda: len(child.core.all_deliveries) == 3)
    assert [message.data() for message in await take(consumer)] == [b"1"]
    # It is put together for this.
    assert await consumer.has_message_available()
    fake.peers[-1].close()
    await until(lambda: len(fake.seen(Kind.SUBSCRIBE)) == 2 and child.is_connected)
    start = fake.seen(Kind.SUBSCRIBE)[-1].command.subscribe.start_message_id.entryId
    deliver(fake, *around[start:], *singles(3, 4))
    assert [message.data() for message in await take(consumer, 2)] == [b"01", b"3"]


# --- connections ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C119", "C91")
async def test_reader_continues_behind_last_message(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(
        cores(fake.url, **FAST),
        subscription_mode=SubscriptionMode.NonDurable,
        start_message_id=MessageId.earliest,
        receiver_queue_size=100,
    )
    batch = batch_entry([b"a", b"b", b"c"])
    deliver(fake, *singles(0, 2), delivery(0, batch, 2), *singles(3, 6))
    assert [message.data() for message in await take(consumer, 4)] == [b"0", b"1", b"a", b"b"]
    fake.peers[0].close(reset=True)
    again = (await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 2))[-1].command.subscribe
    start = again.start_message_id
    assert (start.ledgerId, start.entryId, start.batch_index, again.durable) == (1, 2, 1, False)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    # The broker starts at the whole entry, inclusive.
    deliver(fake, delivery(0, batch, 2), *singles(3, 6))
    assert [message.data() for message in await take(consumer, 4)] == [b"c", b"3", b"4", b"5"]


@pytest.mark.asyncio
@pytest.mark.proves("C190")
async def test_consumer_closed_after_subscribe_reconnects(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    def and_close(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        done = frame(Kind.SUCCESS, success=pb.CommandSuccess(request_id=command.subscribe.request_id))
        return [done + (close_consumer() if len(fake.seen(Kind.SUBSCRIBE)) == 1 else b"")]

    fake.answers[Kind.SUBSCRIBE] = and_close
    consumer = await subscribed(cores(fake.url, **FAST))
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 2)
    await asyncio.to_thread(fake.wait, Kind.FLOW)
    deliver(fake, *singles(0, 1))
    assert [message.data() for message in await take(consumer)] == [b"0"]


@pytest.mark.asyncio
@pytest.mark.proves("C37")
async def test_exclusive_second_consumer_fails(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.SUBSCRIBE] = lambda peer, command: [failure(command.subscribe.request_id, pb.ConsumerBusy)]
    started = time.monotonic()
    with pytest.raises(ConsumerBusy) as caught:
        await subscribed(cores(fake.url))
    assert time.monotonic() - started < 2 and caught.value.topic == TOPIC


@pytest.mark.asyncio
@pytest.mark.proves("C155")
async def test_subscribe_all_partitions_or_none(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.partitions[TOPIC] = 3

    def refuse_one(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        request_id = command.subscribe.request_id
        if command.subscribe.topic.endswith("-1"):
            return [failure(request_id, pb.AuthorizationError)]
        return [frame(Kind.SUCCESS, success=pb.CommandSuccess(request_id=request_id))]

    fake.answers[Kind.SUBSCRIBE] = refuse_one
    with pytest.raises(PulsarException) as caught:
        await subscribed(cores(fake.url))
    assert caught.value.topic == f"{TOPIC}-partition-1"
    made = [seen.command.subscribe for seen in fake.seen(Kind.SUBSCRIBE)]
    closed = {seen.command.close_consumer.consumer_id for seen in fake.seen(Kind.CLOSE_CONSUMER)}
    assert closed == {command.consumer_id for command in made if not command.topic.endswith("-1")}


# --- seek and unsubscribe ---------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_seek_resubscribes_and_drops_queue(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url, starting_backoff_interval_ms=5000))
    deliver(fake, *singles(0, 5))
    await take(consumer, 2)
    started = time.monotonic()
    await consumer.seek(MessageId(-1, 1, 1, 1, batch_size=3))
    # The broker's CLOSE_CONSUMER is part of the answer and no outage: no back-off.
    assert time.monotonic() - started < 2
    asked = fake.seen(Kind.SEEK)[0].command.seek
    # What follows the message; the message itself is left out.
    assert list(asked.message_id.ack_set) == [0b100]
    assert consumer.dequeue() is None and len(fake.seen(Kind.SUBSCRIBE)) == 2
    deliver(fake, delivery(0, batch_entry([b"a", b"b", b"c"]), 1, ack_set=[0b100]))
    assert [message.data() for message in await take(consumer, 1)] == [b"c"]


@pytest.mark.asyncio
@pytest.mark.proves("C168")
async def test_has_message_available_unreadable_rest_is_false(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a seek by time the broker's mark tells what is left, and it does not move for what is thrown away."""
    # What does not arrive counts as a message.
    monkeypatch.setattr("pulsar_native.engine.consumer.multi_topics_consumer._ENTRY_SECONDS", 0.05)
    fake.set_last(5, mark=3)
    reader = await subscribed(
        cores(fake.url), subscription_mode=SubscriptionMode.NonDurable, start_message_id=MessageId.earliest
    )
    await reader.seek(1234)
    assert await reader.has_message_available()
    deliver(fake, delivery(0, single_entry(b"4"), 4))
    assert [message.data() for message in await take(reader)] == [b"4"]
    assert await reader.has_message_available()
    deliver(fake, delivery(0, single_entry(b"5")[:-1] + b"x", 5))
    await until(lambda: reader.children[0].may_have_more())
    assert not await reader.has_message_available()
    # Back at the time sought, it is all to come again.
    await reader.seek(1234)
    assert await reader.has_message_available()
    assert not fake.seen(Kind.SUBSCRIBE)[-1].command.subscribe.durable


@pytest.mark.asyncio
async def test_seek_refused_keeps_position(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.SEEK] = lambda peer, command: [failure(command.seek.request_id, pb.MetadataError)]
    consumer = await subscribed(cores(fake.url))
    deliver(fake, *singles(0, 2))
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.seek(1234)
    assert [message.data() for message in await take(consumer, 2)] == [b"0", b"1"]
    assert len(fake.seen(Kind.SUBSCRIBE)) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C171")
async def test_unsubscribe_refused_keeps_consumer_usable(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    fake.answers[Kind.UNSUBSCRIBE] = lambda peer, command: [failure(command.unsubscribe.request_id, pb.MetadataError)]
    consumer = await subscribed(cores(fake.url))
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.unsubscribe()
    deliver(fake, *singles(0, 1))
    assert [message.data() for message in await take(consumer)] == [b"0"]


@pytest.mark.asyncio
@pytest.mark.proves("C171")
async def test_unsubscribe_lost_connection_keeps_usable(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    def hang_up(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        peer.close()
        return ()

    fake.answers[Kind.UNSUBSCRIBE] = hang_up
    consumer = await subscribed(cores(fake.url, **FAST))
    with pytest.raises((ConnectError, NotConnected)):
        await consumer.unsubscribe()
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    deliver(fake, *singles(0, 1))
    assert [message.data() for message in await take(consumer)] == [b"0"]


@pytest.mark.asyncio
async def test_close_without_response_ends_in_time(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url, operation_timeout_seconds=0.3))
    fake.answers[Kind.CLOSE_CONSUMER] = swallow
    started = time.monotonic()
    await consumer.close()
    assert 0.29 <= time.monotonic() - started < 2
    with pytest.raises(Timeout):
        fake.answers[Kind.PARTITIONED_METADATA] = swallow
        await subscribed(cores(fake.url, operation_timeout_seconds=0.2))


@pytest.mark.parametrize("answered", [True, False])
async def test_redeliver_all_attaches_again_where_reads_are_slow(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    monkeypatch.setattr(redeliver_all, "_LIMIT_SECONDS", 0.1)
    fake.set_last(99)
    core = cores(fake.url, operation_timeout_seconds=1)
    consumer = await subscribed(core, receiver_queue_size=10)
    if not answered:
        fake.answers[Kind.CLOSE_CONSUMER] = swallow
    deliver(fake, *singles(0, 3))
    assert [message.data() for message in await take(consumer, 3)] == [b"0", b"1", b"2"]
    consumer.redeliver_all()
    # The entries that the broker is reading would be lost to a request now: it is never written.
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 2)
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1
    assert not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    await until(lambda: consumer.is_connected)
    deliver(fake, *singles(0, 10))
    assert [message.data() for message in await take(consumer, 10)] == [b"%d" % number for number in range(10)]
    await round_trip(consumer)
    # All permits of the new attachment, and what was dequeued since.
    assert permits(fake)[1] == 10
