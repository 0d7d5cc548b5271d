"""What acknowledging leaves in a subscription: single, in batches, cumulative, grouped, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    AlreadyClosed,
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    InitialPosition,
    InvalidMessage,
    Message,
    MessageId,
    Timeout,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import commands_of
from support.relay import TO_BROKER, Command, NewRelay

Eventually = Callable[..., Any]

EARLIEST = InitialPosition.Earliest


def publish(api: Api, client: Any, name: str, count: int, *, batch: bool = False) -> list[MessageId]:
    """Publish numbered messages, one entry each or all in one batch."""
    producer = client.create_producer(
        name, batching_enabled=batch, batching_max_publish_delay_ms=60_000, max_pending_messages=0
    )
    ids = api.send_all(producer, [b"%d" % number for number in range(count)])
    producer.close()
    return ids


def take(consumer: Any, count: int) -> list[Message]:
    """Receive so many messages."""
    return [consumer.receive(10_000) for _ in range(count)]


def numbers_left(client: Any, name: str, kind: ConsumerType = ConsumerType.Exclusive, wait_ms: int = 400) -> list[int]:
    """Subscribe anew and return the numbers of the messages that are delivered."""
    consumer = client.subscribe(name, "sub", kind)
    numbers = []
    try:
        while True:
            numbers.append(int(consumer.receive(wait_ms).data()))
    except Timeout:
        consumer.close()
        return numbers


@pytest.mark.proves("C134")
@pytest.mark.parametrize("kind", list(ConsumerType))
def test_one_acknowledgement_removes_one_message(
    api: Api, client: Any, topic: NewTopic, kind: ConsumerType, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, 10)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST)
    messages = take(consumer, 10)
    consumer.acknowledge(messages[4])
    eventually(lambda: backlog(name) == 9)
    consumer.acknowledge(messages[7].message_id())
    consumer.acknowledge([messages[1], messages[2].message_id()])
    eventually(lambda: backlog(name) == 6)
    consumer.close()
    # Standing by, a Failover consumer gets nothing for its first second.
    assert sorted(numbers_left(client, name, kind, wait_ms=1500)) == [0, 3, 5, 6, 8, 9]


@pytest.mark.proves("C112")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_half_a_batch_can_be_acknowledged(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, kind: ConsumerType,
    eventually: Eventually,
) -> None:  # fmt: skip
    name = topic()
    publish(api, client, name, 100, batch=True)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", kind, initial_position=EARLIEST, batch_index_ack_enabled=True
    )
    messages = take(consumer, 100)
    consumer.acknowledge(messages[:40])
    for message in messages[60:70]:
        consumer.acknowledge(message.message_id())
    rest = [*range(40, 60), *range(70, 100)]
    through.wait_for(Command.ACK)
    through.cut()
    assert [int(message.data()) for message in take(consumer, 50)] == rest
    consumer.close()
    # (A 4.2.4 broker forgets the parts of a batch when the topic is unloaded, whoever acknowledged them.)
    assert numbers_left(client, name, kind) == rest


def test_without_batch_index_a_batch_is_done_with_its_last_message(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, 5, batch=True)
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, initial_position=EARLIEST)
    messages = take(consumer, 5)
    consumer.acknowledge([messages[0], messages[2]])
    # The consumer itself remembers what is done when the entry comes again.
    consumer.redeliver_unacknowledged_messages()
    again = take(consumer, 3)
    assert [int(message.data()) for message in again] == [1, 3, 4]
    assert backlog(name) == 1, "an entry counts whole"
    consumer.acknowledge(again)
    eventually(lambda: backlog(name) == 0)


def test_an_id_from_elsewhere_acknowledges_too(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    ids = publish(api, client, name, 6)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    # As another process would have it: bytes, without the topic's name.
    consumer.acknowledge([MessageId.deserialize(each.serialize()) for each in ids[:5]])
    eventually(lambda: backlog(name) == 1)
    for wrong in ("id", 5, None, [b"bytes"]):
        with pytest.raises(InvalidMessage):
            consumer.acknowledge(wrong)


@pytest.mark.proves("C136")
@pytest.mark.parametrize("batch_index", [True, False])
def test_cumulative_in_the_middle_of_a_batch(api: Api, client: Any, topic: NewTopic, batch_index: bool) -> None:
    name = topic()
    publish(api, client, name, 10, batch=True)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST, batch_index_ack_enabled=batch_index)
    consumer.acknowledge_cumulative(take(consumer, 10)[3])
    consumer.close()
    assert numbers_left(client, name) == [4, 5, 6, 7, 8, 9]


def test_cumulative_takes_everything_before(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, 20)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    messages = take(consumer, 20)
    consumer.acknowledge_cumulative(messages[11])
    consumer.acknowledge_cumulative(messages[5].message_id())
    eventually(lambda: backlog(name) == 8)
    consumer.close()
    assert numbers_left(client, name) == list(range(12, 20))


@pytest.mark.proves("C137")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_shared_subscriptions_refuse_cumulative(
    api: Api, client: Any, topic: NewTopic, kind: ConsumerType, backlog: Callable[[str], int]
) -> None:
    name = topic()
    publish(api, client, name, 2)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST, acknowledgment_group_time_ms=0)
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(take(consumer, 2)[1])
    consumer.close()
    assert backlog(name) == 2


@pytest.mark.proves("C95")
def test_the_group_time_decides_how_many_frames(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    publish(api, client, name, 20)
    through = relay(broker.service_url)
    near = api.client(through.service_url)
    at_once = near.subscribe(name, "at once", initial_position=EARLIEST, acknowledgment_group_time_ms=0)
    for message in take(at_once, 10):
        at_once.acknowledge(message)
    through.wait_for(Command.ACK, 10)
    grouped = near.subscribe(name, "grouped", initial_position=EARLIEST, acknowledgment_group_time_ms=500)
    messages = take(grouped, 10)
    started = time.monotonic()
    for message in messages:
        grouped.acknowledge(message)
    seen = through.wait_for(Command.ACK, 11)
    assert 0.3 < seen[10].at - started < 2
    assert [len(each.ack.message_id) for each in commands_of(through, Command.ACK)] == [1] * 10 + [10]


@pytest.mark.proves("C138")
class TestGrouping:
    """When grouped acknowledgements go out, and in how many frames."""

    def test_by_number(
        self,
        api: Api,
        broker: Broker,
        client: Any,
        relay: NewRelay,
        topic: NewTopic,
        backlog: Callable[[str], int],
        eventually: Eventually,
    ) -> None:
        name = topic()
        publish(api, client, name, 5000)
        through = relay(broker.service_url)
        consumer = api.client(through.service_url).subscribe(
            name, "sub", initial_position=EARLIEST, acknowledgment_group_time_ms=60_000
        )
        for message in take(consumer, 5000):
            consumer.acknowledge(message)
        eventually(lambda: backlog(name) == 0)
        assert through.count(Command.ACK, TO_BROKER) <= 6

    def test_by_time_in_few_frames(
        self, api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic,
        backlog: Callable[[str], int], eventually: Eventually,
    ) -> None:  # fmt: skip
        name = topic()
        publish(api, client, name, 100)
        through = relay(broker.service_url)
        consumer = api.client(through.service_url).subscribe(name, "sub", initial_position=EARLIEST)
        messages = take(consumer, 100)
        started = time.monotonic()
        for message in messages[:50]:
            consumer.acknowledge_cumulative(message)
        for message in messages[60:]:
            consumer.acknowledge(message)
        seconds = time.monotonic() - started
        eventually(lambda: backlog(name) == 10)
        # Two kinds, each once in a group time of 100 ms.
        assert through.count(Command.ACK, TO_BROKER) <= 4 + 2 * int(seconds / 0.1)

    @pytest.mark.parametrize("end", ["close", "seek", "client"])
    def test_on_close_and_before_a_seek(
        self, api: Api, broker: Broker, client: Any, topic: NewTopic, end: str, backlog: Callable[[str], int]
    ) -> None:
        name = topic()
        publish(api, client, name, 10)
        own = api.client(broker.service_url)
        consumer = own.subscribe(
            name, "sub", ConsumerType.Shared, initial_position=EARLIEST, acknowledgment_group_time_ms=60_000
        )
        messages = take(consumer, 10)
        consumer.acknowledge(messages[:9])
        if end == "seek":
            consumer.seek(messages[5].message_id())
            # A seek decides anew what is unacknowledged, and no acknowledgement from before it comes after it.
            assert [message.message_id() for message in take(consumer, 4)] == [m.message_id() for m in messages[6:]]
            consumer.close()
            assert backlog(name) == 4
        else:
            (consumer if end == "close" else own).close()
            assert backlog(name) == 1


@pytest.mark.proves("C128")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_late_copy_of_an_acknowledged_message_is_dropped(
    api: Api, client: Any, topic: NewTopic, kind: ConsumerType
) -> None:
    name = topic()
    publish(api, client, name, 10)
    # The acknowledgements are still here when the broker is asked to deliver everything again.
    consumer = client.subscribe(
        name, "sub", kind, initial_position=EARLIEST, acknowledgment_group_time_ms=60_000, receiver_queue_size=10
    )
    messages = take(consumer, 10)
    consumer.acknowledge([messages[number] for number in (0, 1, 2, 5, 9)])
    for _ in range(3):
        consumer.redeliver_unacknowledged_messages()
        assert [int(message.data()) for message in take(consumer, 5)] == [3, 4, 6, 7, 8]
        with pytest.raises(Timeout):
            consumer.receive(200)


@pytest.mark.proves("C140")
def test_non_persistent_topics_get_no_acknowledgements(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic().replace("persistent", "non-persistent")
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    consumer = client.subscribe(name, "sub", acknowledgment_group_time_ms=0)
    producer = client.create_producer(name, batching_enabled=False)
    for number in range(5):
        api.send_all(producer, [b"%d" % number])
        message = consumer.receive(10_000)
        assert int(message.data()) == number
        consumer.acknowledge(message)
        consumer.acknowledge_cumulative(message)
    consumer.close()
    producer.close()
    assert through.count(Command.ACK, TO_BROKER) == 0


def test_a_closed_consumer_refuses(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    (place,) = publish(api, client, name, 1)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    consumer.close()
    for use in (consumer.acknowledge, consumer.acknowledge_cumulative):
        with pytest.raises(AlreadyClosed):
            use(place)
    # Nothing to ask for: what is not acknowledged comes again anyway.
    consumer.negative_acknowledge(place)
    consumer.redeliver_unacknowledged_messages()
    assert [message.message_id() for message in take(client.subscribe(name, "sub"), 1)] == [place]


def test_acknowledgements_survive_a_lost_connection(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic,
    backlog: Callable[[str], int], eventually: Eventually,
) -> None:  # fmt: skip
    name = topic()
    publish(api, client, name, 10)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(name, "sub", initial_position=EARLIEST)
    messages = take(consumer, 10)
    through.refuse()
    through.cut()
    eventually(lambda: not consumer.is_connected())
    consumer.acknowledge(messages[:8])
    through.accept()
    eventually(lambda: backlog(name) == 2)
    assert [int(message.data()) for message in take(consumer, 2)] == [8, 9]


def test_an_acknowledgement_that_was_lost_on_its_way_is_sent_again(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    """The consumer remembers what is done of a batch; the broker, that never heard of it, must hear of it now."""
    name = topic()
    publish(api, client, name, 10, batch=True)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, batch_index_ack_enabled=True
    )
    messages = take(consumer, 10)
    through.cut_at(Command.ACK, TO_BROKER)
    consumer.acknowledge(messages[:4])
    assert [int(message.data()) for message in take(consumer, 6)] == [4, 5, 6, 7, 8, 9]
    consumer.close()
    assert numbers_left(client, name, ConsumerType.Shared) == [4, 5, 6, 7, 8, 9]
