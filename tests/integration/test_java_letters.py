"""Dead letters and retry letters between Java and us: each continues what the other began, by the same names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import ConsumerDeadLetterPolicy, ConsumerType, InitialPosition, Message
from pulsar_native.schema import AvroSchema, Integer, JsonSchema, Record, String
from support.brokers import NewTopic
from support.java_peer import JavaClient, JavaMessage

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest
SHARED: dict[str, Any] = {"consumer_type": ConsumerType.Shared, "initial_position": EARLIEST}
JAVA: dict[str, Any] = {"subscriptionType": "Shared"}


def shown(message: Message | JavaMessage) -> dict[str, Any]:
    """Return what a letter tells, whoever reads it."""
    if isinstance(message, JavaMessage):
        return {
            "data": message.data,
            "properties": message.properties,
            "key": message.key,
            "ordering_key": message.ordering_key,
            "event_time": message.event_time,
        }
    return {
        "data": message.data(),
        "properties": message.properties(),
        "key": message.partition_key() if message.has_key() else None,
        "ordering_key": message.ordering_key_bytes(),
        "event_time": message.event_timestamp(),
    }


def publish(client: Any, name: str) -> None:
    client.create_producer(name, batching_enabled=False).send(
        b"\x00bad", properties={"own": "1"}, partition_key="key", ordering_key="order", event_timestamp=77
    )


@pytest.mark.proves("C150")
def test_dead_letters_of_both_are_alike(client: Any, java: JavaClient, topic: NewTopic) -> None:
    name = topic(partitions=2)
    publish(client, name)
    ours = client.subscribe(
        name, "ours", **SHARED, consumer_name="me", negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
    )  # fmt: skip
    theirs = java.consumer(
        name, "theirs", dead_letter={"max": 1}, **JAVA, consumerName="me", negativeAckRedeliveryDelayMicros=100_000
    )
    for _ in range(2):
        message = ours.receive(20_000)
        ours.negative_acknowledge(message)
        theirs.negative_acknowledge(*theirs.receive())
    partition = message.topic_name()
    told = []
    for subscription in ("ours", "theirs"):
        dead = f"{partition}-{subscription}-DLQ"
        (by_java,) = java.consumer(dead, "java").receive()
        by_us = client.subscribe(dead, "us", initial_position=EARLIEST).receive(20_000)
        assert shown(by_java) == shown(by_us)
        assert re.fullmatch(re.escape(f"{partition}-{subscription}-me-") + "[A-Za-z0-9]{5}-DLQ", by_java.producer_name)
        told.append(shown(by_us))
        assert told[-1]["properties"].pop("REAL_SUBSCRIPTION") == subscription
    assert told[0] == told[1]
    assert told[0]["properties"]["REAL_TOPIC"] == partition and told[0]["key"] == "key"


@pytest.mark.proves("C151", "C107")
@pytest.mark.parametrize("order", ["we begin", "Java begins"])
def test_a_message_is_put_back_by_one_and_then_by_the_other(
    client: Any, java: JavaClient, topic: NewTopic, stats: Stats, eventually: Eventually, order: str
) -> None:
    name = topic()
    publish(client, name)

    def ours() -> Message:
        consumer = client.subscribe(
            name, "sub", **SHARED, enable_retry=True, dead_letter_policy=ConsumerDeadLetterPolicy(2)
        )
        message: Message = consumer.receive(20_000)
        consumer.reconsume_later(message, 0)
        consumer.close()
        return message

    def theirs() -> JavaMessage:
        consumer = java.consumer(name, "sub", dead_letter={"max": 2}, retryEnable=True, **JAVA)
        (message,) = consumer.receive()
        consumer.reconsume_later(message, delay_ms=0)
        consumer.close()
        return message

    turns = [ours, theirs, ours] if order == "we begin" else [theirs, ours, theirs]
    seen = [shown(turn()) for turn in turns]
    assert [each["properties"].get("RECONSUMETIMES") for each in seen] == [None, "1", "2"]
    dead = client.subscribe(f"{name}-sub-DLQ", "sub", initial_position=EARLIEST).receive(20_000)
    (by_java,) = java.consumer(f"{name}-sub-DLQ", "java").receive()
    assert shown(dead) == shown(by_java)
    # Who wrote a copy does not show, but for the count.
    copies = [*seen[1:], shown(dead)]
    assert [copy["properties"].pop("RECONSUMETIMES") for copy in copies] == ["1", "2", "3"]
    assert copies[0] == copies[1] == copies[2]
    assert (copies[0]["data"], copies[0]["properties"]["own"]) == (b"\x00bad", "1")
    for each in (name, f"{name}-sub-RETRY"):
        eventually(lambda each=each: stats(each)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.mark.proves("C106", "C107", "C151")
@pytest.mark.parametrize("order", ["we begin", "Java begins"])
def test_named_topics_delays_and_keys_of_bytes(client: Any, java: JavaClient, topic: NewTopic, order: str) -> None:
    name, again, dead = topic(), topic("again"), topic("dead")
    client.create_producer(name, batching_enabled=False).send(
        b"bad", partition_key=b"\xff\x00", properties={"own": "1"}
    )

    def ours() -> Message:
        consumer = client.subscribe(
            name, "sub", **SHARED, enable_retry=True,
            dead_letter_policy=ConsumerDeadLetterPolicy(1, dead, retry_letter_topic=again),
        )  # fmt: skip
        message: Message = consumer.receive(20_000)
        consumer.reconsume_later(message, 700)
        consumer.close()
        return message

    def theirs() -> JavaMessage:
        consumer = java.consumer(
            name, "sub", dead_letter={"max": 1, "topic": dead, "retry_topic": again}, retryEnable=True, **JAVA
        )
        (message,) = consumer.receive()
        consumer.reconsume_later(message, delay_ms=700)
        consumer.close()
        return message

    turns = [ours, theirs] if order == "we begin" else [theirs, ours]
    first, copy = (turn() for turn in turns)
    letters = [client.subscribe(dead, "us", initial_position=EARLIEST).receive(20_000), *java.consumer(dead).receive()]
    told = shown(copy)
    assert told["properties"].pop("RECONSUMETIMES") == "1" and told["properties"]["DELAY_TIME"] == "700"
    assert told["properties"]["REAL_TOPIC"] == name and "RECONSUMETIMES" not in shown(first)["properties"]
    for letter in letters:
        found = shown(letter)
        assert found["properties"].pop("RECONSUMETIMES") == "2"
        assert found == told, "the dead letter is the retried one, one try on"
    assert letters[0].partition_key() == letters[1].key and letters[1].key_bytes == b"\xff\x00"


class Reading(Record):
    """A value whose definition is Java's `Reading` by its fields."""

    sensor = String(required=True)
    value = Integer(required=True)


@pytest.mark.proves("C150")
@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema], ids=["json", "avro"])
def test_dead_letters_keep_the_schema_they_were_written_with(
    client: Any, java: JavaClient, topic: NewTopic, schema: Any
) -> None:
    """Java writes, we read the value by its schema; we write, Java reads it."""
    name = topic()
    client.create_producer(name, schema=schema(Reading)).send(Reading(sensor="a", value=7))
    ours = client.subscribe(
        name, "ours", **SHARED, schema=schema(Reading), negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
    )  # fmt: skip
    theirs = java.consumer(
        name, "theirs", schema="auto_consume", dead_letter={"max": 1}, **JAVA, negativeAckRedeliveryDelayMicros=100_000
    )
    for _ in range(2):
        ours.negative_acknowledge(ours.receive(20_000))
        theirs.negative_acknowledge(*theirs.receive())
    for subscription in ("ours", "theirs"):
        dead = f"{name}-{subscription}-DLQ"
        (by_java,) = java.consumer(dead, "java", schema="auto_consume").receive()
        by_us = client.subscribe(dead, "us", schema=schema(Reading), initial_position=EARLIEST).receive(20_000)
        value = by_us.value()
        assert (value.sensor, value.value) == ("a", 7)
        assert by_java.value == {"sensor": "a", "value": 7}, by_java.value_error
