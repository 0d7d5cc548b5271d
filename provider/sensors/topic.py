"""Topic sensor: waits until a topic exists, has N messages, or has one newer than a time.

Rules: poke, reschedule and deferrable mode share `pulsar_native.jobs.watching`. A broker that does not answer is waited
for until the time-out, whose error names the stage; refused credentials, a missing permission and a wrong name fail at
once and without retries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_provider_pulsar.exceptions import staged
from airflow_provider_pulsar.state import TaskState
from pulsar_native.jobs.failures import is_permanent
from pulsar_native.jobs.watching import TopicCondition, TopicWatcher

if TYPE_CHECKING:
    from airflow.sdk import Context

    from pulsar_native import ClientConfig

# The trigger ends by itself with a reason; Airflow's own limit is later, for a triggerer that does not respond.
_GRACE_SECONDS = 60
_STATE = "pulsar_counted"


class TopicSensor(BaseSensorOperator):
    """Wait until a topic exists, has a number of messages, or has one published at or after a time.

    :param topic: the topic, in any spelling; a partitioned one is looked at as a whole. Templated.
    :param messages: wait for at least so many stored messages. Templated.
    :param published_since: wait for a message published at or after this datetime, ISO-8601 text (UTC without zone) or
        time in milliseconds. Templated. Without both the sensor waits for the topic itself.
    :param deferrable: wait in the triggerer.
    :param pulsar_conn_id: the connection.
    :param poke_interval: seconds between two looks.

    `timeout`, `mode` (poke, reschedule), `soft_fail` and so on are those of every sensor. A missing topic is
    waited for. Returns topic, partitions, and messages or published_at.
    """

    template_fields: Sequence[str] = ("topic", "messages", "published_since")
    ui_color = "#d5e8fb"

    def __init__(
        self,
        *,
        topic: str,
        messages: int | str | None = None,
        published_since: datetime | str | int | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        pulsar_conn_id: str = "pulsar_default",
        poke_interval: timedelta | float = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.topic = topic
        self.messages = messages
        self.published_since = published_since
        self.deferrable = deferrable
        self.pulsar_conn_id = pulsar_conn_id
        self._watch: TopicWatcher | None = None
        self._deadline: float | None = None

    def execute(self, context: Context) -> Any:
        """Wait, and return the result of the check."""
        with staged(f"Waiting for {self.topic}", "arguments"):
            self._watch = TopicWatcher(TopicCondition.of(self.topic, self.messages, self.published_since))
        self._watch.restore(self._kept(context))
        if self.reschedule:
            # Each check is a process of its own; the base class knows the total time.
            self._deadline = None
        else:
            self._deadline = time.monotonic() + self.timeout
        if self.deferrable:
            found = self._first_look(context)
            if found:
                return found.xcom_value
            self._defer()
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(f"{error} Waited for {self._watch.wanted}; last: {self._watch.seen}") from error

    def _first_look(self, context: Context) -> PokeReturnValue:
        """Check before deferring; errors that other modes ignore in a check are ignored here too."""
        try:
            return self.poke(context)
        except AirflowException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipped as soft_fail or never_fail says: {error}") from error
            raise

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once. Raises permanent errors only."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native import PulsarException

        assert self._watch is not None
        config = PulsarHook(self.pulsar_conn_id).client_config()
        left = max(1.0, (self._deadline - time.monotonic()) if self._deadline is not None else self.timeout)
        config = config.replace(operation_timeout_seconds=min(config.operation_timeout_seconds, left))
        try:
            found = asyncio.run(_look(self._watch, config, left))
        except (PulsarException, OSError) as error:
            self._watch.failed(error)
            self._keep(context)
            if is_permanent(error):
                raise AirflowFailException(self._watch.seen) from error
            self.log.warning("%s", self._watch.seen)
            return PokeReturnValue(False)
        self.log.info("Waiting for %s: %s", self._watch.wanted, self._watch.seen)
        if found is None:
            self._keep(context)
        elif self.reschedule:
            TaskState(context, _STATE).delete()
        return PokeReturnValue(found is not None, found)

    # ---- counts over the processes of one try ------------------------------------------------------------------------

    def _kept(self, context: Context) -> Mapping[str, Any] | None:
        """Return the counts of an earlier process of this try: in reschedule mode every check has its own process."""
        if not self.reschedule or self.deferrable or self.messages in (None, ""):
            return None
        kept = TaskState(context, _STATE).get()
        if kept is None or (kept.get("topic"), kept.get("try")) != (self._topic(), context["ti"].try_number):
            return None
        found: Mapping[str, Any] = kept["counted"]
        return found

    def _keep(self, context: Context) -> None:
        counted = self._watch.state() if self._watch is not None else None
        if self.reschedule and not self.deferrable and counted:
            state = {"topic": self._topic(), "try": context["ti"].try_number, "counted": counted}
            TaskState(context, _STATE).set(state)

    def _topic(self) -> str:
        assert self._watch is not None
        return self._watch.wanted.topic

    # ---- deferrable --------------------------------------------------------------------------------------------------

    def _defer(self) -> None:
        from airflow_provider_pulsar.triggers.topic import TopicTrigger

        assert self._watch is not None
        wanted = self._watch.wanted
        self.defer(
            trigger=TopicTrigger(
                topic=wanted.topic,
                messages=wanted.messages,
                published_since=wanted.published_since,
                poll_interval=self.poke_interval,
                end_time=time.time() + max(1.0, (self._deadline or 0) - time.monotonic()),
                pulsar_conn_id=self.pulsar_conn_id,
                counted=self._watch.state(),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout + _GRACE_SECONDS),
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Return the trigger's result, or raise its error."""
        if event is None or "status" not in event:
            raise AirflowException(f"The trigger waiting for {self.topic} sent no event")
        if event["status"] == "found":
            self.log.info("Found %s", event["found"])
            return event["found"]
        if event["status"] == "timeout":
            raise AirflowSensorTimeout(event["message"])
        raise AirflowFailException(event["message"]) if event.get("permanent") else AirflowException(event["message"])


async def _look(watch: TopicWatcher, config: ClientConfig, seconds: float) -> dict[str, Any] | None:
    from pulsar_native.asyncio import Client

    client = Client.from_config(config)
    try:
        async with asyncio.timeout(seconds):
            found = await watch.look(client)
            await client.close()
            return found
    except BaseException:
        # A broker that does not answer would not answer closing commands either.
        client.shutdown()
        raise
