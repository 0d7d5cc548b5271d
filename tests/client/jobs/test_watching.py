"""Watching a topic: conditions, counts carried on, publish times, and the text of what was seen."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from pulsar_native import Client as SyncClient
from pulsar_native import ClientConfig, CryptoKeyReader, Message, MessageId
from pulsar_native.asyncio import Client as AsyncClient
from pulsar_native.exceptions import ConnectError, Timeout, TopicNotFound
from pulsar_native.jobs import watching as module
from pulsar_native.jobs.watching import TopicCondition, TopicWatcher, config_of_look
from support.brokers import Broker, NewTopic
from support.jobs import PUBLISHED, TOPIC
from support.key_files import key_pair
from support.relay import TO_BROKER, Command, Relay
from support.until import until

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
        (("t", None, "20260101"), "published_since is 20260101, .*write a date as 2026-01-01"),
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

    def encryption_context(self) -> None:
        return None


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

    async def has_message_available(self) -> bool:
        return bool(self._left)

    async def read_next(self, timeout_millis: int) -> Stored:
        if not self._left:
            raise Timeout("nothing")
        return self._left.pop(0)

    async def seek(self, place: int | MessageId) -> None:
        if isinstance(place, MessageId):
            # The reader is inclusive.
            assert place == MessageId.latest
            self._left = list(self._stored[-1:])
            return
        self._client.searches += 1
        later = [n for n, each in enumerate(self._stored) if each.publish_timestamp() >= place]
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


# ---- chunks and encrypted messages -----------------------------------------------------------------------------------


async def seen_by(broker: Broker, name: str, **condition: Any) -> tuple[Any, str]:
    """Return the result of a check on the real broker, and what was seen."""
    made = TopicWatcher(TopicCondition(name, **condition))
    async with AsyncClient(broker.service_url) as client:
        return await made.look(client), made.seen


def publish(producer: Any, count: int, size: int = 1) -> None:
    """Publish messages, and close."""
    for _ in range(count):
        producer.send_async(b"x" * size, None)
    producer.flush()
    producer.close()


CHUNKS = {"chunking_enabled": True, "batching_enabled": False, "chunk_max_message_size": 1000}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "chunks": (1, CHUNKS),
    "encrypted": (1, {"batching_enabled": False}),
    "encrypted-batch": (5, {"batching_enabled": True, "batching_max_publish_delay_ms": 10_000}),
}


@pytest.mark.parametrize("is_indexed", [True, False], ids=["index", "no-index"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("kind", KINDS)
async def test_look_at_chunks_and_encrypted(
    kind: str,
    is_first: bool,
    is_indexed: bool,
    broker: Broker,
    topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_indexed:
        # What a broker without exposingBrokerEntryMetadataToClientEnabled gives.
        monkeypatch.setattr(Message, "index", lambda message: None)
    count, options = KINDS[kind]
    if kind != "chunks":
        options = {**options, "encryption_key": "k", "crypto_key_reader": CryptoKeyReader(*key_pair(tmp_path))}
    name = topic()
    with SyncClient(broker.service_url) as client:
        for is_plain in (not is_first, is_first):
            began = int(time.time() * 1000)
            publish(client.create_producer(name, **({} if is_plain else options)), 1 if is_plain else count, 3500)
    found, _ = await seen_by(broker, name, messages=count + 1)
    assert found is not None and found["messages"] == count + 1
    found, seen = await seen_by(broker, name, messages=count + 2)
    assert found is None and seen == f"{count + 1} messages are there"
    found, _ = await seen_by(broker, name, published_since=began)
    assert found is not None
    found, seen = await seen_by(broker, name, published_since=int(time.time() * 1000) + 60_000)
    assert found is None and seen.startswith("the newest message is of ")


def counter(broker: Broker, name: str, kind: str) -> int:
    """Return how many entries of a topic the broker has stored ("In") or delivered ("Out") since it loaded it."""
    stats: Any = broker.admin("GET", f"{name.replace('://', '/')}/stats")
    return int(stats[f"msg{kind}Counter"])


async def test_look_at_chunks_left_behind(broker: Broker, topic: NewTopic) -> None:
    """The last entries are of a message that its producer did not complete, which is none."""
    name, began = topic(), int(time.time() * 1000)
    with Relay(broker.service_url) as relay, SyncClient(relay.service_url) as client:
        publish(client.create_producer(name), 2)
        relay.let_pass(Command.SEND, TO_BROKER, times=2)
        relay.drop(Command.SEND, TO_BROKER, times=None)
        client.create_producer(name, send_timeout_millis=0, **CHUNKS).send_async(b"x" * 3500, lambda *_: None)
        await until(lambda: counter(broker, name, "In") == 4)
        for condition in ({"messages": 2}, {"published_since": began}):
            found, _ = await seen_by(broker, name, **condition)
            assert found is not None
        found, seen = await seen_by(broker, name, messages=3)
        assert found is None and seen == "2 messages are there"
        found, seen = await seen_by(broker, name, published_since=int(time.time() * 1000) + 60_000)
        assert found is None and seen.startswith("there is no message since ")
        # So that closing waits for nothing.
        relay.release()
        relay.cut()


async def test_search_of_chunks_is_not_repeated(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    with SyncClient(broker.service_url) as client:
        publish(client.create_producer(name, **CHUNKS), 1, 3500)
    made = TopicWatcher(TopicCondition(name, published_since=int(time.time() * 1000) + 60_000))
    async with AsyncClient(broker.service_url) as client:
        assert await made.look(client) is None
        seen, before = made.seen, counter(broker, name, "Out")
        assert await made.look(client) is None
    # At most the one that the reader's queue takes at its start.
    assert made.seen == seen and before > 3 and counter(broker, name, "Out") - before <= 1


@pytest.mark.parametrize(
    ("configured", "seconds", "limit"), [(30, None, 30), (30, 100, 30), (30, 30, 29), (2, 5, 2), (30, 5, 4)]
)
def test_config_of_look_ends_before_it(configured: float, seconds: float | None, limit: float) -> None:
    config = ClientConfig(service_url="pulsar://localhost", operation_timeout_seconds=configured)
    assert config_of_look(config, seconds).operation_timeout_seconds == limit
