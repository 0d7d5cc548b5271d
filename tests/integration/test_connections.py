"""Connections and lookups under limits: order with several I/O threads, queues of lookups, idle connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import InitialPosition, MessageId, Result, TooManyLookupRequestException
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]


@pytest.mark.proves("C6")
def test_with_four_io_threads_each_topic_keeps_its_order(api: Api, broker: Broker, topic: NewTopic) -> None:
    client = api.client(broker.service_url, io_threads=4, connections_per_broker=4)
    names = [topic(f"order-{index}") for index in range(8)]
    consumers = [client.subscribe(name, "s", initial_position=InitialPosition.Earliest) for name in names]
    producers = [client.create_producer(name, batching_enabled=index % 2 == 0) for index, name in enumerate(names)]
    pending = []
    for number in range(200):
        for producer in producers:
            pending.append(api.enqueue(producer, str(number).encode()))
    for producer in producers:
        producer.flush()
    assert all(outcome.result(60)[1] is not None for outcome in pending)
    expected = [str(number).encode() for number in range(200)]
    for consumer in consumers:
        assert [consumer.receive(20_000).data() for _ in range(200)] == expected


@pytest.mark.proves("C11", "C12")
def test_lookups_over_the_limit_wait_and_those_over_the_queue_fail_at_once(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, concurrent_lookup_requests=2, max_lookup_requests=3)
    names = [topic() for _ in range(5)]
    client.get_topic_partitions(names[0])
    through.hold(Command.PARTITIONED_METADATA_RESPONSE, TO_CLIENT)

    def asked() -> int:
        return through.count(Command.PARTITIONED_METADATA, TO_BROKER) - 1

    with ThreadPoolExecutor(4) as threads:
        calls: list[Future[Any]] = []
        for name, on_the_way in zip(names[:3], (1, 2, 2), strict=True):
            calls.append(threads.submit(client.get_topic_partitions, name))
            eventually(lambda count=on_the_way: asked() == count)
        # The third one waits inside the client; when it does, there is no room for a fourth.
        core = getattr(client, "target", client)._core
        eventually(lambda: len(core.lookup._limit._waiters) == 1)
        started = time.monotonic()
        with pytest.raises(TooManyLookupRequestException, match="max_lookup_requests") as caught:
            client.create_producer(names[3])
        assert time.monotonic() - started < 10 and caught.value.topic == names[3]
        eventually(lambda: through.held == 2)
        assert asked() == 2 and not any(call.done() for call in calls)
        assert through.release() == 2
        assert [call.result(20) for call in calls] == [[name] for name in names[:3]]
    assert client.get_topic_partitions(names[4]) == [names[4]]


def test_an_idle_connection_is_given_up_and_made_again(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, connection_max_idle_seconds=0.5)
    name = topic()
    producer = client.create_producer(name)
    producer.send(b"x")
    time.sleep(1.5)  # three times what would be idle, if a producer did not count
    producer.send(b"y")
    assert through.accepted == 1 and through.connections == 1
    producer.close()
    eventually(lambda: through.connections == 0)
    client.create_producer(name).send(b"z")
    assert through.accepted == 2


def test_last_disconnected_timestamp_of_cut_and_unload(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    name, other = topic(partitions=2), topic("other")
    producer = client.create_producer(name)
    consumer = client.subscribe([name, other], "sub", initial_position=InitialPosition.Earliest)
    consumer.seek(MessageId.earliest)
    assert producer.last_disconnected_timestamp() == consumer.last_disconnected_timestamp() == 0
    times = []
    for disconnect in (through.cut, lambda: broker.admin("PUT", f"{name.replace('://', '/')}-partition-1/unload")):
        before = time.time_ns() // 1_000_000
        disconnect()
        eventually(lambda since=before: producer.last_disconnected_timestamp() >= since)
        eventually(lambda since=before: consumer.last_disconnected_timestamp() >= since)
        eventually(lambda: producer.is_connected() and consumer.is_connected())
        times.append((producer.last_disconnected_timestamp(), consumer.last_disconnected_timestamp()))
        assert before <= min(times[-1]) <= max(times[-1]) <= time.time() * 1000
    producer.send(b"x")
    assert consumer.receive(20_000).data() == b"x"
    consumer.close()
    producer.close()
    assert (producer.last_disconnected_timestamp(), consumer.last_disconnected_timestamp()) == times[-1]


@pytest.mark.proves("C20")
def test_moving_ends_the_back_off(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    old, new = relay(broker.service_url), relay(broker.service_url)
    client = api.client(old.service_url, starting_backoff_interval_ms=60_000, operation_timeout_seconds=80)
    name, later = topic(), topic("later")
    producer = client.create_producer(name)
    consumer = client.subscribe(name, "sub")
    old.refuse()
    old.cut()
    started = time.monotonic()
    waiting = api.enqueue(producer, b"x")
    with ThreadPoolExecutor(1) as pool:
        # It tries once, and would try again in a minute, as the other two.
        creating = pool.submit(client.create_producer, later)
        with pytest.raises(TimeoutError):
            creating.result(0.5)
        client.update_service_url(new.service_url)
        assert creating.result(20).send(b"y").entry_id() == 0
    assert waiting.result(20)[0] is Result.Ok
    assert consumer.receive(20_000).data() == b"x"
    assert time.monotonic() - started < 40
