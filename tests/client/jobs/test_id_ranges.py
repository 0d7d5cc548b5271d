"""Ids of many messages as ranges: nothing lost, nothing added, whatever the order they come in."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import EntryRange, Message, MessageId
from pulsar_native.jobs.id_ranges import IdRanges, bounds_of, chunked_id, describe, holds, ids_of

TOPIC = "persistent://public/default/t-partition-3"
SIZE = 5
_IDS = st.sets(st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, SIZE - 1)))


class _Message(Message):
    """A message that has nothing but an id."""

    __slots__ = ("_id",)

    def __init__(self, message_id: MessageId) -> None:
        self._id = message_id

    def message_id(self) -> MessageId:
        """Return the id."""
        return self._id

    def topic_name(self) -> str:
        """Return the topic."""
        return TOPIC


def message(ledger: int, entry: int, index: int = -1, size: int = 0) -> Message:
    """Return a message of an id."""
    return _Message(MessageId(3, ledger, entry, index, batch_size=size, topic=TOPIC))


@given(_IDS, st.randoms())
def test_ranges_hold_exactly_the_ids(wanted: set[tuple[int, int, int]], random: object) -> None:
    ids, shuffled = IdRanges(), sorted(wanted)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for each in shuffled:
        ids.add(message(*each, SIZE))
    ranges = json.loads(json.dumps(ids.as_json()))
    found = set()
    for ledger in range(1, 4):
        for entry in range(7):
            for each in ranges.get(TOPIC, []):
                first, last = bounds_of(each, TOPIC)
                if first <= (ledger, entry) <= last:
                    found |= {(ledger, entry, index) for index in range(SIZE) if holds(each, index)}
    assert found == wanted
    starts = [(bounds_of(each, TOPIC)[0], each[2] if len(each) == 5 else 0) for each in ranges.get(TOPIC, [])]
    assert starts == sorted(starts)


@given(_IDS)
def test_ids_acknowledge_exactly_the_messages(wanted: set[tuple[int, int, int]]) -> None:
    ids = IdRanges()
    for each in wanted:
        ids.add(message(*each, SIZE))
    found = set()
    for topic, message_id in ids_of(ids.as_json()):
        assert (topic, message_id.partition()) == (TOPIC, 3)
        index = message_id.batch_index()
        indexes = range(SIZE) if index < 0 else [index]
        found |= {(message_id.ledger_id(), message_id.entry_id(), each) for each in indexes}
    assert found == wanted


def test_neighbours_are_one_range() -> None:
    ids = IdRanges()
    for entry in range(1000):
        ids.add(message(7, entry))
    ids.add_rows(EntryRange(TOPIC, 3, 7, 1000, 1999, 4))
    ids.add_rows(EntryRange(TOPIC, 3, 7, 2000, 2000, 4, 0b0110))
    assert ids.as_json() == {TOPIC: [[7, 0, 1999], [7, 2000, 1, 2, 4]]}
    assert describe(ids.as_json()) == f"7:0 to 7:1999 of {TOPIC}, 7:2000 of {TOPIC} (indexes 1-2)"


def test_message_in_chunks_keeps_its_first_chunk() -> None:
    ids = IdRanges()
    first = MessageId(3, 7, 1, -1, topic=TOPIC)
    ids.add(_Message(MessageId(3, 7, 5, -1, topic=TOPIC, first_chunk=first)))
    (each,) = json.loads(json.dumps(ids.as_json()))[TOPIC]
    assert bounds_of(each, TOPIC) == ((7, 5), (7, 5))
    found = chunked_id(each, TOPIC)
    start = found.first_chunk_message_id()
    assert start is not None and (start.ledger_id(), start.entry_id(), found.topic_name()) == (7, 1, TOPIC)
