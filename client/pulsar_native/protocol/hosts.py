"""Which host of a service URL to try next: in turn, and bad ones not again for a while.

Rules (Java client 4.x): the first host is random, then they follow in the order they are written. A host that failed
is passed over for the quarantine's first duration, doubled at each further failure up to the maximum; a success ends
it. When all are in quarantine, all are tried in turn: something must be. A single host is never put there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class HostRotation(Generic[T]):
    """The hosts of one service URL. Not thread-safe; times are seconds of a monotonic clock."""

    def __init__(
        self,
        hosts: Sequence[T],
        random: Callable[[], float],
        *,
        quarantine_initial: float,
        quarantine_maximum: float,
    ) -> None:
        self._hosts = tuple(hosts)
        self._next = int(random() * len(self._hosts))
        self._initial = quarantine_initial
        self._maximum = max(quarantine_maximum, quarantine_initial)
        # Host -> until when it is passed over, and for how long that was.
        self._bad: dict[T, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def next(self, now: float) -> T:
        """Return the host to try now."""
        for offset in range(len(self._hosts)):
            index = (self._next + offset) % len(self._hosts)
            if not self.is_quarantined(self._hosts[index], now):
                self._next = index + 1
                return self._hosts[index]
        host = self._hosts[self._next % len(self._hosts)]
        self._next = self._next % len(self._hosts) + 1
        return host

    def is_quarantined(self, host: T, now: float) -> bool:
        """Return whether the host is passed over now."""
        return host in self._bad and now < self._bad[host][0]

    def failed(self, host: T, now: float) -> None:
        """Note that the host could not be reached; failures during its quarantine do not lengthen it."""
        if host not in self._hosts or len(self._hosts) == 1 or self._initial <= 0 or self.is_quarantined(host, now):
            return
        before = self._bad.get(host)
        lasts = self._initial if before is None else min(before[1] * 2, self._maximum)
        self._bad[host] = (now + lasts, lasts)

    def succeeded(self, host: T) -> None:
        """Note that the host was reached."""
        self._bad.pop(host, None)
