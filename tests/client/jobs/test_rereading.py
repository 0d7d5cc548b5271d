"""Reading known ids again: exactly these messages, few seeks, missing ones named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import MessageId, Timeout, TopicNotFound
from pulsar_native.jobs import rereading as module
from pulsar_native.jobs.failures import is_permanent
from pulsar_native.jobs.id_ranges import IdRanges
from pulsar_native.jobs.rereading import MessageRereader, MessagesGone
from pulsar_native.message import Message
from support.jobs import TOPIC, received

Place = tuple[int, int, int]


class Reader:
    """A reader of a stored topic."""

    def __init__(self, stored: Sequence[Message], start: MessageId) -> None:
        self._stored = stored
        self.closed = False
        self.starts: list[MessageId] = []
        self.seek(start)

    def seek(self, start: MessageId) -> None:
        self.starts.append(start)
        place = (start.ledger_id(), start.entry_id(), start.batch_index())
        self._left = [message for message in self._stored if place_of(message) >= place]

    def read_next(self, timeout_millis: int) -> Message:
        if not self._left:
            raise Timeout("nothing")
        return self._left.pop(0)

    def has_message_available(self) -> bool:
        return bool(self._left)

    def arrow_batches(self, end: MessageId) -> Iterator[pa.RecordBatch]:
        last = (end.ledger_id(), end.entry_id(), end.batch_index())
        places = [place_of(message) for message in self._left if place_of(message) < last]
        for start in range(0, len(places), 4):
            columns = list(zip(*places[start : start + 4], strict=True))
            yield pa.RecordBatch.from_pydict(
                dict(zip(("__ledgerId", "__entryId", "__batchIndex"), map(list, columns), strict=True))
            )

    def close(self) -> None:
        self.closed = True


def place_of(message: Message) -> Place:
    """Return the place of a message."""
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


class Client:
    """A client of one topic with these messages, None for no topic."""

    def __init__(self, stored: Sequence[Message] | None) -> None:
        self._stored = stored
        self.readers: list[Reader] = []

    def get_partition_count(self, topic: str) -> int:
        if self._stored is None:
            raise TopicNotFound("no such topic")
        return 0

    def create_reader(self, topic: str, start: MessageId, **options: Any) -> Reader:
        assert options["start_message_id_inclusive"]
        self.readers.append(Reader(self._stored or [], start))
        return self.readers[-1]


def rereader(client: Client, check: Any = lambda: None) -> MessageRereader:
    """Return a rereader without schemas."""
    return MessageRereader(client, check, None)  # type: ignore[arg-type]


def batches(entries: int, size: int = 3, ledger: int = 7) -> list[Message]:
    """Return the messages of batches."""
    return [received(entry=n, index=i, size=size, ledger=ledger) for n in range(entries) for i in range(size)]


def row_places(rows: Iterator[pa.RecordBatch]) -> list[Place]:
    """Return the places of rows."""
    return [tuple(row.values()) for batch in rows for row in batch.to_pylist()]  # type: ignore[misc]


STORED = batches(4) + batches(3, ledger=8)


@given(st.lists(st.sets(st.sampled_from([place_of(message) for message in STORED]), max_size=12), max_size=3))
def test_rereader_yields_exactly_the_ids(chunks: list[set[Place]]) -> None:
    client = Client(STORED)
    made = rereader(client)
    for wanted in chunks:
        ids = IdRanges()
        for message in STORED:
            if place_of(message) in wanted:
                ids.add(message)
        assert [place_of(message) for message in made.messages(ids.as_json())] == sorted(wanted)
        assert row_places(made.rows(ids.as_json())) == sorted(wanted)
    assert len(client.readers) <= 1


def test_rereader_reads_on_instead_of_seeking() -> None:
    client = Client(batches(10))
    ranges = {TOPIC: [[7, 0, 1], [7, 2, 0, 0, 3], [7, 2, 2, 2, 3], [7, 5, 6]]}
    assert len(list(rereader(client).messages(ranges))) == 14
    (reader,) = client.readers
    assert len(reader.starts) == 1


def test_rereader_same_ids_again_are_read_again() -> None:
    """A run that is tried twice reads the same part of a batch with the same readers."""
    made = rereader(Client(batches(4)))
    for _ in range(2):
        assert [place_of(each) for each in made.messages({TOPIC: [[7, 2, 1, 1, 3]]})] == [(7, 2, 1)]


def test_rereader_seeks_over_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SKIPPED", 2)
    client = Client(batches(10))
    made = rereader(client)
    assert len(list(made.messages({TOPIC: [[7, 0, 0], [7, 2, 2], [7, 8, 8], [7, 1, 1]]}))) == 12
    (reader,) = client.readers
    assert [start.entry_id() for start in reader.starts] == [0, 8, 1]
    assert row_places(made.rows({TOPIC: [[7, 0, 0], [7, 8, 8]]}))[-1] == (7, 8, 2)
    assert [start.entry_id() for start in reader.starts[3:]] == [0, 8]


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([[7, 2, 5]], f"no longer has 7:4 to 7:5 of {TOPIC}$"),
        ([[7, 3, 1, 2, 3], [9, 0, 0]], f"no longer has 9:0 of {TOPIC}$"),
        ([[7, 3, 1, 3, 4]], rf"no longer has 7:3 of {TOPIC} \(indexes 1-3\)$"),
        ([[6, 0, 0], [6, 2, 3]], f"no longer has 6:0 of {TOPIC}, 6:2 to 6:3 of {TOPIC}$"),
    ],
)
@pytest.mark.parametrize("as_rows", [False, True])
def test_rereader_missing_ids_are_named(ranges: list[list[int]], words: str, as_rows: bool) -> None:
    made = rereader(Client(batches(4)))
    with pytest.raises(MessagesGone, match=words) as caught:
        list(made.rows({TOPIC: ranges}) if as_rows else made.messages({TOPIC: ranges}))
    assert is_permanent(caught.value)


def test_rereader_missing_topic_is_named() -> None:
    with pytest.raises(MessagesGone, match=f"the topic {TOPIC} is no longer there"):
        list(rereader(Client(None)).messages({TOPIC: [[7, 0, 0]]}))


def test_rereader_message_in_chunks_starts_at_the_first() -> None:
    first = MessageId(-1, 7, 1, -1, topic=TOPIC)
    chunked = received(entry=4, first_chunk=first)
    ids = IdRanges()
    ids.add(chunked)
    client = Client([received(entry=0), received(entry=2), chunked, received(entry=5)])
    assert list(rereader(client).messages(ids.as_json())) == [chunked]
    assert client.readers[0].starts[0] == first


def test_rereader_rows_in_order_of_ids() -> None:
    """A message in chunks comes when its last chunk does, and may be behind others."""
    stored = [received(entry=n) for n in (2, 0, 1)]
    client = Client(stored)
    assert row_places(rereader(client).rows({TOPIC: [[7, 0, 2]]})) == [(7, 0, -1), (7, 1, -1), (7, 2, -1)]


def test_rereader_check_ends_the_reading() -> None:
    class Killed(Exception):
        pass

    def check() -> None:
        raise Killed

    with pytest.raises(Killed):
        list(rereader(Client(STORED), check).messages({TOPIC: [[7, 0, 1]]}))
    with pytest.raises(Killed):
        list(rereader(Client(STORED), check).rows({TOPIC: [[7, 0, 1]]}))


def test_rereader_silent_broker_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Silent(Reader):
        def read_next(self, timeout_millis: int) -> Message:
            now[0] += timeout_millis / 1000
            raise Timeout("nothing")

        def has_message_available(self) -> bool:
            return True

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    client = Client(STORED)
    client.create_reader = lambda topic, start, **options: Silent([], start)  # type: ignore[method-assign]
    with pytest.raises(Timeout):
        list(rereader(client).messages({TOPIC: [[7, 0, 0]]}))
    assert 60 < now[0] < 62


@pytest.mark.parametrize("fails", [False, True])
def test_rereader_closes_readers_after_success_only(fails: bool) -> None:
    client = Client(STORED)

    def read() -> None:
        with rereader(client) as made:
            list(made.messages({TOPIC: [[7, 0, 0], [7, 9, 9]] if fails else [[7, 0, 0]]}))

    if fails:
        with pytest.raises(MessagesGone):
            read()
    else:
        read()
    assert client.readers[0].closed is not fails
