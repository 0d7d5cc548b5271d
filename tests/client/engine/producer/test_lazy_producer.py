"""Lazy partition producer: order, limits and failures of waiting messages, on a fake broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import pytest_asyncio

from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.exceptions import (
    AlreadyClosed,
    MemoryBufferIsFull,
    MessageTooBig,
    NotConnected,
    ProducerBusy,
    ProducerQueueIsFull,
    PulsarException,
    UnknownError,
)
from pulsar_native.message_id import MessageId
from pulsar_native.schema import BytesSchema
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.fake_broker import FakeBroker, Peer, failure
from support.until import until

pytestmark = [pytest.mark.proves("C84"), pytest.mark.asyncio]

Cores = Callable[..., ClientCore]
Outcome = tuple[PulsarException | None, MessageId | None]


class Lazy:
    """A topic of two partitions; everything goes to the second, whose creation the fake broker keeps back."""

    def __init__(self, fake: FakeBroker, core: ClientCore) -> None:
        self.fake = fake
        self.core = core
        self.asked: list[tuple[Peer, pb.BaseCommand]] = []
        self._create = fake.answers[Kind.PRODUCER]
        fake.partitions["persistent://public/default/t"] = 2
        fake.answers[Kind.PRODUCER] = self._keep

    def _keep(self, peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if command.producer.topic.endswith("-0"):
            return self._create(peer, command)
        self.asked.append((peer, command))
        return []

    async def open(self, **options: Any) -> TopicProducer:
        options = {"lazy_start_partitioned_producers": True, "message_router": lambda message, partitions: 1} | options
        return await self.core.create_producer(ProducerConfig(topic="t", **options), BytesSchema())

    async def answer(self, error: int | None = None) -> None:
        """Answer the one creation that is asked for."""
        await until(lambda: self.asked)
        ((peer, command),) = self.asked
        self.asked.clear()
        request_id = command.producer.request_id
        peer.send(*([failure(request_id, error)] if error is not None else self._create(peer, command)))

    def sent(self) -> list[bytes]:
        return [bytes(parse_entry(seen.payload).body) for seen in self.fake.seen(Kind.SEND)]


@pytest_asyncio.fixture
async def lazy(fake: FakeBroker, cores: Cores) -> Lazy:
    return Lazy(fake, cores(fake.url, memory_limit_bytes=1000))


def send(producer: TopicProducer, payload: bytes) -> asyncio.Future[Outcome]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()

    def done(error: PulsarException | None, place: MessageId | None) -> None:
        loop.call_soon_threadsafe(future.set_result, (error, place))

    assert producer.enqueue(payload, b"", None, done) is None
    return future


async def settled(*futures: asyncio.Future[Outcome]) -> list[type[PulsarException] | None]:
    outcomes = await asyncio.wait_for(asyncio.gather(*futures), 10)
    return [None if error is None else type(error) for error, _ in outcomes]


async def test_lazy_producer_encodes_after_creation(lazy: Lazy) -> None:
    producer = await lazy.open()
    waiting = [send(producer, b"%d" % number) for number in range(3)]
    flushed = asyncio.get_running_loop().create_future()
    producer.children[1].flush_then(lambda error: flushed.set_result(error))
    waiting.append(send(producer, b"behind"))
    await until(lambda: lazy.asked)
    # Answered behind whatever else was sent.
    await lazy.core.topic_partition_count("other", auto_create=True)
    assert len(lazy.asked) == 1 and not lazy.fake.seen(Kind.SEND) and not flushed.done()
    await lazy.answer()
    assert await settled(*waiting) == [None] * 4 and await flushed is None
    assert lazy.sent() == [b"0", b"1", b"2", b"behind"]
    assert lazy.core.memory.used == 0 and producer.children[1].core.pending_messages == 0
    names = {seen.command.producer.producer_name for seen in lazy.fake.seen(Kind.PRODUCER)[1:]}
    assert names == {producer.name}


async def test_lazy_producer_threads_keep_order(lazy: Lazy) -> None:
    producer = await lazy.open(max_pending_messages=0)

    def work(name: int) -> None:
        for number in range(100):
            assert producer.enqueue(b"%d %d" % (name, number), b"", None, None) is None

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    lazy.core.memory.limit = 0
    threads[0].start()
    await lazy.answer()
    threads[1].start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert await settled(send(producer, b"9 0")) == [None]
    for name in range(2):
        mine = [text for text in lazy.sent() if text.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, number) for number in range(100)]


async def test_lazy_producer_limits_waiting_messages(lazy: Lazy) -> None:
    producer = await lazy.open(max_pending_messages=2)
    waiting = [send(producer, bytes(400)), send(producer, bytes(700))]
    full = producer.enqueue(b"x", b"", None, None)
    assert full is not None and isinstance(full.error, ProducerQueueIsFull)
    room = asyncio.get_running_loop().create_future()
    full.wait_for_room(lambda: room.done() or room.set_result(None))
    assert lazy.core.memory.used == 1100
    other = producer.children[0].enqueue(b"x", b"", None, None)
    assert other is not None and isinstance(other.error, MemoryBufferIsFull)
    assert not room.done()
    await lazy.answer()
    assert await settled(*waiting) == [None, None]
    await asyncio.wait_for(room, 5)
    assert lazy.core.memory.used == 0


async def test_lazy_producer_small_message_is_first(lazy: Lazy) -> None:
    """The first message is smaller than what those behind it exceed the limit by."""
    producer = await lazy.open()
    waiting = [send(producer, payload) for payload in (bytes(10), bytes(985), bytes(700))]
    assert lazy.core.memory.used == 1695
    await lazy.answer()
    assert await settled(*waiting) == [None] * 3
    assert lazy.core.memory.used == 0


async def test_lazy_producer_invalid_message_fails_alone(lazy: Lazy) -> None:
    lazy.core.memory.limit = 0
    producer = await lazy.open()
    waiting = [send(producer, b"0"), send(producer, bytes(6 << 20)), send(producer, b"2")]
    await lazy.answer()
    assert await settled(*waiting) == [None, MessageTooBig, None]
    assert lazy.sent() == [b"0", b"2"]


async def test_lazy_producer_retries_after_refusal(lazy: Lazy) -> None:
    producer = await lazy.open()
    for _ in range(2):
        refused = [send(producer, b"x"), send(producer, b"y")]
        await lazy.answer(pb.ProducerBusy)
        assert await settled(*refused) == [ProducerBusy] * 2
        assert lazy.core.memory.used == 0 and not producer.children[1].is_started and producer.is_connected
        # Until a message starts the next try, others wait without holding up the loop.
        with pytest.raises(NotConnected):
            await producer.children[1].ready(0.01)
    taken = send(producer, b"z")
    await lazy.answer()
    assert await settled(taken) == [None] and lazy.sent() == [b"z"]


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError])
async def test_lazy_producer_unforeseen_fails_waiting(
    lazy: Lazy, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unforeseen(_producer: PartitionProducer, _connection: object) -> None:
        raise kind("secret")

    producer = await lazy.open()
    with monkeypatch.context() as patch:
        patch.setattr(PartitionProducer, "attach", unforeseen)
        (error, _), (other, _) = await asyncio.wait_for(
            asyncio.gather(*(send(producer, payload) for payload in (b"x", b"y"))), 10
        )
    assert isinstance(error, UnknownError) and error is other and isinstance(error.__cause__, kind)
    assert kind.__name__ in str(error) and "secret" not in str(error)
    assert lazy.core.memory.used == 0 and not producer.children[1].is_started
    # Not permanently.
    taken = send(producer, b"z")
    await lazy.answer()
    assert await settled(taken) == [None] and lazy.sent() == [b"z"]


async def test_lazy_producer_close_fails_waiting(fake: FakeBroker, cores: Cores) -> None:
    lazy = Lazy(fake, cores(fake.url, operation_timeout_seconds=0.3))
    producer = await lazy.open()
    waiting = send(producer, b"x")
    await producer.close()
    (error, _) = await asyncio.wait_for(waiting, 5)
    assert error is not None
    with pytest.raises(AlreadyClosed):
        producer.enqueue(b"y", b"", None, None)
    assert lazy.core.memory.used == 0


async def test_lazy_producer_shutdown_fails_waiting(lazy: Lazy) -> None:
    producer = await lazy.open()
    waiting = send(producer, b"x")
    producer.abandon()
    assert await settled(waiting) == [AlreadyClosed]
    assert lazy.core.memory.used == 0


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
async def test_lazy_producer_raising_callback_fails_alone(lazy: Lazy, kind: type[BaseException]) -> None:
    def broken(*_outcome: object) -> None:
        raise kind

    producer = await lazy.open()
    assert producer.enqueue(b"x", b"", None, broken) is None
    waiting = send(producer, b"y")
    flushed = asyncio.get_running_loop().create_future()
    producer.children[1].flush_then(flushed.set_result)
    await lazy.answer(pb.ProducerBusy)
    assert await settled(waiting) == [ProducerBusy]
    assert isinstance(await asyncio.wait_for(flushed, 10), ProducerBusy) and lazy.core.memory.used == 0
