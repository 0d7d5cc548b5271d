"""OpenTelemetry metrics of clients on a real broker."""

from __future__ import annotations

import builtins
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pulsar_native import Client, ClientConfig, ConsumerType, InvalidConfiguration, MessageId
from support.brokers import Broker, NewTopic
from support.faces import Face
from support.relay import TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]


class Metrics:
    """What a provider's reader collects."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def points(self, name: str) -> dict[frozenset[tuple[str, Any]], Any]:
        """Collect, and return a metric's points by their attributes."""
        data = self._reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == f"pulsar.client.{name}":
                        assert not found, "the metric is there twice"
                        found = {
                            frozenset((point.attributes or {}).items()): point for point in metric.data.data_points
                        }
        return found

    def value(self, name: str, **attributes: Any) -> Any:
        """Return the sum of a metric's points that have these attributes."""
        wanted = {(f"pulsar.{key}", value) for key, value in attributes.items()}
        return sum(point.value for key, point in self.points(name).items() if wanted <= key)


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    """Give a provider of one's own."""
    made = Metrics()
    yield made
    made.provider.shutdown()


def split(name: str) -> Mapping[str, str]:
    return {"tenant": "public", "namespace": "public/default", "topic": name}


@pytest.mark.proves("C183", "C184")
@pytest.mark.parametrize("interval", [600, 0])
def test_metrics_have_the_java_clients_names_and_our_figures(
    face: Face, broker: Broker, topic: NewTopic, metrics: Metrics, eventually: Eventually, interval: int
) -> None:
    name = topic()
    client = face.client(broker.service_url, meter_provider=metrics.provider, stats_interval_in_seconds=interval)
    producer = client.create_producer(name, batching_enabled=True, batching_max_messages=10)
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    face.send_all(producer, [b"abc"] * 100)
    messages = [consumer.receive(10_000) for _ in range(90)]
    for message in messages:
        consumer.acknowledge(message)
    where = split(name)
    assert metrics.value("producer.message.send.size", **where) == 300
    assert metrics.value("producer.message.send.count", **where) == 100
    assert metrics.value("producer.message.pending.count", **where) == 0
    duration = metrics.points("producer.message.send.duration")
    (point,) = duration.values()
    assert {("pulsar.topic", name), ("pulsar.response.status", "success")} <= next(iter(duration))
    # Entries, not messages.
    assert 10 <= point.count < 100 and 0 < point.sum < 100
    there = {**where, "subscription": "sub"}
    assert metrics.value("consumer.message.received.count", **there) == 90
    assert metrics.value("consumer.message.received.size", **there) == 270
    eventually(lambda: metrics.value("consumer.receive_queue.count", **there) == 10)
    assert metrics.value("consumer.receive_queue.size", **there) >= 30
    eventually(lambda: metrics.value("consumer.message.ack", **there) == 90)
    consumer.negative_acknowledge(consumer.receive(10_000))
    assert metrics.value("consumer.message.nack", **there) == 1
    assert metrics.value("memory.buffer.limit") == 64 * 1024 * 1024 and metrics.value("memory.buffer.usage") == 0
    assert producer.stats().total_msgs_sent == 100


@pytest.mark.proves("C185")
def test_counters_never_fall(face: Face, broker: Broker, topic: NewTopic, metrics: Metrics) -> None:
    name, plain = topic(partitions=2), topic()
    for round_number in (1, 2):
        client = face.client(broker.service_url, meter_provider=metrics.provider)
        producer = client.create_producer(name)
        for number in range(6):
            producer.send(b"x", partition_key=f"key {number}")
        client.create_producer(plain).send(b"y")
        reader = client.create_reader(plain, MessageId.earliest)
        reader.read_next(10_000)
        assert metrics.value("producer.opened", topic=name) == 2 * round_number
        assert metrics.value("producer.closed", topic=name) == 2 * (round_number - 1)
        before = metrics.value("producer.message.send.count")
        assert before == 7 * round_number
        by_partition = [metrics.value("producer.message.send.count", topic=name, partition=index) for index in (0, 1)]
        assert sum(by_partition) == 6 * round_number and all(by_partition)
        client.close()
        assert metrics.value("producer.message.send.count") == before
        assert metrics.value("producer.opened") == metrics.value("producer.closed") == 3 * round_number
        assert metrics.value("consumer.message.received.count") == round_number
        assert metrics.value("consumer.closed") == round_number


def test_failures_and_what_waits(
    face: Face, broker: Broker, relay: NewRelay, topic: NewTopic, metrics: Metrics
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = face.client(through.service_url, meter_provider=metrics.provider)
    producer = client.create_producer(name, batching_enabled=False, send_timeout_millis=1500)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    waiting = [face.enqueue(producer, b"abcd") for _ in range(3)]
    assert metrics.value("producer.message.pending.count", topic=name) == 3
    assert metrics.value("producer.message.pending.size", topic=name) == 12 == metrics.value("memory.buffer.usage")
    for each in waiting:
        each.result(30)
    assert metrics.value("producer.message.send.failed", topic=name) == 3
    (key,) = metrics.points("producer.message.send.duration")
    assert ("pulsar.response.status", "failed") in key


def test_a_forgotten_client_is_not_kept(
    broker: Broker, topic: NewTopic, metrics: Metrics, eventually: Eventually
) -> None:
    client = Client(broker.service_url, meter_provider=metrics.provider)
    client.create_producer(topic()).send(b"x")
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    eventually(lambda: metrics.value("producer.closed") == 1)
    assert metrics.value("producer.message.send.count") == 1


def test_what_is_no_provider_is_refused_and_a_description_goes_without(
    face: Face, broker: Broker, metrics: Metrics, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidConfiguration, match="meter_provider"):
        face.client(broker.service_url, meter_provider="otlp")
    config = ClientConfig(service_url=broker.service_url, meter_provider=metrics.provider)
    assert pickle.loads(pickle.dumps(config)) == config and pickle.loads(pickle.dumps(config)).meter_provider is None
    client = face.client(broker.service_url, meter_provider=True)
    original = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InvalidConfiguration, match=r"pulsar-native\[opentelemetry\]"):
        client.create_producer(topic())
    monkeypatch.undo()
    client.create_producer(topic()).send(b"the process's own provider")
