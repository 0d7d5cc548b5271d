"""Entries the broker redelivers, on request or at an attachment, which a Shared or Key_Shared subscription may get at
another consumer.

Rule: nothing says that another consumer has acknowledged them, so what is known of an entry here is kept only for the
newest of them. Without it a redelivery comes whole, as it does to a consumer that never had the entry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from pulsar_native.wire.entry import EntryKey

KEPT = 10_000
"""Number of entries whose state is kept until they come again."""


class RedeliveredEntries:
    """Partly acknowledged entries that are redelivered and have not come yet, oldest first."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: OrderedDict[EntryKey, None] = OrderedDict()

    def add(self, entries: Iterable[EntryKey]) -> list[EntryKey]:
        """Add entries; remove and return the oldest ones beyond `KEPT`."""
        for entry in entries:
            self._entries[entry] = None
            self._entries.move_to_end(entry)
        return [self._entries.popitem(last=False)[0] for _ in range(len(self._entries) - KEPT)]

    def discard(self, entry: EntryKey) -> None:
        """Remove an entry: it came again, or is acknowledged."""
        self._entries.pop(entry, None)

    def clear(self) -> None:
        """Remove all."""
        self._entries.clear()
