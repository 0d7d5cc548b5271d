"""Unacked message tracker: entries not acknowledged within the ack time-out are redelivered.

Rules: the unit is the entry, as the broker redelivers whole entries. The tracker has slices of one tick: an entry
comes due between the time-out and one tick later. With a redelivery back-off the delay depends on the entry's
redelivery count, which only the broker keeps, and only on Shared and Key_Shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pulsar_native.protocol.redelivery_delay import RedeliveryDelay
from pulsar_native.wire.entry import EntryKey


class UnackedMessageTracker:
    """Delivered, unacknowledged entries in slices of one tick. Not thread-safe; times in seconds."""

    __slots__ = ("_now", "_slice_of", "_slices", "_ticks", "tick")

    def __init__(self, timeout: float, tick: float) -> None:
        self.tick = tick
        # Rounded first: 10.849 s are 19 ticks of 0.571 s, but floating point yields slightly more.
        self._ticks = math.ceil(round(timeout / tick, 6)) + 1
        self._now = 0
        # By the tick at which they were added, without empty ones: a time-out of days has as many as hold entries.
        self._slices: dict[int, set[EntryKey]] = {}
        self._slice_of: dict[EntryKey, int] = {}

    def __len__(self) -> int:
        return len(self._slice_of)

    def add(self, entry: EntryKey) -> None:
        """Start the time-out of an entry, unless it is running."""
        if entry not in self._slice_of:
            now = self._now
            newest = self._slices.get(now)
            if newest is None:
                newest = self._slices[now] = set()
            newest.add(entry)
            self._slice_of[entry] = now

    def remove(self, entry: EntryKey) -> None:
        """Stop the time-out of an acknowledged entry."""
        added = self._slice_of.pop(entry, None)
        if added is not None:
            home = self._slices[added]
            home.discard(entry)
            # The newest slice is used again.
            if not home and added != self._now:
                del self._slices[added]

    def remove_up_to(self, entry: EntryKey) -> int:
        """Stop the time-out of every entry up to and including this one; return their number."""
        covered = [key for key in self._slice_of if key <= entry]
        for key in covered:
            self.remove(key)
        return len(covered)

    def advance(self) -> list[EntryKey]:
        """Advance by one tick and return the timed-out entries, in order of position."""
        if not self._slices.get(self._now, True):
            del self._slices[self._now]
        self._now += 1
        expired = self._slices.pop(self._now - self._ticks, ())
        for key in expired:
            del self._slice_of[key]
        return sorted(expired)

    def clear(self) -> None:
        """Remove all entries."""
        self._slice_of.clear()
        self._slices.clear()


class UnackedMessageRedeliveryTracker:
    """Timed-out entries that wait for their redelivery back-off. Not thread-safe; times in seconds."""

    __slots__ = ("_backoff", "_counts", "_due")

    def __init__(self, backoff: RedeliveryDelay) -> None:
        self._backoff = backoff
        self._counts: dict[EntryKey, int] = {}
        self._due: dict[EntryKey, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def delivered(self, entry: EntryKey, redelivery_count: int) -> None:
        """Record the redelivery count of an entry that has just arrived."""
        if redelivery_count:
            self._counts[entry] = redelivery_count
        else:
            self._counts.pop(entry, None)

    def expired(self, entries: Iterable[EntryKey], now: float) -> None:
        """Start the back-off delay of entries that timed out."""
        for entry in entries:
            self._due[entry] = now + self._backoff.seconds(self._counts.get(entry, 0), now)

    def reattached(self) -> None:
        """Forget the counts: at a new attachment entries arrive with theirs, here or at another consumer."""
        self._counts.clear()

    def remove(self, entry: EntryKey) -> None:
        """Remove an entry that was acknowledged, or negatively acknowledged, meanwhile."""
        self._counts.pop(entry, None)
        self._due.pop(entry, None)

    def remove_up_to(self, entry: EntryKey) -> None:
        """Remove every entry up to and including this one."""
        for known in (self._counts, self._due):
            for key in [key for key in known if key <= entry]:
                del known[key]

    def pop_due(self, now: float) -> list[EntryKey]:
        """Remove and return the entries whose delay is over, in order of position."""
        due = sorted(key for key, at in self._due.items() if at <= now)
        for key in due:
            self.remove(key)
        return due

    def clear(self) -> None:
        """Remove all entries."""
        self._counts.clear()
        self._due.clear()


def in_blocks(entries: Iterable[EntryKey], size: int = 1000) -> list[list[EntryKey]]:
    """Split entries into the blocks of at most `size` that one redelivery request may carry."""
    keys = list(entries)
    return [keys[start : start + size] for start in range(0, len(keys), size)]
