"""Admission control: end of a micro-batch under maxMessagesPerTrigger and maxBytesPerTrigger.

Messages are counted, not estimated: the planner reads ahead up to the limits without keeping the messages, down to the
index in a batch. Rules: partitions share a limit evenly, and the rest of one goes to the others. At least one message
is admitted, so that a message above the byte limit does not stop the query. An end is before the first chunk of the
next message where it can be: a range that begins inside a message is read from further back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pulsar_native import MessageId
from pulsar_native.topic import TopicName
from pyspark_pulsar.broker import Broker
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position
from pyspark_pulsar.stream_offsets import Positions

if TYPE_CHECKING:
    import pyarrow

# Has the first chunk of a message, too.
_ID = "__messageId"
_UNLIMITED = 1 << 62
_BATCH_ROWS = 10_000


@dataclass(slots=True)
class Budget:
    """Rest of the limits of a micro-batch, in messages and in bytes of values."""

    messages: int
    bytes: int

    def is_spent(self) -> bool:
        """True if nothing more is admitted."""
        return self.messages <= 0 or self.bytes <= 0


def admit(broker: Broker, options: ReadOptions, start: Positions, end: Positions, turn: int) -> Positions:
    """Return the ends within the limits, between `start` and `end`. Blocks: reads the admitted messages.

    `turn` determines the first partition: with a limit below the number of partitions, they take turns.
    """
    total = Budget(options.max_messages_per_trigger or _UNLIMITED, options.max_bytes_per_trigger or _UNLIMITED)
    topics = [topic for topic, at in end.items() if at is not None and at != start.get(topic)]
    if not topics:
        return end
    turn %= len(topics)
    scans = [Scan(broker, options, topic, start.get(topic), end[topic]) for topic in topics[turn:] + topics[:turn]]
    try:
        _share_out(total, scans)
        return {**end, **{scan.topic: scan.position for scan in scans if not scan.is_done}}
    finally:
        for scan in scans:
            scan.close()


def _share_out(total: Budget, scans: Sequence[Scan]) -> None:
    """Advance the scans, each by its share of the rest, until the budget or all of them are used up."""
    is_first = True
    moving = True
    while moving and not total.is_spent():
        moving = False
        left = [scan for scan in scans if not scan.is_done]
        for index, scan in enumerate(left):
            if total.is_spent():
                return
            shares = len(left) - index
            share = Budget(-(-total.messages // shares), -(-total.bytes // shares))
            given = Budget(share.messages, share.bytes)
            scan.advance(share, force=is_first)
            total.messages -= given.messages - share.messages
            total.bytes -= given.bytes - share.bytes
            is_first = is_first and not scan.has_moved
            # Not if the next message of every partition is above its share of the byte limit.
            moving = moving or scan.has_moved


class Scan:
    """Counter of the messages of one topic partition from a position on. Blocks; for one thread."""

    def __init__(
        self, broker: Broker, options: ReadOptions, topic: str, start: Position | None, end: Position | None
    ) -> None:
        self.topic = topic
        self.position = start
        self.is_done = False
        self.has_moved = False
        self._is_sized = options.max_bytes_per_trigger is not None
        self._batches = _batches(broker, options, topic, start, end)
        self._batch: pyarrow.RecordBatch | None = None
        self._row = 0
        self._start = start
        # Position of the last admitted message, of its last chunk.
        self._last: Position | None = None
        # Bytes of the values up to each row of the batch, if they are limited.
        self._ends: list[int] = []

    def advance(self, budget: Budget, *, force: bool) -> None:
        """Advance within the budget and reduce it; with `force` by at least one message."""
        self.has_moved = False
        while self._fill():
            assert self._batch is not None
            base = self._bytes_before(self._row)
            count = min(budget.messages, self._batch.num_rows - self._row)
            if self._is_sized:
                count = min(count, bisect_right(self._ends, base + budget.bytes, self._row) - self._row)
            if count <= 0:
                if self.has_moved or not force:
                    self.position = self._end()
                    return
                count = 1
            self._row += count
            budget.messages -= count
            budget.bytes -= self._bytes_before(self._row) - base
            self.has_moved = True
            self._last = Position.of_message(self._id(self._row - 1).without_chunks())
        self.is_done = True

    def close(self) -> None:
        """Close the reader."""
        self._batches.close()

    def _fill(self) -> bool:
        """Load the next message; False if there is none."""
        import pyarrow.compute

        while self._batch is None or self._row >= self._batch.num_rows:
            self._batch, self._row = next(self._batches, None), 0
            if self._batch is None:
                return False
            if self._is_sized:
                sizes = pyarrow.compute.binary_length(self._batch["value"]).to_pylist()
                self._ends = list(accumulate(size or 0 for size in sizes))
        return True

    def _bytes_before(self, row: int) -> int:
        return self._ends[row - 1] if self._is_sized and row else 0

    def _end(self) -> Position:
        """Return the end that leaves out the next message, but nothing of those before it."""
        first = Position.of_message(self._id(self._row))
        if self._last is not None and first < self._last:
            # The chunks of several messages are interleaved.
            return self._last.after_entry
        return first if self._start is None else max(first, self._start)

    def _id(self, row: int) -> MessageId:
        assert self._batch is not None
        return MessageId.deserialize(self._batch[_ID][row].as_py())


def _batches(
    broker: Broker, options: ReadOptions, topic: str, start: Position | None, end: Position | None
) -> Generator[pyarrow.RecordBatch]:
    assert end is not None
    partition = TopicName.parse(topic).partition
    begin = MessageId.earliest if start is None else start.message_id(partition)
    most = min(options.max_messages_per_trigger or _BATCH_ROWS, _BATCH_ROWS)
    with closing(broker.reader(topic, begin, queue_size=min(most, options.receiver_queue_size))) as reader:
        yield from reader.arrow_batches(
            end=end.message_id(partition),
            columns=("value", _ID) if options.max_bytes_per_trigger is not None else (_ID,),
            max_rows=most,
            timeout_millis=options.poll_timeout_ms,
            publish_time=(options.starting_time, None),
        )
