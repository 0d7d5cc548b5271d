"""Configuration of clients: ranges of the options, service URL, and pickling without secrets."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from pulsar_native.auth import AuthenticationBasic, AuthenticationToken, SecretReference
from pulsar_native.config import ClientConfig
from pulsar_native.exceptions import InvalidConfiguration, InvalidUrl
from pulsar_native.service_info import AutoClusterFailover, ServiceInfo
from pulsar_native.service_url import Address

URL = "pulsar://localhost:6650"
TLS_URL = "pulsar+ssl://localhost:6651"
LOGIN = {"socks5_proxy_address": "p:1", "socks5_proxy_username": "me", "socks5_proxy_password": "topsecret"}


class AsyncProvider:
    """No MeterProvider: its meter would have to be awaited."""

    async def get_meter(self, *_names: str) -> None:
        return None


CLIENT_REFUSALS = [
    ({"service_url": "ftp://localhost:8080"}, InvalidUrl, "scheme"),
    ({"service_url": " "}, InvalidUrl, "empty"),
    ({"operation_timeout_seconds": 0}, InvalidConfiguration, "at least 0.001"),
    ({"operation_timeout_seconds": "30"}, InvalidConfiguration, "must be a number, not str"),
    ({"operation_timeout_seconds": float("nan")}, InvalidConfiguration, "at least"),
    ({"connection_timeout_ms": 0}, InvalidConfiguration, "connection_timeout_ms"),
    ({"message_listener_threads": 0}, InvalidConfiguration, "at least 1"),
    ({"message_listener_threads": 1001}, InvalidConfiguration, "at most 1000"),
    ({"io_threads": 0}, InvalidConfiguration, "io_threads"),
    ({"concurrent_lookup_requests": 0}, InvalidConfiguration, "concurrent_lookup_requests"),
    ({"connections_per_broker": -1}, InvalidConfiguration, "connections_per_broker"),
    ({"connections_per_broker": True}, InvalidConfiguration, "not bool"),
    *(
        ({name: 1.5}, InvalidConfiguration, f"{name} must be an int, not float")
        for name, usual in vars(ClientConfig(service_url=URL)).items()
        if type(usual) is int and not name.endswith("_seconds")
    ),
    ({"keep_alive_interval_seconds": "30"}, InvalidConfiguration, "keep_alive_interval_seconds must be a number"),
    ({"description": ["a"]}, InvalidConfiguration, "description must be None or a str, not list"),
    ({"max_lookup_redirects": -1}, InvalidConfiguration, "max_lookup_redirects"),
    ({"memory_limit_bytes": -1}, InvalidConfiguration, "memory_limit_bytes"),
    ({"starting_backoff_interval_ms": 0}, InvalidConfiguration, "starting_backoff_interval_ms"),
    (
        {"starting_backoff_interval_ms": 500, "max_backoff_interval_ms": 400},
        InvalidConfiguration,
        "max_backoff_interval_ms must be at least 500",
    ),
    ({"tls_certificate_file_path": "c.pem"}, InvalidConfiguration, "belong together"),
    (
        {"tls_private_key_file_path": "-----BEGIN PRIVATE KEY-----"},
        InvalidConfiguration,
        "tls_private_key_file_path must be a path, not the content of a file",
    ),
    (
        {"tls_private_key_file_path": "data:application/x-pem-file;base64,c2VjcmV0"},
        InvalidConfiguration,
        "tls_private_key_file_path must be a path, not the content of a file",
    ),
    ({"tls_private_key_file_path": "k.pem"}, InvalidConfiguration, "belong together"),
    ({"authentication": "token:abc"}, InvalidConfiguration, "not str"),
    ({"meter_provider": "otlp"}, InvalidConfiguration, "meter_provider must be .* not str"),
    ({"meter_provider": MeterProvider}, InvalidConfiguration, "meter_provider must be .* not the class MeterProvider"),
    ({"meter_provider": AsyncProvider()}, InvalidConfiguration, "meter_provider.get_meter must be a plain function"),
    *(
        (
            {"service_url": TLS_URL, "proxy_service_url": url},
            InvalidUrl,
            "must be pulsar[+]ssl://host:port",
        )
        for url in ("p:1", "pulsar://p:1", "pulsar+ssl://p", "pulsar+ssl://p:1,q:2", "pulsar+ssl://u:topsecret@p:1")
    ),
    ({"proxy_service_url": 1}, InvalidConfiguration, "proxy_service_url must be None or a str, not int"),
    ({"proxy_protocol": "SNI"}, InvalidConfiguration, r"proxy_protocol must be one of ProxyProtocol\.SNI, not 'SNI'"),
    *(
        (
            {"service_url": url, "proxy_service_url": "pulsar+ssl://p:1"},
            InvalidConfiguration,
            "must begin with pulsar[+]ssl",
        )
        for url in (
            URL,
            "http://a",
            "https://a",
            AutoClusterFailover(ServiceInfo(TLS_URL), [ServiceInfo(URL)]),
        )
    ),
    *(
        ({"socks5_proxy_address": address}, InvalidUrl, "socks5_proxy_address must be host:port, with a port between")
        for address in ("p", "p:0", "p:65536", "p:" + "1" * 5000, "socks5://p:1", "me:topsecret@p:1", "::1:1080")
    ),
    (
        {"service_url": "https://a", "socks5_proxy_address": "p:1"},
        InvalidConfiguration,
        "must begin with pulsar:// or pulsar[+]ssl://, not https://",
    ),
    ({**LOGIN, "socks5_proxy_address": None}, InvalidConfiguration, "socks5_proxy_username needs socks5_proxy_address"),
    ({**LOGIN, "socks5_proxy_username": None}, InvalidConfiguration, "belong together: give both or neither"),
    ({**LOGIN, "socks5_proxy_password": None}, InvalidConfiguration, "belong together: give both or neither"),
    (
        {**LOGIN, "socks5_proxy_username": "ä" * 128},
        InvalidConfiguration,
        "socks5_proxy_username must be text of 1",
    ),
    ({**LOGIN, "socks5_proxy_password": ""}, InvalidConfiguration, "socks5_proxy_password must be text of 1 to 255"),
    ({**LOGIN, "socks5_proxy_password": "topsecret\ud800"}, InvalidConfiguration, "must be text of 1 to 255 bytes"),
    ({**LOGIN, "socks5_proxy_password": b"topsecret"}, InvalidConfiguration, "must be a str, not bytes"),
    ({**LOGIN, "socks5_proxy_password": AsyncProvider().get_meter}, InvalidConfiguration, "must be a plain function"),
]


@pytest.mark.parametrize(("options", "kind", "message"), CLIENT_REFUSALS)
def test_client_option_out_of_range_raises(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        ClientConfig.from_mapping({"service_url": URL, **options})
    assert "topsecret" not in str(caught.value)


def test_proxies_of_their_form_are_taken() -> None:
    config = ClientConfig(
        service_url=TLS_URL, proxy_service_url=" pulsar+ssl://p:1/ ", socks5_proxy_address="[::1]:1080"
    )
    assert (config.proxy_address, config.socks5_address) == (Address("p", 1), Address("::1", 1080))
    blank = ClientConfig(service_url="http://a", proxy_service_url=" ", socks5_proxy_address="")
    assert blank.proxy_address is blank.socks5_address is None


def test_use_tls_leaves_a_plain_url_plain() -> None:
    parsed = ClientConfig(service_url="pulsar://a:1,b:2", use_tls=True).parsed_url()
    assert not parsed.use_tls and parsed.addresses == (Address("a", 1), Address("b", 2))


@pytest.mark.proves("N2")
def test_pickled_config_holds_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "topsecret")
    config = ClientConfig(service_url=URL, authentication=AuthenticationToken.from_reference("env:TOKEN_OF_TEST"))
    assert config.authentication is not None and config.authentication.auth_data() == b"topsecret"
    carried = pickle.dumps(config)
    assert b"topsecret" not in carried and "topsecret" not in repr(config)
    # Resolved where it is used: the other side has another value under the same name.
    monkeypatch.setenv("TOKEN_OF_TEST", "othersecret")
    again = pickle.loads(carried)
    assert again.authentication.auth_data() == b"othersecret"
    assert again.replace(authentication=None) == config.replace(authentication=None)


@pytest.mark.proves("N2")
@pytest.mark.parametrize(
    "literal",
    [
        lambda: {"authentication": AuthenticationToken("topsecret")},
        lambda: {"authentication": AuthenticationBasic("me", "topsecret")},
        lambda: LOGIN,
    ],
    ids=["token", "basic", "socks5"],
)
def test_config_with_a_literal_secret_is_not_picklable(literal: Callable[[], Any]) -> None:
    config = ClientConfig(service_url=URL, **literal())
    with pytest.raises(TypeError, match="holds a literal secret and cannot be pickled") as caught:
        pickle.dumps(config)
    assert "topsecret" not in f"{caught.value} {config!r}"


@pytest.mark.proves("N2")
def test_config_with_a_password_by_reference_is_picklable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_TEST", "topsecret")
    read = SecretReference.parse("env:PASSWORD_OF_TEST").read
    carried = pickle.dumps(ClientConfig(service_url=URL, **{**LOGIN, "socks5_proxy_password": read}))
    assert b"topsecret" not in carried and pickle.loads(carried).socks5_proxy_password() == "topsecret"
