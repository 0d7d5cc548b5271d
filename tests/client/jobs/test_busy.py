"""Wait for a subscription or a name that is in use: when it ends, and what is logged, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_native import ConsumerBusy, ProducerBusy, TopicNotFound
from pulsar_native.jobs import busy
from pulsar_native.jobs.busy import when_free


class Held:
    """Subscription or name that is in use until a point in virtual time."""

    def __init__(self, until: float, error: Exception) -> None:
        self.now, self.calls = 0.0, 0
        self._until, self._error = until, error

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def create(self) -> str:
        self.calls += 1
        if self.now < self._until:
            raise self._error
        return "made"


NewHeld = Callable[..., Held]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> NewHeld:
    """Give the function that makes what is held, and replaces the clock."""

    def make(until: float, error: Exception | None = None) -> Held:
        made = Held(until, error or ConsumerBusy("held"))
        monkeypatch.setattr(busy.time, "sleep", made.sleep)
        monkeypatch.setattr(busy.time, "monotonic", lambda: made.now)
        return made

    return make


@pytest.mark.parametrize("error", [ConsumerBusy("held"), ProducerBusy("held")], ids=["consumer", "producer"])
def test_when_free_waits_and_logs_once(held: NewHeld, error: Exception) -> None:
    logged: list[float] = []
    made = held(5, error)
    assert when_free(made.create, logged.append) == "made"
    assert made.now == 5 and logged == [30]


def test_when_free_at_once_logs_nothing(held: NewHeld) -> None:
    logged: list[float] = []
    assert when_free(held(0).create, logged.append) == "made" and not logged


def test_when_free_raises_after_thirty_seconds(held: NewHeld) -> None:
    made = held(100)
    with pytest.raises(ConsumerBusy):
        when_free(made.create)
    assert 30 < made.now < 32


def test_when_free_ends_where_its_caller_does(held: NewHeld) -> None:
    made = held(100)
    with pytest.raises(ConsumerBusy):
        when_free(made.create, goes_on=lambda: made.now < 3)
    assert made.now == 3


def test_when_free_raises_other_errors_at_once(held: NewHeld) -> None:
    made = held(100, TopicNotFound("gone"))
    with pytest.raises(TopicNotFound):
        when_free(made.create)
    assert made.calls == 1
