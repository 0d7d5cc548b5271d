"""Interceptors of producers, consumers and readers: order, replacing, failing, and what they are told."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    AlreadyClosed,
    Client,
    ConsumerInterceptor,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    Message,
    MessageId,
    MessageTooBig,
    NewMessage,
    OutgoingMessage,
    ProducerInterceptor,
    ProducerQueueIsFull,
    ReaderInterceptor,
    Result,
)
from pulsar_native.schema import StringSchema
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.relay import TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]
ReadAll = Callable[..., list[Any]]
Log = list[tuple[Any, ...]]


class Noting(ProducerInterceptor):
    """Mark every message, and note everything."""

    def __init__(self, name: str, log: Log) -> None:
        self.name = name
        self.log = log

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        self.log.append((self.name, "before", message.payload, producer.topic(), message.sequence_id))
        message.payload += self.name.encode()
        return message

    def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
        self.log.append((self.name, "after", message.payload, message_id, error))

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        self.log.append((self.name, "partitions", topic, partitions))

    def close(self) -> None:
        self.log.append((self.name, "close"))


class Picky(Noting):
    """Cares for some messages only."""

    def eligible(self, message: OutgoingMessage) -> bool:
        return message.partition_key == "mine"


class Raising(ProducerInterceptor, ConsumerInterceptor, ReaderInterceptor):
    """Fail in everything."""

    def __init__(self, fault: type[BaseException] = ZeroDivisionError) -> None:
        self.fault = fault

    def _fail(self, *_: Any) -> Any:
        raise self.fault("an interceptor's own fault")

    before_send = on_send_acknowledgement = on_partitions_change = close = before_consume = before_read = _fail
    on_arrival = _fail
    on_acknowledge = on_acknowledge_cumulative = on_negative_acks_send = on_ack_timeout_send = _fail


@pytest.mark.proves("C58", "C186")
def test_messages_pass_the_interceptors_in_order_and_are_replaced(
    api: Api, client: Any, topic: NewTopic, read_all: ReadAll
) -> None:
    log: Log = []

    class Replacing(ProducerInterceptor):
        def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
            return OutgoingMessage(message.payload.upper(), partition_key="new", properties={"by": "replacing"})

    name = topic()
    producer = client.create_producer(name, interceptors=[Noting("a", log), Replacing(), Noting("b", log)])
    place = producer.send(b"x-")
    (message,) = read_all(name)
    assert (message.data(), message.partition_key(), message.properties()) == (b"X-Ab", "new", {"by": "replacing"})
    # Before the id is given, and told of the receipt before the sender is.
    assert log == [
        ("a", "before", b"x-", name, None),
        ("b", "before", b"X-A", name, None),
        ("a", "after", b"X-Ab", place, None),
        ("b", "after", b"X-Ab", place, None),
    ]
    del log[:]
    client.close()
    assert log == [("a", "close"), ("b", "close")]


@pytest.mark.proves("C186")
def test_the_interceptor_hears_of_the_receipt_first(api: Api, client: Any, topic: NewTopic) -> None:
    order: list[str] = []

    class Hearing(ProducerInterceptor):
        def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
            order.append(f"interceptor {message.payload.decode()}")

    producer = client.create_producer(topic(), interceptors=[Hearing()], batching_enabled=True)
    outcomes = [api.enqueue(producer, b"%d" % number) for number in range(5)]
    for number, outcome in enumerate(outcomes):
        outcome.add_done_callback(lambda _done, number=number: order.append(f"sender {number}"))
    producer.flush()
    assert all(outcome.result(20)[0] is Result.Ok for outcome in outcomes)
    for number in range(5):
        assert order.index(f"interceptor {number}") < order.index(f"sender {number}")


@pytest.mark.proves("C58", "C186")
@pytest.mark.parametrize("fault", [ZeroDivisionError, asyncio.CancelledError])
def test_one_that_raises_breaks_nothing(
    api: Api,
    client: Any,
    topic: NewTopic,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
    fault: type[BaseException],
) -> None:
    log: Log = []
    name = topic()
    producer = client.create_producer(name, interceptors=[Raising(fault), Noting("b", log), Raising(fault)])
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, interceptors=[Raising(fault)], negative_ack_redelivery_delay_ms=100
    )
    reader = client.create_reader(name, MessageId.earliest, interceptors=[Raising(fault)])
    place = producer.send(b"x")
    assert [each[:3] for each in log] == [("b", "before", b"x"), ("b", "after", b"xb")]
    consumer.negative_acknowledge(consumer.receive(10_000))
    message = consumer.receive(10_000)
    assert (message.data(), message.message_id(), message.redelivery_count()) == (b"xb", place, 1)
    consumer.acknowledge(message)
    assert reader.read_next(10_000).data() == b"xb"
    assert "an interceptor's own fault" in caplog.text
    for live in (producer, consumer, reader):
        live.close()
    methods = {each.args[1] for each in caplog.records if each.name == "pulsar_native.interceptor"}  # type: ignore[index]
    assert {"before_send", "on_send_acknowledgement", "before_consume", "before_read", "close"} <= methods
    assert {"on_acknowledge", "on_negative_acks_send"} <= methods


def test_what_is_not_eligible_and_what_is_no_message(api: Api, client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    log: Log = []

    class Nothing(ProducerInterceptor):
        def before_send(self, producer: Any, message: OutgoingMessage) -> Any:
            return None

    name = topic()
    producer = client.create_producer(name, interceptors=[Picky("p", log), Nothing()])
    producer.send(b"other")
    producer.send(b"this", partition_key="mine")
    assert [each.data() for each in read_all(name)] == [b"other", b"thisp"]
    assert [each[1] for each in log] == ["before", "after"]
    for interceptors in ([object()], [ReaderInterceptor()]):
        with pytest.raises(InvalidConfiguration, match="ProducerInterceptor"):
            client.create_producer(name, interceptors=interceptors)
        with pytest.raises(InvalidConfiguration, match="ConsumerInterceptor"):
            client.subscribe(name, "sub", interceptors=interceptors)


def test_failures_are_told_once(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    log: Log = []
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(
        topic(), interceptors=[Noting("a", log)], max_pending_messages=2, batching_enabled=False
    )
    with pytest.raises(MessageTooBig):
        producer.send(b"x" * 6_000_000)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    waiting = [api.enqueue(producer, b"%d" % number) for number in range(2)]
    with pytest.raises(ProducerQueueIsFull):
        api.enqueue_refused(producer, b"no room")
    through.release()
    for each in waiting:
        each.result(20)
    told = [(each[2][:3], type(each[4])) for each in log if each[1] == "after"]
    # The blocking API was asked twice, with a callback and without.
    asked = 2 if api.name == "blocking" else 1
    assert told[: 1 + asked] == [(b"xxx", MessageTooBig), *[(b"no ", ProducerQueueIsFull)] * asked]
    assert sorted(told[1 + asked :], key=str) == [(b"0a", type(None)), (b"1a", type(None))]
    assert len([each for each in log if each[1] == "before"]) == 3 + asked


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_message_that_waits_for_room_is_shown_once(
    client: Any, topic: NewTopic, read_all: ReadAll, partitions: int
) -> None:
    log: Log = []
    name = topic(partitions=partitions)
    options = {"block_if_queue_full": True, "max_pending_messages": 3, "batching_enabled": True}
    producer = client.create_producer(name, interceptors=[Noting("a", log)], **options)
    ids = producer.send_many([b"%d." % number for number in range(100)])
    for number in range(100, 110):
        producer.send(b"%d." % number)
    before = [each[2] for each in log if each[1] == "before"]
    assert before == [b"%d." % number for number in range(110)]
    assert len([each for each in log if each[1] == "after"]) == 110 and len(ids) == 100
    assert sorted(each.data() for each in read_all(name)) == sorted(b"%d.a" % number for number in range(110))


def test_a_changed_key_decides_the_partition(client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    class Keyed(ProducerInterceptor):
        def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
            message.partition_key = message.payload.decode()
            return message

    name = topic(partitions=4)
    plain = client.create_producer(name)
    places = [plain.send(b"x", partition_key=f"{number}").partition() for number in range(12)]
    keyed = client.create_producer(name, interceptors=[Keyed()], batching_enabled=True)
    assert [keyed.send(b"%d" % number).partition() for number in range(12)] == places
    ids = keyed.send_many([NewMessage(content=b"%d" % number) for number in range(12)])
    assert [each.partition() for each in ids] == places


class Hearing(ConsumerInterceptor):
    """Note what is said about messages."""

    def __init__(self, name: str, log: Log) -> None:
        self.name = name
        self.log = log

    def before_consume(self, consumer: Any, message: Message) -> Message:
        self.log.append((self.name, "consume", message.value(), consumer.subscription_name()))
        return message

    def on_acknowledge(self, consumer: Any, message_id: MessageId, error: Any) -> None:
        self.log.append((self.name, "ack", message_id, type(error)))

    def on_acknowledge_cumulative(self, consumer: Any, message_id: MessageId, error: Any) -> None:
        self.log.append((self.name, "cumulative", message_id, type(error)))

    def on_negative_acks_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        self.log.append((self.name, "nacks", {(each.ledger_id(), each.entry_id()) for each in message_ids}))

    def on_ack_timeout_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        self.log.append((self.name, "timeout", {(each.ledger_id(), each.entry_id()) for each in message_ids}))

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        self.log.append((self.name, "partitions", topic, partitions))

    def close(self) -> None:
        self.log.append((self.name, "close"))


@pytest.mark.proves("C110", "C186")
def test_a_consumers_interceptors_hear_everything_in_order(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually
) -> None:
    log: Log = []
    name = topic()
    consumer = client.subscribe(
        name,
        "sub",
        ConsumerType.Shared,
        schema=StringSchema(),
        negative_ack_redelivery_delay_ms=100,
        unacked_messages_timeout_ms=2000,
        interceptors=[Hearing("a", log), Hearing("b", log)],
    )
    places = api.send_all(client.create_producer(name, batching_enabled=False), [b"one", b"two", b"three"])
    one, two, three = (consumer.receive(10_000) for _ in range(3))
    assert log[:4] == [
        ("a", "consume", "one", "sub"),
        ("b", "consume", "one", "sub"),
        ("a", "consume", "two", "sub"),
        ("b", "consume", "two", "sub"),
    ]
    del log[:]
    consumer.acknowledge(one)
    consumer.acknowledge([two.message_id()])
    assert log == [(who, "ack", place, type(None)) for place in places[:2] for who in "ab"]
    del log[:]
    consumer.negative_acknowledge(three)
    entry = (places[2].ledger_id(), places[2].entry_id())
    eventually(lambda: ("b", "nacks", {entry}) in log)
    assert consumer.receive(10_000).redelivery_count() == 1
    # Not acknowledged in time.
    eventually(lambda: ("b", "timeout", {entry}) in log)
    consumer.acknowledge(consumer.receive(10_000))
    consumer.close()
    assert log[-2:] == [("a", "close"), ("b", "close")]
    with pytest.raises(AlreadyClosed):
        consumer.acknowledge(three)
    assert log[-1] == ("b", "ack", places[2], AlreadyClosed)


@pytest.mark.proves("C110", "C186")
def test_cumulative_batches_and_partitions(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    log: Log = []
    name = topic(partitions=1)
    options = {"auto_update_partitions_interval_seconds": 0.1}
    consumer = client.subscribe(name, "sub", interceptors=[Hearing("c", log)], **options)
    producer = client.create_producer(name, interceptors=[Noting("p", log)], **options)
    api.send_all(producer, [b"x"] * 3)
    messages = consumer.batch_receive()
    while len(messages) < 3:
        messages += consumer.batch_receive()
    consumer.acknowledge_cumulative(messages[-1])
    assert [each[1] for each in log if each[0] == "c"] == ["consume"] * 3 + ["cumulative"]
    broker.admin("POST", name.replace("://", "/") + "/partitions", 3)
    wanted = {("c", "partitions", name, 3), ("p", "partitions", name, 3)}
    eventually(lambda: wanted <= {each for each in log if each[1] == "partitions"})


class Arriving(Hearing):
    """Note arrivals, too, and put other messages in their place; acknowledge some on the spot."""

    def on_arrival(self, consumer: Any, message: Message) -> Message:
        self.log.append((self.name, "arrival", message.data(), consumer.subscription_name()))
        if message.properties().get("drop"):
            inner = getattr(consumer, "_inner", None)
            assert inner is not None
            inner.acknowledge_message(message)
        return message


@pytest.mark.proves("C110")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_arrival_is_seen_when_it_happens_and_consuming_when_it_does(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually, stats: Any, kind: ConsumerType
) -> None:
    log: Log = []
    name = topic(partitions=2)
    early = client.create_producer(name, batching_enabled=False)
    client.subscribe(name, "sub", kind).close()
    api.send_all(early, [b"early"])
    consumer = client.subscribe(
        name,
        "sub",
        kind,
        interceptors=[Arriving("a", log), Arriving("b", log)],
        batch_index_ack_enabled=True,
    )
    batching = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    api.send_all(batching, [b"1", b"2", b"3"], partition_key="one")
    api.send_all(batching, [b"dropped"], properties={"drop": "yes"})
    # Nobody has asked for a message yet.
    values = [b"early", b"1", b"2", b"3", b"dropped"]
    # Of five messages each interceptor hears, and each acknowledges "dropped", of which both hear.
    eventually(lambda: len(log) >= 2 * len(values) + 4)
    assert {each[1] for each in log} == {"arrival", "ack"}
    arrivals = [each for each in log if each[1] == "arrival"]
    assert sorted(each[2] for each in arrivals) == sorted(2 * values)
    for value in values:
        assert [each[0] for each in arrivals if each[2] == value] == ["a", "b"]
    assert {each[3] for each in arrivals} == {"sub"}
    del log[:]
    got = []
    for _ in range(5):
        got.append(consumer.receive(10_000))
        if got[-1].data() == b"2":
            # An id that does not tell its batch's size, while a later entry is opened already.
            found = got[-1].message_id()
            bare = MessageId(found.partition(), found.ledger_id(), found.entry_id(), found.batch_index())
            consumer.acknowledge(bare)
            assert log.pop(-1)[:3] == ("b", "ack", bare) and log.pop(-1)[:3] == ("a", "ack", bare)
    assert sorted(message.data() for message in got) == sorted(values)
    assert [each[1] for each in log] == ["consume"] * 10
    for message in got:
        if message.data() in (b"early", b"1", b"3"):
            consumer.acknowledge(message)
    eventually(lambda: all(
        part["subscriptions"]["sub"]["msgBacklog"] == 0
        for part in (stats(f"{name}-partition-{number}") for number in range(2))
    ))  # fmt: skip


@pytest.mark.proves("C110")
def test_a_message_can_be_replaced_as_it_arrives(
    api: Api, client: Any, topic: NewTopic, broker: Broker, eventually: Eventually
) -> None:
    seen: list[bytes] = []

    class Swapping(ConsumerInterceptor):
        def on_arrival(self, consumer: Any, message: Message) -> Message:
            if held and message.data() == b"new":
                return held[0]
            seen.append(message.data())
            held.append(message)
            return message

    held: list[Message] = []
    name = topic()
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, interceptors=[Raising(), Swapping(), Raising()])
    producer = client.create_producer(name, batching_enabled=False)
    api.send_all(producer, [b"old", b"new"])
    assert [consumer.receive(10_000).data() for _ in range(2)] == [b"old", b"old"]
    # What comes again arrives again.
    del held[:], seen[:]
    broker.admin("PUT", name.replace("://", "/") + "/unload")
    eventually(lambda: seen == [b"old"])


@pytest.mark.proves("C110")
def test_what_could_not_be_acknowledged_is_told_with_the_error(api: Api, client: Any, topic: NewTopic) -> None:
    log: Log = []
    consumer = client.subscribe(topic(), "sub", interceptors=[Hearing("a", log)])
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.acknowledge_cumulative(MessageId(-1, 1, 1, -1))
    assert log[-1] == ("a", "cumulative", MessageId(-1, 1, 1, -1), AlreadyClosed)


@pytest.mark.proves("C110", "C186")
def test_the_interceptor_comes_before_the_listener(broker: Broker, topic: NewTopic) -> None:
    log: Log = []
    told = threading.Event()

    def listener(_consumer: Any, message: Message) -> None:
        log.append(("listener", message.data()))
        if len(log) >= 8:
            told.set()

    with Client(broker.service_url) as client:
        name = topic()
        client.subscribe(
            name, "sub", initial_position=InitialPosition.Earliest, message_listener=listener,
            interceptors=[_Plain(log)],
        )  # fmt: skip
        producer = client.create_producer(name)
        for number in range(4):
            producer.send(b"%d" % number)
        assert told.wait(20)
    assert log == [(who, b"%d" % number) for number in range(4) for who in ("interceptor", "listener")]


class _Plain(ConsumerInterceptor):
    """Note what is consumed."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def before_consume(self, consumer: Any, message: Message) -> Message:
        self.log.append(("interceptor", message.data()))
        return message


@pytest.mark.proves("C186")
def test_a_readers_interceptors(api: Api, client: Any, topic: NewTopic) -> None:
    log: Log = []

    class Reading(ReaderInterceptor):
        def before_read(self, reader: Any, message: Message) -> Message:
            log.append((reader.topic(), message.data()))
            return message

        def close(self) -> None:
            log.append(("close",))

    name = topic()
    api.send_all(client.create_producer(name), [b"1", b"2"])
    reader = client.create_reader(name, MessageId.earliest, interceptors=[Reading()])
    assert [reader.read_next(10_000).data() for _ in range(2)] == [b"1", b"2"]
    reader.close()
    assert log == [(name, b"1"), (name, b"2"), ("close",)]


def test_interceptors_keep_nothing_alive(broker: Broker, topic: NewTopic) -> None:
    client = Client(broker.service_url)
    producer = client.create_producer(topic(), interceptors=[Noting("a", [])])
    producer.send(b"x")
    gone = weakref.ref(client)
    del client, producer
    gc.collect()
    assert gone() is None


@pytest.mark.proves("C186")
def test_without_interceptors_nothing_of_them_is_there(client: Any, topic: NewTopic, api: Api) -> None:
    name = topic()
    for live in (client.create_producer(name), client.subscribe(name, "sub")):
        inner = (live if api.name == "blocking" else live.target)._inner
        assert type(inner).__name__ in ("TopicProducer", "MultiTopicsConsumer")
        trackers = [child.acks for child in inner.children if hasattr(child, "acks")]
        assert all(tracker._on_redelivery is None for tracker in trackers)
