"""The client's limit on bytes it holds: messages that wait for their receipts, and received entries to be taken.

Rules: a message is accepted while the sum is below the limit, so one may overshoot it; a
limit of 0 is off. Received entries count for consumers whose queue scales, and push consumers that ask for it; they are
already here, so they are counted, never refused: consumers ask the broker for no more instead. What is received never
keeps producers from having one message on its way, nor the other way round: so whoever receives in order to send goes
on, however small the limit. What is taken is given back on receipt or failure, or when the application takes the entry.
Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class MemoryLimit:
    """Count bytes against a limit and wake those who wait for room, first come first served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        # The part of it that was received.
        self.received = 0
        self._lock = threading.Lock()
        self._waiters: deque[Callable[[], None]] = deque()

    def try_reserve(self, size: int) -> bool:
        """Take `size` bytes for a message to be sent, unless the limit is reached."""
        if not self.limit:
            return True
        with self._lock:
            if self.used >= self.limit and self.used > self.received:
                return False
            self.used += size
            return True

    def reserve_ahead(self, most: int) -> int:
        """Take bytes for messages to come and return how many, up to `most`: few, and none once half the limit is used.

        So that what is put by does not refuse others. Without a limit it is all of it.
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
        """Take `size` bytes whether there is room or not."""
        if self.limit:
            with self._lock:
                self.used += size

    def release(self, size: int) -> None:
        """Give bytes back and wake the waiters when there is room again."""
        self._give_back(size, 0)

    def receive(self, size: int) -> None:
        """Count bytes that were received, whether there is room or not."""
        if self.limit:
            with self._lock:
                self.used += size
                self.received += size

    def take(self, size: int) -> None:
        """Count bytes no more that were received: taken or dropped. Wakes the waiters when there is room again."""
        self._give_back(size, size)

    def _give_back(self, size: int, received: int) -> None:
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
        """Call `wake` once there is room for a message to be sent; at once when there is already."""
        with self._lock:
            if self.limit and self.used >= self.limit and self.used > self.received:
                self._waiters.append(wake)
                return
        wake()

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes more would stay within the limit; always without limit."""
        return not self.limit or self.used + size <= self.limit

    def is_over(self, share: float) -> bool:
        """Return whether a share of the limit, or more, is in use; never without limit."""
        return bool(self.limit) and self.used >= self.limit * share
