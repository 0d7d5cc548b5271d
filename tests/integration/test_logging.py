"""What is logged names the topic and the producer or consumer, and no secret."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import AuthenticationToken, Client, InitialPosition, Message
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.relay import NewRelay

Eventually = Callable[..., Any]

SECRET = "a-token-nobody-may-see"


def test_records_name_topic_and_producer_or_consumer_and_no_secret(
    api: Api,
    broker: Broker,
    relay: NewRelay,
    topic: NewTopic,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    caplog.set_level(logging.DEBUG, "pulsar_native")
    name = topic(partitions=1)
    through = relay(broker.service_url)
    client = api.client(
        through.service_url,
        authentication=AuthenticationToken(SECRET),
        starting_backoff_interval_ms=50,
        stats_interval_in_seconds=1,
    )
    growing = {"auto_update_partitions_interval_seconds": 0.2}
    producer = client.create_producer(name, producer_name="the-producer", **growing)
    consumer = client.subscribe(name, "the-sub", consumer_name="the-consumer", **growing)
    producer.send(b"x")
    through.refuse()
    through.cut()
    eventually(lambda: "is not connected yet" in caplog.text)
    through.accept()
    eventually(lambda: producer.is_connected() and consumer.is_connected())
    broker.admin("POST", name.replace("://", "/") + "/partitions", 2)
    eventually(lambda: len([each for each in caplog.messages if "now has 2 partitions" in each]) == 2)
    eventually(lambda: "published in" in caplog.text and "received in" in caplog.text)
    client.close()
    told = [each for each in caplog.records if each.name.startswith("pulsar_native")]
    assert {"pulsar_native.handler", "pulsar_native.stats", "pulsar_native.client"} <= {each.name for each in told}
    for each in told:
        if each.name in (
            "pulsar_native.handler",
            "pulsar_native.producer",
            "pulsar_native.consumer",
            "pulsar_native.stats",
        ):
            text = each.getMessage()
            assert name in text, text
            assert "the-producer" in text or ("the-consumer" in text and "the-sub" in text), text
    assert any("is connected to" in each.getMessage() for each in told)
    for each in told:
        assert SECRET not in each.getMessage() and SECRET not in str(each.__dict__)


def test_what_an_application_breaks_is_logged_with_its_topic(
    broker: Broker, topic: NewTopic, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    name = topic()
    told = threading.Event()

    def listener(_consumer: Any, _message: Message) -> None:
        raise ZeroDivisionError("the listener's fault")

    def callback(_result: Any, _id: Any) -> None:
        told.set()
        raise ZeroDivisionError("the callback's fault")

    with Client(broker.service_url) as client:
        client.subscribe(
            name, "sub", initial_position=InitialPosition.Earliest, consumer_name="listening", message_listener=listener
        )
        client.create_producer(name).send_async(b"x", callback)
        assert told.wait(20)
        eventually(lambda: "the listener's fault" in caplog.text and "the callback's fault" in caplog.text)
    failures = [each.getMessage() for each in caplog.records if each.exc_info]
    assert len(failures) == 2 and all(name in each for each in failures)
    assert any("consumer listening" in each for each in failures)
