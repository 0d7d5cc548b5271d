"""Arrow receiver: receives messages of a subscription as Arrow rows, without one object per message.

Rules: entries are dequeued from the consumers in turn as messages are, one slice each, until a limit is reached; what
does not fit stays for the next receive of either type. An entry that cannot be decrypted is never a row: it ends the
rows before it, and raises if it is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pulsar_native.arrow.batch import ArrowBatch, EntryRange
from pulsar_native.arrow.columns import ALL_COLUMNS, record_batch
from pulsar_native.arrow.entry_slice import BatchBudget, EntrySlice
from pulsar_native.arrow.package import import_pyarrow
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.loop import reuse_blocks
from pulsar_native.exceptions import CryptoError, InvalidConfiguration
from pulsar_native.message import Message

if TYPE_CHECKING:
    import pyarrow


class ArrowReceiver:
    """Collector of one `receive_arrow`. The APIs call `collect` until it is `full`, and wait in their own way."""

    def __init__(self, consumer: MultiTopicsConsumer, columns: Sequence[str], max_rows: int, max_bytes: int) -> None:
        # Before messages are collected, which the error would lose.
        import_pyarrow("receive_arrow")
        if isinstance(columns, str) or not columns:
            raise InvalidConfiguration(f"columns must name one or more of {', '.join(ALL_COLUMNS)}")
        unknown = [name for name in columns if name not in ALL_COLUMNS]
        if unknown:
            raise InvalidConfiguration(f"There is no column {unknown[0]!r}; there are {', '.join(ALL_COLUMNS)}")
        for name, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidConfiguration(f"{name} must be a whole number from 1 on, not {value!r}")
        if consumer.chain is not None:
            raise InvalidConfiguration(
                "receive_arrow() creates no message objects, which the consumer's interceptors need; "
                "use receive() or batch_receive()"
            )
        if consumer.asks_for_each:
            raise InvalidConfiguration(
                "receive_arrow() needs a queue: with receiver_queue_size=0 messages are requested one by one; use "
                "receive(), or a receiver_queue_size above 0"
            )
        self._consumer = consumer
        self._columns = tuple(columns)
        self._limits = max_rows, max_bytes
        # The column of values of a record batch, which one more entry may exceed.
        reuse_blocks(max_bytes * 5 // 4)
        self._budget = BatchBudget(*self._limits)
        self._slices: dict[PartitionConsumer, list[EntrySlice]] = {}
        # Numbers of restarts of the partitions when their slices were dequeued.
        self._restarts: dict[PartitionConsumer, int] = {}

    @property
    def full(self) -> bool:
        """True when nothing more is to be dequeued."""
        return self._budget.full or self._budget.locked is not None

    def collect(self) -> bool | None:
        """Dequeue what is available, until it is full; return None when there was nothing."""
        self._drop_outdated()
        found = None
        while not self.full and (taken := self._consumer.dequeue_slice(self._budget)) is not None:
            found = True
            child, entry_slice = taken
            if entry_slice is not None:
                self._add(child, entry_slice)
        return found

    def _add(self, child: PartitionConsumer, entry_slice: EntrySlice) -> None:
        number = child.core.restarts
        if self._restarts.setdefault(child, number) != number:
            self._drop_outdated()
            self._restarts[child] = number
            self._spend([entry_slice])
        self._slices.setdefault(child, []).append(entry_slice)

    def _drop_outdated(self) -> None:
        """Drop what was collected of partitions that have restarted since: it is redelivered, or not wanted."""
        outdated = [child for child, number in self._restarts.items() if child.core.restarts != number]
        if not outdated:
            return
        for child in outdated:
            del self._restarts[child]
            child.count_dropped(_messages(self._slices.pop(child, ())))
        self._budget = BatchBudget(*self._limits)
        for slices in self._slices.values():
            self._spend(slices)

    def _spend(self, slices: Sequence[EntrySlice]) -> None:
        self._budget.spend([len(message) for message in _messages(slices)])

    def put_back(self) -> None:
        """Put collected messages back at the head of the queue, and start again.

        Those that a seek or a redelivery concerns meanwhile are dropped, as the queue is.
        """
        slices, self._slices = self._slices, {}
        restarts, self._restarts = self._restarts, {}
        self._budget = BatchBudget(*self._limits)
        self._consumer.put_back([message for own in slices.values() for message in _messages(own)], restarts)

    def result(self) -> ArrowBatch:
        """Return the collected rows; messages that cannot be rows are put back."""
        self._drop_outdated()
        locked = self._budget.locked
        if locked is not None and not self._slices:
            raise CryptoError(
                f"Entry {locked.ledger_id}:{locked.entry_id} cannot be decrypted, and encrypted bytes cannot be rows; "
                "receive() returns them, or give the consumer a crypto_key_reader with the private key",
                topic=locked.topic,
            )
        try:
            batch = self._record_batch()
        except BaseException:
            # Of whatever kind: what was collected would be lost.
            self.put_back()
            raise
        ranges: list[EntryRange] = []
        for slices in self._slices.values():
            for entry_slice in slices:
                each = _range_of(entry_slice)
                longer = ranges[-1].continued(each) if ranges else None
                if longer is None:
                    ranges.append(each)
                else:
                    ranges[-1] = longer
        return ArrowBatch(batch, tuple(ranges))

    def _record_batch(self) -> pyarrow.RecordBatch:
        batches = [
            record_batch(
                [entry_slice.part for entry_slice in slices],
                self._columns,
                topic=child.topic.full,
                partition=child.topic.partition,
            )
            for child, slices in self._slices.items()
        ]
        if not batches:
            return record_batch([], self._columns, topic="", partition=-1)
        if len(batches) == 1:
            return batches[0]
        import pyarrow as pa

        (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return whole


def _messages(slices: Sequence[EntrySlice]) -> list[Message]:
    return [message for entry_slice in slices for message in entry_slice.messages()]


def _range_of(entry_slice: EntrySlice) -> EntryRange:
    entry = entry_slice.entry
    return EntryRange(
        entry.topic,
        entry.partition,
        entry.ledger_id,
        entry.entry_id,
        entry.entry_id,
        entry.batch_size,
        entry_slice.bits,
        entry.redelivery_count,
    )
