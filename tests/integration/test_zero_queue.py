"""A consumer without a queue on a real broker: one permit for each receiver that waits, nothing ahead of time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pulsar_native.asyncio
from pulsar_native import Client, ConsumerType, InitialPosition, InvalidConfiguration, MessageId, Timeout
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.publishing import publish_groups
from support.relay import TO_BROKER, Command, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest
CONTENTS = [b"%d" % number for number in range(10)]


def publish(client: Client, name: str, *contents: bytes) -> None:
    """Publish entries of one message each."""
    publish_groups(client, name, *([content] for content in contents))


def seen_of(stats: Stats, name: str, consumer: Any) -> dict[str, Any]:
    """Return what the broker tells of a consumer."""
    consumers = stats(name)["subscriptions"]["sub"]["consumers"]
    return next(each for each in consumers if each["consumerName"] == consumer.consumer_name())


@pytest.mark.proves("C93")
def test_one_message_is_in_flight_and_another_consumer_gets_the_rest(
    client: Any, plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    slow = client.subscribe(name, "sub", ConsumerType.Shared, receiver_queue_size=0, initial_position=EARLIEST)
    publish(plain_client, name, *CONTENTS)
    # Nothing is asked for before somebody wants it.
    assert (seen_of(stats, name, slow)["availablePermits"], seen_of(stats, name, slow)["msgOutCounter"]) == (0, 0)
    first = slow.receive(10_000)
    assert eventually(lambda: seen_of(stats, name, slow)["msgOutCounter"]) == 1
    assert seen_of(stats, name, slow)["availablePermits"] == 0 and slow.stats().msg_num_in_receiver_queue == 0
    quick = client.subscribe(name, "sub", ConsumerType.Shared)
    rest = [quick.receive(10_000).data() for _ in CONTENTS[1:]]
    assert sorted([first.data(), *rest]) == CONTENTS
    with pytest.raises(Timeout):
        quick.receive(100)
    assert seen_of(stats, name, slow)["unackedMessages"] == 1


@pytest.mark.proves("C93")
def test_a_time_out_leaves_its_permit_to_the_next(
    api: Api,
    broker: Broker,
    plain_client: Client,
    relay: NewRelay,
    topic: NewTopic,
    stats: Stats,
    eventually: Eventually,
) -> None:
    name = topic()
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(name, "sub", receiver_queue_size=0)
    for _ in range(3):
        with pytest.raises(Timeout):
            consumer.receive(50)
    through.wait_for(Command.FLOW)
    eventually(lambda: seen_of(stats, name, consumer)["availablePermits"] == 1)
    assert through.count(Command.FLOW, TO_BROKER) == 1
    publish(plain_client, name, b"a", b"b", b"c")
    assert [consumer.receive(10_000).data() for _ in range(3)] == [b"a", b"b", b"c"]
    assert through.count(Command.FLOW, TO_BROKER) == 3
    assert seen_of(stats, name, consumer)["availablePermits"] == 0


@pytest.mark.asyncio
@pytest.mark.proves("N8", "C93")
async def test_a_cancelled_receive_loses_nothing_and_asks_once(
    broker: Broker, plain_client: Client, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    through = relay(broker.service_url)
    async with pulsar_native.asyncio.Client(through.service_url) as client:
        consumer = await client.subscribe(name, "sub", receiver_queue_size=0)
        for _ in range(3):
            waiting = asyncio.ensure_future(consumer.receive())
            await asyncio.to_thread(through.wait_for, Command.FLOW)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert through.count(Command.FLOW, TO_BROKER) == 1
        await asyncio.to_thread(publish, plain_client, name, b"a", b"b")
        assert [(await consumer.receive(10_000)).data() for _ in range(2)] == [b"a", b"b"]
        assert through.count(Command.FLOW, TO_BROKER) == 2


@pytest.mark.proves("C93")
def test_waiting_receivers_are_served_one_after_the_other(client: Any, plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", receiver_queue_size=0)
    with ThreadPoolExecutor(5) as threads:
        waiting = [threads.submit(consumer.receive, 20_000) for _ in range(5)]
        publish(plain_client, name, *CONTENTS[:5])
        assert sorted(each.result(30).data() for each in waiting) == CONTENTS[:5]


@pytest.mark.proves("C93")
def test_the_rest_of_a_batch_is_kept_for_the_next(
    api: Api, broker: Broker, plain_client: Client, relay: NewRelay, topic: NewTopic, stats: Stats
) -> None:
    name = topic()
    through = relay(broker.service_url)
    publish_groups(plain_client, name, CONTENTS, [b"after"], [b"last"])
    consumer = api.client(through.service_url).subscribe(name, "sub", receiver_queue_size=0, initial_position=EARLIEST)
    assert [consumer.receive(10_000).data() for _ in CONTENTS] == CONTENTS
    flows = through.frames(Command.FLOW, TO_BROKER)
    assert len(flows) == 1 and seen_of(stats, name, consumer)["availablePermits"] == 1 - len(CONTENTS)
    # What the batch cost beyond its one permit is given back with the next.
    assert consumer.receive(10_000).data() == b"after"
    assert through.count(Command.FLOW, TO_BROKER) == 2 and seen_of(stats, name, consumer)["availablePermits"] == 0
    assert consumer.receive(10_000).data() == b"last"


@pytest.mark.proves("C93")
def test_after_a_reconnect_only_who_waits_asks_again(
    api: Api,
    broker: Broker,
    plain_client: Client,
    relay: NewRelay,
    topic: NewTopic,
    eventually: Eventually,
    stats: Stats,
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url, starting_backoff_interval_ms=20)
    consumer = client.subscribe(name, "sub", receiver_queue_size=0, initial_position=EARLIEST)
    with pytest.raises(Timeout):
        consumer.receive(50)
    # Later than the time-out, maybe: cut off, it would not be counted.
    through.wait_for(Command.FLOW)
    through.cut()
    eventually(lambda: through.count(Command.SUBSCRIBE) == 2 and consumer.is_connected())
    # The permit of the time-out went with the connection; nobody waits for another.
    assert through.count(Command.FLOW, TO_BROKER) == 1
    assert seen_of(stats, name, consumer)["availablePermits"] == 0
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(consumer.receive, 30_000)
        through.wait_for(Command.FLOW, 2)
        through.cut()
        through.wait_for(Command.FLOW, 3, 20)
        publish(plain_client, name, b"x")
        assert waiting.result(40).data() == b"x"
    assert through.count(Command.FLOW, TO_BROKER) == 3


@pytest.mark.proves("C93")
def test_a_listener_gets_one_message_at_a_time(
    broker: Broker, plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name, heard, go_on = topic(), list[bytes](), threading.Semaphore(0)

    def listen(_consumer: Any, message: Any) -> None:
        heard.append(message.data())
        go_on.acquire(timeout=30)

    consumer = plain_client.subscribe(
        name, "sub", ConsumerType.Shared, receiver_queue_size=0, message_listener=listen, initial_position=EARLIEST
    )
    publish(plain_client, name, *CONTENTS)
    for number in range(1, 5):
        eventually(lambda number=number: len(heard) == number)  # type: ignore[misc]
        # While one is heard, the next is not asked for.
        eventually(lambda number=number: seen_of(stats, name, consumer)["msgOutCounter"] == number)  # type: ignore[misc]
        assert seen_of(stats, name, consumer)["availablePermits"] == 0
        go_on.release()
    for _ in CONTENTS:
        go_on.release()
    eventually(lambda: heard == CONTENTS)


@pytest.mark.proves("C93")
def test_seek_redelivery_and_a_reader_work_without_a_queue(client: Any, plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(plain_client, name, *CONTENTS)
    consumer = client.subscribe(name, "sub", receiver_queue_size=0, initial_position=EARLIEST)
    assert [consumer.receive(10_000).data() for _ in range(3)] == CONTENTS[:3]
    consumer.redeliver_unacknowledged_messages()
    assert [consumer.receive(10_000).data() for _ in range(3)] == CONTENTS[:3]
    consumer.seek(MessageId.earliest)
    assert [consumer.receive(10_000).data() for _ in CONTENTS] == CONTENTS
    reader = client.create_reader(name, MessageId.earliest, receiver_queue_size=0)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(10_000).data())
    assert read == CONTENTS


@pytest.mark.proves("C93")
def test_what_needs_a_queue_is_refused(client: Any, topic: NewTopic) -> None:
    single, split = topic("single"), topic("split", partitions=2)
    for several in (split, [single, topic("other")]):
        with pytest.raises(InvalidConfiguration, match="receiver_queue_size=1"):
            client.subscribe(several, "sub", receiver_queue_size=0)
    with pytest.raises(InvalidConfiguration, match="receiver_queue_size"):
        client.subscribe(single, "sub", receiver_queue_size=-1)
    # One partition is a topic without partitions.
    client.subscribe(f"{split}-partition-1", "sub", receiver_queue_size=0)
    consumer = client.subscribe(single, "sub", receiver_queue_size=0)
    with pytest.raises(InvalidConfiguration, match="needs a queue"):
        consumer.batch_receive()
