"""Reconnection back-off, in virtual time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.protocol.backoff import Backoff


def no_jitter() -> float:
    return 0.0


@pytest.mark.proves("C34")
def test_backoff_doubles_to_maximum_and_resets() -> None:
    backoff = Backoff(0.1, 60.0, no_jitter)
    delays = [backoff.next(0.0) for _ in range(12)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0])
    backoff.reset()
    assert backoff.next(100.0) == pytest.approx(0.1)
    assert backoff.next(100.0) == pytest.approx(0.2)


@pytest.mark.proves("C34")
@given(
    st.floats(0.001, 10), st.floats(0.001, 100), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30)
)
def test_backoff_jitter_at_most_tenth_not_below_initial(initial: float, maximum: float, dice: list[float]) -> None:
    rolls = iter(dice)
    backoff = Backoff(initial, maximum, lambda: next(rolls))
    expected = initial
    for _ in dice:
        delay = backoff.next(0.0)
        assert max(initial, expected * 0.9) * (1 - 1e-9) <= delay <= expected * (1 + 1e-9)
        expected = min(expected * 2, max(maximum, initial))


def test_backoff_jitter_applied() -> None:
    backoff = Backoff(0.1, 60.0, lambda: 0.5)
    backoff.next(0.0)
    assert backoff.next(0.0) == pytest.approx(0.19)


@given(st.floats(0.2, 100), st.floats(0, 0.05))
def test_backoff_ends_at_mandatory_stop(stop: float, attempt: float) -> None:
    backoff = Backoff(0.1, 60.0, no_jitter, mandatory_stop=stop)
    now = start = 1000.0
    ends = []
    for _ in range(14):
        now += backoff.next(now)
        ends.append(now - start)
        now += attempt  # what the attempt itself takes
    assert all(second > first for first, second in pairwise(ends))
    # The attempt at the stop is made; where the one before took until then, the initial delay behind it.
    assert any(stop - 1e-9 <= end <= stop + attempt + 0.1 + 1e-9 for end in ends)


def test_backoff_mandatory_stop_once_per_series() -> None:
    backoff = Backoff(1.0, 60.0, no_jitter, mandatory_stop=2.5)
    assert [backoff.next(0.0), backoff.next(1.0), backoff.next(2.5), backoff.next(6.5)] == [1.0, 1.5, 4.0, 8.0]
    backoff.reset()
    assert [backoff.next(50.0), backoff.next(51.0)] == [1.0, 1.5]


def test_backoff_maximum_below_initial() -> None:
    backoff = Backoff(1.0, 0.5, no_jitter)
    assert [backoff.next(0.0) for _ in range(3)] == [1.0, 1.0, 1.0]
