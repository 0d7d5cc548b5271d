"""SubscriptionSensor on the real broker: backlog and caught up, in every mode, without a consumer."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_pulsar.sensors.subscription import SubscriptionSensor
from airflow_provider_pulsar.triggers.subscription import SubscriptionTrigger
from pulsar_native import AdminClient, Client, InitialPosition
from support.brokers import Broker, NewTopic
from support.tasks import context_of, define_connection
from support.waiting import MODES, options_of, wait_with

pytestmark = pytest.mark.usefixtures("pulsar_conn")


def sensor(topic: str, mode: str = "poke", **options: Any) -> SubscriptionSensor:
    options = {"poke_interval": 0.2, "timeout": 5, **options_of(mode), **options}
    return SubscriptionSensor(task_id="a_task", topic=topic, subscription="s", **options)


def publish(client: Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(count):
        producer.send(b"x")
    producer.close()


@pytest.mark.proves("A17")
@pytest.mark.parametrize("mode", MODES)
def test_backlog_that_grows_is_waited_for(mode: str, client: Client, topic: NewTopic, admin: AdminClient) -> None:
    name = topic(partitions=2)
    client.subscribe(name, "s", initial_position=InitialPosition.Earliest).close()
    publish(client, name, 2)
    later = threading.Timer(0.5, publish, (client, name, 3))
    later.start()
    found = wait_with(sensor(name, mode, backlog=5), mode)
    later.join()
    assert found == {"topic": name, "subscription": "s", "backlog": 5}
    assert admin.partitioned_stats(name)["subscriptions"]["s"].get("consumers", []) == []


@pytest.mark.proves("A17")
@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_caught_up_needs_every_acknowledgement(mode: str, client: Client, topic: NewTopic) -> None:
    name = topic()
    consumer = client.subscribe(name, "s", initial_position=InitialPosition.Earliest, ack_receipt_enabled=True)
    publish(client, name, 3)
    messages = [consumer.receive(5000) for _ in range(3)]
    consumer.acknowledge(messages[:2])
    with pytest.raises(
        AirflowSensorTimeout, match=r"no backlog of the subscription 's' .*last: the backlog is 1 entries"
    ):
        wait_with(sensor(name, mode, caught_up=True, timeout=1), mode)
    consumer.acknowledge(messages[2])
    assert wait_with(sensor(name, mode, caught_up=True), mode)["backlog"] == 0


def test_missing_topic_and_subscription_are_waited_for(client: Client, topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    with pytest.raises(AirflowSensorTimeout, match="last: the topic does not exist"):
        wait_with(sensor(name, backlog=1, timeout=0.5), "poke")
    publish(client, name, 1)
    with pytest.raises(AirflowSensorTimeout, match="last: the topic has no such subscription"):
        wait_with(sensor(name, backlog=1, timeout=0.5), "poke")
    assert admin.subscriptions(name) == []


@pytest.mark.parametrize("mode", ["poke", "reschedule", "deferrable", "start_from_trigger"])
def test_connection_without_admin_fails_at_once(
    mode: str, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    define_connection(monkeypatch, "plain", service_url=broker.service_url)
    with pytest.raises(AirflowFailException, match="set admin_url in the connection"):
        wait_with(sensor(topic(), mode, backlog=1, pulsar_conn_id="plain", timeout=60), mode)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give either backlog=N or caught_up=True"),
        ({"backlog": 1, "caught_up": True}, "give either backlog=N or caught_up=True"),
        ({"backlog": 0}, "backlog must be a whole number of at least 1, not 0"),
        ({"backlog": "many"}, "backlog must be a whole number"),
        ({"caught_up": "yes"}, "caught_up must be True or False, not 'yes'"),
        ({"backlog": 1, "topic": "non-persistent://public/default/t"}, "has no backlog"),
        ({"backlog": 1, "topic": ""}, "topic must be a text"),
        ({"backlog": 1, "subscription": " "}, "subscription must be a text that is not blank"),
        ({"backlog": 1, "start_from_trigger": True}, "start_from_trigger=True needs deferrable=True"),
    ],
)
def test_wrong_argument_fails_when_parsed(options: dict[str, Any], words: str) -> None:
    arguments = {"topic": "t", "subscription": "s", **options}
    with pytest.raises(ValueError, match=words):
        SubscriptionSensor(task_id="a_task", **arguments)


def test_template_is_checked_when_rendered() -> None:
    made = SubscriptionSensor(task_id="a_task", topic="t", subscription="s", backlog="{{ params.n }}")
    made.backlog = "none"
    with pytest.raises(ValueError, match="backlog must be a whole number of at least 1, not 'none'"):
        wait_with(made, "poke")


def test_deferrable_in_reschedule_mode_keeps_its_time(client: Client, topic: NewTopic) -> None:
    made = SubscriptionSensor(
        task_id="a_task", topic=topic(), subscription="s", backlog=1, mode="reschedule", deferrable=True, timeout=500
    )
    with pytest.raises(TaskDeferred) as deferred:
        made.execute(context_of())
    trigger = deferred.value.trigger
    assert isinstance(trigger, SubscriptionTrigger) and trigger.end_time is not None
    assert 400 < trigger.end_time - time.time() <= 500
