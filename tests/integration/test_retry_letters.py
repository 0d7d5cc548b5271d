"""Retry letters on a real broker: putting a message back with a delay, the count of tries, and the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pulsar_native import (
    AlreadyClosed,
    ConsumerDeadLetterPolicy,
    ConsumerInterceptor,
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    InitialPosition,
    InvalidConfiguration,
    InvalidMessage,
    Message,
    MessageId,
    ProducerBusy,
    Timeout,
)
from support.apis import Api
from support.brokers import Broker, NewTopic

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest
SHARED: dict[str, Any] = {"consumer_type": ConsumerType.Shared, "initial_position": EARLIEST, "enable_retry": True}


def nothing_comes(consumer: Any, wait_ms: int = 400) -> bool:
    try:
        consumer.receive(wait_ms)
    except Timeout:
        return True
    return False


def first_letter(client: Any, name: str) -> Message:
    """Return the only letter of a topic."""
    reading = client.subscribe(name, "letters", initial_position=EARLIEST)
    letter: Message = reading.receive(15_000)
    assert nothing_comes(reading, 300)
    reading.close()
    return letter


def backlog(stats: Stats, name: str) -> int:
    return int(stats(name)["subscriptions"]["sub"]["msgBacklog"])


@pytest.mark.proves("C151")
def test_three_delays_and_then_the_dead_letter_topic(
    client: Any, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    place = client.create_producer(name).send(
        b"\x00value", properties={"own": "1"}, partition_key="key", event_timestamp=5
    )
    consumer = client.subscribe(name, "sub", **SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(3))
    origin = f"{place.ledger_id()}:{place.entry_id()}:-1"
    origins = {
        "REAL_TOPIC": name, "REAL_SUBSCRIPTION": "sub", "ORIGIN_MESSAGE_ID": origin, "ORIGIN_MESSAGE_IDY_TIME": origin,
    }  # fmt: skip
    message = consumer.receive(15_000)
    for tries, delay in enumerate((1800, timedelta(milliseconds=2500), 0), 1):
        sent_at = time.time()
        consumer.reconsume_later(message, delay, {"reason": f"no {tries}"})
        message = consumer.receive(15_000)
        milliseconds = delay if isinstance(delay, int) else 2500
        # The broker takes it with its tick of one second, to either side.
        assert time.time() - sent_at >= milliseconds / 1000 - 1.1
        assert message.topic_name() == f"{name}-sub-RETRY"
        assert (message.data(), message.partition_key(), message.event_timestamp()) == (b"\x00value", "key", 5)
        assert message.properties() == {
            "own": "1", **origins, "reason": f"no {tries}",
            "RECONSUMETIMES": str(tries), "DELAY_TIME": str(milliseconds),
        }  # fmt: skip
    consumer.reconsume_later(message, 60_000)
    letter = first_letter(client, f"{name}-sub-DLQ")
    assert letter.data() == b"\x00value" and letter.producer_name().startswith(f"{name}-sub-RETRY-sub-")
    assert letter.properties() == {
        "own": "1", **origins, "reason": "no 3", "RECONSUMETIMES": "4", "DELAY_TIME": "60000",
    }  # fmt: skip
    for each in (name, f"{name}-sub-RETRY"):
        eventually(lambda each=each: backlog(stats, each) == 0)
    assert nothing_comes(consumer)


@pytest.mark.proves("C107")
def test_without_a_policy_there_are_sixteen_tries(client: Any, topic: NewTopic) -> None:
    name = topic()
    client.create_producer(name).send(b"bad")
    consumer = client.subscribe(name, "sub", **SHARED)
    assert f"{name}-sub-RETRY" in consumer.topic()
    for _ in range(16):
        consumer.reconsume_later(consumer.receive(15_000), 0)
    last = consumer.receive(15_000)
    assert last.properties()["RECONSUMETIMES"] == "16"
    consumer.reconsume_later(last, 0)
    assert first_letter(client, f"{name}-sub-DLQ").properties()["RECONSUMETIMES"] == "17"


@pytest.mark.proves("C106", "C107")
def test_names_of_old_clients_are_kept_where_their_topics_exist(client: Any, broker: Broker, namespace: Any) -> None:
    space = namespace()
    old_retry, old_dead = f"persistent://{space}/sub-RETRY", f"persistent://{space}/sub-DLQ"
    name = f"persistent://{space}/orders"
    broker.admin("PUT", old_retry.replace("://", "/"))
    broker.admin("PUT", old_dead.replace("://", "/") + "/partitions", 2)
    client.create_producer(name).send(b"bad")
    consumer = client.subscribe(name, "sub", **SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1))
    consumer.reconsume_later(consumer.receive(15_000), 0)
    again = consumer.receive(15_000)
    assert again.topic_name() == old_retry
    consumer.reconsume_later(again, 0)
    assert first_letter(client, old_dead).data() == b"bad"
    # Names of one's own come before both.
    other = ConsumerDeadLetterPolicy(1, f"persistent://{space}/dead", retry_letter_topic=f"persistent://{space}/again")
    named = client.subscribe(name, "sub", **SHARED, dead_letter_policy=other)
    assert named.topic() == f"{name},persistent://{space}/again"


@pytest.mark.proves("C151")
def test_several_messages_of_several_partitions_can_be_put_back_at_once(
    api: Api, client: Any, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic(partitions=2)
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=50)
    api.send_all(producer, [b"%d" % number for number in range(8)])
    consumer = client.subscribe(name, "sub", **SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(5))
    messages = [consumer.receive(15_000) for _ in range(8)]
    consumer.reconsume_later(messages[:7], 300)
    consumer.acknowledge(messages[7])
    again = [consumer.receive(15_000) for _ in range(7)]
    assert sorted(message.data() for message in again) == sorted(message.data() for message in messages[:7])
    assert {message.topic_name() for message in again} == {f"{name}-sub-RETRY"}
    origins = {message.data(): (message.topic_name(), message.message_id()) for message in messages}
    for message in again:
        origin, place = origins[message.data()]
        parts = message.properties()["ORIGIN_MESSAGE_ID"].split(":")
        assert message.properties()["REAL_TOPIC"] == origin
        assert [int(part) for part in parts[:3]] == [place.ledger_id(), place.entry_id(), place.partition()]
    for partition in (0, 1):
        eventually(lambda partition=partition: backlog(stats, f"{name}-partition-{partition}") == 0)


@pytest.mark.proves("C151")
def test_when_the_copy_fails_the_message_is_delivered_again(
    client: Any, broker: Broker, topic: NewTopic, stats: Stats
) -> None:
    name = topic()
    client.create_producer(name).send(b"again")
    options = {"producer_name": "taken"}
    policy = ConsumerDeadLetterPolicy(2, retry_letter_producer_options=options)
    consumer = client.subscribe(name, "sub", **SHARED, dead_letter_policy=policy)
    holder = client.create_producer(f"{name}-sub-RETRY", producer_name="taken")
    message = consumer.receive(15_000)
    with pytest.raises(ProducerBusy):
        consumer.reconsume_later(message, 0)
    message = consumer.receive(15_000)
    assert (message.data(), message.redelivery_count(), message.topic_name()) == (b"again", 1, name)
    holder.close()
    consumer.reconsume_later(message, 0)
    assert consumer.receive(15_000).properties()["RECONSUMETIMES"] == "1"


@pytest.mark.proves("C151")
def test_what_cannot_be_put_back(client: Any, topic: NewTopic) -> None:
    name = topic()
    client.create_producer(name).send(b"x")
    plain = client.subscribe(name, "plain", initial_position=EARLIEST)
    with pytest.raises(InvalidConfiguration, match="enable_retry=True"):
        plain.reconsume_later(plain.receive(15_000), 1000)
    consumer = client.subscribe(name, "sub", **SHARED)
    message = consumer.receive(15_000)
    for wrong in (message.message_id(), None, [b"x"]):
        with pytest.raises(InvalidMessage, match="a message or a list of messages"):
            consumer.reconsume_later(wrong, 1000)
    for delay in (-1, 1.5, True, "1"):
        with pytest.raises(InvalidMessage, match="delay"):
            consumer.reconsume_later(message, delay)
    with pytest.raises(InvalidMessage, match="properties"):
        consumer.reconsume_later(message, 0, {"a": 1})
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.reconsume_later(message, 0)


def test_on_an_exclusive_subscription_the_copy_comes_without_delay(client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name)
    producer.send(b"0")
    producer.send(b"1")
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST, enable_retry=True)
    consumer.reconsume_later(consumer.receive(15_000), 60_000)
    received = sorted(consumer.receive(15_000).data() for _ in range(2))
    assert received == [b"0", b"1"]


def test_interceptors_hear_of_messages_put_back(client: Any, topic: NewTopic) -> None:
    heard: list[bytes] = []

    class Hearing(ConsumerInterceptor):
        def on_acknowledge(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
            assert error is None
            heard.append(message_id.serialize())

    name = topic()
    client.create_producer(name).send(b"x")
    consumer = client.subscribe(name, "sub", **SHARED, interceptors=[Hearing()])
    message = consumer.receive(15_000)
    consumer.reconsume_later(message, 0)
    assert heard == [message.message_id().serialize()]


@pytest.mark.proves("C151")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_cumulative_retry_ends_what_came_before_it(
    api: Api, client: Any, topic: NewTopic, stats: Stats, eventually: Eventually, kind: ConsumerType
) -> None:
    name = topic()
    heard: list[tuple[str, MessageId]] = []

    class Hears(ConsumerInterceptor):
        def on_acknowledge(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
            heard.append(("one", message_id))

        def on_acknowledge_cumulative(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
            heard.append(("all", message_id))

    options = {**SHARED, "consumer_type": kind, "dead_letter_policy": ConsumerDeadLetterPolicy(1)}
    consumer = client.subscribe(name, "sub", **options, interceptors=[Hears()])
    api.send_all(client.create_producer(name, batching_enabled=False), [b"0", b"1", b"2", b"3"])
    messages = [consumer.receive(15_000) for _ in range(4)]
    consumer.reconsume_later_cumulative(messages[2], 0, {"reason": "no"})
    assert heard == [("all", messages[2].message_id())]
    again = consumer.receive(15_000)
    assert (again.data(), again.topic_name(), again.properties()["reason"]) == (b"2", f"{name}-sub-RETRY", "no")
    assert nothing_comes(consumer, 200)
    eventually(lambda: backlog(stats, name) == 1)
    consumer.reconsume_later_cumulative(again, timedelta(0))
    assert first_letter(client, f"{name}-sub-DLQ").data() == b"2"
    eventually(lambda: backlog(stats, f"{name}-sub-RETRY") == 0)


@pytest.mark.proves("C151")
def test_a_cumulative_retry_is_refused_before_anything_is_published(client: Any, topic: NewTopic) -> None:
    name = topic()
    client.create_producer(name).send(b"0")
    for kind in (ConsumerType.Shared, ConsumerType.KeyShared):
        consumer = client.subscribe(name, f"sub-{kind}", **{**SHARED, "consumer_type": kind})
        message = consumer.receive(15_000)
        with pytest.raises(CumulativeAcknowledgementNotAllowedError):
            consumer.reconsume_later_cumulative(message, 0)
        assert nothing_comes(consumer, 200)
    for wrong in (message.message_id(), [message]):
        with pytest.raises(InvalidMessage, match="an id is not enough"):
            consumer.reconsume_later_cumulative(wrong, 0)
    plain = client.subscribe(name, "plain", initial_position=EARLIEST)
    with pytest.raises(InvalidConfiguration, match="enable_retry"):
        plain.reconsume_later_cumulative(plain.receive(15_000), 0)
