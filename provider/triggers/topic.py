"""Topic trigger: waits for a topic on the triggerer's event loop.

Rules: one asyncio client for the trigger's life, replaced after a failure. No thread, and nothing that blocks the loop.
Events have JSON values only, since anything else stops the whole triggerer. The trigger always ends with an event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from pulsar_native.jobs.failures import explain, is_permanent
from pulsar_native.jobs.watching import TopicCondition, TopicWatcher

if TYPE_CHECKING:
    from pulsar_native.asyncio import Client

# Interval of log records for an unchanged result, in seconds.
_LOG_SECONDS = 60


class TopicTrigger(BaseTrigger):
    """Check a topic every `poll_interval` seconds until the condition holds, or `end_time` (seconds since 1970) passes.

    `counted` are the counts of an earlier check of the same task (`TopicWatcher.state`). Sends one event: {"status":
    "found", "found": {…}}, {"status": "timeout", "message": …}, or {"status": "error", "message": …, "permanent": True
    if no retry helps}.
    """

    def __init__(
        self,
        topic: str,
        messages: int | None = None,
        published_since: int | None = None,
        poll_interval: float = 10,
        end_time: float | None = None,
        pulsar_conn_id: str = "pulsar_default",
        counted: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topic = topic
        self.messages = messages
        self.published_since = published_since
        self.poll_interval = poll_interval
        self.end_time = end_time
        self.pulsar_conn_id = pulsar_conn_id
        self.counted = counted
        self._logged: tuple[str, float] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return (
            "airflow_provider_pulsar.triggers.topic.TopicTrigger",
            {
                "topic": self.topic,
                "messages": self.messages,
                "published_since": self.published_since,
                "poll_interval": self.poll_interval,
                "end_time": self.end_time,
                "pulsar_conn_id": self.pulsar_conn_id,
                "counted": self.counted,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait and send the event."""
        watch: TopicWatcher | None = None
        try:
            watch = TopicWatcher(TopicCondition.of(self.topic, self.messages, self.published_since))
            watch.restore(self.counted)
            yield _event(await self._wait(watch))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Any other exception would end the task without a reason.
            text = explain(error, action=f"Waiting for {self.topic}", stage=watch.stage if watch else "arguments")
            yield _event({"status": "error", "message": text, "permanent": is_permanent(error)})

    async def _wait(self, watch: TopicWatcher) -> dict[str, Any]:
        from pulsar_native.exceptions import PulsarException

        client: Client | None = None
        try:
            while True:
                try:
                    client = client or await self._client()
                    async with asyncio.timeout(self._for_one_look()):
                        found = await watch.look(client)
                    if found is not None:
                        return {"status": "found", "found": found}
                except (PulsarException, OSError) as error:
                    if is_permanent(error):
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
                await asyncio.sleep(self.poll_interval if left is None else min(self.poll_interval, left))
        finally:
            if client is not None:
                client.shutdown()

    def _tell(self, watch: TopicWatcher) -> None:
        """Log the last result if it changed or nothing was logged for a minute."""
        now = time.monotonic()
        if self._logged is None or self._logged[0] != watch.seen or now - self._logged[1] >= _LOG_SECONDS:
            self._logged = (watch.seen, now)
            self.log.info("Waiting for %s: %s", watch.wanted, watch.seen)

    async def _client(self) -> Client:
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        return await PulsarHook(self.pulsar_conn_id).get_async_client()

    def _for_one_look(self) -> float | None:
        # The last check may begin when the time is over.
        left = self._left()
        return None if left is None else max(1.0, left)

    def _left(self) -> float | None:
        return None if self.end_time is None else self.end_time - time.time()


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
