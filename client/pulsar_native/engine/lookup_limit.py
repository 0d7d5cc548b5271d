"""Limit of the lookups of one client that are on their way (`concurrent_lookup_requests`), and of those that wait.

Rules: a free slot may be taken by any thread, waiting for one is on the loop; who waits is served in order, before
everybody who comes later. A slot that is released while somebody waits is handed over, and never free in between.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from pulsar_native.engine.loop import Engine
from pulsar_native.exceptions import TooManyLookupRequestException


class LookupQueueIsFull(TooManyLookupRequestException):
    """Raised when the client's own lookup limit is reached, which is not retried."""


class LookupLimit:
    """Slots of the lookups of one client."""

    def __init__(self, engine: Engine, slots: int, max_waiting: int) -> None:
        """Make `slots` slots, for which at most `max_waiting` lookups may wait."""
        self._engine = engine
        self._slots = slots
        self._free = slots
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiters: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Take a slot if one is free. Thread-safe, never blocks."""
        with self._lock:
            if not self._free:
                return False
            self._free -= 1
            return True

    async def acquire(self) -> None:
        """Take a slot, waiting for it; raises `LookupQueueIsFull` when too many wait already. On the loop."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            if len(self._waiters) >= self._max_waiting:
                raise LookupQueueIsFull(
                    f"{self._slots} lookups are on their way and {len(self._waiters)} wait; "
                    "raise max_lookup_requests or concurrent_lookup_requests, or create less at once"
                )
            handed_over: asyncio.Future[None] = self._engine.loop.create_future()
            self._waiters.append(handed_over)
        try:
            await handed_over
        except asyncio.CancelledError:
            with self._lock:
                waits = handed_over in self._waiters
                if waits:
                    self._waiters.remove(handed_over)
            if not waits and not handed_over.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back: to who waits longest, if anybody does. Thread-safe."""
        with self._lock:
            if not self._waiters:
                self._free += 1
                return
            handed_over = self._waiters.popleft()
        self._engine.call(self._hand_over, handed_over)

    def _hand_over(self, to: asyncio.Future[None]) -> None:
        if to.done():
            # Cancelled meanwhile: the next one gets it.
            self.release()
        else:
            to.set_result(None)
