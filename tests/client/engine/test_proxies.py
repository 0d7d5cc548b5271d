"""Proxies between the client and the brokers: where sockets go, and whose name the TLS handshake has."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker import free_port
from broker_keys import Certificates
from pulsar_native import AuthenticationTLS, AutoClusterFailover, PolledServiceInfo, ServiceInfo
from pulsar_native.config import ClientConfig, ProducerConfig
from pulsar_native.diagnostics import diagnose
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.proxies import first_hop
from pulsar_native.exceptions import (
    ConnectError,
    ConnectTimeout,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
)
from pulsar_native.service_url import Address
from pulsar_native.wire.commands import Kind
from support.fake_broker import HOST, FakeBroker, found
from support.proxies import SniProxy, Socks5Server
from support.until import until

Cores = Callable[..., ClientCore]
LOGIN = ("me", "very-secret")
NAMES = ("service.internal", "one.internal")


class Started(AuthenticationTLS):
    """Plug-in that has a certificate only after its start."""

    has_started = False

    def start(self) -> None:
        self.has_started = True

    def tls_certificate(self) -> tuple[str, str] | None:
        if not self.has_started:
            raise ErrorGettingAuthenticationData("not started")
        return super().tls_certificate()


@pytest.fixture
def sni(tls_fake: FakeBroker) -> Iterator[SniProxy]:
    """Give a proxy to the fake broker with TLS, which has some names here that no resolver knows."""
    with SniProxy(dict.fromkeys((*NAMES, "localhost"), tls_fake.port)) as proxy:
        yield proxy


@pytest.mark.asyncio
async def test_sni_proxy_finds_each_broker_by_name(tls_fake: FakeBroker, sni: SniProxy, cores: Cores) -> None:
    tls_fake.answers[Kind.LOOKUP] = lambda peer, command: [found(command, "pulsar+ssl://one.internal:6651")]
    url = "pulsar+ssl://service.internal:6651"
    core = cores(url, proxy_service_url=sni.url, tls_allow_insecure_connection=True)
    assert first_hop(core.config, Address("one.internal", 6651)) == Address("127.0.0.1", sni.port)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    assert producer.is_connected and sni.names == list(NAMES)
    # The proxy is no Pulsar proxy, which CONNECT would tell the broker's address.
    assert [seen.command.connect.proxy_to_broker_url for seen in tls_fake.seen(Kind.CONNECT)] == ["", ""]


@pytest.mark.asyncio
async def test_sni_proxy_certificate_is_for_the_broker(
    tls_fake: FakeBroker, sni: SniProxy, cores: Cores, certificates: Certificates
) -> None:
    options = {
        "proxy_service_url": sni.url,
        "tls_trust_certs_file_path": str(certificates.authority),
        "tls_validate_hostname": True,
        "operation_timeout_seconds": 0.5,
    }
    assert await cores("pulsar+ssl://localhost:6651", **options).topic_partitions("t")
    # The certificate names 127.0.0.1, which is the proxy's host, but not the broker's.
    with pytest.raises(ConnectError, match=r"not valid for 'service\.internal'"):
        await cores("pulsar+ssl://service.internal:6651", **options).topic_partitions("t")


@pytest.mark.asyncio
async def test_sni_proxy_down_or_without_route_raises(tls_fake: FakeBroker, sni: SniProxy, cores: Cores) -> None:
    options = {"tls_allow_insecure_connection": True, "operation_timeout_seconds": 0.5}
    with pytest.raises(ConnectError, match="TLS with 127"):
        await cores("pulsar+ssl://other:1", proxy_service_url=sni.url, **options).topic_partitions("t")
    down = f"pulsar+ssl://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectError, match=f"Cannot connect to {down.partition('//')[2]}"):
        await cores(tls_fake.url, proxy_service_url=down, **options).topic_partitions("t")
    assert tls_fake.peers == []


@pytest.mark.asyncio
async def test_sni_proxy_failover_judges_the_broker_behind(
    tls_fake: FakeBroker, sni: SniProxy, cores: Cores, certificates: Certificates
) -> None:
    sni.ports["dead.internal"] = free_port()
    plugin = Started(str(certificates.client_certificate), str(certificates.client_key))
    dead, live = (ServiceInfo(f"pulsar+ssl://{host}:6651", plugin) for host in ("dead.internal", "one.internal"))
    source = AutoClusterFailover(dead, [live], check_interval_ms=10)
    core = cores(source, proxy_service_url=sni.url, tls_allow_insecure_connection=True)
    await core.service.known()
    await until(lambda: core.service.info == live, 10)
    assert {"dead.internal", "one.internal"} <= set(sni.names)


@pytest.mark.asyncio
async def test_sni_proxy_refuses_clusters_without_tls(
    sni: SniProxy, cores: Cores, caplog: pytest.LogCaptureFixture
) -> None:
    urls = ["pulsar+ssl://one.internal:6651"]
    core = cores(PolledServiceInfo(lambda: urls[0], 10), proxy_service_url=sni.url, tls_allow_insecure_connection=True)
    await core.topic_partitions("t")
    urls[0] = "pulsar://two.internal:6650"
    await until(lambda: "stays as it is: With proxy_service_url the service" in caplog.text, 10)
    words = r"must begin with pulsar\+ssl://, not pulsar://"
    with pytest.raises(InvalidConfiguration, match=words):
        await asyncio.to_thread(core.service.push, ServiceInfo(urls[0]))
    with pytest.raises(InvalidConfiguration, match=words):
        await core.update_service_url(urls[0])
    with pytest.raises(InvalidConfiguration, match=words):
        await cores(lambda: urls[0], proxy_service_url=sni.url).topic_partitions("t")
    assert core.service.info.service_url == "pulsar+ssl://one.internal:6651"


def test_diagnose_through_sni_proxy(tls_fake: FakeBroker, sni: SniProxy) -> None:
    config = ClientConfig(
        service_url="pulsar+ssl://service.internal:6651",
        proxy_service_url=sni.url,
        tls_allow_insecure_connection=True,
    )
    tls_fake.answers[Kind.LOOKUP] = lambda peer, command: [found(command, "pulsar+ssl://one.internal:6651")]
    checked = diagnose(config)
    assert checked.ok and [stage.name for stage in checked.stages] == ["TCP", "TLS", "CONNECT", "lookup"]


@pytest.fixture
def socks5() -> Iterator[Socks5Server]:
    """Give a SOCKS5 proxy with a login that knows some names that no resolver here does."""
    with Socks5Server(dict.fromkeys(NAMES, HOST), LOGIN) as proxy:
        yield proxy


def through(proxy: Socks5Server, password: object = LOGIN[1]) -> dict[str, object]:
    """Return the options for the proxy, with the right name."""
    return {
        "socks5_proxy_address": proxy.address,
        "socks5_proxy_username": LOGIN[0],
        "socks5_proxy_password": password,
    }


@pytest.mark.asyncio
async def test_socks5_proxy_resolves_names_and_logs_in(
    fake: FakeBroker, socks5: Socks5Server, cores: Cores, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    fake.answers[Kind.LOOKUP] = lambda peer, command: [found(command, f"pulsar://one.internal:{fake.port}")]
    threads: list[int] = []

    def password() -> str:
        threads.append(threading.get_ident())
        return LOGIN[1]

    core = cores(f"pulsar://service.internal:{fake.port}", **through(socks5, password))
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    assert producer.is_connected and socks5.asked == [(name, fake.port) for name in NAMES]
    assert socks5.logins == [LOGIN, LOGIN] and threading.get_ident() not in threads
    assert [seen.command.connect.proxy_to_broker_url for seen in fake.seen(Kind.CONNECT)] == ["", ""]
    assert LOGIN[1] not in caplog.text + repr(core.config)


@pytest.mark.asyncio
async def test_socks5_proxy_refusals_raise_without_secrets(
    fake: FakeBroker, socks5: Socks5Server, cores: Cores, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    def fails() -> str:
        raise OSError("very-secret")

    cases: list[tuple[dict[str, object], type[Exception], str]] = [
        (through(socks5, "other-secret"), ConnectError, "rejected socks5_proxy_username"),
        ({"socks5_proxy_address": socks5.address}, ConnectError, "wants a user name and password"),
        (through(socks5, fails), ErrorGettingAuthenticationData, "socks5_proxy_password failed with OSError"),
        (through(socks5, lambda: "very-secret" * 30), InvalidConfiguration, "must be text of 1 to 255 bytes"),
        (through(socks5, lambda: None), InvalidConfiguration, "socks5_proxy_password must be a str, not NoneType"),
    ]
    for options, error, words in cases:
        with pytest.raises(error, match=words) as caught:
            await cores(fake.url, **options).topic_partitions("t")
        assert "secret" not in str(caught.value)
    # Each at the first attempt: the next one would end in the same way.
    assert len(socks5.logins) == 1 and fake.peers == []
    options = {**through(socks5), "operation_timeout_seconds": 0.5}
    with pytest.raises(ConnectError, match=r"did not connect to nowhere\.invalid:1: the host cannot be reached"):
        await cores("pulsar://nowhere.invalid:1", **options).topic_partitions("t")
    assert "secret" not in caplog.text


@pytest.mark.asyncio
async def test_socks5_proxy_silent_or_down_raises_in_time(fake: FakeBroker, cores: Cores) -> None:
    with socket.create_server((HOST, 0)) as silent:
        where = f"{HOST}:{silent.getsockname()[1]}"
        options = {"connection_timeout_ms": 100, "operation_timeout_seconds": 0.3}
        with pytest.raises(ConnectTimeout, match=f"{fake.address} through the SOCKS5 proxy {where} took longer than"):
            await cores(fake.url, socks5_proxy_address=where, **options).topic_partitions("t")
    with pytest.raises(ConnectError, match=f"{fake.address} through the SOCKS5 proxy {where}: Connection refused"):
        await cores(fake.url, socks5_proxy_address=where, **options).topic_partitions("t")
    assert fake.peers == []


@pytest.mark.asyncio
async def test_socks5_proxy_before_sni_proxy_and_tls(
    tls_fake: FakeBroker, sni: SniProxy, socks5: Socks5Server, cores: Cores, certificates: Certificates
) -> None:
    options = {
        **through(socks5),
        "tls_trust_certs_file_path": str(certificates.authority),
        "tls_validate_hostname": True,
        "operation_timeout_seconds": 2,
    }
    assert await cores(tls_fake.url, **options).topic_partitions("t")
    socks5.hosts["proxy.internal"] = HOST
    url = f"pulsar+ssl://proxy.internal:{sni.port}"
    assert await cores("pulsar+ssl://localhost:6651", proxy_service_url=url, **options).topic_partitions("t")
    assert socks5.asked == [(HOST, tls_fake.port), ("proxy.internal", sni.port)] and sni.names == ["localhost"]
    with pytest.raises(ConnectError, match=r"not valid for 'one\.internal'"):
        await cores(f"pulsar+ssl://one.internal:{tls_fake.port}", **options).topic_partitions("t")


@pytest.mark.asyncio
async def test_socks5_proxy_failover_probes_through_it(fake: FakeBroker, socks5: Socks5Server, cores: Cores) -> None:
    dead = ServiceInfo(f"pulsar://service.internal:{free_port()}")
    live = ServiceInfo(f"pulsar://one.internal:{fake.port}")
    core = cores(AutoClusterFailover(dead, [live], check_interval_ms=10), **through(socks5))
    await core.service.known()
    await until(lambda: core.service.info == live, 10)
    assert await core.topic_partitions("t")
    with pytest.raises(InvalidConfiguration, match="not http://: lookups over HTTP would not go through the proxy"):
        await core.update_service_url("http://one.internal:8080")


def test_diagnose_through_socks5_proxy(fake: FakeBroker, socks5: Socks5Server) -> None:
    url = f"pulsar://service.internal:{fake.port}"
    options: dict[str, Any] = through(socks5)
    checked = diagnose(ClientConfig(service_url=url, **options))
    assert checked.ok and [stage.name for stage in checked.stages] == ["TCP", "CONNECT", "lookup"]
    assert {host for host, _ in socks5.asked} == {"service.internal", HOST}
