"""Chunk assembler of a consumer, in virtual time: timer of incomplete messages, and what becomes of their chunks."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.consumer import chunk_assembler
from pulsar_native.engine.consumer.ack_grouping_tracker import AckGroupingTracker
from pulsar_native.engine.consumer.chunk_assembler import ChunkAssembler, assembly_of
from pulsar_native.enums import SubscriptionMode
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.chunk_assembly import ChunkedMessage
from pulsar_native.wire.entry import EntryKey, parse_entry
from support.clock import Clock, stopped_clock
from support.consumer_contexts import ConsumerState
from support.entry_bytes import single_entry


class Kept:
    """Acknowledgements of superseded chunks, and the chunks to be redelivered."""

    def __init__(self) -> None:
        self.left_over: list[EntryKey] = []
        self.watched: list[EntryKey] = []

    def add_left_over(self, keys: list[EntryKey]) -> None:
        self.left_over += keys

    def watch(self, key: EntryKey) -> None:
        self.watched.append(key)


class Chunks:
    """A chunk assembler whose messages expire after a minute."""

    def __init__(self, **options: int | bool | SubscriptionMode) -> None:
        config = ConsumerConfig(
            subscription_name="s",
            expire_time_of_incomplete_chunked_message_ms=60_000,
            **options,  # type: ignore[arg-type]
        )
        self.state = ConsumerState(config)
        self.acks = Kept()
        self.undecoded = False
        self.may_receive = True
        self.assembly = assembly_of(config)
        self.orphans: list[tuple[EntryKey, int]] = []
        acks = cast(AckGroupingTracker, self.acks)
        self.assembler = ChunkAssembler(
            self.state.context,
            self.assembly,
            acks,
            has_undecoded=lambda: self.undecoded,
            may_receive=lambda: self.may_receive,
            on_orphan=lambda entry, chunk_id: self.orphans.append((entry, chunk_id)),
        )

    def add(self, entry: int, chunk: int, uuid: str = "m", count: int = 2) -> ChunkedMessage | None:
        payload = single_entry(b"ab", uuid=uuid, chunk_id=chunk, num_chunks_from_msg=count, total_chunk_msg_size=4)
        parsed = parse_entry(payload)
        with self.state.context.lock:
            return self.assembler.assemble((7, entry), parsed, parsed.body)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return stopped_clock(monkeypatch, chunk_assembler)


def test_chunks_give_message_and_keep_its_entries(clock: Clock) -> None:
    chunks = Chunks()
    assert chunks.add(0, 0) is None
    message = chunks.add(1, 1)
    assert message is not None and bytes(message.body()) == b"abab" and message.first == (7, 0)
    assert list(chunks.assembly.delivered[(7, 1)]) == [(7, 0), (7, 1)]


def test_orphan_is_reported_and_no_other_chunk(clock: Clock) -> None:
    chunks = Chunks()
    chunks.add(0, 1, "headless")
    assert chunks.orphans == [((7, 0), 1)]
    for entry, chunk in ((1, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2)):
        chunks.add(entry, chunk, count=3)
    # Neither redelivered or superseded chunks, nor those of complete messages.
    assert chunks.orphans == [((7, 0), 1)]
    # One whose predecessor is missing.
    chunks.add(6, 0, "gap", count=3)
    chunks.add(7, 2, "gap", count=3)
    assert chunks.orphans == [((7, 0), 1), ((7, 7), 2)]


def test_incomplete_message_expires_and_is_acknowledged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    chunks = Chunks()
    chunks.add(0, 0)
    clock.advance(61)
    with caplog.at_level(logging.WARNING, "pulsar_native.consumer"):
        assert chunks.state.run_timer() == pytest.approx(60)
    assert "1 chunked messages" in caplog.text and "c of" in caplog.text
    assert chunks.acks.left_over == [(7, 0)] and not chunks.acks.watched
    # Nothing is left to expire; the next incomplete message starts the timer again.
    assert not chunks.state.timers and chunks.add(1, 1) is None
    chunks.add(2, 0, "other")
    assert len(chunks.state.timers) == 1


def test_nothing_expires_before_deliveries_are_decoded(clock: Clock) -> None:
    chunks = Chunks()
    chunks.add(0, 0)
    chunks.undecoded = True
    clock.advance(61)
    chunks.state.run_timer()
    # Looked at again soon: the missing chunk may be the delivery.
    ((seconds, _),) = chunks.state.timers
    assert seconds == pytest.approx(0.05)
    assert chunks.add(1, 1) is not None


def test_nothing_expires_while_no_chunk_can_come(clock: Clock) -> None:
    chunks = Chunks()
    chunks.add(0, 0)
    chunks.may_receive = False
    for _ in range(3):
        clock.advance(61)
        assert chunks.state.run_timer() == pytest.approx(60)
    # From then on it has its whole time again.
    chunks.may_receive = True
    clock.advance(59)
    chunks.state.run_timer()
    assert not chunks.acks.left_over and chunks.add(1, 1) is not None


def test_ages_restarted_count_from_then_on(clock: Clock) -> None:
    chunks = Chunks()
    chunks.add(0, 0)
    clock.advance(59)
    with chunks.state.context.lock:
        chunks.assembler.restart_ages()
    clock.advance(2)
    chunks.state.run_timer()
    ((seconds, _),) = chunks.state.timers
    assert seconds == pytest.approx(58) and not chunks.acks.left_over
    clock.advance(58)
    chunks.state.run_timer()
    assert chunks.acks.left_over == [(7, 0)]


@pytest.mark.parametrize("auto_ack", [True, False])
def test_chunks_of_an_ended_attachment_are_forgotten(clock: Clock, auto_ack: bool) -> None:
    chunks = Chunks(max_pending_chunked_message=1, auto_ack_oldest_chunked_message_on_queue_full=auto_ack)
    connection, chunks.state.connection = chunks.state.connection, None
    # Decoded from the queue when the connection is lost: they are delivered again.
    chunks.add(0, 0, "a")
    chunks.add(1, 0, "b")
    chunks.add(2, 0, "b")
    chunks.state.connection = connection
    chunks.add(3, 1, "b")
    assert not chunks.acks.left_over and not chunks.acks.watched


def test_reader_acknowledges_no_chunks(clock: Clock) -> None:
    chunks = Chunks(subscription_mode=SubscriptionMode.NonDurable, start_message_id=MessageId.earliest)
    chunks.add(0, 0)
    chunks.add(1, 0)
    clock.advance(61)
    chunks.state.run_timer()
    assert not chunks.assembly and not chunks.acks.left_over


def test_timer_is_for_the_oldest_message(clock: Clock) -> None:
    chunks = Chunks()
    chunks.add(0, 0)
    clock.advance(20)
    chunks.add(1, 0, "other")
    assert len(chunks.state.timers) == 1
    clock.advance(41)
    chunks.state.run_timer()
    ((seconds, _),) = chunks.state.timers
    assert seconds == pytest.approx(19)


def test_timer_ends_with_the_consumer(clock: Clock) -> None:
    chunks = Chunks()
    chunks.add(0, 0)
    chunks.state.is_alive = False
    chunks.state.run_timer()
    assert not chunks.state.timers


def test_too_many_incomplete_messages_drop_the_oldest(clock: Clock) -> None:
    chunks = Chunks(max_pending_chunked_message=1, auto_ack_oldest_chunked_message_on_queue_full=True)
    chunks.add(0, 0, "a")
    chunks.add(1, 0, "b")
    assert chunks.acks.left_over == [(7, 0)] and not chunks.acks.watched
    watching = Chunks(max_pending_chunked_message=1, auto_ack_oldest_chunked_message_on_queue_full=False)
    watching.add(0, 0, "a")
    watching.add(1, 0, "b")
    assert watching.acks.watched == [(7, 0)] and not watching.acks.left_over
