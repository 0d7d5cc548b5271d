"""The plan of one topic partition against a scripted topic: both ends, and every kind of loss."""

from __future__ import annotations

import pytest

from pulsar_native.exceptions import InvalidConfiguration, Timeout
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.offsets import Found, Range, bounds, check_retained, check_unread, resolve
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position

T = "persistent://public/default/t"


class Topic:
    """A topic as a list of (position, publish time), in the broker's order; `late` arrives after the first question."""

    def __init__(
        self,
        *messages: tuple[str, int],
        late: tuple[str, int] | None = None,
        trimmed: bool = False,
        entries_before: int = 0,
        last_entry: Position | None = None,
        held_back: tuple[tuple[str, int], ...] = (),
        ends_after: int = 0,
        delay: int = 0,
    ) -> None:
        self.messages = [Found(Position.parse(text), time) for text, time in messages]
        self._late = late
        self._trimmed = trimmed
        self._entries_before = entries_before
        self._last_entry = last_entry
        # Messages behind an open transaction, which ends after so many questions about it.
        self._held_back = [Found(Position.parse(text), time) for text, time in held_back]
        self._ends_after = ends_after
        # How long after its publish time a message arrives, by which the broker searches.
        self._delay = delay
        self.searches = 0

    def last(self) -> Position | None:
        found = self.messages[-1].position if self.messages else None
        if self._late is not None:
            self.messages.append(Found(Position.parse(self._late[0]), self._late[1]))
            self._late = None
        return found

    def last_stored(self) -> Position | None:
        return self.last()

    def first(self) -> Found | None:
        return self.messages[0] if self.messages else None

    def first_at(self, time_ms: int) -> Found | None:
        self.searches += 1
        return next((found for found in self.messages if found.publish_time + self._delay >= time_ms), None)

    def is_trimmed(self) -> bool:
        return self._trimmed

    def entries_before(self, ledger: int) -> int:
        return self._entries_before

    def last_entry(self) -> Position | None:
        return self._last_entry

    def empty_ledger(self) -> Position | None:
        return None

    def is_held_back(self, last: Position | None, until_ms: int) -> bool:
        if self._ends_after == 0:
            self.messages += self._held_back
            self._held_back = []
        self._ends_after -= 1
        return any(found.publish_time < until_ms for found in self._held_back)


FIVE = (("3:0", 100), ("3:1:0", 200), ("3:1:1", 200), ("3:2", 300), ("5:0", 400))


def planned(topic: Topic, **options: str) -> str:
    """Return the range as text, its topic left out."""
    given = {"service.url": "pulsar://h", "topic": T, "timeSlackMs": "0", **options}
    found = resolve(T, ReadOptions.parse(given), topic)
    assert found.topic == T
    return f"{found.start} {found.end}" + (" empty" if found.is_empty else "")


@pytest.mark.parametrize(
    ("options", "range_"),
    [
        ({}, "3:0 5:1"),
        ({"startingOffsets": '{"t": "3:1:1"}'}, "3:1:1 5:1"),
        ({"endingOffsets": '{"t": "3:1:1"}'}, "3:0 3:1:1"),
        ({"startingOffsets": '{"t": "3:1:1"}', "endingOffsets": '{"t": "3:2"}'}, "3:1:1 3:2"),
        ({"startingOffsets": '{"t": "3:1"}', "endingOffsets": '{"t": "3:1"}'}, "3:1 3:1 empty"),
        ({"startingOffsets": '{"t": "5:1"}'}, "5:1 5:1 empty"),
        ({"startingTime": "200"}, "3:1 5:1"),
        ({"startingTime": "201"}, "3:2 5:1"),
        ({"startingTime": "401"}, "5:1 5:1 empty"),
        ({"endingTime": "300"}, "3:0 3:2"),
        ({"endingTime": "301"}, "3:0 5:0"),
        ({"endingTime": "9999"}, "3:0 5:1"),
        ({"endingTime": "50"}, "3:0 3:0 empty"),
        ({"startingTime": "200", "endingTime": "300"}, "3:1 3:2"),
        ({"startingTime": "300", "endingTime": "350", "timeSlackMs": "100"}, "3:1 5:1"),
        ({"startingTime": "200", "startingOffsets": '{"t": "3:0"}', "endingOffsets": '{"t": "3:2"}'}, "3:0 3:2"),
    ],
)
def test_offsets_resolve_both_ends(options: dict[str, str], range_: str) -> None:
    assert planned(Topic(*FIVE), **options) == range_


def test_offsets_of_empty_topic_are_empty_range() -> None:
    assert planned(Topic()).endswith("empty")
    assert planned(Topic(), startingTime="5", endingTime="10").endswith("empty")


def test_offsets_exclude_messages_after_planning() -> None:
    assert planned(Topic(*FIVE, late=("5:1", 500))) == "3:0 5:1"
    assert planned(Topic(*FIVE, late=("5:1", 500)), endingTime="450") == "3:0 5:1"
    assert planned(Topic(late=("5:1", 500))).endswith("empty")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"t": "2:7"}'}, "Messages from 2:7 on are gone: the first one still there is 3:0"),
        ({"endingOffsets": '{"t": "5:2"}'}, "asks for messages up to 5:2, but its last message is 5:0"),
        ({"startingOffsets": '{"t": "2:0"}', "endingOffsets": '{"t": "3:1"}'}, "Messages from 2:0 on are gone"),
        ({"startingOffsets": '{"t": "9:9"}'}, "begins at 9:9, but the topic ends at 5:1: it was made again"),
        ({"startingOffsets": '{"t": "5:2"}'}, "begins at 5:2, but the topic ends at 5:1: it was made again"),
    ],
)
def test_offsets_trimmed_range_fails_or_is_cut(options: dict[str, str], message: str) -> None:
    with pytest.raises(DataLoss, match=message) as lost:
        planned(Topic(*FIVE), **options)
    assert "failOnDataLoss=false" in str(lost.value) and lost.value.topic == T
    assert planned(Topic(*FIVE), failOnDataLoss="false", **options)


def test_offsets_start_behind_end_without_loss() -> None:
    start = '{"t": "5:3"}'
    # In an open transaction, or behind its marker.
    assert planned(Topic(*FIVE, last_entry=Position(5, 2)), startingOffsets=start) == "5:1 5:1 empty"
    with pytest.raises(DataLoss):
        planned(Topic(*FIVE, last_entry=Position(5, 1)), startingOffsets=start)
    assert planned(Topic(), startingOffsets=start).endswith("empty")
    assert planned(Topic(*FIVE), startingOffsets=start, failOnDataLoss="false") == "5:1 5:1 empty"
    assert planned(Topic(*FIVE), startingOffsets=start, readCompacted="true") == "5:1 5:1 empty"


@pytest.mark.parametrize(
    ("position", "last_chunk", "number", "entries_before", "is_lost"),
    [
        ("3:0", "3:2", 2, 0, False),  # Chunked.
        ("3:0", "3:2", 3, 0, True),
        ("3:3", None, 3, 0, False),  # After an aborted transaction and its marker.
        ("3:3", None, 4, 0, True),
        ("5:0", None, 4, 4, False),  # The same in an earlier ledger that is still there.
        ("5:0", None, 5, 4, True),
        ("3:1", "5:0", 2, 0, False),  # Chunked, in two ledgers.
    ],
)
def test_offsets_index_shows_loss_before_first(
    position: str, last_chunk: str | None, number: int, entries_before: int, is_lost: bool
) -> None:
    topic = Topic((position, 100), ("6:0", 200), entries_before=entries_before)
    chunk = Position.parse(last_chunk) if last_chunk is not None else None
    topic.messages[0] = topic.messages[0]._replace(number=number, last_chunk=chunk)
    if not is_lost:
        assert planned(topic, startingTime="99") == f"{position} 6:1"
        return
    with pytest.raises(DataLoss, match="The topic was trimmed"):
        planned(topic, startingTime="99")


@pytest.mark.parametrize(
    ("delay", "until", "slack", "end", "searches"),
    [
        (0, 20_001, 0, "3:2", 1),
        (30, 20_001, 30, "3:2", 1),
        (30, 20_001, 0, "3:2", 2),
        (9_000, 20_001, 0, "3:2", 6),
        (9_000, 20_001, 8_000, "3:2", 2),
        (9_000, 40_001, 0, "5:1", 6),
        (10**12, 20_001, 0, "5:1", 22),  # No message is published so late; the number of requests is limited.
    ],
)
def test_end_is_behind_messages_that_came_late(delay: int, until: int, slack: int, end: str, searches: int) -> None:
    topic = Topic(("3:0", 10_000), ("3:1", 20_000), ("3:2", 30_000), ("5:0", 40_000), delay=delay)
    assert planned(topic, endingTime=str(until), timeSlackMs=str(slack)) == f"3:0 {end}"
    assert topic.searches == searches


HELD_BACK = (("5:1", 450), ("5:2", 600))


@pytest.mark.parametrize("before", [FIVE, ()], ids=["messages", "none"])
def test_end_waits_for_open_transaction(before: tuple[tuple[str, int], ...], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("pyspark_pulsar.offsets.time.sleep", slept.append)
    ended = Topic(*before, held_back=HELD_BACK, ends_after=3)
    assert planned(ended, endingTime="500").endswith(" 5:3") and len(slept) == 3
    # It ends between two requests: no time is waited, and nothing is left out.
    assert planned(Topic(*before, held_back=HELD_BACK), endingTime="500").endswith(" 5:3") and len(slept) == 3
    lenient = Topic(*before, held_back=HELD_BACK, ends_after=9)
    end = "5:1" if before else "0:0"
    assert f" {end}" in planned(lenient, endingTime="500", failOnDataLoss="false") and len(slept) == 3
    # It ends before the time is looked for: what is before the message found there can be read.
    assert planned(Topic(*before, late=("5:2", 600)), endingTime="500").endswith(" 5:2" if before else " 5:2 empty")
    # All that is held back is of later intervals.
    assert f" {end}" in planned(Topic(*before, held_back=HELD_BACK, ends_after=9), endingTime="420")


def test_open_transaction_fails_read_after_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("pyspark_pulsar.offsets.time.monotonic", lambda: now[0])
    monkeypatch.setattr("pyspark_pulsar.offsets.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    topic = Topic(*FIVE, held_back=HELD_BACK, ends_after=999)
    with pytest.raises(
        Timeout, match=r"An open transaction holds back messages of .* behind its last message, 5:0"
    ) as late:
        planned(topic, endingTime="500", pollTimeoutMs="3000")
    assert now == [3.0] and late.value.retryable and "failOnDataLoss=false" in str(late.value)


@pytest.mark.parametrize(
    ("first", "number", "begin", "is_lost"),
    [
        ("3:0", 0, None, False),
        ("3:0", 2, None, True),
        ("3:0", 2, "3:0", False),  # What is missing was removed before the last load.
        ("3:0", 2, "2:0", True),
        ("3:0", 0, "2:0", False),  # An empty ledger was closed and removed.
        ("3:0", None, "2:0", False),  # A broker without message indexes.
    ],
)
def test_first_message_after_empty_load(first: str, number: int | None, begin: str | None, is_lost: bool) -> None:
    topic = Topic((first, 100))
    topic.messages[0] = topic.messages[0]._replace(number=number)
    at = Position.parse(begin) if begin is not None else None
    if not is_lost:
        check_unread(T, at, topic)
        return
    with pytest.raises(DataLoss, match=r"found no message in .* the first message left is 3:0"):
        check_unread(T, at, topic)


@pytest.mark.parametrize(
    ("last_entry", "entries", "begin", "is_lost"),
    [
        (None, 0, "3:0", False),
        ("3:1", 0, "3:0", True),
        ("3:1", 0, None, True),
        ("3:1", 2, "3:0", False),  # In an open transaction.
        ("3:1", 0, "5:0", False),  # Emptied before the last load.
    ],
)
def test_no_message_after_empty_load(last_entry: str | None, entries: int, begin: str | None, is_lost: bool) -> None:
    at = Position.parse(begin) if begin is not None else None
    topic = Topic(last_entry=Position.parse(last_entry) if last_entry else None, entries_before=entries)
    if not is_lost:
        check_unread(T, at, topic)
        return
    with pytest.raises(DataLoss, match="no message is left"):
        check_unread(T, at, topic)


def test_offsets_of_emptied_topic_are_data_loss() -> None:
    with pytest.raises(DataLoss, match="it holds no message"):
        planned(Topic(), endingOffsets='{"t": "3:1"}')
    with pytest.raises(DataLoss, match="the topic holds none"):
        check_retained(T, Position(3, 0), None)


def test_offsets_trimmed_after_start_time_are_data_loss() -> None:
    trimmed = Topic(*FIVE, trimmed=True)
    assert planned(trimmed, startingTime="100") == "3:0 5:1"
    with pytest.raises(DataLoss, match="The topic was trimmed and the first message left is of 100 ms"):
        planned(trimmed, startingTime="99")
    with pytest.raises(DataLoss, match="no message is left"):
        planned(Topic(trimmed=True), startingTime="99")
    assert planned(trimmed, startingTime="99", failOnDataLoss="false") == "3:0 5:1"
    assert planned(trimmed) == "3:0 5:1"
    counted = Topic(*FIVE)
    counted.messages[0] = counted.messages[0]._replace(number=7)
    assert planned(counted, startingTime="100") == "3:0 5:1"
    with pytest.raises(DataLoss, match="The topic was trimmed"):
        planned(counted, startingTime="99")
    # The first message of a transaction's batch has a number below 0.
    for number in (0, -2):
        counted.messages[0] = counted.messages[0]._replace(number=number)
        assert planned(counted, startingTime="99") == "3:0 5:1"


def test_offsets_reversed_raise() -> None:
    with pytest.raises(InvalidConfiguration, match=r"endingOffsets of .*t \(3:0\) is before startingOffsets \(3:1\)"):
        planned(Topic(*FIVE), startingOffsets='{"t": "3:1"}', endingOffsets='{"t": "3:0"}')


def test_offsets_start_inside_first_batch_is_no_loss() -> None:
    check_retained(T, Position(3, 1), Found(Position(3, 1, 0), 5))
    check_retained(T, Position(3, 1, 4), Found(Position(3, 1, 0), 5))
    with pytest.raises(DataLoss):
        check_retained(T, Position(3, 1, 4), Found(Position(3, 2), 5))


def test_ranges_bounds_and_partitions() -> None:
    ranges = [Range(f"{T}-partition-2", Position(1, 2), Position(1, 3)), Range(T, Position(4, 0), Position(4, 0))]
    starts, ends = bounds(ranges)
    assert starts == {f"{T}-partition-2": Position(1, 2), T: Position(4, 0)}
    assert ends[f"{T}-partition-2"] == Position(1, 3)
    assert [item.partition for item in ranges] == [2, -1]
