"""Watchers of the admin interface: conditions, results, what was seen, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_native import AdminClient, Client, InitialPosition
from pulsar_native.exceptions import ConnectError
from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.watching_admin import SchemaCondition, SchemaWatcher, SubscriptionCondition, SubscriptionWatcher
from pulsar_native.schema import StringSchema
from support.brokers import Broker, NewTopic
from support.jobs import TOPIC


def test_subscription_condition_of_rendered_templates() -> None:
    made = SubscriptionCondition.of("t", "s", " 1200 ", False)
    assert made == SubscriptionCondition(TOPIC, "s", 1200)
    assert str(made) == f"a backlog of at least 1,200 entries of the subscription 's' in {TOPIC}"
    assert str(SubscriptionCondition.of("t", "s", "", True)) == f"no backlog of the subscription 's' in {TOPIC}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("t", "s", None, False), "give either backlog=N or caught_up=True"),
        (("t", "s", 1, True), "give either backlog=N or caught_up=True"),
        (("t", "s", 1.5, False), "backlog must be a whole number of at least 1, not 1.5"),
        (("t", "s", True, False), "backlog must be a whole number"),
        (("t", "s", None, 1), "caught_up must be True or False, not 1"),
        (("t", "", 1, False), "subscription must be a text"),
        (("non-persistent://a/b/t", "s", 1, False), "a non-persistent topic has no backlog"),
    ],
)
def test_subscription_condition_wrong_raises(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SubscriptionCondition.of(*arguments)


def test_schema_condition_is_of_the_whole_topic() -> None:
    made = SchemaCondition.of("t-partition-3", "Avro")
    assert made == SchemaCondition(TOPIC, "avro") and str(made) == f"a schema of the type avro of {TOPIC}"
    assert str(SchemaCondition.of("t")) == f"a schema of {TOPIC}"


async def test_watchers_need_the_admin_interface() -> None:
    for watch in (
        SubscriptionWatcher(SubscriptionCondition(TOPIC, "s", 1)),
        SchemaWatcher(SchemaCondition(TOPIC)),
    ):
        assert watch.uses == "admin"
        with pytest.raises(JobRefused, match="set admin_url in the connection"):
            await watch.look(None)


async def test_subscription_watcher_tells_what_it_saw(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    watch = SubscriptionWatcher(SubscriptionCondition(name, "s", 2))
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:
        assert await watch.look(admin) is None and watch.seen == "the topic does not exist"
        producer = client.create_producer(name)
        assert await watch.look(admin) is None and watch.seen == "the topic has no such subscription"
        client.subscribe(name, "s", initial_position=InitialPosition.Earliest).close()
        producer.send(b"x")
        assert await watch.look(admin) is None and watch.seen == "the backlog is 1 entries"
        watch.failed(ConnectError("refused"))
        assert "failed at the stage 'admin': ConnectError" in watch.seen
        assert watch.seen.endswith("(before: the backlog is 1 entries)")
        producer.send(b"y")
        assert await watch.look(admin) == {"topic": name, "subscription": "s", "backlog": 2}


async def test_schema_watcher_tells_what_it_saw(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    watch, other = SchemaWatcher(SchemaCondition(name)), SchemaWatcher(SchemaCondition(name, "avro"))
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:
        assert await watch.look(admin) is None and watch.seen == "the topic has no schema"
        client.create_producer(name, schema=StringSchema()).close()
        assert await watch.look(admin) == {"topic": name, "type": "string", "version": 0}
        assert await other.look(admin) is None and other.seen == "the schema is of the type string"
