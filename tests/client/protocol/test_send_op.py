"""Send operations: callbacks with their own ids, chunks, and the bytes that are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.enums import Result
from pulsar_native.exceptions import PulsarException, Timeout
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.send_op import UNSTORED, ChunkOp, FlushDone, FlushWaiters, SendOp, as_callback
from support.other_thread import OWN_ERRORS, in_other_thread
from support.producer_cores import TOPIC, add, core


def test_official_callback_gets_result() -> None:
    made = core(batching_enabled=True)
    told: list[tuple[Any, Any]] = []
    add(made, b"a", 0.0, (lambda result, message_id: told.append((result, message_id)),))
    add(made, b"b", 0.0, None)
    (op,) = made.close_batch()
    op.complete(None, (2, 5, 6), TOPIC)
    op.complete(Timeout("late"), None, TOPIC)
    assert told == [(Result.Ok, MessageId(2, 5, 6, 0)), (Result.Timeout, MessageId())]
    translated = as_callback((lambda result, message_id: told.append((result, message_id)),))
    assert translated is not None
    translated(Timeout("late"), None)
    assert told[-1] == (Result.Timeout, MessageId())


def test_batch_callbacks_get_own_ids() -> None:
    made = core()
    told: list[Any] = []
    for _ in range(3):
        add(made, callback=lambda error, place: told.append((error, place)))
    (op,) = made.close_batch()
    op.complete(None, (2, 11, 12), TOPIC)
    assert [error for error, _ in told] == [None] * 3
    assert [place for _, place in told] == [MessageId(2, 11, 12, index) for index in range(3)]
    assert [(place.batch_size(), place.topic_name()) for _, place in told] == [(3, TOPIC)] * 3
    add(made, callback=lambda error, place: told.append((error, place)))
    (op,) = made.close_batch()
    op.complete(None, (2, 11, 13), TOPIC)
    assert told[-1] == (None, MessageId(2, 11, 13, -1))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("fault", [ValueError("mine"), SystemExit("mine"), asyncio.CancelledError("mine")], ids=repr)
def test_callback_exception_isolated(caplog: pytest.LogCaptureFixture, fault: BaseException, count: int) -> None:
    made = core()
    told = []

    def bad(_error: object, _place: object) -> None:
        raise fault

    for callback in (bad, None, lambda error, place: told.append(place))[:count]:
        add(made, callback=callback)
    (op,) = made.close_batch()
    op.complete(None, (-1, 1, 1), TOPIC)
    assert len(told) == (count > 1)
    assert "callback failed" in caplog.text


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_callback_error_of_any_class_in_thread_isolated(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException], count: int
) -> None:
    made, told = core(), list[object]()

    def bad(_error: object, _place: object) -> None:
        raise kind

    for callback in (bad, None, lambda error, place: told.append(place))[:count]:
        add(made, callback=callback)
    (op,) = made.close_batch()
    # On the engine's thread nothing but the client would be interrupted.
    in_other_thread(op.complete, None, (-1, 1, 1), TOPIC)
    assert len(told) == (count > 1) and "callback failed" in caplog.text
    with pytest.raises(kind):
        op.complete(None, (-1, 1, 1), TOPIC)


@pytest.mark.proves("C67")
def test_is_intact_detects_damage() -> None:
    made = core()
    add(made, b"hello")
    (op,) = made.close_batch()
    assert op.is_intact()
    head, body = (bytearray(part) for part in op.parts)
    for damaged in (body, head):
        damaged[-1] ^= 1
        op.parts = [bytes(head), bytes(body)]
        assert not op.is_intact()
        damaged[-1] ^= 1
    op.parts = [bytes(head), bytes(body)]
    assert op.is_intact()


def test_as_callback_passes_internal_ones() -> None:
    def internal(error: object, message_id: object) -> None:
        raise AssertionError("not to be called")

    assert as_callback(internal) is internal and as_callback(None) is None


def test_complete_without_place_has_no_id() -> None:
    told: list[Any] = []
    op = SendOp(0, 1, [], [lambda *given: told.append(given), (lambda *given: told.append(given),)], 2, 0.0)
    error = Timeout("late")
    op.complete(error, None, TOPIC)
    assert told == [(error, None), (Result.Timeout, UNSTORED)]


# --- chunks -----------------------------------------------------------------------------------------------------


def chunks(told: list[Any], count: int = 3) -> list[ChunkOp]:
    """Return the chunks of message 5."""
    places: list[tuple[int, int, int]] = []
    return [
        ChunkOp(
            5, [], (lambda error, message_id: told.append((error, message_id))) if n == count - 1 else None,
            0, 0.0, is_last=n == count - 1, places=places,
        )
        for n in range(count)
    ]  # fmt: skip


def test_chunks_publish_with_the_last() -> None:
    assert [(op.sequence_id, op.highest_sequence_id, op.count) for op in chunks([])] == [
        (5, 4, 1),
        (5, 4, 1),
        (5, 5, 1),
    ]


def test_chunks_id_has_first_and_last_place() -> None:
    told: list[Any] = []
    for entry, op in enumerate(chunks(told)):
        op.complete(None, (2, 7, entry), TOPIC)
    ((error, message_id),) = told
    assert error is None and (message_id.entry_id(), message_id.topic_name()) == (2, TOPIC)
    assert message_id.first_chunk_message_id() == MessageId(2, 7, 0, -1)


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_chunks_dropped_as_duplicate_have_no_place(dropped: int) -> None:
    told: list[Any] = []
    for entry, op in enumerate(chunks(told)):
        op.complete(None, (2, -1, -1) if entry == dropped else (2, 7, entry), TOPIC)
    ((_, message_id),) = told
    assert (message_id.ledger_id(), message_id.entry_id(), message_id.first_chunk_message_id()) == (-1, -1, None)


# --- flush waiters ------------------------------------------------------------------------------------------------


def entry(number: int) -> SendOp:
    """Return an entry of one message."""
    return SendOp(number, number, [], [None], 1, 0.0)


class Flushes:
    """Callbacks by name, and what was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, PulsarException | None]] = []

    def flush(self, name: str) -> FlushDone:
        """Return the callback of a flush."""
        return lambda error: self.calls.append((name, error))


def test_flush_ends_with_the_entry_it_waits_for() -> None:
    waiters, told = FlushWaiters(), Flushes()
    first, second = entry(0), entry(1)
    waiters.add(second, told.flush("a"))
    waiters.add(second, told.flush("b"))
    waiters.completed(first, None)
    assert not told.calls and waiters.waiting
    error = Timeout("late")
    waiters.completed(second, error)
    assert told.calls == [("a", error), ("b", error)] and not waiters.waiting


def test_flush_of_removed_entry_waits_for_the_one_before() -> None:
    waiters, told = FlushWaiters(), Flushes()
    ops = [entry(number) for number in range(3)]
    waiters.add(ops[0], told.flush("first"))
    waiters.add(ops[2], told.flush("last"))
    assert waiters.without({ops[1], ops[2]}, ops) == []
    waiters.completed(ops[0], None)
    assert [name for name, _ in told.calls] == ["first", "last"]


def test_flush_with_nothing_left_is_returned() -> None:
    waiters, told = FlushWaiters(), Flushes()
    ops = [entry(0), entry(1)]
    done = told.flush("both")
    waiters.add(ops[1], done)
    assert waiters.without(set(ops), ops) == [done]
    assert not waiters.waiting and not told.calls


@given(st.data())
def test_flush_ends_after_all_kept_entries_before(data: st.DataObject) -> None:
    ops = [entry(number) for number in range(data.draw(st.integers(1, 8)))]
    waiters, told = FlushWaiters(), Flushes()
    at = sorted(data.draw(st.lists(st.integers(0, len(ops) - 1), max_size=5)))
    for number, index in enumerate(at):
        waiters.add(ops[index], told.flush(str(number)))
    gone = {op for op in ops if data.draw(st.booleans())}
    ready = waiters.without(gone, ops)
    ended = dict.fromkeys(ready, 0)
    assert len(ended) == sum(all(op in gone for op in ops[: index + 1]) for index in at)
    done_after: list[int] = []
    for op in (op for op in ops if op not in gone):
        waiters.completed(op, None)
        done_after.append(len(told.calls))
        kept = [each for each in ops[: ops.index(op) + 1] if each not in gone]
        # A flush has ended if and only if no kept entry up to its own is left.
        due = [index for index in at if kept and all(each in gone or each in kept for each in ops[: index + 1])]
        assert len(told.calls) + len(ready) == len(due)
    assert not waiters.waiting
