"""Consumer and reader of the sync API on a fake broker: waiting, listeners, acknowledgements with receipts."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import Client, Consumer, ConsumerBatchReceivePolicy, ConsumerType, Message, MessageId, Reader
from pulsar_native.engine.client import ClientCore
from pulsar_native.exceptions import (
    AlreadyClosed,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    Interrupted,
    InvalidConfiguration,
    InvalidMessage,
    NotAllowedError,
    OperationNotSupported,
    Timeout,
)
from pulsar_native.sync import consumer as sync_consumer
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Peer, delivery, failure, frame, swallow
from support.fake_schemas import SCHEMA, WIDER, avro_entry, refuse_schema, serve_schema, wider_entry
from support.fake_topic import FakeTopic
from support.other_thread import OWN_ERRORS, Own
from support.until import wait_until


@pytest.fixture
def client(fake: FakeBroker) -> Iterator[Client]:
    """Give a client of the fake broker."""
    with Client(fake.url, operation_timeout_seconds=5) as made:
        yield made


def waiting(consumer: Any) -> bool:
    """Return True while a receiver waits."""
    return bool(consumer._inner.has_waiters())


def test_receive_waits_in_order_of_arrival(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    consumer = client.subscribe("t", "s")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(consumer.receive, 10_000)
        wait_until(lambda: waiting(consumer))
        second = threads.submit(consumer.receive, 10_000)
        wait_until(lambda: len(consumer._inner._waiters) == 2)
        topic.publish(b"a")
        assert first.result(10).data() == b"a" and not second.done()
        topic.publish(b"b")
        assert second.result(10).data() == b"b"


def test_receive_leaves_message_to_earlier_waiter(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    consumer = client.subscribe("t", "s")
    woken = threading.Event()
    # A receiver that is woken and has not dequeued yet.
    consumer._inner.wait_then(woken.set)
    topic.publish(b"a")
    assert woken.wait(10)
    with pytest.raises(Timeout):
        consumer.receive(1)
    consumer._inner.forget_wait(woken.set)
    assert consumer.receive(10_000).data() == b"a"


@pytest.mark.parametrize("timeout", [0, 1, 30])
def test_receive_time_out_raises_and_leaves_no_waiter(fake: FakeBroker, client: Client, timeout: int) -> None:
    topic = FakeTopic(fake)
    consumer = client.subscribe("t", "s")
    with pytest.raises(Timeout, match=f"No message within {timeout} ms"):
        consumer.receive(timeout)
    assert not waiting(consumer)
    topic.publish(b"late")
    assert consumer.receive(10_000).data() == b"late"


@pytest.mark.parametrize("timeout", ["1", 1.5j, True])
def test_receive_bad_time_out_refused(fake: FakeBroker, client: Client, timeout: Any) -> None:
    FakeTopic(fake, b"there")
    consumer = client.subscribe("t", "s")
    wait_until(lambda: consumer.stats().msg_num_in_receiver_queue)
    with pytest.raises((InvalidConfiguration, TypeError, ValueError)):
        consumer.receive(timeout)
    assert consumer.receive(10_000).data() == b"there"


def test_receive_ends_when_consumer_is_closed(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    consumer = client.subscribe("t", "s")
    with ThreadPoolExecutor(1) as threads:
        receiving = threads.submit(consumer.receive)
        wait_until(lambda: waiting(consumer))
        consumer.close()
        with pytest.raises(AlreadyClosed):
            receiving.result(10)
    consumer.close()
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1


def test_batch_receive_full_or_due(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake, b"a", b"b", b"c")
    consumer = client.subscribe("t", "s", batch_receive_policy=ConsumerBatchReceivePolicy(2, 0, 60_000))
    assert [message.data() for message in consumer.batch_receive()] == [b"a", b"b"]
    with ThreadPoolExecutor(1) as threads:
        receiving = threads.submit(consumer.batch_receive)
        wait_until(lambda: waiting(consumer))
        topic.publish(b"d")
        assert [message.data() for message in receiving.result(10)] == [b"c", b"d"]
    soon = client.subscribe("other", "s", batch_receive_policy=ConsumerBatchReceivePolicy(2, 0, 20))
    assert soon.batch_receive() == []


@pytest.mark.parametrize("queue", [0, 1, 1000])
@pytest.mark.parametrize("reads", [True, False])
def test_receive_schema_fetch_failed_comes_next(fake: FakeBroker, client: Client, reads: bool, queue: int) -> None:
    topic = FakeTopic(fake)
    refuse_schema(fake, b"\1")
    consumer: Any
    if reads:
        consumer = client.create_reader("t", MessageId.earliest, schema=SCHEMA, receiver_queue_size=queue)
        receive = consumer.read_next
    else:
        consumer = client.subscribe(
            "t", "s", schema=SCHEMA, receiver_queue_size=queue, unacked_messages_timeout_ms=10_000
        )
        receive = consumer.receive
    with ThreadPoolExecutor(1) as threads:
        receiving = threads.submit(receive, 10_000)
        wait_until(lambda: waiting(consumer))
        for number in range(3):
            topic.publish_entry(avro_entry(number))
        with pytest.raises(NotAllowedError):
            receiving.result(10)
    (child,) = consumer._inner.children
    assert not child.acks.unacked and consumer._inner.dequeued_ids() in ([], [MessageId(-1, 1, 0, topic="t")])
    assert [receive(10_000).value()["n"] for _ in range(3)] == [0, 1, 2]


def test_batch_receive_schema_fetch_failed_comes_next(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    refuse_schema(fake, b"\2")
    policy = ConsumerBatchReceivePolicy(4, 0, 60_000)
    consumer = client.subscribe("t", "s", schema=SCHEMA, batch_receive_policy=policy)
    for number, version in enumerate((b"\1", b"\1", b"\2", b"\1")):
        topic.publish_entry(avro_entry(number, version))
    with pytest.raises(NotAllowedError):
        consumer.batch_receive()
    assert [message.value()["n"] for message in consumer.batch_receive()] == [0, 1, 2, 3]


@pytest.mark.parametrize("queue", [1, 1000])
def test_batch_receive_leaves_what_exceeds_the_bytes(fake: FakeBroker, client: Client, queue: int) -> None:
    FakeTopic(fake, *map(bytes, (4, 4, 4, 6, 11, 0, 1)))
    policy = ConsumerBatchReceivePolicy(-1, 10, 100)
    consumer = client.subscribe("t", "s", batch_receive_policy=policy, receiver_queue_size=queue)
    batches = [consumer.batch_receive() for _ in range(5)]
    sizes = [[len(message) for message in batch] for batch in batches]
    assert sizes == [[4, 4], [4, 6], [11], [0, 1], []]


def test_acknowledge_leaves_together(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake, *(b"%d" % number for number in range(6)))
    consumer = client.subscribe("t", "s", consumer_type=ConsumerType.Shared, acknowledgment_group_time_ms=20)
    messages = [consumer.receive(10_000) for _ in range(6)]
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2].message_id())
    consumer.acknowledge([messages[4], messages[5].message_id()])
    assert sorted(topic.acknowledged(4)) == [0, 2, 4, 5]
    with pytest.raises(InvalidMessage):
        consumer.acknowledge("no message")  # type: ignore[arg-type]
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(messages[3])


def test_acknowledge_waits_for_its_receipt(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    asked: list[tuple[Peer, pb.CommandAck]] = []
    fake.answers[Kind.ACK] = lambda peer, command: asked.append((peer, command.ack)) or ()
    consumer = client.subscribe("t", "s", ack_receipt_enabled=True)
    message = consumer.receive(10_000)
    with ThreadPoolExecutor(1) as threads:
        acknowledging = threads.submit(consumer.acknowledge, message)
        fake.wait(Kind.ACK)
        assert not acknowledging.done()
        ((peer, ack),) = asked
        answer = pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
        peer.send(frame(Kind.ACK_RESPONSE, ackResponse=answer))
        acknowledging.result(10)


@pytest.mark.parametrize("kind", [KeyError, SystemExit, asyncio.CancelledError, *OWN_ERRORS])
def test_listener_gets_messages_and_may_acknowledge(
    fake: FakeBroker, client: Client, kind: type[BaseException]
) -> None:
    topic = FakeTopic(fake, b"a", b"b")
    seen: list[tuple[bytes, str]] = []

    def listener(consumer: Consumer, message: Message) -> None:
        seen.append((message.data(), threading.current_thread().name))
        consumer.acknowledge(message)
        if message.data() == b"a":
            raise kind("of the application: the next message comes all the same")

    consumer = client.subscribe("t", "s", message_listener=listener, acknowledgment_group_time_ms=0)
    assert topic.acknowledged(2) == [0, 1]
    assert [data for data, _ in seen] == [b"a", b"b"] and {"MainThread"}.isdisjoint(name for _, name in seen)
    with pytest.raises(InvalidConfiguration, match="message_listener"):
        consumer.receive()
    with pytest.raises(InvalidConfiguration, match="message_listener"):
        consumer.batch_receive()


class Inline:
    """An executor that runs each call at once."""

    def execute(self, _message: Message, runnable: Callable[[], None]) -> None:
        runnable()


class Pooled:
    """An executor with a thread of its own; it rejects a call with an exception of the application's own."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)

    def execute(self, message: Message, runnable: Callable[[], None]) -> None:
        if message.data() == b"rejected":
            raise Own
        self.pool.submit(runnable)


@pytest.mark.parametrize("executor", [Inline, Pooled])
def test_listener_executor_error_of_any_class(
    fake: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture, executor: type[Inline | Pooled]
) -> None:
    FakeTopic(fake, b"rejected", b"a", b"b")
    seen: list[bytes] = []

    def listener(_consumer: Consumer, message: Message) -> None:
        seen.append(message.data())
        raise Own

    # One at a time: a call that was not counted as ended would be the last.
    client.subscribe("t", "s", message_listener=listener, message_listener_executor=executor(), receiver_queue_size=1)
    wait_until(lambda: len(re.findall(r"The message listener(?: executor)? of consumer", caplog.text)) == 3)
    assert seen[-2:] == [b"a", b"b"] and not fake.seen(Kind.ACK)


def test_reader_listener_error_of_any_class(fake: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    FakeTopic(fake, b"a", b"b")
    seen: list[bytes] = []

    def listener(_reader: Reader, message: Message) -> None:
        seen.append(message.data())
        raise Own

    client.create_reader("t", MessageId.earliest, reader_listener=listener)
    wait_until(lambda: caplog.text.count("The message listener of consumer") == 2)
    assert seen == [b"a", b"b"]


@pytest.mark.parametrize("times", [1, 2])
def test_listener_schema_fetch_failed_retries(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    monkeypatch.setattr(sync_consumer, "_RETRY_SECONDS", 0.01)
    topic = FakeTopic(fake)
    refuse_schema(fake, b"\1", times)
    seen: list[int] = []
    client.subscribe("t", "s", schema=SCHEMA, message_listener=lambda _, message: seen.append(message.value()["n"]))
    for number in range(3):
        topic.publish_entry(avro_entry(number))
    wait_until(lambda: len(seen) == 3)
    assert seen == [0, 1, 2] and len(fake.seen(Kind.GET_SCHEMA)) == times + 1
    assert caplog.text.count("Cannot fetch the writer's schema") == times


async def _coroutine_function(*_arguments: Any) -> None:
    """Stand for a listener that would have to be awaited."""


@pytest.mark.parametrize(("listener", "said"), [(_coroutine_function, "not a coroutine"), (5, "not int")])
def test_listener_unusable_refused(fake: FakeBroker, client: Client, listener: Any, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"^message_listener must be a .*{said}"):
        client.subscribe("t", "s", message_listener=listener)
    with pytest.raises(InvalidConfiguration, match=f"^reader_listener must be a .*{said}"):
        client.create_reader("t", MessageId.earliest, reader_listener=listener)
    assert not fake.seen(Kind.SUBSCRIBE)


def test_listener_error_after_topic_removed_logged(
    fake: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    FakeTopic(fake, b"a")

    def listener(consumer: Consumer, _message: Message) -> None:
        inner = consumer._inner
        inner.client.engine.run(inner.subscriptions.remove_topic(next(iter(inner.topics))))
        raise Own("of the application")

    consumer = client.subscribe("t", "s", message_listener=listener)
    wait_until(lambda: caplog.records)
    assert f"The message listener of consumer {consumer.consumer_name()}" in caplog.text
    assert "of the application" in caplog.text and "cannot deliver" not in caplog.text


def test_listener_paused_and_resumed(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake, b"a")
    seen: list[bytes] = []
    consumer = client.subscribe("t", "s", message_listener=lambda _consumer, message: seen.append(message.data()))
    wait_until(lambda: seen == [b"a"])
    consumer.pause_message_listener()
    topic.publish(b"b")
    wait_until(lambda: consumer.stats().msg_num_in_receiver_queue == 1)
    assert seen == [b"a"]
    consumer.resume_message_listener()
    wait_until(lambda: seen == [b"a", b"b"])


def test_pause_message_listener_without_one_refused(fake: FakeBroker, client: Client) -> None:
    consumer = client.subscribe("t", "s")
    for method in (consumer.pause_message_listener, consumer.resume_message_listener):
        with pytest.raises(InvalidConfiguration, match=r"to stop receiving, use pause\(\) and resume\(\)"):
            method()


def reject_unsubscribe(peer: Peer, command: pb.BaseCommand) -> list[bytes]:
    """Answer as a broker that has other consumers of the subscription."""
    return [failure(command.unsubscribe.request_id, pb.ConsumerBusy)]


@pytest.mark.parametrize("paused", [False, True], ids=["listening", "paused"])
def test_unsubscribe_rejected_listener_goes_on(fake: FakeBroker, client: Client, paused: bool) -> None:
    topic = FakeTopic(fake, b"a")
    fake.answers[Kind.UNSUBSCRIBE] = reject_unsubscribe
    seen: list[bytes] = []
    consumer = client.subscribe("t", "s", message_listener=lambda _consumer, message: seen.append(message.data()))
    wait_until(lambda: seen == [b"a"])
    if paused:
        consumer.pause_message_listener()
    with pytest.raises(ConsumerBusy):
        consumer.unsubscribe()
    # An application need not keep what listens.
    assert consumer in client._kept
    topic.publish(b"b")
    if paused:
        # Behind the message's arrival, and then behind what the listener's thread does at it.
        client.get_topic_partitions("another")
        passed = threading.Event()
        consumer._submit(passed.set)  # type: ignore[misc]
        assert passed.wait(10) and seen == [b"a"]
        consumer.resume_message_listener()
    wait_until(lambda: seen == [b"a", b"b"])


class Delayed:
    """An executor that runs calls when the test wants it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def execute(self, _message: Message, runnable: Callable[[], None]) -> None:
        self.calls.append(runnable)


def test_unsubscribe_rejected_keeps_executor_message(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    fake.answers[Kind.UNSUBSCRIBE] = swallow
    executor, seen = Delayed(), list[bytes]()
    consumer = client.subscribe(
        "t", "s",
        message_listener=lambda _consumer, message: seen.append(message.data()),
        message_listener_executor=executor,
    )  # fmt: skip
    wait_until(lambda: executor.calls)
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(consumer.unsubscribe)
        (asked,) = fake.wait(Kind.UNSUBSCRIBE)
        # It may not begin now, and puts its message back.
        executor.calls.pop()()
        assert not seen
        asked.peer.send(*reject_unsubscribe(asked.peer, asked.command))
        with pytest.raises(ConsumerBusy):
            pending.result(10)
    wait_until(lambda: executor.calls)
    executor.calls.pop()()
    assert seen == [b"a"]


def test_unsubscribe_rejected_without_listener_not_kept(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.UNSUBSCRIBE] = reject_unsubscribe
    consumer = client.subscribe("t", "s")
    with pytest.raises(ConsumerBusy):
        consumer.unsubscribe()
    assert consumer not in client._kept


WAYS: dict[str, Callable[[Consumer], list[bytes]]] = {
    "receive": lambda consumer: [consumer.receive().data() for _ in range(4)],
    "batch": lambda consumer: [message.data() for message in consumer.batch_receive()],
    "arrow": lambda consumer: list(
        consumer.receive_arrow(max_rows=4, timeout_millis=None).record_batch.column("value").to_pylist()
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_unsubscribe_rejected_receiver_waits_on(fake: FakeBroker, client: Client, way: str) -> None:
    topic = FakeTopic(fake, b"a", b"b")
    fake.answers[Kind.UNSUBSCRIBE] = swallow
    consumer = client.subscribe("t", "s", batch_receive_policy=ConsumerBatchReceivePolicy(4, -1, -1))
    with ThreadPoolExecutor(2) as threads:
        receiving = threads.submit(WAYS[way], consumer)
        wait_until(lambda: waiting(consumer) or receiving.done())
        pending = threads.submit(consumer.unsubscribe)
        (asked,) = fake.wait(Kind.UNSUBSCRIBE)
        topic.publish(b"c")
        wait_until(lambda: [each.entry_id() for each in consumer._inner.dequeued_ids()] == [2])
        wait_until(lambda: waiting(consumer) or receiving.done())
        asked.peer.send(*reject_unsubscribe(asked.peer, asked.command))
        with pytest.raises(ConsumerBusy):
            pending.result(10)
        topic.publish(b"d")
        assert receiving.result(10) == [b"a", b"b", b"c", b"d"]


def test_receipt_waited_for_in_callback_refused(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    consumer = client.subscribe("t", "s", ack_receipt_enabled=True)
    message = consumer.receive(10_000)
    producer = client.create_producer("other")
    raised: list[type[Exception]] = []
    done = threading.Event()

    def callback(_result: object, _place: MessageId) -> None:
        try:
            consumer.acknowledge(message)
        except OperationNotSupported as error:
            raised.append(type(error))
        done.set()

    producer.send_async(b"x", callback)
    assert done.wait(10) and raised == [OperationNotSupported]


def test_receive_in_callback_refused(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a", b"b")
    policy = ConsumerBatchReceivePolicy(3, -1, -1)
    consumer = client.subscribe("t", "s", batch_receive_policy=policy)
    wait_until(lambda: consumer.stats().msg_num_in_receiver_queue == 2)
    producer = client.create_producer("other")
    raised: list[type[Exception]] = []
    done = threading.Event()

    def callback(_result: object, _place: MessageId) -> None:
        calls = (consumer.batch_receive, consumer.receive, consumer.receive, consumer.receive)
        for call in (*calls, lambda: consumer.receive(10_000), lambda: consumer.receive_arrow(timeout_millis=None)):
            try:
                call()
            except (OperationNotSupported, Timeout) as error:
                raised.append(type(error))
        done.set()

    producer.send_async(b"x", callback)
    # Two messages are there: what the batch had collected stays queued for the next calls, which need not wait.
    assert done.wait(10) and raised == [OperationNotSupported] * 4
    assert consumer.stats().num_msgs_received == 2


@pytest.mark.parametrize("way", ["batch", "arrow"])
def test_receive_interrupted_keeps_messages(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    FakeTopic(fake, b"a", b"b")
    consumer = client.subscribe("t", "s", batch_receive_policy=ConsumerBatchReceivePolicy(3, -1, -1))
    wait_until(lambda: consumer.stats().msg_num_in_receiver_queue == 2)

    def interrupted(*_: object) -> bool:
        raise Interrupted("The call was interrupted")

    with monkeypatch.context() as patched:
        patched.setattr(sync_consumer.Wait, "wait", interrupted)
        with pytest.raises(Interrupted):
            WAYS[way](consumer)
    assert [consumer.receive(5000).data() for _ in range(2)] == [b"a", b"b"]


def test_negative_acknowledge_redelivers_after_delay(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    consumer = client.subscribe("t", "s", consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=1)
    consumer.negative_acknowledge(consumer.receive(10_000))
    (asked,) = fake.wait(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert [place.entryId for place in asked.command.redeliverUnacknowledgedMessages.message_ids] == [0]


def test_reader_reads_to_the_end(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake, b"a", b"b")
    reader = client.create_reader("t", MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(10_000).data())
        assert len(read) < 5
    assert read == [b"a", b"b"]
    topic.publish(b"c")
    assert reader.has_message_available() and reader.read_next(10_000).data() == b"c"


def test_close_silent_broker_ends_in_time(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    fake.answers[Kind.CLOSE_CONSUMER] = swallow
    consumer = client.subscribe("t", "s")
    report = consumer.close(timeout=0.2)
    assert report.seconds < 3 and [each.topic for each in report.consumers] == ["persistent://public/default/t"]


@pytest.mark.parametrize("closed", ["consumer", "client"])
def test_close_limit_includes_running_listener(
    fake: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    FakeTopic(fake, b"a")
    called, may_end, left = threading.Event(), threading.Event(), list[float | None]()

    def listener(_consumer: Consumer, _message: Message) -> None:
        called.set()
        may_end.wait(10)

    consumer = client.subscribe("t", "s", message_listener=listener)
    assert called.wait(10)
    if closed == "consumer":
        close_inline = consumer._inner.close_inline

        def inline(limit: float | None) -> Any:
            left.append(limit)
            return close_inline(limit)

        monkeypatch.setattr(consumer._inner, "close_inline", inline)
        consumer.close(timeout=0.2)
    else:
        close = ClientCore.close

        def of_client(core: ClientCore, limit: float | None) -> Any:
            left.append(limit)
            return close(core, limit)

        monkeypatch.setattr(ClientCore, "close", of_client)
        client.close(timeout=0.2)
    may_end.set()
    # The call took all the time there was.
    assert left == [pytest.approx(0, abs=0.1)]


def test_schema_asked_again_after_reattachment(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    serve_schema(fake, SCHEMA)
    consumer = client.subscribe("t", "s", consumer_type=ConsumerType.Shared, schema=SCHEMA)
    topic.publish_entry(avro_entry(0))
    held = consumer.receive(10_000)
    serve_schema(fake, WIDER)
    fake.peers[0].close()
    fake.wait(Kind.FLOW, 2)
    fake.peers[-1].send(*(delivery(0, wider_entry(number), number) for number in (1, 2, 3)))
    assert [consumer.receive(10_000).value()["n"] for _ in range(3)] == [1, 2, 3]
    assert held.value() == {"n": 0} and len(fake.seen(Kind.GET_SCHEMA)) == 2
