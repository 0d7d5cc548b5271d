"""Streams of matching messages on a real broker: matching, windows, failures, dead letters, reconnections."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import (
    AdminClient,
    Client,
    ConnectError,
    Consumer,
    ConsumerType,
    CryptoKeyReader,
    InitialPosition,
    Message,
    MessageId,
    Timeout,
)
from pulsar_native.asyncio import Client as AsyncClient
from pulsar_native.jobs.matching import MessageMatch
from pulsar_native.jobs.matching_stream import Delivery, MatchingStream, Predicate, StreamOptions
from pulsar_native.schema import JsonSchema, Record, String
from support.brokers import Broker, NewTopic
from support.errors import Unprintable, Untyped
from support.jobs import MemoryLog
from support.key_files import key_pair
from support.relay import Relay
from support.until import until

Event = dict[str, Any]


class Stream:
    """A stream under test, which receives from the beginning of its topic."""

    def __init__(
        self,
        broker: Broker,
        topic: str | None,
        match: object = None,
        predicate: Predicate | None = None,
        more: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.log = MemoryLog()
        self.connections = 0
        self._url = broker.service_url
        topics = () if topic is None else (topic,)
        options = {"topics": topics, "initial_position": "earliest", "subscription": "s"} | options
        self.stream = MatchingStream(
            *(self.connect, StreamOptions(**options), self.log, MessageMatch(match), predicate),
            **more or {},
        )
        self._events = self.stream.events()
        self._waiting: asyncio.Future[Any] | None = None

    async def connect(self) -> AsyncClient:
        self.connections += 1
        return AsyncClient(self._url)

    async def next(self, seconds: float = 20) -> tuple[Event, Delivery]:
        """Return the next event."""
        self._waiting = self._waiting or asyncio.ensure_future(anext(self._events))
        done, _ = await asyncio.wait([self._waiting], timeout=seconds)
        if not done:
            raise TimeoutError
        waiting, self._waiting = self._waiting, None
        event, delivery = waiting.result()
        assert event is not None
        return event, delivery

    async def values(self, count: int) -> list[Any]:
        """Return the values of the next messages, acknowledged."""
        found = []
        for _ in range(count):
            event, delivery = await self.next()
            found.append(event["value"])
            await self.stream.acknowledge(delivery)
        return found

    async def nothing(self, seconds: float = 1) -> None:
        """Check that no event comes."""
        with pytest.raises(TimeoutError):
            await self.next(seconds)

    async def close(self) -> None:
        """Cancel what waits, as Airflow does, and close the stream."""
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait([self._waiting])
        await self.stream.aclose()


@asynccontextmanager
async def opened(*args: Any, **options: Any) -> AsyncIterator[Stream]:
    """Give a stream, closed at the end."""
    made = Stream(*args, **options)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def client(broker: Broker) -> Any:
    """Give a client of the shared broker."""
    with Client(broker.service_url) as made:
        yield made


def publish(client: Client, topic: str, values: list[Any], **options: Any) -> list[str]:
    """Publish values as JSON, bytes as they are; returns the ids."""
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    ids = []
    for value in values:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.send_async(data, lambda result, found: ids.append(str(found)), **options)
    producer.flush()
    producer.close()
    return ids


def backlog(broker: Broker, topic: str, subscription: str = "s") -> Any:
    """Return the number of messages the broker holds for a subscription."""
    path = topic.replace("://", "/")
    stats: Any = broker.admin("GET", f"{path}/stats?getPreciseBacklog=true")
    return stats["subscriptions"][subscription]


def letters(client: Client, topic: str, count: int) -> list[tuple[bytes, dict[str, str]]]:
    """Return the dead letters of a stream's topic."""
    consumer: Consumer[Any] = client.subscribe(f"{topic}-s-DLQ", "s", initial_position=InitialPosition.Earliest)
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=20_000)
        found.append((message.data(), message.properties()))
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=300)
    return found


# ---- matching --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("K8")
async def test_stream_rejects_10000_then_matches_one(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    await asyncio.to_thread(publish, client, name, [{"n": n} for n in range(10_000)] + [{"n": -1}])
    async with opened(broker, name, {"jsonpath": "@.n < 0"}, decode="json") as made:
        # The time of a busy machine; without other work it is under two seconds.
        event, delivery = await made.next(60)
        assert event["value"] == {"n": -1}
        await made.stream.acknowledge(delivery)
        assert made.connections == 1
    assert backlog(broker, name)["msgBacklog"] == 0


@pytest.mark.proves("A15")
async def test_stream_matches_key_properties_and_value(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [{"n": 1}, {"n": 5}], partition_key="a", properties={"kind": "x"})
    publish(client, name, [{"n": 6}], partition_key="b", properties={"kind": "x"})
    publish(client, name, [{"n": 7}], partition_key="a")
    publish(client, name, [{"n": 8}], partition_key="a", properties={"kind": "x"})
    match = {"key": "a", "properties": {"kind": "x"}, "jsonpath": "@.n > 4"}
    async with opened(broker, name, match, decode="json") as made:
        assert await made.values(2) == [{"n": 5}, {"n": 8}]


class Order(Record):
    """A record with a registered schema."""

    status = String()


async def test_stream_decodes_by_the_registered_schema(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, schema=JsonSchema(Order))
    for status in ("open", "paid"):
        producer.send(Order(status=status))
    async with opened(broker, name, {"jsonpath": "@.status == 'paid'"}) as made:
        event, _ = await made.next()
        assert (event["value"], event["encoding"]) == ({"status": "paid"}, "json")


@pytest.mark.parametrize("coroutine", [False, True])
async def test_stream_predicate_selects(client: Client, broker: Broker, topic: NewTopic, coroutine: bool) -> None:
    seen: list[Mapping[str, Any]] = []
    threads: set[int] = set()

    def plain(record: Mapping[str, Any]) -> bool:
        seen.append(record)
        threads.add(threading.get_ident())
        return bool(record["value"]["n"] % 2)

    async def waiting(record: Mapping[str, Any]) -> bool:
        return plain(record)

    name = topic()
    publish(client, name, [{"n": n} for n in range(6)], properties={"a": "b"})
    async with opened(broker, name, None, waiting if coroutine else plain, decode="json", payload="ids") as made:
        for _ in range(3):
            event, delivery = await made.next()
            assert "value" not in event and event["properties"] == {"a": "b"}
            await made.stream.acknowledge(delivery)
    assert [record["value"]["n"] for record in seen] == list(range(6))
    # A plain function runs beside the loop, which goes on.
    assert (threads == {threading.get_ident()}) is coroutine


async def test_stream_reads_a_pattern_and_partitions(client: Client, broker: Broker, topic: NewTopic) -> None:
    first = topic("pattern", partitions=2)
    stem = first.rpartition("/")[2]
    publish(client, first, [1, 2, 3])
    publish(client, f"persistent://public/default/{stem}-other", [4])
    made = Stream(broker, first)
    options = StreamOptions("p", topic_pattern=f"persistent://public/default/{stem}.*", initial_position="earliest")
    stream = MatchingStream(made.connect, options, made.log)
    async with aclosing(stream.events()) as events:  # type: ignore[type-var]
        found = set()
        for _ in range(4):
            event, delivery = await asyncio.wait_for(anext(events), 20)
            assert event is not None
            found.add(event["value"])
            await stream.acknowledge(delivery)
    await stream.aclose()
    assert found == {"1", "2", "3", "4"}


# ---- settling --------------------------------------------------------------------------------------------------------


async def test_stream_unsettled_messages_come_again(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, list(range(10)))
    async with opened(broker, name) as made:
        deliveries = [await made.next() for _ in range(10)]
        for event, delivery in deliveries:
            if event["value"] in ("2", "5"):
                continue
            await made.stream.acknowledge(delivery)
    async with opened(broker, name) as made:
        assert sorted(await made.values(2)) == ["2", "5"]
        await made.nothing()


async def test_stream_redelivers_what_failed(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"a", b"b"])
    async with opened(broker, name) as made:
        first, delivery = await made.next()
        await made.stream.redeliver(delivery)
        assert await made.values(2) == ["b", "a"]
        assert first["value"] == "a"


@pytest.mark.proves("A21")
async def test_stream_permits_are_the_free_window(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name)
    for number in range(100):
        producer.send(b"%d" % number)
    async with opened(broker, name, receiver_queue_size=10) as made:
        unsettled = [(await made.next())[1] for _ in range(10)]
        await made.nothing()
        # Ten are unsettled, ten more may be prefetched; the broker keeps the others.
        assert backlog(broker, name)["unackedMessages"] <= 20
        for delivery in unsettled[:3]:
            await made.stream.acknowledge(delivery)
        unsettled = unsettled[3:] + [(await made.next())[1] for _ in range(3)]
        await made.nothing()
        for delivery in unsettled:
            await made.stream.acknowledge(delivery)
        assert sorted(await made.values(87), key=int) == [str(number) for number in range(13, 100)]


# ---- what cannot be decoded or matched -------------------------------------------------------------------------------


@pytest.mark.proves("A20", "K2")
async def test_stream_undecodable_becomes_dead_letter(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    bad = [b"\xff\x00", b"[" * 100_000, b"1" + b"0" * 5000]
    publish(client, name, [*bad, {"n": 1}], properties={"a": "b"})
    async with opened(broker, name, {"jsonpath": "@.n"}, decode="json") as made:
        assert await made.values(1) == [{"n": 1}]
    found = await asyncio.to_thread(letters, client, name, 3)
    assert [data for data, _ in found] == bad
    assert [parts["EXCEPTION_TYPE"] for _, parts in found] == ["InvalidRecord", "RecursionError", "InvalidRecord"]
    assert "not JSON" in found[0][1]["EXCEPTION_MESSAGE"]
    assert all(parts["a"] == "b" and parts["REAL_TOPIC"] == name for _, parts in found)
    assert backlog(broker, name)["msgBacklog"] == 0


async def test_stream_ids_need_no_decoding(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"\xff\x00", b"[" * 100_000], partition_key="k")
    async with opened(broker, name, {"key": "k"}, decode="json", payload="ids") as made:
        for _ in range(2):
            event, delivery = await made.next()
            assert event["key"] == "k"
            await made.stream.acknowledge(delivery)


async def test_stream_failing_predicate_redelivers_then_buries(
    client: Client, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._REDELIVERY_MS", (100, 100))
    calls: list[str] = []
    failures = {"bad": 100, "late": 1}

    def predicate(record: Mapping[str, Any]) -> bool:
        value = record["value"]
        calls.append(value)
        if calls.count(value) <= failures[value]:
            raise KeyError("no such thing")
        return True

    name = topic()
    publish(client, name, [b"bad"])
    publish(client, name, [b"late"])
    async with opened(broker, name, None, predicate, max_redeliver_count=2) as made:
        assert await made.values(1) == ["late"]
        ((data, parts),) = await drained(made, client, name)
        assert (data, parts["EXCEPTION_TYPE"], parts["REAL_SUBSCRIPTION"]) == (b"bad", "KeyError", "s")
        assert "Matching the message" in made.log.warnings[0]
    assert (calls.count("bad"), calls.count("late")) == (3, 2)


class Waiting:
    """Predicates that are asynchronous, though not coroutine functions themselves."""

    async def __call__(self, record: Mapping[str, Any]) -> bool:
        await asyncio.sleep(0)
        return bool(record["value"] == "b")

    def passed_on(self, record: Mapping[str, Any]) -> Any:
        return self(record)


@pytest.mark.parametrize("predicate", [Waiting(), Waiting().passed_on])
async def test_stream_predicate_awaitable_is_awaited(
    client: Client, broker: Broker, topic: NewTopic, predicate: Predicate
) -> None:
    name = topic()
    publish(client, name, [b"a", b"b"])
    async with opened(broker, name, None, predicate) as made:
        assert await made.values(1) == ["b"]


def stopped(record: Mapping[str, Any]) -> bool:
    """Find nothing."""
    return bool(next(iter(())))


def cancelled(record: Mapping[str, Any]) -> bool:
    """Raise what asyncio takes for a cancellation."""
    raise asyncio.CancelledError


def exited(record: Mapping[str, Any]) -> bool:
    """End the program."""
    sys.exit("topsecret")


async def exited_later(record: Mapping[str, Any]) -> bool:
    """End the program."""
    sys.exit("topsecret")


def yielded(record: Mapping[str, Any]) -> Any:
    """Run nothing."""
    yield True


@pytest.mark.parametrize(
    ("predicate", "kind", "words"),
    [
        (stopped, "RuntimeError", "raised StopIteration"),
        (cancelled, "RuntimeError", "raised CancelledError"),
        (exited, "RuntimeError", "called sys.exit"),
        (exited_later, "RuntimeError", "called sys.exit"),
        (yielded, "TypeError", "is a generator function"),
    ],
)
async def test_stream_predicate_wrong_becomes_dead_letter(
    client: Client, broker: Broker, topic: NewTopic, predicate: Predicate, kind: str, words: str
) -> None:
    name = topic()
    publish(client, name, [b"a"])
    async with opened(broker, name, None, predicate, max_redeliver_count=0) as made:
        await made.nothing()
        ((data, properties),) = await asyncio.to_thread(letters, client, name, 1)
    assert (data, properties["EXCEPTION_TYPE"]) == (b"a", kind) and words in properties["EXCEPTION_MESSAGE"]


class Abort(BaseException):
    """An exception that is no `Exception`."""


WITHOUT_TEXT = (Unprintable, Untyped)
RAISED = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, Abort, *WITHOUT_TEXT)


def raising(record: Mapping[str, Any]) -> bool:
    """Raise the exception that the message names."""
    for kind in RAISED:
        if kind.__name__ == record["value"]:
            raise kind
    return True


async def raising_later(record: Mapping[str, Any]) -> bool:
    """Raise the exception that the message names, after a switch of tasks."""
    await asyncio.sleep(0)
    if record["value"] == "CancelledError":
        cancelled = asyncio.ensure_future(asyncio.sleep(9))
        cancelled.cancel()
        await cancelled
    return raising(record)


@pytest.mark.parametrize("predicate", [raising, raising_later])
async def test_stream_predicate_base_exception_is_buried(
    client: Client, broker: Broker, topic: NewTopic, predicate: Predicate
) -> None:
    name = topic()
    publish(client, name, [*(kind.__name__.encode() for kind in RAISED), b"good"])
    async with opened(broker, name, None, predicate, max_redeliver_count=0) as made:
        assert await made.values(1) == ["good"]
        assert made.connections == 1
    found = await asyncio.to_thread(letters, client, name, len(RAISED))
    assert [(data.decode(), parts["EXCEPTION_TYPE"], parts["EXCEPTION_MESSAGE"]) for data, parts in found] == [
        (kind.__name__, kind.__name__, kind.__name__)
        if kind in WITHOUT_TEXT
        else (kind.__name__, "RuntimeError", f"the predicate raised {kind.__name__}")
        for kind in RAISED
    ]


async def test_stream_cancelled_in_predicate_stops(client: Client, broker: Broker, topic: NewTopic) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def hanging(record: Mapping[str, Any]) -> bool:
        started.set()
        await ended.wait()
        return True

    name = topic()
    publish(client, name, [b"a"])
    async with opened(broker, name, None, hanging) as made:
        task = asyncio.ensure_future(anext(made.stream.events()))
        await asyncio.wait_for(started.wait(), 20)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        ended.set()
        assert task.cancelled()
    assert made.log.warnings == []


async def test_stream_closed_in_predicate_stops(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"a"])
    message = await asyncio.to_thread(received, client, name)
    async with opened(broker, name, None, raising_later) as made:
        judging = made.stream._predicted(message, ("a", "text"))
        judging.send(None)
        judging.close()


def received(client: Client, topic: str) -> Message:
    """Return the first message of a topic."""
    with client.subscribe(topic, "r", initial_position=InitialPosition.Earliest) as consumer:
        return consumer.receive(20_000)


async def test_stream_letter_is_redacted(client: Client, broker: Broker, topic: NewTopic) -> None:
    def predicate(record: Mapping[str, Any]) -> bool:
        raise OSError("GET /?key=topsecret failed")

    name = topic()
    publish(client, name, [b"a"])
    redact = {"redact": lambda text: text.replace("topsecret", "***")}
    async with opened(broker, name, None, predicate, redact, max_redeliver_count=0) as made:
        await made.nothing()
        ((_, properties),) = await asyncio.to_thread(letters, client, name, 1)
        assert properties["EXCEPTION_MESSAGE"] == "GET /?key=*** failed"
        assert "topsecret" not in "".join(made.log.warnings) and "key=***" in made.log.warnings[0]


async def drained(made: Stream, client: Client, topic: str) -> list[tuple[bytes, dict[str, str]]]:
    """Let the stream go on until its one dead letter is there."""
    await made.nothing(3)
    return await asyncio.to_thread(letters, client, topic, 1)


@pytest.mark.parametrize("chosen", [False, True], ids=["default", "chosen"])
async def test_stream_pattern_leaves_out_its_dead_letters(
    client: Client, broker: Broker, topic: NewTopic, chosen: bool
) -> None:
    name = topic()
    dead = f"{name}-dead" if chosen else f"{name}-s-DLQ"
    # It is there before the stream, and with a letter.
    publish(client, dead, [b"bad"])
    publish(client, name, [b"bad"])
    options = {"topic_pattern": f"{name}.*", "dead_letter_topic": dead if chosen else None, "decode": "json"}
    async with opened(broker, None, **options) as made:
        waiting = asyncio.ensure_future(made.values(1))
        await until(lambda: made.log.warnings)
        # A topic that comes later is found, so that the dead-letter topic would be, too.
        publish(client, f"{name}-more", [1])
        assert await asyncio.wait_for(waiting, 60) == [1]
        await made.nothing(2)
        assert made.log.infos[0] == f"Receiving from {name} by the subscription s"
    reader = client.create_reader(dead, MessageId.earliest)
    found = [reader.read_next(10_000).data() for _ in range(2)]
    assert found == [b"bad"] * 2 and not reader.has_message_available()


async def test_stream_letter_of_letter_has_its_own_topic(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, f"{name}-s-DLQ", [b"bad"], properties={"REAL_TOPIC": name})
    async with opened(broker, f"{name}-s-DLQ", decode="json") as made:
        await made.nothing(2)
        ((data, properties),) = await asyncio.to_thread(letters, client, f"{name}-s-DLQ", 1)
        assert (data, properties["REAL_TOPIC"]) == (b"bad", name)


async def test_stream_letter_of_large_message_is_stored(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    # The largest message, to which the properties of a letter are added, and one in chunks.
    values = [b"x" * (5 * 1024 * 1024 - 100), b"y" * (6 * 1024 * 1024)]
    with client.create_producer(name, batching_enabled=False, chunking_enabled=True) as producer:
        for value in values:
            producer.send(value)
    async with opened(broker, name, decode="json") as made:
        await made.nothing(5)
        found = await asyncio.to_thread(letters, client, name, 2)
        assert [data for data, _ in found] == values


async def test_stream_letter_topic_in_use_is_written(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"bad"])
    with client.subscribe(f"{name}-s-DLQ", "s") as consumer:
        async with opened(broker, name, decode="json") as made:
            await made.nothing(2)
        assert consumer.receive(20_000).data() == b"bad"


async def test_stream_rejected_becomes_dead_letter(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"x"])
    async with opened(broker, name, dead_letter_topic=f"{name}-dead") as made:
        _, delivery = await made.next()
        await made.stream.dead_letter(delivery)
    with client.subscribe(f"{name}-dead", "s") as consumer:
        assert consumer.receive(timeout_millis=10_000).data() == b"x"


# ---- connections -----------------------------------------------------------------------------------------------------


async def test_stream_goes_on_after_errors(
    client: Client, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._FIRST_PAUSE", 0.1)
    name = topic()
    publish(client, name, [b"a", b"b"])
    async with opened(broker, name) as made:
        connect, failures = made.connect, [ConnectError("nobody"), OSError("down")]

        async def failing() -> AsyncClient:
            if failures:
                raise failures.pop()
            return await connect()

        made.stream._connect = failing
        event, delivery = await made.next()
        # The connection of the consumer is lost, and with it what was unsettled.
        made.stream._client.shutdown()  # type: ignore[union-attr]
        await made.stream.acknowledge(delivery)
        assert event["value"] == "a" and made.connections == 1
        assert sorted(await made.values(2)) in (["a", "b"], ["b", "b"])
        assert made.connections == 2
    assert "OSError: down" in made.log.warnings[0]


async def test_stream_outdated_settings_connect_anew(
    client: Client, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._CHECK_SECONDS", 0.1)
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._FIRST_PAUSE", 0.1)
    changed, asked = False, asyncio.Event()

    async def is_outdated() -> bool:
        asked.set()
        return changed

    name = topic()
    with Relay(broker.service_url) as relay:
        async with opened(broker, name, more={"is_outdated": is_outdated}) as made:
            made._url = relay.service_url
            following = asyncio.ensure_future(made.values(1))
            await until(lambda: made.log.infos)
            relay.refuse()
            relay.cut()
            made._url = broker.service_url
            publish(client, name, [b"a"])
            await asyncio.wait_for(asked.wait(), 20)
            # The client of unchanged settings is left to reconnect by itself.
            assert made.connections == 1
            changed = True
            assert await following == ["a"] and made.connections == 2


@pytest.mark.parametrize("by", ["topic", "list", "pattern"])
@pytest.mark.parametrize("partitions", [0, 2])
async def test_stream_topic_made_again_loses_nothing(
    client: Client, broker: Broker, topic: NewTopic, partitions: int, by: str
) -> None:
    """A stream that was attached gets what is published to a new topic before it has subscribed again."""
    name = topic(partitions=partitions)
    options: dict[str, Any] = {"initial_position": "latest"}
    publish(client, name, [b"before"])
    if by == "list":
        options["topics"] = (name, topic())
    elif by == "pattern":
        options |= {"topics": (), "topic_pattern": f"{name}.*"}
    with AdminClient(broker.admin_url) as admin, Relay(broker.service_url) as relay:
        async with opened(broker, name, **options) as made:
            made._url = relay.service_url
            following = asyncio.ensure_future(made.values(2))
            await until(lambda: made.log.infos)
            relay.refuse()
            relay.cut()
            admin.delete_topic(name, force=True)
            if partitions:
                admin.create_partitioned_topic(name, partitions)
            # One by one: a partition each.
            for value in (b"a", b"b"):
                publish(client, name, [value])
            relay.accept()
            assert sorted(await asyncio.wait_for(following, 60)) == ["a", "b"] and made.connections == 1


async def test_stream_missing_topic_holds_up_no_other(
    client: Client,
    broker: Broker,
    topic: NewTopic,
    namespace: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._CHECK_SECONDS", 0.1)
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._FIRST_PAUSE", 0.1)
    space = namespace()
    name, late = topic(namespace=space), topic("late", namespace=space)
    with AdminClient(broker.admin_url) as admin:
        admin.create_topic(name)
        broker.admin("POST", f"namespaces/{space}/autoTopicCreation", {"allowAutoTopicCreation": False})
        async with opened(broker, None, topics=(name, late), initial_position="latest") as made:
            waiting = asyncio.ensure_future(made.values(1))
            await until(lambda: made.log.infos)
            assert f"There is no topic {late};" in made.log.warnings[0]
            publish(client, name, [b"a"])
            assert await asyncio.wait_for(waiting, 20) == ["a"]
            waiting = asyncio.ensure_future(made.values(1))
            admin.create_topic(late)
            admin.create_subscription(late, "keeps")
            publish(client, late, [b"b"])
            assert await asyncio.wait_for(waiting, 20) == ["b"] and made.connections == 2
            publish(client, name, [b"c"])
            assert await made.values(1) == ["c"]
    assert any("did not exist, and does now" in text for text in made.log.warnings)


async def test_stream_without_any_topic_connects_again(
    broker: Broker, topic: NewTopic, namespace: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._FIRST_PAUSE", 0.1)
    space = namespace()
    broker.admin("POST", f"namespaces/{space}/autoTopicCreation", {"allowAutoTopicCreation": False})
    names = tuple(topic(namespace=space) for _ in range(2))
    async with opened(broker, None, topics=names) as made:
        await made.nothing(2)
        assert made.connections > 1 and "TopicNotFound" in made.log.warnings[0]


async def test_stream_new_topic_of_pattern_from_first(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"before"])
    options = {"topic_pattern": f"{name}.*", "initial_position": "latest"}
    async with opened(broker, None, **options) as made:
        following = asyncio.ensure_future(made.values(1))
        await until(lambda: made.log.infos)
        # The loop stands still until the message is there.
        publish(client, f"{name}-new", [b"a"])
        assert await asyncio.wait_for(following, 60) == ["a"]


async def test_stream_subscription_deleted_begins_at_first(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    client.subscribe(name, "keeps").close()
    publish(client, name, [b"before"])
    with AdminClient(broker.admin_url) as admin:
        async with opened(broker, name, initial_position="latest") as made:
            following = asyncio.ensure_future(made.values(1))
            await until(lambda: made.log.infos)
            admin.delete_subscription(name, "s", force=True)
            assert await asyncio.wait_for(following, 60) == ["before"]


@pytest.mark.parametrize(("same", "expected"), [(True, ["before", "after"]), (False, ["after"])], ids=["same", "other"])
async def test_stream_position_is_of_the_first_connection(
    client: Client, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, same: bool, expected: list[str]
) -> None:
    """Another cluster, which its URL tells, is one that the stream was never attached to."""
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._FIRST_PAUSE", 0.1)
    name = topic()
    client.subscribe(name, "keeps").close()
    publish(client, name, [b"before"])
    with AdminClient(broker.admin_url) as admin, Relay(broker.service_url) as relay:
        async with opened(broker, name, initial_position="latest") as made:
            following = asyncio.ensure_future(made.values(len(expected)))
            await until(lambda: made.log.infos)
            if not same:
                made._url = relay.service_url
            made.stream._client.shutdown()  # type: ignore[union-attr]
            admin.delete_subscription(name, "s", force=True)
            await until(lambda: len(made.log.infos) == 2)
            publish(client, name, [b"after"])
            assert await asyncio.wait_for(following, 60) == expected


async def test_stream_renews_deliveries_of_the_same_message(client: Client, broker: Broker, topic: NewTopic) -> None:
    """A reconnection delivers unsettled messages again: they are no second event, and are acknowledged once settled."""
    name = topic()
    publish(client, name, [b"a"])
    async with opened(broker, name) as made:
        _, delivery = await made.next()
        broker.admin("PUT", f"{name.replace('://', '/')}/unload")
        await made.nothing(3)
        await made.stream.acknowledge(delivery)
        publish(client, name, [b"b"])
        assert await made.values(1) == ["b"]
    assert backlog(broker, name)["msgBacklog"] == 0


# ---- encrypted messages ----------------------------------------------------------------------------------------------


def publish_encrypted(client: Client, topic: str, folder: Path, values: list[bytes], name: str = "k") -> None:
    """Publish values in one encrypted batch."""
    producer = client.create_producer(
        topic, encryption_key=name, crypto_key_reader=CryptoKeyReader(*key_pair(folder, name)), batching_enabled=True
    )
    for value in values:
        producer.send_async(value, None, partition_key="a")
    producer.flush()
    producer.close()


async def test_stream_decrypts_and_acknowledges(
    client: Client, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    name = topic()
    publish_encrypted(client, name, tmp_path, [b'{"n": %d}' % n for n in range(4)])
    publish(client, name, [{"n": 5}], partition_key="a")
    keys = {"k": str(tmp_path / "k.key")}
    match = {"key": "a", "jsonpath": "@.n > 1"}
    async with opened(broker, name, match, private_keys=keys, decode="json") as made:
        assert await made.values(2) == [{"n": 2}, {"n": 3}]
    async with opened(broker, name, match, private_keys=keys, decode="json") as made:
        assert await made.values(1) == [{"n": 5}]
        await made.nothing()
    assert backlog(broker, name)["msgBacklog"] == 0


async def test_stream_undecrypted_stays(
    client: Client, broker: Broker, topic: NewTopic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    publish_encrypted(client, name, tmp_path, [b"1"], "other")
    publish_encrypted(client, name, tmp_path, [b"2"])
    async with opened(broker, name, private_keys={"k": str(tmp_path / "k.key")}) as made:
        assert await made.values(1) == ["2"]
        await made.nothing()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any("No private key fits" in text for text in errors)
    keys = {each: str(tmp_path / f"{each}.key") for each in ("k", "other")}
    async with opened(broker, name, private_keys=keys) as made:
        assert await made.values(1) == ["1"]


async def test_stream_encrypted_becomes_no_dead_letter(
    client: Client, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    name = topic()
    publish_encrypted(client, name, tmp_path, [b"\xff\x00", b"1", b"2"])
    publish(client, name, [b"\xff\x01"])

    def fails(record: Mapping[str, Any]) -> bool:
        if record["value"] == 1:
            raise OSError("no service")
        return True

    keys = {"k": str(tmp_path / "k.key")}
    options = {"private_keys": keys, "decode": "json", "max_redeliver_count": 0}
    async with opened(broker, name, None, fails, **options) as made:
        event, delivery = await made.next()
        assert event["value"] == 2
        await made.stream.dead_letter(delivery)
        # It is delivered again, and so are the others, without a line of the log for each.
        event, delivery = await made.next()
        assert event["value"] == 2
        await made.stream.acknowledge(delivery)
        await made.nothing(3)
        (text,) = made.log.errors
    assert "was encrypted, and would not be as a dead letter" in text and "stays unacknowledged" in text
    # A message that was not encrypted becomes one.
    assert [data for data, _ in await asyncio.to_thread(letters, client, name, 1)] == [b"\xff\x01"]
    reader = CryptoKeyReader(str(tmp_path / "k.pub"), keys["k"])
    with client.subscribe(name, "s", ConsumerType.Shared, crypto_key_reader=reader) as rest:
        assert [rest.receive(5000).data() for _ in range(2)] == [b"\xff\x00", b"1"]
        with pytest.raises(Timeout):
            rest.receive(300)


async def test_stream_waits_for_its_key_file(client: Client, broker: Broker, topic: NewTopic, tmp_path: Path) -> None:
    name, place = topic(), tmp_path / "mounted.key"
    publish_encrypted(client, name, tmp_path, [b"1"])
    async with opened(broker, name, private_keys={"k": str(place)}) as made:
        await made.nothing()
        assert "mounted.key cannot be read" in made.log.warnings[0] and not made.log.errors
        (tmp_path / "k.key").rename(place)
        assert await made.values(1) == ["1"]


def test_options_choices_become_lower_case() -> None:
    options = StreamOptions("s", ("t",), initial_position="Earliest", decode="JSON", payload="IDs")
    assert (options.initial_position, options.decode, options.payload) == ("earliest", "json", "ids")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topics": ()}, "exactly one of topic and topic_pattern"),
        ({"topic_pattern": "x"}, "exactly one of topic and topic_pattern"),
        ({"topics": (" ",)}, "topic must be a text"),
        ({"topics": (), "topic_pattern": "("}, "not a regular expression"),
        ({"subscription": ""}, "subscription must be a text"),
        ({"decode": "avro"}, "decode='avro' is not known"),
        ({"payload": "all"}, "payload='all' is not known"),
        ({"initial_position": "first"}, "initial_position='first' is not known"),
        ({"payload_limit_bytes": 10}, "payload_limit_bytes must be a number of at least 1024"),
        ({"receiver_queue_size": 0}, "receiver_queue_size must be a number of at least 1"),
        ({"max_redeliver_count": -1}, "max_redeliver_count must be a number of at least 0"),
        ({"payload_limit_bytes": 2000.5}, "payload_limit_bytes must be a whole number, not 2000.5"),
        ({"receiver_queue_size": 1.5}, "receiver_queue_size must be a whole number, not 1.5"),
        ({"max_redeliver_count": 1.5}, "max_redeliver_count must be a whole number, not 1.5"),
        ({"private_keys": ["k"]}, "private_keys must be a dict of texts"),
        ({"private_keys": {"k": "data:,x"}}, "private_keys must be paths of files"),
        ({"dead_letter_topic": ""}, "dead_letter_topic must be a text"),
        ({"dead_letter_topic": "non-persistent://a/b/c"}, "dead_letter_topic='non-.*/c' is not persistent"),
        ({"dead_letter_topic": "public/default/t"}, "dead_letter_topic='.*/t' is also a topic that is consumed .t.: "),
    ],
)
def test_options_wrong_raise(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StreamOptions(**({"subscription": "s", "topics": ("t",)} | options))
