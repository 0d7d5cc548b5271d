"""The same client with the brokers' web service as its service URL: all lookups over HTTP, all messages as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from broker import Standalone
from integration import test_partitions, test_readers, test_schemas
from pulsar_native import (
    AuthenticationError,
    AuthenticationToken,
    AuthorizationError,
    LookupError,
    MessageId,
    PulsarException,
    TopicNotFound,
)
from pulsar_native.engine.client import ClientCore
from pulsar_native.enums import RegexSubscriptionMode
from pulsar_native.schema import AutoConsumeSchema, AvroSchema, Integer, Long, Record, String
from pulsar_native.topic import TopicName
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.http_peer import Answer, Asked, http_peer

# The tests of other files whose fixtures end here at the web service.
test_names_of_the_partitions = pytest.mark.proves("C30")(test_partitions.test_names_of_the_partitions)
test_one_producer_and_consumer_per_partition = pytest.mark.proves("C30")(
    test_partitions.test_one_producer_and_consumer_per_partition
)
test_new_partitions_are_noticed = pytest.mark.proves("C30")(test_partitions.test_new_partitions_are_noticed)
test_seek_over_partitions = pytest.mark.proves("C30")(test_partitions.test_seek_over_partitions)
test_a_reader_over_partitions = pytest.mark.proves("C30")(test_readers.test_a_reader_over_partitions)
test_versions = pytest.mark.proves("C30")(
    test_schemas.test_messages_carry_their_version_and_are_read_by_their_writers_schema
)


@dataclass(frozen=True)
class WebBroker(Broker):
    """The shared broker, the web service as its service URL."""

    binary_url: str


@pytest.fixture
def broker(broker: Broker) -> WebBroker:
    """Give the shared broker, the web service as its service URL."""
    return WebBroker(broker.admin_url, broker.admin_url, broker.service_url)


class Row(Record):  # type: ignore[misc]
    """A row."""

    name = String()
    number = Integer()


def core_of(client: Any) -> ClientCore:
    """Return the engine's part of a client that has been used."""
    core: ClientCore = getattr(client, "target", client)._core
    return core


def on_loop(api: Api, client: Any, question: Callable[[ClientCore], Any]) -> Any:
    """Await a question to the engine on its loop."""
    core = core_of(client)
    if api.name == "blocking":
        return core.engine.run(question(core))
    return client.thread.run(question(core))


@pytest.mark.proves("C30", "C31")
@pytest.mark.parametrize("over", ["http", "binary"])
def test_each_lookup_operation(
    api: Api, broker: WebBroker, namespace: Callable[[], str], topic: NewTopic, over: str
) -> None:
    url = broker.service_url if over == "http" else broker.binary_url
    where = namespace()
    parted, plain = topic("parted", partitions=3, namespace=where), topic("plain", namespace=where)
    client = api.client(url)
    assert client.get_service_info().service_url == url
    client.create_producer(plain, schema=AvroSchema(Row)).send(Row(name="a", number=1))
    flying = f"non-persistent://{where}/flying"
    client.create_producer(flying)

    deadline = on_loop(api, client, _deadline)
    found = on_loop(api, client, lambda core: core.lookup.broker_of(TopicName.parse(plain), deadline))
    assert f"pulsar://{found.logical}" == broker.binary_url
    assert client.get_partition_count(parted) == 3 and client.get_partition_count(plain) == 0
    assert client.get_topic_partitions(parted) == [f"{parted}-partition-{index}" for index in range(3)]
    with pytest.raises(TopicNotFound):
        client.get_partition_count(topic("nobody", namespace=where))

    def topics(mode: RegexSubscriptionMode, namespace: str = where) -> set[str]:
        names = on_loop(api, client, lambda core: core.lookup.topics_of_namespace(namespace, mode, deadline)).topics
        assert len(names) == len(set(names))
        return set(names)

    persistent = topics(RegexSubscriptionMode.PersistentOnly)
    assert plain in persistent and flying not in persistent
    assert topics(RegexSubscriptionMode.NonPersistentOnly) == {flying}
    assert {plain, flying} <= topics(RegexSubscriptionMode.AllTopics)
    assert topics(RegexSubscriptionMode.PersistentOnly, "public/nowhere-at-all") == set()

    newest = on_loop(api, client, lambda core: core.writer_schema(plain, None))
    assert newest.definition()["name"] == "Row" and newest.version == 0
    same = on_loop(api, client, lambda core: core.writer_schema(plain, (0).to_bytes(8, "big")))
    assert (same, same.version) == (newest, 0)
    for unknown in (lambda core: core.writer_schema(plain, (9).to_bytes(8, "big")),
                    lambda core: core.writer_schema(topic("none"), None)):  # fmt: skip
        with pytest.raises(TopicNotFound):
            on_loop(api, client, unknown)
    client.update_service_url(broker.binary_url)
    assert client.get_service_info().service_url == broker.binary_url
    assert client.get_partition_count(parted) == 3


async def _deadline(core: ClientCore) -> float:
    return core.deadline()


@pytest.mark.proves("C30")
def test_a_key_value_schema_is_the_same_both_ways(api: Api, broker: WebBroker, topic: NewTopic) -> None:
    name = topic()
    key, value = '{"type":"record","name":"K","fields":[{"name":"k","type":"string"}]}', ""
    properties = {
        "key.schema.name": "K", "key.schema.type": "AVRO", "key.schema.properties": "{}", "value.schema.name": "String",
        "value.schema.type": "STRING", "value.schema.properties": "{}", "kv.encoding.type": "INLINE",
    }  # fmt: skip
    body = {
        "type": "KEY_VALUE",
        "schema": f'{{"key":{key},"value":{value or chr(34) * 2}}}',
        "properties": properties,
    }
    broker.admin("POST", f"schemas/{name.partition('://')[2]}/schema", body)
    found = []
    for url in (broker.service_url, broker.binary_url):
        client = api.client(url)
        client.get_service_info()
        found.append(on_loop(api, client, lambda core: core.writer_schema(name, None)))
    over_http, binary = found
    assert over_http == binary and over_http.version == binary.version == 0
    assert over_http.data == len(key).to_bytes(4, "big") + key.encode() + bytes(4)


class Price(Record):  # type: ignore[misc]
    """A row of another topic."""

    euros = Long(required=True)


@pytest.mark.proves("C30")
@pytest.mark.parametrize(
    ("odd", "sibling"), [("a+b", "a b"), ("50%25", "50%"), ("100%", "100")], ids=["plus", "encoded", "percent"]
)
def test_schemas_of_names_encoded_alike(api: Api, broker: WebBroker, topic: NewTopic, odd: str, sibling: str) -> None:
    base = topic()
    binary, client = api.client(broker.binary_url), api.client(broker.service_url)
    binary.create_producer(f"{base}{sibling}", schema=AvroSchema(Row)).close()
    binary.create_producer(f"{base}{odd}", schema=AvroSchema(Price)).send(Price(euros=7))
    reader = client.create_reader(f"{base}{odd}", MessageId.earliest, schema=AutoConsumeSchema())
    assert dict(reader.read_next(10_000).value()) == {"euros": 7}


@pytest.mark.proves("C30")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_credentials_and_tls(api: Api, secure_broker: Standalone, scheme: str) -> None:
    url = secure_broker.admin_url if scheme == "http" else secure_broker.admin_url_tls
    options = {"tls_trust_certs_file_path": str(secure_broker.certificates.authority), "tls_validate_hostname": True}
    name = "persistent://public/default/over-http"

    def client_of(token: str | None, **more: Any) -> Any:
        authentication = None if token is None else AuthenticationToken(token)
        return api.client(url, authentication=authentication, operation_timeout_seconds=10, **more)

    trusting = options if scheme == "https" else {}
    client = client_of(secure_broker.token(), **trusting)
    producer = client.create_producer(name)
    assert producer.send(b"x").entry_id() >= 0
    (connection,) = core_of(client).pool.connections()
    assert (
        connection.broker
        == (secure_broker.service_url_tls if scheme == "https" else secure_broker.service_url).split("//")[1]
    )
    for token in (None, "garbage", secure_broker.token(lifetime_seconds=-60)):
        with pytest.raises(AuthenticationError) as caught:
            client_of(token, **trusting).create_producer(name)
        assert caught.value.topic == name and not caught.value.retryable
        assert token is None or token not in str(caught.value)
    with pytest.raises(AuthorizationError):
        client_of(secure_broker.token("nobody"), **trusting).create_producer(name)
    if scheme == "https":
        with pytest.raises(PulsarException, match=r"(?i)not trusted"):
            client = api.client(
                url, authentication=AuthenticationToken(secure_broker.token()), operation_timeout_seconds=1
            )
            client.create_producer(name)


@pytest.mark.proves("C30")
def test_redirects_are_followed_and_counted(api: Api, broker: WebBroker, topic: NewTopic) -> None:
    def onward(asked: Asked) -> Answer:
        return Answer(307, headers={"Location": f"{broker.admin_url}{asked.path}"})

    name = topic(partitions=2)
    with http_peer(onward) as peer:
        client = api.client(peer.url)
        assert client.get_partition_count(name) == 2
        client.create_producer(name).send(b"x")
        assert {asked.path.split("/")[1] for asked in peer.asked} == {"lookup", "admin"}

    def in_circles(asked: Asked) -> Answer:
        return Answer(307, headers={"Location": asked.path})

    with http_peer(in_circles) as peer:
        client = api.client(peer.url, operation_timeout_seconds=5, max_lookup_redirects=4)
        with pytest.raises(LookupError, match="more than 4 times"):
            client.get_partition_count(name)
        assert len(peer.asked) % 5 == 0


@pytest.mark.proves("C30")
def test_what_is_no_broker_is_told(api: Api, topic: NewTopic) -> None:
    with http_peer(lambda asked: Answer(404, b"nothing here")) as peer:
        client = api.client(peer.url)
        with pytest.raises(LookupError, match="is the service URL that of a Pulsar broker") as caught:
            client.create_producer(topic())
        assert not caught.value.retryable and len(peer.asked) == 1
