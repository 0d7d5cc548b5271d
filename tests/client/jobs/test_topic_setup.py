"""Topic setup before publishing: subscriptions, retention, and the warning without either."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_native import ConsumerType, InitialPosition, PulsarException
from pulsar_native.exceptions import ConsumerBusy
from pulsar_native.jobs import topic_setup
from pulsar_native.jobs.failures import JobRefused
from support.jobs import MemoryLog


class Client:
    """A client of a topic with two partitions; the first one's subscription is in use."""

    def __init__(self) -> None:
        self.subscribed: list[tuple[Any, ...]] = []
        self.closed = 0

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [f"{topic}-partition-{index}" for index in range(2)]

    def subscribe(self, topic: str, name: str, **options: Any) -> Client:
        self.subscribed.append((topic, name, options))
        if topic.endswith("0"):
            raise ConsumerBusy("in use")
        return self

    def close(self) -> None:
        self.closed += 1


class Admin:
    """The admin interface with one topic; a set retention is applied after `late` questions, None for never."""

    def __init__(self, retention: tuple[int, int] | None, late: int | None = 1, **stats: Any) -> None:
        self.retention = retention
        self.set: list[tuple[int, int]] = []
        self._late = late
        self._stats = stats
        self.asked: list[str] = []

    def get_retention(self, topic: str, *, applied: bool) -> tuple[int, int] | None:
        assert applied
        if self.set and self._late is not None:
            self._late -= 1
            if self._late < 0:
                self.retention = self.set[-1]
        return self.retention

    def set_retention(self, topic: str, minutes: int, mb: int) -> None:
        self.set.append((minutes, mb))

    def stats(self, topic: str) -> dict[str, Any]:
        self.asked.append("stats")
        if "error" in self._stats:
            raise PulsarException("no answer")
        return self._stats

    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        self.asked.append("partitioned")
        return self._stats


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give a clock that only sleeping moves."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(topic_setup, "time", clock)
    return now


def test_create_subscription_on_each_partition(log: MemoryLog) -> None:
    client = Client()
    topic_setup.create_subscription(client, "t", "s", log)  # type: ignore[arg-type]
    assert [(topic, name) for topic, name, _ in client.subscribed] == [("t-partition-0", "s"), ("t-partition-1", "s")]
    assert client.subscribed[0][2] == {
        "consumer_type": ConsumerType.Shared,
        "initial_position": InitialPosition.Earliest,
        "receiver_queue_size": 0,
    }
    assert client.closed == 1 and "'s' keeps what is published to t" in log.infos[0]


@pytest.mark.parametrize(
    ("before", "minutes", "mb", "after"),
    [
        (None, 60, None, (60, -1)),
        (None, None, 5, (-1, 5)),
        ((10, 100), 60, 50, (60, 100)),
        ((10, -1), 60, 5, (60, -1)),
        ((10, 10), -1, 5, (-1, 10)),
        ((60, 100), 60, 50, None),
        ((-1, -1), 60, 50, None),
        ((5, 5), None, None, None),
    ],
)
def test_ensure_retention_only_raises_it(
    before: tuple[int, int] | None, minutes: int | None, mb: int | None, after: tuple[int, int] | None, log: MemoryLog
) -> None:
    admin = Admin(before, 3)
    topic_setup.ensure_retention(admin, "t", minutes, mb, log)  # type: ignore[arg-type]
    assert admin.set == ([] if after is None else [after])
    assert admin.retention == (before if after is None else after)
    assert len(log.infos) == len(admin.set)


def test_ensure_retention_not_applied_is_refused(log: MemoryLog, clock: list[float]) -> None:
    with pytest.raises(JobRefused, match=r"set to 60 minutes and -1 MB, .* topicLevelPoliciesEnabled may be off"):
        topic_setup.ensure_retention(Admin(None, None), "t", 60, None, log)  # type: ignore[arg-type]
    assert 15 < clock[0] < 16


def test_ensure_retention_without_admin_is_refused(log: MemoryLog) -> None:
    topic_setup.ensure_retention(None, "t", None, None, log)
    with pytest.raises(JobRefused, match="need the admin URL of the connection"):
        topic_setup.ensure_retention(None, "t", None, 5, log)


@pytest.mark.parametrize(
    ("admin", "warned"),
    [
        (Admin(None), True),
        (Admin((0, 0)), True),
        (Admin((0, 0), subscriptions={}), True),
        (Admin((0, 0), subscriptions={"s": {}}), False),
        (Admin((60, -1)), False),
        (Admin(None, error=True), False),
        (None, False),
    ],
)
def test_warn_if_not_kept_only_when_known(admin: Admin | None, warned: bool, log: MemoryLog) -> None:
    topic_setup.warn_if_not_kept(admin, "t", 0, log)  # type: ignore[arg-type]
    assert [text.startswith("t has neither a subscription nor retention") for text in log.warnings] == [True] * warned


def test_warn_if_not_kept_asks_for_partitions(log: MemoryLog) -> None:
    admin = Admin(None)
    topic_setup.warn_if_not_kept(admin, "t", 3, log)  # type: ignore[arg-type]
    assert admin.asked == ["partitioned"]
