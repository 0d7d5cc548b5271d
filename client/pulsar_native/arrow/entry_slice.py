"""Slices of entries received without one object per message, and the budget of rows and bytes that limits them.

Rules: rows are limited exactly, and so are the bytes of their payloads, except that a first message that alone is
larger is accepted; an entry is cut for that. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsar_native.arrow.columns import EntryRows
from pulsar_native.message import KeyedMessage, Message
from pulsar_native.protocol.entry_decoder import ReceivedEntry
from pulsar_native.wire._impl import split_batch


class BatchBudget:
    """Rows and payload bytes still to collect. `locked` is an entry that cannot be decrypted."""

    __slots__ = ("_begun", "bytes", "full", "locked", "rows")

    def __init__(self, rows: int, size: int) -> None:
        self.rows = rows
        self.bytes = size
        self.full = False
        self.locked: ReceivedEntry | None = None
        self._begun = False

    def spend(self, sizes: Sequence[int]) -> int:
        """Spend the budget on messages of these sizes; return how many of them fit."""
        count, size = len(sizes), sum(sizes)
        if count > self.rows or size > self.bytes:
            self.full = True
            count = size = 0
            for own in sizes[: self.rows]:
                if size + own > self.bytes and (count or self._begun):
                    break
                count += 1
                size += own
        self.rows -= count
        self.bytes -= size
        self._begun = self._begun or count > 0
        self.full = self.full or self.rows <= 0 or self.bytes <= 0
        return count


class EntrySlice:
    """Messages of one entry, by their indexes in it."""

    __slots__ = ("entry", "part")

    def __init__(self, entry: ReceivedEntry, indexes: Sequence[int]) -> None:
        first, last = indexes[0], indexes[-1] + 1
        skip = None
        if last - first != len(indexes):
            marks = bytearray(b"\1" * last)
            for index in indexes:
                marks[index] = 0
            skip = bytes(marks)
        self.entry = entry
        self.part = EntryRows(
            entry.parsed, entry.body, entry.ledger_id, entry.entry_id, first, last, skip, entry.first_chunk
        )

    @property
    def bits(self) -> int | None:
        """Bit set of the indexes; None for the whole entry."""
        part, size = self.part, max(1, self.entry.batch_size)
        if part.skip is None:
            whole = part.first == 0 and part.last == size
            return None if whole else (1 << part.last) - (1 << part.first)
        return sum(1 << index for index in part.picked())

    def messages(self) -> list[Message]:
        """Return the messages, to put them back into the queue."""
        entry: Any = self.entry
        kind = KeyedMessage if getattr(entry.schema, "takes_key", False) else Message
        if not entry.is_batch:
            return [kind(entry, -1, 0, 0, len(entry.body))]
        places = split_batch(entry.body, entry.batch_size)
        return [kind(entry, index, *places[index]) for index in self.part.picked()]
