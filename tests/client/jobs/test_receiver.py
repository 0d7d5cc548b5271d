"""Receiver of a batch: up to the ends at the start, several consumers in turn, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import ArrowBatch, EntryRange, MessageId
from pulsar_native.exceptions import (
    CertificateFileError,
    ConnectError,
    ConnectTimeout,
    NotConnected,
    Timeout,
    TopicNotFound,
)
from pulsar_native.jobs import receiver as module
from pulsar_native.jobs.failures import is_permanent
from pulsar_native.jobs.receiver import BatchReceiver, select_indexes, split_entries
from pulsar_native.message import Message
from support.clock import Clock, stopped_clock
from support.jobs import TOPIC, received

OTHER = "persistent://public/default/u"
Part = tuple[EntryRange, pa.RecordBatch]


class Consumer:
    """A consumer of what is given; `ends` has (topic, last entry, acknowledged entry) of each partition."""

    def __init__(self, *left: Any, ends: list[tuple[str, int, int]] | None = None) -> None:
        self._left = list(left)
        self._ends = ends or []
        self.waited: list[int] = []
        self.connected = True
        self.asked = 0
        self.while_asked: Callable[[], None] = lambda: None

    def topic(self) -> str:
        return TOPIC

    def topics(self) -> list[str]:
        return [TOPIC, OTHER]

    def is_connected(self) -> bool:
        return self.connected

    def get_positions(self) -> list[tuple[MessageId, MessageId]]:
        self.asked += 1
        self.while_asked()
        return [
            (MessageId(-1, 7, last, -1, topic=topic), MessageId(-1, 7, acknowledged, -1, topic=topic))
            for topic, last, acknowledged in self._ends
        ]

    def receive(self, timeout_millis: int) -> Message:
        self.waited.append(timeout_millis)
        if not self._left:
            raise Timeout("nothing")
        message: Message = self._left.pop(0)
        return message

    def receive_arrow(self, max_rows: int, max_bytes: int, timeout_millis: int) -> ArrowBatch:
        self.waited.append(timeout_millis)
        part = self._left.pop(0) if self._left else None
        return ArrowBatch(rows(0) if part is None else part[1], [] if part is None else [part[0]])


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    """Return rows that count."""
    return pa.RecordBatch.from_pydict({"value": pa.array(range(first, first + count), pa.int64())})


class Lookups:
    """A client of 30 s: each look-up of a topic raises the next failure, if there is one."""

    config = SimpleNamespace(operation_timeout_seconds=30)

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.topics: list[str] = []

    def get_partition_count(self, topic: str) -> int:
        self.topics.append(topic)
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        return 0


def receiver(
    *consumers: Consumer, until_end: bool = True, ordered: bool = False, client: Lookups | None = None
) -> BatchReceiver:
    """Return a receiver of consumers that ends after 5 s without messages."""
    return BatchReceiver(
        client or Lookups(),  # type: ignore[arg-type]
        consumers,  # type: ignore[arg-type]
        until_end=until_end,
        idle_seconds=5,
        ordered=ordered,
    )


def all_of(made: BatchReceiver, most: int = 30) -> list[tuple[str, int, int]]:
    """Return the places of the next messages."""
    found = (made.next(10) for _ in range(most))
    ids = [(message.topic_name(), message.message_id()) for message in found if message is not None]
    return [(topic, each.entry_id(), each.batch_index()) for topic, each in ids]


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_receiver_ends_at_last_message_of_the_start() -> None:
    made = receiver(Consumer(*(received(entry=n) for n in range(5)), ends=[(TOPIC, 2, -1)]))
    assert made.ended is None
    assert all_of(made) == [(TOPIC, n, -1) for n in range(3)] and made.ended == "end"


def test_receiver_later_message_ends_partition_too() -> None:
    """The last message is not delivered: compacted, or given to another consumer."""
    made = receiver(Consumer(received(entry=1), received(entry=4), ends=[(TOPIC, 3, 0)]))
    assert all_of(made) == [(TOPIC, 1, -1)] and made.ended == "end"


@pytest.mark.parametrize("ends", [[], [(TOPIC, -1, -1)], [(TOPIC, 5, 5)], [(TOPIC, 5, 6)]])
def test_receiver_without_backlog_has_ended(ends: list[tuple[str, int, int]]) -> None:
    consumer = Consumer(received(entry=9), ends=ends)
    made = receiver(consumer)
    assert made.ended == "end" and all_of(made) == [] and consumer.waited == []
    assert len(made.positions) == len(ends)


def test_receiver_finished_consumer_is_not_polled() -> None:
    one = Consumer(received(entry=0), ends=[(TOPIC, 0, -1)])
    other = Consumer(*(received(entry=n, topic=OTHER) for n in range(3)), ends=[(OTHER, 2, -1)])
    made = receiver(one, other)
    assert len(all_of(made, 4)) == 4 and made.ended == "end"
    assert len(one.waited) == 1 and other.waited == [10, 10, 10]


def test_receiver_without_ends_never_ends() -> None:
    made = receiver(Consumer(received(entry=0), received(entry=9)), until_end=False)
    assert len(all_of(made)) == 2 and made.ended is None


def test_receiver_idle_after_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = receiver(Consumer(received(entry=0), ends=[(TOPIC, 3, -1)]))
    now[0] = 4.0
    assert len(all_of(made)) == 1
    now[0] = 9.0
    assert made.ended is None
    now[0] = 9.1
    assert made.ended == "idle"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the receiver's clock."""
    return stopped_clock(monkeypatch, module)


def polls(made: BatchReceiver, clock: Clock, seconds: float) -> str | None:
    """Let seconds pass without messages, in steps of 0.5 s, and return the end."""
    for _ in range(round(2 * seconds)):
        clock.advance(0.5)
        made.check_connected()
        if made.ended is not None:
            return made.ended
    return None


def test_receiver_quiet_time_counts_connected_only(clock: Clock) -> None:
    consumer = Consumer(ends=[(TOPIC, 3, -1)])
    made = receiver(consumer)
    assert polls(made, clock, 4.5) is None
    consumer.connected = False
    assert polls(made, clock, 29) is None
    consumer.connected = True
    assert polls(made, clock, 5) is None and polls(made, clock, 1.5) == "idle"


def test_receiver_not_connected_raises(clock: Clock) -> None:
    one, other = Consumer(ends=[(TOPIC, 3, -1)]), Consumer(ends=[(OTHER, 3, -1)])
    client = Lookups(ConnectError("away"))
    made = receiver(one, other, client=client)
    other.connected = False
    assert polls(made, clock, 30.5) is None
    with pytest.raises(
        NotConnected, match=r"no connection for more than 30 s .* a retry consumes the messages"
    ) as caught:
        polls(made, clock, 0.5)
    # The topics are looked up once, and no further one where that failed.
    assert client.topics == [TOPIC] and caught.value.retryable and not is_permanent(caught.value)


def test_receiver_message_restarts_wait_for_connection(clock: Clock) -> None:
    lost, other = Consumer(ends=[(TOPIC, 3, -1)]), Consumer(ends=[(OTHER, 3, -1)])
    made = receiver(lost, other)
    lost.connected = False
    assert polls(made, clock, 25) is None
    other._left.append(received(topic=OTHER))
    assert len(all_of(made, 1)) == 1 and polls(made, clock, 25) is None


def test_receiver_of_deleted_topic_ends_idle(clock: Clock) -> None:
    consumer = Consumer(ends=[(TOPIC, 3, -1)])
    client = Lookups(None, TopicNotFound("none"))
    made = receiver(consumer, client=client)
    consumer.connected = False
    assert polls(made, clock, 13) == "idle" and client.topics == [TOPIC, OTHER]


def test_receiver_finished_consumer_need_not_connect(clock: Clock) -> None:
    one, other = Consumer(received(entry=0), ends=[(TOPIC, 0, -1)]), Consumer(ends=[(OTHER, 3, -1)])
    made = receiver(one, other)
    assert len(all_of(made, 1)) == 1
    one.connected = False
    assert polls(made, clock, 6) == "idle"


def test_receiver_without_ends_waits_for_connection(clock: Clock) -> None:
    consumer = Consumer()
    made = receiver(consumer, until_end=False)
    consumer.connected = False
    assert polls(made, clock, 100) is None


def test_receiver_stalled_broker_delays_the_end(clock: Clock) -> None:
    consumer = Consumer(ends=[(TOPIC, 3, -1)])
    made = receiver(consumer)
    assert consumer.asked == 1
    consumer.while_asked = lambda: clock.advance(20)
    # It answers 20 s late: what it has to deliver is waited for.
    assert polls(made, clock, 10) is None and consumer.asked == 2
    consumer.while_asked = lambda: None
    consumer._left.append(received(entry=0))
    assert len(all_of(made, 1)) == 1
    assert polls(made, clock, 5) is None and polls(made, clock, 1) == "idle" and consumer.asked == 3


@pytest.mark.parametrize(
    "error",
    [Timeout("did not answer"), ConnectTimeout("did not answer"), CertificateFileError("did not answer")],
    ids=["answer", "connection", "certificate"],
)
def test_receiver_broker_that_does_not_answer_raises(error: Exception, clock: Clock) -> None:
    consumer = Consumer(ends=[(TOPIC, 3, -1)])
    made = receiver(consumer)

    def fails() -> None:
        raise error

    consumer.while_asked = fails
    with pytest.raises(type(error), match="did not answer"):
        polls(made, clock, 6)


@pytest.mark.parametrize("error", [ConnectError("lost"), NotConnected("none")], ids=["lost", "none"])
def test_receiver_connection_lost_while_asked_waits(error: Exception, clock: Clock) -> None:
    consumer = Consumer(ends=[(TOPIC, 3, -1)])
    made = receiver(consumer)

    def fails() -> None:
        consumer.connected = False
        raise error

    consumer.while_asked = fails
    assert polls(made, clock, 30) is None and consumer.asked == 2
    consumer.connected, consumer.while_asked = True, lambda: None
    # The whole quiet time once more.
    assert polls(made, clock, 5) is None and polls(made, clock, 1.5) == "idle" and consumer.asked == 3


def test_receiver_lost_while_asked_for_good_raises(clock: Clock) -> None:
    consumer = Consumer(ends=[(TOPIC, 3, -1)])
    made = receiver(consumer)

    def fails() -> None:
        consumer.connected = False
        raise ConnectError("lost")

    consumer.while_asked = fails
    with pytest.raises(NotConnected, match="no connection for more than 30 s"):
        polls(made, clock, 40)


def test_receiver_empty_consumer_does_not_hold_others() -> None:
    empty, full = Consumer(ends=[(TOPIC, 9, -1)]), Consumer(received(topic=OTHER), ends=[(OTHER, 9, -1)])
    made = receiver(empty, full)
    assert all_of(made, 1) == [(OTHER, 0, -1)] and empty.waited == [5]


# ---- redelivery ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=25))
def test_receiver_unordered_gives_each_message_once(places: list[tuple[int, int]]) -> None:
    made = receiver(Consumer(*(received(entry=n, index=i, size=3) for n, i in places)), until_end=False)
    found = [place[1:] for place in all_of(made)]
    assert found == list(dict.fromkeys(places))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=25))
def test_receiver_ordered_never_goes_back(places: list[tuple[int, int]]) -> None:
    made = receiver(Consumer(*(received(entry=n, index=i, size=3) for n, i in places)), until_end=False, ordered=True)
    found = [place[1:] for place in all_of(made)]
    assert found == [place for n, place in enumerate(places) if all(place > before for before in places[:n])]


# ---- rows ------------------------------------------------------------------------------------------------------------


def values(parts: list[Part]) -> list[int]:
    """Return the values of rows, after a look at their ranges."""
    for entries, batch in parts:
        assert len(entries) == batch.num_rows
    return [value for _, batch in parts for value in batch["value"].to_pylist()]


def test_rows_cut_at_the_end() -> None:
    consumer = Consumer((EntryRange(TOPIC, -1, 7, 0, 4, 2), rows(10)), ends=[(TOPIC, 2, -1)])
    made = receiver(consumer)
    parts = made.next_rows(10, 100, 1000)
    assert values(parts) == [0, 1, 2, 3, 4, 5] and parts[0][0].last_entry == 2 and made.ended == "end"
    assert made.next_rows(10, 100, 1000) == []


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        (EntryRange(TOPIC, -1, 6, 9, 9), 1),
        (EntryRange(TOPIC, -1, 7, 3, 4), 0),
        (EntryRange(TOPIC, -1, 8, 0, 0), 0),
        (EntryRange(OTHER, -1, 7, 0, 0), 0),
    ],
)
def test_rows_before_the_end_only(entries: EntryRange, kept: int) -> None:
    made = receiver(Consumer((entries, rows(len(entries))), ends=[(TOPIC, 2, -1)]))
    assert len(values(made.next_rows(10, 100, 1000))) == kept


_SPANS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 4), st.integers(0, 2)).map(lambda s: (s[0], s[0] + s[1], None)),
        st.tuples(st.integers(0, 4), st.integers(1, 7)).map(lambda s: (s[0], s[0], s[1])),
    ),
    max_size=8,
)


@given(_SPANS, st.booleans())
def test_rows_redelivered_come_once(spans: list[tuple[int, int, int | None]], ordered: bool) -> None:
    """Each value is the place of its message: 3 times the entry plus the index."""
    parts: list[Part] = []
    delivered: list[int] = []
    for first, last, indexes in spans:
        places = [3 * n + i for n in range(first, last + 1) for i in range(3) if indexes is None or indexes >> i & 1]
        delivered += places
        parts.append((EntryRange(TOPIC, -1, 7, first, last, 3, indexes), pa.RecordBatch.from_pydict({"value": places})))
    made = receiver(Consumer(*parts), until_end=False, ordered=ordered)
    found = [value for _ in parts for value in values(made.next_rows(10, 100, 1000))]
    if ordered:
        assert found == [place for n, place in enumerate(delivered) if all(place > each for each in delivered[:n])]
    else:
        assert found == list(dict.fromkeys(delivered))


def test_split_entries_and_select_indexes() -> None:
    whole = list(split_entries((EntryRange(TOPIC, -1, 7, 4, 5, 3), rows(6))))
    assert [(each.first_entry, each.last_entry, batch["value"].to_pylist()) for each, batch in whole] == [
        (4, 4, [0, 1, 2]), (5, 5, [3, 4, 5]),
    ]  # fmt: skip
    entries, batch = select_indexes((EntryRange(TOPIC, -1, 7, 4, 4, 3), rows(3)), 0b101)
    assert (entries.indexes, batch["value"].to_pylist()) == (0b101, [0, 2])
    entries, batch = select_indexes((entries, batch), 0b110)
    assert (entries.indexes, batch["value"].to_pylist()) == (0b100, [2])
