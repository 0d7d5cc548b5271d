"""Watching a topic: conditions, counts carried on, publish times, and the text of what was seen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pyarrow as pa
import pytest

from pulsar_native import MessageId
from pulsar_native.exceptions import ConnectError, Timeout, TopicNotFound
from pulsar_native.jobs import watching as module
from pulsar_native.jobs.watching import TopicCondition, TopicWatcher
from support.jobs import PUBLISHED, TOPIC

# ---- conditions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "condition", "text"),
    [
        (("t", None, None), TopicCondition(TOPIC), f"the topic {TOPIC}"),
        (("t", None, None), TopicCondition(TOPIC), f"the topic {TOPIC}"),
        (("t", " 1200 ", None), TopicCondition(TOPIC, 1200), f"1,200 messages in {TOPIC}"),
        (
            ("t", None, "2023-11-14T22:13:20Z"),
            TopicCondition(TOPIC, None, PUBLISHED),
            f"a message in {TOPIC} published since 2023-11-14T22:13:20.000+00:00",
        ),
        (
            ("non-persistent://public/default/t", None, None),
            TopicCondition("non-persistent://public/default/t"),
            "the topic non-persistent://public/default/t",
        ),
    ],
)
def test_condition_of_rendered_templates(arguments: Any, condition: TopicCondition, text: str) -> None:
    made = TopicCondition.of(*arguments)
    assert made == condition and str(made) == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("", None, None), "topic must be a text that is not blank"),
        # Templates that rendered to nothing would wait for any topic.
        (("t", "", None), "messages must be a whole number of at least 1, not ''"),
        (("t", None, ""), "published_since='' is neither"),
        (("t", 1, 5), "give messages or published_since, not both"),
        (("t", 0, None), "messages must be a whole number of at least 1, not 0"),
        (("t", 1.0, None), "whole number of at least 1, not 1.0"),
        (("t", True, None), "whole number of at least 1, not True"),
        (("t", "-1", None), "whole number of at least 1, not '-1'"),
        (("t", None, "yesterday"), "published_since='yesterday'"),
        (("non-persistent://a/b/t", 1, None), "a non-persistent topic stores no messages"),
        (("non-persistent://a/b/t", None, 5), "a non-persistent topic stores no messages"),
    ],
)
def test_condition_wrong_argument_raises(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TopicCondition.of(*arguments)


# ---- a broker in memory ----------------------------------------------------------------------------------------------


class Stored:
    """A stored message."""

    def __init__(self, entry: int, published: int, index: int | None) -> None:
        self._entry, self._published, self._index = entry, published, index

    def message_id(self) -> MessageId:
        return MessageId(-1, 7, self._entry, -1)

    def publish_timestamp(self) -> int:
        return self._published

    def index(self) -> int | None:
        return self._index


class Reader:
    """A reader of one partition."""

    def __init__(self, client: Client, stored: Sequence[Stored], start: MessageId, inclusive: bool) -> None:
        self._client, self._stored = client, stored
        first = (start.ledger_id(), start.entry_id() + (not inclusive))
        self._left = [each for each in stored if (7, each.message_id().entry_id()) >= first]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get_last_message_id(self) -> MessageId:
        return self._stored[-1].message_id() if self._stored else MessageId(-1, 7, -1, -1)

    async def read_next(self, timeout_millis: int) -> Stored:
        if not self._left:
            raise Timeout("nothing")
        return self._left.pop(0)

    async def seek(self, millis: int) -> None:
        self._client.searches += 1
        later = [n for n, each in enumerate(self._stored) if each.publish_timestamp() >= millis]
        self._left = list(self._stored[later[0] :]) if later else []

    async def arrow_batches(self, columns: Any, max_rows: int) -> AsyncIterator[pa.RecordBatch]:
        while self._left:
            part, self._left = self._left[:max_rows], self._left[max_rows:]
            self._client.counted += len(part)
            entries = [each.message_id().entry_id() for each in part]
            yield pa.RecordBatch.from_pydict(
                dict(zip(columns, ([7] * len(part), entries, [-1] * len(part)), strict=True))
            )


class Client:
    """A client of one topic: the partitions' messages, None for no topic."""

    def __init__(self, *partitions: list[Stored], is_partitioned: bool = False) -> None:
        self.partitions: list[list[Stored]] | None = list(partitions)
        self._is_partitioned = is_partitioned
        self.counted = self.searches = 0

    async def get_partition_count(self, topic: str) -> int:
        if self.partitions is None:
            raise TopicNotFound("no such topic")
        return len(self.partitions) if self._is_partitioned else 0

    async def create_reader(self, name: str, start: MessageId, **options: Any) -> Reader:
        assert self.partitions is not None
        number = int(name.rpartition("-partition-")[2]) if self._is_partitioned else 0
        return Reader(self, self.partitions[number], start, options["start_message_id_inclusive"])


def stored(*entries: int, times: Sequence[int] = (), indexed_from: int | None = None) -> list[Stored]:
    """Return messages of these entries."""
    published = times or [PUBLISHED] * len(entries)
    return [
        Stored(entry, published[n], None if indexed_from is None else indexed_from + n)
        for n, entry in enumerate(entries)
    ]


def watcher(**condition: Any) -> TopicWatcher:
    """Return a watcher of the topic."""
    return TopicWatcher(TopicCondition(TOPIC, **condition))


async def look(made: TopicWatcher, client: Client) -> Any:
    """Return the result of one check."""
    return await made.look(client)  # type: ignore[arg-type]


# ---- existence -------------------------------------------------------------------------------------------------------


async def test_look_for_a_topic() -> None:
    made, client = watcher(), Client([], [], is_partitioned=True)
    client.partitions = None
    assert await look(made, client) is None and made.seen == "the topic does not exist"
    client.partitions = [[], []]
    assert await look(made, client) == {"topic": TOPIC, "partitions": 2} and made.seen == "the topic exists"
    client.partitions = None
    assert await look(made, client) is None
    assert made.seen.startswith("the topic was there and is gone: the broker removes a topic without subscriptions")


async def test_failed_look_keeps_the_last_result() -> None:
    made = watcher()
    made.failed(ConnectError("refused"))
    assert made.seen.startswith(f"looking at {TOPIC} failed at the stage 'look-up': ConnectError: refused")
    await look(made, Client([]))
    for _ in range(2):
        made.failed(ConnectError("refused"))
        assert made.seen.endswith("(before: the topic exists)") and made.seen.count("before") == 1


# ---- counts ----------------------------------------------------------------------------------------------------------


async def test_count_with_indexes_reads_no_rows() -> None:
    client = Client(stored(0, 5, 9, indexed_from=100), [], stored(3, indexed_from=0), is_partitioned=True)
    assert await look(watcher(messages=5), client) is None
    found = await look(watcher(messages=4), client)
    assert found == {"topic": TOPIC, "partitions": 3, "messages": 4} and client.counted == 0


async def test_count_by_reading_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_ROWS", 2)
    client, made = Client(stored(*range(5))), watcher(messages=8)
    assert await look(made, client) is None and (made.seen, client.counted) == ("5 messages are there", 5)
    assert await look(made, client) is None and client.counted == 5
    client.partitions = [stored(*range(20))]
    found = await look(made, client)
    assert found["messages"] == 9 and client.counted == 9 and made.largest_step == 2


async def test_count_restarts_when_messages_were_removed() -> None:
    client, made = Client(stored(*range(5))), watcher(messages=8)
    await look(made, client)
    client.partitions = [stored(*range(3, 9))]
    assert await look(made, client) is None and made.seen == "6 messages are there"
    client.partitions = [[]]
    assert await look(made, client) is None and made.seen == "0 messages are there" and made.state() is None


async def test_count_carried_to_another_process() -> None:
    client, made = Client(stored(*range(5))), watcher(messages=8)
    assert made.state() is None
    await look(made, client)
    state = json.loads(json.dumps(made.state()))
    assert state == {TOPIC: {"first": [7, 0, -1], "count": 5, "upto": [7, 4, -1]}}
    client.partitions, client.counted = [stored(*range(8))], 0
    other = watcher(messages=8)
    other.restore(state)
    assert (await look(other, client))["messages"] == 8 and client.counted == 3
    client.partitions = None
    await look(other, client)
    assert "is gone" in other.seen and other.state() is None
    watcher().restore(None)


async def test_count_stops_at_partition_with_enough() -> None:
    client = Client(stored(*range(300)), stored(*range(300)), is_partitioned=True)
    found = await look(watcher(messages=150), client)
    assert found["messages"] == 200 and client.counted == 200


# ---- times -----------------------------------------------------------------------------------------------------------


async def test_recent_by_the_last_message() -> None:
    made, client = watcher(published_since=PUBLISHED), Client(stored(0, 1, times=[1, PUBLISHED]))
    found = await look(made, client)
    assert found["published_at"] == "2023-11-14T22:13:20.000+00:00" and client.searches == 0
    assert made.seen == "the newest message is of 2023-11-14T22:13:20.000+00:00"


async def test_recent_message_before_a_slow_clock() -> None:
    client = Client([], stored(0, 1, times=[PUBLISHED, 1]), is_partitioned=True)
    found = await look(watcher(published_since=PUBLISHED), client)
    assert found is not None and client.searches == 1


async def test_recent_search_not_repeated_for_same_end() -> None:
    made, client = watcher(published_since=PUBLISHED), Client([])
    assert await look(made, client) is None and made.seen == "there are no messages"
    client.partitions = [stored(0, times=[5])]
    for _ in range(2):
        assert await look(made, client) is None
    assert client.searches == 1 and made.seen == "the newest message is of 1970-01-01T00:00:00.005+00:00"
    client.partitions = [stored(0, 1, times=[5, 6])]
    await look(made, client)
    assert client.searches == 2
