"""Received Arrow batch: a record batch, and the ranges of entries by which it is acknowledged.

Rules: values only. Adjacent entries that were received whole and have the same attributes form one range, so that the
identity of many messages stays small; a part of a batch is a bit set of its indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsar_native.message_id import MessageId

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries `first_entry` to `last_entry` (inclusive) of a ledger, each a batch of `batch_size`, 0 for no batch.

    `indexes` is None for all messages of the entries, else the bit set of messages of a single entry.
    """

    topic: str
    partition: int
    ledger_id: int
    first_entry: int
    last_entry: int
    batch_size: int = 0
    indexes: int | None = None
    redelivery_count: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        if self.indexes is not None:
            return self.indexes.bit_count()
        return (self.last_entry - self.first_entry + 1) * max(1, self.batch_size)

    @property
    def entries(self) -> range:
        """The entry ids."""
        return range(self.first_entry, self.last_entry + 1)

    def first_message_id(self) -> MessageId:
        """Return the id of the first row."""
        index = 0 if self.indexes is None else (self.indexes & -self.indexes).bit_length() - 1
        return self._id(self.first_entry, index)

    def last_message_id(self) -> MessageId:
        """Return the id of the last row."""
        return self._id(self.last_entry, (self.batch_size if self.indexes is None else self.indexes.bit_length()) - 1)

    def _id(self, entry: int, index: int) -> MessageId:
        size = self.batch_size
        return MessageId(
            self.partition, self.ledger_id, entry, index if size else -1, batch_size=size, topic=self.topic
        )

    def continued(self, other: EntryRange) -> EntryRange | None:
        """Return this range extended by the next one, None when they cannot be merged."""
        ours = (self.topic, self.ledger_id, self.last_entry + 1, self.batch_size, self.redelivery_count)
        theirs = (other.topic, other.ledger_id, other.first_entry, other.batch_size, other.redelivery_count)
        if ours != theirs or self.indexes is not None or other.indexes is not None:
            return None
        return EntryRange(
            self.topic, self.partition, self.ledger_id, self.first_entry, other.last_entry,
            self.batch_size, None, self.redelivery_count,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ArrowBatch:
    """Result of `Consumer.receive_arrow`; `acknowledge` and `negative_acknowledge` accept it as a whole.

    `record_batch` has a row for each message, those of a partition adjacent and in order; `ranges` has the entries they
    came in, in the order of the rows. Thread-safe.
    """

    record_batch: pyarrow.RecordBatch
    ranges: Sequence[EntryRange]

    def __len__(self) -> int:
        return int(self.record_batch.num_rows)

    def parts(self) -> Iterator[tuple[EntryRange, pyarrow.RecordBatch]]:
        """Yield each range with its rows, which are not copied."""
        start = 0
        for each in self.ranges:
            yield each, self.record_batch.slice(start, len(each))
            start += len(each)

    def __repr__(self) -> str:
        return f"<ArrowBatch: {len(self)} rows of {len(self.ranges)} ranges of entries>"
