"""Real brokers behind proxies: an SNI proxy before the one with TLS, SOCKS5 before both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from broker import Standalone, free_port
from pulsar_native import AuthenticationToken, ConnectError, InitialPosition, ProxyProtocol
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.proxies import HOST, SniProxy, Socks5Server

TOPIC = "persistent://public/default/behind-a-proxy"
LOGIN = ("me", "very-secret")


@pytest.fixture
def sni(secure_broker: Standalone) -> Iterator[SniProxy]:
    """Give a proxy to the broker with TLS, by a name of its certificate and by another one."""
    port = urlsplit(secure_broker.service_url_tls).port
    assert port is not None
    with SniProxy(dict.fromkeys(("localhost", "other.internal"), port)) as proxy:
        yield proxy


def secured(broker: Standalone) -> dict[str, Any]:
    """Return the options of a client that checks the certificate and the host name."""
    return {
        "authentication": AuthenticationToken(broker.token()),
        "tls_trust_certs_file_path": str(broker.certificates.authority),
        "tls_validate_hostname": True,
    }


def test_sni_proxy_publish_and_consume(api: Api, secure_broker: Standalone, sni: SniProxy) -> None:
    # Nothing listens at the broker's own address: every connection goes to the proxy.
    client = api.client(
        f"pulsar+ssl://localhost:{free_port()}",
        proxy_service_url=sni.url,
        proxy_protocol=ProxyProtocol.SNI,
        **secured(secure_broker),
    )
    consumer = client.subscribe(TOPIC, f"s{sni.port}", initial_position=InitialPosition.Latest)
    client.create_producer(TOPIC).send(b"x")
    assert consumer.receive(10_000).data() == b"x"
    assert set(sni.names) == {"localhost"}


def test_sni_proxy_certificate_of_another_host_refused(api: Api, secure_broker: Standalone, sni: SniProxy) -> None:
    client = api.client(
        "pulsar+ssl://other.internal:6651",
        proxy_service_url=sni.url,
        operation_timeout_seconds=1,
        **secured(secure_broker),
    )
    with pytest.raises(ConnectError, match=r"not valid for 'other\.internal'"):
        client.create_producer(TOPIC)
    assert set(sni.names) == {"other.internal"}


def test_socks5_proxy_publish_reconnect_and_consume(api: Api, broker: Broker, topic: NewTopic) -> None:
    name, port = topic(), urlsplit(broker.service_url).port
    with Socks5Server({"broker.internal": HOST}, LOGIN) as proxy:
        client = api.client(
            f"pulsar://broker.internal:{port}",
            socks5_proxy_address=proxy.address,
            socks5_proxy_username=LOGIN[0],
            socks5_proxy_password=lambda: LOGIN[1],
        )
        producer = client.create_producer(name)
        consumer = client.subscribe(name, "s")
        producer.send(b"x")
        message = consumer.receive(10_000)
        consumer.acknowledge(message)
        before = len(proxy.asked)
        proxy.cut()
        producer.send(b"y")
        assert (message.data(), consumer.receive(20_000).data()) == (b"x", b"y")
        assert len(proxy.asked) > before and set(proxy.logins) == {LOGIN}
        assert set(proxy.asked) <= {("broker.internal", port), (HOST, port)}
        client.close()


def test_socks5_proxy_tls_checks_the_broker(api: Api, secure_broker: Standalone) -> None:
    port = urlsplit(secure_broker.service_url_tls).port
    with Socks5Server({"localhost": HOST, "other.internal": HOST}) as proxy:
        options = {"socks5_proxy_address": proxy.address, **secured(secure_broker)}
        client = api.client(f"pulsar+ssl://localhost:{port}", **options)
        assert client.create_producer(TOPIC).send(b"x").entry_id() >= 0
        other = api.client(f"pulsar+ssl://other.internal:{port}", operation_timeout_seconds=1, **options)
        with pytest.raises(ConnectError, match=r"not valid for 'other\.internal'"):
            other.create_producer(TOPIC)
        for each in (client, other):
            each.close()
