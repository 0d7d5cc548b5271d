"""Messages that come again: refused, not acknowledged in time, or all of them, on a real broker."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from pulsar_native import ConsumerType, InitialPosition, Message, MessageId, MultiplierRedeliveryBackoff, Timeout
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import commands_of
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest
REDELIVER = Command.REDELIVER_UNACKNOWLEDGED_MESSAGES


def publish(api: Api, client: Any, name: str, count: int, *, batch: bool = False) -> list[MessageId]:
    """Publish numbered messages, one entry each or all in one batch."""
    producer = client.create_producer(name, batching_enabled=batch, batching_max_publish_delay_ms=60_000)
    return api.send_all(producer, [b"%d" % number for number in range(count)])


def numbers(consumer: Any, count: int) -> list[int]:
    """Receive so many messages and return their numbers."""
    return [int(consumer.receive(10_000).data()) for _ in range(count)]


def nothing_comes(consumer: Any, wait_ms: int = 300) -> bool:
    """Tell whether no message arrives for a while."""
    try:
        consumer.receive(wait_ms)
    except Timeout:
        return True
    return False


@pytest.mark.proves("C146")
@pytest.mark.parametrize("batch", [True, False])
def test_refused_messages_come_after_the_delay_in_one_request(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic, batch: bool
) -> None:
    name = topic()
    publish(api, client, name, 5, batch=batch)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=600
    )
    messages = [consumer.receive(10_000) for _ in range(5)]
    consumer.acknowledge([messages[0], messages[4]])
    # Due times are rounded up to slices of 256 ms, and the refusals of one slice share a request.
    time.sleep(0.256 - (time.monotonic() + 0.6) % 0.256)
    started = time.monotonic()
    for message in messages[1:4]:
        consumer.negative_acknowledge(message)
    slices = 1 + (time.monotonic() + 0.6) // 0.256 - (started + 0.6) // 0.256
    assert numbers(consumer, 3) == [1, 2, 3]
    assert 0.55 < time.monotonic() - started < 2.5
    assert nothing_comes(consumer)
    requests = commands_of(through, REDELIVER)
    assert 1 <= len(requests) <= slices
    # A batch comes again as the one entry it is, less what was acknowledged.
    refused = [len(each.redeliverUnacknowledgedMessages.message_ids) for each in requests]
    assert refused == [1] * len(requests) if batch else sum(refused) == 3


@pytest.mark.proves("C144")
def test_single_redelivery_leaves_the_others_in_the_queue(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    ids = publish(api, client, name, 10)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100
    )
    first = consumer.receive(10_000)
    through.wait_for(Command.MESSAGE, 10)
    consumer.negative_acknowledge(first)
    (request,) = (through.wait_for(REDELIVER), commands_of(through, REDELIVER))[
        1
    ]  # the rest lies in the queue meanwhile
    places = [(each.ledgerId, each.entryId) for each in request.redeliverUnacknowledgedMessages.message_ids]
    assert places == [(ids[0].ledger_id(), ids[0].entry_id())]
    through.wait_for(Command.MESSAGE, 11)
    assert numbers(consumer, 10) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert nothing_comes(consumer)


@pytest.mark.proves("C145")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared])
def test_redelivery_of_all_starts_over(
    api: Api, client: Any, topic: NewTopic, kind: ConsumerType, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, 50)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST, receiver_queue_size=200)
    (child,) = (consumer.target if api.name == "asyncio" else consumer)._inner.children
    for _ in range(3):
        assert numbers(consumer, 15) == list(range(15))
        eventually(lambda: child.queued_messages() == 35)
        consumer.redeliver_unacknowledged_messages()
    received = [consumer.receive(10_000) for _ in range(50)]
    assert [int(message.data()) for message in received] == list(range(50))
    consumer.acknowledge(received)
    assert nothing_comes(consumer)


@pytest.mark.proves("C145")
@pytest.mark.parametrize("topics", [1, 2])
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_redelivery_of_all_without_a_connection(
    api: Api,
    broker: Broker,
    client: Any,
    relay: NewRelay,
    topic: NewTopic,
    eventually: Eventually,
    stats: Stats,
    kind: ConsumerType,
    topics: int,
) -> None:
    names = [topic() for _ in range(topics)]
    publish(api, client, names[0], 40)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        names if topics > 1 else names[0], "sub", kind, initial_position=EARLIEST
    )
    received = [consumer.receive(10_000) for _ in range(25)]
    consumer.acknowledge_cumulative(received[14])
    # What the relay has seen need not have reached the broker.
    eventually(lambda: stats(names[0])["subscriptions"]["sub"]["msgBacklog"] == 25)
    through.refuse()
    through.cut()
    eventually(lambda: not consumer.is_connected())
    consumer.redeliver_unacknowledged_messages()
    through.accept()
    for number in range(15, 40):
        message = consumer.receive(10_000)
        assert int(message.data()) == number
        consumer.acknowledge_cumulative(message)
    assert nothing_comes(consumer)


@pytest.mark.proves("C145")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_nothing_is_missing_when_the_broker_was_just_reading(
    api: Api, client: Any, broker: Broker, topic: NewTopic, kind: ConsumerType
) -> None:
    """A rewind that meets a read on its way makes the broker (4.2.4) skip that read's entries."""
    name = topic()
    publish(api, client, name, 60)
    for round_ in range(6):
        # Read from the disk, which takes a while; the cache answers at once.
        broker.admin("PUT", name.replace("://", "/") + "/unload")
        consumer = client.subscribe(name, f"sub{round_}", kind, initial_position=EARLIEST, receiver_queue_size=10)
        # The fifth gives permits back.
        assert numbers(consumer, 5) == list(range(5))
        consumer.redeliver_unacknowledged_messages()
        assert numbers(consumer, 30) == list(range(30))
        # And at once again, while what was asked for is on its way.
        consumer.redeliver_unacknowledged_messages()
        consumer.redeliver_unacknowledged_messages()
        assert numbers(consumer, 60) == list(range(60))
        consumer.close()


@pytest.mark.proves("C145")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_what_was_on_its_way_before_does_not_arrive_after(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic, kind: ConsumerType
) -> None:
    name = topic()
    publish(api, client, name, 20)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", kind, initial_position=EARLIEST, receiver_queue_size=100
    )
    assert numbers(consumer, 20) == list(range(20))
    through.hold(Command.MESSAGE, TO_CLIENT)
    for round_ in (1, 2):
        consumer.redeliver_unacknowledged_messages()
        through.wait_for(Command.MESSAGE, 20 + 20 * round_)
    assert all(not each.redeliverUnacknowledgedMessages.message_ids for each in commands_of(through, REDELIVER))
    # Both rounds arrive now, and only the second counts.
    assert through.release() == 40
    assert numbers(consumer, 20) == list(range(20))
    assert nothing_comes(consumer)


@pytest.mark.proves("C148")
def test_the_count_of_redeliveries(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, 3)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100
    )
    counts: list[list[int]] = []
    for _ in range(4):
        messages: list[Message] = [consumer.receive(10_000) for _ in range(3)]
        counts.append([message.redelivery_count() for message in messages])
        for message in messages:
            consumer.negative_acknowledge(message)
    assert counts == [[0] * 3, [1] * 3, [2] * 3, [3] * 3]
    # Where the broker rewinds instead of redelivering, it counts nothing.
    exclusive = client.subscribe(name, "other", initial_position=EARLIEST)
    exclusive.receive(10_000)
    exclusive.redeliver_unacknowledged_messages()
    assert exclusive.receive(10_000).redelivery_count() == 0


@pytest.mark.proves("C96")
def test_what_is_not_acknowledged_in_time_comes_again(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    publish(api, client, name, 4)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, unacked_messages_timeout_ms=2000
    )
    started = time.monotonic()
    messages = [consumer.receive(10_000) for _ in range(4)]
    consumer.acknowledge([messages[0], messages[3]])
    assert numbers(consumer, 2) == [1, 2]
    assert 2 <= time.monotonic() - started < 8
    assert through.count(REDELIVER, TO_BROKER) == 1


@pytest.mark.proves("C147")
def test_a_refusal_waits_longer_with_each_redelivery(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, 1)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_precision=0,
        negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(min_delay_ms=150, max_delay_ms=4000),
    )  # fmt: skip
    message = consumer.receive(10_000)
    for count, delay in enumerate((0.15, 0.3, 0.6, 1.2)):
        assert message.redelivery_count() == count
        started = time.monotonic()
        consumer.negative_acknowledge(message)
        message = consumer.receive(10_000)
        assert time.monotonic() - started >= delay - 0.01
    # An id does not tell how often.
    started = time.monotonic()
    consumer.negative_acknowledge(message.message_id())
    consumer.receive(10_000)
    assert 0.14 <= time.monotonic() - started < 2.2


@pytest.mark.proves("C147")
def test_a_time_out_waits_longer_with_each_redelivery(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, 1)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, unacked_messages_timeout_ms=1000,
        unacked_messages_tick_ms=100,
        ack_timeout_redelivery_backoff=MultiplierRedeliveryBackoff(min_delay_ms=300, max_delay_ms=600),
    )  # fmt: skip
    message = consumer.receive(10_000)
    for count, delay in enumerate((0.3, 0.6, 0.6)):
        assert message.redelivery_count() == count
        received = time.monotonic()
        message = consumer.receive(10_000)
        assert time.monotonic() - received >= 1.0 + delay - 0.05
    consumer.acknowledge(message)


class Delays:
    """Redelivery back-off that returns its values, one each call, and raises those that are exceptions; then 100 ms."""

    def __init__(self, *delays: Any) -> None:
        self.delays = list(delays)

    def next(self, redelivery_count: int) -> float:
        delay = self.delays.pop(0) if self.delays else 100.0
        if isinstance(delay, Exception):
            raise delay
        return cast(float, delay)


@pytest.mark.parametrize(
    "delay", [KeyError("no entry"), math.nan, math.inf, 600_000], ids=["exception", "nan", "infinity", "long"]
)
def test_nack_backoff_one_delay_spares_others(api: Api, client: Any, topic: NewTopic, delay: Any) -> None:
    name = topic()
    publish(api, client, name, 3)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_backoff=Delays(delay)
    )
    consumer.negative_acknowledge(consumer.receive(10_000))
    # By then the timer of the first one is armed.
    time.sleep(0.3)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(10_000))
    assert sorted(numbers(consumer, 2)) == [1, 2]
    assert nothing_comes(consumer)


@pytest.mark.parametrize("delay", [KeyError("no entry"), None], ids=["exception", "none"])
def test_ack_timeout_backoff_failure_spares_others(
    api: Api, client: Any, topic: NewTopic, delay: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    publish(api, client, name, 1)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, unacked_messages_timeout_ms=1000,
        unacked_messages_tick_ms=100, ack_timeout_redelivery_backoff=Delays(delay),
    )  # fmt: skip
    counts = [consumer.receive(10_000).redelivery_count() for _ in range(3)]
    assert counts == [0, 1, 2]
    assert caplog.text.count(": ack_timeout_redelivery_backoff failed: ") == 1


@pytest.mark.proves("C158")
def test_refusals_and_time_outs_are_asked_for_partition_by_partition(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic(partitions=2)
    ids = publish(api, client, name, 8)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100,
        negative_ack_redelivery_delay_precision=11, unacked_messages_timeout_ms=5000,
    )  # fmt: skip
    own = [{(p.ledger_id(), p.entry_id()) for p in ids if p.partition() == partition} for partition in (0, 1)]
    messages = [consumer.receive(10_000) for _ in range(8)]
    for message in messages:
        consumer.negative_acknowledge(message)
    seen = 0
    for _ in range(2):  # first refused, then late
        for _ in range(8):
            consumer.receive(10_000)
        requests = commands_of(through, REDELIVER)[seen:]
        seen += len(requests)
        asked: dict[int, set[tuple[int, int]]] = {}
        for request in (each.redeliverUnacknowledgedMessages for each in requests):
            places = {(each.ledgerId, each.entryId) for each in request.message_ids}
            assert places and any(places <= partition for partition in own)
            asked.setdefault(request.consumer_id, set()).update(places)
        assert sorted(map(sorted, asked.values())) == sorted(map(sorted, own))


def test_an_acknowledgement_takes_a_refusal_back(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, 2)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=300
    )
    first, second = (consumer.receive(10_000) for _ in range(2))
    consumer.negative_acknowledge(first)
    consumer.negative_acknowledge(second)
    consumer.acknowledge(first)
    assert numbers(consumer, 1) == [1]
    assert nothing_comes(consumer)


def test_refusals_of_several_partitions(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=3)
    ids = publish(api, client, name, 9)
    consumer = client.subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100
    )
    for message in [consumer.receive(10_000) for _ in range(9)]:
        consumer.negative_acknowledge(message)
    assert sorted(consumer.receive(10_000).message_id() for _ in range(9)) == sorted(ids)
