"""Producer of the asyncio API on a fake broker: futures, cancelled tasks, back-pressure, and what is raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pulsar_native.asyncio import Client
from pulsar_native.exceptions import AlreadyClosed, InvalidMessage, ProducerQueueIsFull, Timeout
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.fake_broker import FakeBroker, Seen, receipt, swallow


async def sent(fake: FakeBroker, count: int = 1) -> list[Seen]:
    """Wait until so many entries have been sent, and return them."""
    return await asyncio.to_thread(fake.wait, Kind.SEND, count)


def answer(seen: Seen, entry: int) -> None:
    """Send the receipt of an entry that the fake broker has kept to itself."""
    seen.peer.send(receipt(seen.command.send, entry))


async def test_enqueue_returns_before_the_receipt(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await client.create_producer("t")
    future = await producer.enqueue(b"x")
    (seen,) = await sent(fake)
    assert not future.done()
    answer(seen, 8)
    assert (await asyncio.wait_for(future, 10)).entry_id() == 8 and producer.last_sequence_id() == 0


async def test_cancelled_send_is_sent_all_the_same(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await client.create_producer("t")
    sending = asyncio.create_task(producer.send(b"x"))
    (seen,) = await sent(fake)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    answer(seen, 0)
    await asyncio.wait_for(producer.flush(), 10)
    assert producer.last_sequence_id() == 0


async def test_enqueue_full_queue_raises_or_waits(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    impatient = await client.create_producer("t", max_pending_messages=1, batching_enabled=False)
    await impatient.enqueue(b"x")
    with pytest.raises(ProducerQueueIsFull):
        await impatient.enqueue(b"y")
    patient = await client.create_producer(
        "u", max_pending_messages=1, batching_enabled=False, block_if_queue_full=True
    )
    await patient.enqueue(b"x")
    waiting = asyncio.create_task(patient.enqueue(b"y"))
    _, first = await sent(fake, 2)
    # A request and its answer: the loop has had many turns since.
    await client.get_topic_partitions("t")
    assert not waiting.done()
    answer(first, 0)
    future = await asyncio.wait_for(waiting, 10)
    answer((await sent(fake, 3))[2], 1)
    assert (await future).entry_id() == 1


async def test_send_time_out_raises(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await client.create_producer("t", send_timeout_millis=50)
    with pytest.raises(Timeout, match="send_timeout_millis"):
        await producer.send(b"x")


async def test_send_bad_option_sends_nothing(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    with pytest.raises(InvalidMessage):
        await producer.send(b"x", sequence_id=-1)
    await producer.flush()
    assert not fake.seen(Kind.SEND)


async def test_send_options_reach_the_entry(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching_enabled=False)
    await producer.send(b"x", {"a": "1"}, partition_key=b"\x00", ordering_key="o", sequence_id=17, event_timestamp=5)
    found = parse_entry(fake.seen(Kind.SEND)[0].payload).metadata
    assert {pair.key: pair.value for pair in found.properties} == {"a": "1"}
    assert (found.partition_key, found.partition_key_b64_encoded, found.ordering_key) == ("AA==", True, b"o")
    assert (found.sequence_id, found.event_time) == (17, 5)


async def test_flush_waits_for_all_and_raises_failure(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    futures = [await producer.enqueue(b"%d" % number) for number in range(3)]
    await producer.flush()
    assert [future.result().batch_index() for future in futures] == [0, 1, 2]
    fake.answers[Kind.SEND] = swallow
    late = await client.create_producer("u", send_timeout_millis=50)
    lost = await late.enqueue(b"x")
    with pytest.raises(Timeout):
        await late.flush()
    assert isinstance(lost.exception(), Timeout)


async def test_send_many_of_async_source(fake: FakeBroker, client: Client) -> None:
    async def source() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d" % number

    producer = await client.create_producer("t", batching_enabled=True, batching_max_messages=2)
    progress: list[int] = []
    ids = await producer.send_many(source(), progress=progress.append)
    assert [(each.entry_id(), each.batch_index()) for each in ids][:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(ids) == 5 and progress[-1] == 5 and len(fake.seen(Kind.SEND)) == 3


async def test_send_many_waits_for_room(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching_enabled=True, batching_max_messages=2, max_pending_messages=2)
    ids = await asyncio.wait_for(producer.send_many([b"%d" % number for number in range(20)]), 10)
    assert len(ids) == 20


async def test_close_twice_raises_and_flush_too(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    await producer.close()
    for call in (producer.close, producer.flush):
        with pytest.raises(AlreadyClosed):
            await call()
    assert len(fake.seen(Kind.CLOSE_PRODUCER)) == 1
