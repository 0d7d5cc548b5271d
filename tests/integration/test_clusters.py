"""One client and two clusters: moved by hand, by a provider, by failing over, and by the clusters themselves."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from broker import Standalone, free_port
from pulsar_native import (
    AutoClusterFailover,
    Client,
    ControlledClusterFailover,
    InitialPosition,
    MessageId,
    PolledServiceInfo,
    Result,
    ServiceInfo,
    ServiceInfoProvider,
)
from support.apis import Api
from support.brokers import Broker, NewTopic, admin
from support.http_peer import Answer, http_peer
from support.relay import TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]


class Pair(NamedTuple):
    """Two clusters that know nothing of each other."""

    blue: Broker
    green: Standalone


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Give a cluster besides the shared one."""
    conf = {"clusterMigrationCheckDurationSeconds": "1"}
    with Standalone(tmp_path_factory.mktemp("green"), deduplication=True, conf=conf, heap="512m") as started:
        yield started


@pytest.fixture
def pair(broker: Broker, green: Standalone) -> Pair:
    """Give the shared cluster and the other one, both running."""
    if green.process_id() is None:
        green.restart()
    return Pair(broker, green)


def read(service_url: str, topic: str) -> list[tuple[int, bytes]]:
    """Return sequence ids and contents of a topic in one cluster."""
    with Client(service_url) as client, client.create_reader(topic, MessageId.earliest) as reader:
        found = []
        while reader.has_message_available():
            message = reader.read_next(20_000)
            found.append((message.sequence_id(), message.data()))
        return found


@pytest.mark.proves("C20")
def test_a_new_url_takes_producers_along_with_all_that_is_pending(
    api: Api, pair: Pair, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    through = relay(pair.blue.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(name, producer_name="mover", initial_sequence_id=41, batching_enabled=False)
    consumer = client.subscribe(name, "s")
    producer.send(b"blue")
    assert consumer.receive(10_000).data() == b"blue"
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    pending = [api.enqueue(producer, str(number).encode()) for number in range(20)]
    eventually(lambda: through.held == 20)
    client.update_service_url(pair.green.service_url)
    assert client.get_service_info().service_url == pair.green.service_url
    pending += [api.enqueue(producer, str(number).encode()) for number in range(20, 30)]
    assert [outcome.result(60)[0] for outcome in pending] == [Result.Ok] * 30
    expected = [(43 + number, str(number).encode()) for number in range(30)]
    assert read(pair.green.service_url, name) == expected
    assert producer.last_sequence_id() == 72
    # The consumer has come along: from now on it hears what is published there.
    eventually(lambda: consumer.is_connected())
    producer.send(b"green")
    while (message := consumer.receive(20_000)).data() != b"green":
        pass
    assert message.sequence_id() == 73
    eventually(lambda: through.connections == 0)


class Moving(ServiceInfoProvider):
    """A provider the test moves."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.closed = False
        self.push: Callable[[ServiceInfo], None] | None = None

    def initial_service_info(self) -> ServiceInfo:
        return ServiceInfo(self.first)

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        self.push = on_service_info_update

    def close(self) -> None:
        self.closed = True


@pytest.mark.proves("C2", "C22")
@pytest.mark.parametrize("kind", ["provider", "callable"])
def test_a_provider_moves_the_client_and_the_producer_continues(
    api: Api, pair: Pair, relay: NewRelay, topic: NewTopic, eventually: Eventually, kind: str
) -> None:
    name = topic()
    through = relay(pair.blue.service_url)
    current = [through.service_url]
    provider = Moving(through.service_url)
    client: Any = api.client(
        provider if kind == "provider" else PolledServiceInfo(lambda: current[0], check_interval_ms=50)
    )
    producer = client.create_producer(name)
    producer.send(b"one")
    assert through.connections > 0
    if kind == "provider":
        assert provider.push is not None
        provider.push(ServiceInfo(pair.green.service_url))
    current[0] = pair.green.service_url
    eventually(lambda: through.connections == 0)
    producer.send(b"two")
    assert client.get_service_info().service_url == pair.green.service_url
    assert [content for _, content in read(pair.blue.service_url, name)] == [b"one"]
    assert [content for _, content in read(pair.green.service_url, name)] == [b"two"]
    client.close()
    assert provider.closed == (kind == "provider")


@pytest.mark.proves("C2", "C22")
def test_when_the_primary_dies_the_secondary_is_used_until_it_is_back(
    api: Api, pair: Pair, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    dead = ServiceInfo(f"pulsar://127.0.0.1:{free_port()}")
    primary, secondary = ServiceInfo(pair.green.service_url), ServiceInfo(pair.blue.service_url)
    failover = AutoClusterFailover(
        primary, [dead, secondary], check_interval_ms=200, failover_threshold=2, switch_back_threshold=2
    )
    client = api.client(failover)
    producer = client.create_producer(name, send_timeout_millis=0)
    producer.send(b"primary")
    pair.green.kill()
    during = [api.enqueue(producer, str(number).encode()) for number in range(5)]
    assert [outcome.result(60)[0] for outcome in during] == [Result.Ok] * 5
    assert client.get_service_info() == secondary
    pair.green.restart()
    eventually(lambda: client.get_service_info() == primary, 30)
    # The primary may have been found before it serves: broker-behaviour.md#listens-before-serving.
    producer.send(b"back")
    assert [content for _, content in read(pair.blue.service_url, name)] == [b"0", b"1", b"2", b"3", b"4"]
    assert [content for _, content in read(pair.green.service_url, name)] == [b"primary", b"back"]


@pytest.mark.proves("C2", "C22")
def test_a_web_service_moves_the_client(api: Api, pair: Pair, topic: NewTopic, eventually: Eventually) -> None:
    name = topic()
    answer = [Answer(503)]
    with http_peer(lambda _: answer[0]) as peer:
        failover = ControlledClusterFailover(
            pair.blue.service_url, f"{peer.url}/cluster", {"X-Token": "t"}, check_interval_ms=100
        )
        client = api.client(failover)
        producer = client.create_producer(name)
        consumer = client.subscribe(name, "s")
        producer.send(b"default")
        assert consumer.receive(10_000).data() == b"default"
        eventually(lambda: len(peer.asked) > 2)
        assert client.get_service_info().service_url == pair.blue.service_url
        answer[0] = Answer(200, json.dumps({"serviceUrl": pair.green.service_url}).encode())
        eventually(lambda: client.get_service_info().service_url == pair.green.service_url)
        producer.send(b"green")
        eventually(lambda: consumer.is_connected())
        assert peer.asked[0].headers["X-Token"] == "t"
        client.close()
    assert [content for _, content in read(pair.blue.service_url, name)] == [b"default"]
    assert [content for _, content in read(pair.green.service_url, name)] == [b"green"]


@pytest.mark.proves("C1")
def test_dead_hosts_of_a_list_cost_one_attempt_each(api: Api, pair: Pair, topic: NewTopic) -> None:
    host = pair.blue.service_url.removeprefix("pulsar://")
    web = pair.blue.admin_url.removeprefix("http://")
    for url, live in ((f"pulsar://127.0.0.1:{{}},{host},127.0.0.1:{{}}", host),
                      (f"http://127.0.0.1:{{}},{web},127.0.0.1:{{}}", web)):  # fmt: skip
        for _ in range(3):  # whatever comes first
            client = api.client(url.format(free_port(), free_port()), operation_timeout_seconds=10)
            for _ in range(3):
                client.create_producer(topic()).send(b"x")
            pool = getattr(client, "target", client)._core.pool
            # By now both dead ones have been tried, or the turn has not come to them.
            left = {str(pool.next_host()) for _ in range(6)}
            assert live in left and len(left) <= 2
            client.close()


@pytest.mark.proves("C190")
def test_topics_that_migrate_take_their_producers_and_consumers_along(api: Api, pair: Pair) -> None:
    """PIP-188 on two real clusters: the old one tells where the topics of a namespace are now."""
    old, new = pair.green, pair.blue
    namespace = f"public/migrating-{uuid.uuid4().hex[:8]}"
    for url in (old.admin_url, new.admin_url):
        admin(url, "PUT", f"namespaces/{namespace}")
    name = f"persistent://{namespace}/topic"
    client = api.client(old.service_url, operation_timeout_seconds=5)
    consumer = client.subscribe(name, "s", initial_position=InitialPosition.Earliest)
    producer = client.create_producer(name, send_timeout_millis=0)
    producer.send(b"old")
    there = {"serviceUrl": new.admin_url, "brokerServiceUrl": new.service_url}
    admin(old.admin_url, "POST", "clusters/standalone/migrate?migrated=false", there)
    admin(old.admin_url, "POST", f"namespaces/{namespace}/migration", True)
    deadline = time.monotonic() + 60
    sent = [b"old"]
    while not any(content != b"old" for _, content in read(new.service_url, name)):
        assert time.monotonic() < deadline
        sent.append(str(len(sent)).encode())
        producer.send(sent[-1])
    producer.send(b"new")
    # What the old cluster has for the subscription comes first; when all is acknowledged the consumer follows.
    received = []
    while not received or received[-1] != b"new":
        message = consumer.receive(60_000)
        received.append(message.data())
        consumer.acknowledge(message)
    assert list(dict.fromkeys(received)) == [*sent, b"new"]
    # The client as a whole has not moved.
    assert client.get_service_info().service_url == old.service_url
