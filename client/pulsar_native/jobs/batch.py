"""Consumed batch: its limits, the messages in its output, and the ids to acknowledge.

Rules: ids are kept as ranges, so that a large batch is small in memory and in the caller's state. Messages received but
not added to the batch are never acknowledged. The output is a sequence of chunks, each in the order of topics and ids,
so that the ids alone determine each message's place. No I/O but acknowledging.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.id_ranges import IdRanges, TopicRanges, ids_of
from pulsar_native.jobs.json_values import storable

if TYPE_CHECKING:
    from pulsar_native import Consumer, EntryRange, Message, MessageId

# Maximum number of rows received at once.
_MOST_ROWS = 20_000
_MOST_BYTES = 8 * 1024 * 1024
# Number of ids in one request to the broker.
_MOST_IDS = 5_000
# Number of partly consumed entries carried from batch to batch.
_MOST_CUT = 1_000


@dataclass(frozen=True)
class BatchLimits:
    """Limits that end a batch before the topic's end; None is no limit."""

    messages: int | None
    bytes: int | None
    seconds: float | None
    inline_bytes: int | None

    @staticmethod
    def of(messages: object, size: object, seconds: object, inline_bytes: int | None) -> BatchLimits:
        """Return the limits after rendering of templates: numbers, or texts of them."""
        count, octets = _number("max_messages", messages), _number("max_bytes", size)
        return BatchLimits(
            None if count is None else int(count),
            None if octets is None else int(octets),
            _number("max_seconds", seconds, least=0.001),
            inline_bytes,
        )


def _number(name: str, value: object, *, least: float = 1) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = float(value) if "." in value else int(value)
        except ValueError:
            validation.refuse(f"{name}={value!r} is no number")
    validation.number(name, value, least)
    assert isinstance(value, int | float)
    return value


class CutEntries:
    """Batch entries consumed in part, by this batch or earlier ones, with the messages consumed.

    A broker without acknowledgements of single messages redelivers such an entry as a whole. An entry is identified by
    ledger, number, size and publish time, so that an entry of the same number in another cluster is another one.

    Each batch leaves a note, numbered above the notes it had read: the highest number is the latest one, in whatever
    order they are given, and has all that the earlier ones still know. What a note has of a topic holds until the
    subscription is moved back. The note has the topic's mark-delete position, up to which all was acknowledged: an
    entry up to there is delivered, or the position is lower, only after such a move.
    """

    def __init__(self, notes: Iterable[object] | None = (), subscription: Sequence[str] = ()) -> None:
        """Read the notes of earlier batches, or one; those of another `subscription`, cluster and name, are left aside.

        None and what is no note are left aside, too.
        """
        self._subscription = list(subscription)
        self._known: dict[tuple[str, int, int], tuple[int, int, int]] = {}
        self._open: dict[tuple[str, int, int], tuple[int, int, int]] = {}
        self._marks: dict[str, tuple[int, int]] = {}
        self._number = 0
        for note in [notes] if isinstance(notes, Mapping) else notes or ():
            if isinstance(note, Mapping) and note.get("subscription") == self._subscription:
                self._read(note)
        self._is_noted = bool(self._known)

    def _read(self, note: Mapping[str, Any]) -> None:
        """Read a note unless a later one is known; those of one number are of batches at the same time."""
        if note["number"] < self._number:
            return
        if note["number"] > self._number:
            self._number = note["number"]
            self._known, self._marks = {}, {}
        for topic, (ledger, entry) in note["marks"].items():
            self._marks[topic] = max((ledger, entry), self._marks.get(topic, (-1, -1)))
        for topic, entries in note["entries"].items():
            for ledger, entry, bits, size, time in entries:
                key = (topic, ledger, entry)
                self._known[key] = (int(bits, 16) | self.known_indexes(key, size, time), size, time)

    def __bool__(self) -> bool:
        return bool(self._known)

    def is_known(self, message: Message) -> bool:
        """Return True if an earlier batch has the message, which was delivered now."""
        message_id = message.message_id()
        key = (message.topic_name(), message_id.ledger_id(), message_id.entry_id())
        self._on_delivery(*key)
        bits = self.known_indexes(key, message_id.batch_size(), message.publish_timestamp()) if self._known else 0
        return bool(bits >> max(0, message_id.batch_index()) & 1)

    def known_indexes(self, key: tuple[str, int, int], size: int, publish_time: int) -> int:
        """Return the bit set of an entry's messages that earlier batches have."""
        bits, known_size, known_time = self._known.get(key, (0, 0, 0))
        return bits if (known_size, known_time) == (size, publish_time) else 0

    def has(self, topic: str, ledger: int, entries: range) -> bool:
        """Return True if an earlier batch consumed one of the entries in part, which were delivered now."""
        self._on_delivery(topic, ledger, entries.start)
        return any(name == topic and lid == ledger and entry in entries for name, lid, entry in self._known)

    def check_position(self, topic: str, acknowledged: MessageId) -> None:
        """Forget a topic whose mark-delete position is lower than it was after the latest batch."""
        mark = self._marks.get(topic)
        # A broker may write a position before the first entry of a ledger as the end of the one before.
        if mark is not None and mark[1] >= 0 and (acknowledged.ledger_id(), acknowledged.entry_id()) < mark:
            self._forget(topic)

    def _on_delivery(self, topic: str, ledger: int, entry: int) -> None:
        if topic in self._marks and (ledger, entry) <= self._marks[topic]:
            self._forget(topic)

    def _forget(self, topic: str) -> None:
        """Drop what earlier batches have of a topic whose subscription was moved back: all comes again."""
        for key in [key for key in self._known if key[0] == topic]:
            bits, size, time = self._known.pop(key)
            if key in self._open:
                self._open[key] = (self._open[key][0] & ~bits, size, time)
        del self._marks[topic]

    def take(self, key: tuple[str, int, int], indexes: int, size: int, publish_time: int) -> None:
        """Record messages of a batch entry that this batch acknowledges."""
        bits = self._open.get(key, (0, 0, 0))[0] | indexes
        if key not in self._open:
            bits |= self.known_indexes(key, size, publish_time)
        if bits == (1 << size) - 1 and key not in self._known:
            self._open.pop(key, None)
        else:
            # A complete entry of earlier batches stays known: the rest of it may still be on its way.
            self._open[key] = (bits, size, publish_time)

    def as_json(self) -> dict[str, Any]:
        """Return the note for later batches, empty if none is needed: the newest partly consumed entries.

        `marks` is to be filled with the mark-delete positions after the acknowledgement.
        """
        found: dict[str, list[list[Any]]] = {}
        entries = {**self._known, **self._open}.items()
        in_part = [item for item in entries if item[1][0] != (1 << item[1][1]) - 1]
        newest = sorted(in_part, key=lambda item: item[0][1:])[-_MOST_CUT:]
        for (topic, ledger, entry), (bits, size, time) in newest:
            found.setdefault(topic, []).append([ledger, entry, f"{bits:x}", size, time])
        if not found and not self._is_noted:
            return {}
        # Without entries it tells that those of the latest note are complete.
        return {"subscription": self._subscription, "number": self._number + 1, "entries": found, "marks": {}}


@dataclass
class _Partition:
    """Messages in the output of one topic or partition."""

    count: int = 0
    first: str | None = None
    last: str | None = None


class Batch:
    """The batch so far. Not thread-safe."""

    def __init__(self, limits: BatchLimits, cut: CutEntries | None = None) -> None:
        self._limits = limits
        self._partitions: dict[str, _Partition] = {}
        self._chunk = IdRanges()
        self._chunks: list[dict[str, list[list[Any]]]] = []
        self._others = IdRanges()
        self._taken = self._taken_bytes = self._taken_inline = 0
        self.cut = CutEntries() if cut is None else cut
        self.messages: list[dict[str, Any]] = []
        self.count = 0
        self.bytes = 0
        self.stop_reason: str | None = None

    def takes(self, size: int, line: int) -> bool:
        """Reserve room for a message and return True, or record the limit reached. The first message always fits."""
        limits = self._limits
        if limits.inline_bytes is not None and self._taken_inline + line > limits.inline_bytes:
            self.stop_reason = "inline_limit"
        elif self._taken and limits.bytes is not None and self._taken_bytes + size > limits.bytes:
            self.stop_reason = "max_bytes"
        if self.stop_reason is not None:
            return False
        self._take(1, size)
        self._taken_inline += line
        return True

    def _take(self, count: int, size: int) -> None:
        limits = self._limits
        self._taken += count
        self._taken_bytes += size
        if limits.messages is not None and self._taken >= limits.messages:
            self.stop_reason = "max_messages"
        elif limits.bytes is not None and self._taken_bytes >= limits.bytes:
            self.stop_reason = "max_bytes"

    def is_too_long(self, line: int) -> bool:
        """Return True if a message alone is too long to be returned inline."""
        return self._limits.inline_bytes is not None and line > self._limits.inline_bytes

    @property
    def is_empty(self) -> bool:
        """True if no message was added."""
        return self._taken == 0

    def add(self, message: Message) -> None:
        """Add a message to the output."""
        self._chunk.add(message)
        self._note(message.topic_name(), 1, message.message_id(), message.message_id())
        self._note_entry(message)
        self.count += 1
        self.bytes += len(message)

    def add_other(self, message: Message) -> None:
        """Acknowledge a message with the batch without adding it to the output."""
        self._others.add(message)
        self._note_entry(message)

    def _note_entry(self, message: Message) -> None:
        message_id = message.message_id()
        if message_id.batch_size() > 1:
            key = (message.topic_name(), message_id.ledger_id(), message_id.entry_id())
            index = 1 << max(0, message_id.batch_index())
            self.cut.take(key, index, message_id.batch_size(), message.publish_timestamp())

    def room(self) -> tuple[int, int]:
        """Return number of rows and bytes of payload to receive next."""
        limits = self._limits
        rows = _MOST_ROWS if limits.messages is None else limits.messages - self._taken
        size = _MOST_BYTES if limits.bytes is None else limits.bytes - self._taken_bytes
        return min(rows, _MOST_ROWS), min(size, _MOST_BYTES)

    def takes_rows(self, size: int) -> bool:
        """Return True if rows with this many bytes of payload fit, or record the limit reached."""
        if self._taken and self._limits.bytes is not None and self._taken_bytes + size > self._limits.bytes:
            self.stop_reason = "max_bytes"
        return self.stop_reason is None

    def add_rows(self, entries: EntryRange, size: int, publish_time: int) -> None:
        """Add rows with this many bytes of payload to the output."""
        self._chunk.add_rows(entries)
        self._note(entries.topic, len(entries), entries.first_message_id(), entries.last_message_id())
        self._note_rows(entries, publish_time)
        self._take(len(entries), size)
        self.count += len(entries)
        self.bytes += size

    def add_other_rows(self, entries: EntryRange, publish_time: int) -> None:
        """Acknowledge rows with the batch without adding them to the output."""
        self._others.add_rows(entries)
        self._note_rows(entries, publish_time)

    def _note_rows(self, entries: EntryRange, publish_time: int) -> None:
        if entries.indexes is not None and entries.batch_size > 1:
            key = (entries.topic, entries.ledger_id, entries.first_entry)
            self.cut.take(key, entries.indexes, entries.batch_size, publish_time)

    def _note(self, topic: str, count: int, first: MessageId, last: MessageId) -> None:
        own = self._partitions.setdefault(topic, _Partition())
        own.count += count
        own.first = own.first or str(first)
        own.last = str(last)

    def end_chunk(self, records: Iterable[dict[str, Any]] = ()) -> None:
        """End a chunk of the output; `records` are its messages, kept as Airflow stores them for an inline result."""
        if self._chunk:
            self._chunks.append(self._chunk.as_json())
            self._chunk = IdRanges()
        if self._limits.inline_bytes is not None:
            self.messages.extend(map(storable, records))

    def manifest(self) -> dict[str, Any]:
        """Return counts and ids ("ledger:entry:partition:batch_index") as JSON values."""
        found: dict[str, Any] = {
            "count": self.count,
            "bytes": self.bytes,
            "partitions": {
                name: {"count": own.count, "first": own.first, "last": own.last}
                for name, own in sorted(self._partitions.items())
            },
            "stop_reason": self.stop_reason,
        }
        if self._limits.inline_bytes is not None:
            found["messages"] = self.messages
        return found

    def chunks(self) -> list[dict[str, list[list[Any]]]]:
        """Return the message ids of the output, by chunk and topic."""
        return self._chunks if not self._chunk else [*self._chunks, self._chunk.as_json()]

    def others(self) -> dict[str, list[list[Any]]]:
        """Return the ids to acknowledge that are not in the output."""
        return self._others.as_json()


def acknowledge(consumers: Sequence[Consumer], ranges: Iterable[TopicRanges]) -> set[str]:
    """Acknowledge ids, received now or by an earlier try; blocks for the broker's receipts.

    Returns the topics without a consumer, of which nothing is acknowledged. The consumers must have
    `ack_receipt_enabled`: a rejected acknowledgement raises the broker's error.
    """
    from pulsar_native.topic import TopicName

    owners = {topic: consumer for consumer in consumers for topic in [*consumer.topics(), consumer.topic()]}
    wanted: dict[Consumer, list[MessageId]] = {}
    without: set[str] = set()
    for each in ranges:
        for topic, message_id in ids_of(each):
            owner = owners.get(topic) or owners.get(TopicName.parse(topic).base.full)
            if owner is None:
                without.add(topic)
                continue
            own = wanted.setdefault(owner, [])
            own.append(message_id)
            if len(own) >= _MOST_IDS:
                owner.acknowledge(list(wanted.pop(owner)))
    for owner, own in wanted.items():
        owner.acknowledge(list(own))
    return without


# ---- a message as JSON -----------------------------------------------------------------------------------------------


def record_of(message: Message, decoder: str) -> dict[str, Any]:
    """Return a message as a line of the output; raises the decoder's error for a value it cannot decode.

    Only fields of the message itself are written, so that every reading returns the same line.
    """
    from pulsar_native.jobs.codecs import decode

    value, encoding = decode(message, decoder)
    return {"value": value, "encoding": encoding, **metadata_of(message)}


def metadata_of(message: Message) -> dict[str, Any]:
    """Return what `record_of` tells of a message besides its value: key, properties, times, topic, ids."""
    record: dict[str, Any] = {
        "key": message.partition_key() if message.has_key() else None,
        "properties": message.properties(),
        "event_time": _iso(message.event_timestamp()),
        "publish_time": _iso(message.publish_timestamp()),
        "topic": message.topic_name(),
        "message_id": str(message.message_id()),
        "producer": message.producer_name(),
        "sequence_id": message.sequence_id(),
    }
    if message.has_base64_encoded_key():
        record["key_encoding"] = "base64"
    if message.ordering_key():
        record["ordering_key"] = message.ordering_key()
    return record


def _iso(millis: int) -> str | None:
    if not millis:
        return None
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        # Any 64-bit number is possible here; one that is not a date stays a number.
        return str(millis)
