"""Moving a subscription or a reader: by id, inside batches, by time, on a real broker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import ConsumerType, InitialPosition, InvalidConfiguration, Message, MessageId, Timeout
from support.apis import Api, publish_batches
from support.brokers import Broker, NewTopic
from support.relay import TO_BROKER, Command, NewRelay
from support.until import wait_until

Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest


def number(message: Message) -> int:
    """Return the number a message holds."""
    return int(message.data())


@pytest.mark.proves("C166")
@pytest.mark.parametrize("kind", list(ConsumerType))
def test_to_an_id(api: Api, client: Any, topic: NewTopic, kind: ConsumerType) -> None:
    name = topic()
    ids = publish_batches(api, client, name, 1, 6, 1, 2)
    consumer = client.subscribe(
        name, "sub", kind, initial_position=EARLIEST, start_message_id_inclusive=True, receiver_queue_size=4
    )
    for _ in range(10):
        consumer.acknowledge(consumer.receive(10_000))
    consumer.seek(MessageId.earliest)
    assert [number(consumer.receive(10_000)) for _ in range(10)] == list(range(10))
    # Each attachment of a Failover consumer gets nothing for its first second.
    for target in (4,) if kind is ConsumerType.Failover else (7, 0, 1, 4, 6, 8, 9):
        consumer.seek(MessageId.deserialize(ids[target].serialize()))
        assert [number(consumer.receive(10_000)) for _ in range(10 - target)] == list(range(target, 10)), target
        with pytest.raises(Timeout):
            consumer.receive(50)
    consumer.seek(MessageId.latest)
    with pytest.raises(Timeout):
        consumer.receive(200)
    publish_batches(api, client, name, 1)
    assert number(consumer.receive(10_000)) == 0


@pytest.mark.proves("C166")
def test_a_hundred_times_at_random(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    ids = publish_batches(api, client, name, 1, 20, 1, 9, 9, 1, 1)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST, start_message_id_inclusive=True)
    chance = random.Random(4)
    for _ in range(100):
        target = chance.randrange(len(ids))
        consumer.seek(ids[target])
        for expected in range(target, min(target + 3, len(ids))):
            assert number(consumer.receive(10_000)) == expected


@pytest.mark.proves("C166")
@pytest.mark.parametrize("inclusive", [True, False])
def test_a_reader(api: Api, client: Any, topic: NewTopic, inclusive: bool) -> None:
    name = topic()
    ids = publish_batches(api, client, name, 1, 5, 1)
    reader = client.create_reader(name, MessageId.latest, start_message_id_inclusive=inclusive)
    for target in (3, 0, 6, 1, 5):
        reader.seek(ids[target])
        got = []
        while reader.has_message_available():
            got.append(number(reader.read_next(10_000)))
        # As in the other clients, a reader goes on behind the message sought unless it was made inclusive.
        assert got == list(range(target + (not inclusive), 7)), target


@pytest.mark.proves("C167")
def test_to_a_publish_time(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    for at in range(100):
        api.send_all(producer, [b"%d" % at])
        time.sleep(0.002)  # each has a publish time of its own
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    messages = [consumer.receive(10_000) for _ in range(100)]
    times = [message.publish_timestamp() for message in messages]
    assert times == sorted(set(times))
    reader = client.create_reader(name, MessageId.earliest)
    for target in (50, 0, 99):
        consumer.seek(times[target])
        reader.seek(times[target])
        for expected in range(target, min(target + 5, 100)):
            assert number(consumer.receive(10_000)) == expected
            assert number(reader.read_next(10_000)) == expected
    consumer.seek(times[99] + 60_000)
    with pytest.raises(Timeout):
        consumer.receive(200)
    consumer.seek(0)
    assert number(consumer.receive(10_000)) == 0


def test_acknowledgements_from_before_do_not_count_after(
    api: Api, client: Any, broker: Broker, topic: NewTopic, stats: Stats
) -> None:
    name = topic()
    ids = publish_batches(api, client, name, *[1] * 6)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, start_message_id_inclusive=True
    )
    for _ in range(6):
        consumer.acknowledge(consumer.receive(10_000))
    consumer.seek(ids[2])
    assert [number(consumer.receive(10_000)) for _ in range(4)] == [2, 3, 4, 5]
    consumer.close()
    assert stats(name)["subscriptions"]["sub"]["msgBacklog"] == 4


def test_acknowledgements_during_a_seek_do_not_count_after(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    name, through = topic(), relay(broker.service_url)
    client = api.client(through.service_url)
    publish_batches(api, client, name, *[1] * 5)
    options = {"start_message_id_inclusive": True, "acknowledgment_group_time_ms": 0}
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, initial_position=EARLIEST, **options)
    messages = [consumer.receive(10_000) for _ in range(5)]
    through.hold(Command.SEEK, TO_BROKER)
    through.hold(Command.ACK, TO_BROKER)
    seeking = threading.Thread(target=consumer.seek, args=(MessageId.earliest,))
    seeking.start()
    wait_until(lambda: through.held)
    for message in messages:
        consumer.acknowledge(message)
    # Answered on the same connection: what was written before has been seen.
    client.create_producer(topic()).close()
    assert not through.count(Command.ACK)
    through.release()
    seeking.join(30)
    assert [number(consumer.receive(10_000)) for _ in range(5)] == list(range(5))
    client.close()


@pytest.mark.parametrize("batched", [False, True])
def test_exclusive_seek_acknowledges_what_it_skips(api: Api, client: Any, topic: NewTopic, batched: bool) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=batched, batching_max_publish_delay_ms=60_000)
    ids = api.send_all(producer, [b"%d" % number for number in range(4)])
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    for target in (1, 3, 0):
        consumer.seek(ids[target])
        assert [consumer.receive(10_000).data() for _ in range(target + 1, 4)] == [
            b"%d" % n for n in range(target + 1, 4)
        ]
    consumer.seek(ids[3])
    consumer.close()
    again = client.subscribe(name, "sub")
    with pytest.raises(Timeout):
        again.receive(500)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_seek_then_reset_by_others_gives_all(
    api: Api, client: Any, broker: Broker, topic: NewTopic, stats: Stats, kind: ConsumerType
) -> None:
    name = topic()
    ids = publish_batches(api, client, name, *[1] * 6)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST)
    consumer.seek(ids[2])
    for expected in (3, 4, 5):
        message = consumer.receive(10_000)
        consumer.acknowledge(message)
        assert number(message) == expected
    # Acknowledged at the broker, too, before it is moved.
    wait_until(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)
    broker.admin("POST", name.replace("://", "/") + "/subscription/sub/resetcursor/0")
    received = [consumer.receive(10_000) for _ in range(6)]
    assert sorted(map(number, received)) == list(range(6))


def test_a_wrong_position_leaves_the_consumer_where_it_was(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish_batches(api, client, name, *[1] * 3)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    assert number(consumer.receive(10_000)) == 0
    for wrong in ("here", None, 1.5, -1):
        with pytest.raises(InvalidConfiguration, match="ms since 1970"):
            consumer.seek(wrong)
    assert number(consumer.receive(10_000)) == 1
