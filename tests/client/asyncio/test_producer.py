"""Producer of the asyncio API on a fake broker: futures, cancelled tasks, back-pressure, and what is raised."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextvars import ContextVar
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from pulsar_native import _message_builder
from pulsar_native.asyncio import Client, Producer
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.engine.transaction import SendOperation
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, InvalidMessage, ProducerQueueIsFull, Timeout
from pulsar_native.interceptors import ProducerInterceptor
from pulsar_native.message import OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.schema import StringSchema
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.encodes_to import EncodesTo, ReadsFiles
from support.fake_broker import FakeBroker, Seen, receipt, registry, swallow


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


def four_sends(producer: Producer[bytes]) -> list[Coroutine[Any, Any, MessageId]]:
    """Call `send` for messages of each kind, without awaiting them."""
    return [
        producer.send(b"0"), producer.send(b"1", {"a": "1"}), producer.send(b"2"),
        producer.send(b"3", partition_key="k"),
    ]  # fmt: skip


def payloads(fake: FakeBroker) -> list[bytes]:
    """Return the payloads of the entries sent so far."""
    return [bytes(parse_entry(seen.payload).body) for seen in fake.seen(Kind.SEND)]


async def test_send_gathered_to_full_queue_raises(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching_enabled=False, max_pending_messages=4)
    calls = four_sends(producer)
    with pytest.raises(ProducerQueueIsFull):
        await producer.send(b"4")
    ids = await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert len(set(ids)) == len(ids) == 4 and payloads(fake) == [b"0", b"1", b"2", b"3"]


async def test_send_gathered_blocking_keeps_order_of_calls(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer(
        "t", batching_enabled=False, max_pending_messages=2, block_if_queue_full=True
    )
    ids = await asyncio.wait_for(asyncio.gather(*four_sends(producer), producer.send(b"4")), 10)
    assert len(set(ids)) == len(ids) == 5 and payloads(fake) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("options", [{}, {"properties": {"a": "b"}}, {"ordering_key": "o"}], ids=["plain", "p", "o"])
async def test_send_behind_waiting_ones_keeps_order(fake: FakeBroker, client: Client, options: dict[str, Any]) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await client.create_producer(
        "t", batching_enabled=False, max_pending_messages=1, block_if_queue_full=True
    )
    first = await producer.enqueue(b"0")
    calls = [producer.send(b"1"), producer.send(b"2", **options)]
    # Called when there is capacity, which those that wait have not used yet.
    first.add_done_callback(lambda _: calls.append(producer.send(b"3")))
    for number in range(4):
        answer((await sent(fake, number + 1))[number], number)
    ids = await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert [message_id.entry_id() for message_id in ids] == [1, 2, 3]
    assert payloads(fake) == [b"0", b"1", b"2", b"3"]


async def test_send_waiting_interceptor_sees_context_of_call(client: Client) -> None:
    trace: ContextVar[bytes] = ContextVar("trace", default=b"none")
    seen: list[tuple[bytes, bytes]] = []

    class Tracing(ProducerInterceptor):
        def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
            seen.append((message.payload, trace.get()))
            return message

    async def send(number: int) -> None:
        trace.set(b"%d" % number)
        await producer.send(b"%d" % number)

    producer = await client.create_producer(
        "t", interceptors=[Tracing()], batching_enabled=False, max_pending_messages=1, block_if_queue_full=True
    )
    await asyncio.wait_for(asyncio.gather(*(send(number) for number in range(6))), 10)
    assert seen == [(b"%d" % number, b"%d" % number) for number in range(6)]


async def test_send_waiting_cancelled_passes_capacity_on(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await client.create_producer(
        "t", batching_enabled=False, max_pending_messages=1, block_if_queue_full=True
    )
    first = await producer.enqueue(b"0")
    cancelled, woken, last = (asyncio.create_task(producer.send(b"%d" % number)) for number in range(1, 4))
    await asyncio.sleep(0)
    cancelled.cancel()
    # Cancelled when there is capacity for it.
    first.add_done_callback(lambda _: woken.cancel())
    answer((await sent(fake))[0], 0)
    answer((await sent(fake, 2))[1], 1)
    assert (await asyncio.wait_for(last, 10)).entry_id() == 1
    assert cancelled.cancelled() and woken.cancelled() and payloads(fake) == [b"0", b"3"]


async def test_send_waiting_raises_after_close(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SEND] = swallow
    producer = await client.create_producer(
        "t", batching_enabled=False, max_pending_messages=1, block_if_queue_full=True
    )
    calls = [producer.send(b"%d" % number) for number in range(4)]
    await sent(fake)
    await producer.close(0)
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert [type(outcome) for outcome in outcomes] == [AlreadyClosed] * 4 and payloads(fake) == [b"0"]


@pytest.mark.parametrize("partitions", [0, 2])
async def test_send_waiting_tried_once_per_receipt(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    fake.partitions["persistent://public/default/t"] = partitions
    tries: list[None] = []
    enqueue = PartitionProducer.enqueue

    def counted(*given: Any, **options: Any) -> Any:
        tries.append(None)
        return enqueue(*given, **options)

    monkeypatch.setattr(PartitionProducer, "enqueue", counted)
    producer = await client.create_producer(
        "t", batching_enabled=False, max_pending_messages=1, block_if_queue_full=True
    )
    await asyncio.wait_for(asyncio.gather(*(producer.send(b"%d" % number) for number in range(50))), 10)
    # The one that is queued, and the next one, which finds the queue full.
    assert len(tries) <= 2 * 50 and len(payloads(fake)) == 50


async def test_send_gathered_makes_no_tasks(client: Client) -> None:
    producer = await client.create_producer("t", batching_enabled=True)
    before = asyncio.all_tasks()
    gathered = asyncio.gather(*(producer.send(b"%d" % number) for number in range(100)))
    assert asyncio.all_tasks() == before
    assert [message_id.batch_index() for message_id in await gathered] == list(range(100))


@pytest.mark.parametrize("options", [{}, {"partition_key": "k"}, {"sequence_id": -1}, {"properties": 5}])
async def test_send_raises_when_awaited(client: Client, options: dict[str, Any]) -> None:
    producer: Any = await client.create_producer("t", batching_enabled=True)
    # The first message opens a batch: the others take the shortest way.
    good = producer.send(b"x")
    bad = producer.send("no bytes" if options.keys() <= {"partition_key"} else b"x", **options)
    outcomes = await asyncio.gather(good, bad, return_exceptions=True)
    assert outcomes[0].entry_id() == 0 and isinstance(outcomes[1], TypeError | InvalidMessage)


async def test_send_of_closed_producer_raises_when_awaited(client: Client) -> None:
    producer = await client.create_producer("t")
    await producer.close()
    call = producer.send(b"x")
    with pytest.raises(AlreadyClosed):
        await call


async def test_send_of_another_thread_is_queued_by_the_loop(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    loop, calls = asyncio.get_running_loop(), list[Coroutine[Any, Any, Any]]()
    thread = threading.Thread(target=lambda: calls.append(producer.send(b"x")))
    thread.start()
    await asyncio.to_thread(thread.join, 10)
    await producer.flush()
    assert not fake.seen(Kind.SEND)
    waiting = asyncio.run_coroutine_threadsafe(calls[0], loop)
    assert (await asyncio.to_thread(waiting.result, 10)).entry_id() == 0


async def test_send_of_new_schema_called_outside_of_a_task(fake: FakeBroker, client: Client) -> None:
    registry(fake, b"1")
    producer = await client.create_producer("t", batching_enabled=True)
    calls: list[Coroutine[Any, Any, Any]] = []
    # Its first step is the loop's, not one of the task that awaits it.
    asyncio.get_running_loop().call_soon(lambda: calls.append(producer.send("x", schema=StringSchema())))
    await asyncio.sleep(0)
    assert (await asyncio.wait_for(calls[0], 10)).entry_id() == 0


async def test_send_to_full_queue_dropped_leaves_transaction(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers[Kind.SEND] = swallow
    producer: Any = await client.create_producer(
        "t", max_pending_messages=1, batching_enabled=False, block_if_queue_full=True
    )
    left: list[None] = []

    class Counting(SendOperation):
        def __init__(self) -> None:
            pass

        def withdraw(self) -> None:
            left.append(None)

    monkeypatch.setattr(_message_builder, "into_transaction", lambda *_: Counting())
    await producer.enqueue(b"0")
    call = producer.send(b"1", txn=object())
    assert not left
    call.close()
    del call
    gc.collect()
    assert len(left) == 1


async def test_send_is_known_as_coroutine_function(client: Client) -> None:
    producer = await client.create_producer("t")
    # asyncio's is deprecated from Python 3.14 on; that of inspect has no mark before 3.12.
    is_known = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    assert is_known(Producer.send) and is_known(producer.send)
    assert isinstance(MagicMock(spec=Producer).send, AsyncMock)
    assert list(inspect.signature(producer.send).parameters)[:2] == ["content", "properties"]


async def test_send_options_reach_the_entry(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", batching_enabled=False)
    await producer.send(b"x", {"a": "1"}, partition_key=b"\x00", ordering_key="o", sequence_id=17, event_timestamp=5)
    found = parse_entry(fake.seen(Kind.SEND)[0].payload).metadata
    assert {pair.key: pair.value for pair in found.properties} == {"a": "1"}
    assert (found.partition_key, found.partition_key_b64_encoded, found.ordering_key) == ("AA==", True, b"o")
    assert (found.sequence_id, found.event_time) == (17, 5)


async def test_send_of_bytes_like_payload_of_a_schema(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", schema=EncodesTo(bytearray(b"xyz")), batching_enabled=True)
    ids = await asyncio.wait_for(asyncio.gather(*(producer.send(b"") for _ in range(3))), 10)
    assert len(set(ids)) == 3 and bytes(parse_entry(fake.seen(Kind.SEND)[0].payload).body).count(b"xyz") == 3


async def test_send_encodes_each_content_once(fake: FakeBroker, client: Client) -> None:
    producer: Any = await client.create_producer("t", schema=ReadsFiles(), batching_enabled=True)
    contents = [b"first", b"second", b"array", b"third", b"x" * 150_000, b"last"]
    calls = [
        producer.send(io.BytesIO(content), {"a": "b"} if number % 2 else None)
        for number, content in enumerate(contents)
    ]
    broken = producer.send(Mock(read=Mock(side_effect=[OSError("gone"), b"again"])))
    await asyncio.wait_for(asyncio.gather(*calls), 10)
    with pytest.raises(OSError, match="gone"):
        await broken
    found = b"".join(bytes(parse_entry(seen.payload).body) for seen in fake.seen(Kind.SEND))
    assert [found.count(content) for content in contents] == [1] * len(contents) and b"again" not in found


@pytest.mark.parametrize("schema", ["text", StringSchema], ids=["str", "class"])
async def test_send_schema_of_wrong_type_refused(fake: FakeBroker, client: Client, schema: Any) -> None:
    producer = await client.create_producer("t")
    for send in (producer.send, producer.enqueue):
        with pytest.raises(InvalidConfiguration, match="schema must be a Schema, such as StringSchema"):
            await send("x", schema=schema)
    await producer.flush()
    assert not fake.seen(Kind.SEND)


async def test_send_of_no_payload_of_a_schema_refused(fake: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t", schema=EncodesTo("text"), batching_enabled=True)
    calls = [producer.send(b""), producer.send(b"", {"a": "1"}), producer.send_many([b""])]
    for outcome in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10):
        assert isinstance(outcome, InvalidRecord) and "The payload of EncodesTo must be bytes, not str" in str(outcome)
    await producer.flush()
    assert not fake.seen(Kind.SEND)


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


class OwnError(BaseException):
    """An error outside Exception, as those of test frameworks are."""


class RaisingInterceptor(ProducerInterceptor):
    """An interceptor that fails when it is notified."""

    def on_send_acknowledgement(self, *_: object) -> None:
        raise OwnError

    def close(self) -> None:
        raise OwnError


@pytest.mark.parametrize("count", [1, 3])
async def test_interceptor_base_exception_ends_no_send(fake: FakeBroker, client: Client, count: int) -> None:
    producer = await client.create_producer("t", interceptors=[RaisingInterceptor(), RaisingInterceptor()])
    sends = asyncio.gather(*(producer.send(b"x") for _ in range(count)))
    assert len(await asyncio.wait_for(sends, 10)) == count
    await producer.close()


async def test_interceptor_base_exception_in_call_raises(fake: FakeBroker, client: Client) -> None:
    class Refusing(ProducerInterceptor):
        def before_send(self, producer: object, message: OutgoingMessage) -> OutgoingMessage:
            raise OwnError

    producer = await client.create_producer("t", interceptors=[Refusing()])
    with pytest.raises(OwnError):
        await producer.send(b"x")
