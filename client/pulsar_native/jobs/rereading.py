"""Reading of known message ids again, with readers, without a subscription.

Rules: exactly these messages are yielded, in the order of their chunks; none is left out silently. Ids that the topic
does not hold any more raise `MessagesGone`, which names them. No topic is created.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.id_ranges import Entry, Range, TopicRanges, bounds_of, chunked_id, describe, holds

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native import Client, KeyReader, Message, MessageId, Reader
    from pulsar_native.schema import Schema

_SLICE_MS = 500
_STALLED_SECONDS = 60.0
# Number of unwanted entries that are read instead of seeking over them.
_SKIPPED = 200


class MessagesGone(JobRefused):
    """Raised when messages to read again are no longer in their topic."""


class MessageRereader:
    """Readers of message ids. Blocking; not thread-safe; a context manager."""

    def __init__(
        self,
        client: Client,
        check: Callable[[], None],
        schema: Callable[[], Schema[Any]] | None,
        key_reader: KeyReader | None = None,
    ) -> None:
        """`check` is called between messages and may raise to end; `schema` decodes values, `key_reader` decrypts."""
        self._client = client
        self._check = check
        self._schema = schema
        self._key_reader = key_reader
        self._topics: dict[str, _TopicReader] = {}

    def messages(self, chunk: TopicRanges) -> Iterator[Message]:
        """Yield the messages of one chunk in the order of topics and ids."""
        for topic, ranges in chunk.items():
            yield from self._topic(topic).messages(ranges)

    def rows(self, chunk: TopicRanges) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of one chunk in the order of topics and ids."""
        for topic, ranges in chunk.items():
            yield from self._topic(topic).rows(ranges)

    def _topic(self, topic: str) -> _TopicReader:
        if topic not in self._topics:
            self._require(topic)
            self._topics[topic] = _TopicReader(self._client, topic, self._check, self._schema, self._key_reader)
        return self._topics[topic]

    def _require(self, topic: str) -> None:
        from pulsar_native import TopicNotFound

        try:
            self._client.get_partition_count(topic)
        except TopicNotFound as error:
            raise MessagesGone(f"the topic {topic} is no longer there") from error

    def __enter__(self) -> MessageRereader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a failure there is no wait: the client drops the readers.
        if kind is None:
            for each in self._topics.values():
                each.close()


class _TopicReader:
    """Reader of one partition, or of one topic without partitions."""

    def __init__(
        self,
        client: Client,
        topic: str,
        check: Callable[[], None],
        schema: Callable[[], Schema[Any]] | None,
        key_reader: KeyReader | None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._check = check
        self._schema = schema
        self._key_reader = key_reader
        self._reader: Reader | None = None
        # Last message if it was not wanted, and the current entry.
        self._ahead: Message | None = None
        self._at: tuple[int, int, int] = (-1, -1, -1)

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()

    # ---- messages ----------------------------------------------------------------------------------------------------

    def messages(self, ranges: Sequence[Range]) -> Iterator[Message]:
        """Yield the messages of ranges that are in order; raises `MessagesGone`."""
        missing: list[Range] = []
        for each in ranges:
            found: set[Entry] = set()
            count = 0
            for message in self._within(each):
                message_id = message.message_id()
                found.add((message_id.ledger_id(), message_id.entry_id()))
                count += 1
                yield message
            missing += _missing(each, found, count, self._topic)
        self._refuse(missing)

    def _within(self, each: Range) -> Iterator[Message]:
        first, last = bounds_of(each, self._topic)
        self._go_to(each, first)
        while (message := self._next()) is not None:
            self._check()
            message_id = message.message_id()
            here = (message_id.ledger_id(), message_id.entry_id())
            self._at = (*here, message_id.batch_index())
            if here > last:
                self._ahead = message
                return
            if here >= first and holds(each, message_id.batch_index()):
                yield message
                if len(each) == 5 and message_id.batch_index() == each[3]:
                    return
                if here == last and message_id.batch_index() >= message_id.batch_size() - 1:
                    return

    def _go_to(self, each: Range, first: Entry) -> None:
        """Seek to the start of a range, or before it."""
        start: MessageId
        if len(each) == 1:
            message_id = chunked_id(each, self._topic)
            start = message_id.first_chunk_message_id() or message_id
        else:
            if self._is_next(each, first):
                return
            from pulsar_native import MessageId as Id

            start = Id(-1, first[0], first[1], -1)
        self._move(start)

    def _is_next(self, each: Range, first: Entry) -> bool:
        """Return True if reading on reaches the start of a range."""
        ledger, entry, index = self._at
        if self._reader is None or ledger != first[0] or not 0 <= first[1] - entry <= _SKIPPED:
            return False
        if first[1] > entry:
            return True
        if self._ahead is not None:
            return index <= (each[2] if len(each) == 5 else 0)
        # Messages of the current entry after the last message are still to be read.
        return len(each) == 5 and index < int(each[2])

    def _move(self, start: MessageId) -> None:
        self._ahead = None
        if self._reader is None:
            self._reader = self._client.create_reader(
                self._topic,
                start,
                schema=None if self._schema is None else self._schema(),
                start_message_id_inclusive=True,
                crypto_key_reader=self._key_reader,
            )
        else:
            self._reader.seek(start)

    def _next(self) -> Message | None:
        """Return the next message, None at the end of the topic."""
        from pulsar_native import Timeout

        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        assert self._reader is not None
        deadline = time.monotonic() + _STALLED_SECONDS
        while True:
            self._check()
            try:
                return self._reader.read_next(_SLICE_MS)
            except Timeout:
                if not self._reader.has_message_available():
                    return None
                if time.monotonic() > deadline:
                    raise

    # ---- rows --------------------------------------------------------------------------------------------------------

    def rows(self, ranges: Sequence[Range]) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of ranges that are in order; raises `MessagesGone`."""
        from pulsar_native import MessageId

        missing: list[Range] = []
        for group in _groups(ranges, self._topic):
            first, last = bounds_of(group[0], self._topic)[0], bounds_of(group[-1], self._topic)[1]
            self._move(MessageId(-1, first[0], first[1], -1))
            assert self._reader is not None
            found: dict[Entry, int] = {}
            wanted: list[pyarrow.RecordBatch] = []
            for batch in self._reader.arrow_batches(end=MessageId(-1, last[0], last[1] + 1, -1)):
                self._check()
                wanted.append(_wanted(batch, group, self._topic, found))
            yield from _in_order(wanted)
            for each in group:
                own = _entries(each, self._topic)
                count = sum(found.get(entry, 0) for entry in own)
                missing += _missing(each, {entry for entry in own if entry in found}, count, self._topic)
        self._refuse(missing)

    def _refuse(self, missing: list[Range]) -> None:
        if missing:
            raise MessagesGone(f"the broker no longer has {describe({self._topic: missing})}")


def _entries(each: Range, topic: str) -> list[Entry]:
    first, last = bounds_of(each, topic)
    return [(first[0], entry) for entry in range(first[1], last[1] + 1)]


def _missing(each: Range, found: set[Entry], count: int, topic: str) -> list[Range]:
    """Return the part of a range that was not found: entries, or a part of a batch."""
    if len(each) == 5:
        return [] if count >= each[3] - each[2] + 1 else [each]
    if len(each) == 1:
        return [] if found else [each]
    gone: list[list[int]] = []
    for ledger, entry in _entries(each, topic):
        if (ledger, entry) in found:
            continue
        if gone and gone[-1][2] == entry - 1:
            gone[-1][2] = entry
        else:
            gone.append([ledger, entry, entry])
    return list(gone)


def _groups(ranges: Sequence[Range], topic: str) -> Iterator[list[Range]]:
    """Yield neighbouring ranges of one ledger together, for one pass."""
    group: list[Range] = []
    for each in ranges:
        first, _ = bounds_of(each, topic)
        if group:
            last = bounds_of(group[-1], topic)[1]
            if last[0] != first[0] or first[1] - last[1] > _SKIPPED:
                yield group
                group = []
        group.append(each)
    if group:
        yield group


def _in_order(batches: Sequence[pyarrow.RecordBatch]) -> list[pyarrow.RecordBatch]:
    """Return rows by ids; a chunked message is placed by its last chunk."""
    import pyarrow as pa

    if not batches:
        return []
    order = [(name, "ascending") for name in ("__ledgerId", "__entryId", "__batchIndex")]
    found: list[pyarrow.RecordBatch] = pa.Table.from_batches(batches).sort_by(order).combine_chunks().to_batches()
    return found


def _wanted(
    batch: pyarrow.RecordBatch, group: Sequence[Range], topic: str, found: dict[Entry, int]
) -> pyarrow.RecordBatch:
    """Return the rows of the ranges, and count them by entry."""
    import pyarrow as pa

    spans = {entry: each for each in group if len(each) != 5 for entry in _entries(each, topic)}
    parts: dict[Entry, list[Range]] = {}
    for each in group:
        if len(each) == 5:
            parts.setdefault((each[0], each[1]), []).append(each)
    mask = []
    columns = (batch[name].to_pylist() for name in ("__ledgerId", "__entryId", "__batchIndex"))
    for ledger, entry, index in zip(*columns, strict=True):
        key = (ledger, entry)
        wanted = key in spans or any(holds(each, index) for each in parts.get(key, ()))
        mask.append(wanted)
        if wanted:
            found[key] = found.get(key, 0) + 1
    return batch.filter(pa.array(mask, pa.bool_()))
