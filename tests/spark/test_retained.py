"""Limit of a move of a load's subscription: the loaded intervals, and the messages between them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pulsar_native.exceptions import SubscriptionNotFound
from pyspark_pulsar.offsets import Found, Probe
from pyspark_pulsar.positions import Position
from pyspark_pulsar.retained import Interval, _Cursor, loaded_until, merged


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


class Cursors:
    """An admin client and a broker of one topic without messages, whose statistics have these cursors."""

    def __init__(self, **cursors: str) -> None:
        self.cursors = cursors
        self.starts: list[Any] = []

    def internal_stats(self, topic: str) -> dict[str, Any]:
        return {"cursors": {name: {"markDeletePosition": place} for name, place in self.cursors.items()}}

    def reader(self, topic: str, start: Any, **options: Any) -> Cursors:
        self.starts.append(start)
        return self

    def has_message_available(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("subscription", "entry"), [("a+b", 4), ("a b", 8), ("team/~load*", 6)], ids=["plus", "space", "java"]
)
def test_first_held_reads_its_own_cursor(subscription: str, entry: int) -> None:
    fake = Cursors(**{"a+b": "7:7", "a%2Bb": "7:3", "team%2F%7Eload*": "7:5"})
    cursor = _Cursor(cast(Any, None), subscription, cast(Any, fake), cast(Any, fake), datetime.now(UTC))
    assert cursor._first_held(cast(Any, fake), "t") is None
    assert [(start.ledger_id(), start.entry_id()) for start in fake.starts] == [(7, entry)]


def test_first_held_without_subscription_raises() -> None:
    fake = Cursors()
    cursor = _Cursor(cast(Any, None), "load", cast(Any, fake), cast(Any, fake), datetime.now(UTC))
    with pytest.raises(SubscriptionNotFound, match="'load'"):
        cursor._first_held(cast(Any, fake), "t")
