"""Compaction operator in virtual time on a fake admin interface: its limit, failures and the end by a kill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.operators import admin as module
from airflow_provider_pulsar.operators.admin import PulsarCompactTopicOperator
from pulsar_native.admin import AdminError
from support.clock import Clock, stopped_clock


class FakeAdmin:
    """Admin interface of a partitioned topic whose compactions take `seconds` each.

    With `is_busy` another compaction has begun when the first is asked for. Reads use the result at once, or never.
    """

    def __init__(self, clock: Clock, seconds: float, *, is_busy: bool = False, is_used: bool = True) -> None:
        self._clock, self._seconds, self._is_used = clock, seconds, is_used
        self._is_busy = is_busy
        self._began: dict[str, float] = {}
        self.compactions = 0
        self.on_look: Callable[[], None] = lambda: None
        self.error: str | None = None

    def partitions(self, topic: str) -> int:
        """Return the number of partitions."""
        return 3

    def compact(self, topic: str) -> None:
        """Begin a compaction; raise if another one runs."""
        was_idle = topic not in self._began
        if was_idle:
            self._began[topic] = self._clock.monotonic()
        if self._is_running(topic) and not (was_idle and not self._is_busy):
            raise AdminError("Compaction already in progress", status=409)
        self._began[topic] = self._clock.monotonic()
        self.compactions += 1

    def compaction_status(self, topic: str) -> dict[str, Any]:
        """Return the state of the last compaction."""
        self.on_look()
        if self.error is not None:
            return {"status": "ERROR", "lastError": self.error}
        return {"status": "RUNNING" if self._is_running(topic) else "SUCCESS"}

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Return the compacted ledger, a new one after a compaction that reads use."""
        self.on_look()
        ledger = self.compactions if self._is_used else 0
        return {"compactedLedger": {"ledgerId": ledger}, "numberOfEntries": 1}

    def _is_running(self, topic: str) -> bool:
        return self._clock.monotonic() - self._began[topic] < self._seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the operators a clock that their sleeps move."""
    made: Any = stopped_clock(monkeypatch, module)
    made.sleep = made.advance
    return made  # type: ignore[no-any-return]


def compact(admin: FakeAdmin, operator: PulsarCompactTopicOperator | None = None, **options: Any) -> dict[str, str]:
    """Compact the topic and return the status by partition."""
    if operator is None:
        operator = PulsarCompactTopicOperator(task_id="t", topic="t", **options)
    found: dict[str, str] = operator._run(admin, {})["status"]  # type: ignore[arg-type]
    return found


def test_compact_waits_for_the_one_that_runs(clock: Clock) -> None:
    admin = FakeAdmin(clock, 5, is_busy=True)
    assert set(compact(admin, timeout_seconds=60).values()) == {"SUCCESS"}
    assert admin.compactions == 3


@pytest.mark.parametrize(("is_busy", "seconds"), [(False, 100), (True, 9)], ids=["own", "earlier"])
def test_compact_ends_at_its_limit(is_busy: bool, seconds: float, clock: Clock) -> None:
    began = clock.monotonic()
    with pytest.raises(AirflowException, match="is not compacted after 10 s"):
        compact(FakeAdmin(clock, seconds, is_busy=is_busy), timeout_seconds=10)
    assert 10 <= clock.monotonic() - began <= 11


@pytest.mark.parametrize(("limit", "waited"), [(10, 10), (3600, 3 * 30)], ids=["limit", "each"])
def test_compact_wait_for_reads_is_bounded(
    limit: float, waited: float, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    began = clock.monotonic()
    assert set(compact(FakeAdmin(clock, 1, is_used=False), timeout_seconds=limit).values()) == {"SUCCESS"}
    assert waited <= clock.monotonic() - began <= waited + 3
    assert capsys.readouterr().out.count("reads may not use that yet") == 3


def test_compact_failed_raises_the_reason(clock: Clock) -> None:
    admin = FakeAdmin(clock, 1)
    admin.error = "no bookie"
    with pytest.raises(AirflowException, match=r"could not compact persistent://.*: no bookie"):
        compact(admin)


@pytest.mark.parametrize("is_used", [True, False], ids=["running", "done"])
def test_compact_killed_raises_and_can_run_again(is_used: bool, clock: Clock) -> None:
    operator = PulsarCompactTopicOperator(task_id="t", topic="t", timeout_seconds=10)
    killed = FakeAdmin(clock, 100 if is_used else 1, is_used=is_used)
    killed.on_look = operator.on_kill
    with pytest.raises(AirflowException, match="the task was killed"):
        compact(killed, operator)
    assert set(compact(FakeAdmin(clock, 1), operator).values()) == {"SUCCESS"}
