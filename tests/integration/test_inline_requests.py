"""Close, and questions about the last message, in the calling thread: without the loop where nothing needs it, and with
it where something does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import AlreadyClosed, Client, ConnectError, ConsumerType, Interrupted, MessageId
from pulsar_native.engine import connection as connections
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.transport import Transport
from support.apis import inner
from support.brokers import Broker, NewTopic
from support.relay import TO_CLIENT, Command, NewRelay, Relay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]
Make = Callable[[Client, str], Any]

MAKE: dict[str, Make] = {
    "producer": lambda client, name: client.create_producer(name),
    "consumer": lambda client, name: client.subscribe(name, "sub", ConsumerType.Shared),
    "reader": lambda client, name: client.create_reader(name, MessageId.earliest),
}
KINDS = pytest.mark.parametrize("kind", MAKE)


@pytest.fixture
def through(broker: Broker, relay: NewRelay) -> Relay:
    """Return a relay before the broker."""
    return relay(broker.service_url)


@pytest.fixture
def ready(through: Relay, topic: NewTopic, eventually: Eventually) -> Callable[[str], tuple[Client, str, Any]]:
    """Return a function that returns a client, a topic, and a part on a connection that allows inline reads."""

    def make(kind: str) -> tuple[Client, str, Any]:
        client, name = Client(through.service_url), topic()
        part = MAKE[kind](client, name)
        child = inner(part).children[0]
        transport = child.connection._transport
        # The first try has the loop prepare them.
        assert not transport.begin_inline_read()
        eventually(lambda: transport._watch is not None)
        if kind != "producer":
            # The first permits are on their way, and nothing comes for them.
            through.wait_for(Command.FLOW)
        return client, name, part

    return make


def attached(kind: str, counts: Any) -> int:
    """Return how many parts of a kind the broker has."""
    if kind == "producer":
        return len(counts["publishers"])
    return sum(len(each["consumers"]) for each in counts["subscriptions"].values())


def no_loop(*_: object, **__: object) -> None:
    """Stand in for what must not be called."""
    raise AssertionError("the loop was asked")


@KINDS
def test_close_idle_needs_no_loop(
    kind: str, ready: Any, through: Relay, stats: Stats, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, name, part = ready(kind)
    assert attached(kind, stats(name)) == 1
    with monkeypatch.context() as patched:
        # On a busy machine the broker and the relay need longer than a caller reads for itself.
        patched.setattr(connections, "_INLINE_READ_SECONDS", 20.0)
        patched.setattr(Engine, "run", no_loop)
        patched.setattr(Engine, "call_soon", no_loop)
        report = part.close()
    assert report.complete and attached(kind, stats(name)) == 0
    assert through.count(Command.CLOSE_PRODUCER) + through.count(Command.CLOSE_CONSUMER) == 1
    core = inner(part).client
    assert not core.producers and not core.consumers and inner(part).is_closed
    if kind == "producer":
        with pytest.raises(AlreadyClosed):
            part.send(b"x")
    else:
        assert report.consumers[0].backlog is None
        with pytest.raises(AlreadyClosed):
            (part.receive if kind == "consumer" else part.read_next)(100)
    client.close()


@KINDS
def test_close_late_answer_is_awaited_by_loop(kind: str, ready: Any, through: Relay, eventually: Eventually) -> None:
    client, _, part = ready(kind)
    through.hold(Command.SUCCESS, TO_CLIENT)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(part.close, 20)
        eventually(lambda: through.held == 1)
        # Longer than a caller reads for itself.
        with pytest.raises(TimeoutError):
            closing.result(0.2)
        through.release()
        report = closing.result(10)
    assert report.complete and report.seconds < 10
    if kind != "producer":
        assert (report.consumers[0].backlog is None) == (kind == "reader")
    client.close()


@KINDS
def test_close_during_lost_connection_returns(kind: str, ready: Any, through: Relay, eventually: Eventually) -> None:
    client, _, part = ready(kind)
    through.hold(Command.SUCCESS, TO_CLIENT)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(part.close)
        eventually(lambda: through.held == 1)
        through.cut()
        assert closing.result(10).complete
    assert inner(part).is_closed and not part.is_connected()
    client.close()


@KINDS
def test_close_without_answer_times_out(kind: str, ready: Any, through: Relay) -> None:
    client, _, part = ready(kind)
    through.drop(Command.SUCCESS, TO_CLIENT)
    started = time.monotonic()
    part.close(timeout=0.5)
    # Far below the operation time-out of 30 s.
    assert 0.4 < time.monotonic() - started < 15 and inner(part).is_closed
    client.close()


@KINDS
def test_close_interrupted_ends_the_part(
    kind: str, ready: Any, stats: Stats, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, name, part = ready(kind)

    def interrupted(*_: object, **__: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Transport, "peek", interrupted)
        with pytest.raises(Interrupted):
            part.close()
    eventually(lambda: attached(kind, stats(name)) == 0 and inner(part).is_closed)
    core = inner(part).client
    assert not core.producers and not core.consumers
    # The connection goes on: the loop reads, and nobody holds the right to.
    other = MAKE[kind](client, name)
    other.close()
    client.close()


def test_close_of_many_by_threads(ready: Any, through: Relay, stats: Stats) -> None:
    client, name, _ = ready("producer")
    parts = [client.create_producer(name) for _ in range(40)]
    start = threading.Barrier(4)

    def close_some(own: list[Any]) -> None:
        start.wait(10)
        for part in own:
            assert part.close().complete

    with ThreadPoolExecutor(4) as pool:
        for closing in [pool.submit(close_some, parts[number::4]) for number in range(4)]:
            closing.result(60)
    assert attached("producer", stats(name)) == 1
    assert through.count(Command.CLOSE_PRODUCER) == 40
    assert len(inner(parts[0]).client.producers) == 1
    client.close()
    assert attached("producer", stats(name)) == 0


def test_close_sends_acknowledgements_first(ready: Any, topic: NewTopic, stats: Stats) -> None:
    client, name, _ = ready("producer")
    consumer = client.subscribe(name, "acks", ConsumerType.Shared, acknowledgment_group_time_ms=60_000)
    producer = client.create_producer(name)
    for _ in range(3):
        producer.send(b"x")
    for _ in range(2):
        consumer.acknowledge(consumer.receive(10_000))
    (report,) = consumer.close(20).consumers
    assert (report.acks_sent, report.acks_left, report.backlog) == (2, 0, 1)
    assert stats(name)["subscriptions"]["acks"]["msgBacklog"] == 1
    client.close()


def test_last_message_id_needs_no_loop(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, name, reader = ready("reader")
    consumer = client.subscribe(name, "sub")
    with client.create_producer(name) as producer:
        sent = [producer.send(content) for content in (b"1", b"2")]
    assert [reader.read_next(10_000).message_id() for _ in sent] == sent
    assert [consumer.receive(10_000).message_id() for _ in sent] == sent
    inner(reader).children[0].connection._transport._pause = 0
    with monkeypatch.context() as patched:
        patched.setattr(connections, "_INLINE_READ_SECONDS", 20.0)
        patched.setattr(Engine, "run", no_loop)
        patched.setattr(Engine, "call_soon", no_loop)
        assert not reader.has_message_available()
        assert reader.get_last_message_id() == sent[-1]
        assert consumer.get_last_message_ids() == sent[-1:]
        assert [last for last, _ in consumer.get_positions()] == sent[-1:]
    client.close()


def test_last_message_id_late_answer_is_awaited(ready: Any, through: Relay, eventually: Eventually) -> None:
    client, name, reader = ready("reader")
    with client.create_producer(name) as producer:
        sent = producer.send(b"1")
    reader.read_next(10_000)
    through.hold(Command.GET_LAST_MESSAGE_ID_RESPONSE, TO_CLIENT)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(reader.get_last_message_id)
        eventually(lambda: through.held == 1)
        # Longer than a caller reads for itself.
        with pytest.raises(TimeoutError):
            asked.result(0.2)
        through.release()
        assert asked.result(10) == sent
        through.hold(Command.GET_LAST_MESSAGE_ID_RESPONSE, TO_CLIENT)
        asked = pool.submit(reader.has_message_available)
        eventually(lambda: through.held == 1)
        through.cut()
        with pytest.raises(ConnectError):
            asked.result(10)
    through.release()
    assert not reader.has_message_available()
    client.close()


def test_first_question_is_read_by_the_loop(
    ready: Any, through: Relay, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, name, _ = ready("producer")
    monkeypatch.setattr(connections, "_INLINE_READ_SECONDS", 20.0)
    with client.create_producer(name) as producer:
        producer.send(b"1")
    through.hold(Command.MESSAGE, TO_CLIENT)
    reader = client.create_reader(name, MessageId.earliest)
    transport = inner(reader).children[0].connection._transport
    through.hold(Command.GET_LAST_MESSAGE_ID_RESPONSE, TO_CLIENT)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(reader.has_message_available)
        eventually(lambda: through.held == 2)
        # The message first: a caller that reads for itself would be refused to, for the next hundred requests.
        through.release()
        assert asked.result(10)
    assert not transport._pause
    assert reader.read_next(10_000).data() == b"1"
    client.close()
