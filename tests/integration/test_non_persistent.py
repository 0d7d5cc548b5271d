"""Non-persistent topics, whose messages all have one id: positions, redelivery, refusals, on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import ConsumerType, MessageId, OperationNotSupported
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.relay import NewRelay

Eventually = Callable[..., Any]

STORED_ID = MessageId(-1, 7, 3)


@pytest.fixture
def name(topic: NewTopic) -> str:
    """Return a new non-persistent topic."""
    return topic().replace("persistent://", "non-persistent://")


def attach_again(through: Any, producer: Any, follower: Any, eventually: Eventually) -> None:
    """Cut the connections, and return when both have new ones."""
    through.cut()
    eventually(lambda: not follower.is_connected())
    eventually(lambda: producer.is_connected() and follower.is_connected())


@pytest.mark.parametrize("start", [MessageId.latest, MessageId.earliest, STORED_ID], ids=str)
@pytest.mark.parametrize("inclusive", [False, True])
def test_reader_follows_after_a_lost_connection_and_seeks(
    api: Api, broker: Broker, relay: NewRelay, name: str, eventually: Eventually, start: MessageId, inclusive: bool
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    reader = client.create_reader(name, start, start_message_id_inclusive=inclusive)
    assert not reader.has_message_available()
    producer = client.create_producer(name, batching_enabled=False)
    places: list[Any] = [None, MessageId.latest, MessageId.earliest, STORED_ID, 1_000_000]
    for number, place in enumerate(places):
        if place is not None:
            reader.seek(place)
        for part in (b"a", b"b"):
            producer.send(part + b"%d" % number)
            assert reader.read_next(10_000).data() == part + b"%d" % number
        attach_again(through, producer, reader, eventually)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_consumer_receives_after_a_seek(api: Api, client: Any, name: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(name, "sub", kind)
    producer = client.create_producer(name, batching_enabled=False)
    for place in (STORED_ID, MessageId.latest, MessageId.earliest, 1_000_000):
        consumer.seek(place)
        producer.send(b"next")
        message = consumer.receive(10_000)
        assert message.data() == b"next"
        consumer.acknowledge(message)


def test_reader_of_several_topics_starts_at_latest(api: Api, client: Any, topic: NewTopic, name: str) -> None:
    reader = client.create_reader([topic(), name], MessageId.latest)
    client.create_producer(name).send(b"next")
    assert reader.read_next(10_000).data() == b"next"


def test_table_view_follows_after_a_lost_connection(
    api: Api, broker: Broker, relay: NewRelay, name: str, eventually: Eventually
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    view = client.create_table_view(name)
    producer = client.create_producer(name, batching_enabled=False)
    for value in (b"1", b"2", b"3"):
        producer.send(value, partition_key="k")
        eventually(lambda value=value: view.get("k") == value)
        attach_again(through, producer, view, eventually)


@pytest.mark.parametrize(
    "kind", [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared]
)
def test_redeliver_all_keeps_the_receive_queue(
    api: Api, client: Any, name: str, kind: ConsumerType, eventually: Eventually
) -> None:
    consumer = client.subscribe(name, "sub", kind)
    producer = client.create_producer(name, batching_enabled=False)
    for number in range(5):
        producer.send(b"%d" % number, partition_key="k")
    assert consumer.receive(10_000).data() == b"0"
    consumer.redeliver_unacknowledged_messages()
    assert [consumer.receive(10_000).data() for _ in range(4)] == [b"1", b"2", b"3", b"4"]


def test_last_message_id_is_refused(api: Api, client: Any, name: str) -> None:
    consumer, reader = client.subscribe(name, "sub"), client.create_reader(name, MessageId.earliest)
    for ask in (consumer.get_last_message_id, consumer.get_last_message_ids, reader.get_last_message_id):
        with pytest.raises(OperationNotSupported, match=f"stores no messages.*{name}"):
            ask()
