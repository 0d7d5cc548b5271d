"""Bulk sends on a fake broker: entries filled from slices, limits respected, an outcome for each row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pytest

from pulsar_native._message_builder import encoded_fields
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.producer.bulk_send import BulkSend, Slice, slice_size
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.enums import BatchingType
from pulsar_native.exceptions import BulkSendError, NotAllowedError, ProducerQueueIsFull, TopicTerminated
from pulsar_native.message import OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import split_batch
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.fake_broker import FakeBroker, Peer, failure, frame, swallow

Cores = Callable[..., ClientCore]
TOPIC = "persistent://public/default/t"


def rows(payloads: Sequence[bytes], keys: list[str | None] | None = None, alone: Iterable[int] = ()) -> Slice:
    """Return a slice of rows that have at most a key; those `alone` have a delivery time."""
    own, late = keys or [None] * len(payloads), frozenset(alone)
    messages = [
        OutgoingMessage(payload, partition_key=own[index], deliver_at=1 if index in late else None)
        for index, payload in enumerate(payloads)
    ]
    return Slice(list(payloads), None, keys, messages.__getitem__, late)


async def producer_of(core: ClientCore, **options: Any) -> TopicProducer:
    options = {"batching_enabled": True, "batching_max_messages": 4} | options
    return await core.create_producer(ProducerConfig(topic="t", **options), None)


async def sent(work: BulkSend) -> None:
    """Wait until every outcome of the rows that were pushed is known."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    work.flush_then(lambda: loop.call_soon_threadsafe(done.set_result, None))
    await asyncio.wait_for(done, 10)


def entries(fake: FakeBroker) -> list[list[bytes]]:
    """Return the payloads of each entry that was sent."""
    parsed = [parse_entry(seen.payload) for seen in fake.seen(Kind.SEND)]
    return [
        [bytes(each.body[start:stop]) for _, start, stop in split_batch(each.body, each.num_messages)]
        if each.is_batch
        else [bytes(each.body)]
        for each in parsed
    ]


async def test_bulk_fills_entries_and_tells_each_id(fake: FakeBroker, cores: Cores) -> None:
    work = BulkSend(await producer_of(cores(fake.url)))
    payloads = [b"%d" % number for number in range(10)]
    assert work.add_next(iter([rows(payloads)])) and work.push() is None
    await sent(work)
    assert entries(fake) == [payloads[:4], payloads[4:8], payloads[8:]]
    ids = work.result()
    assert [(each.entry_id(), each.batch_index()) for each in ids] == [
        (number // 4, number % 4) for number in range(10)
    ]
    assert work.confirmed == 10


async def test_bulk_row_in_open_batch_has_its_id(fake: FakeBroker, cores: Cores) -> None:
    producer = await producer_of(cores(fake.url), batching_max_publish_delay_ms=60_000)
    child = producer.route(b"", None)
    before: list[MessageId | None] = []
    for payload in (b"a", b"b"):
        assert child.enqueue(payload, b"", None, lambda _error, place: before.append(place)) is None
    work = BulkSend(producer)
    # One row alone makes no entry: it closes no batch of others.
    work.add(rows([b"c"]))
    assert work.push() is None
    await sent(work)
    assert entries(fake) == [[b"a", b"b", b"c"]]
    assert [(each.batch_index(), each.batch_size()) for each in [*before, *work.result()] if each] == [
        (0, 3), (1, 3), (2, 3),
    ]  # fmt: skip


async def test_bulk_key_based_rows_have_their_ids(fake: FakeBroker, cores: Cores) -> None:
    producer = await producer_of(
        cores(fake.url), batching_type=BatchingType.KeyBased, batching_max_publish_delay_ms=60_000
    )
    work = BulkSend(producer)
    payloads = [b"%d" % number for number in range(7)]
    messages = [OutgoingMessage(payload, partition_key=key) for payload, key in zip(payloads, "abababb", strict=True)]
    fields = [encoded_fields(message) for message in messages]
    work.add(Slice(payloads, fields, [*"abababb"], messages.__getitem__))
    assert work.push() is None
    await sent(work)
    built = entries(fake)
    assert built == [[b"0", b"2"], [b"1", b"3"], [b"4"], [b"5", b"6"]]
    ids = [(each.entry_id(), max(0, each.batch_index())) for each in work.result()]
    assert [built[entry][index] for entry, index in ids] == payloads


async def test_bulk_row_alone_has_its_own_entry(fake: FakeBroker, cores: Cores) -> None:
    work = BulkSend(await producer_of(cores(fake.url)))
    work.add(rows([b"a", b"b", b"c", b"d"], alone=[2]))
    assert work.push() is None
    await sent(work)
    assert [b"c"] in entries(fake) and sorted([*chain(*entries(fake))]) == [b"a", b"b", b"c", b"d"]


async def test_bulk_keys_keep_order_on_their_partition(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 2
    producer = await producer_of(cores(fake.url))
    keys: list[str | None] = [str(number % 5) for number in range(20)]
    work = BulkSend(producer)
    work.add(rows([b"%d" % number for number in range(20)], keys))
    assert work.push() is None
    await sent(work)
    of_id = {child.core.producer_id: child for child in producer.children}
    for child in producer.children:
        own = [
            int(payload)
            for seen, payloads in zip(fake.seen(Kind.SEND), entries(fake), strict=True)
            if of_id[seen.command.send.producer_id] is child
            for payload in payloads
        ]
        wanted = [n for n in range(20) if producer.route(b"", OutgoingMessage(b"", partition_key=str(n % 5))) is child]
        assert own == wanted and own


async def test_bulk_full_queue_continues_where_it_stopped(fake: FakeBroker, cores: Cores) -> None:
    good = fake.answers[Kind.SEND]
    fake.answers[Kind.SEND] = swallow
    producer = await producer_of(cores(fake.url), max_pending_messages=4)
    work = BulkSend(producer)
    work.add(rows([b"%d" % number for number in range(9)]))
    full = work.push()
    assert full is not None and isinstance(full.error, ProducerQueueIsFull)
    held = fake.wait(Kind.SEND, 2)
    fake.answers[Kind.SEND] = good
    for seen in held:
        seen.peer.send(*good(seen.peer, seen.command))
    while full is not None:
        woken = asyncio.Event()
        full.wait_for_room(woken.set)
        await asyncio.wait_for(woken.wait(), 10)
        full = work.push()
    await sent(work)
    assert [*chain(*entries(fake))] == [b"%d" % number for number in range(9)]
    assert len(work.result()) == 9


async def test_bulk_failure_sorts_rows_by_outcome(fake: FakeBroker, cores: Cores) -> None:
    good = fake.answers[Kind.SEND]

    def refuse_second(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if command.send.sequence_id != 4:
            return good(peer, command)
        # The broker names a batch by its last message.
        error = pb.CommandSendError(
            producer_id=command.send.producer_id, sequence_id=7, error=pb.NotAllowedError, message="no"
        )
        return [frame(Kind.SEND_ERROR, send_error=error)]

    fake.answers[Kind.SEND] = refuse_second
    work = BulkSend(await producer_of(cores(fake.url)))
    work.add(rows([b"%d" % number for number in range(8)]))
    assert work.push() is None
    await sent(work)
    # Nothing more is sent after the first failure.
    assert not work.add_next(iter([rows([b"late"])]))
    with pytest.raises(BulkSendError) as caught:
        work.result()
    error = caught.value
    assert (error.stored, error.unconfirmed, error.not_stored) == ((range(4),), (), (range(4, 8),))
    assert isinstance(error.__cause__, NotAllowedError) and error.topic == TOPIC and not error.retryable


async def test_bulk_closed_producer_leaves_rows_unconfirmed(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await producer_of(cores(fake.url))
    work = BulkSend(producer)
    work.add(rows([b"a", b"b", b"c", b"d"]))
    assert work.push() is None
    producer.abandon()
    await sent(work)
    with pytest.raises(BulkSendError) as caught:
        work.result()
    assert (caught.value.unconfirmed, caught.value.not_stored) == ((range(4),), ())


async def test_bulk_refused_reconnect_leaves_rows_unconfirmed(fake: FakeBroker, cores: Cores) -> None:
    """The broker may have stored what was written before; what was never written it has not."""
    fake.answers[Kind.SEND] = swallow
    producer = await producer_of(cores(fake.url), max_pending_messages=8)
    work = BulkSend(producer)
    work.add(rows([b"%d" % row for row in range(12)]))
    assert work.push() is not None
    (seen, _) = await asyncio.to_thread(fake.wait, Kind.SEND, 2)
    fake.answers[Kind.PRODUCER] = lambda _peer, command: [
        failure(command.producer.request_id, pb.TopicTerminatedError, "no more messages")
    ]
    seen.peer.close()
    await sent(work)
    with pytest.raises(BulkSendError) as caught:
        work.result()
    assert isinstance(caught.value.__cause__, TopicTerminated)
    assert (caught.value.stored, caught.value.unconfirmed) == ((), (range(8),))
    assert caught.value.not_stored == (range(8, 12),)


async def test_bulk_refused_resend_leaves_rows_unconfirmed(fake: FakeBroker, cores: Cores) -> None:
    """A broker that refuses the resent entry may have stored it before the connection was lost."""

    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        error = pb.CommandSendError(
            producer_id=command.send.producer_id, sequence_id=3, error=pb.NotAllowedError, message="no"
        )
        return [frame(Kind.SEND_ERROR, send_error=error)]

    fake.answers[Kind.SEND] = swallow
    work = BulkSend(await producer_of(cores(fake.url, starting_backoff_interval_ms=20)))
    work.add(rows([b"%d" % row for row in range(4)]))
    assert work.push() is None
    (seen,) = await asyncio.to_thread(fake.wait, Kind.SEND)
    fake.answers[Kind.SEND] = refuse
    seen.peer.close()
    await sent(work)
    with pytest.raises(BulkSendError) as caught:
        work.result()
    cause = caught.value.__cause__
    assert isinstance(cause, NotAllowedError) and cause.may_be_stored
    assert (caught.value.stored, caught.value.unconfirmed, caught.value.not_stored) == ((), (range(4),), ())


async def test_bulk_bad_first_item_raises_itself(fake: FakeBroker, cores: Cores) -> None:
    def broken() -> Iterator[Slice]:
        raise KeyError("of the application")
        yield

    work = BulkSend(await producer_of(cores(fake.url)))
    assert not work.add_next(broken())
    with pytest.raises(KeyError):
        work.result()


async def test_bulk_async_source_ends_and_fails(fake: FakeBroker, cores: Cores) -> None:
    async def source() -> AsyncIterator[Slice]:
        yield rows([b"a", b"b"])
        raise KeyError("of the application")

    work = BulkSend(await producer_of(cores(fake.url)))
    slices = source()
    assert await work.add_next_async(slices) and work.push() is None
    assert not await work.add_next_async(slices)
    await sent(work)
    with pytest.raises(BulkSendError) as caught:
        work.result()
    assert caught.value.stored == (range(2),) and "KeyError" in str(caught.value)


@pytest.mark.parametrize(("most", "size"), [(1, 1), (1000, 1000), (1 << 20, 10_000)])
def test_slice_size_is_an_entry(most: int, size: int) -> None:
    assert slice_size(ProducerConfig(topic="t", batching_max_messages=most)) == size
