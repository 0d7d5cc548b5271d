"""Subscription sensor: waits for a backlog, or until a subscription has caught up. No consumer is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_pulsar.sensors.watching import WatchingSensor
from pulsar_native.jobs.watching import arguments_of
from pulsar_native.jobs.watching_admin import SubscriptionCondition, SubscriptionWatcher


class SubscriptionSensor(WatchingSensor):
    """Wait until a subscription has a backlog of at least so many entries, or none.

    The backlog is the broker's own count over all partitions, in entries: a batch of messages is one. It needs the
    admin interface of the connection. A missing topic or subscription is waited for.

    :param topic: the topic, in any spelling; a partitioned one is looked at as a whole. Templated.
    :param subscription: the name of the subscription, which is neither created nor changed. Templated.
    :param backlog: wait for at least so many entries. Templated.
    :param caught_up: True waits until the backlog is 0. Exactly one of both is needed.
    :param deferrable: wait in the triggerer.
    :param start_from_trigger: begin in the triggerer, without a worker for the first look; needs `deferrable`. Not for
        mapped tasks, nor for arguments that are the result of another task.
    :param pulsar_conn_id: the connection.
    :param poke_interval: seconds between two looks.

    Returns topic, subscription and backlog.
    """

    template_fields: Sequence[str] = ("topic", "subscription", "backlog")
    trigger_class = "airflow_provider_pulsar.triggers.subscription.SubscriptionTrigger"

    def __init__(
        self,
        *,
        topic: str,
        subscription: str,
        backlog: int | str | None = None,
        caught_up: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.subscription = subscription
        self.backlog = backlog
        self.caught_up = caught_up
        self.prepare()

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        return arguments_of(SubscriptionCondition, self)

    def watcher(self) -> SubscriptionWatcher:
        """Return the watcher."""
        return SubscriptionWatcher(SubscriptionCondition.of(**self.condition()))
