"""Negative acknowledgements: entries that are due for redelivery after a delay.

Rules: the unit is the entry, as the broker redelivers whole entries. Due times are rounded up to slices of 2^precision
ms (Java's default of 8 bits: 256 ms), so that many at once make one request. With a back-off the delay follows from how
often the entry was redelivered, which only the broker counts, and only on Shared and Key_Shared.
"""

from __future__ import annotations

from pulsar_native.config import RedeliveryBackoff
from pulsar_native.protocol.unacked_tracker import EntryKey

_SMALLEST_DELAY = 0.1


class NegativeAcksTracker:
    """Entries the application refused, each due for redelivery after the delay. Not thread-safe; seconds."""

    __slots__ = ("_backoff", "_delay", "_slice", "due")

    def __init__(self, delay: float, *, precision_bits: int = 8, backoff: RedeliveryBackoff | None = None) -> None:
        self._delay = delay
        self._backoff = backoff
        self._slice = (1 << precision_bits) / 1000
        # When each is due: the same dictionary for ever, so that asking whether there is any costs next to nothing.
        self.due: dict[EntryKey, float] = {}

    def __len__(self) -> int:
        return len(self.due)

    def add(self, entry: EntryKey, now: float, redelivery_count: int = 0) -> None:
        """Note a refused entry; a second refusal of the same entry starts its delay anew."""
        delay = self._delay if self._backoff is None else self._backoff.next(redelivery_count) / 1000
        at = now + max(delay, _SMALLEST_DELAY)
        # Rounding up keeps the promise "not before the delay" and lets neighbours share a request.
        self.due[entry] = -(-at // self._slice) * self._slice

    def remove(self, entry: EntryKey) -> None:
        """Forget an entry that was acknowledged after all."""
        self.due.pop(entry, None)

    def next_due(self) -> float | None:
        """Return when the earliest entry comes due, None when there is none."""
        return min(self.due.values(), default=None)

    def take_due(self, now: float) -> list[EntryKey]:
        """Return and forget all entries due by `now`, in order of position."""
        due = sorted(key for key, at in self.due.items() if at <= now)
        for key in due:
            del self.due[key]
        return due

    def clear(self) -> None:
        """Forget everything."""
        self.due.clear()
