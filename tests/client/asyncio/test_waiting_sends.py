"""Messages that wait for capacity: what comes behind them, flush, and what the report of the close counts."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_native.asyncio import Client, Producer
from pulsar_native.exceptions import AlreadyClosed, BulkSendError, MessageTooBig
from pulsar_native.interceptors import ProducerInterceptor
from pulsar_native.stats import CloseReport
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.fake_broker import FakeBroker, Peer, Seen, receipt, swallow
from support.until import until


async def sent(fake: FakeBroker, count: int) -> list[Seen]:
    """Wait until so many entries have been sent, and return them."""
    return await asyncio.to_thread(fake.wait, Kind.SEND, count)


async def answer(fake: FakeBroker, number: int) -> None:
    """Send the receipt of the entry of that number, which the fake broker has kept to itself."""
    seen = (await sent(fake, number + 1))[number]
    seen.peer.send(receipt(seen.command.send, number))


def payloads(fake: FakeBroker) -> list[bytes]:
    """Return the payloads of the entries sent so far."""
    return [bytes(parse_entry(seen.payload).body) for seen in fake.seen(Kind.SEND)]


async def narrow(client: Client, topic: str = "t", **options: Any) -> Producer[bytes]:
    """Return a producer for one message at a time, whose senders wait."""
    given = {"batching_enabled": False, "max_pending_messages": 1, "block_if_queue_full": True}
    return await client.create_producer(topic, **{**given, **options})


async def bulk(producer: Producer[bytes]) -> None:
    await producer.send_many([b"3", b"4"])


async def table(producer: Producer[bytes]) -> None:
    await producer.send_table(pa.table({"value": [b"3", b"4"]}))


@pytest.mark.parametrize("interceptors", [[], [ProducerInterceptor()]], ids=["plain", "intercepted"])
@pytest.mark.parametrize("send", [bulk, table], ids=["many", "table"])
async def test_bulk_send_goes_behind_waiting_sends(
    fake: FakeBroker, client: Client, send: Callable[[Producer[bytes]], Awaitable[None]], interceptors: list[Any]
) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client, interceptors=interceptors)
    first = await producer.enqueue(b"0")
    calls = [producer.send(b"1"), producer.send(b"2")]

    async def when_there_is_capacity() -> None:
        await first
        # Those that wait have not used it yet.
        await send(producer)

    sending = asyncio.create_task(when_there_is_capacity())
    for number in range(5):
        await answer(fake, number)
    await asyncio.wait_for(asyncio.gather(sending, *calls), 10)
    assert payloads(fake) == [b"0", b"1", b"2", b"3", b"4"]


async def test_bulk_send_passes_other_transaction(fake: FakeBroker, client: Client) -> None:
    producer: Any = await narrow(client)
    waiting = asyncio.get_running_loop().create_future()
    # A message of a transaction that has not got the partition yet.
    producer._waiting.lanes[producer._inner.children[0], object()] = deque([(waiting, lambda: None)])
    assert len(await asyncio.wait_for(producer.send_many([b"0", b"1"]), 10)) == 2 and not waiting.done()


async def test_bulk_send_cancelled_behind_waiting(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client)
    calls = [producer.send(b"%d" % number) for number in range(2)]
    sending = asyncio.create_task(bulk(producer))
    await asyncio.sleep(0)
    calls.append(producer.send(b"2"))
    sending.cancel()
    for number in range(3):
        await answer(fake, number)
    await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert sending.cancelled() and payloads(fake) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("partitions", [0, 2])
async def test_flush_covers_waiting_sends(fake: FakeBroker, client: Client, partitions: int) -> None:
    fake.partitions["persistent://public/default/t"] = partitions
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client)
    calls = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(9)]
    flushing = asyncio.ensure_future(producer.flush())
    await asyncio.sleep(0)
    # The last one is given up: those before it are waited for all the same.
    calls.pop().cancel()
    for number in range(8):
        assert not flushing.done()
        await answer(fake, number)
    await asyncio.wait_for(flushing, 10)
    assert len(payloads(fake)) == 8
    assert len(set(await asyncio.wait_for(asyncio.gather(*calls), 10))) == 8


async def test_flush_not_behind_later_sends(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client)
    calls = [producer.send(b"0"), producer.send(b"1")]
    flushing = asyncio.create_task(producer.flush())
    await asyncio.sleep(0)
    calls += [producer.send(b"2"), producer.send(b"3")]
    await answer(fake, 0)
    await sent(fake, 2)
    assert not flushing.done()
    await answer(fake, 1)
    await asyncio.wait_for(flushing, 10)
    assert len(await sent(fake, 3)) == 3
    for number in range(2, 4):
        await answer(fake, number)
    await asyncio.wait_for(asyncio.gather(*calls), 10)


async def test_flush_raises_error_of_last_waiting(fake: FakeBroker, client: Client) -> None:
    producer = await narrow(client)
    calls = [producer.send(b"0"), producer.send(b"1"), producer.send(b"x" * 6_000_000)]
    with pytest.raises(MessageTooBig):
        await asyncio.wait_for(producer.flush(), 10)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert payloads(fake) == [b"0", b"1"] and isinstance(outcomes[2], MessageTooBig)


async def test_flush_closed_meanwhile_raises(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client)
    calls = [producer.send(b"0"), producer.send(b"1")]
    flushing = asyncio.create_task(producer.flush())
    await asyncio.sleep(0)
    await producer.close(0)
    outcomes = await asyncio.wait_for(asyncio.gather(flushing, *calls, return_exceptions=True), 10)
    assert [type(outcome) for outcome in outcomes] == [AlreadyClosed] * 3


async def of_producer(client: Client, producer: Producer[bytes], timeout: float | None) -> CloseReport:
    return await producer.close(timeout)


async def of_client(client: Client, producer: Producer[bytes], timeout: float | None) -> CloseReport:
    return await client.close(timeout)


closes = pytest.mark.parametrize("close", [of_producer, of_client], ids=["producer", "client"])
Close = Callable[[Client, Producer[bytes], float | None], Awaitable[CloseReport]]


@closes
@pytest.mark.parametrize("interceptors", [[], [ProducerInterceptor()]], ids=["plain", "intercepted"])
@pytest.mark.parametrize("partitions", [0, 2])
async def test_close_sends_waiting(
    fake: FakeBroker, client: Client, close: Close, partitions: int, interceptors: list[Any]
) -> None:
    fake.partitions["persistent://public/default/t"] = partitions
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client, interceptors=interceptors)
    other = await client.create_producer("t")
    calls = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(9)]
    closing = asyncio.ensure_future(close(client, producer, None))
    for number in range(9):
        await answer(fake, number)
    report = await asyncio.wait_for(closing, 10)
    assert (report.sent, report.failed, report.left, report.complete) == (9, 0, 0, True)
    assert len(set(await asyncio.gather(*calls))) == 9 and len(payloads(fake)) == 9
    assert not any(part.sent for part in report.producers if part.producer_name == other.producer_name())


@closes
async def test_close_at_limit_counts_waiting_as_left(fake: FakeBroker, client: Client, close: Close) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client)
    calls = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(5)]
    # Answers that the loop reads first: the tasks wait by then.
    await answer(fake, 0)
    await sent(fake, 2)
    calls[2].cancel()
    await asyncio.sleep(0)
    report = await asyncio.wait_for(close(client, producer, 0), 10)
    assert (report.sent, report.failed, report.left, report.complete) == (0, 0, 3, False)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    expected = [AlreadyClosed, asyncio.CancelledError, AlreadyClosed, AlreadyClosed]
    assert [type(outcome) for outcome in outcomes[1:]] == expected
    assert payloads(fake) == [b"0", b"1"]


@closes
async def test_close_counts_waiting_refused_as_failed(fake: FakeBroker, client: Client, close: Close) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client)
    calls = [producer.send(b"0"), producer.send(b"x" * 6_000_000), producer.send(b"2")]
    closing = asyncio.ensure_future(close(client, producer, None))
    for number in range(2):
        await answer(fake, number)
    report = await asyncio.wait_for(closing, 10)
    assert (report.sent, report.failed, report.left) == (2, 1, 0)
    assert isinstance((await asyncio.gather(*calls, return_exceptions=True))[1], MessageTooBig)


@closes
@pytest.mark.parametrize("timeout", [None, 20.0], ids=["default", "limit"])
async def test_close_lost_connection_with_waiting(
    fake: FakeBroker, client: Client, close: Close, timeout: float | None
) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client)
    calls = [producer.send(b"%d" % number) for number in range(3)]
    is_back, answer_again = threading.Event(), fake.answers[Kind.PRODUCER]

    def held(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        assert is_back.wait(10)
        return answer_again(peer, command)

    fake.answers[Kind.PRODUCER] = held
    (await sent(fake, 1))[0].peer.close()
    await asyncio.to_thread(fake.wait, Kind.PRODUCER, 2)
    try:
        closing = asyncio.ensure_future(close(client, producer, timeout))
        if timeout is not None:
            await asyncio.sleep(0)
            is_back.set()
            for number in range(1, 4):
                await answer(fake, number)
        # Less than the operation time-out.
        report = await asyncio.wait_for(closing, 4)
    finally:
        is_back.set()
    assert (report.sent, report.failed, report.left) == ((0, 0, 3) if timeout is None else (3, 0, 0))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, AlreadyClosed) for outcome in outcomes] == [timeout is None] * 3


@closes
async def test_close_lazy_partition_with_waiting(fake: FakeBroker, client: Client, close: Close) -> None:
    fake.partitions["persistent://public/default/t"] = 2
    is_wanted, answer_again = threading.Event(), fake.answers[Kind.PRODUCER]
    producer = await narrow(client, lazy_start_partitioned_producers=True)

    def held(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        assert is_wanted.wait(10)
        return answer_again(peer, command)

    fake.answers[Kind.PRODUCER] = held
    calls = [producer.send(b"%d" % number) for number in range(8)]
    closing = asyncio.ensure_future(close(client, producer, None))
    await asyncio.to_thread(fake.wait, Kind.PRODUCER, 2)
    is_wanted.set()
    report = await asyncio.wait_for(closing, 10)
    assert (report.failed, report.left) == (0, 0)
    assert len(set(await asyncio.gather(*calls))) == 8


async def test_close_fails_who_waits_for_memory(fake: FakeBroker) -> None:
    fake.answers[Kind.SEND] = swallow
    async with Client(fake.url, operation_timeout_seconds=5, memory_limit_bytes=100) as client:
        holder = await client.create_producer("u", batching_enabled=False)
        held = await holder.enqueue(b"x" * 100)
        producer = await narrow(client)
        call = producer.send(b"y" * 50)
        report = await producer.close(0)
        # The memory is not free: nobody else would wake it.
        with pytest.raises(AlreadyClosed):
            await asyncio.wait_for(call, 10)
        assert report.left == 1 and not held.done()
        await client.close(0)
        assert isinstance(held.exception(), AlreadyClosed)


@pytest.mark.parametrize("send", [bulk, table], ids=["many", "table"])
async def test_close_fails_bulk_waiting_for_memory(
    fake: FakeBroker, send: Callable[[Producer[bytes]], Awaitable[None]]
) -> None:
    fake.answers[Kind.SEND] = swallow
    async with Client(fake.url, operation_timeout_seconds=5, memory_limit_bytes=100) as client:
        holder = await client.create_producer("u", batching_enabled=False)
        held = await holder.enqueue(b"x" * 100)
        producer = await narrow(client)
        sending = asyncio.create_task(send(producer))
        await until(lambda: holder._inner.client.memory._waiters)
        await producer.close(0)
        with pytest.raises(BulkSendError) as caught:
            await asyncio.wait_for(sending, 10)
        assert isinstance(caught.value.__cause__, AlreadyClosed) and caught.value.not_stored == (range(2),)
        assert not held.done()
        await client.close(0)
        assert isinstance(held.exception(), AlreadyClosed)


async def test_client_close_cancelled_with_waiting(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await narrow(client)
    calls = [producer.send(b"0"), producer.send(b"1")]
    closing = asyncio.create_task(client.close())
    await sent(fake, 1)
    closing.cancel()
    outcomes = await asyncio.wait_for(asyncio.gather(closing, *calls, return_exceptions=True), 10)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, AlreadyClosed, AlreadyClosed]
