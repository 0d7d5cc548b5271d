"""Statistics of clients, producers and consumers, compared with the broker's own."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    AlreadyClosed,
    Client,
    ClientStats,
    ConsumerStats,
    ConsumerType,
    InitialPosition,
    MessageId,
    MessageTooBig,
    ProducerStats,
    Timeout,
)
from support.apis import Api, inner
from support.brokers import Broker, NewTopic
from support.relay import TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

BATCHES = {"batching_enabled": True, "batching_max_messages": 250, "max_pending_messages": 20_000}


def payloads(count: int) -> list[bytes]:
    """Payloads of differing lengths."""
    return [b"x" * (number % 97) for number in range(count)]


@pytest.mark.proves("C183")
def test_a_producers_totals_are_the_brokers(api: Api, client: Any, topic: NewTopic, stats: Stats) -> None:
    name = topic()
    producer = client.create_producer(name, producer_name="counted", **BATCHES)
    contents = payloads(10_000)
    api.send_all(producer, contents)
    with pytest.raises(MessageTooBig):
        api.enqueue_refused(producer, b"x" * 6_000_000)
    made: ProducerStats = producer.stats()
    assert made.total_msgs_sent == made.total_acks_received == 10_000 == stats(name)["msgInCounter"]
    assert made.total_bytes_sent == sum(map(len, contents))
    assert (made.num_msgs_sent, made.num_bytes_sent) == (made.total_msgs_sent, made.total_bytes_sent)
    assert (made.topic, made.producer_name, made.pending_queue_size) == (name, "counted", 0)
    assert made.send_msgs_rate == pytest.approx(10_000 / made.interval_seconds)
    assert made.send_bytes_rate == pytest.approx(made.num_bytes_sent / made.interval_seconds)
    percentiles = [getattr(made, f"send_latency_millis_{each}pct") for each in (50, 75, 95, 99, 999)]
    assert percentiles[0] > 0 and percentiles == sorted(percentiles)
    assert percentiles[-1] <= made.send_latency_millis_max < 60_000
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.total_msgs_sent = 0  # type: ignore[misc]


@pytest.mark.proves("C183")
def test_what_waits_and_what_failed_is_counted(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(topic(), batching_enabled=False, send_timeout_millis=3000)
    producer.send(b"confirmed")
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    waiting = [api.enqueue(producer, b"not confirmed") for _ in range(7)]
    assert producer.stats().pending_queue_size == 7
    for each in waiting:
        each.result(30)
    made = producer.stats()
    assert (made.total_msgs_sent, made.total_acks_received, made.total_send_failed) == (8, 1, 7)
    assert made.pending_queue_size == 0


@pytest.mark.proves("C184")
def test_a_consumers_totals_are_the_brokers(
    api: Api, client: Any, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100, consumer_name="counted"
    )
    contents = payloads(10_000)
    # Negative acknowledgements redeliver entries: messages that are entries of their own come again alone. (A batch may
    # be of one message, and is a plain entry then: the key tells which are meant.)
    api.send_all(client.create_producer(name, **BATCHES), contents[:9900])
    api.send_all(client.create_producer(name, batching_enabled=False), contents[9900:], partition_key="alone")
    refused = 0
    for number in range(10_100):
        message = consumer.receive(30_000)
        if message.partition_key() == "alone" and not message.redelivery_count():
            consumer.negative_acknowledge(message)
            refused += 1
        else:
            consumer.acknowledge(message)
        if number == 99:
            assert consumer.stats().total_msgs_received == 100
    assert refused == 100
    eventually(lambda: consumer.stats().total_acks_sent == 10_000)
    got: ConsumerStats = consumer.stats()
    found = stats(name)["subscriptions"]["sub"]
    assert got.total_msgs_received == 10_100 == found["msgOutCounter"]
    assert got.total_bytes_received == sum(map(len, contents)) + sum(map(len, contents[9900:]))
    assert (got.total_negative_acks, got.total_acks_failed, got.msg_num_in_receiver_queue) == (100, 0, 0)
    assert (got.topic, got.subscription_name, got.consumer_name) == (name, "sub", "counted")
    assert got.rate_msgs_received == pytest.approx(10_100 / got.interval_seconds)
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.mark.proves("C184")
def test_failed_receives_and_acknowledgements_and_what_waits(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub")
    with pytest.raises(Timeout):
        consumer.receive(1)
    api.send_all(client.create_producer(name, **BATCHES), [b"abc"] * 30)
    eventually(lambda: consumer.stats().msg_num_in_receiver_queue == 30)
    message = consumer.receive(10_000)
    assert (consumer.stats().msg_num_in_receiver_queue, consumer.stats().total_bytes_received) == (29, 3)
    for _ in range(29):
        consumer.receive(10_000)
    consumer.close()
    for call in (consumer.receive, consumer.batch_receive, lambda: consumer.acknowledge(message)):
        with pytest.raises(AlreadyClosed):
            call()
    got = consumer.stats()
    assert (got.total_receive_failed, got.total_batch_receive_failed, got.total_acks_failed) == (1, 1, 1)
    assert (got.total_msgs_received, got.total_bytes_received) == (30, 90)


@pytest.mark.proves("C184")
@pytest.mark.parametrize("ending", ["close", "shutdown"])
def test_unsent_acknowledgements_at_close_count_as_failed(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, plain_client: Client, ending: str, stats: Stats
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, acknowledgment_group_time_ms=60_000)
    for number in range(9):
        plain_client.create_producer(name, batching_enabled=False).send(b"%d" % number)
    messages = [consumer.receive(10_000) for _ in range(9)]
    # Nothing reaches the broker any more.
    through.refuse()
    through.cut()
    for message in messages[:7]:
        consumer.acknowledge(message)
    if ending == "close":
        report = client.close(timeout=2)
        assert (report.acks_left, report.complete) == (7, False)
    else:
        client.shutdown()
    got = consumer.stats()
    assert (got.total_acks_sent, got.total_acks_failed, got.total_msgs_received) == (0, 7, 9)
    assert stats(name)["subscriptions"]["sub"]["msgBacklog"] == 9


@pytest.mark.proves("C184")
def test_what_was_taken_out_of_half_a_batch_is_counted_once(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, batch_index_ack_enabled=True)
    api.send_all(client.create_producer(name, **BATCHES), [b"ab"] * 10)
    for number, message in enumerate([consumer.receive(10_000) for _ in range(4)], 1):
        consumer.acknowledge(message)
        eventually(lambda number=number: consumer.stats().total_acks_sent == number)
    # Six messages of the batch were opened and not taken: they are delivered again, and only then received.
    consumer.redeliver_unacknowledged_messages()
    for number in range(5, 11):
        consumer.acknowledge(consumer.receive(10_000))
        assert consumer.stats().total_msgs_received == number
    eventually(lambda: consumer.stats().total_acks_sent == 10)
    assert consumer.stats().total_bytes_received == 20


@pytest.mark.proves("C185")
def test_sums_equal_the_partitions(api: Api, client: Any, topic: NewTopic, eventually: Eventually) -> None:
    name, other = topic(partitions=3), topic()
    producer = client.create_producer(name, **BATCHES)
    consumer = client.subscribe([name, other], "sub", initial_position=InitialPosition.Earliest)
    for number in range(60):
        api.enqueue(producer, b"%d" % number, partition_key=f"key {number}")
    producer.flush()
    for _ in range(60):
        consumer.acknowledge(consumer.receive(10_000))
    eventually(lambda: consumer.stats().total_acks_sent == 60)
    made, got = producer.stats(), consumer.stats()
    assert sorted(made.partition_stats) == [f"{name}-partition-{index}" for index in range(3)]
    assert sorted(got.partition_stats) == sorted([*made.partition_stats, other])
    assert (made.topic, set(got.topic.split(","))) == (name, {name, other})
    for whole in (made, got):
        parts = list(whole.partition_stats.values())
        for each in dataclasses.fields(whole):
            if each.name.startswith(("num_", "total_", "send_msgs", "send_bytes", "rate_", "msg_num", "pending")):
                assert getattr(whole, each.name) == pytest.approx(sum(getattr(part, each.name) for part in parts))
    assert made.total_msgs_sent == got.total_msgs_received == 60
    parts = list(made.partition_stats.values())
    assert all(part.total_msgs_sent > 0 for part in parts)
    assert made.send_latency_millis_max == max(part.send_latency_millis_max for part in parts)
    assert made.send_latency_millis_50pct > 0


@pytest.mark.proves("C185")
def test_a_clients_figures_keep_what_was_closed(
    api: Api, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    client = api.client(broker.service_url, memory_limit_bytes=64 * 1024 * 1024)
    assert client.stats() == ClientStats()
    first, second = topic(), topic()
    for name in (first, second):
        with client.create_producer(name) if api.name == "blocking" else closing(client.create_producer(name)) as each:
            api.send_all(each, [b"abc"] * 5)
    open_one = client.create_producer(first)
    open_one.send(b"abc")
    reader = client.create_reader(first, MessageId.earliest)
    for _ in range(6):
        reader.read_next(10_000)
    found = client.stats()
    assert (found.total_msgs_sent, found.total_bytes_sent, found.total_acks_received) == (11, 33, 11)
    assert (found.total_msgs_received, found.total_bytes_received) == (6, 18)
    assert found.connections == 1 and found.memory_used_bytes == 0 and found.memory_limit_bytes == 64 * 1024 * 1024
    assert [each.total_msgs_sent for each in found.producers] == [1]
    assert [each.total_msgs_received for each in found.consumers] == [6] == [reader.stats().total_msgs_received]


class closing:
    """Close what is not a context manager outside its loop."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def __enter__(self) -> Any:
        return self._live

    def __exit__(self, *_: object) -> None:
        self._live.close()


@pytest.mark.proves("C5")
def test_a_record_an_interval_names_topic_and_producer(
    api: Api, broker: Broker, topic: NewTopic, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    name = topic()
    caplog.set_level(logging.INFO, "pulsar_native.stats")
    client = api.client(broker.service_url, stats_interval_in_seconds=1)
    producer = client.create_producer(name, producer_name="noted")
    consumer = client.subscribe(name, "the sub", consumer_name="listening")
    api.send_all(producer, [b"abc"] * 5)
    for _ in range(5):
        consumer.acknowledge(consumer.receive(10_000))

    def records(word: str) -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.name == "pulsar_native.stats" and word in each.getMessage()]

    published = eventually(lambda: len(found := records("published")) >= 3 and found)
    received = eventually(lambda: len(found := records("received")) >= 3 and found)
    assert all(name in each.getMessage() and "noted" in each.getMessage() for each in published)
    assert all("the sub" in each.getMessage() and "listening" in each.getMessage() for each in received)
    # One record an interval, and each message in one of them.
    gaps = [after.created - before.created for before, after in itertools.pairwise(published)]
    # The shortest, for a busy machine may delay any of them.
    assert 0.5 < min(gaps) < 1.5
    assert sum(each.stats.num_msgs_sent for each in published) == 5
    assert sum(each.stats.num_msgs_received for each in received) == 5
    last = producer.stats()
    assert (last.num_msgs_sent, last.total_msgs_sent, last.send_latency_millis_max) == (0, 5, 0.0)
    client.close()
    count = len(caplog.records)
    time.sleep(1.3)
    assert len(records("published")) + len(records("received")) <= count


@pytest.mark.proves("C5")
def test_switched_off_nothing_is_kept_and_figures_are_zero(
    api: Api, broker: Broker, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    caplog.set_level(logging.INFO, "pulsar_native.stats")
    client = api.client(broker.service_url, stats_interval_in_seconds=0)
    producer = client.create_producer(name, **BATCHES)
    consumer = client.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    api.send_all(producer, [b"abc"] * 5)
    for _ in range(5):
        consumer.acknowledge(consumer.receive(10_000))
    for live in (producer, consumer):
        (child,) = (live if api.name == "blocking" else live.target)._inner.children
        assert child.stats is None and child.client._stats_clock is None
    assert producer.stats() == ProducerStats(topic=name, producer_name=producer.producer_name())
    assert consumer.stats() == ConsumerStats(
        topic=name, subscription_name="sub", consumer_name=consumer.consumer_name()
    )
    assert client.stats().total_msgs_sent == client.stats().total_msgs_received == 0
    assert "pulsar_native.stats" not in {each.name for each in caplog.records}


def test_figures_may_be_asked_for_while_threads_send(broker: Broker, topic: NewTopic) -> None:
    api = Api("blocking")
    client = api.client(broker.service_url)
    producer = client.create_producer(topic(), **BATCHES)
    consumer = client.subscribe(producer.topic(), "sub", initial_position=InitialPosition.Earliest)
    done = threading.Event()
    seen: list[tuple[int, int]] = []

    def ask() -> None:
        while not done.is_set():
            seen.append((producer.stats().total_acks_received, consumer.stats().total_msgs_received))
            client.stats()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        api.send_all(producer, [b"x"] * 5000)
        for _ in range(5000):
            consumer.receive(10_000)
    finally:
        done.set()
        asking.join(30)
        api.close()
    assert seen == sorted(seen)


@pytest.mark.proves("C185")
def test_statistics_memory_reserved_ahead_is_not_used(api: Api, broker: Broker, topic: NewTopic) -> None:
    client = api.client(broker.service_url, memory_limit_bytes=64 * 1024 * 1024)
    producer = client.create_producer(topic(), batching_enabled=True, batching_max_publish_delay_ms=60_000)
    outcomes = [api.enqueue(producer, b"abc") for _ in range(20)]
    # More than that is taken of the limit, so that the next ones need not ask.
    assert client.stats().memory_used_bytes == 60 < inner(producer).client.memory.used
    producer.flush()
    assert all(outcome.result(10)[1] is not None for outcome in outcomes)
    assert client.stats().memory_used_bytes == 0
