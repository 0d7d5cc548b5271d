"""OpenTelemetry metrics of clients on a real broker."""

from __future__ import annotations

import builtins
import gc
import pickle
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import ExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from broker import free_port
from pulsar_native import (
    Client,
    ClientConfig,
    ConnectError,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InvalidConfiguration,
    MessageId,
    PulsarException,
    Result,
    TopicNotFound,
)
from pulsar_native.schema import AutoProduceBytesSchema, StringSchema
from support.apis import Api
from support.brokers import Broker, NewTopic
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
        found: dict[frozenset[tuple[str, Any]], Any] = {}
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

    def lookups(self) -> dict[tuple[str, str, str], int]:
        """Return how many lookups there were, by transport, type and outcome."""
        names = ("lookup.transport-type", "lookup.type", "response.status")
        return {
            tuple(dict(key)[f"pulsar.{name}"] for name in names): point.count
            for key, point in self.points("lookup.duration").items()
        }


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
    api: Api, broker: Broker, topic: NewTopic, metrics: Metrics, eventually: Eventually, interval: int
) -> None:
    name = topic()
    client = api.client(
        broker.service_url,
        meter_provider=metrics.provider,
        stats_interval_in_seconds=interval,
        memory_limit_bytes=64 * 1024 * 1024,
    )
    # Of ten messages each, however slow the machine: half an entry is not acknowledged.
    producer = client.create_producer(
        name, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=60_000
    )
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    api.send_all(producer, [b"abc"] * 100)
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
    assert point.count == 10 and 0 < point.sum < 100
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
def test_counters_never_fall(api: Api, broker: Broker, topic: NewTopic, metrics: Metrics) -> None:
    name, plain = topic(partitions=2), topic()
    for round_number in (1, 2):
        client = api.client(broker.service_url, meter_provider=metrics.provider)
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


def test_failures_and_what_waits(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, metrics: Metrics) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url, meter_provider=metrics.provider, memory_limit_bytes=1_000_000)
    producer = client.create_producer(name, batching_enabled=False, send_timeout_millis=1500)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    waiting = [api.enqueue(producer, b"abcd") for _ in range(3)]
    assert metrics.value("producer.message.pending.count", topic=name) == 3
    assert metrics.value("producer.message.pending.size", topic=name) == 12 == metrics.value("memory.buffer.usage")
    for each in waiting:
        each.result(30)
    assert metrics.value("producer.message.send.failed", topic=name) == 3
    for kind in ("message", "rpc"):
        ((key, point),) = metrics.points(f"producer.{kind}.send.duration").items()
        assert ("pulsar.response.status", "failed") in key and point.count == 3


def test_the_time_at_the_broker_is_told_from_that_in_the_batch(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, metrics: Metrics
) -> None:
    name = topic(partitions=2)
    through = relay(broker.service_url)
    client = api.client(through.service_url, meter_provider=metrics.provider)
    producer = client.create_producer(
        name, batching_enabled=True, batching_max_publish_delay_ms=1000, batching_max_messages=1000
    )
    waiting = [api.enqueue(producer, b"x", partition_key="key") for _ in range(10)]
    for each in waiting:
        each.result(30)
    (whole,) = metrics.points("producer.message.send.duration").values()
    ((key, rpc),) = metrics.points("producer.rpc.send.duration").items()
    assert whole.count == rpc.count < 10
    # In the batch for the second at least, which is none of the broker's.
    assert rpc.sum > 0 and rpc.sum + 0.8 * rpc.count < whole.sum
    attributes = dict(key)
    assert attributes.pop("pulsar.partition") in (0, 1)
    assert attributes == {
        "pulsar.tenant": "public",
        "pulsar.namespace": "public/default",
        "pulsar.topic": name,
        "pulsar.response.status": "success",
    }
    assert whole.explicit_bounds[0] < 0.001
    # A receipt that comes late is the broker's time.
    through.delay(1.0)
    producer.send(b"x", partition_key="key")
    (later,) = metrics.points("producer.rpc.send.duration").values()
    assert later.count == rpc.count + 1 and later.max >= 0.9


def test_connections_are_counted(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, metrics: Metrics, eventually: Eventually
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, meter_provider=metrics.provider)
    producer = client.create_producer(topic())
    producer.send(b"x")
    first = metrics.value("connection.opened")
    # A standalone is reached through its service URL and needs no second connection.
    assert (first, metrics.value("connection.closed"), metrics.value("connection.failed")) == (1, 0, 0)
    through.cut()
    producer.send(b"y")
    assert metrics.value("connection.opened") == 2 and metrics.value("connection.closed") == 1
    client.close()
    eventually(lambda: metrics.value("connection.closed") == metrics.value("connection.opened"))
    # Two clients of one provider are counted together.
    other = api.client(broker.service_url, meter_provider=metrics.provider)
    other.get_topic_partitions(topic())
    assert metrics.value("connection.opened") == 3


def test_connections_that_fail_are_counted_by_how_far_they_came(
    api: Api, broker: Broker, topic: NewTopic, metrics: Metrics, eventually: Eventually
) -> None:
    client = api.client(
        f"pulsar://127.0.0.1:{free_port()}", meter_provider=metrics.provider, operation_timeout_seconds=1
    )
    with pytest.raises(ConnectError):
        client.create_producer(topic())
    client.close()
    failed = metrics.value("connection.failed")
    assert failed > 1 and metrics.value("connection.failed", **{"failure.type": "tcp-failed"}) == failed
    assert metrics.value("connection.opened") == metrics.value("connection.closed") == 0
    # The port of the web service takes a connection, but knows no Pulsar.
    web = f"pulsar://{broker.admin_url.removeprefix('http://')}"
    client = api.client(web, meter_provider=metrics.provider, operation_timeout_seconds=2)
    with pytest.raises(PulsarException):
        client.create_producer(topic())
    eventually(lambda: metrics.value("connection.failed", **{"failure.type": "handshake"}) >= 1)
    assert metrics.value("connection.failed", **{"failure.type": "tcp-failed"}) == failed
    client.close()
    assert metrics.value("connection.opened") >= 1
    eventually(lambda: metrics.value("connection.closed") == metrics.value("connection.opened"))


@pytest.mark.parametrize("transport", ["binary", "http"])
def test_lookups_are_measured_by_kind_and_outcome(
    api: Api, broker: Broker, namespace: Callable[..., str], topic: NewTopic, metrics: Metrics, transport: str
) -> None:
    name = topic()
    url = broker.service_url if transport == "binary" else broker.admin_url
    client = api.client(url, meter_provider=metrics.provider)

    def told(outcome: str) -> dict[str, int]:
        # What a broker that is just loading the topic refuses is asked again, so there may be failed ones besides.
        found = metrics.lookups().items()
        assert {each for (each, _, _), _ in found} <= {transport}
        return {kind: count for (_, kind, status), count in found if status == outcome}

    client.create_producer(name, schema=StringSchema())
    assert told("success") == {"metadata": 1, "topic": 1}
    client.subscribe(re.compile(f"persistent://{namespace()}/.*"), "sub")
    assert told("success")["list-topics"] >= 1
    client.create_producer(name, schema=AutoProduceBytesSchema())
    assert told("success")["schema"] == 1
    assert all(point.sum > 0 for point in metrics.points("lookup.duration").values())
    # What the broker does not know it does not know the second time either: one attempt.
    before = told("failed").get("metadata", 0)
    with pytest.raises(TopicNotFound):
        client.get_partition_count(topic())
    assert told("failed")["metadata"] == before + 1


@pytest.mark.parametrize("transport", ["binary", "http"])
def test_lookups_at_a_closed_port_have_failed(api: Api, topic: NewTopic, metrics: Metrics, transport: str) -> None:
    scheme = "pulsar" if transport == "binary" else "http"
    url = f"{scheme}://127.0.0.1:{free_port()}"
    client = api.client(url, meter_provider=metrics.provider, operation_timeout_seconds=1)
    with pytest.raises(ConnectError):
        client.create_producer(topic())
    # Each attempt is one.
    (found,) = metrics.lookups().items()
    assert found[0] == (transport, "metadata", "failed") and found[1] > 1


def test_dead_letters_are_counted(
    api: Api, broker: Broker, topic: NewTopic, metrics: Metrics, eventually: Eventually
) -> None:
    name = topic()
    client = api.client(broker.service_url, meter_provider=metrics.provider)
    consumer = client.subscribe(
        name,
        "sub",
        ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
    )
    producer = client.create_producer(name)
    for content in (b"bad", b"worse"):
        producer.send(content)
    for _ in range(4):
        consumer.negative_acknowledge(consumer.receive(15_000))
    eventually(lambda: metrics.value("consumer.message.dlq", **split(name), subscription="sub") == 2)
    assert metrics.value("consumer.message.dlq") == 2
    # The letters are the messages of a producer like any other.
    assert metrics.value("producer.message.send.count", topic=f"{name}-sub-DLQ") == 2


class RaisingFilter(ExemplarFilter):
    """An application's filter that cannot say whether a value becomes an exemplar."""

    def should_sample(self, *_values: Any, **_named: Any) -> bool:
        raise ValueError("no trace")


def test_metrics_raising_exemplar_filter_ends_nothing(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    through = relay(broker.service_url)
    provider = MeterProvider([InMemoryMetricReader()], exemplar_filter=RaisingFilter())
    client = api.client(through.service_url, meter_provider=provider)
    # On one connection, so that receipts and messages come in the same reads.
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(name, batching_enabled=False)
    waiting = [api.enqueue(producer, b"%d" % number) for number in range(20)]
    assert [each.result(30)[0] for each in waiting] == [Result.Ok] * 20
    for number in range(20):
        message = consumer.receive(10_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    through.cut()
    producer.send(b"after the cut")
    while (message := consumer.receive(10_000)).data() != b"after the cut":
        # An acknowledgement may have been lost with the connection.
        assert message.redelivery_count()
    client.close()
    provider.shutdown()
    assert caplog.text.count("The meter provider failed to record pulsar.client.producer.rpc.send.duration") == 1


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
    api: Api, broker: Broker, metrics: Metrics, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidConfiguration, match="meter_provider"):
        api.client(broker.service_url, meter_provider="otlp")
    config = ClientConfig(service_url=broker.service_url, meter_provider=metrics.provider)
    assert pickle.loads(pickle.dumps(config)) == config and pickle.loads(pickle.dumps(config)).meter_provider is None
    client = api.client(broker.service_url, meter_provider=True)
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
