"""The broker fixtures stand on a real broker, shared, private and secured; the official client is the witness."""

from __future__ import annotations

import pytest

from broker import BrokerError, Standalone
from support.brokers import Broker, NewTopic, OwnBroker, admin
from support.relay import Command, NewRelay

pulsar = pytest.importorskip("pulsar")


def quiet(service_url: str, **options: object) -> object:
    """Return an official client that logs errors only."""
    return pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)


def test_shared_broker_serves_topics_with_and_without_partitions(broker: Broker, topic: NewTopic) -> None:
    plain, partitioned = topic("plain"), topic("parts", partitions=3)
    assert plain != topic("plain")
    client = quiet(broker.service_url)
    assert client.get_topic_partitions(plain) == [plain]  # type: ignore[attr-defined]
    assert len(client.get_topic_partitions(partitioned)) == 3  # type: ignore[attr-defined]
    client.close()  # type: ignore[attr-defined]


def test_a_client_stays_on_the_relay(broker: Broker, topic: NewTopic, relay: NewRelay) -> None:
    through = relay(broker.service_url)
    client = quiet(through.service_url)
    client.create_producer(topic()).send(b"hello")  # type: ignore[attr-defined]
    assert through.count(Command.SEND) == 1
    assert through.wait_for(Command.SEND_RECEIPT)
    client.close()  # type: ignore[attr-defined]


def test_killed_broker_comes_back_with_ports_and_data(own_broker: OwnBroker) -> None:
    private = own_broker(deduplication=True)
    before = private.service_url
    client = quiet(private.service_url)
    client.create_producer("kept").send(b"precious")  # type: ignore[attr-defined]
    private.kill()
    client.close()  # type: ignore[attr-defined]
    assert not private.healthy(1)
    private.start().wait_ready()
    assert private.service_url == before
    with pytest.raises(BrokerError, match="already runs"):
        private.start()
    client = quiet(private.service_url)
    reader = client.create_reader("kept", pulsar.MessageId.earliest)  # type: ignore[attr-defined]
    assert reader.read_next(5000).data() == b"precious"
    client.close()  # type: ignore[attr-defined]


def test_secure_broker_wants_a_token_on_both_ports(secure_broker: Standalone) -> None:
    token, authority = secure_broker.token(), str(secure_broker.certificates.authority)
    namespaces = admin(secure_broker.admin_url, "GET", "namespaces/public", token=token)
    assert isinstance(namespaces, list) and "public/default" in namespaces
    good = pulsar.AuthenticationToken(token)
    for url, more in (
        (secure_broker.service_url, {}),
        (secure_broker.service_url_tls, {"tls_trust_certs_file_path": authority}),
    ):
        client = quiet(url, authentication=good, **more)
        client.create_producer("secured").send(b"1")  # type: ignore[attr-defined]
        client.close()  # type: ignore[attr-defined]
    client = quiet(secure_broker.service_url, authentication=pulsar.AuthenticationToken(secure_broker.token("nobody")))
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("secured")  # type: ignore[attr-defined]
    client.close()  # type: ignore[attr-defined]
