"""Acknowledgements that wait for the broker's answer, and acknowledging from elsewhere, on a real broker."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import AlreadyClosed, Client, ConsumerType, InitialPosition, Message, PulsarException, Timeout
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import commands_of
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]

EARLIEST = InitialPosition.Earliest


def publish(api: Api, client: Any, name: str, count: int, *, batch: bool = False) -> None:
    producer = client.create_producer(name, batching_enabled=batch, batching_max_publish_delay_ms=60_000)
    api.send_all(producer, [b"%d" % number for number in range(count)])
    producer.close()


def take(consumer: Any, count: int) -> list[Message]:
    return [consumer.receive(15_000) for _ in range(count)]


def left(client: Any, name: str, least: int, kind: ConsumerType = ConsumerType.Exclusive) -> list[int]:
    """Subscribe again and return the numbers of the messages that are delivered, after waiting for at least `least`."""
    consumer = client.subscribe(name, "sub", kind)
    numbers: list[int] = []
    try:
        while True:
            numbers.append(int(consumer.receive(400 if len(numbers) >= least else 15_000).data()))
    except Timeout:
        consumer.close()
        return numbers


@pytest.mark.proves("C111", "C139")
def test_an_acknowledgement_returns_when_the_broker_has_answered(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, backlog: Callable[[str], int]
) -> None:
    name = topic()
    publish(api, client, name, 10)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", initial_position=EARLIEST, ack_receipt_enabled=True
    )
    messages = take(consumer, 10)
    through.hold(Command.ACK_RESPONSE, TO_CLIENT)
    with ThreadPoolExecutor(3) as pool:
        calls = [
            pool.submit(consumer.acknowledge, messages[0]),
            pool.submit(consumer.acknowledge, [messages[2], messages[4].message_id()]),
            pool.submit(consumer.acknowledge_cumulative, messages[1]),
        ]
        through.wait_for(Command.ACK_RESPONSE)
        assert not any(call.done() for call in calls)
        # The answers are what they wait for, nothing else.
        while not all(call.done() for call in calls):
            through.release()
        assert [call.result(0) for call in calls] == [None] * 3
    assert backlog(name) == 6, "at once, without waiting for anything"
    acks = commands_of(through, Command.ACK)
    assert all(each.ack.HasField("request_id") for each in acks)
    consumer.acknowledge(messages[5])
    assert backlog(name) == 5


@pytest.mark.proves("C139")
def test_many_acknowledgements_share_one_answer(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, backlog: Callable[[str], int]
) -> None:
    name = topic()
    publish(api, client, name, 200)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, ack_receipt_enabled=True,
        acknowledgment_group_time_ms=300,
    )  # fmt: skip
    messages = take(consumer, 200)
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(consumer.acknowledge, (messages[start : start + 10] for start in range(0, 200, 10))))
    assert backlog(name) == 0
    assert len(commands_of(through, Command.ACK)) <= 4


@pytest.mark.proves("C111", "C139")
@pytest.mark.parametrize("group_time", [0, 100])
def test_what_was_not_answered_goes_out_again_with_the_next_connection(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, backlog: Callable[[str], int],
    group_time: int,
) -> None:  # fmt: skip
    name = topic()
    publish(api, client, name, 20, batch=True)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url, starting_backoff_interval_ms=20).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, ack_receipt_enabled=True,
        batch_index_ack_enabled=True, acknowledgment_group_time_ms=group_time,
    )  # fmt: skip
    messages = take(consumer, 20)
    # Neither reaches the broker; then the line is cut.
    through.drop(Command.ACK, TO_BROKER, times=None)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(consumer.acknowledge, messages[:15])
        through.wait_for(Command.ACK)
        assert not call.done()
        through.release()
        through.cut()
        call.result(30)
    # Acknowledged is acknowledged: none of the 15 comes again, here or to anybody else.
    assert [int(message.data()) for message in take(consumer, 5)] == [15, 16, 17, 18, 19]
    with pytest.raises(Timeout):
        consumer.receive(300)
    consumer.close()
    assert left(client, name, 5, ConsumerType.Shared) == [15, 16, 17, 18, 19]


@pytest.mark.proves("C139")
def test_an_unload_does_not_lose_the_answer(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, backlog: Callable[[str], int]
) -> None:
    name = topic()
    publish(api, client, name, 4)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url, starting_backoff_interval_ms=20).subscribe(
        name, "sub", initial_position=EARLIEST, ack_receipt_enabled=True
    )
    messages = take(consumer, 4)
    through.drop(Command.ACK, TO_BROKER, times=None)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(consumer.acknowledge, messages[:3])
        through.wait_for(Command.ACK)
        through.release()
        broker.admin("PUT", name.replace("://", "/") + "/unload")
        call.result(30)
    assert backlog(name) == 1


@pytest.mark.proves("C139", "C141")
def test_closing_tells_those_who_wait_and_refuses_what_comes_later(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    publish(api, client, name, 3)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", initial_position=EARLIEST, ack_receipt_enabled=True
    )
    messages = take(consumer, 3)
    through.hold(Command.ACK_RESPONSE, TO_CLIENT)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(consumer.acknowledge, messages[0])
        through.wait_for(Command.ACK_RESPONSE)
        consumer.close()
        with pytest.raises(AlreadyClosed, match="before the broker had answered"):
            call.result(30)
    for late in (
        lambda: consumer.acknowledge(messages[1]),
        lambda: consumer.acknowledge([messages[1].message_id()]),
        lambda: consumer.acknowledge_cumulative(messages[1]),
    ):
        with pytest.raises(AlreadyClosed):
            late()
    consumer.negative_acknowledge(messages[1])  # comes again anyway


@pytest.mark.proves("C141")
def test_without_receipts_a_closed_consumer_refuses_too(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, 2)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    messages = take(consumer, 2)
    consumer.close()
    for late in (consumer.acknowledge, consumer.acknowledge_cumulative):
        with pytest.raises(AlreadyClosed):
            late(messages[0])
    consumer.negative_acknowledge(messages[0])
    assert left(client, name, 2) == [0, 1]


@pytest.mark.proves("C111")
def test_where_nothing_is_sent_nothing_is_waited_for(api: Api, client: Any, topic: NewTopic) -> None:
    volatile = topic().replace("persistent://", "non-persistent://")
    consumer = client.subscribe(volatile, "sub", ack_receipt_enabled=True)
    publish(api, client, volatile, 1)
    consumer.acknowledge(consumer.receive(15_000))
    name = topic()
    publish(api, client, name, 3, batch=True)
    batches = client.subscribe(name, "sub", initial_position=EARLIEST, ack_receipt_enabled=True)
    messages = take(batches, 3)
    # Without batch-index acknowledgement the broker hears of the batch with its last message.
    for message in messages:
        batches.acknowledge(message)
    batches.acknowledge(messages)
    batches.acknowledge([])
    batches.close()
    assert left(client, name, 0) == []


def test_a_listener_may_wait_but_a_callback_of_the_engine_may_not(plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    plain_client.create_producer(name).send(b"0")
    acknowledged = threading.Event()

    def listen(consumer: Any, message: Message) -> None:
        consumer.acknowledge(message)
        acknowledged.set()

    listening = plain_client.subscribe(
        name, "listening", message_listener=listen, initial_position=EARLIEST, ack_receipt_enabled=True
    )
    assert acknowledged.wait(15)
    listening.close()
    consumer = plain_client.subscribe(name, "sub", initial_position=EARLIEST, ack_receipt_enabled=True)
    message = consumer.receive(15_000)
    outcome: list[PulsarException] = []
    called = threading.Event()

    def callback(_result: Any, _place: Any) -> None:
        try:
            consumer.acknowledge(message)
        except PulsarException as error:
            outcome.append(error)
        called.set()

    plain_client.create_producer(name).send_async(b"1", callback)
    assert called.wait(15)
    assert "callback" in str(outcome)
    consumer.acknowledge(message)


PROGRAM = """
import sys
import pulsar_native
url, topic, kind, *ids = sys.argv[1:]
with pulsar_native.Client(url) as client:
    consumer = client.subscribe(
        topic, "sub", pulsar_native.ConsumerType[kind], ack_receipt_enabled=True, batch_index_ack_enabled=True
    )
    consumer.acknowledge([pulsar_native.MessageId.deserialize(bytes.fromhex(each)) for each in ids])
"""


@pytest.mark.proves("C134", "C135")
@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_ids_acknowledged_by_another_process(
    api: Api, client: Any, broker: Broker, topic: NewTopic, batch: bool, kind: ConsumerType
) -> None:
    name = topic(partitions=2)
    publish(api, client, name, 12, batch=batch)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST)
    messages = take(consumer, 12)
    if kind is ConsumerType.Exclusive:
        consumer.close()
    chosen = [message.message_id().serialize().hex() for message in messages if int(message.data()) % 3]
    subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.service_url, name, kind.name, *chosen], check=True, timeout=240
    )
    consumer.close()
    assert sorted(left(client, name, 4, kind)) == [0, 3, 6, 9]
