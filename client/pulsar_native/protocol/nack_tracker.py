"""Negative acks tracker: entries due for redelivery after a delay.

Rules: the unit is the entry, as the broker redelivers whole entries. Due times are rounded up to slices of 2^precision
ms (Java's default of 8 bits: 256 ms), so that many at once make one request. With a redelivery back-off the delay
depends on the entry's redelivery count, which only the broker keeps, and only on Shared and Key_Shared.
"""

from __future__ import annotations

from pulsar_native.protocol.redelivery_delay import RedeliveryDelay
from pulsar_native.wire.entry import EntryKey

_SMALLEST_DELAY = 0.1


class NegativeAcksTracker:
    """Negatively acknowledged entries, each due for redelivery after its delay. Not thread-safe; times in seconds."""

    __slots__ = ("_backoff", "_delay", "_slice", "due")

    def __init__(self, delay: float, *, precision_bits: int = 8, backoff: RedeliveryDelay | None = None) -> None:
        self._delay = delay
        self._backoff = backoff
        self._slice = (1 << precision_bits) / 1000
        # Due time by entry. The dictionary object is never replaced, so that callers may test it for emptiness
        # directly.
        self.due: dict[EntryKey, float] = {}

    def __len__(self) -> int:
        return len(self.due)

    def add(self, entry: EntryKey, now: float, redelivery_count: int = 0) -> float:
        """Add a negatively acknowledged entry and return its due time; a second call for the same entry restarts its
        delay.
        """
        delay = self._delay if self._backoff is None else self._backoff.seconds(redelivery_count, now)
        at = now + max(delay, _SMALLEST_DELAY)
        # Rounded up: never before the delay is over, and neighbours share a request.
        due = self.due[entry] = -(-at // self._slice) * self._slice
        return due

    def remove(self, entry: EntryKey) -> None:
        """Remove an entry that was acknowledged meanwhile."""
        self.due.pop(entry, None)

    def next_due(self) -> float | None:
        """Return the earliest due time, None when there is none."""
        return min(self.due.values(), default=None)

    def pop_due(self, now: float) -> list[EntryKey]:
        """Remove and return all entries due by `now`, in order of position."""
        due = sorted(key for key, at in self.due.items() if at <= now)
        for key in due:
            del self.due[key]
        return due

    def clear(self) -> None:
        """Remove all entries."""
        self.due.clear()
