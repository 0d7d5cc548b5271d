"""One memory limit of a client over what it sends and what it has received, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    Client,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    MemoryBufferIsFull,
    MessageId,
    Result,
    Timeout,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.publishing import publish_groups
from support.push_consumers import Gate, Started
from support.relay import TO_BROKER, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest
SIZE = 10_000


def contents(count: int, size: int = SIZE) -> list[bytes]:
    return [b"%03d" % number + bytes(size - 3) for number in range(count)]


def publish(client: Client, name: str, messages: list[bytes]) -> None:
    """Publish entries of one message each."""
    publish_groups(client, name, *([content] for content in messages))


def used(client: Any) -> int:
    number: int = client.stats().memory_used_bytes
    return number


def queue_size(consumer: Any) -> int:
    inner = getattr(consumer, "target", consumer)._inner
    size: int = inner.children[0].core.permits.size
    return size


def settled(value: Callable[[], int]) -> int:
    """Return a figure once it no longer changes."""
    last, since, deadline = value(), time.monotonic(), time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = value()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > 0.8:
            return now
    pytest.fail(f"{last} still changes")


def fill(api: Api, producer: Any, most: int = 100) -> int:
    """Send without waiting until the memory is full, and return how many messages were taken."""
    for number in range(most):
        try:
            outcome = api.enqueue(producer, bytes(SIZE))
        except MemoryBufferIsFull:
            return number
        if outcome.done():
            assert outcome.result() == (Result.MemoryBufferIsFull, None)
            return number
    pytest.fail("the memory is never full")


@pytest.mark.proves("N4")
def test_auto_scaled_queue_starts_at_one_and_grows(
    client: Any, plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    consumer = client.subscribe(
        name, "sub", receiver_queue_size=32, initial_position=EARLIEST, auto_scaled_receiver_queue_size_enabled=True
    )

    def permits() -> int:
        number: int = stats(name)["subscriptions"]["sub"]["consumers"][0]["availablePermits"]
        return number

    eventually(lambda: permits() == 1)
    assert queue_size(consumer) == 1
    # Whoever takes one message in a while needs no queue.
    for number in range(3):
        publish(plain_client, name, [b"%d" % number])
        assert consumer.receive(10_000).data() == b"%d" % number
        # Found empty in between, however late this thread is: two that had arrived meanwhile would let the queue grow.
        with pytest.raises(Timeout):
            consumer.receive(10)
    assert queue_size(consumer) <= 2
    # Whoever empties each queue at once gets a larger one, up to the limit.
    for round_number in range(30):
        size = queue_size(consumer)
        if size == 32:
            break
        publish_groups(plain_client, name, *([bytes([round_number])] for _ in range(2 * size)))
        for _ in range(2 * size):
            assert consumer.receive(10_000).data() == bytes([round_number])
        with pytest.raises(Timeout):
            consumer.receive(50)
    assert queue_size(consumer) == 32
    eventually(lambda: 16 < permits() <= 32)


@pytest.mark.proves("N4")
def test_what_was_received_and_what_is_to_be_sent_share_the_limit(
    api: Api, broker: Broker, plain_client: Client, relay: NewRelay, topic: NewTopic
) -> None:
    name, limit = topic(), 300_000
    through = relay(broker.service_url)
    client = api.client(through.service_url, memory_limit_bytes=limit)
    publish(plain_client, name, contents(200))
    consumer = client.subscribe(
        name, "sub", initial_position=EARLIEST, auto_scaled_receiver_queue_size_enabled=True, receiver_queue_size=1000
    )
    received = [consumer.receive(10_000).data() for _ in range(80)]
    # Nothing more is taken: what the queue may hold arrives, within the limit, and not all there is.
    queued = settled(lambda: used(client))
    assert 0 < queued < limit + 2 * SIZE and consumer.stats().msg_num_in_receiver_queue < 40
    producer = client.create_producer(topic("out"), send_timeout_millis=0)
    through.stall(TO_BROKER)
    # What is left of the limit may be sent, and the message that passes it.
    taken = fill(api, producer)
    assert taken == max(1, -(-(limit - queued) // SIZE))
    assert limit <= used(client) < limit + 3 * SIZE
    # Taking one message makes room for one.
    received.append(consumer.receive(10_000).data())
    assert fill(api, producer) == 1
    through.resume()
    while len(received) < 200:
        received.append(consumer.receive(20_000).data())
    assert received == contents(200)
    producer.flush()
    assert used(client) == 0


@pytest.mark.proves("N4")
def test_however_small_the_limit_all_go_on(
    api: Api, broker: Broker, plain_client: Client, topic: NewTopic, read_all: Callable[..., list[Any]]
) -> None:
    """Two consumers with messages that fill the limit alone, and a producer fed by them in the same thread."""
    names, out = [topic("a"), topic("b")], topic("out")
    client = api.client(broker.service_url, memory_limit_bytes=1000)
    consumers = [
        client.subscribe(
            name,
            "sub",
            ConsumerType.Shared,
            initial_position=EARLIEST,
            auto_scaled_receiver_queue_size_enabled=True,
            receiver_queue_size=100,
        )
        for name in names
    ]
    producer = client.create_producer(out, block_if_queue_full=True)
    for name in names:
        publish_groups(plain_client, name, contents(5), *([content] for content in contents(15)))
    for number in range(20):
        for consumer in consumers:
            message = consumer.receive(20_000)
            producer.send(message.data() + b"%d" % number)
            consumer.acknowledge(message)
    assert len(read_all(out)) == 40 and used(client) == 0


@pytest.mark.proves("N4")
def test_dropped_entries_count_no_more(
    api: Api, broker: Broker, plain_client: Client, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url, starting_backoff_interval_ms=20, memory_limit_bytes=1_000_000)
    options = {"initial_position": EARLIEST, "auto_scaled_receiver_queue_size_enabled": True}
    consumer = client.subscribe(name, "sub", **options)
    publish(plain_client, name, contents(3))
    eventually(lambda: used(client) > SIZE)
    one = used(client)
    through.cut()
    eventually(lambda: consumer.is_connected() and used(client) == one)
    consumer.redeliver_unacknowledged_messages()
    eventually(lambda: used(client) == one)
    consumer.pause(strict=True)
    assert used(client) == one
    consumer.resume()
    assert [consumer.receive(10_000).data() for _ in range(3)] == contents(3)
    assert used(client) == 0
    publish(plain_client, name, contents(3))
    eventually(lambda: used(client) > SIZE)
    consumer.close()
    assert used(client) == 0


LIMITS = {
    "count": {"pull_threshold_for_queue": 5},
    "size": {"pull_threshold_size_for_queue": 1},
    "span": {"consume_concurrently_max_span": 20},
    "memory": {},
}


@pytest.mark.proves("N4")
@pytest.mark.parametrize("reason", list(LIMITS))
def test_a_push_consumer_is_held_back_by_each_limit_and_its_clients_producer_by_what_is_left(
    api: Api,
    broker: Broker,
    plain_client: Client,
    relay: NewRelay,
    topic: NewTopic,
    consume: Started,
    eventually: Eventually,
    reason: str,
) -> None:
    name = topic()
    size = 400_000 if reason == "size" else SIZE
    # Above all that was published, so that what waits in the receiver queue never fills it first.
    limit = 200_000 if reason == "memory" else 6_000_000
    through = relay(broker.service_url)
    client = api.client(through.service_url, memory_limit_bytes=limit)
    count = 60 if reason != "size" else 12
    publish(plain_client, name, contents(count, size))
    # One message is stuck, or all.
    gate = Gate((lambda content: content.startswith(b"000")) if reason == "span" else (lambda _content: True))
    push_consumer = consume(client, name, gate, pull_batch_size=4, within_memory_limit=True, **LIMITS[reason])
    eventually(lambda: push_consumer.stats().throttled[reason] >= 2)
    assert not any(times for other, times in push_consumer.stats().throttled.items() if other != reason)
    held = settled(lambda: used(client))
    unfinished = push_consumer.stats().unfinished_bytes
    # What handlers have counts, and what waits behind it.
    assert unfinished <= held < limit + 10 * size
    producer = client.create_producer(topic("out"), send_timeout_millis=0)
    through.stall(TO_BROKER)
    # However much was received, one message may be on its way.
    assert fill(api, producer, 700) == max(1, -(-(limit - held) // SIZE))
    through.resume()
    gate.opened.set()
    eventually(lambda: len(gate.recorder.seen) == count)
    producer.flush()
    eventually(lambda: used(client) == 0)


def test_a_queue_of_none_does_not_scale(client: Any, topic: NewTopic) -> None:
    with pytest.raises(InvalidConfiguration, match="above 0"):
        client.subscribe(topic(), "sub", receiver_queue_size=0, auto_scaled_receiver_queue_size_enabled=True)


@pytest.mark.proves("N4")
def test_reader_with_scaled_queue_waits_within_memory_limit(
    broker: Broker, plain_client: Client, topic: NewTopic
) -> None:
    name, limit, size = topic(), 2_000_000, 100_000
    publish(plain_client, name, contents(100, size))
    with Client(broker.service_url, memory_limit_bytes=limit) as client:
        reader = client.create_reader(name, MessageId.earliest, auto_scaled_receiver_queue_size_enabled=True)
        rows = 0
        for batch in reader.arrow_batches(max_rows=5):
            # An application that is slower than the broker.
            queued = settled(lambda: used(client)) if rows < 40 else used(client)
            assert queued < limit + 2 * size
            rows += batch.num_rows
        assert rows == 100 and used(client) == 0
        assert queue_size(reader) < 1000
