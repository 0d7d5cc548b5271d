"""Send-message-back: delay levels, last try, and a handler's level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.push.config import DELAY_LEVELS_MS
from pulsar_native.push.send_message_back import DEAD_LETTER, Again, next_step, tries_of


@pytest.mark.proves("C220")
def test_delay_levels_of_rocketmq() -> None:
    minutes = 60_000
    assert (
        1000, 5000, 10_000, 30_000, *(number * minutes for number in range(1, 11)),
        20 * minutes, 30 * minutes, 60 * minutes, 120 * minutes,
    ) == DELAY_LEVELS_MS  # fmt: skip
    assert len(DELAY_LEVELS_MS) == 18


@pytest.mark.proves("C220", "C221")
def test_next_step_sixteen_tries_then_dead_letter() -> None:
    steps = [next_step(times, -1, 0, DELAY_LEVELS_MS) for times in range(17)]
    assert steps[0] == Again(10_000) and steps[1] == Again(30_000) and steps[15] == Again(7_200_000)
    assert all(isinstance(step, Again) for step in steps[:16]) and steps[16] is DEAD_LETTER


@pytest.mark.proves("C219", "C220")
def test_next_step_handler_level_first() -> None:
    assert next_step(5, -1, 1, DELAY_LEVELS_MS) == Again(1000)
    assert next_step(5, -1, 99, DELAY_LEVELS_MS) == Again(7_200_000)
    assert next_step(0, -1, -1, DELAY_LEVELS_MS) is DEAD_LETTER
    assert next_step(0, 5, 0, [7]) == Again(7)


@pytest.mark.proves("C221")
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 30))
def test_next_step_maximum_tries(times: int, most: int, level: int) -> None:
    assert (next_step(times, most, level, DELAY_LEVELS_MS) is DEAD_LETTER) == (times >= most)


def test_tries_of_invalid_is_zero() -> None:
    assert [tries_of(text) for text in (None, "", "-1", "x", "²", "9" * 30, "0", "12")] == [0] * 7 + [12]
