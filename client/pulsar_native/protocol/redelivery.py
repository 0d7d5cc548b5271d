"""When unacknowledged messages are asked for again: negative acknowledgements and acknowledgement time-outs.

Rules: the unit is the entry, as the broker redelivers whole entries. Negative acknowledgements are gathered in slices
of 2^precision ms (Java's default of 8 bits: 256 ms), so that many at once make one request. The time-out tracker is a
ring of slices of one tick: an entry comes due between the time-out and one tick later. With a back-off the delay
follows from how often the entry was redelivered, which only the broker counts, and only on Shared and Key_Shared.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from pulsar_native.redelivery_backoff import RedeliveryBackoff

EntryKey = tuple[int, int]

_SMALLEST_DELAY = 0.1


class NegativeAcknowledgements:
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


class UnackedTracker:
    """Entries given to the application and not acknowledged, in slices of one tick. Not thread-safe; seconds."""

    __slots__ = ("_slice_of", "_slices", "tick")

    def __init__(self, timeout: float, tick: float) -> None:
        self.tick = tick
        # Rounded first: 10.849 s are 19 ticks of 0.571 s, though floating point makes them a little more.
        count = math.ceil(round(timeout / tick, 6)) + 1
        self._slices: deque[set[EntryKey]] = deque(set() for _ in range(count))
        self._slice_of: dict[EntryKey, set[EntryKey]] = {}

    def __len__(self) -> int:
        return len(self._slice_of)

    def add(self, entry: EntryKey) -> None:
        """Start the time of an entry, unless it runs already."""
        if entry not in self._slice_of:
            newest = self._slices[-1]
            newest.add(entry)
            self._slice_of[entry] = newest

    def remove(self, entry: EntryKey) -> None:
        """Stop the time of an acknowledged entry."""
        home = self._slice_of.pop(entry, None)
        if home is not None:
            home.discard(entry)

    def remove_up_to(self, entry: EntryKey) -> int:
        """Stop the time of every entry at or before this one; return how many there were."""
        covered = [key for key in self._slice_of if key <= entry]
        for key in covered:
            self.remove(key)
        return len(covered)

    def advance(self) -> list[EntryKey]:
        """Move on by one tick and return the entries whose time is over, in order of position."""
        expired = self._slices.popleft()
        self._slices.append(set())
        for key in expired:
            del self._slice_of[key]
        return sorted(expired)

    def clear(self) -> None:
        """Forget everything."""
        self._slice_of.clear()
        for part in self._slices:
            part.clear()


class LateEntries:
    """Entries whose time-out is over, held back for as long as the back-off says. Not thread-safe; seconds."""

    __slots__ = ("_backoff", "_counts", "_due")

    def __init__(self, backoff: RedeliveryBackoff) -> None:
        self._backoff = backoff
        self._counts: dict[EntryKey, int] = {}
        self._due: dict[EntryKey, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def delivered(self, entry: EntryKey, redelivery_count: int) -> None:
        """Note how often an entry that has just arrived was redelivered."""
        if redelivery_count:
            self._counts[entry] = redelivery_count
        else:
            self._counts.pop(entry, None)

    def expired(self, entries: Iterable[EntryKey], now: float) -> None:
        """Begin the delay of entries that were not acknowledged in time."""
        for entry in entries:
            self._due[entry] = now + self._backoff.next(self._counts.get(entry, 0)) / 1000

    def remove(self, entry: EntryKey) -> None:
        """Forget an entry that was acknowledged, or refused, after all."""
        self._counts.pop(entry, None)
        self._due.pop(entry, None)

    def remove_up_to(self, entry: EntryKey) -> None:
        """Forget every entry at or before this one."""
        for known in (self._counts, self._due):
            for key in [key for key in known if key <= entry]:
                del known[key]

    def take_due(self, now: float) -> list[EntryKey]:
        """Return and forget the entries whose delay is over, in order of position."""
        due = sorted(key for key, at in self._due.items() if at <= now)
        for key in due:
            self.remove(key)
        return due

    def clear(self) -> None:
        """Forget everything."""
        self._counts.clear()
        self._due.clear()


def in_blocks(entries: Iterable[EntryKey], size: int = 1000) -> list[list[EntryKey]]:
    """Cut a list of entries into the blocks of at most `size` that one redelivery request may carry."""
    keys = list(entries)
    return [keys[start : start + size] for start in range(0, len(keys), size)]
