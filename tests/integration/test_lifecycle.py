"""Opening and closing: connections, threads and sockets that are left, garbage collection, authentication plug-ins."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pulsar_native.asyncio
from broker import free_port
from pulsar_native import (
    AlreadyClosed,
    Authentication,
    Client,
    ConsumerType,
    InitialPosition,
    MessageId,
    PulsarException,
    Result,
    Timeout,
    TopicTerminated,
)
from support.apis import Api, inner
from support.brokers import Broker, NewTopic
from support.raw import commands_of
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay
from support.until import until

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]


class Counting(Authentication):
    """A plug-in that counts."""

    method_name = "none"

    def __init__(self) -> None:
        self.started = self.closed = 0

    def start(self) -> None:
        self.started += 1

    def close(self) -> None:
        self.closed += 1


@pytest.mark.proves("C3")
def test_the_plug_in_is_started_and_closed_once(api: Api, broker: Broker, topic: NewTopic) -> None:
    plug_in = Counting()
    client = api.client(broker.service_url, authentication=plug_in, connections_per_broker=2)
    name = topic()
    for _ in range(3):
        client.create_producer(name).close()
        client.subscribe(name, "sub").close()
    assert (plug_in.started, plug_in.closed) == (1, 0)
    client.close()
    assert (plug_in.started, plug_in.closed) == (1, 1)


@pytest.mark.proves("C8")
def test_connections_per_broker(api: Api, broker: Broker, topic: NewTopic, stats: Stats) -> None:
    name = topic()
    for setting, wanted in ((1, 1), (3, 3), (0, 24)):
        client = api.client(broker.service_url, connections_per_broker=setting)
        producers = [client.create_producer(name) for _ in range(24)]
        addresses = {each["address"] for each in stats(name)["publishers"]}
        # By chance: all of three are used with 24 producers but for one case in five thousand.
        assert len(addresses) == wanted
        for producer in producers:
            api.send_all(producer, [b"x"])
        client.close()


@pytest.mark.proves("C9")
def test_sockets_have_no_delay(api: Api, client: Any, topic: NewTopic) -> None:
    producer = client.create_producer(topic())
    (connection,) = inner(producer).client.pool.connections()
    sock = connection._transport._sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.proves("C24")
def test_the_handshake_comes_first_and_teaches_the_maximum(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    through = relay(broker.service_url)
    through.hold(Command.CONNECTED, TO_CLIENT)
    client = api.client(through.service_url)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(client.create_producer, topic())
        through.wait_for(Command.CONNECTED)
        time.sleep(0.2)  # time enough to send something too early
        assert [each.command for each in through.frames(direction=TO_BROKER)] == [Command.CONNECT]
        through.release()
        producer = made.result(20)
    (connect,) = commands_of(through, Command.CONNECT)[:1]
    (connected,) = commands_of(through, Command.CONNECTED, TO_CLIENT)[:1]
    (connection,) = inner(producer).client.pool.connections()
    assert connection.core.protocol_version == connected.connected.protocol_version >= 19
    assert connection.max_message_size == connected.connected.max_message_size == 5 * 1024 * 1024
    assert connect.connect.protocol_version >= connected.connected.protocol_version


def test_several_hosts_some_of_them_dead(api: Api, broker: Broker, topic: NewTopic) -> None:
    host = broker.service_url.removeprefix("pulsar://")
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    for hosts in ([*dead, host], [dead[0], host, dead[1]], [host, *dead]):
        client = api.client(f"pulsar://{','.join(hosts)}", operation_timeout_seconds=10)
        client.create_producer(topic()).send(b"x")
        client.close()


@pytest.mark.proves("C187")
def test_closing_the_client_leaves_no_thread_and_no_socket(
    api: Api, broker: Broker, topic: NewTopic, stats: Stats
) -> None:
    name = topic()
    threads = {thread.name for thread in threading.enumerate()}
    client = api.client(broker.service_url)
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    consumer = client.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    reader = client.create_reader(name, MessageId.earliest)
    connections = inner(producer).client.pool.connections()
    unsent = [api.enqueue(producer, b"in the batch") for _ in range(3)]
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 10
    assert [outcome.result(1)[0] for outcome in unsent] == [Result.Ok] * 3
    found = stats(name)
    assert found["publishers"] == [] and found["subscriptions"]["sub"]["consumers"] == []
    assert connections and all(each._transport._sock.fileno() == -1 for each in connections)
    for use in (lambda: producer.send(b"x"), consumer.receive, reader.read_next, client.close):
        with pytest.raises(AlreadyClosed):
            use()
    deadline = time.monotonic() + 5
    # Threads "asyncio_…" belong to the caller's loop, which resolves host names in them.
    while (left := {each.name for each in threading.enumerate() if "asyncio_" not in each.name} - threads) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert not left


@pytest.mark.proves("C188")
def test_shutdown_ends_at_once(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(name, batching_enabled=False)
    client.subscribe(name, "sub")
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    pending = [api.enqueue(producer, b"x") for _ in range(10)]
    started = time.monotonic()
    client.shutdown()
    assert time.monotonic() - started < 5
    assert {outcome.result(1)[0] for outcome in pending} == {Result.AlreadyClosed}
    eventually(lambda: stats(name)["publishers"] == [] and stats(name)["subscriptions"]["sub"]["consumers"] == [])
    assert through.count(Command.CLOSE_PRODUCER) == through.count(Command.CLOSE_CONSUMER, TO_BROKER) == 0


@pytest.mark.proves("C189")
def test_closing_a_consumer_sends_its_acknowledgements_and_wakes_who_waits(
    api: Api, client: Any, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", acknowledgment_group_time_ms=60_000)
    api.send_all(client.create_producer(name, batching_enabled=False), [b"x"] * 5)
    for _ in range(5):
        consumer.acknowledge(consumer.receive(10_000))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(consumer.receive), pool.submit(consumer.receive, 60_000)]
        eventually(lambda: len(inner(consumer)._waiters) == 2)
        consumer.close()
        assert all(isinstance(each.exception(10), AlreadyClosed) for each in waiting)
    assert stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0


@pytest.mark.proves("C171")
def test_unsubscribe_removes_or_leaves_usable(api: Api, client: Any, topic: NewTopic, stats: Stats) -> None:
    name = topic()
    first, second = (client.subscribe(name, "sub", ConsumerType.Shared) for _ in range(2))
    with pytest.raises(PulsarException):
        first.unsubscribe()
    producer = client.create_producer(name, batching_enabled=False)
    second.close()
    api.send_all(producer, [b"still here"])
    assert first.receive(10_000).data() == b"still here"
    first.unsubscribe()
    assert stats(name)["subscriptions"] == {}
    with pytest.raises(AlreadyClosed):
        first.receive(100)


@pytest.mark.proves("C172")
def test_without_a_schema_the_topic_gets_none(api: Api, client: Any, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    client.subscribe(name, "sub")
    client.create_producer(name).send(b"x")
    with pytest.raises(urllib.error.HTTPError) as caught:
        broker.admin("GET", f"schemas/{name.split('://')[1]}/schema")
    assert caught.value.code == 404


def test_a_forgotten_client_ends_by_itself(
    broker: Broker, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    made = Client(broker.service_url).create_producer(name)
    made.send(b"x")
    del made
    gc.collect()
    eventually(lambda: stats(name)["publishers"] == [])


@pytest.mark.parametrize("kind", ["consumer", "reader", "table view"])
def test_forgotten_client_with_a_listener_ends_by_itself(
    broker: Broker, relay: NewRelay, topic: NewTopic, plain_client: Client, eventually: Eventually, kind: str
) -> None:
    through, name = relay(broker.service_url), topic()
    threads, heard = set(threading.enumerate()), list[Any]()
    client = Client(through.service_url)
    # What listens is dropped at once, and goes on as long as its client is there.
    if kind == "consumer":
        client.subscribe(name, "sub", message_listener=lambda consumer, message: heard.append(message.data()))
    elif kind == "reader":
        client.create_reader(name, MessageId.earliest, reader_listener=lambda reader, message: heard.append(message))
    else:
        client.create_table_view(name).listen(lambda key, value: heard.append(key))
    gc.collect()
    producer = plain_client.create_producer(name)
    producer.send(b"x", partition_key="k")
    eventually(lambda: len(heard) == 1)
    gone = weakref.ref(client)
    del client
    eventually(lambda: gc.collect() >= 0 and gone() is None)
    eventually(lambda: through.connections == 0)
    eventually(lambda: not [each for each in set(threading.enumerate()) - threads if "listener" in each.name])
    producer.send(b"y", partition_key="l")
    time.sleep(0.2)
    assert len(heard) == 1


@pytest.mark.parametrize("ending", ["", "client.close()", "consumer.receive(1)"])
def test_nothing_hangs_at_the_interpreters_end(broker: Broker, topic: NewTopic, ending: str) -> None:
    program = f"""
import pulsar_native, threading
client = pulsar_native.Client({broker.service_url!r})
producer = client.create_producer({topic()!r})
consumer = client.subscribe(producer.topic(), "sub")
producer.send_async(b"x", None)
def wait():
    try:
        consumer.receive()
    except pulsar_native.AlreadyClosed:
        pass
threading.Thread(target=wait, daemon=True).start()
try:
    {ending or "pass"}
except pulsar_native.Timeout:
    pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_with_blocks(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    with (
        Client(broker.service_url) as client,
        client.create_producer(name) as producer,
        client.subscribe(name, "sub") as consumer,
    ):
        producer.send(b"x")
        assert consumer.receive(10_000).data() == b"x"
        with pytest.raises(Timeout):
            consumer.receive(1)
    with pytest.raises(AlreadyClosed):
        producer.send(b"y")


@pytest.mark.parametrize("ending", ["close", "terminated"])
def test_closed_parts_are_not_kept_by_their_client(
    api: Api, broker: Broker, client: Any, topic: NewTopic, ending: str, eventually: Eventually
) -> None:
    name = topic()
    kept = client.create_producer(name, send_timeout_millis=60_000, batching_enabled=False)
    kept.send(b"x")
    slow = {"batching_enabled": True, "batching_max_publish_delay_ms": 60_000, "send_timeout_millis": 60_000}
    made = [client.create_producer(name, **slow), client.create_producer(topic(partitions=2), **slow)]
    for producer in made:
        api.send_all(producer, [b"%d" % number for number in range(3)])
        # Open batches, each with a timer of a minute.
        api.enqueue(producer, b"last")
    receiving: list[Any] = [
        client.subscribe(name, "sub", ConsumerType.Shared, acknowledgment_group_time_ms=60_000,
                         unacked_messages_timeout_ms=60_000, negative_ack_redelivery_delay_ms=60_000),
        client.create_reader(name, MessageId.earliest),
        client.create_table_view(name),
    ]  # fmt: skip
    kept.send(b"y")
    consumer = receiving[0]
    for action in (consumer.acknowledge, consumer.negative_acknowledge):
        kept.send(b"z")
        action(consumer.receive(10_000))
    receiving[1].read_next(10_000)
    if ending == "terminated":
        broker.admin("POST", f"{name.replace('://', '/')}/terminate")
        eventually(lambda: refuses(made[0]))
    parts = [weakref.ref(child) for each in [*made, *receiving[:2]] for child in inner(each).children]
    parts += [weakref.ref(child) for child in inner(receiving[2]).children]
    assert len(parts) == 6
    for each in [*made, *receiving]:
        # A terminated topic's producer has failed already.
        with contextlib.suppress(AlreadyClosed):
            each.close()
    del each, producer, consumer, action
    made.clear()
    receiving.clear()
    # Far below the minute of each timer; a listener thread or a task may be at its last step.
    eventually(lambda: gc.collect() >= 0 and all(part() is None for part in parts), 10)


def refuses(producer: Any) -> bool:
    """Return True if a producer has learned that its topic is terminated."""
    try:
        producer.send(b"more")
    except TopicTerminated:
        return True
    return False


async def parts_of_dropped_client(service_url: str, name: str) -> list[Any]:
    """Return one of everything a client makes, used, and drop the client itself."""
    client = pulsar_native.asyncio.Client(service_url, stats_interval_in_seconds=60)
    consumer = await client.subscribe(name, "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=60_000)
    parts: list[Any] = [
        consumer,
        await client.subscribe(re.compile(re.escape(name)), "pattern", initial_position=InitialPosition.Earliest),
        await client.create_producer(name, send_timeout_millis=60_000),
        await client.create_reader(name, MessageId.earliest),
        await client.create_table_view(name),
        await client.new_transaction(),
    ]
    await parts[2].send(b"x", partition_key="k")
    await consumer.negative_acknowledge(await consumer.receive())
    return parts


async def test_dropped_asyncio_client_leaves_nothing(broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through, name = relay(broker.service_url), topic()
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    parts = await parts_of_dropped_client(through.service_url, name)
    assert through.connections > 0 and len(asyncio.all_tasks() - tasks) > 1
    parts.clear()
    gc.collect()
    await until(lambda: through.connections == 0 and asyncio.all_tasks() == tasks)
    left = [each.name for each in set(threading.enumerate()) - threads if each.name.startswith("pulsar-native")]
    assert left == []


@pytest.mark.parametrize("kept", ["consumer", "pattern", "producer", "reader", "table view", "transaction"])
async def test_dropped_asyncio_client_lives_for_its_parts(
    broker: Broker, relay: NewRelay, topic: NewTopic, kept: str
) -> None:
    through = relay(broker.service_url)
    parts = await parts_of_dropped_client(through.service_url, topic())
    names = ["consumer", "pattern", "producer", "reader", "table view", "transaction"]
    part = parts[names.index(kept)]
    parts.clear()
    gc.collect()
    await asyncio.sleep(0.1)  # time enough to close what is not wanted any more
    assert through.connections > 0
    if kept == "consumer":
        part.redeliver_unacknowledged_messages()
        assert (await part.receive(20_000)).data() == b"x"
    elif kept == "pattern":
        assert (await part.receive(20_000)).data() == b"x"
    elif kept == "producer":
        await part.send(b"y")
    elif kept == "reader":
        assert (await part.read_next(20_000)).data() == b"x"
    elif kept == "table view":
        await part.refresh()
        assert dict(part) == {"k": b"x"}
    else:
        await part.commit()
    del part
    gc.collect()
    await until(lambda: through.connections == 0)
