"""Message trigger: waits for a message of a subscription that matches; the task that resumes acknowledges it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.assets.pulsar import cluster_uri
from airflow_provider_pulsar.triggers.watching import WatchingTrigger
from airflow_provider_pulsar.xcom import xcom_value
from pulsar_native.jobs.watching import arguments_of
from pulsar_native.jobs.watching_message import CLUSTER, MessageCondition, MessageWatcher

if TYPE_CHECKING:
    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native.jobs.watching import Watcher


class MessageTrigger(WatchingTrigger):
    """Wait for a message by a `MessageCondition`; further arguments and the event are those of `WatchingTrigger`."""

    def __init__(
        self,
        topic: str,
        subscription: str,
        match: Mapping[str, Any] | None = None,
        subscription_type: str = "exclusive",
        initial_position: str = "earliest",
        decode: str = "auto",
        unmatched: str = "keep",
        value_limit_bytes: int = 48 * 1024,
        private_keys: Mapping[str, str] | None = None,
        poll_interval: float = 10,
        end_time: float | None = None,
        pulsar_conn_id: str = "pulsar_default",
        timeout_seconds: float | None = None,
        silent_fail: bool = False,
    ) -> None:
        super().__init__(poll_interval, end_time, pulsar_conn_id, timeout_seconds, silent_fail)
        self.topic = topic
        self.subscription = subscription
        self.match = match
        self.subscription_type = subscription_type
        self.initial_position = initial_position
        self.decode = decode
        self.unmatched = unmatched
        self.value_limit_bytes = value_limit_bytes
        self.private_keys = private_keys

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        return arguments_of(MessageCondition, self)

    def watcher(self) -> Watcher:
        """Return the watcher."""
        return MessageWatcher(MessageCondition.of(**self.condition()))

    def found_at(self, hook: PulsarHook, found: dict[str, Any]) -> dict[str, Any]:
        """Return the message with its cluster, as Airflow can store it."""
        event: dict[str, Any] = xcom_value({**found, CLUSTER: cluster_uri(hook.service_url())})
        return event
