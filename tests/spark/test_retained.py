"""Limit of a move of a load's subscription: the loaded intervals, and the messages between them."""

from __future__ import annotations

from typing import cast

import pytest

from pyspark_pulsar.offsets import Found, Probe
from pyspark_pulsar.positions import Position
from pyspark_pulsar.retained import Interval, loaded_until, merged


class Messages:
    """A probe of messages with these publish times."""

    def __init__(self, *times: int) -> None:
        self.times = times

    def first_at(self, time_ms: int) -> Found | None:
        return next((Found(Position(1, number), at) for number, at in enumerate(self.times) if at >= time_ms), None)


def test_merged_joins_what_touches() -> None:
    assert merged([(20, 30), (0, 10), (10, 15), (22, 25)]) == [(0, 15), (20, 30)]


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        pytest.param([(0, 10)], (10, None), id="all"),
        pytest.param([(6, 10)], (None, 5), id="earlier"),
        pytest.param([(0, 4)], (None, 5), id="later"),
        pytest.param([(0, 6)], (6, 8), id="part"),
        pytest.param([(0, 6), (7, 10)], (10, None), id="empty-gap"),
        pytest.param([(0, 6), (9, 10)], (6, 8), id="gap"),
        pytest.param([(0, 2), (4, 10)], (10, None), id="passed"),
    ],
)
def test_loaded_until(loaded: list[Interval], expected: tuple[int | None, int | None]) -> None:
    assert loaded_until(cast(Probe, Messages(1, 5, 8)), 5, loaded) == expected
