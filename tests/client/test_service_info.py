"""Descriptions of clusters: what is refused, what travels, what the client's configuration makes of them."""

from __future__ import annotations

import pickle
import ssl
from typing import Any

import pytest

from pulsar_native import (
    AuthenticationToken,
    AutoClusterFailover,
    ClientConfig,
    InvalidConfiguration,
    InvalidUrl,
    PolledServiceInfo,
    ServiceInfo,
    ServiceInfoProvider,
)

A, B = ServiceInfo("pulsar://a:6650"), ServiceInfo("pulsar+ssl://b:6651", tls_trust_certs_file_path="/ca.pem")


def test_a_service_info_is_a_checked_value() -> None:
    assert (A.use_tls, B.use_tls) == (False, True)
    assert ServiceInfo("pulsar://a:6650") == A != B
    assert pickle.loads(pickle.dumps(B)) == B
    secret = ServiceInfo("pulsar://a:6650", AuthenticationToken("very-secret"))
    assert "very-secret" not in repr(secret)
    with pytest.raises(InvalidUrl):
        ServiceInfo("nonsense")
    with pytest.raises(InvalidConfiguration, match="Authentication"):
        ServiceInfo("pulsar://a", "token")  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["auth_data", "method_name", "start", "close"])
def test_service_info_half_a_plugin_refused(missing: str) -> None:
    names = {"auth_data", "method_name", "start", "close"} - {missing}
    half: Any = type("Half", (), dict.fromkeys(names))()
    with pytest.raises(InvalidConfiguration, match="must be an Authentication object, not Half"):
        ServiceInfo("pulsar://a", half)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((A, []), {}),
        ((A, B), {}),
        (("pulsar://a", [B]), {}),
        ((A, ["pulsar://b"]), {}),
        ((A, [B]), {"check_interval_ms": 0}),
        ((A, [B]), {"failover_threshold": 0}),
        ((A, [B]), {"switch_back_threshold": True}),
    ],
)
def test_a_wrong_failover_is_refused(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        AutoClusterFailover(*arguments, **options)


def test_a_configuration_with_a_failover_travels() -> None:
    config = ClientConfig(service_url=AutoClusterFailover(A, [B], failover_threshold=3))
    copied = pickle.loads(pickle.dumps(config))
    assert (copied.service_url.primary, copied.service_url.secondary) == (A, [B])
    with pytest.raises(InvalidConfiguration, match="provider"):
        config.parsed_url()


@pytest.mark.parametrize("source", [AutoClusterFailover(A, [B]), ServiceInfoProvider()])
def test_credentials_belong_to_the_clusters(source: Any) -> None:
    with pytest.raises(ValueError, match="ServiceInfo"):
        ClientConfig(service_url=source, authentication=AuthenticationToken("x"))
    with pytest.raises(ValueError, match="ServiceInfo"):
        ClientConfig(service_url=source, tls_trust_certs_file_path="/ca.pem")


def test_a_callable_may_leave_the_credentials_to_the_client() -> None:
    for source in (lambda: "pulsar://a", PolledServiceInfo(lambda: A, check_interval_ms=10)):
        ClientConfig(service_url=source, authentication=AuthenticationToken("x"))
    with pytest.raises(InvalidConfiguration, match="callable"):
        PolledServiceInfo("pulsar://a")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="service_url"):
        ClientConfig(service_url=6650)  # type: ignore[arg-type]


class WrapsSockets:
    def wrap_socket(self, sock: object) -> None: ...


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (WrapsSockets(), "must be an ssl.SSLContext, not WrapsSockets"),
        (ssl.SSLContext, "must be an ssl.SSLContext, not type"),
        (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "tls_context is one for servers"),
        (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), "tls_context is one for servers"),
    ],
)
def test_tls_context_no_client_context_raises(context: Any, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        ClientConfig(service_url="pulsar+ssl://a", tls_context=context)


def test_a_tls_context_stands_alone() -> None:
    context = ssl.create_default_context()
    assert ClientConfig(service_url="pulsar+ssl://a", tls_context=context).tls_context is context
    with pytest.raises(InvalidConfiguration, match="tls_context"):
        ClientConfig(service_url="pulsar+ssl://a", tls_context=context, tls_allow_insecure_connection=True)
