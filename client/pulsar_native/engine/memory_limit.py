"""Memory limit controller: the client's limit on the bytes of pending messages and of received entries not dequeued.

Rules: a message is accepted while the sum is below the limit, so one may exceed it; a limit of 0 is off. Received
entries count for consumers with an auto-scaled queue, and push consumers configured so; they are in memory already, so
they are counted, never refused: consumers grant the broker no more permits instead. Received bytes never keep producers
from having one message pending, nor the other way round: so an application that receives in order to send makes
progress with any limit. Bytes are released on receipt or failure, or when the application dequeues the entry.
Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class MemoryLimit:
    """Counter of bytes with a limit; wakes those who wait for memory, first come first served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        # The received part of `used`.
        self.received = 0
        self._lock = threading.Lock()
        self._waiters: deque[Callable[[], None]] = deque()

    def try_reserve(self, size: int) -> bool:
        """Reserve `size` bytes for a message to send; return False when the limit is reached."""
        if not self.limit:
            return True
        with self._lock:
            if self.used >= self.limit and self.used > self.received:
                return False
            self.used += size
            return True

    def reserve_ahead(self, most: int) -> int:
        """Reserve up to `most` bytes for later messages and return how many: few, and none once half the limit is used.

        So the reservation does not block others. Without a limit it is all of `most`.
        """
        if not self.limit:
            return most
        size = min(most, self.limit >> 8)
        with self._lock:
            if self.used + size > self.limit >> 1:
                return 0
            self.used += size
            return size

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes, also beyond the limit."""
        if self.limit:
            with self._lock:
                self.used += size

    def release(self, size: int) -> None:
        """Release bytes and wake the waiters when there is memory again."""
        self._release(size, 0)

    def receive(self, size: int) -> None:
        """Count received bytes, also beyond the limit."""
        if self.limit:
            with self._lock:
                self.used += size
                self.received += size

    def release_received(self, size: int) -> None:
        """Release received bytes whose entry was dequeued or dropped. Wakes the waiters when there is memory again."""
        self._release(size, size)

    def _release(self, size: int, received: int) -> None:
        if not self.limit:
            return
        with self._lock:
            self.used -= size
            self.received -= received
            if not self._waiters or (self.used >= self.limit and self.used > self.received):
                return
            waiters, self._waiters = self._waiters, deque()
        for wake in waiters:
            wake()

    def wait_for_room(self, wake: Callable[[], None]) -> None:
        """Call `wake` once there is memory for a message to send; immediately when there is already."""
        with self._lock:
            if self.limit and self.used >= self.limit and self.used > self.received:
                self._waiters.append(wake)
                return
        wake()

    def has_room(self, size: int) -> bool:
        """Return True if so many more bytes would stay within the limit; always without limit."""
        return not self.limit or self.used + size <= self.limit

    def is_over(self, share: float) -> bool:
        """Return True if this share of the limit, or more, is in use; never without limit."""
        return bool(self.limit) and self.used >= self.limit * share
