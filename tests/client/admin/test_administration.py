"""AdminClient methods that set topics up and change them, against a real broker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from pulsar_native import Client, InitialPosition, MessageId
from pulsar_native.admin import AdminClient, AdminError, AlreadyExists, NotFound
from pulsar_native.exceptions import (
    InvalidConfiguration,
    NotAllowedError,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_native.schema import AvroSchema, KeyValueSchema, SchemaInfo, SchemaType, StringSchema
from support.brokers import Broker, NewTopic
from support.until import next_millisecond, wait_until

FLIGHT = '{"type":"record","name":"Flight","fields":[{"name":"carrier","type":"string"}]}'
OTHER = '{"type":"record","name":"Flight","fields":[{"name":"carrier","type":"int"}]}'


@pytest.fixture
def admin(broker: Broker) -> Iterator[AdminClient]:
    """Give an admin client of the shared broker."""
    with AdminClient(broker.admin_url) as client:
        yield client


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """Give a client of the shared broker."""
    with Client(broker.service_url) as made:
        yield made


def publish(client: Client, topic: str, first: int, last: int) -> list[MessageId]:
    """Publish the numbers one by one and return their ids."""
    producer = client.create_producer(topic)
    try:
        return [producer.send(str(number).encode()) for number in range(first, last)]
    finally:
        producer.close()


def unread(client: Client, topic: str, subscription: str, count: int) -> list[bytes]:
    """Return the next messages of a subscription, which are not acknowledged, and see that there is no further one."""
    consumer = client.subscribe(topic, subscription)
    try:
        found = [consumer.receive(timeout_millis=10_000).data() for _ in range(count)]
        with pytest.raises(PulsarException):
            consumer.receive(timeout_millis=200)
        return found
    finally:
        consumer.close()


# ---- subscriptions ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("A26")
def test_create_subscription_at_each_position(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic()
    ids = publish(client, name, 0, 3)
    admin.create_subscription(name, "latest")
    admin.create_subscription(name, "earliest", MessageId.earliest)
    admin.create_subscription(name, "second", ids[1])
    with pytest.raises(AlreadyExists):
        admin.create_subscription(name, "second")
    publish(client, name, 3, 4)
    assert unread(client, name, "latest", 1) == [b"3"]
    assert unread(client, name, "earliest", 4) == [b"0", b"1", b"2", b"3"]
    assert unread(client, name, "second", 3) == [b"1", b"2", b"3"]
    with pytest.raises(TopicNotFound) as caught:
        admin.create_subscription(topic(), "s")
    assert str(caught.value).startswith("create subscription s of persistent://")


@pytest.mark.proves("A26")
def test_create_subscription_partitioned(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    publish(client, name, 0, 4)
    admin.create_subscription(name, "s", MessageId.earliest)
    assert sorted(unread(client, name, "s", 4)) == [b"0", b"1", b"2", b"3"]


def test_id_of_another_partition_is_refused(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    parted, name = topic(partitions=2), topic()
    publish(client, name, 0, 1)
    first, second = sorted(publish(client, parted, 0, 4), key=lambda each: each.partition())[1:3]
    own = f"{parted}-partition-0"
    with pytest.raises(InvalidConfiguration, match=r"the topic is partitioned, and the id .* reset it on"):
        admin.create_subscription(parted, "s", first)
    for place in (own, name):
        with pytest.raises(InvalidConfiguration, match="is of partition 1, which is another topic: name that"):
            admin.create_subscription(place, "s", second)
    assert admin.subscriptions(parted) == admin.subscriptions(name) == []
    admin.create_subscription(parted, "s", MessageId.earliest)
    for place in (own, parted):
        with pytest.raises(InvalidConfiguration, match="is of partition 1, which is another topic: name that"):
            admin.reset_cursor(place, "s", second)
    admin.reset_cursor(own, "s", first)
    assert len(unread(client, parted, "s", 3)) == 3
    # The partition's own id, with its number and without.
    admin.create_subscription(own, "other", first)
    admin.create_subscription(own, "third", MessageId(-1, first.ledger_id(), first.entry_id(), -1))
    assert len(unread(client, own, "other", 1)) == len(unread(client, own, "third", 1)) == 1


@pytest.mark.proves("A26")
def test_reset_cursor_by_id_and_time(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic()
    client.subscribe(name, "s", initial_position=InitialPosition.Earliest).close()
    ids = publish(client, name, 0, 2)
    moment = next_millisecond()
    publish(client, name, 2, 4)
    admin.clear_backlog(name, "s")
    admin.reset_cursor(name, "s", ids[1])
    assert unread(client, name, "s", 3) == [b"1", b"2", b"3"]
    admin.reset_cursor(name, "s", ids[1], excluded=True)
    assert unread(client, name, "s", 2) == [b"2", b"3"]
    admin.reset_cursor(name, "s", MessageId.earliest)
    assert unread(client, name, "s", 4) == [b"0", b"1", b"2", b"3"]
    admin.reset_cursor(name, "s", moment)
    assert unread(client, name, "s", 2) == [b"2", b"3"]
    admin.reset_cursor(name, "s", MessageId.latest)
    assert unread(client, name, "s", 0) == []
    with pytest.raises(SubscriptionNotFound):
        admin.reset_cursor(name, "unknown", ids[0])
    for wrong in (-1, True, "now"):
        with pytest.raises(InvalidConfiguration, match="position must be"):
            admin.reset_cursor(name, "s", wrong)  # type: ignore[arg-type]  # that is the test


@pytest.mark.proves("A26")
def test_reset_cursor_partitioned_by_time(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    admin.create_subscription(name, "s", MessageId.earliest)
    publish(client, name, 0, 4)
    admin.clear_backlog(name, "s")
    assert unread(client, name, "s", 0) == []
    admin.reset_cursor(name, "s", 0)
    assert len(unread(client, name, "s", 4)) == 4


@pytest.mark.proves("A26")
def test_skip_and_clear_backlog(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic()
    admin.create_topic(name)
    admin.create_subscription(name, "s")
    publish(client, name, 0, 5)
    admin.skip_messages(name, "s", 2)
    assert unread(client, name, "s", 3) == [b"2", b"3", b"4"]
    admin.clear_backlog(name, "s")
    assert unread(client, name, "s", 0) == []
    with pytest.raises(SubscriptionNotFound):
        admin.skip_messages(name, "unknown", 1)
    with pytest.raises(InvalidConfiguration, match="at least 1"):
        admin.skip_messages(name, "s", 0)
    several = topic(partitions=2)
    admin.create_subscription(several, "s")
    with pytest.raises(NotAllowedError):
        admin.skip_messages(several, "s", 1)


@pytest.mark.parametrize("partitions", [0, 2])
def test_update_subscription_properties_replaces(admin: AdminClient, topic: NewTopic, partitions: int) -> None:
    name = topic(partitions=partitions)
    if not partitions:
        admin.create_topic(name)
    admin.create_subscription(name, "a/b%20ü")
    for properties in ({"x": "1", "y": "[[1, 2]]"}, {"y": "ü"}, {}):
        admin.update_subscription_properties(name, "a/b%20ü", properties)
        for each in [f"{name}-partition-{number}" for number in range(partitions)] or [name]:
            (found,) = admin.stats(each)["subscriptions"].values()
            assert found["subscriptionProperties"] == properties
    with pytest.raises(SubscriptionNotFound):
        admin.update_subscription_properties(name, "unknown", {})


@pytest.mark.proves("A26")
def test_expire_messages_by_age(admin: AdminClient, client: Client, topic: NewTopic) -> None:
    name = topic()
    admin.create_topic(name)
    admin.create_subscription(name, "s")
    publish(client, name, 0, 2)

    def are_expired() -> bool:
        # The broker refuses while an earlier request is in progress.
        with contextlib.suppress(AdminError):
            admin.expire_messages(name, "s", 1)
        return bool(admin.stats(name, precise_backlog=True)["subscriptions"]["s"]["msgBacklog"] == 0)

    wait_until(are_expired)
    publish(client, name, 2, 3)
    admin.expire_messages(name, "s", 1)
    assert unread(client, name, "s", 1) == [b"2"]
    with pytest.raises(InvalidConfiguration, match="at least 1"):
        admin.expire_messages(name, "s", 0)


# ---- policies --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["namespace", "topic"])
def place(request: pytest.FixtureRequest, admin: AdminClient, namespace: Callable[[], str], topic: NewTopic) -> str:
    """Give a namespace, and a topic that exists."""
    if request.param == "namespace":
        return namespace()
    name = topic()
    admin.create_topic(name)
    return name


@pytest.mark.proves("A26")
def test_message_ttl_set_and_removed(admin: AdminClient, place: str) -> None:
    assert admin.get_message_ttl(place) is None
    admin.set_message_ttl(place, 90)
    wait_until(lambda: admin.get_message_ttl(place) == 90)
    admin.remove_message_ttl(place)
    wait_until(lambda: admin.get_message_ttl(place) is None)
    with pytest.raises(InvalidConfiguration, match="at least 0"):
        admin.set_message_ttl(place, -1)


@pytest.mark.proves("A26")
def test_backlog_quota_set_and_removed(admin: AdminClient, place: str) -> None:
    assert admin.get_backlog_quotas(place) == {}
    admin.set_backlog_quota(place, "producer_exception", limit_bytes=10_000, limit_seconds=60)
    wait_until(lambda: len(admin.get_backlog_quotas(place)) == 2)
    found = admin.get_backlog_quotas(place)
    assert found["destination_storage"]["limitSize"] == 10_000
    assert found["message_age"]["limitTime"] == 60
    assert {each["policy"] for each in found.values()} == {"producer_exception"}
    admin.remove_backlog_quotas(place)
    wait_until(lambda: admin.get_backlog_quotas(place) == {})


def test_backlog_quota_wrong_arguments_raise(admin: AdminClient) -> None:
    with pytest.raises(InvalidConfiguration, match="policy must be one of"):
        admin.set_backlog_quota("a/b", "drop", limit_bytes=1)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(InvalidConfiguration, match="needs limit_bytes"):
        admin.set_backlog_quota("a/b", "producer_exception")
    with pytest.raises(InvalidConfiguration, match="at least 1"):
        admin.set_backlog_quota("a/b", "producer_exception", limit_seconds=0)


@pytest.mark.proves("A26")
def test_retention_and_deduplication_removed(admin: AdminClient, place: str) -> None:
    admin.set_retention(place, 5, 6)
    admin.set_deduplication(place, True)
    wait_until(lambda: admin.get_retention(place) == (5, 6) and admin.get_deduplication(place) is True)
    admin.remove_retention(place)
    admin.remove_deduplication(place)
    wait_until(lambda: admin.get_retention(place) is None and admin.get_deduplication(place) is None)


def test_delete_namespace_with_and_without_topics(admin: AdminClient, namespace: Callable[[], str]) -> None:
    name = namespace()
    admin.create_topic(f"persistent://{name}/t")
    with pytest.raises(AdminError) as caught:
        admin.delete_namespace(name)
    assert caught.value.status == 409
    admin.delete_topic(f"persistent://{name}/t")
    admin.delete_namespace(name)
    with pytest.raises(NotFound):
        admin.topics(name)


# ---- schema ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A26")
@pytest.mark.parametrize(
    "schema",
    [
        SchemaInfo("s", SchemaType.AVRO, FLIGHT.encode(), {"a": "b"}),
        SchemaInfo("s", SchemaType.STRING),
        KeyValueSchema(StringSchema(), StringSchema()).schema_info(),
    ],
    ids=["avro", "string", "key-value"],
)
def test_upload_schema_is_the_one_read(admin: AdminClient, topic: NewTopic, schema: SchemaInfo) -> None:
    name = topic()
    admin.create_topic(name)
    assert admin.upload_schema(name, schema) == 0
    # The same again is the same version.
    assert admin.upload_schema(name, schema) == 0
    found = admin.get_schema(name)
    assert found is not None
    assert (found.type, found.data) == (schema.type, schema.data)
    assert found.properties().items() >= schema.properties().items()


@pytest.mark.proves("A26")
def test_upload_schema_incompatible_and_invalid_raise(admin: AdminClient, topic: NewTopic) -> None:
    name = topic()
    admin.create_topic(name)
    admin.upload_schema(name, SchemaInfo("s", SchemaType.AVRO, FLIGHT.encode()))
    with pytest.raises(AdminError) as caught:
        admin.upload_schema(name, SchemaInfo("s", SchemaType.AVRO, OTHER.encode()))
    assert caught.value.status == 409
    with pytest.raises(AdminError) as caught:
        admin.upload_schema(topic(), SchemaInfo("s", SchemaType.AVRO, b"{}"))
    assert caught.value.status == 422


@pytest.mark.proves("A26")
def test_delete_schema(admin: AdminClient, topic: NewTopic) -> None:
    name = topic()
    admin.create_topic(name)
    admin.upload_schema(name, SchemaInfo("s", SchemaType.AVRO, FLIGHT.encode()))
    admin.delete_schema(name)
    assert admin.get_schema(name) is None
    admin.delete_schema(name)
    # Another one is accepted now.
    admin.upload_schema(name, SchemaInfo("s", SchemaType.STRING))
    admin.delete_schema(name, force=True)
    assert admin.get_schema(name) is None


@pytest.mark.proves("A26")
def test_schemas_of_topics_encoded_alike(admin: AdminClient, topic: NewTopic, client: Client) -> None:
    # Pairs of names of which the broker takes the first for the second where it decodes once too often.
    pairs = [("a+b", "a b"), ("50%25", "50%"), ("x%41", "xA"), ("p%2Fq", "pq"), ("ü+", "ü ")]
    base = topic()
    names = [f"{base}{local}" for pair in pairs for local in pair]
    # Each has a schema of its own: registered by a producer, which asks over the binary protocol, or uploaded.
    own = [AvroSchema(None, schema_definition={**json.loads(FLIGHT), "name": f"F{number}"}) for number in range(10)]
    for number, (name, schema) in enumerate(zip(names, own, strict=True)):
        if number % 4 < 2:
            client.create_producer(name, schema=schema).close()
        else:
            admin.create_topic(name)
            assert admin.upload_schema(name, schema.schema_info()) == 0
        # A producer with it is accepted, so it is the schema of this topic.
        client.create_producer(name, schema=schema).close()

    def records() -> list[object]:
        found = [admin.get_schema(name) for name in names]
        return [each and each.definition()["name"] for each in found]

    expected: list[object] = [f"F{number}" for number in range(10)]
    assert records() == expected
    for number in range(0, 10, 2):
        admin.delete_schema(names[number], force=True)
        expected[number] = None
        assert records() == expected
