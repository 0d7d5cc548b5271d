"""Schema trigger: waits until a topic has a schema in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.triggers.watching import WatchingTrigger
from pulsar_native.jobs.watching import arguments_of
from pulsar_native.jobs.watching_admin import SchemaCondition, SchemaWatcher

if TYPE_CHECKING:
    from pulsar_native.jobs.watching import Watcher


class SchemaTrigger(WatchingTrigger):
    """Wait for a schema; further arguments and the event are those of `WatchingTrigger`."""

    def __init__(
        self,
        topic: str,
        schema_type: str | None = None,
        poll_interval: float = 10,
        end_time: float | None = None,
        pulsar_conn_id: str = "pulsar_default",
        timeout_seconds: float | None = None,
        silent_fail: bool = False,
    ) -> None:
        super().__init__(poll_interval, end_time, pulsar_conn_id, timeout_seconds, silent_fail)
        self.topic = topic
        self.schema_type = schema_type

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        return arguments_of(SchemaCondition, self)

    def watcher(self) -> Watcher:
        """Return the watcher."""
        return SchemaWatcher(SchemaCondition.of(**self.condition()))
