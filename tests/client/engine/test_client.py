"""Client core on a fake broker: operation time-outs, ids, errors before I/O, and closing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pulsar_native
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.enums import SubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidTopicName,
    LookupError,
    ProtocolViolation,
    PulsarException,
)
from pulsar_native.message_id import MessageId
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Seen, found, success, swallow
from support.until import wait_until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

TOPIC = "persistent://public/default/t"


# --- time-outs --------------------------------------------------------------------------------------------------


async def create_producer(core: ClientCore, _consumer: Any, _subscribed: Subscribed) -> None:
    await core.create_producer(ProducerConfig(topic="t"), None)


async def subscribe(core: ClientCore, _consumer: Any, subscribed: Subscribed) -> None:
    await subscribed(core)


async def read(core: ClientCore, _consumer: Any, subscribed: Subscribed) -> None:
    await subscribed(core, subscription_mode=SubscriptionMode.NonDurable, start_message_id=MessageId.latest)


async def ask_partitions(core: ClientCore, _consumer: Any, _subscribed: Subscribed) -> None:
    await core.topic_partitions("t")


async def ask_schema(core: ClientCore, _consumer: Any, _subscribed: Subscribed) -> None:
    await core.writer_schema("t", b"\x01")


async def seek(_core: ClientCore, consumer: Any, _subscribed: Subscribed) -> None:
    await consumer.seek(0)


async def unsubscribe(_core: ClientCore, consumer: Any, _subscribed: Subscribed) -> None:
    await consumer.unsubscribe()


async def ask_last_id(_core: ClientCore, consumer: Any, _subscribed: Subscribed) -> None:
    await consumer.last_message_id()


OPERATIONS: list[tuple[Callable[..., Awaitable[None]], int]] = [
    (create_producer, Kind.PARTITIONED_METADATA),
    (create_producer, Kind.LOOKUP),
    (create_producer, Kind.PRODUCER),
    (subscribe, Kind.PARTITIONED_METADATA),
    (subscribe, Kind.LOOKUP),
    (subscribe, Kind.SUBSCRIBE),
    (read, Kind.GET_LAST_MESSAGE_ID),
    (ask_partitions, Kind.PARTITIONED_METADATA),
    (ask_schema, Kind.GET_SCHEMA),
    (seek, Kind.SEEK),
    (seek, Kind.SUBSCRIBE),
    (unsubscribe, Kind.UNSUBSCRIBE),
    (ask_last_id, Kind.GET_LAST_MESSAGE_ID),
]


@pytest.mark.asyncio
@pytest.mark.proves("C4")
@pytest.mark.parametrize(
    ("operation", "swallowed"), OPERATIONS, ids=[f"{each.__name__}-{Kind.Name(kind)}" for each, kind in OPERATIONS]
)
async def test_operation_without_response_times_out_alone(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, operation: Any, swallowed: int
) -> None:
    limit = 1.0
    core = cores(fake.url, operation_timeout_seconds=limit)
    bystander = await subscribed(core, "other")
    consumer = await subscribed(core)
    fake.answers[swallowed] = swallow
    started = time.monotonic()
    with pytest.raises(PulsarException) as caught:
        await operation(core, consumer, subscribed)
    # Never before its time; what it takes longer is the machine, but not another operation's time-out.
    assert 0.9 * limit <= time.monotonic() - started < 1.9 * limit
    assert caught.value.retryable and caught.value.topic == TOPIC
    assert bystander.is_connected and len(fake.peers) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C4")
async def test_close_dead_broker_ends_in_time(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    core = cores(fake.url, operation_timeout_seconds=1.0)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    for number in range(3):
        await subscribed(core, f"t{number}")
    told: list[PulsarException | None] = []
    fake.peers[0].muted = True
    producer.enqueue(b"x", b"", None, lambda error, place: told.append(error))
    started = time.monotonic()
    await core.close()
    assert time.monotonic() - started < 1.9
    assert isinstance(told[0], AlreadyClosed)
    assert fake.peers[0].gone.wait(10)


@pytest.mark.asyncio
@pytest.mark.proves("C29")
async def test_create_producer_redirect_loop_is_reason(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.LOOKUP] = lambda peer, command: [found(command, fake.url, redirect=True)]
    # A second attempt would begin when the time is over.
    core = cores(fake.url, operation_timeout_seconds=20, starting_backoff_interval_ms=60_000)
    with pytest.raises(LookupError, match="more than 20 times") as caught:
        await core.create_producer(ProducerConfig(topic="t"), None)
    assert caught.value.topic == TOPIC
    assert len(fake.seen(Kind.LOOKUP)) == 21


# --- ids and names ----------------------------------------------------------------------------------------------


def request_id(seen: Seen) -> int | None:
    """Return the request id of a command, None where it has none."""
    for description, value in seen.command.ListFields():
        if description.name != "type" and "request_id" in value.DESCRIPTOR.fields_by_name:
            return int(value.request_id) if value.HasField("request_id") else None
    return None


@pytest.mark.asyncio
@pytest.mark.proves("C17")
async def test_ids_unique_per_connection(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.partitions[TOPIC] = 4
    core = cores(fake.url, starting_backoff_interval_ms=20)
    await asyncio.gather(*(core.create_producer(ProducerConfig(topic="t"), None) for _ in range(5)))
    consumers = await asyncio.gather(*(subscribed(core) for _ in range(5)))
    await consumers[0].seek(0)
    fake.peers[0].close(reset=True)
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 20 + 4 + 20)
    await asyncio.to_thread(fake.wait, Kind.PRODUCER, 20 + 20)
    await core.close()
    requests = [number for seen in fake.seen() if (number := request_id(seen)) is not None]
    assert len(requests) == len(set(requests)) > 100
    for peer in (0, 1):
        made = [seen.command.producer.producer_id for seen in fake.seen(Kind.PRODUCER) if seen.peer.number == peer]
        assert sorted(made) == list(range(20))
    subscriptions = {
        (seen.command.subscribe.consumer_id, seen.command.subscribe.consumer_name, seen.command.subscribe.topic)
        for seen in fake.seen(Kind.SUBSCRIBE)
    }
    assert len(subscriptions) == len({number for number, _, _ in subscriptions}) == 20


@pytest.mark.asyncio
@pytest.mark.proves("C33")
@pytest.mark.parametrize("name", ["a/b", "http://a/b/c", "persistent://a/b/c/d", "", "persistent://t n/ns/x"])
async def test_topic_name_invalid_raises_before_io(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, name: str
) -> None:
    core = cores(fake.url)
    for operation in (
        core.topic_partitions(name),
        core.topic_partition_count(name, auto_create=False),
        core.writer_schema(name, None),
        subscribed(core, name),
    ):
        with pytest.raises(InvalidTopicName):
            await operation
    with pytest.raises(PulsarException):
        await core.create_producer(ProducerConfig(topic=name), None)
    assert fake.peers == []


@pytest.mark.asyncio
@pytest.mark.proves("C19")
async def test_topic_partitions_names(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions.update({TOPIC: 4, "persistent://public/default/one": 1})
    core = cores(fake.url)
    assert await core.topic_partitions("t") == [f"{TOPIC}-partition-{index}" for index in range(4)]
    assert await core.topic_partitions("one") == ["persistent://public/default/one-partition-0"]
    assert await core.topic_partitions("none") == ["persistent://public/default/none"]
    asked = len(fake.seen(Kind.PARTITIONED_METADATA))
    assert await core.topic_partitions("t-partition-2") == [f"{TOPIC}-partition-2"]
    assert len(fake.seen(Kind.PARTITIONED_METADATA)) == asked


# --- the end ----------------------------------------------------------------------------------------------------


class Counting:
    """An authentication plug-in that counts its starts and closes."""

    method_name = "none"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def auth_data(self) -> bytes:
        return b""

    def http_headers(self) -> dict[str, str]:
        return {}

    def tls_certificate(self) -> None:
        return None

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.asyncio
@pytest.mark.proves("C3")
async def test_authentication_started_and_closed_once(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    plugin = Counting()
    core = cores(fake.url, authentication=plugin, starting_backoff_interval_ms=20)
    assert plugin.calls == []
    await subscribed(core)
    await core.create_producer(ProducerConfig(topic="t"), None)
    fake.peers[0].close()
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 2)
    assert plugin.calls == ["start"]
    await core.close()
    core.shutdown()
    assert plugin.calls == ["start", "close"]


@pytest.mark.asyncio
@pytest.mark.proves("C16")
async def test_closed_client_refuses_creation(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    core = cores(fake.url)
    await core.close()
    for operation in (
        create_producer(core, None, subscribed),
        subscribe(core, None, subscribed),
        ask_partitions(core, None, subscribed),
        ask_schema(core, None, subscribed),
        core.close(),
    ):
        with pytest.raises(AlreadyClosed):
            await operation
    assert fake.peers == []


@pytest.mark.asyncio
@pytest.mark.proves("C16", "C187")
@pytest.mark.parametrize("held", [Kind.PRODUCER, Kind.LOOKUP, Kind.CONNECT])
async def test_close_during_creation_leaves_nothing(fake: FakeBroker, cores: Cores, held: int) -> None:
    fake.answers[held] = swallow
    core = cores(fake.url)
    making = asyncio.create_task(core.create_producer(ProducerConfig(topic="t"), None))
    await asyncio.to_thread(fake.wait, held)
    await core.close()
    with pytest.raises((PulsarException, asyncio.CancelledError)):
        await asyncio.wait_for(making, 5)
    assert all(peer.gone.wait(10) for peer in fake.peers)
    assert core.producers == set() and core.pool.connections() == []


@pytest.mark.asyncio
@pytest.mark.proves("C187")
@pytest.mark.parametrize("rounds", [1, 2, 20])
async def test_close_cancelled_drops_connections(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, rounds: int
) -> None:
    core = cores(fake.url)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    consumer = await subscribed(core)
    fake.peers[0].muted = True
    outcomes: list[PulsarException | None] = []
    producer.enqueue(b"x", b"", None, lambda error, place: outcomes.append(error))
    closing = asyncio.create_task(core.close())
    for _ in range(rounds):
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert await asyncio.to_thread(fake.peers[0].gone.wait, 10)
    assert isinstance(outcomes[0], AlreadyClosed) and consumer.is_closed
    assert not core.producers and not core.consumers and not core.pool.connections()
    with pytest.raises(AlreadyClosed):
        await core.close()


@pytest.mark.proves("C187")
def test_close_sync_client_leaves_no_thread_or_socket(fake: FakeBroker) -> None:
    before = set(threading.enumerate())
    client = pulsar_native.Client(fake.url, message_listener_threads=2)
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    consumer = client.subscribe("t", "s", message_listener=lambda consumer, message: None)
    reader = client.create_reader("t", MessageId.earliest)
    outcomes: list[Any] = []
    producer.send_async(b"x", lambda result, place: outcomes.append(result))
    client.close()
    # The open batch was flushed, and everybody said goodbye.
    assert outcomes == [pulsar_native.Result.Ok]
    assert len(fake.seen(Kind.CLOSE_PRODUCER)) == 1 and len(fake.seen(Kind.CLOSE_CONSUMER)) == 2
    assert all(peer.gone.wait(10) for peer in fake.peers)
    wait_until(
        lambda: not [each for each in set(threading.enumerate()) - before if each.name.startswith("pulsar-native")]
    )
    for call in (lambda: producer.send(b"y"), lambda: consumer.acknowledge(MessageId(-1, 1, 1)), reader.read_next):
        with pytest.raises(AlreadyClosed):
            call()
    with pytest.raises(AlreadyClosed):
        producer.close()
    consumer.close()  # of consumers and readers a second close does nothing, as in the official client
    reader.close()


@pytest.mark.proves("C188")
def test_shutdown_immediate_without_close_commands(fake: FakeBroker) -> None:
    client = pulsar_native.Client(fake.url)
    producer = client.create_producer("t", send_timeout_millis=0)
    consumer = client.subscribe("t", "s")
    fake.answers[Kind.SEND] = swallow
    outcomes: list[Any] = []
    producer.send_async(b"x", lambda result, place: outcomes.append(result))
    ended: list[BaseException] = []

    def receive() -> None:
        try:
            consumer.receive()
        except BaseException as error:
            ended.append(error)

    waiting = threading.Thread(target=receive)
    waiting.start()
    wait_until(consumer._inner.has_waiters)
    started = time.monotonic()
    client.shutdown()
    assert time.monotonic() - started < 2
    assert outcomes == [pulsar_native.Result.AlreadyClosed]
    waiting.join(10)
    assert isinstance(ended[0], AlreadyClosed)
    assert fake.peers[0].gone.wait(10)
    assert fake.seen(Kind.CLOSE_PRODUCER, Kind.CLOSE_CONSUMER) == []


@pytest.mark.proves("C187", "C189")
def test_close_wakes_receivers(fake: FakeBroker) -> None:
    client = pulsar_native.Client(fake.url)
    consumer = client.subscribe("t", "s")
    told: list[BaseException] = []

    def receive() -> None:
        try:
            consumer.receive()
        except BaseException as error:
            told.append(error)

    waiting = [threading.Thread(target=receive) for _ in range(3)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(consumer._inner._waiters) == 3)
    consumer.close()
    for thread in waiting:
        thread.join(10)
    assert [type(error) for error in told] == [AlreadyClosed] * 3
    client.close()


@pytest.mark.asyncio
async def test_broker_unexpected_response_raises(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.PRODUCER] = lambda peer, command: [success(command.producer.request_id)]
    core = cores(fake.url, operation_timeout_seconds=0.3)
    with pytest.raises(ProtocolViolation, match="CommandSuccess instead of CommandProducerSuccess") as caught:
        await core.create_producer(ProducerConfig(topic="t"), None)
    assert caught.value.broker == fake.address
    fake.answers[Kind.PARTITIONED_METADATA] = lambda peer, command: [success(command.partitionMetadata.request_id)]
    with pytest.raises(ProtocolViolation):
        await core.topic_partitions("t")
