"""Arrow range reader: a bounded range of a reader as Arrow record batches, without one object per message.

Rules: rows are from the reader's start up to `end` (exclusive, by position, down to the batch index), or to the last
message present when reading began. The end is recognised by order, never by equality, since the end entry itself may
have been compacted away, aborted or removed; when nothing more arrives, the broker's last deliverable id proves that
the range is complete. A range that cannot be completed in time raises; a partial result is never returned as the whole.
The entries that follow one before the end's entry are added in one step, since a step for each costs more than its
row; nothing behind the end is dequeued.
A chunked message has its last chunk's position. Where one is next that began before the range, the read goes on in a
further pass from further back, which leaves out what was added before: rows are in the order of the topic. One that
ends behind the range belongs to another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsar_native.arrow.columns import ALL_COLUMNS, EntryRows, record_batch
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.consumer.seek import last_message_id, seek
from pulsar_native.engine.loop import reuse_blocks
from pulsar_native.exceptions import ChecksumError, CryptoError, InvalidConfiguration
from pulsar_native.message_id import MessageId
from pulsar_native.wire.entry import EntryKey

if TYPE_CHECKING:
    import pyarrow

_NO_LAST_ENTRY: EntryKey = (1 << 63, 0)


@dataclass
class _Part:
    """Slices of one partition to be converted into a record batch."""

    topic: str
    partition: int
    slices: list[EntryRows] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class ArrowRangeReader:
    """State of one bounded read. The APIs ask for `must_go_back`, `refresh_ends` and `done`, wait in their own way, and
    add entries.
    """

    def __init__(
        self,
        consumer: MultiTopicsConsumer,
        *,
        end: MessageId | None,
        columns: Sequence[str],
        max_rows: int,
        max_bytes: int,
        publish_time: tuple[int | None, int | None] | None,
    ) -> None:
        unknown = [name for name in columns if name not in ALL_COLUMNS]
        if unknown:
            raise InvalidConfiguration(f"There is no column {unknown[0]!r}; there are {', '.join(ALL_COLUMNS)}")
        if max_rows < 1 or max_bytes < 1:
            raise InvalidConfiguration("max_rows and max_bytes must be positive")
        if end is not None and len(consumer.children) > 1:
            raise InvalidConfiguration(
                "end is a position of one topic; read a partitioned topic partition by partition"
            )
        self.consumer = consumer
        self.columns = tuple(columns)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        # The column of values of a record batch, which one more entry may exceed.
        reuse_blocks(max_bytes * 5 // 4)
        self._from, self._until = publish_time or (None, None)
        self._end = end
        # Per partition: the position behind the last message wanted, None until it is known.
        self._ends: dict[PartitionConsumer, MessageId | None] = dict.fromkeys(consumer.children, end)
        self._open = set(consumer.children)
        self._parts: dict[PartitionConsumer, _Part] = {}
        self._undecrypted = {child: child.undecodable.undecrypted_count for child in consumer.children}
        self._discarded = {child: child.undecodable.discarded_count for child in consumer.children}
        # The last entry that was added, at first the last one before the range.
        self._added = {child: _entry_before(child) for child in consumer.children}
        for child in consumer.children:
            child.chunks.keep_all()
        # Start positions of further passes for messages that began before the range, the next one last.
        self._further_back = {child: _steps_back(child.position.start_entry()) for child in consumer.children}
        # Partitions in such a pass that have not reached the last added entry.
        self._behind: set[PartitionConsumer] = set()
        self._going_back: dict[PartitionConsumer, MessageId] = {}

    @property
    def done(self) -> bool:
        """True when every partition has reached its end."""
        return not self._open

    def open_children(self) -> list[PartitionConsumer]:
        """Return the partitions still being read."""
        return [child for child in self.consumer.children if child in self._open]

    @property
    def must_go_back(self) -> bool:
        """True when a further pass must begin before anything else is read."""
        return bool(self._going_back)

    async def go_back(self) -> None:
        """Begin a further pass over partitions that need one. On the loop, or begun by the thread that reads."""
        for child, position in list(self._going_back.items()):
            await seek(child, position)
            del self._going_back[child]

    def _passed(self, child: PartitionConsumer) -> None:
        """Record that a partition was read up to its end: done, unless a message that began before it is missing."""
        if child in self._going_back:
            return
        if self._first_missing(child, _NO_LAST_ENTRY) is not None:
            self._read_again(child)
        else:
            self._open.discard(child)

    def _first_missing(self, child: PartitionConsumer, before: EntryKey) -> EntryKey | None:
        """Return the last chunk of the next message that began before the range, None if none ends before the entry.

        None also after the pass from the topic's beginning: the first chunk is permanently lost, and the message cannot
        be read any more.
        """
        orphans, end = child.chunks.orphans, self._ends[child]
        if not orphans or not self._further_back[child]:
            return None
        # Messages that end before the start of the read, or behind the end, do not belong to this range.
        first, last = self._added[child], _NO_LAST_ENTRY if end is None else _last_entry_before(end)
        return min((entry for entry in orphans.values() if first < entry <= last and entry < before), default=None)

    def _read_again(self, child: PartitionConsumer) -> None:
        """Have a further pass begin: what was dequeued and not added comes again."""
        self._going_back[child] = self._further_back[child].pop()
        self._behind.add(child)

    async def refresh_ends(self) -> None:
        """Query the last ids: set the ends not given, and close partitions that have nothing more.

        Called once before reading, and again whenever nothing arrives. On the loop, or begun by the thread that reads.
        """
        await self.go_back()
        for child in self.open_children():
            self._check_discarded(child)
            last = await last_message_id(child)
            end = self._ends[child]
            if end is None:
                # Exclusive end behind the current last message: messages published later are not waited for.
                end = self._ends[child] = _behind(last)
            if child.core.has_decoded or child.position.is_moving_back:
                # Messages decoded together with one that `read_next` returned; or the first one comes again, as it
                # began before the start.
                continue
            if last.entry_id() < 0 or child.position.is_past(end) or not _before_end(last, end, child):
                self._passed(child)

    def add(self, child: PartitionConsumer, part: EntryRows) -> None:
        """Add an entry; rows outside the range are left out, and an entry at or behind the end closes the partition."""
        if child not in self._open or child in self._going_back:
            return
        self._check_discarded(child)
        end, key = self._ends[child], (part.ledger_id, part.entry_id)
        if self._first_missing(child, key) is not None:
            self._read_again(child)
            return
        wanted = child not in self._behind or key > self._added[child]
        if wanted:
            self._behind.discard(child)
            self._added[child] = key
        collected = self._parts.get(child)
        if collected is None:
            collected = self._parts[child] = _Part(child.topic.full, child.topic.partition)
        goes_on = end is None or _cut(part, end)
        if wanted and part.last > part.first and self._in_time(part):
            collected.slices.append(part)
            collected.rows += len(part)
            collected.bytes += part.nbytes
        if end is not None and goes_on and wanted:
            self._add_further(child, end, collected, singles=part.parsed.num_messages == 1)
        if end is not None and (not goes_on or (child.position.is_past(end) and not child.core.has_decoded)):
            self._passed(child)

    def _add_further(self, child: PartitionConsumer, end: MessageId, collected: _Part, *, singles: bool) -> None:
        """Add entries that follow, as many as the record batch may still have; with `singles` those of one message.

        All are before the entry of `end`: what is behind it stays in the reader.
        """
        rows, size = self._max_rows - collected.rows, self._max_bytes - collected.bytes
        if rows <= 0 or size <= 0:
            return
        dequeue = child.dequeue_single_rows if singles else child.dequeue_rows_before
        parts = dequeue((end.ledger_id(), end.entry_id()), rows, size)
        self._check_discarded(child)
        if not parts:
            return
        missing = self._first_missing(child, (parts[-1].ledger_id, parts[-1].entry_id))
        if missing is not None:
            parts = [part for part in parts if (part.ledger_id, part.entry_id) < missing]
        if parts:
            self._added[child] = (parts[-1].ledger_id, parts[-1].entry_id)
        if missing is not None:
            self._read_again(child)
        if self._from is not None or self._until is not None:
            parts = [part for part in parts if self._in_time(part)]
        collected.slices += parts
        collected.rows += sum(map(len, parts))
        collected.bytes += sum([part.nbytes for part in parts])

    def _check_discarded(self, child: PartitionConsumer) -> None:
        undecrypted = child.undecodable.undecrypted_count - self._undecrypted[child]
        if undecrypted and not child.undecodable.discards_undecryptable:
            raise CryptoError(
                "An encrypted entry cannot be decrypted: the range is incomplete; give the reader a crypto_key_reader "
                "with the private key (the log says which)",
                topic=child.topic.full,
            )
        if child.undecodable.discarded_count - self._discarded[child] > undecrypted:
            raise ChecksumError(
                f"Entry {child.undecodable.discarded[-1]} cannot be read (damaged or unknown in form): "
                "the range is incomplete",
                topic=child.topic.full,
            )

    def _in_time(self, part: EntryRows) -> bool:
        # All messages of an entry share its publish time.
        time = part.parsed.publish_time
        return (self._from is None or time >= self._from) and (self._until is None or time < self._until)

    def full(self) -> Iterator[pyarrow.RecordBatch]:
        """Return the record batches that have reached their size."""
        for part in list(self._parts.values()):
            if self._is_full(part.rows, part.bytes):
                yield from self._batches(part, keeps_rest=True)

    def _is_full(self, rows: int, size: int) -> bool:
        return rows >= self._max_rows or size >= self._max_bytes

    def rest(self) -> Iterator[pyarrow.RecordBatch]:
        """Return the remaining record batches when the range is done, or when nothing arrives for a while."""
        for part in list(self._parts.values()):
            if part.slices:
                yield from self._batches(part)

    def _batches(self, part: _Part, *, keeps_rest: bool = False) -> Iterator[pyarrow.RecordBatch]:
        """Return record batches of the slices; `keeps_rest` leaves those that do not fill one for the next.

        Else the entry with which the limit was exceeded would be a record batch of its own.
        """
        if part.rows <= self._max_rows and part.bytes <= self._max_bytes:
            groups = [part.slices]
        else:
            groups = list(_groups(part.slices, self._max_rows, self._max_bytes))
        part.slices, part.rows, part.bytes = [], 0, 0
        if keeps_rest and len(groups) > 1:
            rows, size = sum(map(len, groups[-1])), sum(each.nbytes for each in groups[-1])
            if not self._is_full(rows, size):
                part.slices, part.rows, part.bytes = groups.pop(), rows, size
        for group in groups:
            yield record_batch(group, self.columns, topic=part.topic, partition=part.partition)


def _groups(slices: list[EntryRows], max_rows: int, max_bytes: int) -> Iterator[list[EntryRows]]:
    group: list[EntryRows] = []
    count = size = 0
    for part in slices:
        own_rows, own_bytes = len(part), part.nbytes
        if group and (count + own_rows > max_rows or size + own_bytes > max_bytes):
            yield group
            group, count, size = [], 0, 0
        group.append(part)
        count += own_rows
        size += own_bytes
    if group:
        yield group


def _entry_before(child: PartitionConsumer) -> EntryKey:
    """Return the last entry before the start of the read; of the last dequeued message, its own."""
    dequeued = child.dequeued_entry()
    start = child.position.start_entry()
    if start is None or dequeued >= (0, 0):
        return dequeued
    return start[0], start[1] - child.position.inclusive_by_config


def _steps_back(start: tuple[int, int] | None) -> list[MessageId]:
    """Return start positions for messages that began before the range, the nearest last."""
    if start is None:
        return []
    ledger, entry = start
    return [MessageId.earliest] if entry == 0 else [MessageId.earliest, MessageId(-1, ledger, max(0, entry - 1000))]


def _behind(last: MessageId) -> MessageId:
    """Return the position directly behind a message: the next entry, whether it exists or not."""
    return MessageId(last.partition(), last.ledger_id(), last.entry_id() + 1, -1)


def _cut(part: EntryRows, end: MessageId) -> bool:
    """Leave out messages at or behind the end; return True if the range may go on behind this entry."""
    here = (part.ledger_id, part.entry_id)
    limit = (end.ledger_id(), end.entry_id())
    if here < limit:
        return True
    if here == limit and end.batch_index() > 0 and part.parsed.is_batch:
        part.last = min(part.last, end.batch_index())
    else:
        part.last = part.first
    return False


def _before_end(last: MessageId, end: MessageId, child: PartitionConsumer) -> bool:
    """Return True if a deliverable message before `end` is still to arrive, given the topic's last deliverable id."""
    # Nothing decoded is queued.
    seen = child.position.last_decoded
    reach = min((last.ledger_id(), last.entry_id()), _last_entry_before(end))
    if seen is not None:
        return reach > seen
    start = child.position.start_entry()
    return (start is None or reach >= start) and not child.position.is_marked(reach)


def _last_entry_before(end: MessageId) -> tuple[int, int]:
    if end.batch_index() > 0:
        return end.ledger_id(), end.entry_id()
    return end.ledger_id(), end.entry_id() - 1
