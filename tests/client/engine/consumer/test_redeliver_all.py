"""Redelivery of everything where the cursor is moved: when the request is written, and when permits follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.redeliver_all import RedeliverAll
from pulsar_native.exceptions import NotConnected
from pulsar_native.message_id import MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.clock import LoopClock
from support.consumer_contexts import ConsumerState, Written
from support.consumer_cores import LEDGER, command, core_of
from support.entry_bytes import batch_entry, single_entry
from support.until import until

NOTHING_YET = MessageId(-1, LEDGER, -1)


class Rewinding:
    """A consumer of an Exclusive subscription that is attached, and the broker's answers to it."""

    def __init__(self, queue_size: int = 10, *, is_durable: bool = True) -> None:
        self.state = ConsumerState()
        self.core, _ = core_of(queue_size, rewinds=True)
        self.is_active: bool | None = True
        self.last: Callable[[], MessageId] = lambda: NOTHING_YET
        self.looked = self.asked = self.reattached = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.rewind = RedeliverAll(
            self.state.context,
            self.core,
            ask_last=self.ask_last,
            is_active=lambda: self.is_active,
            write_outgoing=self.write_outgoing,
            look_again=self.look_again,
            reattach=self.reattach if is_durable else None,
        )
        self.core.begin_attachment()
        self.core.attached()
        self.write_outgoing()
        self.commands()

    async def ask_last(self, _connection: Connection) -> MessageId:
        self.asked += 1
        await self.answers.wait()
        return self.last()

    async def reattach(self, connection: Connection) -> None:
        assert connection is self.state.connection
        self.reattached += 1
        self.core.detached()
        self.core.begin_attachment()
        self.core.attached()
        self.write_outgoing()

    def look_again(self) -> None:
        self.looked += 1

    def write_outgoing(self) -> None:
        frames, self.core.outgoing = self.core.outgoing, []
        if self.state.connection is not None:
            self.state.connection.write(frames)

    def commands(self) -> list[pb.BaseCommand]:
        assert self.state.connection is not None
        return self.state.connection.commands()

    def redeliver_all(self) -> None:
        with self.state.context.lock:
            self.core.redeliver_all()
            self.rewind.start()

    def arrive(self, entry: int) -> None:
        message = command(entry, epoch=0)
        if not self.core.append(message, single_entry(b"x")):
            self.core.return_outdated(message, single_entry(b"x"))


async def test_rewind_waits_for_the_end_of_the_topic() -> None:
    made = Rewinding()
    made.last = lambda: MessageId(-1, LEDGER, 1)
    made.arrive(0)
    made.redeliver_all()
    await until(lambda: made.asked >= 2)
    assert not made.commands()
    made.arrive(1)
    # Requested, answered by the broker, and then the permits that were withheld.
    await until(lambda: not made.core.permits.is_withheld)
    (request,) = made.commands()
    assert request.redeliverUnacknowledgedMessages.consumer_epoch == 1
    assert made.core.permits.outstanding() == 8 and not made.looked


async def test_rewind_at_once_when_permits_are_used_up() -> None:
    made = Rewinding(4)
    made.core.append(command(0, epoch=0), batch_entry([b"x"] * 4))
    made.redeliver_all()
    await until(lambda: not made.core.permits.is_withheld)
    request, flow = made.commands()
    assert request.HasField("redeliverUnacknowledgedMessages") and flow.flow.messagePermits == 4
    # Only behind the request.
    assert made.asked == 1


@pytest.mark.parametrize("is_active", [False, True])
async def test_rewind_of_inactive_or_empty_does_not_wait(is_active: bool) -> None:
    made = Rewinding()
    made.is_active = is_active
    made.last = lambda: NOTHING_YET if is_active else MessageId(-1, LEDGER, 5)
    made.redeliver_all()
    await until(lambda: not made.core.permits.is_withheld)
    assert [each.HasField("redeliverUnacknowledgedMessages") for each in made.commands()] == [True]


async def test_rewind_without_answer_attaches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock = Rewinding(), LoopClock(monkeypatch)
    # The topic goes on behind what has arrived, and the broker takes its time to read it.
    made.last = lambda: MessageId(-1, LEDGER, 9)
    made.redeliver_all()
    await clock.advance(2.5)
    assert not made.commands() and not made.reattached
    await clock.advance(1)
    # No request that the read might meet; the permits are those of the new attachment.
    (flow,) = made.commands()
    assert made.reattached == 1 and flow.flow.messagePermits == 10
    assert not made.core.permits.is_withheld and made.core.permits.outstanding() == 10


async def test_rewind_of_reader_written_after_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock = Rewinding(is_durable=False), LoopClock(monkeypatch)
    made.answers.clear()
    made.redeliver_all()
    await clock.advance(2.5)
    assert not made.commands()
    await clock.advance(1)
    assert len(made.commands()) == 1 and made.core.permits.is_withheld
    await clock.advance(4)
    assert not made.core.permits.is_withheld


async def test_rewind_requested_before_it_is_written_is_merged() -> None:
    made = Rewinding()
    made.answers.clear()
    made.redeliver_all()
    await until(lambda: made.asked == 1)
    made.redeliver_all()
    # Merged: it comes before the request is written.
    made.answers.set()
    await until(lambda: not made.core.permits.is_withheld)
    (request,) = made.commands()
    assert request.redeliverUnacknowledgedMessages.consumer_epoch == 2


async def test_rewind_requested_before_the_answer_is_repeated() -> None:
    made = Rewinding()

    def last() -> MessageId:
        if made.asked == 2:
            # The first question was for the end of the topic, this one is behind the request.
            made.redeliver_all()
        return NOTHING_YET

    made.last = last
    made.redeliver_all()
    await until(lambda: not made.core.permits.is_withheld)
    epochs = [each.redeliverUnacknowledgedMessages.consumer_epoch for each in made.commands()]
    assert epochs == [1, 2] and made.asked == 4


async def test_rewind_of_lost_connection_writes_nothing() -> None:
    made = Rewinding()
    made.answers.clear()
    made.redeliver_all()
    await until(lambda: made.asked == 1)
    made.state.connection = None
    made.core.detached()

    def fail() -> MessageId:
        raise NotConnected("lost")

    made.last = fail
    made.answers.set()
    await until(lambda: not made.core.permits.is_withheld)
    made.state.connection = Written()
    assert not made.commands()
    # The next attachment grants all permits.
    made.core.begin_attachment()
    made.core.attached()
    made.write_outgoing()
    (flow,) = made.commands()
    assert flow.flow.messagePermits == 10


async def test_rewind_with_queue_of_zero_wakes_receivers() -> None:
    made = Rewinding(0)
    made.redeliver_all()
    await until(lambda: made.looked)
    assert not made.core.permits.is_withheld
