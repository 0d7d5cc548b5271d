"""A bounded close that tells what was sent, what failed and what was left."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import (
    AlreadyClosed,
    Client,
    CloseReport,
    Consumer,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    Message,
    MessageId,
    PulsarException,
    Result,
)
from pulsar_native.config import ProducerConfig
from support.apis import Api, inner
from support.brokers import Broker, NewTopic
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]
ReadAll = Callable[..., list[Any]]
Stats = Callable[[str], Any]


@pytest.mark.proves("N10", "C187")
def test_a_client_sends_what_it_has_and_reports_it(
    api: Api, client: Any, topic: NewTopic, read_all: ReadAll, stats: Stats, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pulsar_native.client")
    name, other = topic(), topic(partitions=2)
    slow = {"batching_enabled": True, "batching_max_publish_delay_ms": 60_000}
    producers = [client.create_producer(each, **slow) for each in (name, other)]
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, acknowledgment_group_time_ms=60_000, consumer_name="reported"
    )
    api.send_all(producers[0], [b"x"] * 9)
    for _ in range(4):
        consumer.acknowledge(consumer.receive(10_000))
    consumer.receive(10_000)
    waiting = [api.enqueue(producer, b"unsent", partition_key="k") for producer in producers for _ in range(3)]
    report: CloseReport = client.close(timeout=20)
    assert [each.result(1)[0] for each in waiting] == [Result.Ok] * 6
    assert (report.sent, report.failed, report.left, report.acks_left, report.complete) == (6, 0, 0, 0, True)
    assert {each.topic: each.sent for each in report.producers if each.sent} == {
        name: 3,
        next(each.topic for each in report.producers if each.topic.startswith(other) and each.sent): 3,
    }
    (consumed,) = report.consumers
    assert (consumed.topic, consumed.subscription_name, consumed.consumer_name) == (name, "sub", "reported")
    # The nine came as one entry, and such a one is open until all of it is acknowledged.
    assert consumed.queued >= 4 and consumed.acks_sent == 0 and consumed.acks_left == 0
    assert consumed.unacked is not None and consumed.unacked >= 9 and consumed.backlog in (1, 2)
    assert len(read_all(name)) == 12 and len(read_all(other)) == 3
    assert 0 < report.seconds < 20
    assert str(report) in caplog.text


@pytest.mark.proves("N10")
def test_acknowledgements_go_out_and_the_broker_tells_what_is_open(
    api: Api, client: Any, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, acknowledgment_group_time_ms=60_000)
    api.send_all(client.create_producer(name, batching_enabled=False), [b"x"] * 10)
    messages = [consumer.receive(10_000) for _ in range(7)]
    for message in messages[:4]:
        consumer.acknowledge(message)
    eventually(lambda: consumer.stats().msg_num_in_receiver_queue == 3)
    (report,) = consumer.close(timeout=20).consumers
    assert (report.acks_sent, report.acks_left, report.queued) == (4, 0, 3)
    assert report.backlog == 6 == stats(name)["subscriptions"]["sub"]["msgBacklog"]
    assert report.unacked == 6
    assert consumer.close() == CloseReport()


@pytest.mark.proves("N10")
def test_what_the_broker_does_not_confirm_in_time_is_left(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(topic(), producer_name="held", batching_enabled=False)
    producer.send(b"confirmed")
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    waiting = [api.enqueue(producer, b"x") for _ in range(5)]
    started = time.monotonic()
    report = client.close(timeout=0.5)
    # Far below the operation time-out of 30 s.
    assert 0.4 < time.monotonic() - started < 15
    assert [each.result(1)[0] for each in waiting] == [Result.AlreadyClosed] * 5
    (made,) = report.producers
    assert (made.producer_name, made.sent, made.failed, made.left) == ("held", 0, 0, 5)
    assert not report.complete and "5 left" in str(report)
    assert any(each.levelno == logging.WARNING and "5 left" in each.getMessage() for each in caplog.records)


@pytest.mark.proves("N10")
def test_what_fails_meanwhile_is_told_apart(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(topic(), batching_enabled=False, send_timeout_millis=1000)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    waiting = [api.enqueue(producer, b"x") for _ in range(3)]
    report = producer.close(timeout=20)
    assert [each.result(1)[0] for each in waiting] == [Result.Timeout] * 3
    assert (report.sent, report.failed, report.left) == (0, 3, 0)


@pytest.mark.proves("N10")
def test_a_lost_connection_is_waited_for(
    api: Api,
    broker: Broker,
    relay: NewRelay,
    topic: NewTopic,
    eventually: Eventually,
    read_all: ReadAll,
    stats: Stats,
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url, starting_backoff_interval_ms=50, max_backoff_interval_ms=200)
    producer = client.create_producer(name, batching_enabled=False)
    consumer = client.subscribe(name, "sub", acknowledgment_group_time_ms=60_000)
    producer.send(b"first")
    message = consumer.receive(10_000)
    through.refuse()
    through.cut()
    eventually(lambda: not producer.is_connected() and not consumer.is_connected())
    consumer.acknowledge(message)
    waiting = [api.enqueue(producer, b"x") for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(client.close, 30)
        time.sleep(0.3)
        assert not closing.done()
        through.accept()
        report = closing.result(40)
    assert [each.result(1)[0] for each in waiting] == [Result.Ok] * 3
    assert (report.sent, report.left, report.complete) == (3, 0, True)
    assert report.consumers[0].acks_sent == 1
    assert len(read_all(name)) == 4 and stats(name)["subscriptions"]["sub"]["msgBacklog"] == 3


@pytest.mark.parametrize("timeout", [-1, True, "1", float("nan")])
def test_a_timeout_is_a_number_of_seconds(api: Api, client: Any, topic: NewTopic, timeout: Any) -> None:
    producer = client.create_producer(topic())
    for live in (producer, client):
        with pytest.raises(InvalidConfiguration, match="timeout"):
            live.close(timeout=timeout)
    producer.send(b"still open")
    assert producer.close(timeout=0).left == 0
    with pytest.raises(AlreadyClosed):
        producer.close(timeout=0)
    # An argument that is wrong is told first.
    with pytest.raises(InvalidConfiguration, match="timeout"):
        producer.close(timeout=timeout)


def test_a_closed_consumer_gives_out_nothing_more(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually
) -> None:
    """As in the Java client: what was queued stays at the broker, and is there for the next one."""
    name = topic()
    api.send_all(client.create_producer(name), [b"0", b"1", b"2"])
    consumer = client.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    reader = client.create_reader(name, MessageId.earliest)
    eventually(lambda: consumer.stats().msg_num_in_receiver_queue == 3)
    assert consumer.receive(10_000).data() == reader.read_next(10_000).data() == b"0"
    report = consumer.close()
    assert report.consumers[0].queued == 2
    reader.close()
    for receive in (consumer.receive, consumer.batch_receive, reader.read_next):
        with pytest.raises(AlreadyClosed):
            receive()
    again = client.subscribe(name, "sub")
    assert [again.receive(10_000).data() for _ in range(3)] == [b"0", b"1", b"2"]


@pytest.mark.proves("C16")
def test_closing_client_refuses_creation(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(name, batching_enabled=False)
    core = inner(producer).client
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    waiting = api.enqueue(producer, b"x")
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(client.close)
        eventually(lambda: core.closed and through.count(Command.SEND, TO_BROKER) == 1)
        sent = through.count(direction=TO_BROKER)
        for attempt in (
            lambda: client.create_producer(name),
            lambda: client.subscribe(name, "sub"),
            lambda: client.create_reader(name, MessageId.earliest),
            lambda: client.create_table_view(name),
            lambda: client.get_topic_partitions(name),
        ):
            with pytest.raises(AlreadyClosed):
                attempt()
        # Refused here, by API and engine, and not by a broker or a connection that is closed.
        for refused in (core.topic_partitions(name), core.create_producer(ProducerConfig(topic=name), None)):
            with pytest.raises(AlreadyClosed):
                refused.send(None)
        assert through.count(direction=TO_BROKER) == sent and not closing.done()
        through.release()
        assert closing.result(20).sent == 1
    assert waiting.result(1)[0] is Result.Ok


@pytest.mark.proves("C16")
@pytest.mark.parametrize("made", ["producer", "consumer", "reader", "pattern"])
def test_creation_that_ends_during_close_refused(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually, stats: Stats, made: str
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url, operation_timeout_seconds=5)
    producer = client.create_producer(name, batching_enabled=False)
    core = inner(producer).client
    # A receipt that never comes lets the close wait until its time is over.
    through.drop(Command.SEND_RECEIPT, TO_CLIENT)
    unconfirmed = api.enqueue(producer, b"x")
    through.wait_for(Command.SEND_RECEIPT)
    answer = Command.PRODUCER_SUCCESS if made == "producer" else Command.SUCCESS
    through.hold(answer, TO_CLIENT, times=1)
    create = {
        "producer": lambda: client.create_producer(name, producer_name="late"),
        "consumer": lambda: client.subscribe(name, "late"),
        "reader": lambda: client.create_reader(name, MessageId.earliest),
        "pattern": lambda: client.subscribe(re.compile(re.escape(name)), "late"),
    }[made]
    with ThreadPoolExecutor(2) as pool:
        creating = pool.submit(create)
        eventually(lambda: through.held == 1)
        closing = pool.submit(client.close)
        eventually(lambda: core.closed)
        through.release()
        with pytest.raises(AlreadyClosed):
            creating.result(20)
        assert not closing.done()
        assert not core.consumers and len(core.producers) == 1
        assert not closing.result(20).complete
    assert unconfirmed.result(1)[0] is Result.AlreadyClosed
    eventually(lambda: not stats(name)["publishers"])
    eventually(lambda: not any(each["consumers"] for each in stats(name)["subscriptions"].values()))


@pytest.mark.parametrize("closes", ["consumer", "client"])
def test_close_ends_listening_before_anything_else(
    broker: Broker, topic: NewTopic, plain_client: Client, stats: Stats, closes: str, eventually: Eventually
) -> None:
    name = topic()
    entered, leaves = threading.Event(), threading.Event()
    calls: list[bytes] = []
    failed: list[PulsarException] = []

    def hear(consumer: Consumer[bytes], message: Message[bytes]) -> None:
        calls.append(message.data())
        entered.set()
        leaves.wait(20)
        try:
            consumer.acknowledge(message)
        except PulsarException as error:
            failed.append(error)

    client = Client(broker.service_url)
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, message_listener=hear)
    producer = plain_client.create_producer(name, batching_enabled=False)
    for number in range(50):
        producer.send(b"%d" % number)
    assert entered.wait(10)
    eventually(lambda: consumer.stats().msg_num_in_receiver_queue == 49)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(consumer.close if closes == "consumer" else client.close)
        with pytest.raises(TimeoutError):
            closing.result(0.3)
        leaves.set()
        report = closing.result(20)
    # The call that ran could acknowledge still, and no other began.
    assert (calls, failed, report.acks_left) == ([b"0"], [], 0)
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 49)
    if closes == "consumer":
        client.close()
    assert calls == [b"0"]
