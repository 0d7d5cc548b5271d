"""Message ids of a bulk send, created on access.

Rules: stored are one id and one int per entry, and two ints per message where rows of an entry do not follow each
other, as those of keys on several partitions: 8 MB for a million messages. Immutable for the application, picklable.

The ids of an entry's rows count back from the id of its last one. A row that went into the open batch is recorded as an
entry of one row, with its own id: that batch has other messages, too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from pulsar_native.message_id import MessageId


class MessageIds(Sequence[MessageId]):
    """Sequence of message ids in the order of the messages; `LookupError` is raised for a message without a receipt."""

    __slots__ = ("_count", "_ends", "_lasts", "_scattered")

    def __init__(self) -> None:
        self._count = 0
        # As long as each entry's rows are those behind the one before: the row behind its last one.
        self._ends = array("q")
        # Otherwise: entry of each row, -1 for one without, and number of the entry's rows behind it.
        self._scattered: tuple[array[int], array[int]] | None = None
        # Message id of each entry's last row, None until its receipt.
        self._lasts: list[MessageId | None] = []

    def _grow(self, rows: int) -> None:
        """Append messages without an entry."""
        self._count += rows
        if self._scattered is not None:
            entry_of, behind_of = self._scattered
            entry_of.frombytes(b"\xff" * (rows * entry_of.itemsize))
            behind_of.frombytes(bytes(rows * behind_of.itemsize))

    def _entry(self, rows: Sequence[int]) -> int:
        """Record the rows of one entry and return its number."""
        number = len(self._lasts)
        self._lasts.append(None)
        if self._scattered is None:
            is_run = len(rows) == 1 or (isinstance(rows, range) and rows.step == 1)
            if is_run and rows[0] == (self._ends[-1] if self._ends else 0):
                self._ends.append(rows[-1] + 1)
                return number
            self._scattered = self._spread()
        entry_of, behind_of = self._scattered
        for behind, row in enumerate(reversed(rows)):
            entry_of[row] = number
            behind_of[row] = behind
        return number

    def _spread(self) -> tuple[array[int], array[int]]:
        """Return the entry of each row, and how many of its rows are behind."""
        entry_of, behind_of = array("i"), array("i")
        start = 0
        for number, end in enumerate(self._ends):
            entry_of += array("i", (number,)) * (end - start)
            behind_of += array("i", range(end - start - 1, -1, -1))
            start = end
        entry_of += array("i", (-1,)) * (self._count - start)
        behind_of += array("i", (0,)) * (self._count - start)
        return entry_of, behind_of

    def _place(self, row: int) -> tuple[int, int]:
        """Return the number of a row's entry, -1 for none, and how many rows of the entry are behind the row."""
        if self._scattered is not None:
            entry_of, behind_of = self._scattered
            return entry_of[row], behind_of[row]
        number = bisect_right(self._ends, row)
        if number == len(self._ends):
            return -1, 0
        return number, self._ends[number] - 1 - row

    def _stored(self, number: int, last: MessageId) -> None:
        """Record the message id of an entry's last row."""
        self._lasts[number] = last

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> MessageId: ...
    @overload
    def __getitem__(self, row: slice) -> list[MessageId]: ...
    def __getitem__(self, row: int | slice) -> MessageId | list[MessageId]:
        if isinstance(row, slice):
            return [self[each] for each in range(len(self))[row]]
        found = self.get(row)
        if found is None:
            raise LookupError(f"Message {row} has no id: the broker did not confirm it")
        return found

    def get(self, row: int) -> MessageId | None:
        """Return the id of one message, None without a receipt.

        :param row: index of the message, from 0; below 0 from the end. Raises `IndexError` outside.
        """
        number, behind = self._place(range(self._count)[row])
        last = None if number < 0 else self._lasts[number]
        if last is None or not behind:
            return last
        return MessageId(
            last.partition(),
            last.ledger_id(),
            last.entry_id(),
            last.batch_index() - behind,
            batch_size=last.batch_size(),
            topic=last.topic_name(),
        )

    def __iter__(self) -> Iterator[MessageId]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(MessageId.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<MessageIds of {len(self)} messages in {len(self._lasts)} entries>"
