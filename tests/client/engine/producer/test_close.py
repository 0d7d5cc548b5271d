"""Closing of a partition's producer: the flush, the limit, CLOSE_PRODUCER, and what is left, on a fake broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from pulsar_native import Client
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.handler import State
from pulsar_native.engine.producer.close import close, close_inline
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.exceptions import AlreadyClosed, PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Peer, Seen, failure, receipt, swallow

Cores = Callable[..., ClientCore]


async def partition(core: ClientCore, **options: object) -> PartitionProducer:
    """Return the only partition's producer of a topic."""
    producer = await core.create_producer(ProducerConfig(topic="t", **options), None)  # type: ignore[arg-type]
    (child,) = producer.children
    return child


def send(producer: PartitionProducer, payload: bytes, told: list[object]) -> None:
    """Send a message in the open batch."""

    def done(error: PulsarException | None, place: MessageId | None) -> None:
        told.append(place if error is None else type(error))

    assert producer.enqueue(payload, b"", None, done) is None


async def test_close_flushes_before_it_asks(fake: FakeBroker, cores: Cores) -> None:
    producer = await partition(cores(fake.url), batching_enabled=True, batching_max_publish_delay_ms=60_000)
    told: list[object] = []
    send(producer, b"x", told)
    report = await close(producer)
    assert [type(each) for each in told] == [MessageId]
    assert (report.topic, report.sent, report.failed, report.left) == ("persistent://public/default/t", 1, 0, 0)
    kinds = [seen.command.type for seen in fake.seen(Kind.SEND, Kind.CLOSE_PRODUCER)]
    assert kinds == [Kind.SEND, Kind.CLOSE_PRODUCER] and producer.state is State.CLOSED


async def test_close_limit_covers_flush_and_request(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.SEND] = fake.answers[Kind.CLOSE_PRODUCER] = swallow
    producer = await partition(cores(fake.url))
    told: list[object] = []
    send(producer, b"x", told)
    loop = asyncio.get_running_loop()
    started = loop.time()
    report = await close(producer, 0.1)
    assert 0.09 <= loop.time() - started < 2
    assert told == [AlreadyClosed] and (report.sent, report.left) == (0, 1)
    # No time is left for the response, but the broker is asked to drop the producer all the same.
    assert len(fake.wait(Kind.CLOSE_PRODUCER)) == 1


async def test_close_refused_by_broker_is_closed(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.CLOSE_PRODUCER] = lambda _peer, command: [
        failure(command.close_producer.request_id, pb.ServiceNotReady)
    ]
    producer = await partition(cores(fake.url))
    await close(producer)
    assert producer.state is State.CLOSED and not fake.peers[0].gone.is_set()
    with pytest.raises(AlreadyClosed):
        producer.enqueue(b"x", b"", None, None)


async def test_close_twice_reports_nothing(fake: FakeBroker, cores: Cores) -> None:
    producer = await partition(cores(fake.url))
    await close(producer)
    report = await close(producer)
    assert (report.sent, report.failed, report.left) == (0, 0, 0)
    assert len(fake.seen(Kind.CLOSE_PRODUCER)) == 1


def client_producer(fake: FakeBroker, client: Client) -> PartitionProducer:
    """Return the partition's producer behind one of the sync API, whose connection any thread may read."""
    (child,) = client.create_producer("t")._inner.children
    assert child.connection is not None
    # The first attempt has the loop prepare it, before the loop runs what comes next.
    assert not child.connection.begin_inline_read()
    child.engine.run(asyncio.sleep(0))
    return child


def test_close_inline_releases_then_calls_back(fake: FakeBroker) -> None:
    with Client(fake.url) as client:
        producer = client_producer(fake, client)
        states: list[State] = []
        report = close_inline(producer, None, lambda: states.append(producer.state))
        assert report is not None and (report.sent, report.left) == (0, 0)
        assert states == [State.CLOSED] and len(fake.seen(Kind.CLOSE_PRODUCER)) == 1


def test_close_inline_declines_with_pending_messages(fake: FakeBroker) -> None:
    kept: list[Seen] = []
    fake.answers[Kind.SEND] = swallow
    with Client(fake.url) as client:
        producer = client_producer(fake, client)
        producer.enqueue(b"x", b"", None, None, flush=True)
        kept += fake.wait(Kind.SEND)
        assert close_inline(producer, None, lambda: pytest.fail("nothing was closed")) is None
        assert producer.state is State.READY and not fake.seen(Kind.CLOSE_PRODUCER)
        # It goes on as before: the receipt arrives.
        kept[0].peer.send(receipt(kept[0].command.send, 5))
        flushed = asyncio.run_coroutine_threadsafe(_flushed(producer), producer.engine.loop)
        assert flushed.result(10) is None and producer.core.queue.last_published == 0


async def _flushed(producer: PartitionProducer) -> PulsarException | None:
    done: asyncio.Future[PulsarException | None] = asyncio.get_running_loop().create_future()
    producer.flush_then(done.set_result)
    return await done


def test_close_inline_late_response_waited_for_on_loop(fake: FakeBroker) -> None:
    asked: list[tuple[Peer, int]] = []

    def later(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked.append((peer, command.close_producer.request_id))
        return ()

    fake.answers[Kind.CLOSE_PRODUCER] = later
    with Client(fake.url, operation_timeout_seconds=1) as client:
        producer = client_producer(fake, client)
        ended: list[State] = []
        report = close_inline(producer, 0.2, lambda: ended.append(producer.state))
        assert report is not None and ended == [State.CLOSED] and len(asked) == 1
        assert producer.connection is None
