"""Creation and lookups by the calling thread: without the loop in the plain case, with it in every other."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import (
    AuthorizationError,
    Client,
    Interrupted,
    MessageId,
    ProducerAccessMode,
    PulsarException,
    Timeout,
)
from pulsar_native.engine import connection as connections
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.transport import Transport
from pulsar_native.protocol.producer import ProducerCore
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.apis import inner
from support.fake_broker import FakeBroker, Peer, found, frame, not_found, swallow
from support.signals import TimeLimit
from support.until import wait_until

Ready = Callable[..., Client]
Make = Callable[[Client], Any]

MAKE: dict[str, Make] = {
    "producer": lambda client: client.create_producer("t"),
    "consumer": lambda client: client.subscribe("t", "sub"),
    "reader": lambda client: client.create_reader("t", MessageId.earliest),
}
KINDS = pytest.mark.parametrize("kind", MAKE)
REQUEST = {"producer": Kind.PRODUCER, "consumer": Kind.SUBSCRIBE, "reader": Kind.SUBSCRIBE}
LOOKED_UP = (Kind.PARTITIONED_METADATA, Kind.LOOKUP)


@pytest.fixture
def ready(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ready]:
    """Give a function that makes a client on a connection that allows inline reads, however busy the machine is."""
    made: list[Client] = []

    def make(*, waits: float = 20.0, **options: Any) -> Client:
        monkeypatch.setattr(connections, "_INLINE_READ_SECONDS", waits)
        client = Client(fake.url, **{"operation_timeout_seconds": 20, **options})
        made.append(client)
        client.get_topic_partitions("first")
        core = client._core
        assert core is not None
        (connection,) = core.pool.connections()
        transport = connection._transport
        assert transport is not None
        # The first try has the loop prepare them.
        assert not transport.begin_inline_read()
        wait_until(lambda: transport._watch is not None)
        return client

    yield make
    for client in made:
        client.shutdown()


def no_loop(*_: object, **__: object) -> None:
    """Stand in for what must not be called."""
    raise AssertionError("the loop was asked")


def kinds_of(fake: FakeBroker, since: int) -> list[int]:
    return [seen.command.type for seen in fake.seen()[since:]]


@KINDS
def test_creation_plain_needs_no_loop(
    kind: str, ready: Ready, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ready(stats_interval_in_seconds=0)
    before = len(fake.seen())
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "run", no_loop)
        patched.setattr(Engine, "call_soon", no_loop)
        part = MAKE[kind](client)
        assert client.get_topic_partitions("t") == ["persistent://public/default/t"]
    assert part.is_connected()
    assert kinds_of(fake, before)[:3] == [*LOOKED_UP, REQUEST[kind]]
    part.close()


def test_creation_partitioned_looks_up_each(ready: Ready, fake: FakeBroker) -> None:
    fake.partitions["persistent://public/default/t"] = 2
    client = ready()
    producer, consumer = client.create_producer("t"), client.subscribe("t", "sub")
    assert {seen.command.producer.topic[-1] for seen in fake.seen(Kind.PRODUCER)} == {"0", "1"}
    assert {seen.command.subscribe.topic[-1] for seen in fake.seen(Kind.SUBSCRIBE)} == {"0", "1"}
    assert producer.is_connected() and consumer.is_connected()


@KINDS
def test_creation_after_fast_lookup_failed(kind: str, ready: Ready, fake: FakeBroker) -> None:
    client = ready()
    answers = iter([pb.MetadataError, None])

    def lookup(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        code = next(answers)
        return [found(command, fake.url) if code is None else not_found(command, code)]

    fake.answers[Kind.LOOKUP] = lookup
    assert MAKE[kind](client).is_connected()
    assert len(fake.seen(Kind.LOOKUP)) == 2


def test_creation_lookup_refused_raises(ready: Ready, fake: FakeBroker) -> None:
    client = ready()
    fake.answers[Kind.LOOKUP] = lambda peer, command: [not_found(command, pb.AuthorizationError)]
    with pytest.raises(AuthorizationError) as caught:
        client.create_producer("t")
    assert caught.value.topic == "persistent://public/default/t"


@KINDS
def test_creation_follows_redirect(kind: str, ready: Ready, fake: FakeBroker) -> None:
    client = ready()
    with FakeBroker() as second:
        fake.answers[Kind.LOOKUP] = lambda peer, command: [found(command, second.url, redirect=True)]
        part = MAKE[kind](client)
        assert part.is_connected() and not fake.seen(REQUEST[kind])
        assert len(second.seen(Kind.LOOKUP)) == len(second.seen(REQUEST[kind])) == 1
        # A broker found at once, on another connection that is open by now.
        fake.answers[Kind.LOOKUP] = lambda peer, command: [found(command, second.url)]
        other = MAKE[kind](client)
        assert other.is_connected() and len(second.seen(REQUEST[kind])) == 2
        client.shutdown()


# --- limit --------------------------------------------------------------------------------------------------------


def test_lookup_limit_holds_for_threads(ready: Ready, fake: FakeBroker) -> None:
    lock = threading.Lock()
    asked = most = 0
    real = {kind: fake.answers[kind] for kind in LOOKED_UP}

    def late(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        nonlocal asked, most
        with lock:
            asked += 1
            most = max(most, asked)

        def answer() -> None:
            nonlocal asked
            with lock:
                asked -= 1
            peer.send(*real[command.type](peer, command))

        timer = threading.Timer(0.01, answer)
        timer.daemon = True
        timer.start()
        return ()

    client = ready(concurrent_lookup_requests=2)
    fake.answers.update(dict.fromkeys(LOOKED_UP, late))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: client.get_topic_partitions(f"t{number}"), range(40)))
        for producer in pool.map(lambda number: client.create_producer(f"t{number}"), range(20)):
            assert producer.is_connected()
    assert asked == 0 and 1 <= most <= 2


def test_lookup_limit_of_one_asks_in_turn(ready: Ready, fake: FakeBroker) -> None:
    client = ready(concurrent_lookup_requests=1)
    before = len(fake.seen())
    fake.answers[Kind.PARTITIONED_METADATA] = swallow
    with ThreadPoolExecutor(1) as pool:
        creating: Future[Any] = pool.submit(client.create_producer, "t")
        (held,) = fake.wait(Kind.PARTITIONED_METADATA, 2)[1:]
        assert kinds_of(fake, before) == [Kind.PARTITIONED_METADATA]
        answer = pb.CommandPartitionedTopicMetadataResponse(
            request_id=held.command.partitionMetadata.request_id,
            partitions=0,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        )
        held.peer.send(frame(Kind.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer))
        assert creating.result(20).is_connected()
    assert kinds_of(fake, before) == [*LOOKED_UP, Kind.PRODUCER]


# --- time-out, loss, Ctrl-C -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stalled", [*LOOKED_UP, Kind.PRODUCER, Kind.SUBSCRIBE], ids=Kind.Name)
def test_creation_stalled_broker_times_out(stalled: int, ready: Ready, fake: FakeBroker) -> None:
    client = ready(waits=0.02, operation_timeout_seconds=1, concurrent_lookup_requests=2)
    real = fake.answers.get(stalled)
    fake.answers[stalled] = swallow
    make = MAKE["consumer" if stalled == Kind.SUBSCRIBE else "producer"]
    started = time.monotonic()
    with pytest.raises(Timeout) as caught:
        make(client)
    assert 0.9 < time.monotonic() - started < 15
    assert caught.value.topic == "persistent://public/default/t"
    if stalled in REQUEST.values():
        # The broker may still finish it.
        closed = Kind.CLOSE_PRODUCER if stalled == Kind.PRODUCER else Kind.CLOSE_CONSUMER
        # Interrupted within the write itself, it ends the connection, and with it what was created.
        wait_until(lambda: bool(fake.seen(closed)) or fake.seen(stalled)[-1].peer.gone.is_set(), 10)
    # Nothing is held: neither the slots of the limit nor the right to read.
    fake.answers.pop(stalled)
    if real is not None:
        fake.answers[stalled] = real
    assert make(client).is_connected()


@pytest.mark.parametrize("late", [*LOOKED_UP, Kind.PRODUCER, Kind.SUBSCRIBE], ids=Kind.Name)
def test_creation_late_answer_is_awaited(late: int, ready: Ready, fake: FakeBroker) -> None:
    client = ready(waits=0.02)
    fake.answers[late], real = swallow, fake.answers.get(late)
    name = "consumer" if late == Kind.SUBSCRIBE else "producer"
    count = len(fake.seen(late))
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(MAKE[name], client)
        held = fake.wait(late, count + 1)[-1]
        with pytest.raises(TimeoutError):
            creating.result(0.2)
        fake.answers.pop(late)
        if real is not None:
            fake.answers[late] = real
        fake._answer(held.peer, held.command)
        assert creating.result(20).is_connected()
    # Each was asked for once: the late answer was not asked for again.
    assert len(fake.seen(late)) == count + 1


@pytest.mark.parametrize("lost_at", [*LOOKED_UP, Kind.PRODUCER, Kind.SUBSCRIBE], ids=Kind.Name)
def test_creation_lost_connection_is_retried(lost_at: int, ready: Ready, fake: FakeBroker) -> None:
    client = ready()
    real = fake.answers.get(lost_at)

    def lose(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        fake.answers.pop(lost_at)
        if real is not None:
            fake.answers[lost_at] = real
        peer.close()
        return ()

    fake.answers[lost_at] = lose
    part = MAKE["consumer" if lost_at == Kind.SUBSCRIBE else "producer"](client)
    assert part.is_connected() and len(fake.peers) == 2


@pytest.fixture
def interrupt(raised: type[BaseException]) -> Iterator[Callable[[], None]]:
    """Give a function for another thread that raises an exception in the main thread, once.

    A signal that comes directly before a system call does not end it: the signal is sent until Python has handled it.
    """
    handled = threading.Event()

    def handle(_signal: int, _frame: object) -> None:
        if not handled.is_set():
            handled.set()
            raise raised

    def send() -> None:
        for _ in range(50):
            os.kill(os.getpid(), signal.SIGUSR1)
            if handled.wait(0.1):
                return

    before = signal.signal(signal.SIGUSR1, handle)
    yield send
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeLimit, TimeoutError])
@pytest.mark.parametrize("stalled", [*LOOKED_UP, Kind.PRODUCER, Kind.SUBSCRIBE], ids=Kind.Name)
def test_creation_interrupted_in_thread(
    stalled: int, ready: Ready, fake: FakeBroker, interrupt: Callable[[], None], raised: type[BaseException]
) -> None:
    client = ready(concurrent_lookup_requests=2)
    real = fake.answers.get(stalled)
    count = len(fake.seen(stalled))

    def stall(_peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        interrupt()
        return ()

    fake.answers[stalled] = stall
    make = MAKE["consumer" if stalled == Kind.SUBSCRIBE else "producer"]
    started = time.monotonic()
    with pytest.raises(Interrupted if raised is KeyboardInterrupt else raised) as failed:
        make(client)
    assert not isinstance(failed.value, PulsarException)
    # Far below the 20 s for which the thread would read.
    assert time.monotonic() - started < 10 and len(fake.seen(stalled)) == count + 1
    if stalled in REQUEST.values():
        closed = Kind.CLOSE_PRODUCER if stalled == Kind.PRODUCER else Kind.CLOSE_CONSUMER
        # Interrupted within the write itself, it ends the connection, and with it what was created.
        wait_until(lambda: bool(fake.seen(closed)) or fake.seen(stalled)[-1].peer.gone.is_set(), 10)
    core = client._core
    assert core is not None and not core.producers and not core.consumers
    fake.answers.pop(stalled)
    if real is not None:
        fake.answers[stalled] = real
    assert make(client).is_connected()


# --- what the broker says next ----------------------------------------------------------------------------------------


def test_creation_closed_at_once_reconnects(ready: Ready, fake: FakeBroker) -> None:
    client = ready()
    real = fake.answers[Kind.PRODUCER]

    def close_at_once(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        fake.answers[Kind.PRODUCER] = real
        closing = pb.CommandCloseProducer(producer_id=command.producer.producer_id, request_id=(1 << 64) - 1)
        return [b"".join([*real(peer, command), frame(Kind.CLOSE_PRODUCER, close_producer=closing)])]

    fake.answers[Kind.PRODUCER] = close_at_once
    producer = client.create_producer("t")
    fake.wait(Kind.PRODUCER, 2)
    wait_until(producer.is_connected)


def test_creation_lost_while_attaching_reconnects(
    ready: Ready, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ready()
    core = client._core
    assert core is not None
    (connection,) = core.pool.connections()
    connected = ProducerCore.connected

    async def lose() -> None:
        connection.close("for the test")

    def lost_meanwhile(self: ProducerCore, *arguments: Any) -> None:
        # The loop learns of the loss before it knows of the attachment.
        monkeypatch.undo()
        core.engine.run(lose())
        connected(self, *arguments)

    monkeypatch.setattr(ProducerCore, "connected", lost_meanwhile)
    producer = client.create_producer("t")
    fake.wait(Kind.PRODUCER, 2)
    wait_until(producer.is_connected)
    assert inner(producer).children[0].connection is not connection


def test_creation_exclusive_waits_for_its_turn(ready: Ready, fake: FakeBroker) -> None:
    client = ready(operation_timeout_seconds=1)
    fake.answers[Kind.PRODUCER] = lambda peer, command: [producer_answer(command, is_ready=False)]
    with ThreadPoolExecutor(1) as pool:
        creating: Future[Any] = pool.submit(
            client.create_producer, "t", access_mode=ProducerAccessMode.WaitForExclusive
        )
        (asked,) = fake.wait(Kind.PRODUCER)
        # Longer than the operation time-out.
        with pytest.raises(TimeoutError):
            creating.result(1.5)
        asked.peer.send(producer_answer(asked.command, is_ready=True))
        assert creating.result(20).is_connected()


def test_creation_exclusive_unanswered_times_out(ready: Ready, fake: FakeBroker) -> None:
    client = ready(waits=0.02, operation_timeout_seconds=1)
    fake.answers[Kind.PRODUCER] = swallow
    started = time.monotonic()
    # Being queued has no time limit, an answer that says so has one.
    with pytest.raises(Timeout):
        client.create_producer("t", access_mode=ProducerAccessMode.WaitForExclusive)
    assert 0.9 < time.monotonic() - started < 15


def producer_answer(command: pb.BaseCommand, *, is_ready: bool) -> bytes:
    """Return the answer to a PRODUCER that waits for exclusive access, or has it."""
    answer = pb.CommandProducerSuccess(
        request_id=command.producer.request_id, producer_name="p", last_sequence_id=-1, producer_ready=is_ready
    )
    return frame(Kind.PRODUCER_SUCCESS, producer_success=answer)


def test_creation_by_threads(ready: Ready, fake: FakeBroker) -> None:
    client = ready()

    def make_and_close(number: int) -> None:
        for _ in range(10):
            part = MAKE[list(MAKE)[number % 3]](client)
            assert part.is_connected()
            part.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(make_and_close, range(6)))
    core = client._core
    assert core is not None and not core.producers and not core.consumers


def test_lookup_on_closed_client_raises(ready: Ready) -> None:
    client = ready()
    core = client._core
    assert core is not None
    core.engine.run(core.close(1.0))
    with pytest.raises(PulsarException, match="closed"):
        client.get_topic_partitions("t")
    assert not core.pool.connections()


def test_creation_without_inline_reads_by_loop(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ready()
    # As over TLS, and where there is no epoll: the loop reads every response.
    monkeypatch.setattr(Transport, "begin_inline_read", lambda self: False)
    monkeypatch.setattr(Transport, "peek", no_loop)
    assert client.create_producer("t").is_connected() and client.get_topic_partitions("t")
