"""Non-durable subscriptions of `subscribe`: where they start and go on, what they leave, on a real broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    NotAllowedError,
    SubscriptionMode,
    Timeout,
)
from support.apis import Api, publish_batches
from support.brokers import Broker, NewTopic
from support.relay import NewRelay

Eventually = Callable[..., Any]

EARLIEST = InitialPosition.Earliest
NON_DURABLE: dict[str, Any] = {"subscription_mode": SubscriptionMode.NonDurable}
TYPES = list(ConsumerType)

pytestmark = pytest.mark.proves("C91")


def received(consumer: Any, count: int) -> list[Message]:
    """Receive so many messages."""
    return [consumer.receive(10_000) for _ in range(count)]


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.data()) for message in messages]


def unload(broker: Broker, name: str) -> None:
    broker.admin("PUT", name.replace("://", "/") + "/unload")


def cursors(broker: Broker, name: str) -> list[str]:
    found: Any = broker.admin("GET", name.replace("://", "/") + "/internalStats")
    return list(found["cursors"])


@pytest.mark.parametrize("kind", TYPES)
def test_subscription_continues_and_leaves_nothing(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually, kind: ConsumerType
) -> None:
    name = topic()
    ids = publish_batches(api, client, name, 1, 1, 3, 1)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST, **NON_DURABLE)
    # Up to the end of an entry, then to the middle of a batch; nothing is acknowledged.
    assert numbers(received(consumer, 2)) == [0, 1]
    unload(broker, name)
    assert numbers(received(consumer, 1)) == [2]
    unload(broker, name)
    assert numbers(received(consumer, 3)) == [3, 4, 5]
    with pytest.raises(Timeout):
        consumer.receive(100)
    consumer.seek(ids[1])
    assert numbers(received(consumer, 4)) == [2, 3, 4, 5]
    consumer.redeliver_unacknowledged_messages()
    again = received(consumer, 4)
    assert numbers(again) == [2, 3, 4, 5]
    assert cursors(broker, name) == ["sub"]
    consumer.close()
    eventually(lambda: cursors(broker, name) == [])
    # The next one begins at its initial position, whatever was received or acknowledged.
    other = client.subscribe(name, "sub", kind, initial_position=EARLIEST, **NON_DURABLE)
    assert numbers(received(other, 6)) == list(range(6))


@pytest.mark.parametrize("partitions", [0, 2])
def test_subscription_at_latest_loses_nothing_of_an_outage(
    api: Api, client: Any, broker: Broker, topic: NewTopic, partitions: int
) -> None:
    name = topic(partitions=partitions)
    publish_batches(api, client, name, 1, 1, 1, 1)
    # Only a seek, and a reader's start, include a message.
    consumer = client.subscribe(name, "sub", start_message_id_inclusive=True, **NON_DURABLE)
    for part in client.get_topic_partitions(name):
        unload(broker, part)
    publish_batches(api, client, name, 1, 1, 1, 1)
    assert sorted(numbers(received(consumer, 4))) == [0, 1, 2, 3]
    with pytest.raises(Timeout):
        consumer.receive(100)
    consumer.seek(MessageId.latest)
    with pytest.raises(Timeout):
        consumer.receive(100)


def test_entries_before_the_start_come_from_another_consumer(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    shared: dict[str, Any] = {"consumer_type": ConsumerType.Shared, "receiver_queue_size": 3, **NON_DURABLE}
    other = client.subscribe(name, "sub", **shared)
    other.pause()
    publish_batches(api, client, name, *[1] * 6)
    assert numbers(received(other, 3)) == [0, 1, 2]
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(name, "sub", **shared)
    assert numbers(received(consumer, 2)) == [3, 4]
    # The consumer attaches again, behind what it received; the subscription lives on with the other one.
    through.cut()
    again = numbers(received(consumer, 2))
    if 5 in again:
        # Received before the connection was lost.
        again += numbers(received(consumer, 1))
    assert {3, 4} <= set(again)
    other.close()
    assert {0, 1} <= set(numbers(received(consumer, 3)))


def test_message_negatively_acknowledged_comes_again(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100, **NON_DURABLE)
    publish_batches(api, client, name, 1, 1)
    first, second = received(consumer, 2)
    consumer.acknowledge(second)
    consumer.negative_acknowledge(first)
    assert numbers(received(consumer, 1)) == [0]


def test_modes_cannot_share_a_name(client: Any, topic: NewTopic) -> None:
    name = topic()
    client.subscribe(name, "non-durable", **NON_DURABLE)
    with pytest.raises(NotAllowedError, match="NonDurable subscription with the same name"):
        client.subscribe(name, "non-durable")
    client.subscribe(name, "durable").close()
    with pytest.raises(NotAllowedError, match="Durable subscription with the same name"):
        client.subscribe(name, "durable", **NON_DURABLE)


def test_pattern_and_new_partitions_are_non_durable(
    api: Api, client: Any, broker: Broker, topic: NewTopic, namespace: Callable[[], str], eventually: Eventually
) -> None:
    space = namespace()
    name = f"persistent://{space}/orders"
    path = f"persistent/{space}/orders/partitions"
    broker.admin("PUT", path, 1)
    consumer = client.subscribe(
        re.compile(f"persistent://{space}/.*"), "sub", auto_update_partitions_interval_seconds=0.2, **NON_DURABLE
    )
    broker.admin("POST", path, 2)
    eventually(lambda: client.get_partition_count(name) == 2)
    # Published before the consumer knows of the partition, perhaps.
    publish_batches(api, client, f"{name}-partition-1", 1, 1)
    assert numbers(received(consumer, 2)) == [0, 1]
    consumer.close()
    eventually(lambda: not any(cursors(broker, f"{name}-partition-{index}") for index in range(2)))
