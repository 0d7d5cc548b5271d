"""Message ids of a bulk send, created on access.

Rules: one id per entry and two ints per message are stored: 8 MB for a million messages. Immutable for the application,
picklable.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from pulsar_native.message_id import MessageId


class MessageIds(Sequence[MessageId]):
    """Sequence of message ids in the order of the messages; `LookupError` is raised for a message without a receipt."""

    __slots__ = ("_entry_of", "_index_of", "_lasts")

    def __init__(self) -> None:
        self._entry_of = array("i")
        self._index_of = array("i")
        # Message id of each entry's last message, None until its receipt.
        self._lasts: list[MessageId | None] = []

    def _grow(self, rows: int) -> None:
        """Append messages without an entry."""
        self._entry_of.frombytes(b"\xff" * (rows * self._entry_of.itemsize))
        self._index_of.frombytes(bytes(rows * self._index_of.itemsize))

    def _entry(self, rows: Sequence[int]) -> int:
        """Record the messages of one entry and return its number."""
        number = len(self._lasts)
        self._lasts.append(None)
        if isinstance(rows, range) and rows.step == 1:
            self._entry_of[rows.start : rows.stop] = array("i", (number,)) * len(rows)
            self._index_of[rows.start : rows.stop] = array("i", range(len(rows)))
        else:
            for index, row in enumerate(rows):
                self._entry_of[row] = number
                self._index_of[row] = index
        return number

    def _stored(self, number: int, last: MessageId) -> None:
        """Record the message id of an entry's last message."""
        self._lasts[number] = last

    def __len__(self) -> int:
        return len(self._entry_of)

    @overload
    def __getitem__(self, row: int) -> MessageId: ...
    @overload
    def __getitem__(self, row: slice) -> list[MessageId]: ...
    def __getitem__(self, row: int | slice) -> MessageId | list[MessageId]:
        if isinstance(row, slice):
            return [self[each] for each in range(len(self))[row]]
        found = self.get(range(len(self))[row])
        if found is None:
            raise LookupError(f"Message {row} has no id: the broker did not confirm it")
        return found

    def get(self, row: int) -> MessageId | None:
        """Return the id of one message, None without a receipt.

        :param row: index of the message, from 0.
        """
        number = self._entry_of[row]
        last = None if number < 0 else self._lasts[number]
        if last is None or last.batch_size() == 0 or last.batch_index() != last.batch_size() - 1:
            return last
        index = self._index_of[row]
        if index == last.batch_index():
            return last
        return MessageId(
            last.partition(),
            last.ledger_id(),
            last.entry_id(),
            index,
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
