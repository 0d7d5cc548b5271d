"""Unacked message tracker, in virtual time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pulsar_native.config import MultiplierRedeliveryBackoff
from pulsar_native.protocol.redelivery_delay import RedeliveryDelay
from pulsar_native.protocol.unacked_tracker import UnackedMessageRedeliveryTracker, UnackedMessageTracker, in_blocks

entries = st.tuples(st.integers(0, 3), st.integers(0, 5))


@pytest.mark.proves("C142")
@given(st.integers(100, 3000), st.data())
def test_unacked_due_within_one_tick(tick_ms: int, data: st.DataObject) -> None:
    timeout_ms = data.draw(st.integers(tick_ms, 20 * tick_ms))
    tracker = UnackedMessageTracker(timeout_ms / 1000, tick_ms / 1000)
    added_ms = data.draw(st.integers(0, 3 * tick_ms))  # somewhere between two ticks
    now_ms, added = 0, False
    while True:
        if not added and added_ms < now_ms + tick_ms:
            tracker.add((1, 1))
            added = True
        now_ms += tick_ms
        if tracker.advance():
            break
    # Whole ticks are counted: a time-out that is not a multiple of the tick is rounded up to one.
    rounded = math.ceil(timeout_ms / tick_ms) * tick_ms
    assert timeout_ms <= rounded <= now_ms - added_ms <= rounded + tick_ms
    assert len(tracker) == 0


@pytest.mark.proves("C142")
@pytest.mark.parametrize(
    ("timeout", "tick", "advances"),
    [(11.0, 2.0, 7), (10.0, 1.0, 11), (1.0, 1.0, 2), (1.0, 0.1, 11), (1.2, 0.1, 13), (2.4, 0.8, 4)],
)
def test_unacked_due_after_number_of_ticks(timeout: float, tick: float, advances: int) -> None:
    tracker = UnackedMessageTracker(timeout, tick)
    tracker.add((1, 1))
    for _ in range(advances - 1):
        assert tracker.advance() == []
    assert tracker.advance() == [(1, 1)]


def test_unacked_time_out_of_any_length_takes_no_memory() -> None:
    tracker = UnackedMessageTracker(2**64 / 1000, 0.1)
    for number in range(1000):
        tracker.add((1, number))
        if number % 2:
            tracker.remove((1, number - 1))
            tracker.remove((1, number))
        assert tracker.advance() == []
    assert len(tracker) == 0 and not tracker._slices


class TrackerModel(RuleBasedStateMachine):
    """The tracker against a dictionary of the tick at which each entry comes due."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = UnackedMessageTracker(3.0, 1.0)
        self.tick = 0
        self.due: dict[tuple[int, int], int] = {}

    @rule(entry=entries)
    def add(self, entry: tuple[int, int]) -> None:
        self.tracker.add(entry)
        self.due.setdefault(entry, self.tick + 4)

    @rule(entry=entries)
    def remove(self, entry: tuple[int, int]) -> None:
        self.tracker.remove(entry)
        self.due.pop(entry, None)

    @rule(entry=entries)
    def remove_up_to(self, entry: tuple[int, int]) -> None:
        covered = [key for key in self.due if key <= entry]
        assert self.tracker.remove_up_to(entry) == len(covered)
        for key in covered:
            del self.due[key]

    @rule()
    def advance(self) -> None:
        self.tick += 1
        expected = sorted(key for key, at in self.due.items() if at <= self.tick)
        assert self.tracker.advance() == expected
        for key in expected:
            del self.due[key]

    @rule()
    def clear(self) -> None:
        self.tracker.clear()
        self.due.clear()

    @invariant()
    def counts(self) -> None:
        assert len(self.tracker) == len(self.due)


TestTracker = pytest.mark.proves("C142", "C143")(TrackerModel.TestCase)


@pytest.mark.proves("C143")
def test_unacked_remove_up_to_cumulative() -> None:
    tracker = UnackedMessageTracker(1.0, 1.0)
    for number in range(10):
        tracker.add((1, number))
    assert tracker.remove_up_to((1, 5)) == 6
    assert len(tracker) == 4
    tracker.advance()
    assert tracker.advance() == [(1, 6), (1, 7), (1, 8), (1, 9)]


BACKOFF = RedeliveryDelay(MultiplierRedeliveryBackoff(min_delay_ms=1000, max_delay_ms=5000), 0.0, "c")


@pytest.mark.proves("C147")
def test_unacked_backoff_by_redelivery_count() -> None:
    late = UnackedMessageRedeliveryTracker(BACKOFF)
    for number, count in enumerate((0, 1, 2, 9)):
        late.delivered((1, number), count)
    late.expired([(1, 3), (1, 0), (1, 1), (1, 2)], 10.0)
    assert len(late) == 4
    assert late.pop_due(10.999) == []
    assert late.pop_due(12.0) == [(1, 0), (1, 1)]
    assert late.pop_due(100.0) == [(1, 2), (1, 3)]
    assert len(late) == 0 and late.pop_due(1000.0) == []


def test_unacked_removed_not_due() -> None:
    late = UnackedMessageRedeliveryTracker(BACKOFF)
    for number in range(6):
        late.delivered((1, number), 1)
    late.expired([(1, number) for number in range(6)], 0.0)
    late.remove((1, 5))
    late.remove((1, 5))
    late.remove_up_to((1, 2))
    assert late.pop_due(2.0) == [(1, 3), (1, 4)]
    # The count goes with the entry; the broker may begin to count anew, too.
    late.expired([(1, 3)], 0.0)
    assert late.pop_due(1.0) == [(1, 3)]
    late.delivered((1, 7), 3)
    late.delivered((1, 7), 0)
    late.expired([(1, 7)], 0.0)
    assert late.pop_due(1.0) == [(1, 7)]
    # At a new attachment the entry arrives with its count, if it comes here.
    late.delivered((1, 9), 3)
    late.reattached()
    late.expired([(1, 9)], 0.0)
    assert late.pop_due(1.0) == [(1, 9)]
    late.expired([(1, 8)], 0.0)
    late.clear()
    assert len(late) == 0


@given(st.integers(0, 3500), st.integers(1, 1200))
def test_in_blocks(count: int, size: int) -> None:
    keys = [(1, number) for number in range(count)]
    blocks = in_blocks(iter(keys), size)
    assert [key for block in blocks for key in block] == keys
    assert all(0 < len(block) <= size for block in blocks)
    assert len(in_blocks(keys)) == math.ceil(count / 1000)
