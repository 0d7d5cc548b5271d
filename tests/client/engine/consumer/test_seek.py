"""Seek of a partition's consumer on a fake broker: requests, inclusive and exclusive positions, and deliveries that
cross the seek.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer import seek
from pulsar_native.engine.consumer.ack_receipts import completing
from pulsar_native.engine.consumer.close import close
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.enums import ConsumerType, SubscriptionMode
from pulsar_native.exceptions import BrokerMetadataError, NotConnected, PulsarException
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.entry_bytes import single_entry
from support.fake_broker import (
    MAXU,
    FakeBroker,
    Peer,
    consumer_stats,
    delivery,
    failure,
    frame,
    permits,
    success,
    swallow,
)
from support.fake_coordinators import Coordinators
from support.until import until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

READER: dict[str, Any] = {"subscription_mode": SubscriptionMode.NonDurable, "start_message_id": MessageId.earliest}
INCLUSIVE: dict[str, Any] = {"start_message_id_inclusive": True}
CLOSED_FOR_SEEK = frame(Kind.CLOSE_CONSUMER, close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=MAXU))


def place(entry: int, index: int = -1, size: int = 0, **options: Any) -> MessageId:
    return MessageId(-1, 1, entry, index, batch_size=size, **options)


async def partition(core: ClientCore, subscribed: Subscribed, topic: str = "t", **options: Any) -> PartitionConsumer:
    """Return the only partition's consumer of a topic; a timer of acknowledgements does not come in between."""
    options = {"acknowledgment_group_time_ms": 0, **options}
    (child,) = (await subscribed(core, topic, **options)).children
    return child  # type: ignore[no-any-return]


def seeks(fake: FakeBroker) -> list[pb.CommandSeek]:
    return [seen.command.seek for seen in fake.seen(Kind.SEEK)]


def acked(fake: FakeBroker) -> list[int]:
    return [data.entryId for seen in fake.seen(Kind.ACK) for data in seen.command.ack.message_id]


async def round_trip(child: PartitionConsumer) -> None:
    """Return when each side has processed what the other sent before."""
    await child.client.partition_count(TopicName.parse("another"))


async def take(child: PartitionConsumer, count: int) -> list[bytes]:
    """Return the next messages' contents; fails when they do not come."""
    found: list[Message] = []

    def enough() -> bool:
        while (message := child.dequeue()) is not None:
            found.append(message)
        return len(found) >= count

    await until(enough)
    return [message.data() for message in found]


async def available(child: PartitionConsumer) -> bool:
    """Return True if a message is queued, or the broker has one."""
    return child.has_queued() or await seek.end_ahead(child) is not None


def singles(*entries: int, epoch: int | None = None) -> bytes:
    """Return deliveries of one message each."""
    return b"".join(delivery(0, single_entry(b"%d" % entry), entry, epoch=epoch) for entry in entries)


# --- inclusive and exclusive ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "position", "words", "skipped"),
    [
        # Exclusive: a message behind which nothing of its entry is left counts as acknowledged.
        ({}, place(4), [], [4]),
        ({}, place(4, 0, 3), [0b110], []),
        ({}, place(4, 2, 3), [], [4]),
        # From elsewhere, without the batch's size: whether anything is left is not known.
        ({}, place(4, 2), [], []),
        ({}, MessageId.earliest, [], []),
        ({}, MessageId.latest, [], []),
        (INCLUSIVE, place(4), [], []),
        (INCLUSIVE, place(4, 1, 3), [0b110], []),
        (INCLUSIVE, place(4, 0, 3), [], []),
        # A reader starts behind the message by itself.
        (READER, place(4), [], []),
        (READER, place(4, 1, 3), [0b110], []),
        (READER, MessageId.latest, [], []),
    ],
    ids=[
        "entry",
        "batch-first",
        "batch-last",
        "batch-of-unknown-size",
        "earliest",
        "latest",
        "inclusive-entry",
        "inclusive-batch",
        "inclusive-batch-first",
        "reader-entry",
        "reader-batch",
        "reader-latest",
    ],
)
async def test_move_exclusive_acks_what_it_left_out(
    fake: FakeBroker,
    cores: Cores,
    subscribed: Subscribed,
    options: dict[str, Any],
    position: MessageId,
    words: list[int],
    skipped: list[int],
) -> None:
    child = await partition(cores(fake.url), subscribed, **options)
    await seek.move(child, position)
    await round_trip(child)
    (request,) = seeks(fake)
    assert list(request.message_id.ack_set) == words and acked(fake) == skipped
    asked = request.message_id
    expected = (position.ledger_id() % (MAXU + 1), position.entry_id() % (MAXU + 1))
    assert (asked.ledgerId, asked.entryId) == expected and not request.HasField("message_publish_time")
    # Acknowledged on the new attachment: the seek would have undone it.
    kinds = [seen.command.type for seen in fake.seen(Kind.SEEK, Kind.SUBSCRIBE, Kind.ACK)]
    assert kinds == [Kind.SUBSCRIBE, Kind.SEEK, Kind.SUBSCRIBE] + [Kind.ACK] * len(skipped)


class HeldSeeks:
    """Answers to SEEK that the test gives, one by one."""

    def __init__(self, fake: FakeBroker) -> None:
        self.requests: list[tuple[Peer, int]] = []
        fake.answers[Kind.SEEK] = self._hold

    def _hold(self, peer: Peer, command: pb.BaseCommand) -> list[bytes]:
        self.requests.append((peer, command.seek.request_id))
        return []

    def answer(self, number: int, *, refuse: bool = False) -> None:
        """Confirm or refuse one of the requests."""
        peer, request_id = self.requests[number]
        peer.send(failure(request_id, pb.MetadataError) if refuse else success(request_id))


async def test_second_move_waits_for_the_first(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed)
    held = HeldSeeks(fake)
    moves = [asyncio.ensure_future(seek.move(child, target)) for target in (place(3), 1234)]
    await until(lambda: held.requests)
    await round_trip(child)
    assert len(held.requests) == 1
    held.answer(0)
    await until(lambda: len(held.requests) == 2)
    held.answer(1)
    await asyncio.wait_for(asyncio.gather(*moves), 5)
    first, second = seeks(fake)
    assert (first.message_id.entryId, second.message_publish_time) == (3, 1234)


async def test_cancelled_seek_goes_on(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), "t", acknowledgment_group_time_ms=0)
    held = HeldSeeks(fake)
    moving = asyncio.ensure_future(consumer.seek(place(8)))
    await until(lambda: held.requests)
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    held.answer(0)
    # The last step of a seek: the message that is left out.
    await until(lambda: acked(fake) == [8])


async def test_cancelled_seek_that_fails_warns_of_nothing(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    consumer = await subscribed(cores(fake.url), "t")
    (child,) = consumer.children
    held, warned = HeldSeeks(fake), []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: warned.append(context))
    moving = asyncio.ensure_future(consumer.seek(place(8)))
    await until(lambda: held.requests)
    moving.cancel()
    peer, request_id = held.requests[0]
    peer.send(failure(request_id, pb.MetadataError))
    await until(lambda: not child.is_seeking)
    await round_trip(child)
    del moving
    gc.collect()
    assert warned == []


@pytest.mark.parametrize("durable", [True, False])
async def test_move_to_chunked_message_from_first_chunk(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, durable: bool
) -> None:
    child = await partition(cores(fake.url), subscribed, **({} if durable else READER))
    await seek.move(child, place(6, first_chunk=place(3)))
    await round_trip(child)
    (request,) = seeks(fake)
    assert request.message_id.entryId == 3
    # Exclusive: on a durable subscription all of its known chunks are done.
    assert acked(fake) == ([3, 6] if durable else [])


@pytest.mark.parametrize(("last", "sought"), [(7, [7]), (-1, [])])
async def test_move_reader_to_latest_inclusive_is_last(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, last: int, sought: list[int]
) -> None:
    fake.set_last(last % (MAXU + 1))
    child = await partition(cores(fake.url), subscribed, **READER, **INCLUSIVE)
    await seek.move(child, MessageId.latest)
    assert [each.message_id.entryId for each in seeks(fake) if each.HasField("message_id")] == sought


@pytest.mark.parametrize("inclusive", [True, False])
async def test_open_at_latest_inclusive_steps_back(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, inclusive: bool
) -> None:
    fake.set_last(7)
    latest = {**READER, "start_message_id": MessageId.latest, "start_message_id_inclusive": inclusive}
    await partition(cores(fake.url), subscribed, **latest)
    assert [each.message_id.entryId for each in seeks(fake)] == ([7] if inclusive else [])


def searched(fake: FakeBroker, mark: int | None, *, stored: int | None = MAXU) -> None:
    """Answer that there is no last id; a search's mark is `stored` first, and `mark` once it has sought."""

    def answer(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.getLastMessageId
        response = pb.CommandGetLastMessageIdResponse(
            request_id=asked.request_id, last_message_id=pb.MessageIdData(ledgerId=MAXU, entryId=MAXU)
        )
        entry = mark if any(each.consumer_id == asked.consumer_id for each in seeks(fake)) else stored
        if entry is not None:
            response.consumer_mark_delete_position.ledgerId = 1
            response.consumer_mark_delete_position.entryId = entry
        return [frame(Kind.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=response)]

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = answer


async def test_last_id_is_searched_where_broker_has_none(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    searched(fake, 7)
    child = await partition(cores(fake.url), subscribed, **READER)
    for _ in range(2):
        # Searched for once: a terminated topic has no further messages.
        assert (await seek.last_message_id(child)).entry_id() == 7
    (sought,) = seeks(fake)
    first, *search = [seen.command.subscribe for seen in fake.seen(Kind.SUBSCRIBE)]
    assert len(search) == 2 and not any(each.durable or each.force_topic_creation for each in search)
    assert {each.consumer_id for each in search} == {sought.consumer_id} != {first.consumer_id}
    assert all(each.subscription.startswith(f"{first.subscription}-last-") for each in search)
    await round_trip(child)
    assert [each.command.close_consumer.consumer_id for each in fake.seen(Kind.CLOSE_CONSUMER)] == [sought.consumer_id]
    # The topic may be another one after a lost connection.
    child.detached()
    assert child.searched_last is None


@pytest.mark.parametrize(
    ("mark", "stored", "sought"),
    [(MAXU, MAXU, 1), (7, 7, 0), (None, None, 0)],
    ids=["empty", "none-deliverable", "old-broker"],
)
async def test_search_finds_no_last_id_of_other_topics(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, mark: int | None, stored: int | None, sought: int
) -> None:
    searched(fake, mark, stored=stored)
    child = await partition(cores(fake.url), subscribed, **READER)
    assert [await seek.last_message_id(child) for _ in range(2)] == [MessageId.earliest] * 2
    assert len(seeks(fake)) == sought and len(fake.seen(Kind.SUBSCRIBE)) == 2 + sought


async def test_compacted_topic_is_not_searched(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    searched(fake, 7)
    fake.answers[Kind.CONSUMER_STATS] = lambda peer, command: [consumer_stats(command, backlog=8)]
    child = await partition(cores(fake.url), subscribed, **READER, is_read_compacted=True)
    assert await seek.last_message_id(child) == MessageId.earliest and not await available(child)
    assert not seeks(fake)


@pytest.mark.parametrize("backlog", [0, 8])
async def test_end_ahead_is_searched_with_backlog_only(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, backlog: int
) -> None:
    searched(fake, 7)
    fake.answers[Kind.CONSUMER_STATS] = lambda peer, command: [consumer_stats(command, backlog=backlog)]
    child = await partition(cores(fake.url), subscribed, **READER)
    assert await available(child) == bool(backlog)
    assert len(seeks(fake)) == bool(backlog)


async def test_refused_search_keeps_the_answer(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, caplog: pytest.LogCaptureFixture
) -> None:
    child = await partition(cores(fake.url), subscribed, **READER)
    fake.answers[Kind.SUBSCRIBE] = lambda peer, command: [
        failure(command.subscribe.request_id, pb.NotAllowedError, "too many subscriptions")
    ]
    for _ in range(2):
        assert await seek.last_message_id(child) == MessageId.earliest
    assert caplog.text.count("too many subscriptions") == 1
    await round_trip(child)
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1


async def test_failed_search_of_last_id_raises(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed, **READER)
    fake.answers[Kind.SUBSCRIBE] = lambda peer, command: [
        failure(command.subscribe.request_id, pb.UnknownError, "something is wrong")
    ]
    with pytest.raises(PulsarException, match="something is wrong"):
        await seek.last_message_id(child)
    await round_trip(child)
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1


def chunk(number: int) -> bytes:
    return single_entry(b"ab", uuid="m", chunk_id=number, num_chunks_from_msg=2, total_chunk_msg_size=4)


def starts(fake: FakeBroker) -> list[int]:
    """Return the entries of the starts that the last attachments had."""
    return [seen.command.subscribe.start_message_id.entryId for seen in fake.seen(Kind.SUBSCRIBE)][1:]


@pytest.mark.parametrize("queue", [1000, 1, 0])
async def test_latest_inclusive_in_chunks_from_first_chunk(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, queue: int
) -> None:
    fake.set_last(7)
    latest = {**READER, **INCLUSIVE, "start_message_id": MessageId.latest, "receiver_queue_size": queue}
    child = await partition(cores(fake.url), subscribed, **latest)
    # The broker's last id is that of the last chunk. The message behind it must not come before it.
    fake.peers[0].send(delivery(0, chunk(1), 7), singles(8))
    await until(lambda: not child.has_queued() and child.position.is_moving_back)
    assert child.dequeue() is None and seek.is_ahead(child, place(7))
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 3)
    assert starts(fake) == [7, 6] and [seen.command.type for seen in fake.seen(Kind.CLOSE_CONSUMER)]
    await until(lambda: child.is_connected)
    assert not child.position.is_moving_back and seek.is_ahead(child, place(7))
    fake.peers[0].send(delivery(0, chunk(0), 6), delivery(0, chunk(1), 7), singles(8))
    assert await take(child, 2) == [b"abab", b"8"]
    assert not seek.is_ahead(child, place(8))
    # An application's seek to latest does the same.
    await seek.move(child, MessageId.latest)
    fake.peers[0].send(delivery(0, chunk(1), 7))
    await until(lambda: not child.has_queued() and len(fake.seen(Kind.SUBSCRIBE)) == 5)
    assert starts(fake) == [7, 6, 7, 6]


async def test_latest_inclusive_without_first_chunk_goes_on(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    fake.set_last(1007)
    latest = {**READER, **INCLUSIVE, "start_message_id": MessageId.latest}
    child = await partition(cores(fake.url), subscribed, **latest)
    for attachments in (3, 4):
        fake.peers[0].send(delivery(0, chunk(1), 1007), singles(1008))
        await until(lambda: not child.has_queued() and len(fake.seen(Kind.SUBSCRIBE)) == attachments)  # noqa: B023
        await until(lambda: child.is_connected)
    assert starts(fake) == [1007, 1006, 6]
    # Left behind by its producer: the message behind it is the first one.
    fake.peers[0].send(delivery(0, chunk(1), 1007), singles(1008))
    assert await take(child, 1) == [b"1008"]


async def test_latest_inclusive_in_chunks_lost_connection(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    fake.set_last(7)
    latest = {**READER, **INCLUSIVE, "start_message_id": MessageId.latest}
    child = await partition(cores(fake.url, starting_backoff_interval_ms=20), subscribed, **latest)
    fake.answers[Kind.CLOSE_CONSUMER] = swallow
    fake.peers[0].send(delivery(0, chunk(1), 7), singles(8))
    await until(lambda: not child.has_queued() and fake.seen(Kind.CLOSE_CONSUMER))
    fake.peers[0].close(reset=True)
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 3)
    await until(lambda: child.is_connected)
    fake.peers[-1].send(delivery(0, chunk(0), 6), delivery(0, chunk(1), 7), singles(8))
    assert await take(child, 2) == [b"abab", b"8"] and starts(fake) == [7, 6]


async def test_seek_by_time_sends_time_only(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed)
    await seek.seek(child, None, 1234)
    (request,) = seeks(fake)
    assert request.message_publish_time == 1234 and not request.HasField("message_id")
    # The broker keeps the position of a durable subscription.
    assert not fake.seen(Kind.GET_LAST_MESSAGE_ID)


async def test_seek_of_reader_by_time_survives_unload(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.set_last(9, mark=4)
    child = await partition(cores(fake.url, starting_backoff_interval_ms=20), subscribed, **READER)
    await seek.seek(child, None, 1234)
    fake.peers[0].send(CLOSED_FOR_SEEK)
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 3)
    starts = [seen.command.subscribe.start_message_id.entryId for seen in fake.seen(Kind.SUBSCRIBE)]
    # The cursor, and with it the time, is gone: from behind the mark it had.
    assert starts == [MAXU, MAXU, 4]


async def test_seek_of_reader_by_time_outlasts_connection(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    fake.set_last(9, mark=4)
    child = await partition(cores(fake.url, starting_backoff_interval_ms=20), subscribed, **READER)
    answer = fake.answers[Kind.GET_LAST_MESSAGE_ID]

    def close(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        fake.answers[Kind.GET_LAST_MESSAGE_ID] = answer
        peer.close(reset=True)
        return []

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = close
    await asyncio.wait_for(seek.seek(child, None, 1234), 20)
    # The broker has forgotten the time with the connection.
    assert [each.message_publish_time for each in seeks(fake)] == [1234, 1234]
    assert child.position.start_entry() == (1, 4)


async def test_seek_of_reader_by_time_on_lost_connections(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seek, "_MOST_RETRIES", 1)
    child = await partition(cores(fake.url, starting_backoff_interval_ms=20), subscribed, **READER)

    def close(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        peer.close(reset=True)
        return []

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = close
    with pytest.raises(NotConnected, match="seek to a time"):
        await asyncio.wait_for(seek.seek(child, None, 1234), 20)
    assert len(seeks(fake)) == 2


async def test_seek_of_reader_by_time_without_mark(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed, **READER)
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = lambda _peer, command: [
        failure(command.getLastMessageId.request_id, pb.MetadataError)
    ]
    await seek.seek(child, None, 1234)
    assert child.is_connected and len(fake.seen(Kind.GET_LAST_MESSAGE_ID)) == 1


async def test_last_message_id_of_closing_consumer_asked_again(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    fake.set_last(9)
    child = await partition(cores(fake.url), subscribed, **READER)
    answer = fake.answers[Kind.GET_LAST_MESSAGE_ID]

    def refuse_first(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        # As in an unload, when the command that tells of it is still on the way.
        fake.answers[Kind.GET_LAST_MESSAGE_ID] = answer
        return [failure(command.getLastMessageId.request_id, pb.MetadataError, "Consumer not found")]

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = refuse_first
    assert (await seek.last_message_id(child)).entry_id() == 9


async def test_last_message_id_refused_for_good_raises(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seek, "_RETRY_SECONDS", 0.001)
    child = await partition(cores(fake.url), subscribed, **READER)
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = lambda _peer, command: [
        failure(command.getLastMessageId.request_id, pb.MetadataError)
    ]
    with pytest.raises(BrokerMetadataError):
        await seek.last_message_id(child)
    assert len(fake.seen(Kind.GET_LAST_MESSAGE_ID)) == 11


# --- deliveries, permits and acknowledgements that cross the seek -----------------------------------------------


@pytest.mark.parametrize("closes", [True, False])
async def test_seek_drops_deliveries_that_cross_it(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, closes: bool
) -> None:
    def crossing(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        closing = CLOSED_FOR_SEEK if closes else b""
        return [singles(1) + closing + singles(2) + success(command.seek.request_id) + singles(3)]

    fake.answers[Kind.SEEK] = crossing
    child = await partition(cores(fake.url, starting_backoff_interval_ms=60_000), subscribed, receiver_queue_size=2)
    fake.peers[0].send(singles(0))
    await until(child.may_have_more)
    # Without a back-off, since the broker closed it for the seek.
    await asyncio.wait_for(seek.seek(child, place(8)), 5)
    assert child.queued_messages() == 0 and child.dequeue() is None
    fake.peers[0].send(singles(8))
    assert await take(child, 1) == [b"8"]
    await round_trip(child)
    # Permits of the new attachment only: nothing is returned for what was dropped.
    assert permits(fake) == [2, 2, 1] and len(fake.seen(Kind.SUBSCRIBE)) == 2


async def test_seek_drops_deliveries_until_attached(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    # Without the CLOSE_CONSUMER that others send first.
    fake.answers[Kind.SEEK] = lambda _peer, command: [success(command.seek.request_id)]
    child = await partition(cores(fake.url), subscribed)
    answer, lookups = fake.answers[Kind.LOOKUP], len(fake.seen(Kind.LOOKUP))
    fake.answers[Kind.LOOKUP] = swallow
    moving = asyncio.ensure_future(seek.seek(child, place(8)))
    asked = (await asyncio.to_thread(fake.wait, Kind.LOOKUP, lookups + 1))[-1]
    fake.peers[0].send(singles(3))
    await round_trip(child)
    assert not child.may_have_more() and child.dequeue() is None
    fake.peers[0].send(*answer(fake.peers[0], asked.command))
    await asyncio.wait_for(moving, 5)
    assert child.is_connected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (READER, b"89"),
        ({}, b"8989"),
        (READER | {"consumer_type": ConsumerType.Shared}, b"8989"),
        (READER | {"consumer_type": ConsumerType.Failover}, b"8989"),
    ],
    ids=["reader", "durable", "shared", "failover"],
)
async def test_seek_of_reader_drops_what_comes_twice(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, options: dict[str, Any], expected: bytes
) -> None:
    child = await partition(cores(fake.url), subscribed, receiver_queue_size=2, **options)
    await seek.seek(child, place(7), inclusive=False)
    fake.peers[0].send(singles(7, 8, 9, 8, 9))
    assert b"".join(await take(child, len(expected))) == expected
    assert child.dequeue() is None


def read_acks(fake: FakeBroker) -> list[int]:
    """Return the entries up to which a reader has acknowledged."""
    assert all(seen.command.ack.ack_type == pb.CommandAck.Cumulative for seen in fake.seen(Kind.ACK))
    return acked(fake)


async def test_acknowledge_read_once_for_a_position(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url, starting_backoff_interval_ms=1), subscribed, **READER)
    child.acknowledge_read()
    fake.peers[0].send(singles(0, 1, 2))
    assert await take(child, 1) == [b"0", b"1", b"2"]
    fake.peers[0].send(singles(3, 4))
    await until(lambda: child.queued_messages() == 2)
    # More is queued.
    child.acknowledge_read()
    assert child.dequeue() is not None and child.dequeue() is not None
    for _ in range(3):
        child.acknowledge_read()
    await round_trip(child)
    assert read_acks(fake) == [4]
    # A new attachment has a new cursor, which starts with the last entry.
    fake.peers[0].close()
    await until(lambda: child.is_connected and child.attachment == 2)
    fake.peers[-1].send(singles(4))
    await until(child.may_have_more)
    for _ in range(3):
        child.acknowledge_read()
    await round_trip(child)
    assert read_acks(fake) == [4, 4] and child.dequeue() is None


async def test_acknowledge_read_never_crosses_seek(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    held = HeldSeeks(fake)
    child = await partition(cores(fake.url), subscribed, **READER)
    fake.peers[0].send(singles(5, 6))
    assert await take(child, 2) == [b"5", b"6"]
    moving = asyncio.ensure_future(seek.move(child, place(2)))
    await until(lambda: held.requests)
    child.acknowledge_read()
    held.answer(0)
    await asyncio.wait_for(moving, 5)
    child.acknowledge_read()
    await round_trip(child)
    assert read_acks(fake) == []
    fake.peers[0].send(singles(2, 3))
    assert await take(child, 1) == [b"3"]
    child.acknowledge_read()
    await round_trip(child)
    assert read_acks(fake) == [3]


async def test_reader_of_non_persistent_drops_nothing(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    # Its entries have no order by id.
    child = await partition(cores(fake.url), subscribed, "non-persistent://public/default/t", **READER)
    fake.peers[0].send(singles(5, 5, 4))
    assert b"".join(await take(child, 3)) == b"554"


async def test_seek_to_chunked_delivers_from_first_chunk(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    child = await partition(cores(fake.url), subscribed, **INCLUSIVE)
    await seek.move(child, place(6, first_chunk=place(3)))
    chunks = [
        single_entry(b"ab", uuid="m", chunk_id=number, num_chunks_from_msg=2, total_chunk_msg_size=4)
        for number in range(2)
    ]
    fake.peers[0].send(delivery(0, chunks[0], 3), singles(4), delivery(0, chunks[1], 6))
    assert await take(child, 2) == [b"4", b"abab"]


async def test_seek_forgets_unsent_acks(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed, acknowledgment_group_time_ms=60_000)
    child.acknowledge([place(1), place(2)])
    await seek.seek(child, place(1))
    fake.peers[0].send(singles(1, 2))
    # Acknowledged before, but to come again is what the seek is for.
    assert await take(child, 2) == [b"1", b"2"]
    assert child.acks.unsent() == 0 and acked(fake) == []


GROUPED = {"acknowledgment_group_time_ms": 60_000}
RECEIPTS = {"ack_receipt_enabled": True}
Acknowledge = Callable[[PartitionConsumer], object]


def acknowledge_first(child: PartitionConsumer) -> None:
    child.acknowledge([place(1)])


def acknowledge_by_timer(child: PartitionConsumer) -> None:
    acknowledge_first(child)
    child.acks.flush()


def acknowledge_left_over(child: PartitionConsumer) -> None:
    with child.lock:
        child.acks.add_left_over([(1, 1)])


WAYS = pytest.mark.parametrize(
    ("options", "acknowledge"),
    [
        ({}, acknowledge_first),
        ({}, lambda child: child.acknowledge_cumulative(place(1))),
        (GROUPED, acknowledge_by_timer),
        (GROUPED | {"max_acknowledgment_group_size": 1}, acknowledge_first),
        (RECEIPTS, acknowledge_first),
        ({}, acknowledge_left_over),
    ],
    ids=["at-once", "cumulative", "timer", "full-group", "receipt", "left-over-chunk"],
)


async def seeking(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, **options: Any
) -> tuple[PartitionConsumer, HeldSeeks, asyncio.Future[None]]:
    """Return a consumer whose SEEK has no answer yet, and its call."""
    held = HeldSeeks(fake)
    child = await partition(cores(fake.url, starting_backoff_interval_ms=20), subscribed, **options)
    moving = asyncio.ensure_future(seek.move(child, MessageId.earliest))
    await until(lambda: held.requests)
    return child, held, moving


@WAYS
async def test_ack_during_seek_is_dropped_with_it(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, options: dict[str, Any], acknowledge: Acknowledge
) -> None:
    child, held, moving = await seeking(fake, cores, subscribed, **options)
    acknowledge(child)
    await round_trip(child)
    held.answer(0)
    await asyncio.wait_for(moving, 5)
    await round_trip(child)
    assert acked(fake) == [] and child.acks.unsent() == 0


@WAYS
async def test_ack_during_refused_seek_follows_it(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, options: dict[str, Any], acknowledge: Acknowledge
) -> None:
    child, held, moving = await seeking(fake, cores, subscribed, **options)
    acknowledge(child)
    await round_trip(child)
    assert acked(fake) == []
    held.answer(0, refuse=True)
    with pytest.raises(PulsarException):
        await asyncio.wait_for(moving, 5)
    await until(lambda: acked(fake) == [1])
    assert len(fake.seen(Kind.SUBSCRIBE)) == 1


@WAYS
async def test_ack_during_seek_survives_connection(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, options: dict[str, Any], acknowledge: Acknowledge
) -> None:
    child, held, moving = await seeking(fake, cores, subscribed, **options)
    acknowledge(child)
    await round_trip(child)
    assert acked(fake) == []
    held.requests[0][0].close()
    with pytest.raises(PulsarException):
        await asyncio.wait_for(moving, 5)
    await until(lambda: acked(fake) == [1])
    kinds = [seen.command.type for seen in fake.seen(Kind.SEEK, Kind.SUBSCRIBE, Kind.ACK)]
    assert kinds == [Kind.SUBSCRIBE, Kind.SEEK, Kind.SUBSCRIBE, Kind.ACK]
    # The application seeks again: nothing is held any more.
    again = asyncio.ensure_future(seek.move(child, MessageId.earliest))
    await until(lambda: len(held.requests) == 2)
    held.answer(1)
    await asyncio.wait_for(again, 5)
    acknowledge(child)
    await until(lambda: acked(fake) == [1, 1])


async def test_receipt_during_seek_ends_with_it(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child, held, moving = await seeking(fake, cores, subscribed, **RECEIPTS)
    receipt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    child.acknowledge([place(1)], completing(receipt))
    await round_trip(child)
    assert not receipt.done()
    held.answer(0)
    with pytest.raises(NotConnected, match="seek"):
        await asyncio.wait_for(receipt, 5)
    await asyncio.wait_for(moving, 5)
    assert acked(fake) == []


async def test_ack_of_other_threads_never_follows_seek(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    held = HeldSeeks(fake)
    child = await partition(cores(fake.url), subscribed)
    stopped = threading.Event()

    def acknowledge_on() -> None:
        for entry in itertools.count():
            if stopped.is_set():
                return
            child.acknowledge([place(entry)])

    thread = threading.Thread(target=acknowledge_on)
    thread.start()
    try:
        await until(lambda: acked(fake))
        moving = asyncio.ensure_future(seek.move(child, MessageId.earliest))
        await until(lambda: held.requests)
        await round_trip(child)
    finally:
        stopped.set()
        await asyncio.to_thread(thread.join)
    await round_trip(child)
    kinds = [seen.command.type for seen in fake.seen(Kind.SEEK, Kind.ACK)]
    assert kinds[-1] == Kind.SEEK and Kind.ACK in kinds
    held.answer(0)
    await asyncio.wait_for(moving, 5)


@pytest.mark.parametrize("refused", [False, True])
async def test_transactional_ack_waits_for_seek(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, refused: bool
) -> None:
    Coordinators(fake)
    held = HeldSeeks(fake)
    core = cores(fake.url)
    work = await core.new_transaction(60.0)
    consumer = await subscribed(core, "t")
    (child,) = consumer.children
    moving = asyncio.ensure_future(seek.move(child, MessageId.earliest))
    await until(lambda: held.requests)
    acknowledging = asyncio.ensure_future(consumer.acknowledge_in(work, [place(1)]))
    await asyncio.to_thread(fake.wait, Kind.ADD_SUBSCRIPTION_TO_TXN)
    await round_trip(child)
    await round_trip(child)
    assert acked(fake) == []
    held.answer(0, refuse=refused)
    await asyncio.wait_for(asyncio.gather(moving, return_exceptions=True), 5)
    (seen,) = await asyncio.to_thread(fake.wait, Kind.ACK)
    response = pb.CommandAckResponse(consumer_id=child.consumer_id, request_id=seen.command.ack.request_id)
    held.requests[0][0].send(frame(Kind.ACK_RESPONSE, ackResponse=response))
    await asyncio.wait_for(acknowledging, 5)
    # The acknowledgement is the transaction's: it ends with that and not with the seek.
    kinds = [seen.command.type for seen in fake.seen(Kind.SEEK, Kind.SUBSCRIBE, Kind.ACK)]
    assert kinds == [Kind.SUBSCRIBE, Kind.SEEK] + [Kind.SUBSCRIBE] * (not refused) + [Kind.ACK]


@pytest.mark.parametrize("refused", [False, True])
async def test_nack_due_during_seek_waits_for_it(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    timers: list[str] = []
    call_later = PartitionConsumer.call_later

    def recorded(child: PartitionConsumer, seconds: float, function: Callable[[], None]) -> None:
        timers.append(function.__name__)
        call_later(child, seconds, function)

    monkeypatch.setattr(PartitionConsumer, "call_later", recorded)
    options = {"consumer_type": ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 1}
    child, held, moving = await seeking(fake, cores, subscribed, **options)
    child.negative_acknowledge(place(1))
    await round_trip(child)
    # No timer runs meanwhile.
    assert not timers and not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    held.answer(0, refuse=refused)
    await asyncio.wait_for(asyncio.gather(moving, return_exceptions=True), 5)
    if refused:
        await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    else:
        await round_trip(child)
        assert not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)


async def test_close_during_seek_sends_no_acks(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child, held, moving = await seeking(fake, cores, subscribed)

    def refuse_before(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return [failure(held.requests[0][1], pb.MetadataError), success(command.close_consumer.request_id)]

    fake.answers[Kind.CLOSE_CONSUMER] = refuse_before
    child.acknowledge([place(1)])
    report = await close(child)
    await asyncio.wait_for(asyncio.gather(moving, return_exceptions=True), 5)
    await round_trip(child)
    assert acked(fake) == [] and (report.acks_sent, report.acks_left) == (0, 1)


async def test_seek_keeps_epoch_of_redelivery(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed, receiver_queue_size=4)
    child.redeliver(None)
    await until(lambda: not child.core.permits.is_withheld)
    await seek.seek(child, place(5))
    epochs = [seen.command.subscribe.consumer_epoch for seen in fake.seen(Kind.SUBSCRIBE)]
    assert epochs == [0, 1]
    fake.peers[0].send(singles(4, epoch=0), singles(5, epoch=1))
    assert await take(child, 1) == [b"5"]


async def test_seek_during_redelivery_grants_permits_once(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    child = await partition(cores(fake.url), subscribed, receiver_queue_size=4)
    fake.peers[0].send(singles(0, 1))
    await take(child, 2)
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = swallow
    child.redeliver(None)
    asked = await asyncio.to_thread(fake.wait, Kind.GET_LAST_MESSAGE_ID)
    await seek.seek(child, place(0))
    # The question of the redelivery is answered only now.
    fake.set_last(1)
    fake.peers[0].send(*fake.answers[Kind.GET_LAST_MESSAGE_ID](fake.peers[0], asked[0].command))
    await until(lambda: not child.core.permits.is_withheld)
    await round_trip(child)
    # The second grant is of the first attachment: half the queue was received.
    assert sum(permits(fake)[-1:]) == 4 and child.core.permits.outstanding() == 4
    # Not of the new attachment, whose position is the sought one.
    assert not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True])
async def test_seek_refused_continues_where_it_was(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, closed: bool
) -> None:
    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return [(CLOSED_FOR_SEEK if closed else b"") + failure(command.seek.request_id, pb.MetadataError)]

    fake.answers[Kind.SEEK] = refuse
    child = await partition(cores(fake.url, starting_backoff_interval_ms=60_000), subscribed)
    with pytest.raises(PulsarException, match="as the test wants it"):
        await seek.move(child, place(3))
    await until(lambda: child.is_connected)
    await round_trip(child)
    # Closed by the broker although it failed: attached again, without the back-off.
    assert len(fake.seen(Kind.SUBSCRIBE)) == (2 if closed else 1) and acked(fake) == []
    assert not child.is_seeking


async def test_seek_of_lost_connection_raises(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    def hang_up(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        peer.close()
        return ()

    fake.answers[Kind.SEEK] = hang_up
    child = await partition(cores(fake.url, starting_backoff_interval_ms=20), subscribed)
    with pytest.raises(PulsarException):
        await seek.seek(child, place(3))
    await until(lambda: child.is_connected)
    fake.peers[1].send(singles(0))
    assert await take(child, 1) == [b"0"]


# --- positions --------------------------------------------------------------------------------------------------


async def test_last_and_mark_of_the_broker(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed)
    last, mark = await seek.last_and_mark(child)
    assert last.entry_id() == -1 and mark == MessageId.earliest
    fake.set_last(9, mark=4)
    last, mark = await seek.last_and_mark(child)
    assert (last.entry_id(), mark.entry_id()) == (9, 4) and last.topic_name() == "persistent://public/default/t"


async def test_end_ahead_by_last_id(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed, **READER)
    assert not await available(child)
    fake.set_last(1)
    assert await available(child)
    fake.peers[0].send(singles(0, 1))
    await until(lambda: child.queued_messages() == 2)
    # Queued: the broker needs not be asked.
    asked = len(fake.seen(Kind.GET_LAST_MESSAGE_ID))
    assert await available(child) and len(fake.seen(Kind.GET_LAST_MESSAGE_ID)) == asked
    await take(child, 2)
    assert not await available(child)


async def test_end_ahead_of_prefetched(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.set_last(1)
    child = await partition(cores(fake.url), subscribed, **READER)
    child.enable_prefetch()
    fake.peers[0].send(singles(0, 1))
    await until(lambda: len(child.core.all_deliveries) == 2)
    assert child.dequeue(10) is not None
    # Dequeued by the application without the consumer.
    assert len(child.core.prefetch.messages) == 1 and child.core.prefetch.messages.popleft()
    assert not await available(child)


async def test_end_ahead_non_persistent(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(
        cores(fake.url), subscribed, "non-persistent://public/default/t", consumer_type=ConsumerType.Shared
    )
    fake.set_last(1)
    assert not await available(child) and not fake.seen(Kind.GET_LAST_MESSAGE_ID)
