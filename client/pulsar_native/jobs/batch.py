"""One consumed batch: its limits, what it holds, and how it is acknowledged.

Rules: what is to be acknowledged is kept as ranges of entries, not as messages, so that a large batch stays small in
memory and in Airflow's task state; messages taken but not put into the batch are never acknowledged. Does no I/O except
acknowledging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from pulsar_native import Consumer, EntryRange, Message, MessageId

# What is received at once as rows, at most.
_MOST_ROWS = 20_000
_MOST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class BatchLimits:
    """What ends a batch besides the topic's end; None is no limit."""

    messages: int | None
    bytes: int | None
    seconds: float | None
    inline_bytes: int | None

    @staticmethod
    def of(messages: object, size: object, seconds: object, inline_bytes: int | None) -> BatchLimits:
        """Return the limits after templates were rendered: numbers, or texts of them."""
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


@dataclass
class _PartitionRange:
    """The messages of one topic or partition in the batch.

    `entries`: (ledger, entry) to indexes taken and size; `whole`: [ledger, first entry, last entry] taken as a whole.
    """

    count: int = 0
    first: str | None = None
    last: str | None = None
    entries: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    whole: list[list[int]] = field(default_factory=list)


class Batch:
    """What was taken so far. Not thread-safe."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._places: dict[str, _PartitionRange] = {}
        self.messages: list[dict[str, Any]] = []
        self.count = 0
        self.bytes = 0
        self.inline_bytes = 0
        self.stop_reason: str | None = None

    def takes(self, size: int, line: int) -> bool:
        """Return whether a message still fits, and note the reason when it does not. A first one always fits."""
        if self._limits.inline_bytes is not None and self.inline_bytes + line > self._limits.inline_bytes:
            if not self.count:
                validation.refuse(f"the first message has {line} bytes as JSON: too many for inline=True; give a path")
            self.stop_reason = "inline_limit"
        elif self.count and self._limits.bytes is not None and self.bytes + size > self._limits.bytes:
            self.stop_reason = "max_bytes"
        return self.stop_reason is None

    def add(self, message: Message, record: dict[str, Any], line: int) -> None:
        """Take a message into the batch."""
        message_id = message.message_id()
        place = self._places.setdefault(message.topic_name(), _PartitionRange())
        place.count += 1
        place.last = str(message_id)
        place.first = place.first or place.last
        key = (message_id.ledger_id(), message_id.entry_id())
        bits, size = place.entries.get(key, (0, message_id.batch_size()))
        place.entries[key] = (bits | 1 << max(0, message_id.batch_index()), size)
        self.count += 1
        self.bytes += len(message)
        if self._limits.inline_bytes is not None:
            self.inline_bytes += line
            self.messages.append(record)
        self._note_limits()

    def room(self) -> tuple[int, int]:
        """Return how many rows, and bytes of payload, to take next: what is left, and never too much at once."""
        limits = self._limits
        rows = _MOST_ROWS if limits.messages is None else limits.messages - self.count
        size = _MOST_BYTES if limits.bytes is None else limits.bytes - self.bytes
        return min(rows, _MOST_ROWS), min(size, _MOST_BYTES)

    def add_rows(self, entries: EntryRange, size: int) -> None:
        """Take rows with so many bytes of payload into the batch."""
        place = self._places.setdefault(entries.topic, _PartitionRange())
        place.count += len(entries)
        place.last = str(entries.last_message_id())
        place.first = place.first or str(entries.first_message_id())
        if entries.indexes is None:
            _append(place.whole, entries.ledger_id, entries.first_entry, entries.last_entry)
        else:
            key = (entries.ledger_id, entries.first_entry)
            bits, _ = place.entries.get(key, (0, 0))
            place.entries[key] = (bits | entries.indexes, entries.batch_size)
        self.count += len(entries)
        self.bytes += size
        self._note_limits()

    def _note_limits(self) -> None:
        if self._limits.messages is not None and self.count >= self._limits.messages:
            self.stop_reason = "max_messages"
        elif self._limits.bytes is not None and self.bytes >= self._limits.bytes:
            self.stop_reason = "max_bytes"

    def manifest(self) -> dict[str, Any]:
        """Return counts and ids ("ledger:entry:partition:batch_index"), in a form JSON can hold."""
        found: dict[str, Any] = {
            "count": self.count,
            "bytes": self.bytes,
            "partitions": {
                name: {"count": place.count, "first": place.first, "last": place.last}
                for name, place in sorted(self._places.items())
            },
            "stop_reason": self.stop_reason,
        }
        if self._limits.inline_bytes is not None:
            found["messages"] = self.messages
        return found

    def entries(self) -> dict[str, list[list[int]]]:
        """Return what is to be acknowledged, by topic: [ledger, first entry, last entry], or one message of an entry
        as [ledger, entry, batch index, batch size]; in a form JSON can hold.
        """
        return {name: [*place.whole, *_ranges(place.entries)] for name, place in self._places.items()}


def _ranges(entries: Mapping[tuple[int, int], tuple[int, int]]) -> list[list[int]]:
    found: list[list[int]] = []
    for (ledger, entry), (bits, size) in sorted(entries.items()):
        if size > 1 and bits != (1 << size) - 1:
            found.extend([ledger, entry, index, size] for index in range(size) if bits >> index & 1)
        else:
            _append(found, ledger, entry, entry)
    return found


def _append(ranges: list[list[int]], ledger: int, first: int, last: int) -> None:
    """Add entries to ranges: to the last one if they follow it."""
    if ranges and len(ranges[-1]) == 3 and ranges[-1][0] == ledger and ranges[-1][2] == first - 1:
        ranges[-1][2] = last
    else:
        ranges.append([ledger, first, last])


def acknowledge(consumers: Sequence[Consumer], entries: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """Acknowledge what `Batch.entries` returned, now or in an earlier try, and close the consumers, which sends it."""
    from pulsar_native.topic import TopicName

    by_topic = {consumer.topic(): consumer for consumer in consumers}
    for name, ranges in entries.items():
        topic = TopicName.parse(name)
        consumer = by_topic.get(name) or by_topic[topic.base.full]
        for each in ranges:
            consumer.acknowledge(_ids(topic, each))
    for consumer in consumers:
        consumer.close()


def _ids(topic: Any, each: Sequence[int]) -> list[Message | MessageId]:
    from pulsar_native import MessageId

    partition, name = topic.partition, topic.full
    if len(each) == 4:
        ledger, entry, index, size = each
        return [MessageId(partition, ledger, entry, index, batch_size=size, topic=name)]
    ledger, first, last = each
    return [MessageId(partition, ledger, entry, -1, topic=name) for entry in range(first, last + 1)]


# ---- a message as JSON -----------------------------------------------------------------------------------------------


def record_of(message: Message, decoder: str) -> dict[str, Any]:
    """Return a message as a line of the output holds it; raises `InvalidRecord` for a value that cannot be decoded."""
    from pulsar_native.jobs.codecs import decode

    value, encoding = decode(message, decoder)
    record: dict[str, Any] = {
        "value": value,
        "encoding": encoding,
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
    if message.redelivery_count():
        record["redelivery_count"] = message.redelivery_count()
    return record


def _iso(millis: int) -> str | None:
    if not millis:
        return None
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        # Any 64-bit number may stand there; what is no date stays a number.
        return str(millis)
