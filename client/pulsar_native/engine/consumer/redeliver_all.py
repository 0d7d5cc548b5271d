"""Redelivery of everything unacknowledged where the broker rewinds its cursor: Exclusive and Failover subscriptions.

Rules (measured on 4.2.4): a REDELIVER that arrives during a read loses that read's entries: they are too late to be
sent, and the cursor continues behind them, so that they are missing until the next attachment. The broker reads while
there are permits. So none are granted meanwhile, what still arrives is dropped (its epoch is older), the request is
written once the permits are used up or the topic's end is reached, and permits follow when the broker has responded to
a request sent behind it. On the loop, but for `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.exceptions import PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.consumer import ConsumerCore

# Limit for waiting for a topic whose last id cannot be reached (its end is compacted away, say).
_LIMIT_SECONDS = 3.0
_PAUSE_SECONDS = 0.02


class RewindingConsumer(ConsumerContext, Protocol):
    """Consumer of a partition whose cursor is moved back."""

    is_active: bool | None

    async def ask_last(self, connection: Connection) -> MessageId: ...
    def write_outgoing(self) -> None: ...


class RedeliverAll:
    """Redeliver-all requests of a partition's consumer; concurrent ones are merged."""

    def __init__(self, consumer: RewindingConsumer, core: ConsumerCore) -> None:
        self._consumer = consumer
        self._core = core
        # True while no permits are granted.
        self._is_waiting = False
        # True if redelivery was requested again after the last request was written.
        self._is_asked = False
        self._attachment = 0

    def start(self) -> None:
        """Start waiting, unless that is in progress. Under the lock, in any thread."""
        self._is_asked = True
        if not self._is_waiting:
            self._is_waiting = True
            self._attachment = self._core.attachment
            self._consumer.engine.call(self._begin)

    def _begin(self) -> None:
        self._consumer.engine.spawn(self._run())

    async def _run(self) -> None:
        consumer, core = self._consumer, self._core
        while self._is_waiting:
            await self._bounded(self._quiet)
            with consumer.lock:
                self._is_asked = False
                if self._is_attached:
                    core.rewind()
                    consumer.write_outgoing()
            await self._bounded(self._answered)
            with consumer.lock:
                # Requested again meanwhile: what was delivered since has an older epoch and is dropped.
                self._is_waiting = self._is_asked
                if not self._is_waiting:
                    core.end_rewind()
                    consumer.write_outgoing()
        if core.permits.on_demand:
            # With a queue of 0 a waiting receiver requests its permit again.
            consumer.look_again()

    async def _bounded(self, what: Callable[[], Awaitable[object]]) -> None:
        """Wait for a step with a time limit: without a response the request is written all the same."""
        with contextlib.suppress(PulsarException, TimeoutError):
            async with asyncio.timeout(_LIMIT_SECONDS):
                await what()

    @property
    def _is_attached(self) -> bool:
        return self._consumer.connection is not None and self._core.attachment == self._attachment

    async def _answered(self) -> None:
        """Return when the broker has processed the request: permits directly behind it would make it read on from the
        old position.
        """
        connection = self._consumer.connection
        if connection is not None and self._is_attached:
            await self._consumer.ask_last(connection)

    async def _quiet(self) -> None:
        """Return when the broker reads nothing, or nothing that matters."""
        consumer, core = self._consumer, self._core
        while core.attachment == self._attachment and core.permits.outstanding() > 0:
            connection = consumer.connection
            if connection is None:
                return
            last = await consumer.ask_last(connection)
            newest = core.newest
            if last.entry_id() < 0 or consumer.is_active is False:
                return
            if newest is not None and (newest.ledgerId, newest.entryId) >= (last.ledger_id(), last.entry_id()):
                return
            await asyncio.sleep(_PAUSE_SECONDS)
