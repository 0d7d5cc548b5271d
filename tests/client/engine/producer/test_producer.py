"""Producer on a misbehaving broker: unexpected receipts, refusals, lost connections; no message is lost."""

from __future__ import annotations

import asyncio
import random
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from pulsar_native import Client
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.producer import producer as producer_module
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.enums import CompressionType, ProducerAccessMode, Result
from pulsar_native.exceptions import (
    AlreadyClosed,
    ChecksumError,
    MemoryBufferIsFull,
    MessageTooBig,
    NotAllowedError,
    NotConnected,
    ProducerBusy,
    ProducerFenced,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
    TopicTerminated,
)
from pulsar_native.message import OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.transaction import TransactionCore
from pulsar_native.txn_id import TxnId
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import split_batch
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.clock import LoopClock, stopped_clock
from support.fake_broker import MAXU, FakeBroker, Peer, Seen, failure, frame, receipt, swallow
from support.until import until, wait_until

Cores = Callable[..., ClientCore]
Outcome = tuple[PulsarException | None, MessageId | None]

FAST = {"starting_backoff_interval_ms": 20}


async def producer_of(core: ClientCore, **options: Any) -> TopicProducer:
    return await core.create_producer(ProducerConfig(topic="t", **options), None)


def only(producer: TopicProducer) -> PartitionProducer:
    (child,) = producer.children
    return child


def send(producer: TopicProducer, payload: bytes, sequence_id: int | None = None) -> asyncio.Future[Outcome]:
    """Publish and return what will become of it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()

    def done(error: PulsarException | None, place: MessageId | None) -> None:
        loop.call_soon_threadsafe(future.set_result, (error, place))

    extras = None if sequence_id is None else OutgoingMessage(payload, sequence_id=sequence_id)
    assert producer.enqueue(payload, b"", extras, done) is None
    return future


async def settled(futures: Iterable[asyncio.Future[Outcome]], seconds: float = 10) -> list[Outcome]:
    return list(await asyncio.wait_for(asyncio.gather(*futures), seconds))


def nothing_left(core: ClientCore, producer: TopicProducer) -> None:
    """Every message was settled, and every byte and place given back."""
    child = only(producer)
    assert (child.core.pending_messages, child.core.pending_bytes, core.memory.used) == (0, 0, 0)


def payloads(sent: Iterable[Seen]) -> list[bytes]:
    return [bytes(parse_entry(seen.payload).body) for seen in sent]


def send_error(command: pb.BaseCommand, code: int) -> bytes:
    sent = command.send
    is_batch = sent.HasField("highest_sequence_id") and sent.highest_sequence_id >= sent.sequence_id
    error = pb.CommandSendError(
        producer_id=sent.producer_id,
        # As the broker does it: a batch has the id of its last message.
        sequence_id=sent.highest_sequence_id if is_batch else sent.sequence_id,
        error=code,  # type: ignore[arg-type]
        message="as the test wants it",
    )
    return frame(Kind.SEND_ERROR, send_error=error)


def close_producer(producer_id: int) -> bytes:
    return frame(Kind.CLOSE_PRODUCER, close_producer=pb.CommandCloseProducer(producer_id=producer_id, request_id=MAXU))


# --- receipts ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C64", "C79")
async def test_receipt_of_later_entry_resends_all(fake: FakeBroker, cores: Cores) -> None:
    good = fake.answers[Kind.SEND]

    def skip_one(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if peer.number == 0:
            return [receipt(command.send, 9)] if command.send.sequence_id == 1 else ()
        return good(peer, command)

    fake.answers[Kind.SEND] = skip_one
    core = cores(fake.url, **FAST)
    producer = await producer_of(core)
    outcomes = await settled([send(producer, b"%d" % number) for number in range(4)])
    assert [error for error, _ in outcomes] == [None] * 4
    again = [seen for seen in fake.seen(Kind.SEND) if seen.peer.number == 1]
    assert payloads(again) == [b"0", b"1", b"2", b"3"]
    assert len(fake.peers) == 2 and fake.peers[0].gone.wait(10)
    nothing_left(core, producer)


def send_in(producer: TopicProducer, transaction: TransactionCore, payload: bytes) -> asyncio.Future[Outcome]:
    """Publish in a transaction that has the partition, and return what will become of it."""
    only(producer).joined(transaction)
    extras = OutgoingMessage(payload)
    extras.transaction = transaction
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()
    full = producer.enqueue(
        payload, b"", extras, lambda *outcome: loop.call_soon_threadsafe(future.set_result, outcome)
    )
    assert full is None
    return future


@pytest.mark.asyncio
@pytest.mark.parametrize("closes", ["memory", "queue", "flush", "flush_behind"])
async def test_batch_not_encoded_fails_its_messages(closes: str, fake: FakeBroker, cores: Cores) -> None:
    """Its callbacks are called, and its memory released, whatever has closed it; a flush raises its error."""
    core = cores(fake.url, memory_limit_bytes=4 << 20 if closes == "memory" else 0, **FAST)
    batching: dict[str, Any] = {
        "batching_enabled": True,
        "batching_max_publish_delay_ms": 200,
        "batching_max_allowed_size_in_bytes": 6 << 20,
        "compression_type": CompressionType.LZ4,
    }
    producer = await producer_of(core, max_pending_messages=2 if closes == "queue" else 1000, **batching)
    loop = asyncio.get_running_loop()
    flushed: list[asyncio.Future[PulsarException | None]] = []

    def flush() -> None:
        done: asyncio.Future[PulsarException | None] = loop.create_future()
        flushed.append(done)
        only(producer).flush_then(lambda error: loop.call_soon_threadsafe(done.set_result, error) and None)

    before = [send(producer, b"before")] if closes == "flush_behind" else []
    if before:
        flush()
    # Each of them fits; the batch of both does not, as noise becomes larger when it is compressed.
    noise = random.Random(0).randbytes(2_615_000)
    outcomes = [send(producer, noise) for _ in range(2)]
    if closes.startswith("flush"):
        flush()
    else:
        refused = producer.enqueue(b"x", b"", None, None)
        assert refused is not None
        assert isinstance(refused.error, MemoryBufferIsFull if closes == "memory" else ProducerQueueIsFull)
    assert [type(error) for error, _ in await settled(outcomes)] == [MessageTooBig] * 2
    assert [error for error, _ in await settled(before)] == [None] * len(before)
    errors = await asyncio.wait_for(asyncio.gather(*flushed), 10)
    assert [type(error) for error in errors] == {
        "flush": [MessageTooBig],
        "flush_behind": [type(None), MessageTooBig],
    }.get(closes, [])
    nothing_left(core, producer)


@pytest.mark.asyncio
async def test_flush_waits_for_overtaken_transaction(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.SEND] = swallow
    core = cores(fake.url, **FAST)
    producer = await producer_of(core, batching_enabled=False)
    flushed: list[str] = []

    def flush(name: str) -> None:
        only(producer).flush_then(lambda _error: flushed.append(name))

    outcomes = [send_in(producer, TransactionCore(TxnId(0, 1), 60.0, time.monotonic()), b"0")]
    flush("first")
    outcomes.append(send(producer, b"1"))
    flush("second")
    first, second = await asyncio.to_thread(fake.wait, Kind.SEND, 2)
    second.peer.send(receipt(second.command.send, 8))
    assert await settled(outcomes[1:]) == [(None, MessageId(-1, 1, 8))]
    assert not outcomes[0].done() and not flushed
    first.peer.send(receipt(first.command.send, 9))
    assert await settled(outcomes[:1]) == [(None, MessageId(-1, 1, 9))]
    assert flushed == ["first", "second"] and len(fake.peers) == 1
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_overtaken", [True, False])
async def test_resent_overtaken_entry_dropped_fails(fake: FakeBroker, cores: Cores, is_overtaken: bool) -> None:
    def answer(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if peer.number == 0:
            return [receipt(command.send, 8)] if command.send.sequence_id == 1 and is_overtaken else ()
        # With deduplication: an id as high as this one is stored.
        return [receipt(command.send, MAXU)]

    def create(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        stored = 1 if peer.number else -1
        success = pb.CommandProducerSuccess(
            request_id=command.producer.request_id, producer_name="p", last_sequence_id=stored
        )
        return [frame(Kind.PRODUCER_SUCCESS, producer_success=success)]

    fake.answers[Kind.SEND], fake.answers[Kind.PRODUCER] = answer, create
    core = cores(fake.url, **FAST)
    producer = await producer_of(core, batching_enabled=False)
    outcomes = [send_in(producer, TransactionCore(TxnId(0, 1), 60.0, time.monotonic()), b"0"), send(producer, b"1")]
    (await asyncio.to_thread(fake.wait, Kind.SEND, 2))[0]
    if is_overtaken:
        await settled(outcomes[1:])
    fake.peers[0].close()
    (error, _), (plain, _) = await settled(outcomes)
    assert plain is None and len(fake.peers) == 2
    assert isinstance(error, NotConnected) and "deduplication" in str(error) if is_overtaken else error is None
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_dropped", [True, False])
async def test_last_chunk_alone_that_is_stored_fails(fake: FakeBroker, cores: Cores, is_dropped: bool) -> None:
    # The broker has the message, by what it answers first.
    success = pb.CommandProducerSuccess(producer_name="p", last_sequence_id=0)

    def create(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        success.request_id = command.producer.request_id
        return [frame(Kind.PRODUCER_SUCCESS, producer_success=success)]

    fake.answers[Kind.PRODUCER] = create
    fake.answers[Kind.SEND] = lambda _peer, command: [receipt(command.send, MAXU if is_dropped else 9)]
    core = cores(fake.url)
    options = {"batching_enabled": False, "chunking_enabled": True, "chunk_max_message_size": 10}
    producer = await producer_of(core, producer_name="p", initial_sequence_id=-1, **options)
    ((error, _),) = await settled([send(producer, bytes(30))])
    assert error is None if is_dropped else isinstance(error, NotConnected) and "new sequence id" in str(error)
    (sent,) = fake.seen(Kind.SEND)
    assert parse_entry(sent.payload).metadata.chunk_id == 2
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.proves("C64", "C79")
async def test_receipt_of_earlier_entry_ignored(fake: FakeBroker, cores: Cores) -> None:
    def twice(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        number = command.send.sequence_id
        late = [receipt(command.send, 99, sequence_id=number - 1)] if number else []
        return [*late, receipt(command.send, number), *late, receipt(command.send, number)]

    fake.answers[Kind.SEND] = twice
    core = cores(fake.url)
    producer = await producer_of(core)
    outcomes = await settled([send(producer, b"%d" % number) for number in range(3)])
    assert outcomes == [(None, MessageId(-1, 1, number)) for number in range(3)]
    assert len(fake.peers) == 1
    nothing_left(core, producer)


@pytest.mark.asyncio
async def test_receipt_of_unknown_producer_ignored(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    producer = await producer_of(core)
    fake.peers[0].send(receipt(pb.CommandSend(producer_id=77, sequence_id=0), 0))
    assert (await settled([send(producer, b"x")])) == [(None, MessageId(-1, 1, 0))]
    assert len(fake.peers) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C63", "C79")
async def test_send_timeout_fails_pending_late_receipts_ignored(
    fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake.answers[Kind.SEND]
    taken: list[object] = []

    def take(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        taken.append(command)
        return ()

    fake.answers[Kind.SEND] = take
    core = cores(fake.url, keep_alive_interval_seconds=0)
    loop_clock, clock = LoopClock(monkeypatch), stopped_clock(monkeypatch, producer_module)
    producer = await producer_of(core, send_timeout_millis=300_000)

    async def advance(seconds: float) -> None:
        clock.advance(seconds)
        await loop_clock.advance(seconds)

    first = send(producer, b"0")
    await advance(200)
    second = send(producer, b"1")
    await advance(99)
    assert not first.done() and not second.done()
    await advance(2)
    # The oldest one's time is over: all behind it fail with it.
    outcomes = await settled([first, second])
    assert all(isinstance(error, Timeout) for error, _ in outcomes)
    nothing_left(core, producer)
    await until(lambda: len(taken) == 2)
    fake.answers[Kind.SEND] = good
    for seen in fake.seen(Kind.SEND):
        seen.peer.send(receipt(seen.command.send, 50))
    assert await settled([send(producer, b"2")]) == [(None, MessageId(-1, 1, 0))]
    assert len(fake.peers) == 1
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batch"])
async def test_send_timeout_names_last_reconnect_error(
    fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch, batching: bool
) -> None:
    create, confirm = fake.answers[Kind.PRODUCER], fake.answers[Kind.SEND]
    core, clock = cores(fake.url, **FAST), stopped_clock(monkeypatch, producer_module)
    producer = await producer_of(core, send_timeout_millis=300_000, batching_enabled=batching)
    child = only(producer)

    async def overdue() -> str:
        waiting = [send(producer, b"0"), send(producer, b"1")]
        clock.advance(301)
        child._expiry_timer()
        outcomes = await settled(waiting)
        texts = {str(error) for error, _ in outcomes if isinstance(error, Timeout)}
        # The text is what `repr` shows, too.
        assert len(texts) == 1 and all(error.args == (error.message,) for error, _ in outcomes if error is not None)
        return texts.pop()

    fake.answers[Kind.PRODUCER] = lambda _peer, command: [
        failure(command.producer.request_id, pb.NotAllowedError, "the topic is gone")
    ]
    fake.peers[0].send(close_producer(child.core.producer_id))
    await until(lambda: not producer.is_connected)
    # Attempts are refused on the open connection.
    await until(lambda: "the topic is gone" in child.why_not_connected)
    expected = "the last attempt to reconnect failed: NotAllowedError: the topic is gone (broker 127.0.0.1:"
    assert f"the producer is not connected: {expected}" in await overdue()
    fake.answers[Kind.PRODUCER] = create
    await until(lambda: producer.is_connected)
    fake.answers[Kind.SEND] = swallow
    assert "connected" not in await overdue()
    fake.answers[Kind.SEND] = confirm
    nothing_left(core, producer)


# --- lost connections -------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C66", "C79")
@pytest.mark.parametrize("batching", [False, True])
async def test_reconnect_resends_same_bytes_first(fake: FakeBroker, cores: Cores, batching: bool) -> None:
    good = fake.answers[Kind.SEND]
    fake.answers[Kind.SEND] = swallow
    core = cores(fake.url, **FAST)
    producer = await producer_of(core, batching_enabled=batching, batching_max_messages=3)
    held = [send(producer, b"%d" % number) for number in range(9)]
    lost = await asyncio.to_thread(fake.wait, Kind.SEND, 3 if batching else 9)
    fake.answers[Kind.SEND] = good
    fake.peers[0].close(reset=True)
    await until(lambda: not producer.is_connected)
    held += [send(producer, b"%d" % number) for number in range(9, 12)]
    outcomes = await settled(held)
    assert [error for error, _ in outcomes] == [None] * 12
    again = [seen for seen in fake.seen(Kind.SEND) if seen.peer.number == 1]
    assert [seen.payload for seen in again[: len(lost)]] == [seen.payload for seen in lost]
    assert [seen.command.send.sequence_id for seen in again] == ([0, 3, 6, 9] if batching else list(range(12)))
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.proves("C42", "C66")
async def test_reconnect_keeps_generated_name(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, **FAST)
    producer = await producer_of(core)
    neighbour = await core.create_producer(ProducerConfig(topic="other"), None)
    assert (await settled([send(producer, b"0")]))[0][0] is None
    name = producer.name
    fake.peers[0].send(close_producer(only(producer).core.producer_id))
    again = (await asyncio.to_thread(fake.wait, Kind.PRODUCER, 3))[-1].command.producer
    assert (again.producer_name, again.user_provided_producer_name, again.epoch) == (name, False, 1)
    assert (await settled([send(producer, b"1")]))[0][0] is None
    # The connection and its neighbour were left alone.
    assert len(fake.peers) == 1 and neighbour.is_connected


@pytest.mark.asyncio
@pytest.mark.proves("C190")
async def test_producer_closed_after_creation_reconnects(fake: FakeBroker, cores: Cores) -> None:
    create = fake.answers[Kind.PRODUCER]

    def and_close(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        first = len(fake.seen(Kind.PRODUCER)) == 1
        # In one piece, so that both are read at once.
        closing = close_producer(command.producer.producer_id) if first else b""
        return [b"".join(create(peer, command)) + closing]

    fake.answers[Kind.PRODUCER] = and_close
    core = cores(fake.url, **FAST)
    producer = await producer_of(core)
    assert await settled([send(producer, b"x")]) == [(None, MessageId(-1, 1, 0))]


@pytest.mark.asyncio
@pytest.mark.proves("C35")
async def test_closed_producer_does_not_reconnect(
    fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    core = cores(fake.url, starting_backoff_interval_ms=60_000)
    producer = await producer_of(core)
    waiting = send(producer, b"0")
    await settled([waiting])
    fake.peers[0].close(reset=True)
    await until(lambda: not producer.is_connected)
    pending = send(producer, b"1")
    await producer.close()
    ((error, _),) = await settled([pending])
    assert isinstance(error, AlreadyClosed)
    await clock.advance(1000)
    assert len(fake.peers) == 1 and len(fake.seen(Kind.PRODUCER)) == 1
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.proves("C38")
async def test_close_during_reconnect_leaves_nothing(fake: FakeBroker, cores: Cores) -> None:
    create = fake.answers[Kind.PRODUCER]
    core = cores(fake.url, **FAST)
    producer = await producer_of(core)
    neighbour = await core.create_producer(ProducerConfig(topic="other"), None)
    producer_id = only(producer).core.producer_id
    fake.answers[Kind.PRODUCER] = swallow
    fake.peers[0].send(close_producer(producer_id))
    late = (await asyncio.to_thread(fake.wait, Kind.PRODUCER, 3))[-1]
    await producer.close()
    # The broker may just be making it: it is told to drop it, whatever it answers.
    (closing,) = await asyncio.to_thread(fake.wait, Kind.CLOSE_PRODUCER)
    assert closing.command.close_producer.producer_id == producer_id
    # It makes it later, when the close has had no effect.
    late.peer.send(*create(late.peer, late.command))
    again = (await asyncio.to_thread(fake.wait, Kind.CLOSE_PRODUCER, 2))[-1]
    assert again.command.close_producer.producer_id == producer_id
    assert (await settled([send(neighbour, b"x")]))[0][0] is None
    assert len(fake.peers) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("refused", [False, True], ids=["created", "refused"])
@pytest.mark.proves("C38")
async def test_late_answer_after_a_new_try_closes_none(fake: FakeBroker, cores: Cores, *, refused: bool) -> None:
    create = fake.answers[Kind.PRODUCER]
    core = cores(fake.url, **FAST, operation_timeout_seconds=0.3)
    producer = await producer_of(core)
    fake.answers[Kind.PRODUCER] = swallow
    fake.peers[0].send(close_producer(only(producer).core.producer_id))
    late = (await asyncio.to_thread(fake.wait, Kind.PRODUCER, 2))[-1]
    # The time-out of the first try.
    await asyncio.to_thread(fake.wait, Kind.CLOSE_PRODUCER)
    fake.answers[Kind.PRODUCER] = create
    await until(lambda: producer.is_connected)
    error = pb.CommandError(request_id=late.command.producer.request_id, error=pb.NotAllowedError, message="no")
    late.peer.send(*([frame(Kind.ERROR, error=error)] if refused else create(late.peer, late.command)))
    # The receipt of the first one is read behind that answer; a close would be before the second one.
    for payload in (b"x", b"y"):
        assert (await settled([send(producer, payload)]))[0][0] is None
    assert len(fake.seen(Kind.CLOSE_PRODUCER)) == 1 and len(fake.peers) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C87")
async def test_close_completes_pending_sends(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.SEND] = swallow
    core = cores(fake.url, operation_timeout_seconds=0.3)
    producer = await producer_of(core, send_timeout_millis=0, batching_enabled=True, batching_max_messages=30)
    waiting = [send(producer, b"%d" % number) for number in range(100)]
    started = time.monotonic()
    await producer.close()
    assert time.monotonic() - started < 2
    outcomes = await settled(waiting, 2)
    assert all(isinstance(error, AlreadyClosed) for error, _ in outcomes)
    nothing_left(core, producer)
    with pytest.raises(AlreadyClosed):
        send(producer, b"x")


@pytest.mark.asyncio
@pytest.mark.proves("C4", "C87")
async def test_close_within_one_operation_timeout(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, operation_timeout_seconds=1.0)
    producer = await producer_of(core)
    fake.peers[0].muted = True
    waiting = send(producer, b"x")
    started = time.monotonic()
    await producer.close()
    assert time.monotonic() - started < 1.9
    assert isinstance((await settled([waiting]))[0][0], AlreadyClosed)


# --- refusals ---------------------------------------------------------------------------------------------------


def refuse_once(broker: FakeBroker, number: int, code: int) -> None:
    """Answer one message with SEND_ERROR the first time it comes, and the rest rightly."""
    good = broker.answers[Kind.SEND]
    refused: list[int] = []

    def answer(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        # After its error a broker confirms nothing until the producer comes again.
        if command.send.sequence_id == number and not refused:
            refused.append(number)
            return [send_error(command, code)]
        if refused and len(broker.seen(Kind.PRODUCER)) == 1 and code != pb.NotAllowedError:
            return ()
        return good(peer, command)

    broker.answers[Kind.SEND] = answer


@pytest.mark.asyncio
@pytest.mark.proves("C39", "C67", "C79")
@pytest.mark.parametrize("code", [pb.ChecksumError, pb.PersistenceError, pb.UnknownError])
async def test_send_error_transient_resent_by_own_producer(fake: FakeBroker, cores: Cores, code: int) -> None:
    refuse_once(fake, 1, code)
    core = cores(fake.url, **FAST)
    producer = await producer_of(core)
    neighbour = await core.create_producer(ProducerConfig(topic="other"), None)
    fake._seen = [seen for seen in fake._seen if seen.command.producer.topic != neighbour.topic.full]
    outcomes = await settled([send(producer, b"%d" % number) for number in range(4)])
    assert [error for error, _ in outcomes] == [None] * 4
    assert len(fake.seen(Kind.PRODUCER)) == 2 and len(fake.peers) == 1 and neighbour.is_connected
    assert only(producer).disconnect_reason == "the broker refused a message: as the test wants it"
    nothing_left(core, producer)


# Of 12 messages: each an entry of its own, or three of an entry.
ENTRIES = {"single": {"batching_enabled": False}, "batch": {"batching_enabled": True, "batching_max_messages": 3}}


@pytest.mark.asyncio
@pytest.mark.proves("C39", "C67", "C79")
@pytest.mark.parametrize("place", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("kind", ENTRIES)
async def test_send_entry_damaged_locally_fails_alone(fake: FakeBroker, cores: Cores, kind: str, place: int) -> None:
    good = fake.answers[Kind.SEND]
    hold = threading.Event()
    length = 3 if kind == "batch" else 1

    def check(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        assert hold.wait(10)
        if command.send.sequence_id == place * length:
            return [send_error(command, pb.ChecksumError)]
        return good(peer, command)

    fake.answers[Kind.SEND] = check
    core = cores(fake.url, **FAST)
    producer = await producer_of(core, **ENTRIES[kind])
    waiting = [send(producer, b"%d" % number) for number in range(12)]
    op = only(producer).core.queue.ops[place]
    op.parts = [op.parts[0], bytes(byte ^ 1 for byte in op.parts[1])]
    hold.set()
    outcomes = await settled(waiting)
    damaged = range(place * length, (place + 1) * length)
    assert [number for number, (error, _) in enumerate(outcomes) if error is not None] == list(damaged)
    assert isinstance(outcomes[damaged[0]][0], ChecksumError) and len(fake.seen(Kind.PRODUCER)) == 1
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.proves("C39", "C79")
@pytest.mark.parametrize("kind", ENTRIES)
async def test_send_not_allowed_fails_one_entry(fake: FakeBroker, cores: Cores, kind: str) -> None:
    refuse_once(fake, 3, pb.NotAllowedError)
    core = cores(fake.url)
    producer = await producer_of(core, **ENTRIES[kind])
    outcomes = await settled([send(producer, b"%d" % number) for number in range(12)])
    refused = range(3, 6) if kind == "batch" else [3]
    assert [number for number, (error, _) in enumerate(outcomes) if error is not None] == list(refused)
    assert isinstance(outcomes[3][0], NotAllowedError) and outcomes[3][0].topic == "persistent://public/default/t"
    assert len(fake.seen(Kind.PRODUCER)) == 1
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.proves("C39", "C79")
@pytest.mark.parametrize("kind", ENTRIES)
async def test_send_error_before_earlier_receipts(fake: FakeBroker, cores: Cores, kind: str) -> None:
    """A broker rejects an entry at once, while those before it are still being stored."""
    good = fake.answers[Kind.SEND]
    held: list[bytes] = []

    def answer(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if command.send.sequence_id < 3:
            held.extend(good(peer, command))
            return ()
        if command.send.sequence_id == 3:
            return [send_error(command, pb.NotAllowedError), *held]
        return good(peer, command)

    fake.answers[Kind.SEND] = answer
    core = cores(fake.url)
    producer = await producer_of(core, **ENTRIES[kind])
    outcomes = await settled([send(producer, b"%d" % number) for number in range(12)])
    refused = range(3, 6) if kind == "batch" else [3]
    assert [number for number, (error, _) in enumerate(outcomes) if error is not None] == list(refused)
    assert len(fake.seen(Kind.PRODUCER)) == 1
    nothing_left(core, producer)


@pytest.mark.asyncio
@pytest.mark.proves("C39", "C68", "C79")
async def test_send_terminated_topic_fails_all(fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    good = fake.answers[Kind.SEND]
    hold = threading.Event()

    def terminate(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        assert hold.wait(10)
        return [send_error(command, pb.TopicTerminatedError)] if command.send.sequence_id == 1 else good(peer, command)

    fake.answers[Kind.SEND] = terminate
    core = cores(fake.url)
    producer = await producer_of(core)
    waiting = [send(producer, b"%d" % number) for number in range(4)]
    hold.set()
    outcomes = await settled(waiting)
    assert [type(error) for error, _ in outcomes] == [type(None), *[TopicTerminated] * 3]
    nothing_left(core, producer)
    with pytest.raises(TopicTerminated):
        send(producer, b"later")
    await clock.advance(1000)
    # Answered behind any attempt to create it again.
    await core.topic_partition_count("t", auto_create=True)
    assert len(fake.seen(Kind.PRODUCER)) == 1


@pytest.mark.asyncio
async def test_send_fenced_producer_does_not_reconnect(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, **FAST)
    producer = await producer_of(core, access_mode=ProducerAccessMode.Exclusive)
    fake.answers[Kind.PRODUCER] = lambda peer, command: [failure(command.producer.request_id, pb.ProducerFenced)]
    fake.answers[Kind.SEND] = swallow
    waiting = send(producer, b"x")
    await asyncio.to_thread(fake.wait, Kind.SEND)
    fake.peers[0].close()
    ((error, _),) = await settled([waiting])
    assert isinstance(error, ProducerFenced)
    with pytest.raises(ProducerFenced):
        send(producer, b"y")


# --- creation ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.proves("C37")
async def test_create_producer_name_in_use_raises(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.PRODUCER] = lambda peer, command: [failure(command.producer.request_id, pb.ProducerBusy)]
    started = time.monotonic()
    with pytest.raises(ProducerBusy) as caught:
        await producer_of(cores(fake.url))
    assert time.monotonic() - started < 2 and len(fake.seen(Kind.PRODUCER)) == 1
    assert caught.value.topic == "persistent://public/default/t"


@pytest.mark.asyncio
@pytest.mark.proves("C36")
async def test_create_producer_moving_topic_looked_up_again(fake: FakeBroker, cores: Cores) -> None:
    create = fake.answers[Kind.PRODUCER]

    def not_yet(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if len(fake.seen(Kind.PRODUCER)) < 3:
            return [failure(command.producer.request_id, pb.ServiceNotReady, "Please redo the lookup")]
        return create(peer, command)

    fake.answers[Kind.PRODUCER] = not_yet
    assert (await producer_of(cores(fake.url, **FAST))).is_connected
    assert len(fake.seen(Kind.LOOKUP)) == 3


@pytest.mark.asyncio
@pytest.mark.proves("C62")
async def test_create_producer_wait_for_exclusive_no_timeout(
    fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    create = fake.answers[Kind.PRODUCER]

    def stand_in_line(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        answer = pb.CommandProducerSuccess(
            request_id=command.producer.request_id, producer_name="p", producer_ready=False
        )
        return [frame(Kind.PRODUCER_SUCCESS, producer_success=answer)]

    fake.answers[Kind.PRODUCER] = stand_in_line
    core = cores(fake.url, operation_timeout_seconds=20, keep_alive_interval_seconds=0)
    waiting = asyncio.create_task(producer_of(core, access_mode=ProducerAccessMode.WaitForExclusive))
    (asked,) = await asyncio.to_thread(fake.wait, Kind.PRODUCER)
    # The first answer is read before the second one's.
    await core.topic_partition_count("other", auto_create=True)
    await clock.advance(100)
    assert not waiting.done() and len(fake.seen(Kind.PRODUCER)) == 1
    # The second answer has the same request id.
    asked.peer.send(*create(asked.peer, asked.command))
    producer = await asyncio.wait_for(waiting, 5)
    assert (await settled([send(producer, b"x")]))[0][0] is None


@pytest.mark.asyncio
@pytest.mark.proves("C84")
async def test_create_producer_all_partitions_or_none(fake: FakeBroker, cores: Cores) -> None:
    create = fake.answers[Kind.PRODUCER]
    fake.partitions["persistent://public/default/t"] = 4

    def fence_one(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if command.producer.topic.endswith("-2"):
            return [failure(command.producer.request_id, pb.ProducerFenced)]
        return create(peer, command)

    fake.answers[Kind.PRODUCER] = fence_one
    core = cores(fake.url)
    with pytest.raises(ProducerFenced) as caught:
        await producer_of(core)
    assert caught.value.topic == "persistent://public/default/t-partition-2"
    made = {
        seen.command.producer.producer_id
        for seen in fake.seen(Kind.PRODUCER)
        if not seen.command.producer.topic.endswith("-2")
    }
    closed = {seen.command.close_producer.producer_id for seen in fake.seen(Kind.CLOSE_PRODUCER)}
    assert closed == made and len(made) == 3
    assert core.producers == set()


# --- plain messages from many threads ---------------------------------------------------------------------------------


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def stored(fake: FakeBroker) -> list[list[bytes]]:
    """Return the payloads of the entries that arrived."""
    entries = [parse_entry(seen.payload) for seen in fake.seen(Kind.SEND)]
    return [
        [bytes(entry.body[start:stop]) for _, start, stop in split_batch(entry.body, entry.num_messages)]
        if entry.is_batch
        else [bytes(entry.body)]
        for entry in entries
    ]


@pytest.mark.parametrize("limit", [0, 1_000_000])
def test_enqueue_from_threads_keeps_order(fake: FakeBroker, restless: None, limit: int) -> None:
    threads, each, most = 4, 1500, 7
    told: list[int] = []
    with Client(fake.url, memory_limit_bytes=limit) as client:
        producer = client.create_producer(
            "t", batching_enabled=True, batching_max_messages=most, batching_max_publish_delay_ms=1,
            max_pending_messages=200, block_if_queue_full=True,
        )  # fmt: skip

        def work(number: int) -> None:
            for index in range(each):
                payload = b"%d:%d" % (number, index)
                if index % 3:
                    producer.send_async(payload, None)
                else:
                    producer.send_async(payload, lambda result, _id: told.append(result is Result.Ok))
                if index % 97 == 0:
                    producer.flush()

        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
            assert not thread.is_alive()
        producer.flush()
        child = only(producer._inner)
        nothing_left(child.client, producer._inner)
        assert sum(told) == len(told) == threads * -(-each // 3)
    entries = stored(fake)
    assert max(map(len, entries)) <= most
    values = [payload for entry in entries for payload in entry]
    for number in range(threads):
        own = [value for value in values if value.startswith(b"%d:" % number)]
        assert own == [b"%d:%d" % (number, index) for index in range(each)]


def test_enqueue_during_close_reported_or_refused(fake: FakeBroker, restless: None) -> None:
    for _ in range(5):
        with Client(fake.url) as client:
            producer = client.create_producer("t", batching_enabled=True, max_pending_messages=0)
            taken, told = [0], [0]

            def work(producer: Any = producer, taken: list[int] = taken, told: list[int] = told) -> None:
                refused = threading.Event()

                def note(result: Result, _id: MessageId | None) -> None:
                    told[0] += 1
                    if result is Result.AlreadyClosed:
                        refused.set()

                # A refusal is reported to the callback, too, and raises nothing.
                while not refused.is_set():
                    producer.send_async(b"x", note)
                    taken[0] += 1

            thread = threading.Thread(target=work)
            thread.start()
            fake.wait(Kind.SEND)
            producer.close()
            thread.join(30)
            assert not thread.is_alive()
            wait_until(lambda told=told, taken=taken: told == taken)
            nothing_left(only(producer._inner).client, producer._inner)


@pytest.mark.proves("C44")
def test_enqueue_respects_queue_and_memory_limits(fake: FakeBroker) -> None:
    fake.answers[Kind.SEND] = swallow
    with Client(fake.url, memory_limit_bytes=1_000_000, operation_timeout_seconds=1) as client:
        producer = client.create_producer("t", batching_enabled=True, max_pending_messages=100)
        with pytest.raises(ProducerQueueIsFull):
            for _ in range(101):
                producer.send_async(b"x", None)
        assert only(producer._inner).core.pending_messages == 100
    with Client(fake.url, memory_limit_bytes=300_000, operation_timeout_seconds=1) as client:
        producer = client.create_producer("t", batching_enabled=True, max_pending_messages=0)
        with pytest.raises(MemoryBufferIsFull):
            for _ in range(302):
                producer.send_async(bytes(1000), None)
        assert only(producer._inner).core.pending_messages == 300


# --- a sender that waits reads its receipt itself ---------------------------------------------------------------------


def leading(producer: Any) -> bool:
    """Send until senders may look at the socket, which they never do where there is no epoll."""
    if not hasattr(select, "epoll"):
        producer.send(b"first")
        return True
    for number in range(200):
        producer.send(b"%d" % number)
        # Asked for by a send, and done by the loop before it answers.
        producer._engine.run(asyncio.sleep(0))
        if only(producer._inner).connection._transport._watch is not None:
            return True
    return False


@pytest.mark.parametrize("how", ["alone", "split", "with others", "late", "twice"])
def test_send_receipt_inline_or_by_loop(fake: FakeBroker, how: str) -> None:
    good = fake.answers[Kind.SEND]

    def left_to_loop() -> bool:
        return not transport._reading.locked()

    def answer(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        (whole,) = good(peer, command)
        if how == "split":
            peer.send(whole[:11])
            wait_until(left_to_loop)
            return [whole[11:]]
        if how == "with others":
            return [frame(Kind.PING) + whole + frame(Kind.PING)]
        if how == "late":
            wait_until(left_to_loop)
        return [whole, whole] if how == "twice" else [whole]

    with Client(fake.url) as client:
        producer = client.create_producer("t")
        assert leading(producer)
        transport = only(producer._inner).connection._transport
        before = producer.last_sequence_id()
        fake.answers[Kind.SEND] = answer
        ids = []
        for number in range(20):
            # Otherwise the loop reads for a while after such answers.
            transport._pause = 0
            ids.append(producer.send(b"%d" % number).entry_id())
        assert ids == list(range(ids[0], ids[0] + 20))
        assert producer.last_sequence_id() == before + 20
        assert len(fake.peers) == 1
        if how == "with others":
            fake.wait(Kind.PONG, 40)


def test_send_inline_read_lost_connection(fake: FakeBroker) -> None:
    good = fake.answers[Kind.SEND]
    with Client(fake.url, starting_backoff_interval_ms=20) as client:
        producer = client.create_producer("t")
        assert leading(producer)

        def hang_up(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
            if peer.number == 0:
                peer.close()
                return ()
            return good(peer, command)

        fake.answers[Kind.SEND] = hang_up
        assert producer.send(b"again").entry_id() >= 0
        assert len(fake.peers) == 2


def test_send_inline_read_other_callbacks_on_loop(fake: FakeBroker) -> None:
    with Client(fake.url) as client:
        producer = client.create_producer("t")
        assert leading(producer)
        transport = only(producer._inner).connection._transport
        callers: set[int] = set()
        for number in range(50):
            transport._pause = 0
            producer.send_async(b"a%d" % number, lambda _result, _id: callers.add(threading.get_ident()))
            producer.send(b"b%d" % number)
        assert callers == {only(producer._inner).engine.thread}


@pytest.mark.parametrize("closed", [False, True])
def test_fast_path_late_append_not_lost(fake: FakeBroker, closed: bool) -> None:
    with Client(fake.url) as client:
        producer = client.create_producer("t", batching_enabled=True)
        child = only(producer._inner)
        if closed:
            producer.close()
        # As a thread sees it that looked for room just before another one closed the batch, or the producer.
        child._fast_path.capacity, child._fast_path.max_payload = 1, 10
        told: list[Result] = []
        producer.send_async(b"late", lambda result, _id: told.append(result))
        wait_until(lambda: told)
        assert told == [Result.AlreadyClosed if closed else Result.Ok]
        nothing_left(child.client, producer._inner)
