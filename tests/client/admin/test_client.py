"""AdminClient methods against a real broker; the official client publishes the data."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pulsar
import pytest

from broker import Standalone
from pulsar_native.admin import AdminClient, AdminError, AlreadyExists, NotFound, cursor_of
from pulsar_native.auth import AuthenticationToken
from pulsar_native.exceptions import (
    AlreadyClosed,
    AuthorizationError,
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowedError,
    OperationNotSupported,
    ReadError,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_native.message_id import MessageId
from pulsar_native.schema import SchemaInfo, SchemaType
from support.brokers import Broker, NewTopic
from support.http_peer import Answer, http_peer
from support.until import next_millisecond, until, wait_until

STRANGE = "wäh?#% &+;=:@x"


@pytest.fixture
def admin(broker: Broker) -> Iterator[AdminClient]:
    """Give an admin client of the shared broker."""
    with AdminClient(broker.admin_url) as client:
        yield client


@pytest.fixture
def peer(broker: Broker) -> Iterator[pulsar.Client]:
    """Give the official client."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(broker.service_url, logger=logger)) as client:
        yield client


def publish(peer: pulsar.Client, topic: str, count: int, **options: object) -> list[pulsar.MessageId]:
    """Publish messages "0", "1", … one by one and return their ids."""
    with closing(peer.create_producer(topic, **options)) as producer:
        return [producer.send(str(number).encode(), partition_key="k") for number in range(count)]


def position(message_id: MessageId | pulsar.MessageId) -> tuple[int, int]:
    """Return ledger and entry of either kind of id."""
    return message_id.ledger_id(), message_id.entry_id()


# ---- cluster and namespaces ------------------------------------------------------------------------------------------


def test_cluster(admin: AdminClient) -> None:
    assert admin.broker_health() is True
    assert admin.clusters() == ["standalone"]


def test_broker_health_sick_or_other_server() -> None:
    for status, body in ((500, b"sick"), (503, b""), (200, b"so-so")):
        with http_peer(lambda asked, s=status, b=body: Answer(s, b)) as sick:  # type: ignore[misc]
            assert AdminClient(sick.url).broker_health() is False
    with http_peer(lambda asked: Answer(404)) as other, pytest.raises(AdminError):
        AdminClient(other.url).broker_health()


def test_namespaces(admin: AdminClient) -> None:
    name = f"public/n-{uuid.uuid4().hex[:8]}"
    admin.create_namespace(name)
    assert name in admin.namespaces("public")
    with pytest.raises(AlreadyExists, match="already exists"):
        admin.create_namespace(name)
    with pytest.raises(NotFound, match="Tenant"):
        admin.create_namespace("nobody/n")
    with pytest.raises(NotFound, match="Tenant"):
        admin.namespaces("nobody")
    assert admin.topics(name) == []
    with pytest.raises(NotFound):
        admin.topics("public/nowhere")


def test_topics_of_namespace(admin: AdminClient, namespace: Callable[[], str]) -> None:
    space = namespace()
    admin.create_topic(f"persistent://{space}/single")
    admin.create_partitioned_topic(f"persistent://{space}/parted", 2)
    admin.create_topic(f"non-persistent://{space}/passing")
    admin.set_deduplication(f"persistent://{space}/single", True)  # makes the broker add a system topic
    wait_until(lambda: admin.get_deduplication(f"persistent://{space}/single") is True)
    assert admin.topics(space) == [
        f"non-persistent://{space}/passing",
        f"persistent://{space}/parted-partition-0",
        f"persistent://{space}/parted-partition-1",
        f"persistent://{space}/single",
    ]


def test_retention(admin: AdminClient, namespace: Callable[[], str]) -> None:
    space = namespace()
    assert admin.get_retention(space) is None
    admin.set_retention(space, 60, -1)
    assert admin.get_retention(space) == (60, -1)
    with pytest.raises(NotFound):
        admin.set_retention("public/nowhere", 60, -1)


def test_retention_of_a_topic_goes_before_its_namespace(
    admin: AdminClient, namespace: Callable[[], str], topic: NewTopic
) -> None:
    space = namespace()
    name = topic(partitions=2, namespace=space)
    assert admin.get_retention(name) is None
    assert admin.get_retention(name, applied=True) == (-1, -1)  # what the broker is configured with
    admin.set_retention(space, 60, -1)
    asyncio.run(until(lambda: admin.get_retention(name, applied=True) == (60, -1)))
    admin.set_retention(name, 5, 7)
    asyncio.run(until(lambda: admin.get_retention(name) == (5, 7)))
    assert admin.get_retention(name, applied=True) == (5, 7)
    assert admin.get_retention(space) == (60, -1)


# ---- topics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_topic_lifecycle(admin: AdminClient, topic: NewTopic, domain: str) -> None:
    name = topic().replace("persistent", domain)
    with pytest.raises(TopicNotFound) as caught:
        admin.partitions(name)
    assert caught.value.topic == name
    admin.create_topic(name)
    assert admin.partitions(name) == 0
    with pytest.raises(AlreadyExists):
        admin.create_topic(name)
    admin.delete_topic(name)
    with pytest.raises(TopicNotFound, match=f"delete topic {name}"):
        admin.delete_topic(name)


def test_partitions_does_not_create_topic(admin: AdminClient, topic: NewTopic) -> None:
    name = topic()
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            admin.partitions(name)
    assert name not in admin.topics("public/default")


def test_topic_names_encoded_alike_stay_distinct(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic()
    subscriptions = ["a+b", "a b", "a%2Bb", "a%20b", "a%b", "a/b"]
    for subscription in subscriptions:
        peer.subscribe(name, subscription).close()
    while subscriptions:
        admin.delete_subscription(name, subscriptions.pop(0))
        assert sorted(admin.subscriptions(name)) == sorted(subscriptions)
    topics = [topic(local) for local in ("a+b", "a b", "a%2Bb", "a%20b")]
    for each in topics:
        admin.create_topic(each)
    for each in topics:
        admin.delete_topic(each)


def test_partitioned_topic_lifecycle(admin: AdminClient, topic: NewTopic) -> None:
    name = topic()
    admin.create_partitioned_topic(name, 2)
    assert admin.partitions(name) == 2
    admin.update_partitions(name, 4)
    assert admin.partitions(name) == 4
    assert admin.partitions(f"{name}-partition-3") == 0
    with pytest.raises(AdminError, match="less than") as caught:
        admin.update_partitions(name, 3)
    assert caught.value.status == 422
    with pytest.raises(AlreadyExists):
        admin.create_partitioned_topic(name, 2)
    with pytest.raises(AlreadyExists):
        admin.create_topic(name)
    with pytest.raises(TopicNotFound):
        admin.partitions(f"{name}-partition-9")
    admin.delete_topic(f"{name}-partition-3")
    admin.delete_topic(name)
    assert not [found for found in admin.topics("public/default") if found.startswith(name)]


def test_delete_topic_in_use_needs_force(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    for name in (topic(), topic(partitions=2)):
        with closing(peer.create_producer(name)):
            with pytest.raises(AdminError) as caught:
                admin.delete_topic(name)
            assert caught.value.status == 412
            admin.delete_topic(name, force=True)


def test_topic_names_with_special_characters(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic(STRANGE)
    admin.create_topic(name)
    assert name in admin.topics("public/default")
    with closing(peer.subscribe(name, f"a/b {STRANGE}")):
        assert admin.subscriptions(name) == [f"a/b {STRANGE}"]
    admin.delete_subscription(name, f"a/b {STRANGE}")
    assert admin.subscriptions(name) == []
    admin.delete_topic(name)
    assert name not in admin.topics("public/default")


@pytest.mark.parametrize(
    "name", ["persistent://public/../x", "persistent://../default/x", "persistent://public/default/..", "."]
)
def test_topic_names_with_dot_segments_raise(admin: AdminClient, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        admin.delete_topic(name)


@pytest.mark.parametrize("name", ["", "public", "public/..", "../default", "a/b/c", "public/a b", "public/a?b"])
def test_namespace_invalid_raises_before_io(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="nvalid"):
        AdminClient("http://127.0.0.1:1").create_namespace(name)


@pytest.mark.parametrize("name", ["", " ", ".", "..", "x\ud800"], ids=ascii)
def test_subscription_invalid_raises_before_io(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="subscription"):
        AdminClient("http://127.0.0.1:1").delete_subscription("x", name)


def test_unload_reconnects_clients(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic(partitions=2)
    with closing(peer.create_producer(name)) as producer:
        producer.send(b"before")
        admin.unload(name)
        admin.unload(f"{name}-partition-0")
        producer.send(b"after")
    with pytest.raises(TopicNotFound):
        admin.unload(topic())


def test_terminate(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic()
    sent = publish(peer, name, 3)
    assert [position(last) for last in admin.terminate(name)] == [position(sent[-1])]
    with pytest.raises(pulsar.TopicTerminated):
        publish(peer, name, 1)
    parted = topic(partitions=11)
    sent = publish(peer, parted, 1)
    last = admin.terminate(parted)
    assert [each.partition() for each in last] == list(range(11))
    assert [position(each) for each in last if each.entry_id() >= 0] == [position(sent[0])]
    assert last[sent[0].partition()].entry_id() == 0


def test_trim(admin: AdminClient, namespace: Callable[[], str], peer: pulsar.Client) -> None:
    space = namespace()
    admin.set_retention(space, 0, 0)
    name = f"persistent://{space}/trimmed"
    publish(peer, name, 5)
    admin.unload(name)  # closes the ledger
    publish(peer, name, 1)

    def is_trimmed() -> bool:
        admin.trim(name)
        return admin.internal_stats(name)["numberOfEntries"] <= 1

    wait_until(is_trimmed)
    with pytest.raises(TopicNotFound):
        admin.trim(f"persistent://{space}/nothing")


def test_compact(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic()
    publish(peer, name, 10)
    assert admin.compaction_status(name)["status"] == "NOT_RUN"
    admin.compact(name)
    wait_until(lambda: admin.compaction_status(name)["status"] == "SUCCESS")
    with closing(peer.create_reader(name, pulsar.MessageId.earliest, is_read_compacted=True)) as reader:
        assert reader.read_next(5000).data() == b"9"
        assert not reader.has_message_available()


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_stats_unpartitioned_topic(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic()
    with closing(peer.subscribe(name, "sub", consumer_name="me")) as consumer:
        publish(peer, name, 4)
        consumer.acknowledge(consumer.receive(5000))
        wait_until(lambda: admin.stats(name, precise_backlog=True)["subscriptions"]["sub"]["msgBacklog"] == 3)
        stats = admin.stats(name)
    assert stats["msgInCounter"] == 4
    assert stats["subscriptions"]["sub"]["consumers"][0]["consumerName"] == "me"
    assert stats["publishers"] == []


def test_stats_partitions(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic(partitions=3)
    sent = publish(peer, name, 5)
    partition = f"{name}-partition-{sent[0].partition()}"
    stats = admin.partitioned_stats(name)
    assert (stats["msgInCounter"], stats["metadata"]["partitions"]) == (5, 3)
    assert stats["partitions"][partition]["msgInCounter"] == 5
    assert admin.partitioned_stats(name, per_partition=False)["partitions"] == {}
    assert admin.stats(partition)["msgInCounter"] == 5
    with pytest.raises(TopicNotFound):
        admin.partitioned_stats(topic())


def test_internal_stats(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic()
    ids = publish(peer, name, 4)
    stats = admin.internal_stats(name)
    assert (stats["numberOfEntries"], stats["currentLedgerEntries"]) == (4, 4)
    assert stats["lastConfirmedEntry"] == f"{ids[-1].ledger_id()}:{ids[-1].entry_id()}"
    assert stats["ledgers"][-1]["ledgerId"] == ids[-1].ledger_id()


def test_cursor_of_finds_any_name(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic()
    publish(peer, name, 1)
    marks = [f"a{mark}b" for mark in " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\t\n"]
    names = [*marks, "naïve", "日本", "😀", "a%2Bb", "manual__2026-01-01T00:00:00+00:00"]
    for each in names:
        admin.create_subscription(name, each)
    stats = admin.internal_stats(name)
    assert len(stats["cursors"]) == len(names)
    assert [each for each in names if cursor_of(stats, each) is None] == []
    assert cursor_of(stats, "a") is None


def test_partitioned_topic_unsupported_calls_raise(admin: AdminClient, topic: NewTopic) -> None:
    name = topic(partitions=2)
    for ask in (admin.stats, admin.internal_stats, admin.last_message_id, admin.compaction_status):
        with pytest.raises(TopicNotFound, match="it is partitioned: ask its partitions"):
            ask(name)
        with pytest.raises(TopicNotFound) as caught:
            ask(topic())
        assert "it is partitioned" not in str(caught.value)
    with pytest.raises(NotAllowedError, match="partitioned topic"):
        admin.message_id_by_time(name, 1)


# ---- subscriptions and positions -------------------------------------------------------------------------------------


def test_subscriptions(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic(partitions=2)
    with closing(peer.subscribe(name, "first")), closing(peer.subscribe(name, "second")):
        assert sorted(admin.subscriptions(name)) == ["first", "second"]
        with pytest.raises(AdminError) as caught:
            admin.delete_subscription(name, "first")
        assert caught.value.status == 412
        admin.delete_subscription(name, "second", force=True)
    admin.delete_subscription(name, "first")
    # Its consumer may have come back to "second" and made it anew before it was closed.
    assert "first" not in admin.subscriptions(name)
    with pytest.raises(SubscriptionNotFound):
        admin.delete_subscription(name, "first")
    with pytest.raises(TopicNotFound):
        admin.subscriptions(topic())


def test_positions(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic()
    before = int(time.time() * 1000)
    ids = publish(peer, name, 3)
    after = next_millisecond()
    assert position(admin.message_id_by_time(name, before)) == position(ids[0])
    assert position(admin.message_id_by_time(name, after)) == (ids[-1].ledger_id(), ids[-1].entry_id() + 1)
    assert admin.message_id_by_time(name, 0) == MessageId.earliest
    assert position(admin.last_message_id(name)) == position(ids[-1])
    with pytest.raises(InvalidConfiguration, match="at least 0"):
        admin.message_id_by_time(name, -1)


def test_last_message_id_partition_batch_empty(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic(partitions=2)
    with closing(peer.create_producer(name, batching_enabled=True)) as producer:
        for _ in range(5):
            producer.send_async(b"x", lambda result, sent: None, partition_key="k")
        producer.flush()
    last = [admin.last_message_id(f"{name}-partition-{index}") for index in range(2)]
    assert [each.partition() for each in last] == [0, 1]
    assert sorted((each.entry_id(), each.batch_index()) for each in last) == [(-1, -1), (0, 4)]


# ---- policies --------------------------------------------------------------------------------------------------------


def doubled(peer: pulsar.Client, topic: str) -> bool:
    """Return whether a message sent twice with one sequence id is stored twice."""
    name = uuid.uuid4().hex
    options = {"producer_name": name, "send_timeout_millis": 10_000}
    with closing(peer.create_producer(topic, **options)) as producer:
        producer.send(name.encode(), sequence_id=5)
        producer.send(name.encode(), sequence_id=5)
    with closing(peer.create_reader(topic, pulsar.MessageId.earliest)) as reader:
        found = 0
        while reader.has_message_available():
            found += reader.read_next(5000).data() == name.encode()
    return found == 2


def test_get_applied_retention_of_namespace(admin: AdminClient, namespace: Callable[[], str]) -> None:
    space = namespace()
    name = f"persistent://{space}/kept"
    admin.create_partitioned_topic(name, 2)
    assert admin.get_applied_retention(name) == (-1, -1), "the default of this broker"
    admin.set_retention(space, 60, 100)
    wait_until(lambda: admin.get_applied_retention(f"{name}-partition-1") == (60, 100))


def test_set_deduplication_namespace(admin: AdminClient, namespace: Callable[[], str], peer: pulsar.Client) -> None:
    space = namespace()
    assert admin.get_deduplication(space) is None
    assert doubled(peer, f"persistent://{space}/before")
    admin.set_deduplication(space, True)
    assert admin.get_deduplication(space) is True
    wait_until(lambda: not doubled(peer, f"persistent://{space}/after"))
    admin.set_deduplication(space, False)
    assert admin.get_deduplication(space) is False


def test_set_deduplication_topic(admin: AdminClient, topic: NewTopic, peer: pulsar.Client) -> None:
    name = topic()
    with pytest.raises(TopicNotFound):
        admin.set_deduplication(name, True)
    admin.create_topic(name)
    assert admin.get_deduplication(name) is None
    admin.set_deduplication(name, True)
    wait_until(lambda: admin.get_deduplication(name) is True)
    wait_until(lambda: not doubled(peer, name))


# ---- schema ----------------------------------------------------------------------------------------------------------


def test_get_schema(admin: AdminClient, broker: Broker, topic: NewTopic, peer: pulsar.Client) -> None:
    text = pulsar.schema.String(required_default=True)  # an old record must be readable too
    narrow: Any = type("Flight", (pulsar.schema.Record,), {"a": pulsar.schema.Integer()})
    wide: Any = type("Flight", (pulsar.schema.Record,), {"a": pulsar.schema.Integer(), "b": text})
    name = topic(partitions=2)
    assert admin.get_schema(name) is None
    assert admin.get_schema(topic()) is None
    for record in (narrow, wide):
        peer.create_producer(name, schema=pulsar.schema.AvroSchema(record)).close()
    latest = admin.get_schema(name)
    assert latest is not None
    assert (latest.type, latest.version) == (SchemaType.AVRO, 1)
    assert latest.definition() == json.loads(json.dumps(wide.schema()))
    first = admin.get_schema(f"{name}-partition-1", 0)
    assert first is not None and first.version == 0
    assert first.definition() == json.loads(json.dumps(narrow.schema()))
    assert admin.get_schema(name, 7) is None


def test_get_schema_properties_and_unknown_type(admin: AdminClient, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    admin.create_topic(name)
    path = f"schemas/{name.removeprefix('persistent://')}/schema"
    broker.admin("POST", path, {"type": "STRING", "schema": "", "properties": {"a": "b"}})
    local = name.rpartition("/")[2]
    assert admin.get_schema(name) == SchemaInfo(local, SchemaType.STRING, b"", {"a": "b"})
    odd = {"version": 0, "type": "EXTERNAL", "data": "", "properties": {}}
    answer = Answer(200, json.dumps(odd).encode())
    with http_peer(lambda asked: answer) as other, pytest.raises(OperationNotSupported, match="EXTERNAL"):
        AdminClient(other.url).get_schema("x")


# ---- life, and the limits of trust -----------------------------------------------------------------------------------


def test_role_without_permission_raises(secure_broker: Standalone) -> None:
    ours = AdminClient(secure_broker.admin_url, AuthenticationToken(secure_broker.token()))
    ours.create_topic("guarded")
    stranger = AdminClient(secure_broker.admin_url, AuthenticationToken(secure_broker.token("stranger")))
    for ask in (stranger.stats, stranger.partitions, stranger.delete_topic, stranger.get_schema):
        with pytest.raises(AuthorizationError, match="Unauthorized"):
            ask("guarded")
    with pytest.raises(AuthorizationError):
        stranger.set_retention("public/default", 1, 1)


def test_close_refuses_calls(broker: Broker) -> None:
    with AdminClient(broker.admin_url) as admin:
        admin.clusters()
    with pytest.raises(AlreadyClosed):
        admin.clusters()
    admin.close()


def test_client_threads_pickle_fork(broker: Broker) -> None:
    admin = AdminClient(broker.admin_url)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: admin.clusters() == ["standalone"], range(40)))
    assert pickle.loads(pickle.dumps(admin)).clusters() == ["standalone"]
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if admin.clusters() == ["standalone"] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0) == (child, 0)


@pytest.mark.parametrize("given", ["token:topsecret", "", 0, {}, object], ids=repr)
def test_authentication_of_other_type_raises(given: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="authentication must be an Authentication object, not") as caught:
        AdminClient("http://127.0.0.1:1", given)
    assert "topsecret" not in str(caught.value)


def test_literal_secret_hidden_and_not_picklable() -> None:
    admin = AdminClient("http://127.0.0.1:1", AuthenticationToken("topsecret"))
    assert repr(admin) == "AdminClient('http://127.0.0.1:1', AuthenticationToken(***))"
    with pytest.raises(TypeError, match="from_reference"):
        pickle.dumps(admin)


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("create_partitioned_topic", ("t", 1.5), "partitions must be an int, not float"),
        ("create_partitioned_topic", ("t", 0), "partitions must be at least 1"),
        ("update_partitions", ("t", "2"), "partitions must be an int, not str"),
        ("set_retention", ("public/default", 1.5, 1), "minutes must be an int, not float"),
        ("set_retention", ("t", 1, b"1"), "mb must be an int, not bytes"),
        ("set_deduplication", ("t", None), "enabled must be True or False, not None"),
        ("set_deduplication", ("public/default", "true"), "enabled must be True or False, not 'true'"),
        ("message_id_by_time", ("t", None), "timestamp_ms must be an int, not NoneType"),
        ("get_schema", ("t", "x"), "version must be an int, not str"),
        ("get_schema", ("t", -1), "version must be at least 0"),
        ("upload_schema", ("t", None), "schema must be a SchemaInfo"),
        # Numbers that Java's int or long does not hold.
        ("create_partitioned_topic", ("t", 1 << 31), "partitions must be at least 1 and at most 2147483647"),
        ("update_partitions", ("t", 1 << 31), "partitions must be at least 1 and at most 2147483647"),
        ("set_retention", ("t", 1 << 31, 1), "minutes must be at least -1 and at most 2147483647"),
        ("set_retention", ("public/default", 1, 1 << 63), "mb must be at least -1 and at most 9223372036854775807"),
        ("set_message_ttl", ("t", 1 << 31), "seconds must be at least 0 and at most 2147483647"),
        ("set_message_ttl", ("public/default", 1 << 31), "seconds must be at least 0 and at most 2147483647"),
        ("expire_messages", ("t", "s", 1 << 31), "seconds must be at least 1 and at most 2147483647"),
        ("skip_messages", ("t", "s", 1 << 31), "count must be at least 1 and at most 2147483647"),
        ("message_id_by_time", ("t", 1 << 63), "timestamp_ms must be at least 0 and at most 9223372036854775807"),
        ("reset_cursor", ("t", "s", 1 << 63), "position must be a MessageId or milliseconds from 0 to 92233720368547"),
        ("get_schema", ("t", 1 << 63), "version must be at least 0 and at most 9223372036854775807"),
    ],
)
def test_argument_of_other_type_raises_before_request(method: str, arguments: tuple[object, ...], words: str) -> None:
    with http_peer(lambda asked: Answer(200, b"{}")) as other:
        with pytest.raises(InvalidConfiguration, match=words):
            getattr(AdminClient(other.url), method)(*arguments)
        assert not other.asked


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"limit_bytes": 1 << 63}, "limit_bytes must be at least 1 and at most 9223372036854775807"),
        ({"limit_seconds": 1 << 31}, "limit_seconds must be at least 1 and at most 2147483647"),
        ({"limit_bytes": 5, "limit_seconds": 1.5}, "limit_seconds must be an int, not float"),
        ({"limit_bytes": 0}, "limit_bytes must be at least 1"),
    ],
    ids=["bytes", "seconds", "second-of-two", "zero"],
)
def test_backlog_quota_out_of_range_asks_nothing(limits: dict[str, Any], words: str) -> None:
    with http_peer(lambda asked: Answer(204)) as other:
        with pytest.raises(InvalidConfiguration, match=words):
            AdminClient(other.url).set_backlog_quota("t", "producer_exception", **limits)
        assert not other.asked


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b'"x"', b"[1]", b'{"partitions": true}', b"[" * 100_000])
def test_malformed_response_raises_read_error(body: bytes) -> None:
    with http_peer(lambda asked: Answer(200, body)) as other:
        admin = AdminClient(other.url)
        asks: list[Callable[[], object]] = [
            admin.clusters,
            lambda: admin.partitions("x"),
            lambda: admin.last_message_id("x"),
            lambda: admin.get_schema("x"),
        ]
        if not body.startswith(b"{"):
            asks.append(lambda: admin.stats("x"))
        for ask in asks:
            with pytest.raises((ReadError, OperationNotSupported)):
                ask()
