"""Consumer state machine: permits, order, pauses, redelivery and seeks against a model of the broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulsar_native.arrow.entry_slice import BatchBudget
from pulsar_native.engine.memory_limit import MemoryLimit
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.consumer import ConsumerCore
from pulsar_native.protocol.entry_decoder import Delivery
from pulsar_native.protocol.permits import AutoScaledPermits
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.frames import Frame, FrameDecoder
from support.consumer_cores import LEDGER, BrokerTopic, PlainDecoding, command, core_of, written
from support.entry_bytes import batch_entry, single_entry


def frame_of(message: pb.CommandMessage, payload: bytes) -> Frame:
    return Frame(pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message), payload)


# --- against a model --------------------------------------------------------------------------------------------


class ConsumerModel(RuleBasedStateMachine):
    """A consumer against a broker: permits add up at every step, and no message is missing or out of order.

    Shared and Exclusive subscriptions are redelivered to; a reader continues behind its last message.
    """

    @initialize(
        kind=st.sampled_from(["shared", "exclusive", "reader"]),
        size=st.integers(1, 12),
        prefetches=st.sampled_from([0, 2, 1000]),
    )
    def start(self, kind: str, size: int, prefetches: int) -> None:
        self.kind = kind
        self.broker = BrokerTopic(rewinds=kind != "shared")
        self.core, self.decoding = core_of(
            size,
            durable=kind != "reader",
            start=MessageId.earliest if kind == "reader" else None,
            redelivers_entries=kind == "shared",
            rewinds=kind != "shared",
            in_order=kind == "reader",
        )
        self.prefetches = prefetches
        if prefetches:
            self.core.enable_prefetch()
        # Messages received since everything unacknowledged was redelivered, and the last ones, which may be put back.
        self.received: list[int] = []
        self.last: list[Message] = []
        self.handing_back = False
        self.attach()

    def synchronise(self) -> None:
        self.broker.apply(written(self.core))

    def synchronise_after_dequeue(self) -> None:
        """Write commands as the engine does after a dequeuing: not yet, if they may wait."""
        if not self.core.may_wait:
            self.synchronise()

    def attach(self) -> None:
        self.broker.permits = 0
        self.broker.transit.clear()
        # The consumer says it when it subscribes.
        self.broker.epoch = self.core.epoch
        start = self.core.begin_attachment()
        self.last = []
        first = 0
        if self.kind == "reader":
            assert start is not None
            first = max(0, start.entry_id())
        else:
            self.received = []
        self.broker.to_send.clear()
        self.broker.restart(range(first, len(self.broker.entries)))
        self.core.attached()
        self.synchronise()

    # --- the broker -------------------------------------------------------------------------------------------------

    @rule(count=st.integers(0, 6))
    def publish(self, count: int) -> None:
        self.broker.publish(count)

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        for _ in range(count):
            self.broker.send()

    @rule()
    def send_then_redeliver_all(self) -> None:
        """Request redelivery while entries are in transit."""
        self.publish(2)
        self.broker.send()
        if self.kind != "reader":
            self.redeliver_all()

    @rule(count=st.integers(1, 4))
    def arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.broker.transit))):
            message, payload, _ = self.broker.transit.popleft()
            if not self.core.append(message, payload):
                self.core.return_outdated(message, payload)
            elif self.core.is_held:
                self.core.hand_back(latest_only=True)
            self.synchronise()

    @precondition(lambda self: not self.core.is_held and not self.core.epoch)
    @rule(count=st.integers(2, 4))
    def arrive_together(self, count: int) -> None:
        arrived = [self.broker.transit.popleft() for _ in range(min(count, len(self.broker.transit)))]
        if arrived:
            assert self.core.append_all([frame_of(message, payload) for message, payload, _ in arrived])

    @rule()
    def reattach(self) -> None:
        self.core.detached()
        if self.core.permits.is_withheld:
            # The engine writes no request on another attachment.
            self.core.end_rewind()
        assert not written(self.core)
        self.attach()

    # --- the application --------------------------------------------------------------------------------------------

    def take(self, message: Message | None) -> bool:
        if message is None:
            return False
        self.received.append(int(message.data()))
        self.last.append(message)
        return True

    @rule(count=st.integers(1, 8))
    def dequeue(self, count: int) -> None:
        for _ in range(count):
            if self.core.prefetch.messages:
                self.take(self.core.prefetch.messages.popleft())
            else:
                found = self.take(self.core.dequeue(self.prefetches))
                self.synchronise_after_dequeue()
                if not found:
                    assert not self.core.may_have_more()
                    break

    @rule(most=st.integers(0, 2), count=st.integers(1, 8))
    def dequeue_what_fits(self, most: int, count: int) -> None:
        """Dequeue messages up to the first with more than `most` digits, which stays queued."""
        for _ in range(count):
            size = self.core.next_size()
            self.synchronise()
            if size is None or size > most:
                assert size is not None or not self.core.may_have_more()
                break
            message = self.core.dequeue(self.prefetches)
            assert self.take(message) and message is not None and len(message) == size
            self.synchronise_after_dequeue()

    @rule(rows=st.integers(1, 6))
    def dequeue_slice(self, rows: int) -> None:
        found = self.core.dequeue_slice(BatchBudget(rows, 1 << 20))
        if found is not None:
            entry, indexes = found
            numbers = self.broker.numbers(entry.entry_id)
            self.received += [numbers[index] for index in indexes]
            self.last = []
        self.synchronise_after_dequeue()

    @precondition(lambda self: self.last)
    @rule()
    def put_back(self) -> None:
        self.core.put_back(self.last)
        del self.received[len(self.received) - len(self.last) :]
        self.last = []

    @rule(strict=st.booleans())
    def pause(self, strict: bool) -> None:
        self.handing_back = self.core.pause(strict=strict) or self.handing_back
        self.synchronise()
        if strict:
            assert self.core.dequeue() is None and not self.core.prefetch.messages

    @precondition(lambda self: self.handing_back)
    @rule()
    def hand_back(self) -> None:
        self.handing_back = False
        self.core.hand_back()
        self.synchronise()

    @rule()
    def resume(self) -> None:
        self.core.resume()
        self.synchronise()

    @precondition(lambda self: self.kind != "reader")
    @rule()
    def redeliver_all(self) -> None:
        self.core.redeliver_all()
        self.received = []
        self.last = []
        self.synchronise()

    @precondition(lambda self: self.core.permits.is_withheld)
    @rule()
    def rewind(self) -> None:
        self.core.rewind()
        self.synchronise()
        self.core.end_rewind()
        self.synchronise()

    @precondition(lambda self: self.kind == "shared" and self.broker.entries)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        entry = data.draw(st.integers(0, len(self.broker.entries) - 1))
        if set(self.broker.numbers(entry)) <= set(self.received):
            self.broker.acknowledged.add(entry)
            self.decoding.acknowledged.add((LEDGER, entry))

    @precondition(lambda self: self.kind == "shared" and self.broker.entries)
    @rule(data=st.data())
    def drop_messages(self, data: st.DataObject) -> None:
        entry = data.draw(st.integers(0, len(self.broker.entries) - 1))
        self.core.drop_messages_of({(LEDGER, entry)})
        self.received = [number for number in self.received if number not in self.broker.numbers(entry)]
        self.last = []
        self.synchronise()
        self.broker.restart([entry])

    @precondition(lambda self: self.kind == "reader" and self.broker.entries)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        entry = data.draw(st.integers(0, len(self.broker.entries) - 1))
        self.core.on_seek(MessageId(-1, LEDGER, entry), MessageId(-1, LEDGER, entry), inclusive=True)
        self.core.detached()
        # Behind the entry, as this reader is not inclusive.
        self.received = list(range(self.broker.numbers(entry).stop))
        self.attach()

    # --- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def permits_add_up(self) -> None:
        waiting = len(self.core.outgoing)
        self.core.count_dequeued()
        if len(self.core.outgoing) > waiting:
            self.synchronise()
        transit = sum(cost for _, _, cost in self.broker.transit)
        queued = self.core.queued()[0]
        permits = self.core.permits
        frames = FrameDecoder().receive(b"".join(self.core.outgoing))
        unwritten = sum(frame.command.flow.messagePermits for frame in frames)
        assert self.broker.permits + transit + queued + permits.to_return + unwritten == permits.size
        if not permits.is_paused and not permits.is_withheld:
            assert permits.to_return < permits.threshold

    @invariant()
    def reader_has_order(self) -> None:
        if self.kind == "reader":
            assert self.received == list(range(len(self.received)))

    def teardown(self) -> None:
        """Deliver all there is: every message that is not acknowledged was received."""
        if not hasattr(self, "core"):
            return
        self.resume()
        if self.core.permits.is_withheld:
            self.rewind()
        for _ in range(20 * (len(self.broker.entries) + 1)):
            self.send(4)
            self.arrive(4)
            self.dequeue(8)
        missing = set(range(self.broker.published)) - set(self.received)
        acknowledged = {number for entry in self.broker.acknowledged for number in self.broker.numbers(entry)}
        assert missing <= acknowledged
        if self.kind == "exclusive":
            assert self.received == list(range(self.broker.published))
        assert self.decoding.counted >= 0


TestConsumerModel = ConsumerModel.TestCase


# --- deliveries -------------------------------------------------------------------------------------------------


def grants(core: ConsumerCore) -> list[int]:
    return [each.flow.messagePermits for each in written(core)]


def values(core: ConsumerCore) -> list[int]:
    found = []
    while (message := core.dequeue()) is not None:
        found.append(int(message.data()))
    return found


def attached(queue_size: int = 10, **options: Any) -> tuple[ConsumerCore, PlainDecoding]:
    core, decoding = core_of(queue_size, **options)
    core.begin_attachment()
    core.attached()
    return core, decoding


def batch(first: int, count: int) -> bytes:
    return batch_entry([b"%d" % number for number in range(first, first + count)])


def test_delivery_of_older_epoch_returns_its_permits() -> None:
    core, _ = attached(rewinds=True)
    core.append(command(0), batch(0, 3))
    core.redeliver_all()
    assert grants(core) == [10] and core.epoch == 1
    old, new = command(1, epoch=0), command(0, epoch=1)
    assert not core.append_all([frame_of(old, batch(3, 4))]) and not core.append(old, batch(3, 4))
    core.return_outdated(old, batch(3, 4))
    # Withheld until the cursor has moved: three were queued, four have just arrived.
    assert not core.outgoing
    core.rewind()
    core.end_rewind()
    request, flow = written(core)
    assert request.redeliverUnacknowledgedMessages.consumer_epoch == 1 and flow.flow.messagePermits == 7
    assert core.append(new, batch(0, 3)) and values(core) == [0, 1, 2]


def before_line(number: int, functions: Sequence[Callable[..., Any]], call: Callable[[], object]) -> Any:
    """Return a trace function that makes a call before the given line, of those run in the functions."""
    codes, left = {function.__code__ for function in functions}, number

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code not in codes:
            return None
        if event == "line":
            left -= 1
            if not left:
                sys.settrace(None)
                call()
        return trace

    return trace


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("prefetches", [False, True])
def test_redeliver_all_during_append_drops_it(together: bool, prefetches: bool) -> None:
    # The request of another thread, before each line of the loop's.
    lines = asked = 0
    while lines == asked:
        lines += 1
        core, _ = attached(rewinds=True)
        if prefetches:
            core.enable_prefetch()
            core.append(command(0, epoch=0), single_entry(b"0"))
            assert core.dequeue(10) is not None
        old = frame_of(command(5, epoch=0), single_entry(b"5"))

        def request(core: ConsumerCore = core) -> None:
            nonlocal asked
            asked += 1
            core.redeliver_all()

        before = sys.gettrace()
        sys.settrace(before_line(lines, [ConsumerCore.append, ConsumerCore.append_all], request))
        try:
            arrived = (together and core.append_all([old])) or core.append(old.command.message, old.payload)
        finally:
            sys.settrace(before)
        if asked < lines:
            break
        if not arrived:
            core.return_outdated(old.command.message, old.payload)
        assert core.append(command(5, epoch=1), single_entry(b"5"))
        found = []
        while (message := core.dequeue(10)) is not None:
            found.append(message.data())
        assert found == [b"5"], lines
        # At the broker all but the first, and the redelivery; none twice.
        assert core.permits.to_return == 2 + prefetches, lines
    assert asked > 3


def test_redeliver_all_of_growing_queue_counts_all() -> None:
    core, _ = attached(rewinds=True)
    for entry in (0, 1):
        core.append(command(entry, epoch=0), single_entry(b"x"))
    arriving = iter([2, 3])

    def arrive(_delivery: Delivery) -> int:
        # The loop goes on while another thread counts the permits.
        core.append(command(next(arriving), epoch=0), single_entry(b"x"))
        return 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Delivery, "undecoded_cost", arrive)
        core.redeliver_all()
    assert core.dequeue() is None and core.permits.to_return == 4


@pytest.mark.parametrize("scaled", [False, True])
def test_may_receive_while_the_broker_has_permits(scaled: bool) -> None:
    core, _ = core_of(1, scaled_within=MemoryLimit(100) if scaled else None)
    assert not core.may_receive()
    core.begin_attachment()
    core.attached()
    assert core.may_receive()
    # One that waits undecoded, one that is decoded, and one that is dequeued in a pause.
    core.append(command(0), single_entry(b"0"))
    assert not core.may_receive()
    assert core.has_queued() and not core.may_receive()
    core.pause(strict=False)
    assert core.dequeue() is not None and not core.may_receive()
    core.resume()
    assert core.may_receive()
    core.detached()
    assert not core.may_receive()


def test_redeliver_entries_names_each_once() -> None:
    core, _ = attached()
    written(core)
    core.redeliver_entries([(LEDGER, 1), (LEDGER, 0), (LEDGER, 1), *((LEDGER, 0) for _ in range(1000))])
    (request,) = written(core)
    assert [data.entryId for data in request.redeliverUnacknowledgedMessages.message_ids] == [1, 0]


def test_delivery_of_older_attachment_returns_no_permit() -> None:
    core, _ = attached(2)
    core.append(command(0), single_entry(b"0"))
    assert grants(core) == [2]
    core.detached()
    core.attachment += 1
    core.attached()
    assert grants(core) == [2] and core.dequeue() is None and core.permits.to_return == 0


def test_permits_may_wait_while_the_queue_is_full() -> None:
    core, _ = attached(10)
    assert grants(core) == [10]
    for entry in range(3):
        core.append(command(entry), batch(10 * entry, 10))
    waits = []
    for _ in range(30):
        assert core.dequeue() is not None
        waits.append(core.may_wait)
    # Twice ten messages wait undecoded, once ten, and then none: the last entry's permits are urgent.
    assert waits == [True] * 20 + [False] * 10
    assert grants(core) == [5] * 6


def test_detached_drops_unwritten_permits() -> None:
    core, _ = attached(10)
    for entry in range(3):
        core.append(command(entry), batch(10 * entry, 10))
    assert grants(core) == [10]
    for _ in range(5):
        core.dequeue()
    assert core.may_wait and core.outgoing
    core.detached()
    core.begin_attachment()
    core.attached()
    assert grants(core) == [10]


def test_delivery_acknowledged_or_redirected_returns_permits() -> None:
    core, decoding = attached(8)
    decoding.acknowledged.add((LEDGER, 0))
    decoding.redirected.add((LEDGER, 1))
    for entry, first in enumerate((0, 2, 4)):
        core.append(command(entry), batch(first, 2))
    assert values(core) == [4, 5] and grants(core) == [8, 4] and decoding.counted == 2


def test_delivery_partly_acknowledged_costs_what_is_open() -> None:
    core, _ = attached(4)
    core.append(command(0, words=[0b0110]), batch(0, 4))
    assert core.queued()[0] == 2
    assert values(core) == [1, 2] and grants(core) == [4, 2]


def test_delivery_undecodable_is_passed_on_and_counted() -> None:
    core, decoding = attached(2)
    core.append(command(0), b"\x0e\x01damaged")
    core.append(command(1), single_entry(b"1"))
    assert values(core) == [1] and decoding.undecodable == [(LEDGER, 0)] and grants(core) == [2, 1, 1]


def test_delivery_waits_in_order_for_private_key() -> None:
    core, decoding = attached()
    core.append(command(0), single_entry(b"0"))
    core.append(command(1), single_entry(b"1"))
    decoding.key_missing = True
    assert core.dequeue() is None and core.dequeue() is None and len(decoding.wanted) == 1
    assert not core.may_have_more() and core.has_undecoded
    decoding.key_missing = False
    core.on_key_fetched()
    assert core.may_have_more() and values(core) == [0, 1]


def test_interrupted_request_for_key_is_repeated() -> None:
    core, decoding = attached()
    core.append(command(0), single_entry(b"0"))
    decoding.key_missing = True

    def interrupted(_wanted: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "fetch_key", interrupted)
        with pytest.raises(KeyboardInterrupt):
            core.dequeue()
    assert core.may_have_more() and core.dequeue() is None and len(decoding.wanted) == 1


def test_core_broken_off_delivers_when_attached_again() -> None:
    core, decoding = attached()
    core.append(command(0), single_entry(b"0"))
    core.break_off()
    core.append(command(1), single_entry(b"1"))
    assert core.dequeue() is None and not core.may_have_more()
    core.begin_attachment()
    core.attached()
    core.append(command(0), single_entry(b"0"))
    assert values(core) == [0] and decoding.counted == 1


# --- interceptors, slices, pauses ---------------------------------------------------------------------------------


def test_arrivals_shown_in_order_and_prefetch_off() -> None:
    shown: list[int] = []

    def arriving(messages: list[Message]) -> list[Message]:
        shown.extend(int(each.data()) for each in messages)
        return messages

    core, _ = attached(arriving=arriving)
    core.enable_prefetch()
    core.append(command(0), batch(0, 2))
    core.append(command(1), batch(2, 2))
    core.open_arrived()
    assert shown == [0, 1, 2, 3] and not core.prefetch.messages
    # The entry being dequeued, though a later one is decoded already.
    assert core.dequeue() is not None
    assert [core.size_of((LEDGER, entry)) for entry in (0, 1)] == [2, 0]
    assert values(core) == [1, 2, 3] and core.size_of((LEDGER, 1)) == 2


def test_put_back_then_reattach_reader_starts_with_them() -> None:
    core, _ = core_of(durable=False, start=MessageId.earliest)
    core.begin_attachment()
    core.attached()
    core.append(command(0), batch(0, 4))
    taken = [message for message in (core.dequeue(), core.dequeue(), core.dequeue()) if message is not None]
    core.put_back(taken[1:])
    core.detached()
    assert core.begin_attachment() == MessageId(-1, LEDGER, 0, 1)
    core.attached()
    core.append(command(0), batch(0, 4))
    assert values(core) == [1, 2, 3]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_put_back_by_several_receivers_keeps_order(order: tuple[int, ...]) -> None:
    core, _ = core_of(durable=False, start=MessageId.earliest)
    core.begin_attachment()
    core.attached()
    core.append(command(0), batch(0, 4))
    taken = [message for _ in range(3) if (message := core.dequeue()) is not None]
    for number in order:
        core.put_back([taken[number]])
    core.detached()
    assert core.begin_attachment() == MessageId(-1, LEDGER, 0, 0)
    core.attached()
    core.append(command(0), batch(0, 4))
    taken = [message for _ in range(3) if (message := core.dequeue()) is not None]
    for number in order:
        core.put_back([taken[number]])
    assert values(core) == [0, 1, 2, 3]


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("shared", [False, True], ids=["ordered", "shared"])
@pytest.mark.parametrize("last", [0, 1], ids=["first-last", "second-last"])
def test_put_back_by_receivers_in_turns(last: int, shared: bool, rows: int) -> None:
    core, _ = attached(redelivers_entries=shared)
    core.append(command(0), batch(0, 6))
    taken = [message for _ in range(5) if (message := core.dequeue()) is not None]
    receivers = [taken[0::2], taken[1::2]]
    core.put_back(receivers[1 - last])
    core.put_back(receivers[last])
    found: list[int] = []
    while (taken_slice := core.dequeue_slice(BatchBudget(rows, 1 << 20))) is not None:
        indexes = list(taken_slice[1])
        assert indexes == sorted(indexes)
        found += indexes
    assert sorted(found) == list(range(6)) and (shared or found == sorted(found))


@pytest.mark.parametrize("ahead", [None, 0, 2, 100])
def test_next_size_is_of_the_message_dequeued_next(ahead: int | None) -> None:
    core, _ = attached(100)
    if ahead is not None:
        core.enable_prefetch()
    core.append(command(0), batch(5, 10))
    core.append(command(1), batch(98, 4))
    core.append(command(2), single_entry(b"1"))
    seen = []
    while (size := core.next_size()) is not None:
        message = core.dequeue(ahead or 0)
        assert message is not None and len(message) == size
        seen.append(int(message.data()))
    assert seen == [*range(5, 15), *range(98, 102), 1] and core.dequeue() is None


def test_slice_budget_cuts_entry_and_dequeue_goes_on() -> None:
    core, _ = attached(20)
    core.enable_prefetch()
    core.append(command(0), batch(0, 10))
    budget = BatchBudget(4, 100)
    found = core.dequeue_slice(budget)
    assert found is not None and list(found[1]) == [0, 1, 2, 3] and budget.full
    message = core.dequeue(prefetch=1000)
    assert message is not None and int(message.data()) == 4
    assert len(core.prefetch.messages) == 4
    rest = core.dequeue_slice()
    assert rest is not None and list(rest[1]) == [5, 6, 7, 8, 9]
    assert core.is_empty()


def singles_of(core: ConsumerCore, before: int = 100, most: int = 100, most_bytes: int = 1000) -> list[int]:
    return [int(message.data()) for message in core.dequeue_singles((LEDGER, before), most, most_bytes)]


def test_dequeue_singles_up_to_limits_and_batch() -> None:
    core, decoding = attached(20)
    for entry in range(6):
        core.append(command(entry), single_entry(b"%d" % entry))
    core.append(command(6), batch(6, 2))
    assert singles_of(core, before=2) == [0, 1] and singles_of(core, before=2) == []
    assert singles_of(core, most=1) == [2] and singles_of(core, most_bytes=1) == [3]
    assert singles_of(core) == [4, 5] and singles_of(core) == []
    assert core.permits.to_return == 6 and decoding.counted == 6
    assert values(core) == [6, 7]


def looks_for_singles(monkeypatch: pytest.MonkeyPatch, decoding: PlainDecoding) -> list[int]:
    """Return a list that gets the number of messages found by each look for entries of one message."""
    asked: list[int] = []
    inner = decoding.decode_singles

    def decode_singles(*arguments: Any) -> list[Message]:
        found = inner(*arguments)
        asked.append(len(found))
        return found

    monkeypatch.setattr(decoding, "decode_singles", decode_singles)
    return asked


@pytest.mark.parametrize(("entry", "looks"), [(batch(0, 2), []), (single_entry(b"0"), [3])])
def test_few_looks_for_singles_behind_a_single_only(
    entry: bytes, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    core, decoding = attached(100)
    core.enable_prefetch()
    for number in range(4):
        core.append(command(number), entry)
    asked = looks_for_singles(monkeypatch, decoding)
    assert core.dequeue(prefetch=10) is not None
    assert asked == looks
    assert len(values(core)) == (3 if looks else 7)


def test_single_arriving_alone_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    core, decoding = attached(100)
    core.enable_prefetch()
    asked = looks_for_singles(monkeypatch, decoding)
    taken = []
    # The first one shows what the entries are like, and a batch that they are not.
    for number, entry in enumerate([single_entry(b"0"), single_entry(b"1"), single_entry(b"2"), batch(3, 9)] * 2):
        core.append(command(number), entry)
        while (message := core.dequeue(prefetch=10)) is not None:
            taken.append(int(message.data()))
    assert taken == list(range(12)) * 2 and asked == [1, 1, 0] * 2
    assert core.permits.to_return == decoding.counted == 24


@pytest.mark.parametrize("queue_size", [1, 2, 3, 8])
def test_single_arriving_alone_returns_its_permit(queue_size: int) -> None:
    core, _ = attached(queue_size)
    core.enable_prefetch()
    for number in range(12):
        core.append(command(number), single_entry(b"%d" % number))
        message = core.dequeue(prefetch=10)
        assert message is not None and message.data() == b"%d" % number and core.dequeue(prefetch=10) is None
        assert core._position.last_dequeued_message_id == MessageId(-1, LEDGER, number, -1)
        assert core.permits.to_return == (number + 1) % max(1, queue_size // 2)


def test_dequeue_singles_is_position_of_next_attachment() -> None:
    core, _ = core_of(durable=False, start=MessageId.earliest)
    core.begin_attachment()
    core.attached()
    for entry in range(3):
        core.append(command(entry), single_entry(b"%d" % entry))
    assert singles_of(core, before=2) == [0, 1]
    core.detached()
    assert core.begin_attachment() == MessageId(-1, LEDGER, 1, -1)


def test_dequeue_singles_behind_messages_queued_returns_none() -> None:
    core, decoding = attached(20)
    core.append(command(0), batch(0, 3))
    core.append(command(1), single_entry(b"3"))
    budget = BatchBudget(1, 100)
    assert core.dequeue_slice(budget) is not None
    assert singles_of(core) == []
    rest = core.dequeue_slice()
    assert rest is not None and list(rest[1]) == [1, 2]
    decoding.key_missing = True
    assert core.dequeue() is None and singles_of(core) == []
    decoding.key_missing = False
    core.on_key_fetched()
    core.pause(strict=True)
    assert singles_of(core) == []
    core.resume()
    assert singles_of(core) == [3]


def test_dequeue_singles_scaled_or_intercepted_returns_none() -> None:
    for options in ({"scaled_within": MemoryLimit(100)}, {"arriving": lambda messages: messages}):
        core, _ = attached(8, **options)
        core.append(command(0), single_entry(b"0"))
        assert singles_of(core) == []
        assert values(core) == [0]


def slices_before(core: ConsumerCore, before: int = 100) -> list[int]:
    """Dequeue the entries before one, each whole, and return the numbers of their messages."""
    found = []
    while (taken := core.dequeue_slice_before((LEDGER, before))) is not None:
        entry, indexes = taken
        assert list(indexes) == list(range(max(1, entry.batch_size)))
        found.append(entry.entry_id)
    return found


def test_dequeue_slice_before_up_to_entry() -> None:
    core, decoding = attached(20)
    for entry in range(4):
        core.append(command(entry), batch(2 * entry, 2) if entry != 1 else single_entry(b"2"))
    assert slices_before(core, before=2) == [0, 1] and slices_before(core, before=2) == []
    assert core.permits.to_return == 3 and decoding.counted == 3
    core.detached()
    # Delivered twice, as the broker may after a seek: nothing is returned in its place that is not before the limit.
    core.begin_attachment()
    core.attached()
    for entry in range(2, 5):
        core.append(command(entry), batch(2 * entry, 2))
    assert slices_before(core, before=4) == [2, 3]
    assert values(core) == [8, 9]


def test_dequeue_slice_before_skips_unwanted_not_the_limit() -> None:
    core, _ = attached(20)
    core.append(command(0), batch(0, 2)[:-1] + b"x")
    core.append(command(1), batch(2, 2))
    assert slices_before(core, before=1) == []
    assert values(core) == [2, 3]


def test_dequeue_slice_before_behind_messages_queued_returns_none() -> None:
    core, decoding = attached(20)
    core.append(command(0), batch(0, 3))
    core.append(command(1), batch(3, 2))
    assert core.dequeue_slice(BatchBudget(1, 100)) is not None
    assert slices_before(core) == []
    assert core.dequeue_slice() is not None
    decoding.key_missing = True
    assert slices_before(core) == []
    decoding.key_missing = False
    core.on_key_fetched()
    core.pause(strict=True)
    assert slices_before(core) == []
    core.resume()
    assert slices_before(core) == [1]


def test_dequeue_slice_before_scaled_or_intercepted_returns_none() -> None:
    for options in ({"scaled_within": MemoryLimit(100)}, {"arriving": lambda messages: messages}):
        core, _ = attached(8, **options)
        core.append(command(0), batch(0, 2))
        assert slices_before(core) == []
        assert values(core) == [0, 1]


def test_strict_pause_hands_back_each_entry_once() -> None:
    core, _ = attached(20, redelivers_entries=True)
    core.append(command(0), batch(0, 3))
    core.append(command(1), single_entry(b"3"))
    assert core.pause(strict=True) and not core.pause(strict=True)
    core.hand_back()
    _, request = written(core)
    assert [data.entryId for data in request.redeliverUnacknowledgedMessages.message_ids] == [0, 1]
    # They come a second time, as there is no other consumer, and stay.
    core.append(command(1), single_entry(b"3"))
    core.hand_back(latest_only=True)
    assert not core.outgoing and core.permits.to_return == 4
    core.resume()
    assert values(core) == [3]


def test_seek_drops_queued_and_sets_start() -> None:
    core, decoding = attached(durable=False, start=MessageId.earliest)
    core.append(command(0), batch(0, 4))
    assert core.dequeue() is not None
    core.on_seek(MessageId(-1, LEDGER, 9, 2), MessageId(-1, LEDGER, 9, 2), inclusive=False)
    assert core.is_empty() and decoding.counted == 1
    assert core.begin_attachment() == MessageId(-1, LEDGER, 9, 2)


@pytest.mark.parametrize("prefetch", [0, 100])
@pytest.mark.parametrize("size", [1, 2])
def test_entry_delivered_twice_in_order_is_dropped(size: int, prefetch: int) -> None:
    core, _ = attached(50, durable=False, start=MessageId.earliest, in_order=True)
    if prefetch:
        core.enable_prefetch()

    def read(*entries: int) -> list[int]:
        for entry in entries:
            core.append(command(entry), batch(0, size) if size > 1 else single_entry(b"0"))
        found = []
        while (message := core.dequeue(prefetch)) is not None:
            found.append(message.message_id().entry_id())
        core.count_dequeued()
        assert found == sorted([*set(found)] * size)
        return [*dict.fromkeys(found)]

    assert grants(core) == [50]
    assert read(2, 3, 2, 3, 4) == [2, 3, 4]
    assert core.permits.to_return == 5 * size
    assert read(3, 4) == [] and read(5) == [5]
    # A seek goes back, and a request to redeliver everything has entries delivered twice.
    core.on_seek(MessageId(-1, LEDGER, 2), None, inclusive=False)
    core.begin_attachment()
    core.attached()
    assert read(2, 3, 2, 3) == [3]
    core.redeliver_all()
    assert read(3, 4) == [3, 4]
    core.begin_attachment()
    assert read(3, 4) == []


def test_entry_redelivered_out_of_order_is_not_dropped() -> None:
    core, _ = attached()
    for number in (2, 3, 2):
        core.append(command(number), single_entry(b"%d" % number))
    assert values(core) == [2, 3, 2]


def test_scaled_queue_has_own_permits() -> None:
    memory = MemoryLimit(100)
    core, _ = attached(8, scaled_within=memory)
    assert isinstance(core.permits, AutoScaledPermits) and grants(core) == [1]
    core.append(command(0), single_entry(b"0"))
    assert memory.received > 0
    core.drop_queued()
    assert memory.received == 0
