"""Pausing on a real broker: the plain way grants no more, the strict way gives out nothing more."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import BatchReceivePolicy, Client, ConsumerType, InitialPosition, Message, Timeout
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.publishing import publish_groups
from support.relay import TO_BROKER, Command, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest
SHARED = (ConsumerType.Shared, ConsumerType.KeyShared)
ORDERED = (ConsumerType.Exclusive, ConsumerType.Failover)


def contents(first: int, last: int) -> list[bytes]:
    return [b"%03d" % number for number in range(first, last)]


def publish(client: Client, name: str, *messages: bytes) -> None:
    """Publish entries of one message each."""
    publish_groups(client, name, *([content] for content in messages))


def take(consumer: Any, count: int) -> list[Message]:
    return [consumer.receive(20_000) for _ in range(count)]


def data_of(messages: list[Message]) -> list[bytes]:
    return [message.data() for message in messages]


def nothing_comes(consumer: Any) -> None:
    with pytest.raises(Timeout):
        consumer.receive(200)
    assert consumer.batch_receive() == []


def seen_of(stats: Stats, name: str, consumer: Any) -> dict[str, Any]:
    """Return what the broker tells of a consumer."""
    consumers = stats(name)["subscriptions"]["sub"]["consumers"]
    return next(each for each in consumers if each["consumerName"] == consumer.consumer_name())


def queued(consumer: Any) -> int:
    number: int = consumer.stats().msg_num_in_receiver_queue
    return number


@pytest.mark.proves("C131")
@pytest.mark.parametrize("kind", list(ConsumerType))
def test_a_paused_consumer_grants_no_more(
    client: Any, plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually, kind: ConsumerType
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST, receiver_queue_size=10)
    eventually(lambda: seen_of(stats, name, consumer)["availablePermits"] == 10)
    consumer.pause()
    publish(plain_client, name, *contents(0, 30))
    # What was granted still comes, and is given out.
    assert sorted(data_of(take(consumer, 10))) == contents(0, 10)
    nothing_comes(consumer)
    seen = seen_of(stats, name, consumer)
    assert (seen["availablePermits"], seen["msgOutCounter"]) == (0, 10)
    consumer.resume()
    assert sorted(data_of(take(consumer, 20))) == contents(10, 30)
    eventually(lambda: seen_of(stats, name, consumer)["availablePermits"] >= 5)


@pytest.mark.proves("N3", "C131")
@pytest.mark.parametrize("kind", ORDERED)
def test_strict_keeps_everything_in_order_where_order_counts(
    client: Any, plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually, kind: ConsumerType
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST, receiver_queue_size=20)
    publish_groups(plain_client, name, contents(0, 5), contents(5, 10))
    # The first batch is partly taken, the second waits unopened, and ten permits are granted still.
    assert data_of(take(consumer, 3)) == contents(0, 3)
    eventually(lambda: queued(consumer) == 7)
    consumer.pause(strict=True)
    nothing_comes(consumer)
    publish(plain_client, name, *contents(10, 30))
    eventually(lambda: queued(consumer) == 17)
    nothing_comes(consumer)
    assert seen_of(stats, name, consumer)["availablePermits"] == 0
    consumer.resume()
    messages = take(consumer, 27)
    assert data_of(messages) == contents(3, 30)
    consumer.acknowledge_cumulative(messages[-1])
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.mark.proves("N3", "C131")
@pytest.mark.parametrize("kind", SHARED)
def test_strict_hands_back_what_others_may_have(
    client: Any, plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually, kind: ConsumerType
) -> None:
    name = topic()
    paused = client.subscribe(name, "sub", kind, initial_position=EARLIEST, receiver_queue_size=10)
    publish(plain_client, name, *contents(0, 10))
    eventually(lambda: queued(paused) == 10)
    assert seen_of(stats, name, paused)["availablePermits"] == 0
    paused.pause(strict=True)
    nothing_comes(paused)
    eventually(lambda: queued(paused) == 0)
    other = client.subscribe(name, "sub", kind, initial_position=EARLIEST)
    publish(plain_client, name, *contents(10, 20))
    if kind is ConsumerType.KeyShared:
        # Without keys all belong to one consumer, which may be the paused one.
        plain = _received(other, paused, 0)
    else:
        plain = take(other, 20)
        assert sorted(data_of(plain)) == contents(0, 20)
        # Handed back once: that is what it counts.
        assert {message.redelivery_count() for message in plain if message.data() < b"010"} == {1}
        with pytest.raises(Timeout):
            other.receive(200)
    nothing_comes(paused)
    for message in plain:
        other.acknowledge(message)
    other.close()
    paused.resume()
    publish(plain_client, name, *contents(20, 40))
    rest = take(paused, 40 - len(plain))
    assert sorted(data_of(plain + rest)) == contents(0, 40)


def _received(other: Any, paused: Any, least: int) -> list[Message]:
    """Return what another consumer gets while the paused one gets nothing."""
    messages: list[Message] = []
    while True:
        try:
            messages.append(other.receive(1000))
        except Timeout:
            assert len(messages) >= least
            return messages


@pytest.mark.proves("N3")
@pytest.mark.parametrize("kind", SHARED)
def test_what_comes_on_granted_permits_is_handed_back_once_then_kept(
    api: Api,
    broker: Broker,
    plain_client: Client,
    relay: NewRelay,
    topic: NewTopic,
    stats: Stats,
    eventually: Eventually,
    kind: ConsumerType,
) -> None:
    name = topic()
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", kind, initial_position=EARLIEST, receiver_queue_size=20
    )
    publish(plain_client, name, *contents(0, 4))
    eventually(lambda: queued(consumer) == 4)
    consumer.pause(strict=True)
    # Nobody else is there: the four come again at once, and are kept, as do four that are published now.
    eventually(lambda: queued(consumer) == 4)
    publish(plain_client, name, *contents(4, 8))
    eventually(lambda: seen_of(stats, name, consumer)["msgOutCounter"] == 16)
    eventually(lambda: queued(consumer) == 8)
    nothing_comes(consumer)
    assert through.count(Command.FLOW, TO_BROKER) == 1
    assert seen_of(stats, name, consumer)["availablePermits"] == 20 - 16
    consumer.resume()
    messages = take(consumer, 8)
    assert sorted(data_of(messages)) == contents(0, 8)
    assert {message.redelivery_count() for message in messages} == {1}
    # What was handed back is granted again, with what was taken now.
    eventually(lambda: seen_of(stats, name, consumer)["availablePermits"] >= 10)
    publish(plain_client, name, *contents(8, 60))
    assert sorted(data_of(take(consumer, 52))) == contents(8, 60)
    nothing_comes(consumer)


@pytest.mark.proves("N3")
def test_a_batch_that_was_begun_is_kept(
    client: Any, plain_client: Client, topic: NewTopic, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, initial_position=EARLIEST, receiver_queue_size=15)
    publish_groups(plain_client, name, contents(0, 10), contents(10, 20))
    assert data_of(take(consumer, 4)) == contents(0, 4)
    eventually(lambda: queued(consumer) == 16)
    consumer.pause(strict=True)
    eventually(lambda: queued(consumer) == 6)
    other = client.subscribe(name, "sub", ConsumerType.Shared)
    assert data_of(take(other, 10)) == contents(10, 20)
    nothing_comes(consumer)
    consumer.resume()
    assert data_of(take(consumer, 6)) == contents(4, 10)
    nothing_comes(consumer)


@pytest.mark.proves("N3")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_who_waits_goes_on_waiting(
    client: Any, plain_client: Client, topic: NewTopic, eventually: Eventually, kind: ConsumerType
) -> None:
    name = topic()
    policy = BatchReceivePolicy(max_num_messages=3, timeout_ms=20_000)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST, batch_receive_policy=policy)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(consumer.receive, 30_000)
        time.sleep(0.2)  # until it most likely waits
        consumer.pause(strict=True)
        publish(plain_client, name, b"a")
        eventually(lambda: queued(consumer) == 1)
        time.sleep(0.2)  # what must not happen has its chance
        assert not waiting.done()
        consumer.resume()
        assert waiting.result(30).data() == b"a"
        # A batch that is being collected is for later, too.
        collecting = threads.submit(consumer.batch_receive)
        publish(plain_client, name, b"b", b"c")
        eventually(lambda: consumer.stats().msg_num_in_receiver_queue == 0 and _taken(consumer) == b"c")
        consumer.pause(strict=True)
        publish(plain_client, name, b"d")
        eventually(lambda: queued(consumer) == 1)
        time.sleep(0.2)
        assert not collecting.done()
        consumer.resume()
        assert data_of(collecting.result(30)) == [b"b", b"c", b"d"]


def _taken(consumer: Any) -> bytes | None:
    inner = getattr(consumer, "target", consumer)._inner
    last = inner.children[0].position.last_message
    data: bytes | None = last and last.data()
    return data


@pytest.mark.proves("N3")
def test_a_batch_receive_that_times_out_in_the_pause_has_nothing(
    client: Any, plain_client: Client, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    policy = BatchReceivePolicy(max_num_messages=3, timeout_ms=2_000)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST, batch_receive_policy=policy)
    publish(plain_client, name, b"a", b"b")
    with ThreadPoolExecutor(1) as threads:
        collecting = threads.submit(consumer.batch_receive)
        eventually(lambda: _taken(consumer) == b"b")
        consumer.pause(strict=True)
        assert collecting.result(30) == []
    consumer.resume()
    assert data_of(consumer.batch_receive()) == [b"a", b"b"]


@pytest.mark.proves("N3", "C160")
def test_strict_reaches_every_partition(
    client: Any, plain_client: Client, topic: NewTopic, eventually: Eventually, stats: Stats
) -> None:
    name, other = topic(partitions=3), topic("other")
    consumer = client.subscribe([name, other], "sub", initial_position=EARLIEST)
    parts = [*(f"{name}-partition-{index}" for index in range(3)), other]
    for part in parts:
        publish(plain_client, part, b"0", b"1")
    eventually(lambda: queued(consumer) == 8)
    consumer.pause(strict=True)
    for part in parts:
        publish(plain_client, part, b"2")
    eventually(lambda: queued(consumer) == 12)
    nothing_comes(consumer)
    consumer.resume()
    messages = take(consumer, 12)
    for part in parts:
        assert [each.data() for each in messages if each.topic_name() == part] == [b"0", b"1", b"2"]


@pytest.mark.proves("N3")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_strict_outlives_a_lost_connection(
    api: Api,
    broker: Broker,
    plain_client: Client,
    relay: NewRelay,
    topic: NewTopic,
    eventually: Eventually,
    kind: ConsumerType,
) -> None:
    name = topic()
    through = relay(broker.service_url)
    consumer = api.client(through.service_url, starting_backoff_interval_ms=20).subscribe(
        name, "sub", kind, initial_position=EARLIEST
    )
    publish(plain_client, name, *contents(0, 5))
    eventually(lambda: queued(consumer) == 5)
    consumer.pause(strict=True)
    through.cut()
    eventually(lambda: through.count(Command.SUBSCRIBE) == 2 and consumer.is_connected())
    nothing_comes(consumer)
    assert queued(consumer) == 0
    consumer.resume()
    assert sorted(data_of(take(consumer, 5))) == contents(0, 5)
    nothing_comes(consumer)


@pytest.mark.proves("N3", "C132")
def test_a_listener_hears_nothing_after_a_strict_pause(
    plain_client: Client, topic: NewTopic, eventually: Eventually
) -> None:
    name, heard = topic(), list[bytes]()

    def listen(_consumer: Any, message: Message) -> None:
        time.sleep(0.002)
        heard.append(message.data())

    consumer = plain_client.subscribe(name, "sub", message_listener=listen, initial_position=EARLIEST)
    publish_groups(plain_client, name, *(contents(first, first + 50) for first in range(0, 500, 50)))
    for least in (20, 150, 300):
        eventually(lambda least=least: len(heard) >= least)  # type: ignore[misc]
        consumer.pause(strict=True)
        # The call that ran has ended, too.
        number = len(heard)
        time.sleep(0.1)  # what must not happen has its chance
        assert len(heard) == number
        consumer.resume()
    eventually(lambda: len(heard) == 500)
    assert heard == contents(0, 500)


@pytest.mark.proves("N3")
def test_a_listener_may_pause_its_consumer(plain_client: Client, topic: NewTopic, eventually: Eventually) -> None:
    name, heard, called = topic(), list[bytes](), threading.Event()

    def listen(consumer: Any, message: Message) -> None:
        heard.append(message.data())
        consumer.pause(strict=True)
        called.set()

    consumer = plain_client.subscribe(name, "sub", message_listener=listen, initial_position=EARLIEST)
    publish_groups(plain_client, name, contents(0, 3))
    for number in (1, 2, 3):
        assert called.wait(20)
        called.clear()
        time.sleep(0.05)  # what must not happen has its chance
        assert heard == contents(0, number)
        consumer.resume()


@pytest.mark.proves("C131")
@pytest.mark.parametrize("size", [0, 1, 10])
@pytest.mark.parametrize("strict", [False, True])
def test_a_consumer_that_starts_paused_asks_for_nothing_until_it_resumes(
    client: Any, plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually, size: int, strict: bool
) -> None:
    name = topic()
    publish(plain_client, name, *contents(0, 3))
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST, receiver_queue_size=size, start_paused=True)
    if strict:
        consumer.pause(strict=True)
    # A queue of 0 has no batch_receive.
    (nothing_comes if size else nothing_received)(consumer)
    assert (seen_of(stats, name, consumer)["availablePermits"], queued(consumer)) == (0, 0)
    plain_client.create_producer(name).send(b"003")
    consumer.seek(0)
    nothing_received(consumer)
    consumer.resume()
    assert data_of(take(consumer, 4)) == contents(0, 4)


def nothing_received(consumer: Any) -> None:
    with pytest.raises(Timeout):
        consumer.receive(200)


@pytest.mark.proves("C131")
def test_a_receive_that_waits_on_a_paused_start_is_served_after_it(
    client: Any, plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", receiver_queue_size=0, start_paused=True)
    publish(plain_client, name, *contents(0, 2))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(take, consumer, 2)
        eventually(lambda: seen_of(stats, name, consumer)["availablePermits"] == 0)
        assert not waiting.done()
        consumer.resume()
        assert data_of(waiting.result(20)) == contents(0, 2)


@pytest.mark.proves("C131")
def test_the_topics_of_a_pattern_start_paused_whenever_they_come(
    client: Any, plain_client: Client, namespace: Callable[[], str], eventually: Eventually
) -> None:
    space = namespace()
    names = [f"persistent://{space}/{name}" for name in ("one", "two")]
    publish(plain_client, names[0], *contents(0, 1))
    pattern = re.compile(f"persistent://{space}/.*")
    consumer = client.subscribe(
        pattern, "sub", initial_position=EARLIEST, pattern_auto_discovery_period=1, start_paused=True
    )
    publish(plain_client, names[1], *contents(1, 2))
    eventually(lambda: sorted(consumer.topics()) == sorted(names))
    nothing_comes(consumer)
    consumer.resume()
    assert sorted(data_of(take(consumer, 2))) == contents(0, 2)


@pytest.mark.proves("C131")
@pytest.mark.parametrize("size", [0, 10])
def test_a_listener_is_called_from_the_first_resume_on(
    plain_client: Client, topic: NewTopic, eventually: Eventually, size: int
) -> None:
    name = topic()
    heard: list[bytes] = []
    consumer = plain_client.subscribe(
        name,
        "sub",
        message_listener=lambda _consumer, message: heard.append(message.data()),
        receiver_queue_size=size,
        start_paused=True,
    )
    publish(plain_client, name, *contents(0, 3))
    time.sleep(0.2)
    assert heard == []
    consumer.resume()
    eventually(lambda: heard == contents(0, 3))
