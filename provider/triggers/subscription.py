"""Subscription trigger: waits for a backlog, or for none, by the subscription's own statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.triggers.watching import WatchingTrigger
from pulsar_native.jobs.watching import arguments_of
from pulsar_native.jobs.watching_admin import SubscriptionCondition, SubscriptionWatcher

if TYPE_CHECKING:
    from pulsar_native.jobs.watching import Watcher


class SubscriptionTrigger(WatchingTrigger):
    """Wait for a subscription; further arguments and the event are those of `WatchingTrigger`."""

    def __init__(
        self,
        topic: str,
        subscription: str,
        backlog: int | str | None = None,
        caught_up: bool = False,
        poll_interval: float = 10,
        end_time: float | None = None,
        pulsar_conn_id: str = "pulsar_default",
        timeout_seconds: float | None = None,
        silent_fail: bool = False,
    ) -> None:
        super().__init__(poll_interval, end_time, pulsar_conn_id, timeout_seconds, silent_fail)
        self.topic = topic
        self.subscription = subscription
        self.backlog = backlog
        self.caught_up = caught_up

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        return arguments_of(SubscriptionCondition, self)

    def watcher(self) -> Watcher:
        """Return the watcher."""
        return SubscriptionWatcher(SubscriptionCondition.of(**self.condition()))
