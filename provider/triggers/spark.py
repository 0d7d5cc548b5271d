"""Trigger that waits for a driver of a Spark standalone cluster, by the master's REST server.

Rules: the loop is never blocked. A master that does not answer is asked again: a driver outlives its master's restart.
The driver is killed if a person ends the task, and only then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pulsar.hooks.spark_rest import UNREACHABLE_SECONDS, DriverWatch, SparkRestServer
from airflow_provider_pulsar.triggers.watching import LOG_SECONDS


class SparkDriverTrigger(BaseTrigger):
    """Wait until a driver is done; one event: {"driver_id": …, "state": …, "message": …}.

    :param rest_urls: addresses of the masters' REST servers.
    :param driver_id: the driver.
    :param poll_interval: seconds between two looks.
    :param unreachable_seconds: after how many seconds without an answer of any master the state is UNREACHABLE.
    """

    def __init__(
        self,
        rest_urls: Sequence[str],
        driver_id: str,
        poll_interval: float = 10,
        unreachable_seconds: float = UNREACHABLE_SECONDS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rest_urls = list(rest_urls)
        self.driver_id = driver_id
        self.poll_interval = poll_interval
        self.unreachable_seconds = unreachable_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        arguments = {
            "rest_urls": self.rest_urls,
            "driver_id": self.driver_id,
            "poll_interval": self.poll_interval,
            "unreachable_seconds": self.unreachable_seconds,
        }
        return "airflow_provider_pulsar.triggers.spark.SparkDriverTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait and send the event."""
        server, watch = SparkRestServer(self.rest_urls), DriverWatch(self.unreachable_seconds)
        logged, logged_at = "", 0.0
        while True:
            try:
                status = watch.answered(await server.astatus(self.driver_id))
            except AirflowException as error:
                status = watch.failed(error)
            if not status.is_active:
                yield self._event(status.state, status.message)
                return
            seen = status.message or status.state
            if seen != logged or time.monotonic() - logged_at >= LOG_SECONDS:
                logged, logged_at = seen, time.monotonic()
                self.log.info("Waiting for the Spark driver %s: %s", self.driver_id, seen)
            await asyncio.sleep(self.poll_interval)

    def _event(self, state: str, message: str) -> TriggerEvent:
        found = {"driver_id": self.driver_id, "state": state, "message": message}
        return TriggerEvent(found)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """End the driver: a person has ended the task."""
        await SparkRestServer(self.rest_urls).akill(self.driver_id)
