"""Topic trigger: waits for a topic, a number of messages, or a recent one, on the triggerer's event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.triggers.watching import WatchingTrigger
from pulsar_native.jobs.watching import TopicCondition, TopicWatcher

if TYPE_CHECKING:
    from datetime import datetime

    from pulsar_native.jobs.watching import Watcher


class TopicTrigger(WatchingTrigger):
    """Wait for a topic; further arguments and the event are those of `WatchingTrigger`.

    `counted` are the counts of an earlier check of the same task (`TopicWatcher.state`).
    """

    def __init__(
        self,
        topic: str,
        messages: int | str | None = None,
        published_since: datetime | str | int | None = None,
        poll_interval: float = 10,
        end_time: float | None = None,
        pulsar_conn_id: str = "pulsar_default",
        counted: dict[str, Any] | None = None,
        timeout_seconds: float | None = None,
        silent_fail: bool = False,
    ) -> None:
        super().__init__(poll_interval, end_time, pulsar_conn_id, timeout_seconds, silent_fail)
        self.topic = topic
        self.messages = messages
        self.published_since = published_since
        self.counted = counted

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        return {
            "topic": self.topic,
            "messages": self.messages,
            "published_since": self.published_since,
            "counted": self.counted,
        }

    def watcher(self) -> Watcher:
        """Return the watcher, continued from earlier counts."""
        watch = TopicWatcher(TopicCondition.of(self.topic, self.messages, self.published_since))
        watch.restore(self.counted)
        return watch
