"""Ack grouping tracker of a consumer, without a connection: which commands are written, and at which timer."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsar_native.arrow.batch import EntryRange
from pulsar_native.config import ConsumerConfig, MultiplierRedeliveryBackoff
from pulsar_native.engine.consumer import ack_grouping_tracker
from pulsar_native.engine.consumer.ack_grouping_tracker import AckGroupingTracker
from pulsar_native.engine.consumer.chunk_assembler import assembly_of
from pulsar_native.enums import ConsumerType
from pulsar_native.exceptions import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidMessage,
    NotConnected,
    OperationNotSupported,
    PulsarException,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol import redelivered
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey
from support.clock import stopped_clock
from support.consumer_contexts import ConsumerState, Written
from support.consumer_cores import LEDGER, TOPIC, command, core_of
from support.entry_bytes import batch_entry, single_entry

INDIVIDUAL, CUMULATIVE = pb.CommandAck.Individual, pb.CommandAck.Cumulative
Places = list[tuple[int, list[int]]]


class Asked(Written):
    """Connection whose requests are answered by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[asyncio.Future[Any]] = []
        self.core = SimpleNamespace(protocol_version=21, forget=lambda _request_id: None)

    def begin_request(self, _request_id: int, frame: bytes) -> asyncio.Future[Any]:
        self.write([frame])
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


class Tracking:
    """A tracker, and what it has the consumer do."""

    def __init__(self, *, topic: str = TOPIC, **options: Any) -> None:
        self.state = ConsumerState(ConsumerConfig(subscription_name="s", **options))
        self.redelivered: list[list[EntryKey] | None] = []
        self.announced: list[tuple[str, list[EntryKey]]] = []
        self.sizes: dict[EntryKey, int] = {}
        self.chunks = assembly_of(self.state.config)
        context = dataclasses.replace(self.state.context, topic=TopicName.parse(topic), check_usable=self.check_usable)
        self.context = context
        self.tracker = AckGroupingTracker(
            context,
            self.chunks,
            None,
            redeliver=self.redelivered.append,
            on_redelivery=lambda why, entries: self.announced.append((why, entries)),
            batch_size_of=lambda key: self.sizes.get(key, 0),
            next_request_id=count().__next__,
        )

    def check_usable(self) -> None:
        if not self.state.is_alive:
            raise AlreadyClosed("closed")

    def sent(self) -> list[tuple[int, Places]]:
        """Return the acknowledgements written since the last call: type, and entries with their words."""
        assert self.state.connection is not None
        return [
            (each.ack.ack_type, [(data.entryId, list(data.ack_set)) for data in each.ack.message_id])
            for each in self.state.connection.commands()
        ]

    def timers(self) -> list[float]:
        return [seconds for seconds, _ in self.state.timers]


def key(entry: int) -> EntryKey:
    return LEDGER, entry


def place(entry: int, index: int = -1, size: int = 0, **options: Any) -> MessageId:
    return MessageId(-1, LEDGER, entry, index, batch_size=size, **options)


def messages_of(*entries: bytes) -> list[Message]:
    """Return the messages of entries 0, 1, …"""
    core, _ = core_of(100)
    core.begin_attachment()
    core.attached()
    for number, entry in enumerate(entries):
        core.append(command(number), entry)
    messages: list[Message] = []
    while (message := core.dequeue(0)) is not None:
        messages.append(message)
    return messages


# --- groups -----------------------------------------------------------------------------------------------------


def test_acks_of_group_time_sent_in_one_command() -> None:
    made = Tracking(acknowledgment_group_time_ms=250)
    for entry in (3, 1, 3):
        made.tracker.add(key(entry), -1, 0)
    assert made.sent() == [] and made.tracker.unsent() == 2
    assert made.state.run_timer() == 0.25
    assert made.sent() == [(INDIVIDUAL, [(3, []), (1, [])])] and made.tracker.sent == 2
    # Once more in case there are others, and no longer.
    assert made.state.run_timer() == 0.25
    assert made.sent() == [] and made.timers() == []
    made.tracker.add(key(4), -1, 0)
    assert made.timers() == [0.25]


def test_acks_of_full_group_sent_at_once() -> None:
    made = Tracking(max_acknowledgment_group_size=2)
    made.tracker.add(key(1), -1, 0)
    assert made.sent() == []
    made.tracker.add(key(2), -1, 0)
    assert made.sent() == [(INDIVIDUAL, [(1, []), (2, [])])]
    made.tracker.add_ids([place(3), place(4), place(5)])
    assert made.sent() == [(INDIVIDUAL, [(3, []), (4, []), (5, [])])]
    made.tracker.add_ranges([EntryRange(TOPIC, -1, LEDGER, 6, 10)])
    # A range is no reason for a command larger than a group.
    assert made.sent() == [(INDIVIDUAL, [(6, []), (7, [])]), (INDIVIDUAL, [(8, []), (9, [])])]
    assert made.tracker.unsent() == 1


def test_group_time_zero_sends_each_at_once() -> None:
    made = Tracking(acknowledgment_group_time_ms=0)
    for entry in (1, 2):
        made.tracker.add(key(entry), -1, 0)
        assert made.sent() == [(INDIVIDUAL, [(entry, [])])]
    assert made.timers() == []


def test_acks_without_connection_wait_for_one() -> None:
    made = Tracking()
    connection, made.state.connection = made.state.connection, None
    made.tracker.add(key(1), -1, 0)
    made.state.run_timer()
    assert made.tracker.unsent() == 1
    made.state.connection = connection
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(1, [])])]


def test_ack_timer_ends_with_the_consumer() -> None:
    made = Tracking()
    made.tracker.add(key(1), -1, 0)
    made.state.is_alive = False
    made.state.run_timer()
    assert made.timers() == [] and made.sent() == [] and made.tracker.unsent() == 1


def test_acks_of_non_persistent_topic_never_sent() -> None:
    made = Tracking(topic="non-persistent://public/default/t", acknowledgment_group_time_ms=0)
    told: list[PulsarException | None] = []
    made.tracker.add(key(0), -1, 0, told.append)
    made.tracker.add_ids([place(0)], told.append)
    made.tracker.add_cumulative(place(0), told.append)
    assert told == [None] * 3 and made.sent() == [] and made.tracker.unsent() == 0
    with pytest.raises(OperationNotSupported, match="not stored"):
        made.tracker.check_transactional(cumulative=False)
    assert not made.tracker.allows_fast_path


# --- batches and chunks -----------------------------------------------------------------------------------------


def test_batch_acked_when_all_its_messages_are() -> None:
    made = Tracking()
    made.tracker.add(key(1), 0, 2)
    assert made.timers() == [] and made.tracker.unsent() == 0
    made.tracker.add(key(1), 1, 2)
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(1, [])])] and made.tracker.sent == 2


def test_batch_index_ack_sends_the_words_left() -> None:
    made = Tracking(batch_index_ack_enabled=True)
    made.tracker.add(key(1), 0, 3)
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(1, [0b110])])]
    # A range of a batch: the messages of its bit set.
    made.tracker.add_ranges([EntryRange(TOPIC, -1, LEDGER, 1, 1, 3, 0b100)])
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(1, [0b010])])] and made.tracker.sent == 2


def test_batch_index_ack_lost_is_sent_again() -> None:
    made = Tracking(batch_index_ack_enabled=True)
    made.tracker.add(key(1), 0, 3)
    made.state.run_timer()
    made.state.run_timer()
    made.sent()
    with made.context.lock:
        made.tracker.resend(key(1))
        made.tracker.resend(key(2))
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(1, [0b110])])]


def test_ack_of_id_without_batch_size_finds_it() -> None:
    made = Tracking()
    # Unknown: not complete, since there may be more messages.
    made.tracker.add_ids([place(1, 0)])
    assert made.tracker.unsent() == 0
    made.sizes[key(2)] = 2
    made.tracker.add_ids([place(2, 0)])
    made.sizes.clear()
    # Known from the first one, even when another entry is being dequeued.
    made.tracker.add_ids([place(2, 1)])
    assert made.tracker.unsent() == 1
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(2, [])])]


def test_ack_of_chunked_message_covers_all_chunks() -> None:
    made = Tracking()
    made.chunks.delivered[key(4)] = (key(1), key(3), key(4))
    made.tracker.add(key(4), -1, 0)
    # By an id created elsewhere: its first chunk is all that is known of the others.
    made.tracker.add_ids([place(9, first_chunk=place(7))])
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(entry, []) for entry in (1, 3, 4, 7, 9)])]
    assert not made.chunks.delivered


def test_left_over_entries_acked_with_the_group() -> None:
    made = Tracking()
    with made.context.lock:
        made.tracker.add_left_over([key(1), key(2)])
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(1, []), (2, [])])]


def test_still_open_leaves_out_acked_messages() -> None:
    made = Tracking()
    core, _ = core_of()
    core.begin_attachment()
    core.append(command(0), batch_entry([b"0", b"1", b"2"]))
    core.has_queued()
    decoded = core._decoded
    assert decoded is not None
    assert [message.data() for message in made.tracker.still_open(decoded)] == [b"0", b"1", b"2"]
    made.tracker.add(key(0), 1, 3)
    assert [message.data() for message in made.tracker.still_open(decoded)] == [b"0", b"2"]
    made.tracker.add(key(0), -1, 3)
    assert made.tracker.still_open(decoded) == []


# --- cumulative -------------------------------------------------------------------------------------------------


def test_cumulative_ack_highest_sent_before_others() -> None:
    made = Tracking()
    made.tracker.add(key(9), -1, 0)
    for entry in (2, 5, 4):
        made.tracker.add_cumulative(place(entry))
    made.state.run_timer()
    assert made.sent() == [(CUMULATIVE, [(5, [])]), (INDIVIDUAL, [(9, [])])]


def test_cumulative_ack_in_batch_sends_words_left() -> None:
    made = Tracking()
    made.sizes[key(3)] = 3
    made.tracker.add_cumulative(place(3, 0))
    made.state.run_timer()
    assert made.sent() == [(CUMULATIVE, [(3, [0b110])])]


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_cumulative_ack_of_shared_subscription_raises(kind: ConsumerType) -> None:
    made = Tracking(consumer_type=kind)
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        made.tracker.add_cumulative(place(1))
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        made.tracker.check_transactional(cumulative=True)
    made.tracker.check_transactional(cumulative=False)
    assert made.tracker.unsent() == 0


def test_cumulative_ack_stops_before_open_chunks() -> None:
    made = Tracking()
    made.chunks.delivered[key(6)] = (key(3), key(6))
    made.tracker.add_cumulative(place(5, 1, 4))
    made.state.run_timer()
    # The message that began at entry 3 needs that chunk when it is redelivered.
    assert made.sent() == [(CUMULATIVE, [(2, [])])]
    assert made.tracker.up_to_in_transaction(place(5)) == [(LEDGER, 2, None, 0)]


# --- receipts ---------------------------------------------------------------------------------------------------


def test_done_without_receipts_called_at_once() -> None:
    made = Tracking()
    told: list[PulsarException | None] = []
    made.tracker.add(key(1), -1, 0, told.append)
    made.tracker.add_ids([place(2)], told.append)
    made.tracker.add_ranges([EntryRange(TOPIC, -1, LEDGER, 3, 3)], told.append)
    made.tracker.add_cumulative(place(4), told.append)
    assert told == [None] * 4 and not made.tracker.has_receipts


async def test_done_with_receipts_called_by_response() -> None:
    made = Tracking(ack_receipt_enabled=True)
    connection = made.state.connection = Asked()
    told: list[PulsarException | None] = []
    made.tracker.add(key(1), -1, 0, told.append)
    made.state.run_timer()
    assert [each.ack.HasField("request_id") for each in connection.commands()] == [True]
    await asyncio.sleep(0)
    assert told == []
    connection.answers[0].set_result(None)
    await asyncio.sleep(0)
    assert told == [None]
    # Of a part of a batch nothing is sent, so that there is nothing to wait for.
    made.tracker.add(key(2), 0, 2, told.append)
    assert told == [None, None]


async def test_receipts_of_lost_connection_sent_again() -> None:
    made = Tracking(ack_receipt_enabled=True)
    connection = made.state.connection = Asked()
    told: list[PulsarException | None] = []
    made.tracker.add(key(1), -1, 0, told.append)
    made.tracker.flush()
    assert made.tracker.unsent() == 0
    with made.context.lock:
        made.tracker.detached()
    assert made.tracker.unsent() == 1
    made.tracker.flush()
    connection.answers[1].set_result(None)
    await asyncio.sleep(0)
    assert told == [None] and len(connection.commands()) == 2


@pytest.mark.parametrize("ended", ["seek", "closed"])
async def test_receipts_pending_at_end_fail(ended: str) -> None:
    made = Tracking(ack_receipt_enabled=True)
    made.state.connection = Asked()
    told: list[PulsarException | None] = []
    made.tracker.add(key(1), -1, 0, told.append)
    made.tracker.flush()
    made.tracker.add(key(2), -1, 0, told.append)
    if ended == "seek":
        with made.context.lock:
            made.tracker.forget()
    else:
        made.tracker.stop(None)
    assert told == []
    await asyncio.sleep(0)
    assert [type(each) for each in told] == [NotConnected if ended == "seek" else AlreadyClosed] * 2


# --- fast path --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, True),
        ({"acknowledgment_group_time_ms": 1000}, True),
        ({"acknowledgment_group_time_ms": 1001}, False),
        ({"acknowledgment_group_time_ms": 0}, False),
        ({"max_acknowledgment_group_size": 999}, False),
        ({"ack_receipt_enabled": True}, False),
    ],
)
def test_fast_path_only_where_nothing_is_due_sooner(options: dict[str, Any], allowed: bool) -> None:
    assert Tracking(**options).tracker.allows_fast_path is allowed


def test_fast_path_gathered_by_the_timer() -> None:
    made = Tracking(batch_index_ack_enabled=True)
    messages = messages_of(batch_entry([b"0", b"1", b"2", b"3"]), single_entry(b"4"))
    for message in (messages[0], messages[1], messages[3], messages[4]):
        made.tracker.fast_path.add(message)
    assert made.tracker.fast_path.is_open and made.timers() == [0.1]
    assert len(made.tracker.entries) == 0 and made.tracker.unsent() == 2
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(1, []), (0, [0b0100])])]
    # Open until a whole group time brought nothing: then an acknowledgement starts the timer again.
    assert made.tracker.fast_path.is_open
    made.state.run_timer()
    assert not made.tracker.fast_path.is_open and made.timers() == []
    made.tracker.fast_path.add(messages[2])
    assert made.timers() == [0.1]


def test_fast_path_of_one_run_acks_those_messages() -> None:
    made = Tracking(batch_index_ack_enabled=True)
    messages = messages_of(batch_entry([b"0", b"1", b"2", b"3"]))
    for message in messages[1:3]:
        made.tracker.fast_path.add(message)
    made.tracker.flush()
    assert made.sent() == [(INDIVIDUAL, [(0, [0b1001])])]


def test_fast_path_closed_checks_the_consumer_again() -> None:
    made = Tracking()
    first, second, third = messages_of(single_entry(b"0"), single_entry(b"1"), single_entry(b"2"))
    made.tracker.fast_path.add(first)
    made.state.is_alive = False
    # Unseen as long as it is open.
    made.tracker.fast_path.add(second)
    made.tracker.close_fast_path()
    with pytest.raises(AlreadyClosed):
        made.tracker.fast_path.add(third)
    assert len(made.tracker.fast_path) == 2
    made.tracker.flush()
    assert made.sent() == [(INDIVIDUAL, [(0, []), (1, [])])]
    made.state.is_alive = True
    made.tracker.fast_path.add(third)
    made.tracker.stop(None)
    assert not made.tracker.fast_path.is_open


def test_fast_path_full_group_sent_by_catch_up() -> None:
    made = Tracking()
    for message in messages_of(*(single_entry(b"x") for _ in range(999))):
        made.tracker.fast_path.add(message)
    with made.context.lock:
        made.tracker.catch_up()
    assert made.sent() == []
    made.tracker.fast_path.add(*messages_of(*(single_entry(b"x") for _ in range(1000)))[999:])
    with made.context.lock:
        made.tracker.catch_up()
    assert [len(places) for _, places in made.sent()] == [1000]


# --- redelivery -------------------------------------------------------------------------------------------------


def test_nack_redelivered_after_its_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, ack_grouping_tracker)
    made = Tracking(negative_ack_redelivery_delay_ms=2000, negative_ack_redelivery_delay_precision=0)
    for entry in (3, 1, 2):
        made.tracker.negative_acknowledge(key(entry))
    assert made.state.notes == [("negative_acks", 1)] * 3
    # Redelivered no more, since it was acknowledged after all.
    made.tracker.add(key(2), -1, 0)
    ((seconds, timer), _) = made.state.timers
    assert seconds == pytest.approx(2, abs=0.002)
    made.state.timers.clear()
    clock.advance(1.9)
    timer()
    assert made.redelivered == [] and made.timers() == [pytest.approx(0.1, abs=0.002)]
    clock.advance(0.2)
    made.state.run_timer()
    assert made.redelivered == [[key(1), key(3)]] and made.timers() == []
    assert made.announced == [("on_negative_acks_send", [key(1), key(3)])]


def test_nack_without_connection_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, ack_grouping_tracker)
    made = Tracking(negative_ack_redelivery_delay_ms=1000)
    made.tracker.negative_acknowledge(key(1))
    connection, made.state.connection = made.state.connection, None
    clock.advance(2)
    made.state.run_timer()
    made.tracker.negative_acknowledge(key(2))
    # Due, and yet no timer runs while nothing can be sent.
    assert made.redelivered == [] and made.timers() == []
    made.state.connection = connection
    for _ in range(2):
        with made.context.lock:
            made.tracker.resume_nacks()
    assert made.state.run_timer() == 0.0
    assert made.redelivered == [[key(1)]]
    clock.advance(2)
    made.state.run_timer()
    assert made.redelivered == [[key(1)], [key(2)]]
    with made.context.lock:
        made.tracker.resume_nacks()
    assert made.timers() == []


@pytest.mark.parametrize(("kind", "kept"), [(ConsumerType.Shared, 3), (ConsumerType.Failover, 5)])
def test_reattached_entries_of_others_are_bounded(
    kind: ConsumerType, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivered, "KEPT", 3)
    made = Tracking(
        consumer_type=kind,
        unacked_messages_timeout_ms=2000,
        ack_timeout_redelivery_backoff=MultiplierRedeliveryBackoff(min_delay_ms=1000, max_delay_ms=5000),
    )
    assert made.tracker.late is not None
    for entry in range(5):
        # The rest goes to another consumer, whenever the connection is lost.
        made.tracker.add(key(entry), 0, 3)
        made.chunks.delivered[key(10 + entry)] = (key(entry), key(10 + entry))
        made.tracker.late.delivered(key(entry), 2)
        with made.context.lock:
            made.tracker.reattached()
    known = [entry for entry in range(5) if made.tracker.group.partial(key(entry)) is not None]
    assert known == list(range(5))[-kept:]
    assert list(made.chunks.delivered) == [key(10 + entry) for entry in known]
    assert not made.tracker.late._counts


def test_nack_follows_ack_of_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, ack_grouping_tracker)
    made = Tracking(negative_ack_redelivery_delay_ms=1000)
    (message,) = messages_of(single_entry(b"x"))
    made.tracker.fast_path.add(message)
    # Order of the calls: the negative acknowledgement is the last word.
    made.tracker.negative_acknowledge(key(0))
    clock.advance(2)
    made.tracker._nack_timer()
    assert made.redelivered == [[key(0)]]


class Delays:
    """Redelivery back-off with given delays in milliseconds, one each call, then 1000; an exception is raised."""

    def __init__(self, *delays: Any) -> None:
        self.delays = list(delays)

    def next(self, redelivery_count: int) -> float:
        delay = self.delays.pop(0) if self.delays else 1000
        if isinstance(delay, BaseException):
            raise delay
        return cast(float, delay)


@pytest.mark.proves("C147")
def test_nack_due_before_the_waiting_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, ack_grouping_tracker)
    made = Tracking(
        negative_ack_redelivery_backoff=Delays(600_000, 1000, 5000), negative_ack_redelivery_delay_precision=0
    )
    made.tracker.negative_acknowledge(key(1))
    assert made.timers() == [pytest.approx(600, abs=0.002)]
    made.tracker.negative_acknowledge(key(2))
    # The timer is replaced, not joined by another.
    assert made.timers() == [pytest.approx(1, abs=0.002)]
    made.tracker.negative_acknowledge(key(3))
    assert made.timers() == [pytest.approx(1, abs=0.002)]
    for seconds in (1.01, 4.01):
        clock.advance(seconds)
        made.state.run_timer()
    assert made.redelivered == [[key(2)], [key(3)]]
    assert made.timers() == [pytest.approx(594.98, abs=0.002)]


@pytest.mark.parametrize(
    "delay",
    [KeyError("no entry"), None, math.nan, math.inf, 10**400],
    ids=["exception", "none", "nan", "infinity", "huge"],
)
def test_nack_backoff_failing_spares_others(delay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, ack_grouping_tracker)
    made = Tracking(negative_ack_redelivery_backoff=Delays(delay), negative_ack_redelivery_delay_ms=30_000)
    for entry in (1, 2):
        made.tracker.negative_acknowledge(key(entry))
    clock.advance(2)
    made.state.run_timer()
    assert made.redelivered == [[key(2)]]
    clock.advance(30)
    made.state.run_timer()
    late = [] if delay in (math.inf, 10**400) else [[key(1)]]
    assert made.redelivered == [[key(2)], *late] and len(made.timers()) == 1 - len(late)


def test_nack_timer_survives_failed_redelivery(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, ack_grouping_tracker)
    made = Tracking(negative_ack_redelivery_backoff=Delays(1000, 5000))
    for entry in (1, 2):
        made.tracker.negative_acknowledge(key(entry))
    tried: list[list[EntryKey]] = []

    def interrupted(entries: list[EntryKey]) -> None:
        tried.append(entries)
        if len(tried) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(made.tracker, "_redeliver", interrupted)
    clock.advance(2)
    with pytest.raises(KeyboardInterrupt):
        made.state.run_timer()
    clock.advance(5)
    made.state.run_timer()
    assert tried == [[key(1)], [key(2)]]


def test_ack_timeout_redelivers_unacked_entries() -> None:
    made = Tracking(unacked_messages_timeout_ms=2000, unacked_messages_tick_ms=1000)
    made.tracker.start_unacked_timer()
    made.tracker.start_unacked_timer()
    assert made.timers() == [1.0]
    for entry in (1, 2, 3, 4):
        made.tracker.watch(key(entry))
    made.tracker.add_cumulative(place(1))
    made.tracker.add(key(3), -1, 0)
    ((_, tick), _) = made.state.timers
    made.state.timers.clear()
    tick()
    made.state.run_timer()
    assert made.redelivered == []
    made.state.run_timer()
    assert made.redelivered == [[key(2), key(4)]] and made.state.notes == [("ack_timeouts", 2)]
    assert made.announced == [("on_ack_timeout_send", [key(2), key(4)])]
    made.state.is_alive = False
    made.state.run_timer()
    assert made.timers() == []


def test_ack_timeout_backoff_ends_with_ack_or_nack(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, ack_grouping_tracker)
    backoff = MultiplierRedeliveryBackoff(min_delay_ms=5000, max_delay_ms=5000)
    made = Tracking(unacked_messages_timeout_ms=1000, ack_timeout_redelivery_backoff=backoff)
    assert made.tracker.late is not None
    made.tracker.start_unacked_timer()
    for entry in (1, 2, 3, 4):
        made.tracker.watch(key(entry))
    for _ in range(2):
        made.state.run_timer()
    assert len(made.tracker.late) == 4 and made.redelivered == []
    made.tracker.add_cumulative(place(1))
    made.tracker.add(key(2), -1, 0)
    made.tracker.negative_acknowledge(key(3))
    tick = made.state.timers[0][1]
    made.state.timers.clear()
    clock.advance(5)
    tick()
    assert made.redelivered == [[key(4)]]


@pytest.mark.parametrize("delay", [KeyError("no entry"), None, math.nan, "10"], ids=["exception", "none", "nan", "str"])
def test_ack_timeout_backoff_failing_no_delay(
    delay: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_clock(monkeypatch, ack_grouping_tracker)
    made = Tracking(unacked_messages_timeout_ms=1000, ack_timeout_redelivery_backoff=Delays(delay, 0))
    made.tracker.start_unacked_timer()
    for entry in (1, 2):
        made.tracker.watch(key(entry))
        for _ in range(2):
            made.state.run_timer()
    assert made.redelivered == [[key(1)], [key(2)]] and made.timers() == [1.0]
    assert "Consumer c of " in caplog.text and ": ack_timeout_redelivery_backoff failed" in caplog.text


def test_ack_timeout_survives_interrupt() -> None:
    made = Tracking(unacked_messages_timeout_ms=1000, ack_timeout_redelivery_backoff=Delays(KeyboardInterrupt(), 0))
    made.tracker.start_unacked_timer()
    made.tracker.watch(key(1))
    made.state.run_timer()
    with pytest.raises(KeyboardInterrupt):
        made.state.run_timer()
    made.tracker.watch(key(2))
    for _ in range(2):
        made.state.run_timer()
    assert made.redelivered == [[key(2)]]


def test_ack_timeout_kept_for_rest_of_batch() -> None:
    made = Tracking(unacked_messages_timeout_ms=2000)
    assert made.tracker.unacked is not None
    for entry in (1, 2):
        made.tracker.watch(key(entry))
    made.tracker.add_cumulative(place(2, 0, 2))
    assert len(made.tracker.unacked) == 1
    made.tracker.add_cumulative(place(2, 1, 2))
    assert len(made.tracker.unacked) == 0


def test_ack_timeout_ends_with_nack_and_seek() -> None:
    made = Tracking(unacked_messages_timeout_ms=2000)
    assert made.tracker.unacked is not None
    for entry in (1, 2, 3):
        made.tracker.watch(key(entry))
    made.tracker.negative_acknowledge(key(1))
    assert len(made.tracker.unacked) == 2
    made.tracker.add(key(9), -1, 0)
    with made.context.lock:
        made.tracker.forget()
    assert len(made.tracker.unacked) == 0 and made.tracker.unsent() == 0
    made.state.timers[0][1]()
    assert made.redelivered == []


# --- transactions -----------------------------------------------------------------------------------------------


def test_transaction_places_need_a_batch_size() -> None:
    made = Tracking()
    made.chunks.delivered[key(4)] = (key(1), key(4))
    assert made.tracker.places_of([place(2), place(3, 1, 2), place(4)]) == [
        (key(2), -1, 0),
        (key(3), 1, 2),
        (key(1), -1, 0),
        (key(4), -1, 0),
    ]
    with pytest.raises(InvalidMessage, match="no batch size"):
        made.tracker.places_of([place(5, 1)])
    made.sizes[key(5)] = 3
    assert made.tracker.places_of([place(5, 1)]) == [(key(5), 1, 3)]
    assert made.tracker.up_to_in_transaction(place(5, 1)) == [(LEDGER, 5, [0b100], 3)]
    assert made.tracker.up_to_in_transaction(place(5, 2)) == [(LEDGER, 5, None, 3)]


@pytest.mark.parametrize(("kind", "redelivered"), [(ConsumerType.Exclusive, [None]), (ConsumerType.Shared, [])])
def test_transaction_aborted_redelivers_where_ordered(kind: ConsumerType, redelivered: list[None]) -> None:
    made = Tracking(consumer_type=kind)
    made.tracker.transaction_ended({key(1): 1}, committed=False)
    assert made.redelivered == redelivered


def test_transaction_committed_completes_the_batch() -> None:
    made = Tracking()
    made.tracker.add(key(1), 0, 3)
    made.tracker.transaction_ended({key(1): 0b010, key(2): 1}, committed=True)
    assert made.tracker.unsent() == 0
    made.tracker.add(key(1), 2, 3)
    made.state.run_timer()
    assert made.sent() == [(INDIVIDUAL, [(1, [])])]


def test_transaction_ack_ends_timeout_of_whole_entry() -> None:
    made = Tracking(unacked_messages_timeout_ms=2000)
    assert made.tracker.unacked is not None
    for entry in (1, 2):
        made.tracker.watch(key(entry))
    items = [(LEDGER, 1, [0b10], 2), (LEDGER, 2, None, 2)]
    made.tracker.done_in_transaction({key(1): 0b01, key(2): 0b11}, items, 3)
    assert made.tracker.sent == 3 and len(made.tracker.unacked) == 1
    # The other message was acknowledged without a transaction.
    made.tracker.add(key(1), 1, 2)
    made.tracker.done_in_transaction({key(1): 0b01}, items[:1], 0)
    assert len(made.tracker.unacked) == 0


async def test_transaction_ack_of_closed_consumer_is_false() -> None:
    made = Tracking()
    connection: Any = Asked()
    asked = [asyncio.ensure_future(made.tracker.answered(connection, number, b"")) for number in range(2)]
    await asyncio.sleep(0)
    connection.answers[0].set_result(None)
    assert await asyncio.wait_for(asked[0], 10) is True
    with made.context.lock:
        made.tracker.detached()
    assert await asyncio.wait_for(asked[1], 10) is False
    failing = asyncio.ensure_future(made.tracker.answered(connection, 2, b""))
    await asyncio.sleep(0)
    connection.answers[2].set_exception(NotConnected("lost"))
    with pytest.raises(NotConnected):
        await asyncio.wait_for(failing, 10)
