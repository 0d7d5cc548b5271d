"""Topic sensor: waits until a topic exists, has N messages, or has one newer than a time. Readers only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.sensors.watching import WatchingSensor
from airflow_provider_pulsar.state import TaskState
from pulsar_native.jobs.watching import TopicCondition, TopicWatcher

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

_STATE = "pulsar_counted"


class TopicSensor(WatchingSensor):
    """Wait until a topic exists, has a number of messages, or has one published at or after a time.

    :param topic: the topic, in any spelling; a partitioned one is looked at as a whole. Templated.
    :param messages: wait for at least so many stored messages, also encrypted ones and such in chunks. A broker with
        message indexes counts each chunk, if neither the first nor the last message is in chunks. Templated.
    :param published_since: wait for a message published at or after this datetime, ISO-8601 text (UTC without zone) or
        time in milliseconds. Templated. Without both the sensor waits for the topic itself.
    :param deferrable: wait in the triggerer.
    :param start_from_trigger: begin in the triggerer, without a worker for the first look; needs `deferrable`. Not for
        mapped tasks, nor for arguments that are the result of another task.
    :param pulsar_conn_id: the connection.
    :param poke_interval: seconds between two looks.

    `timeout`, `mode` (poke, reschedule), `soft_fail` and so on are those of every sensor. A missing topic is
    waited for. Returns topic, partitions, and messages or published_at.
    """

    template_fields: Sequence[str] = ("topic", "messages", "published_since")
    trigger_class = "airflow_provider_pulsar.triggers.topic.TopicTrigger"
    _watch: TopicWatcher | None

    def __init__(
        self,
        *,
        topic: str,
        messages: int | str | None = None,
        published_since: datetime | str | int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.messages = messages
        self.published_since = published_since
        self.prepare()

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        since = self.published_since
        return {
            "topic": self.topic,
            "messages": self.messages,
            "published_since": since.isoformat() if isinstance(since, datetime) else since,
        }

    def watcher(self) -> TopicWatcher:
        """Return the watcher."""
        return TopicWatcher(TopicCondition.of(self.topic, self.messages, self.published_since))

    def trigger(self, end_time: float) -> BaseTrigger:
        """Return the trigger, continued from the counts of the first look."""
        from airflow_provider_pulsar.triggers.topic import TopicTrigger

        assert self._watch is not None
        wanted = self._watch.wanted
        return TopicTrigger(
            topic=wanted.topic,
            messages=wanted.messages,
            published_since=wanted.published_since,
            end_time=end_time,
            counted=self._watch.state(),
            **self._trigger_options(),
        )

    # ---- counts over the processes of one try ------------------------------------------------------------------------

    def restore(self, context: Context) -> None:
        """Continue the counts of an earlier process of this try: in reschedule mode every look has its own process."""
        if not self.reschedule or self.deferrable or self.messages is None or self._watch is None:
            return
        kept = TaskState(context, _STATE).get()
        if kept is not None and (kept.get("topic"), kept.get("try")) == (self._topic(), context["ti"].try_number):
            self._watch.restore(kept["counted"])

    def keep(self, context: Context, *, is_done: bool) -> None:
        """Keep the counts, or delete them at the end."""
        if not self.reschedule or self.deferrable or self._watch is None:
            return
        counted = self._watch.state()
        if is_done:
            TaskState(context, _STATE).delete()
        elif counted:
            state = {"topic": self._topic(), "try": context["ti"].try_number, "counted": counted}
            TaskState(context, _STATE).set(state)

    def _topic(self) -> str:
        assert self._watch is not None
        return self._watch.wanted.topic
