"""Message ids by topic as ranges of entries, small and in JSON.

A range is a list: [ledger, first entry, last entry] for whole entries, [ledger, entry, first index, last index, batch
size] for a part of a batch, [serialized id] for a chunked message. Rules: ranges of a topic are in the order of its
ids. No I/O.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_native import EntryRange, Message, MessageId

Range = Sequence[Any]
TopicRanges = Mapping[str, Sequence[Range]]
Entry = tuple[int, int]


class IdRanges:
    """Collector of ids, single or of rows. Not thread-safe."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicIds] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    def add(self, message: Message) -> None:
        """Add the id of a message."""
        message_id = message.message_id()
        own = self._topics.setdefault(message.topic_name(), _TopicIds())
        key = (message_id.ledger_id(), message_id.entry_id())
        if message_id.first_chunk_message_id() is not None:
            own.chunked[key] = message_id
            return
        bits, size = own.entries.get(key, (0, message_id.batch_size()))
        own.entries[key] = (bits | 1 << max(0, message_id.batch_index()), size)

    def add_rows(self, rows: EntryRange) -> None:
        """Add the ids of rows."""
        own = self._topics.setdefault(rows.topic, _TopicIds())
        if rows.indexes is None:
            own.whole.append([rows.ledger_id, rows.first_entry, rows.last_entry])
        else:
            key = (rows.ledger_id, rows.first_entry)
            bits, _ = own.entries.get(key, (0, 0))
            own.entries[key] = (bits | rows.indexes, rows.batch_size)

    def as_json(self) -> dict[str, list[list[Any]]]:
        """Return the ranges of each topic."""
        return {name: own.ranges() for name, own in sorted(self._topics.items())}


class _TopicIds:
    def __init__(self) -> None:
        # (ledger, entry) to the bit set of indexes and the batch size.
        self.entries: dict[Entry, tuple[int, int]] = {}
        self.whole: list[list[Any]] = []
        self.chunked: dict[Entry, MessageId] = {}

    def ranges(self) -> list[list[Any]]:
        found: list[tuple[Entry, list[Any]]] = [((each[0], each[1]), each) for each in self.whole]
        for (ledger, entry), (bits, size) in self.entries.items():
            if size > 1 and bits != (1 << size) - 1:
                found.extend(((ledger, entry), [ledger, entry, *run, size]) for run in _runs(bits))
            else:
                found.append(((ledger, entry), [ledger, entry, entry]))
        for key, message_id in self.chunked.items():
            found.append((key, [base64.b64encode(message_id.serialize()).decode()]))
        ranges: list[list[Any]] = []
        for _, each in sorted(found, key=lambda pair: (pair[0], pair[1][2:])):
            last = ranges[-1] if ranges else []
            if len(each) == len(last) == 3 and each[0] == last[0] and each[1] == last[2] + 1:
                ranges[-1] = [last[0], last[1], each[2]]
            else:
                ranges.append(each)
        return ranges


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each run of set bits."""
    index = 0
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        length = (~bits & (bits + 1)).bit_length() - 1
        yield index + gap, index + gap + length - 1
        bits >>= length
        index += gap + length


def bounds_of(each: Range, topic: str) -> tuple[Entry, Entry]:
    """Return the first and last entry of a range."""
    if len(each) == 1:
        message_id = chunked_id(each, topic)
        key = (message_id.ledger_id(), message_id.entry_id())
        return key, key
    if len(each) == 3:
        return (each[0], each[1]), (each[0], each[2])
    return (each[0], each[1]), (each[0], each[1])


def holds(each: Range, index: int) -> bool:
    """Return True if a range, of an entry within its bounds, has a batch index."""
    return len(each) != 5 or each[2] <= index <= each[3]


def chunked_id(each: Range, topic: str) -> MessageId:
    """Return the id of a chunked message."""
    from pulsar_native import MessageId

    return MessageId.deserialize(base64.b64decode(each[0]), topic)


def ids_of(ranges: TopicRanges) -> Iterator[tuple[str, MessageId]]:
    """Yield the ids to acknowledge, each with its topic: entries, messages of a batch, chunked messages."""
    from pulsar_native import MessageId
    from pulsar_native.topic import TopicName

    for topic, own in ranges.items():
        partition = TopicName.parse(topic).partition
        for each in own:
            if len(each) == 1:
                yield topic, chunked_id(each, topic)
            elif len(each) == 3:
                for entry in range(each[1], each[2] + 1):
                    yield topic, MessageId(partition, each[0], entry, -1, topic=topic)
            else:
                ledger, entry, first, last, size = each
                for index in range(first, last + 1):
                    yield topic, MessageId(partition, ledger, entry, index, batch_size=size, topic=topic)


def describe(ranges: TopicRanges, most: int = 10) -> str:
    """Return the ids as one line of text, cut after `most` ranges."""
    words = []
    for topic, own in ranges.items():
        for each in own:
            first, last = bounds_of(each, topic)
            span = f"{first[0]}:{first[1]}" + ("" if first == last else f" to {last[0]}:{last[1]}")
            words.append(f"{span} of {topic}" + (f" (indexes {each[2]}-{each[3]})" if len(each) == 5 else ""))
    return ", ".join(words[:most]) + (f" and {len(words) - most} more ranges" if len(words) > most else "")
