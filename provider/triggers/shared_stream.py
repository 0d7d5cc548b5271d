"""Broker's side of a watcher's shared stream in ack mode: one consumer of one durable subscription.

May be imported in a triggerer only. Rules: a message is acknowledged when every trigger of the stream is past it and
its events are stored; it is redelivered where a trigger failed, where one was cancelled before Airflow had queued its
event, or where none was there; a rejected one becomes a dead letter. Every message is an advance lane of its own, so
that none waits for another. An error of the broker never ends the stream: Airflow would start it again at once, for
ever.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_pulsar.context import redacted
from airflow_provider_pulsar.deployment import deployment_id
from airflow_provider_pulsar.hooks.pulsar import PulsarHook
from airflow_provider_pulsar.triggers.msg_queue import (
    ASSET,
    TASK,
    StreamEvent,
    check_allowed,
    stream_options,
    subscription_name,
)
from pulsar_native.jobs.failures import explain
from pulsar_native.jobs.matching import MessageMatch
from pulsar_native.jobs.matching_stream import Delivery, MatchingStream, Predicate

if TYPE_CHECKING:
    from pulsar_native.asyncio import Client

log = logging.getLogger(__name__)

_RETRY_SECONDS = 30


class PulsarStreamProducer(SharedStreamProducer):
    """Consumer of the subscription of a trigger's arguments; connects in `open_stream`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        # Of the client in use.
        self._hook = PulsarHook(arguments.get("pulsar_conn_id", "pulsar_default"))
        self._stream: MatchingStream | None = None
        # Events by the key of their delivery, until it is settled.
        self._offered: dict[Any, StreamEvent] = {}

    async def open_stream(self) -> AsyncGenerator[tuple[StreamEvent, Delivery], None]:
        """Yield events with their deliveries, for ever; errors are logged, and the connection is made again."""
        while self._stream is None:
            try:
                self._stream = await self._opened()
            except Exception as error:
                # Airflow's answer for connection or variable, or the import of a function, may come later.
                text = explain(error, action=f"The watcher {self._arguments}", stage="settings")
                log.warning("%s; the next attempt follows in %d s", text, _RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)
        async for payload, delivery in self._stream.events():
            event = self._offered[delivery.key] = StreamEvent(payload)
            yield event, delivery

    async def _opened(self) -> MatchingStream:
        arguments = self._arguments
        hook = PulsarHook(self._hook.pulsar_conn_id)
        await hook.aclient_config()
        # Airflow's variables are read by a blocking call, which the loop of a triggerer refuses.
        deployment = "" if arguments.get("subscription") else await asyncio.to_thread(_deployment, hook)
        asset = arguments.get(ASSET)
        # The subscription's name stays that of the arguments as they were given.
        options = stream_options(
            {**arguments, **_full_names(arguments, hook), "receiver_queue_size": _window(arguments)},
            subscription_name(arguments, deployment),
            {"created_by": "airflow", **({} if asset is None else {"asset": asset})},
        )
        path = arguments.get("match_function")
        predicate = None if path is None else await asyncio.to_thread(_function, path)
        return MatchingStream(
            *(self._connect, options, log, MessageMatch(arguments.get("match"))),
            predicate=predicate,
            redact=redacted,
            is_outdated=lambda: self._hook.ais_outdated(),
        )

    async def _connect(self) -> Client:
        """Return a client of the connection as it is now: a hook reads it once."""
        self._hook = PulsarHook(self._hook.pulsar_conn_id)
        return await self._hook.get_async_client()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge, redeliver or publish as a dead letter each message, by what the triggers did with it."""
        assert self._stream is not None
        for delivery, outcome in batch:
            event = self._offered.pop(delivery.key, None)
            if outcome.rejected:
                await self._stream.dead_letter(delivery)
            elif outcome.is_clean and (event is None or not event.pending):
                await self._stream.acknowledge(delivery)
            else:
                await self._stream.redeliver(delivery)

    async def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge one message."""
        assert self._stream is not None
        self._offered.pop(delivery.key, None)
        await self._stream.acknowledge(delivery)

    def get_advance_lane(self, broker_payload: Delivery) -> Any:
        """Return the message's id: messages are acknowledged one by one."""
        return broker_payload.key

    async def aclose(self) -> None:
        """Close the connection; unacknowledged messages go to the next consumer of the subscription."""
        if self._stream is not None:
            await self._stream.aclose()


def _deployment(hook: PulsarHook) -> str:
    return deployment_id(hook.deployment_id())


def _full_names(arguments: Mapping[str, Any], hook: PulsarHook) -> dict[str, Any]:
    """Return the arguments that name topics, short names in the connection's default namespace."""
    found: dict[str, Any] = {}
    if topic := arguments.get("topic"):
        found["topic"] = [hook.topic_name(name) for name in ([topic] if isinstance(topic, str) else topic)]
    if letters := arguments.get("dead_letter_topic"):
        found["dead_letter_topic"] = hook.topic_name(letters)
    return found


def _window(arguments: Mapping[str, Any]) -> int:
    """Return how many messages may be unsettled: Airflow fails a trigger whose queue overflows."""
    limit: int = conf.getint("triggerer", "shared_stream_subscriber_queue_size", fallback=1024)
    # A deferred task takes one message: others of its subscription are for other consumers.
    default = 1 if TASK in arguments else 200
    return max(1, min(limit, int(arguments.get("receiver_queue_size", default))))


def _function(path: str) -> Predicate:
    check_allowed(path)
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    if not callable(found):
        raise ValueError(f"match_function={path!r} is no function")
    return found  # type: ignore[no-any-return]
