"""Waiters of a producer: flushes keep their order when entries are completed or removed; capacity is given in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.engine.producer.waiters import CapacityWaiters, FlushDone, FlushWaiters
from pulsar_native.exceptions import PulsarException, Timeout
from pulsar_native.protocol.send_op import SendOp


def entry(number: int) -> SendOp:
    """Return an entry of one message."""
    return SendOp(number, number, [], [None], 1, 0.0)


class Told:
    """Callbacks by name, and what was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, PulsarException | None]] = []

    def flush(self, name: str) -> FlushDone:
        """Return the callback of a flush."""
        return lambda error: self.calls.append((name, error))

    def wake(self, name: str) -> Callable[[], None]:
        """Return the callback of a sender."""
        return lambda: self.calls.append((name, None))


def test_flush_ends_with_the_entry_it_waits_for() -> None:
    waiters, told = FlushWaiters(), Told()
    first, second = entry(0), entry(1)
    waiters.add(second, told.flush("a"))
    waiters.add(second, told.flush("b"))
    waiters.completed(first, None)
    assert not told.calls and waiters.waiting
    error = Timeout("late")
    waiters.completed(second, error)
    assert told.calls == [("a", error), ("b", error)] and not waiters.waiting


def test_flush_of_removed_entry_waits_for_the_one_before() -> None:
    waiters, told = FlushWaiters(), Told()
    ops = [entry(number) for number in range(3)]
    waiters.add(ops[0], told.flush("first"))
    waiters.add(ops[2], told.flush("last"))
    assert waiters.without({ops[1], ops[2]}, ops) == []
    waiters.completed(ops[0], None)
    assert [name for name, _ in told.calls] == ["first", "last"]


def test_flush_with_nothing_left_is_returned() -> None:
    waiters, told = FlushWaiters(), Told()
    ops = [entry(0), entry(1)]
    done = told.flush("both")
    waiters.add(ops[1], done)
    assert waiters.without(set(ops), ops) == [done]
    assert not waiters.waiting and not told.calls


@given(st.data())
def test_flush_ends_after_all_kept_entries_before(data: st.DataObject) -> None:
    ops = [entry(number) for number in range(data.draw(st.integers(1, 8)))]
    waiters, told = FlushWaiters(), Told()
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


@pytest.mark.parametrize(
    ("capacity", "woken"), [(0, []), (1, ["one"]), (3, ["one"]), (4, ["one", "three", "none"]), (None, None)]
)
def test_capacity_given_in_order_up_to_the_first_misfit(capacity: int | None, woken: list[str] | None) -> None:
    waiters, told = CapacityWaiters(), Told()
    for name, needed in (("one", 1), ("three", 4), ("none", 2), ("five", 5)):
        waiters.add(needed, told.wake(name))
    for wake in waiters.pop_ready(capacity):
        wake()
    names = [name for name, _ in told.calls]
    assert names == (["one", "three", "none", "five"] if woken is None else woken)
    assert len(waiters.waiting) == 4 - len(names)
