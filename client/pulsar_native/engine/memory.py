"""The client's limit on bytes of messages waiting for their receipts, over all its producers.

Rules (client.md C21): a message is accepted while the sum is below the limit, so one may overshoot it; a limit of 0 is
off. What is taken is given back on receipt or failure. Thread-safe.
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
        self._lock = threading.Lock()
        self._waiters: deque[Callable[[], None]] = deque()

    def try_reserve(self, size: int) -> bool:
        """Take `size` bytes unless the limit is reached."""
        if not self.limit:
            return True
        with self._lock:
            if self.used >= self.limit:
                return False
            self.used += size
            return True

    def reserve(self, size: int) -> None:
        """Take `size` bytes whether there is room or not."""
        if self.limit:
            with self._lock:
                self.used += size

    def release(self, size: int) -> None:
        """Give bytes back and wake the waiters when there is room again."""
        if not self.limit:
            return
        with self._lock:
            self.used -= size
            if self.used >= self.limit or not self._waiters:
                return
            waiters, self._waiters = self._waiters, deque()
        for wake in waiters:
            wake()

    def when_room(self, wake: Callable[[], None]) -> None:
        """Call `wake` once there is room; at once when there is already."""
        with self._lock:
            if self.limit and self.used >= self.limit:
                self._waiters.append(wake)
                return
        wake()
