"""Trigger that waits for a driver of a Spark standalone cluster, by the master's REST server.

Rules: the loop is never blocked. A master that does not answer is asked again: a driver outlives its master's restart.
The driver is killed if a person ends the task or its time is over, and only then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pulsar.hooks.spark_rest import TIMEOUT, UNREACHABLE_SECONDS, DriverWatch, SparkRestServer
from airflow_provider_pulsar.triggers.watching import LOG_SECONDS
from pulsar_native.jobs.watching import MIN_LOOK_SECONDS

GRACE_SECONDS = 60
"""Seconds by which Airflow's own time-out is later: the trigger ends the driver, and the task with a reason."""
_KILL_SECONDS = 30


class SparkDriverTrigger(BaseTrigger):
    """Wait until a driver is done; one event: {"driver_id": …, "state": …, "message": …}.

    :param rest_urls: addresses of the masters' REST servers.
    :param driver_id: the driver.
    :param poll_interval: seconds between two looks.
    :param unreachable_seconds: after how many seconds without an answer of any master the state is UNREACHABLE.
    :param end_time: when the driver is killed, in seconds since 1970; then the state is TIMEOUT. None for no limit.
    """

    def __init__(
        self,
        rest_urls: Sequence[str],
        driver_id: str,
        poll_interval: float = 10,
        unreachable_seconds: float = UNREACHABLE_SECONDS,
        end_time: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rest_urls = list(rest_urls)
        self.driver_id = driver_id
        self.poll_interval = poll_interval
        self.unreachable_seconds = unreachable_seconds
        self.end_time = end_time

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        arguments = {
            "rest_urls": self.rest_urls,
            "driver_id": self.driver_id,
            "poll_interval": self.poll_interval,
            "unreachable_seconds": self.unreachable_seconds,
            "end_time": self.end_time,
        }
        return "airflow_provider_pulsar.triggers.spark.SparkDriverTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait and send the event."""
        server, watch = SparkRestServer(self.rest_urls), DriverWatch(self.unreachable_seconds)
        logged, logged_at = "", 0.0
        while True:
            left = self._left()
            try:
                # The last look may begin when the time is over.
                async with asyncio.timeout(None if left is None else max(MIN_LOOK_SECONDS, left)):
                    status = watch.answered(await server.astatus(self.driver_id))
            except (AirflowException, TimeoutError) as error:
                status = watch.failed(error)
            if not status.is_active:
                yield self._event(status.state, status.message)
                return
            left = self._left()
            if left is not None and left <= 0:
                yield self._event(TIMEOUT, await self._end_late(server))
                return
            seen = status.message or status.state
            if seen != logged or time.monotonic() - logged_at >= LOG_SECONDS:
                logged, logged_at = seen, time.monotonic()
                self.log.info("Waiting for the Spark driver %s: %s", self.driver_id, seen)
            await asyncio.sleep(self.poll_interval if left is None else min(self.poll_interval, left))

    def _left(self) -> float | None:
        return None if self.end_time is None else self.end_time - time.time()

    async def _end_late(self, server: SparkRestServer) -> str:
        """Kill the driver whose time is over, and return what became of it."""
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                await server.akill(self.driver_id)
        except (AirflowException, TimeoutError) as error:
            return f"it could not be killed and may still write: {str(error) or 'no answer'}"
        return "it was killed"

    def _event(self, state: str, message: str) -> TriggerEvent:
        found = {"driver_id": self.driver_id, "state": state, "message": message}
        return TriggerEvent(found)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """End the driver: a person has ended the task."""
        await SparkRestServer(self.rest_urls).akill(self.driver_id)
