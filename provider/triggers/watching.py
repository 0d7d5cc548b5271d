"""Base of triggers that look at a condition again and again on the triggerer's event loop.

Rules: one asyncio client for the trigger's life, replaced after a failure. No thread of our own, and nothing that
blocks the loop. Events have JSON values only, since anything else stops the whole triggerer. The trigger always ends
with an event.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pulsar.context import redacted
from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import explain, is_permanent
from pulsar_native.jobs.watching import MIN_LOOK_SECONDS, config_of_look

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from airflow.sdk import DAG, Context
    from jinja2 import Environment

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native.asyncio import Client
    from pulsar_native.jobs.watching import Watcher

# The trigger ends by itself with a reason; Airflow's own limit is later by so many seconds, for a triggerer that does
# not respond.
GRACE_SECONDS = 60
# Interval of log records for an unchanged result, in seconds.
LOG_SECONDS = 60


class WatchingTrigger(BaseTrigger):
    """Look every `poll_interval` seconds until the condition holds, or `end_time` (seconds since 1970) passes.

    `timeout_seconds` is the limit of a task that is started in the triggerer, from when Airflow has deferred it; in
    `dag.test()`, which has no such time, from the first look. `silent_fail` is the sensor's: an error that is not
    permanent, such as a connection that does not exist, is logged, and the wait goes on.
    Sends one event: {"status": "found", "found": {…}}, {"status": "timeout", "message": …}, or {"status": "error",
    "message": …, "permanent": True if no retry helps}.
    """

    topic: str

    def __init__(
        self,
        poll_interval: float = 10,
        end_time: float | None = None,
        pulsar_conn_id: str = "pulsar_default",
        timeout_seconds: float | None = None,
        silent_fail: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poll_interval = poll_interval
        self.end_time = end_time
        self.pulsar_conn_id = pulsar_conn_id
        self.timeout_seconds = timeout_seconds
        self.silent_fail = silent_fail
        self._logged: tuple[str, float] | None = None
        self._not_rendered: Exception | None = None

    @abstractmethod
    def watcher(self) -> Watcher:
        """Return the watcher of the condition, after rendering; raises ValueError for wrong arguments."""

    @abstractmethod
    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition, as JSON."""

    def found_at(self, hook: PulsarHook, found: dict[str, Any]) -> dict[str, Any]:
        """Return what a look found with this connection, as the event is to have it."""
        return found

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        arguments = {
            "poll_interval": self.poll_interval,
            "end_time": self.end_time,
            "pulsar_conn_id": self.pulsar_conn_id,
            "timeout_seconds": self.timeout_seconds,
            "silent_fail": self.silent_fail,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", {**self.condition(), **arguments}

    def get_template_env(self, dag: DAG | None = None) -> Environment:
        """Return Airflow's environment for templates, in which an undefined name is an error as in workers."""
        from jinja2 import StrictUndefined

        environment: Environment = super().get_template_env(dag)
        environment.undefined = StrictUndefined
        return environment

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Render the templates of a task that is started in the triggerer; the event of `run` has the error."""
        from jinja2 import TemplateError

        try:
            super().render_template_fields(context, jinja_env)
        except TemplateError as error:
            self._not_rendered = validation.InvalidValue(
                f"a template cannot be rendered in the triggerer, which has no macros and filters of the DAG: "
                f"{redacted(str(error))}"
            )
        except Exception as error:
            # Of a variable or a connection that is missing, for instance.
            self._not_rendered = error

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait and send the event."""
        if self.end_time is None and self.timeout_seconds is not None:
            self.end_time = self._started() + self.timeout_seconds
        while True:
            event = await self._attempt()
            ends = event["status"] != "error" or event["permanent"] or self._not_rendered is not None
            if not self.silent_fail or ends:
                break
            self.log.error("%s", event["message"])
            left = self._left()
            if left is not None and left <= 0:
                event = {"status": "timeout", "message": f"The time is over. {event['message']}"}
                break
            await self._pause(left)
        yield _event(event)

    async def _attempt(self) -> dict[str, Any]:
        watch: Watcher | None = None
        try:
            if self._not_rendered is not None:
                raise self._not_rendered
            await self._name_topic()
            watch = self.watcher()
            return await self._wait(watch)
        except Exception as error:
            # It would end the task without a reason.
            wanted = self.condition().get("topic") if watch is None else watch.wanted
            text = explain(error, action=f"Waiting for {wanted}", stage=watch.stage if watch else "arguments")
            permanent = is_permanent(error) or (watch is None and isinstance(error, ValueError))
            return {"status": "error", "message": text, "permanent": permanent}

    def _started(self) -> float:
        """Return when Airflow deferred a task that is started in the triggerer, now where that is not known.

        It gives the trigger no such time, but sets `timeout_after`, the limit of its own, to the sum of that time and
        the sensor's, which the task's `execution_timeout` may shorten.
        """
        limit: datetime | None = getattr(self, "timeout_after", None)
        if limit is None or self.timeout_seconds is None:
            return time.time()
        seconds = self.timeout_seconds + GRACE_SECONDS
        execution_timeout: timedelta | None = getattr(self.task, "execution_timeout", None)
        if execution_timeout is not None:
            seconds = min(seconds, execution_timeout.total_seconds())
        # Not beyond now, where the clocks of scheduler and triggerer differ.
        return min(limit.timestamp() - seconds, time.time())

    async def _name_topic(self) -> None:
        """Replace a short name by that in the connection's default namespace, which is read for such a name only."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        if isinstance(self.topic, str) and "/" not in self.topic:
            hook = PulsarHook(self.pulsar_conn_id)
            await hook.aclient_config()
            self.topic = hook.topic_name(self.topic)

    async def _wait(self, watch: Watcher) -> dict[str, Any]:
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native.asyncio import Client
        from pulsar_native.exceptions import PulsarException

        client: Client | None = None
        try:
            while True:
                try:
                    if client is None:
                        # A corrected connection is read by a new hook only.
                        hook = PulsarHook(self.pulsar_conn_id)
                        if watch.uses == "client":
                            config = config_of_look(await hook.aclient_config(), self._for_one_look())
                            client = Client.from_config(config)
                    source: Any = client if watch.uses == "client" else await hook.aget_admin()
                    async with asyncio.timeout(self._for_one_look()):
                        found = await watch.look(source)
                    if found is not None:
                        self.log.info("Waiting for %s: %s", watch.wanted, watch.seen)
                        await _release(client)
                        return {"status": "found", "found": self.found_at(hook, found)}
                except (PulsarException, OSError) as error:
                    # A corrected connection is no reason to give up.
                    if is_permanent(error) and not await hook.ais_outdated():
                        raise
                    watch.failed(error)
                    if client is not None:
                        client.shutdown()
                        client = None
                self._tell(watch)
                left = self._left()
                if left is not None and left <= 0:
                    text = f"The time is over. Waited for {watch.wanted}; last: {watch.seen}"
                    return {"status": "timeout", "message": text}
                await self._pause(left)
        finally:
            if client is not None:
                client.shutdown()

    def _tell(self, watch: Watcher) -> None:
        """Log the last result if it changed or nothing was logged for a minute."""
        now = time.monotonic()
        if self._logged is None or self._logged[0] != watch.seen or now - self._logged[1] >= LOG_SECONDS:
            self._logged = (watch.seen, now)
            self.log.info("Waiting for %s: %s", watch.wanted, watch.seen)

    async def _pause(self, left: float | None) -> None:
        await asyncio.sleep(self.poll_interval if left is None else min(self.poll_interval, left))

    def _for_one_look(self) -> float | None:
        # The last check may begin when the time is over.
        left = self._left()
        return None if left is None else max(MIN_LOOK_SECONDS, left)

    def _left(self) -> float | None:
        return None if self.end_time is None else self.end_time - time.time()


async def _release(client: Client | None) -> None:
    """Close what the look opened, so that the broker gives a message that was found to the task that resumes."""
    from pulsar_native.exceptions import PulsarException

    if client is not None:
        try:
            await client.close()
        except PulsarException:
            # The connections are dropped next, which has the same effect a little later.
            client.shutdown()


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
