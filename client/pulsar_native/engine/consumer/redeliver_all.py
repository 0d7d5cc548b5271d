"""Redelivery of everything unacknowledged where the broker rewinds its cursor: Exclusive and Failover subscriptions.

Rules (measured on 4.2.4): a REDELIVER that arrives during a read loses that read's entries: they are too late to be
sent, and the cursor continues behind them, so that they are missing until the next attachment. The broker reads while
there are permits. So none are granted meanwhile, what still arrives is dropped (its epoch is older), the request is
written once the permits are used up or the topic's end is reached, and permits follow when the broker has responded to
a request sent behind it. Where neither comes to be known in time (a slow broker, an end that is never delivered), a
durable subscription is attached to again instead, which redelivers everything, too. On the loop, but for `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.exceptions import PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.consumer import ConsumerCore

# Limit for waiting for a topic whose last id cannot be reached (its end is compacted away, say).
_LIMIT_SECONDS = 3.0
_PAUSE_SECONDS = 0.02


class RedeliverAll:
    """Redeliver-all requests of a partition's consumer; concurrent ones are merged."""

    def __init__(
        self,
        context: ConsumerContext,
        core: ConsumerCore,
        *,
        ask_last: Callable[[Connection], Awaitable[MessageId]],
        is_active: Callable[[], bool | None],
        write_outgoing: Callable[[], None],
        look_again: Callable[[], None],
        reattach: Callable[[Connection], Awaitable[None]] | None,
    ) -> None:
        """`write_outgoing` writes the commands of the core, under the lock; `look_again` wakes those who receive.

        `reattach` closes the consumer at the broker and attaches it again; None where that redelivers nothing.
        """
        self._context = context
        self._core = core
        self._ask_last = ask_last
        self._is_active = is_active
        self._write_outgoing = write_outgoing
        self._look_again = look_again
        self._reattach = reattach
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
            self._context.engine.call(self._begin)

    def _begin(self) -> None:
        self._context.engine.spawn(self._run())

    async def _run(self) -> None:
        core, lock = self._core, self._context.lock
        while self._is_waiting:
            if not await self._bounded(self._quiet):
                await self._attach_again()
            with lock:
                self._is_asked = False
                if self._is_attached:
                    core.rewind()
                    self._write_outgoing()
            await self._bounded(self._answered)
            with lock:
                # Requested again meanwhile: what was delivered since has an older epoch and is dropped.
                self._is_waiting = self._is_asked
                if not self._is_waiting:
                    core.end_rewind()
                    self._write_outgoing()
        if core.permits.on_demand:
            # With a queue of 0 a waiting receiver requests its permit again.
            self._look_again()

    async def _bounded(self, what: Callable[[], Awaitable[object]]) -> bool:
        """Wait for a step with a time limit; return False if it passed."""
        try:
            async with asyncio.timeout(_LIMIT_SECONDS):
                await what()
        except PulsarException:
            # The connection is lost: the next attachment redelivers everything.
            return True
        except TimeoutError:
            return False
        return True

    async def _attach_again(self) -> None:
        """Attach again where a request might meet a read; a reader, which would go on behind its last message, may
        not.
        """
        connection = self._context.connection()
        if self._reattach is not None and connection is not None and self._is_attached:
            with contextlib.suppress(PulsarException):
                await self._reattach(connection)

    @property
    def _is_attached(self) -> bool:
        return self._context.connection() is not None and self._core.attachment == self._attachment

    async def _answered(self) -> None:
        """Return when the broker has processed the request: permits directly behind it would make it read on from the
        old position.
        """
        connection = self._context.connection()
        if connection is not None and self._is_attached:
            await self._ask_last(connection)

    async def _quiet(self) -> None:
        """Return when the broker reads nothing, or nothing that matters."""
        core = self._core
        while core.attachment == self._attachment and core.permits.outstanding() > 0:
            connection = self._context.connection()
            if connection is None:
                return
            last = await self._ask_last(connection)
            newest = core.newest
            if last.entry_id() < 0 or self._is_active() is False:
                return
            if newest is not None and (newest.ledgerId, newest.entryId) >= (last.ledger_id(), last.entry_id()):
                return
            await asyncio.sleep(_PAUSE_SECONDS)
