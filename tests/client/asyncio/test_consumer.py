"""Consumer and reader of the asyncio API on a fake broker: waiting tasks, cancelled ones, acknowledgements."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_native import ConsumerBatchReceivePolicy, ConsumerType, MessageId
from pulsar_native.asyncio import Client
from pulsar_native.engine.handler import State
from pulsar_native.exceptions import (
    AlreadyClosed,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    InvalidMessage,
    Timeout,
)
from pulsar_native.interceptors import ConsumerInterceptor
from pulsar_native.message import Message
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.clock import LoopClock
from support.entry_bytes import batch_entry, single_entry
from support.fake_broker import MAXU, FakeBroker, Peer, delivery, failure, frame, success, swallow
from support.fake_schemas import (
    SCHEMA,
    WIDER,
    avro_entry,
    refuse_schema,
    schema_answer,
    serve_schema,
    wider_entry,
)
from support.fake_topic import FakeTopic
from support.until import until


async def started(consumer: Any, count: int = 1) -> None:
    """Wait until so many receivers wait."""
    await until(lambda: len(consumer._inner._waiters) == count)


async def test_receive_waits_in_order_of_arrival(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    consumer = await client.subscribe("t", "s")
    first = asyncio.create_task(consumer.receive())
    await started(consumer)
    second = asyncio.create_task(consumer.receive())
    await started(consumer, 2)
    topic.publish(b"a")
    assert (await asyncio.wait_for(first, 10)).data() == b"a" and not second.done()
    topic.publish(b"b")
    assert (await asyncio.wait_for(second, 10)).data() == b"b"


async def test_receive_cancelled_loses_no_message(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    consumer = await client.subscribe("t", "s")
    first = asyncio.create_task(consumer.receive())
    await started(consumer)
    second = asyncio.create_task(consumer.receive())
    await started(consumer, 2)
    first.cancel()
    topic.publish(b"a")
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await asyncio.wait_for(second, 10)).data() == b"a"


@pytest.mark.parametrize("queue", [1, 1000])
async def test_batch_receive_leaves_what_exceeds_the_bytes(fake: FakeBroker, client: Client, queue: int) -> None:
    FakeTopic(fake, *map(bytes, (4, 4, 4, 6, 11, 0, 1)))
    policy = ConsumerBatchReceivePolicy(-1, 10, 100)
    consumer = await client.subscribe("t", "s", batch_receive_policy=policy, receiver_queue_size=queue)
    batches = [await consumer.batch_receive() for _ in range(5)]
    sizes = [[len(message) for message in batch] for batch in batches]
    assert sizes == [[4, 4], [4, 6], [11], [0, 1], []]


async def test_batch_receive_of_more_than_the_queue_warns(
    fake: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    FakeTopic(fake, *([b"m"] * 7))
    policy = ConsumerBatchReceivePolicy(5, -1, 100)
    consumer = await client.subscribe("t", "s", batch_receive_policy=policy, receiver_queue_size=3)
    assert [len(await consumer.batch_receive()) for _ in range(4)] == [3, 3, 1, 0]
    assert [record.getMessage() for record in caplog.records if "batch receive policy is 5" in record.getMessage()]


@pytest.mark.parametrize("timeout", [0, 1, 30])
async def test_receive_time_out_leaves_no_waiter(fake: FakeBroker, client: Client, timeout: int) -> None:
    topic = FakeTopic(fake)
    consumer = await client.subscribe("t", "s")
    with pytest.raises(Timeout, match=f"No message within {timeout} ms"):
        await consumer.receive(timeout)
    assert not consumer._inner.has_waiters()  # type: ignore[attr-defined]
    topic.publish(b"late")
    assert (await consumer.receive(10_000)).data() == b"late"


async def test_iteration_ends_with_the_consumer(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a", b"b")
    consumer = await client.subscribe("t", "s")
    seen = []
    async for message in consumer:
        seen.append(message.data())
        if len(seen) == 2:
            await consumer.close()
    assert seen == [b"a", b"b"]
    with pytest.raises(AlreadyClosed):
        await consumer.receive()


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
async def test_batch_receive_cancelled_comes_next(fake: FakeBroker, client: Client, kind: ConsumerType) -> None:
    topic = FakeTopic(fake, b"in work")
    policy = ConsumerBatchReceivePolicy(5, 0, 60_000)
    consumer = await client.subscribe("t", "s", consumer_type=kind, batch_receive_policy=policy)
    await consumer.receive(10_000)
    topic.publish_entry(batch_entry([b"a", b"b", b"c"]))
    for _ in range(3):
        receiving = asyncio.create_task(consumer.batch_receive())
        await started(consumer)
        await until(lambda: not consumer.stats().msg_num_in_receiver_queue)
        await cancelled(receiving)
    assert [(await consumer.receive(10_000)).data() for _ in range(3)] == [b"a", b"b", b"c"]
    assert consumer.stats().msg_num_in_receiver_queue == 0
    await client.get_topic_partitions("another")
    assert not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)


@pytest.mark.parametrize(
    ("topic", "event", "kept"),
    [
        ("t", "redeliver", []),
        ("t", "seek", []),
        ("t", "reconnect", []),
        # Nobody delivers them again.
        ("non-persistent://public/default/t", "reconnect", [b"old"]),
    ],
)
async def test_batch_receive_drops_what_comes_again(
    fake: FakeBroker, client: Client, topic: str, event: str, kept: list[bytes]
) -> None:
    source = FakeTopic(fake)
    policy = ConsumerBatchReceivePolicy(5, 0, 60_000)
    consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.Shared, batch_receive_policy=policy)
    receiving = asyncio.create_task(consumer.batch_receive())
    await started(consumer)
    source.publish(b"old")
    await until(lambda: not consumer.stats().msg_num_in_receiver_queue and consumer._inner.dequeued_ids())
    if event == "redeliver":
        consumer.redeliver_unacknowledged_messages()
    elif event == "seek":
        await consumer.seek(MessageId.earliest)
    else:
        fake.peers[0].close()
        await until(lambda: len(fake.seen(Kind.FLOW)) == 2)
    (peer,) = fake.peers[-1:]
    peer.send(delivery(0, single_entry(b"new"), 7))
    await until(lambda: [each.entry_id() for each in consumer._inner.dequeued_ids()] == [7])
    await cancelled(receiving)
    left = [(await consumer.receive(10_000)).data() for _ in range(1 + len(kept))]
    assert left == [*kept, b"new"] and consumer.stats().msg_num_in_receiver_queue == 0


@pytest.mark.parametrize("batch", [True, False])
async def test_receive_cancelled_at_schema_fetch_comes_next(fake: FakeBroker, client: Client, batch: bool) -> None:
    topic = FakeTopic(fake)
    refuse_schema(fake, b"", 0)
    policy = ConsumerBatchReceivePolicy(3, 0, 10_000)
    consumer = await client.subscribe(
        "t", "s", consumer_type=ConsumerType.Shared, schema=SCHEMA, batch_receive_policy=policy
    )
    if batch:
        topic.publish_entry(avro_entry(0))
        assert (await consumer.receive(10_000)).value() == {"n": 0}
    answer, fake.answers[Kind.GET_SCHEMA] = fake.answers[Kind.GET_SCHEMA], swallow
    fetches = len(fake.seen(Kind.GET_SCHEMA))
    # The first message of the batch has a known schema, the second one has not.
    for number, version in ((1, b"\1"), (2, b"\2"), (3, b"\2")) if batch else ((1, b"\2"), (2, b"\2"), (3, b"\2")):
        topic.publish_entry(avro_entry(number, version))
    receiving = asyncio.ensure_future(consumer.batch_receive() if batch else consumer.receive())
    await until(lambda: len(fake.seen(Kind.GET_SCHEMA)) == fetches + 1)
    await cancelled(receiving)
    fake.answers[Kind.GET_SCHEMA] = answer
    assert [message.value()["n"] for message in await consumer.batch_receive()] == [1, 2, 3]
    assert not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)


@pytest.mark.parametrize(
    ("reads", "event", "kept"),
    [(True, "seek", 0), (True, "reconnect", 1), (False, "seek", 0), (False, "redeliver", 0), (False, "reconnect", 0)],
)
async def test_receive_cancelled_at_schema_fetch_dropped_as_queue(
    fake: FakeBroker, client: Client, reads: bool, event: str, kept: int
) -> None:
    topic = FakeTopic(fake)
    fake.answers[Kind.GET_SCHEMA] = swallow
    consumer: Any
    if reads:
        consumer = await client.create_reader("t", MessageId.earliest, schema=SCHEMA)
    else:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.Shared, schema=SCHEMA)
    receiving = asyncio.ensure_future(consumer.read_next() if reads else consumer.receive())
    await started(consumer)
    topic.publish_entry(avro_entry(0))
    await until(lambda: len(fake.seen(Kind.GET_SCHEMA)) == 1)
    # Each of them drops what is queued; only a reader's position is still before the message after a reconnection.
    if event == "seek":
        await consumer.seek(MessageId.earliest)
    elif event == "redeliver":
        consumer.redeliver_unacknowledged_messages()
    else:
        fake.peers[0].close()
        await until(lambda: len(fake.seen(Kind.SUBSCRIBE)) == 2 and consumer.is_connected())
    await cancelled(receiving)
    assert consumer.stats().msg_num_in_receiver_queue == kept


@pytest.mark.parametrize("reads", [False, True], ids=["consumer", "reader"])
async def test_schema_asked_again_after_reattachment(fake: FakeBroker, client: Client, reads: bool) -> None:
    # A topic that was deleted and made again has the same versions of another schema.
    topic = FakeTopic(fake)
    serve_schema(fake, SCHEMA)
    consumer: Any
    if reads:
        consumer = await client.create_reader("t", MessageId.earliest, schema=SCHEMA)
    else:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.Shared, schema=SCHEMA)
    receive = consumer.read_next if reads else consumer.receive
    topic.publish_entry(avro_entry(0))
    topic.publish_entry(avro_entry(1))
    held, queued = [await receive(10_000) for _ in range(2)]
    serve_schema(fake, WIDER)
    fake.peers[0].close()
    await until(lambda: len(fake.seen(Kind.FLOW)) == 2)
    fake.peers[-1].send(*(delivery(0, wider_entry(number), number) for number in (2, 3, 4)))
    assert [(await receive(10_000)).value()["n"] for _ in range(3)] == [2, 3, 4]
    # What was received before is read as it was written, also for the first time.
    assert (held.value(), queued.value()) == ({"n": 0}, {"n": 1})
    assert len(fake.seen(Kind.GET_SCHEMA)) == 2


async def test_schema_asked_once_for_all_partitions(fake: FakeBroker, client: Client) -> None:
    fake.partitions["persistent://public/default/t"] = 3
    serve_schema(fake, SCHEMA)
    consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.Shared, schema=SCHEMA)
    for attempt, entry_of, schema in ((1, avro_entry, SCHEMA), (2, wider_entry, WIDER)):
        serve_schema(fake, schema)
        await until(lambda count=attempt: len(fake.seen(Kind.FLOW)) == 3 * count)
        fake.peers[-1].send(*(delivery(number, entry_of(number), attempt) for number in range(3)))
        assert sorted([(await consumer.receive(10_000)).value()["n"] for _ in range(3)]) == [0, 1, 2]
        assert len(fake.seen(Kind.GET_SCHEMA)) == attempt
        fake.peers[-1].close()


async def test_schema_fetch_from_before_reattachment(fake: FakeBroker, client: Client) -> None:
    asked: list[pb.BaseCommand] = []
    fake.answers[Kind.GET_SCHEMA] = lambda _peer, command: asked.append(command) or ()
    consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.Shared, schema=SCHEMA)
    (peer,) = fake.peers
    await until(lambda: len(fake.seen(Kind.FLOW)) == 1)
    peer.send(delivery(0, avro_entry(0), 0))
    before = asyncio.create_task(consumer.receive())
    await until(lambda: len(asked) == 1)
    closed = pb.CommandCloseConsumer(consumer_id=0, request_id=MAXU)
    peer.send(frame(Kind.CLOSE_CONSUMER, close_consumer=closed))
    await until(lambda: len(fake.seen(Kind.FLOW)) == 2)
    peer.send(delivery(0, wider_entry(1), 1), delivery(0, wider_entry(2), 2))
    after = asyncio.create_task(consumer.receive())
    await until(lambda: len(asked) == 2)
    # The answer to the first request comes last, and is for its own message only.
    peer.send(schema_answer(asked[1], WIDER), schema_answer(asked[0], SCHEMA))
    messages = [await asyncio.wait_for(each, 10) for each in (after, before)]
    messages.append(await consumer.receive(10_000))
    assert [message.value()["n"] for message in messages] == [1, 0, 2] and len(asked) == 2


async def test_acknowledge_leaves_together(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake, *(b"%d" % number for number in range(6)))
    consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.Shared, acknowledgment_group_time_ms=20)
    messages = [await consumer.receive(10_000) for _ in range(6)]
    await consumer.acknowledge(messages[0])
    await consumer.acknowledge([messages[4], messages[5].message_id()])
    assert sorted(await asyncio.to_thread(topic.acknowledged, 3)) == [0, 4, 5]
    with pytest.raises(InvalidMessage):
        await consumer.acknowledge("no message")  # type: ignore[arg-type]
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        await consumer.acknowledge_cumulative(messages[3])


async def test_acknowledge_waits_for_its_receipt(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    asked: list[tuple[Peer, pb.CommandAck]] = []
    fake.answers[Kind.ACK] = lambda peer, command: asked.append((peer, command.ack)) or ()
    consumer = await client.subscribe("t", "s", ack_receipt_enabled=True)
    acknowledging = asyncio.create_task(consumer.acknowledge(await consumer.receive(10_000)))
    await until(lambda: asked)
    assert not acknowledging.done()
    ((peer, ack),) = asked
    answer = pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
    peer.send(frame(Kind.ACK_RESPONSE, ackResponse=answer))
    await asyncio.wait_for(acknowledging, 10)


async def test_reader_reads_to_the_end(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake, b"a", b"b")
    reader = await client.create_reader("t", MessageId.earliest)
    read = []
    while await reader.has_message_available():
        read.append((await reader.read_next(10_000)).data())
        assert len(read) < 5
    assert read == [b"a", b"b"]
    topic.publish(b"c")
    async for message in reader:
        assert message.data() == b"c"
        break


@pytest.mark.parametrize("way", ["batch", "arrow"])
async def test_strict_pause_puts_collected_messages_back(fake: FakeBroker, client: Client, way: str) -> None:
    topic = FakeTopic(fake)
    policy = ConsumerBatchReceivePolicy(3, 0, 60_000)
    consumer = await client.subscribe("t", "s", batch_receive_policy=policy)
    receive = (
        consumer.batch_receive if way == "batch" else lambda: consumer.receive_arrow(max_rows=3, timeout_millis=None)
    )
    receiving: asyncio.Task[Any] = asyncio.create_task(receive())
    await started(consumer)
    topic.publish(b"a")
    await until(lambda: consumer.stats().msg_num_in_receiver_queue == 0 and consumer._inner.dequeued_ids())
    consumer.pause(strict=True)
    topic.publish(b"b")
    for number in (b"c", b"d"):
        topic.publish(number)
    # A request and its answer keep their places: the messages have arrived.
    await client.get_topic_partitions("another")
    assert not receiving.done()
    consumer.resume()
    found = await asyncio.wait_for(receiving, 10)
    values = [each.data() for each in found] if way == "batch" else found.record_batch.column("value").to_pylist()
    assert values == [b"a", b"b", b"c"]
    assert (await consumer.receive(10_000)).data() == b"d"


async def test_receive_arrow_cancelled_loses_no_message(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake, b"a", b"b")
    consumer = await client.subscribe("t", "s")
    receiving = asyncio.create_task(consumer.receive_arrow(max_rows=3, timeout_millis=None))
    await until(lambda: len(consumer._inner.dequeued_ids()) and not consumer.stats().msg_num_in_receiver_queue)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    topic.publish(b"c")
    assert [(await consumer.receive(10_000)).data() for _ in range(3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("way", ["batch", "arrow"])
async def test_receive_topic_failed_keeps_messages(fake: FakeBroker, client: Client, way: str) -> None:
    FakeTopic(fake, b"a", b"b")
    policy = ConsumerBatchReceivePolicy(3, -1, -1)
    consumer = await client.subscribe(["t", "other"], "s", batch_receive_policy=policy)
    receiving = asyncio.create_task(
        consumer.batch_receive() if way == "batch" else consumer.receive_arrow(max_rows=3, timeout_millis=None)
    )
    await until(lambda: [each.entry_id() for each in consumer._inner.dequeued_ids()] == [1])
    first, second = consumer._inner.children
    failed, going = (second, first) if first.position.last_dequeued else (first, second)
    failed.state = State.FAILED
    failed.look_again()
    with pytest.raises(AlreadyClosed):
        await asyncio.wait_for(receiving, 10)
    # Nobody received them.
    assert going.queued_messages() == 2


async def unsubscribing(fake: FakeBroker, consumer: Any) -> tuple[asyncio.Task[None], Peer, list[pb.BaseCommand]]:
    """Begin to unsubscribe; return the task, and what the broker is still to answer."""
    fake.answers[Kind.UNSUBSCRIBE] = swallow
    pending = asyncio.create_task(consumer.unsubscribe())
    seen = await asyncio.to_thread(fake.wait, Kind.UNSUBSCRIBE, len(consumer._inner.children))
    return pending, seen[0].peer, [each.command for each in seen]


async def rejected(pending: asyncio.Task[None], peer: Peer, command: pb.BaseCommand) -> None:
    """Answer that other consumers are connected."""
    peer.send(failure(command.unsubscribe.request_id, pb.ConsumerBusy))
    with pytest.raises(ConsumerBusy):
        await asyncio.wait_for(pending, 10)


async def test_unsubscribe_rejected_iteration_goes_on(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    consumer = await client.subscribe("t", "s")
    got: list[bytes] = []

    async def iterate() -> None:
        async for message in consumer:
            got.append(message.data())

    iterating = asyncio.create_task(iterate())
    await started(consumer)
    pending, peer, (command,) = await unsubscribing(fake, consumer)
    topic.publish(b"a")
    await until(lambda: got == [b"a"])
    await rejected(pending, peer, command)
    topic.publish(b"b")
    await until(lambda: got == [b"a", b"b"] or iterating.done())
    await consumer.close()
    await asyncio.wait_for(iterating, 10)
    assert got == [b"a", b"b"]


@pytest.mark.parametrize("way", ["batch", "arrow"])
async def test_unsubscribe_rejected_cancelled_comes_next(fake: FakeBroker, client: Client, way: str) -> None:
    FakeTopic(fake, b"a", b"b")
    consumer = await client.subscribe("t", "s", batch_receive_policy=ConsumerBatchReceivePolicy(3, -1, -1))
    receiving = asyncio.create_task(
        consumer.batch_receive() if way == "batch" else consumer.receive_arrow(max_rows=3, timeout_millis=None)
    )
    await until(lambda: consumer._inner.dequeued_ids() and not consumer._inner.has_queued())
    pending, peer, (command,) = await unsubscribing(fake, consumer)
    await cancelled(receiving)
    await rejected(pending, peer, command)
    assert [(await consumer.receive(10_000)).data() for _ in range(2)] == [b"a", b"b"]


async def test_unsubscribe_of_one_partition_ends_no_wait(fake: FakeBroker, client: Client) -> None:
    fake.partitions["persistent://public/default/t"] = 2
    consumer = await client.subscribe("t", "s")
    first, second = consumer._inner.children
    receiving = asyncio.create_task(consumer.receive())
    await started(consumer)
    pending, peer, commands = await unsubscribing(fake, consumer)
    by_id = {each.unsubscribe.consumer_id: each for each in commands}
    peer.send(success(by_id[first.consumer_id].unsubscribe.request_id))
    await until(lambda: first.state is State.CLOSED)
    # It is not woken again and again either.
    await until(lambda: not consumer._inner.may_have_more())
    await rejected(pending, peer, by_id[second.consumer_id])
    peer.send(delivery(second.consumer_id, single_entry(b"a"), 0))
    assert (await asyncio.wait_for(receiving, 10)).data() == b"a"


async def test_unsubscribe_ends_waiting_receivers(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    consumer = await client.subscribe("t", "s")
    receiving = [asyncio.create_task(consumer.receive()) for _ in range(2)]
    await started(consumer, 2)
    await consumer.unsubscribe()
    for each in receiving:
        with pytest.raises(AlreadyClosed):
            await asyncio.wait_for(each, 10)


async def test_batch_receive_of_a_closed_consumer_raises(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    consumer = await client.subscribe("t", "s")
    await consumer.close()
    for receive in (consumer.batch_receive, consumer.receive_arrow):
        with pytest.raises(AlreadyClosed):
            await receive()  # type: ignore[operator]


async def test_acknowledge_without_receipt_times_out(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    FakeTopic(fake, b"a")
    fake.answers[Kind.ACK] = swallow
    consumer = await client.subscribe("t", "s", ack_receipt_enabled=True)
    acknowledging = asyncio.create_task(consumer.acknowledge(await consumer.receive(10_000)))
    await asyncio.to_thread(fake.wait, Kind.ACK)
    # The client's operation time-out is 5 s.
    await clock.advance(4)
    assert not acknowledging.done()
    await clock.advance(4)
    with pytest.raises(Timeout):
        await asyncio.wait_for(acknowledging, 10)


async def test_arrival_base_exception_keeps_message(fake: FakeBroker, client: Client) -> None:
    class OwnError(BaseException):
        pass

    class Raising(ConsumerInterceptor):
        def on_arrival(self, consumer: object, message: Message) -> Message:
            raise OwnError

    FakeTopic(fake, b"first", b"second")
    consumer = await client.subscribe("t", "s", interceptors=[Raising()])
    assert [(await consumer.receive(10_000)).data() for _ in range(2)] == [b"first", b"second"]
