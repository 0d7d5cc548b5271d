"""Service URL and credentials of a client's cluster: fixed, supplied by a provider, or with automatic failover.

Rules: values and interfaces only; nothing is connected, watched or started here. A `ClientConfig` carries them; the
live client watches and switches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsar_native._type_names import type_name
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.service_url import ServiceUrl

# What the client calls of an authentication plug-in.
_PLUGIN_NAMES = ("auth_data", "method_name", "start", "close")


class Credentials(Protocol):
    """Interface of authentication plug-ins; `pulsar_native.auth` has implementations.

    All methods are called off the engine's loop, so they may block; none may be a coroutine function.
    """

    method_name: str

    def auth_data(self) -> bytes: ...
    def http_headers(self) -> dict[str, str]: ...
    def tls_certificate(self) -> tuple[str, str] | None: ...
    def start(self) -> None: ...
    def close(self) -> None: ...


def check_authentication(authentication: object) -> None:
    """Raise `InvalidConfiguration` unless it is None, or has what the client calls of a plug-in."""
    if authentication is not None and not all(hasattr(authentication, name) for name in _PLUGIN_NAMES):
        raise InvalidConfiguration(f"authentication must be an Authentication object, not {type_name(authentication)}")


@dataclass(frozen=True)
class ServiceInfo:
    """Service URL, credentials and trusted certificates of one cluster (PIP-121).

    Immutable; picklable if its authentication is. Raises `InvalidUrl`, and `InvalidConfiguration` for another type.

    :param service_url: the service URL of the cluster.
    :param authentication: an object of `pulsar_native.auth`. Default None.
    :param tls_trust_certs_file_path: PEM file of trusted certificates. Default None: the system's.
    """

    service_url: str
    authentication: Credentials | None = field(default=None, repr=False)
    tls_trust_certs_file_path: str | None = None

    def __post_init__(self) -> None:
        ServiceUrl.parse(self.service_url)
        check_authentication(self.authentication)
        if self.tls_trust_certs_file_path is not None and not isinstance(self.tls_trust_certs_file_path, str):
            raise InvalidConfiguration("tls_trust_certs_file_path must be the path of a PEM file")

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )

    @property
    def use_tls(self) -> bool:
        """True if the scheme of the URL is an encrypted one."""
        return ServiceUrl.parse(self.service_url).use_tls


class ServiceInfoProvider:
    """Base of providers that supply the cluster of a client and switch the client to another one (PIP-121).

    All methods are called off the client's event loop, so they may block. A provider belongs to one client.
    """

    def initial_service_info(self) -> ServiceInfo:
        """Return the first cluster; called once, at the client's first use."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Start watching; called once, after `initial_service_info`.

        :param on_service_info_update: function to call with each new cluster, from any thread.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stop watching; called when the client is closed or shut down."""


class PolledServiceInfo:
    """Provider that polls a function for the cluster; a changed result switches the client.

    An exception at the client's first use is raised; a later one is logged, and the client stays at its cluster. A
    callable as `service_url` is polled the same way with the default interval. What a `ServiceInfo` leaves out is the
    client's own. Raises `InvalidConfiguration` for arguments of another type or out of range.

    :param supply: function that returns a service URL or a `ServiceInfo`; called off the event loop, it may block.
    :param check_interval_ms: milliseconds between two calls, at least 1. Default 5000.
    """

    def __init__(self, supply: Callable[[], str | ServiceInfo], check_interval_ms: int = 5000) -> None:
        if not callable(supply):
            raise InvalidConfiguration("PolledServiceInfo needs a callable that returns a service URL")
        _positive("check_interval_ms", check_interval_ms)
        self.supply = supply
        self.check_interval_ms = check_interval_ms

    def __repr__(self) -> str:
        return f"PolledServiceInfo({getattr(self.supply, '__qualname__', type(self.supply).__name__)})"


class AutoClusterFailover:
    """Automatic failover from a primary cluster to the first reachable secondary one, and back (PIP-121).

    A probe is a TCP connection to one of a cluster's hosts. Switching closes all connections; producers and consumers
    reconnect and keep pending messages. Immutable; picklable if the credentials are. Raises `InvalidConfiguration` for
    arguments of another type or out of range.

    :param primary: the cluster to use while it is reachable.
    :param secondary: list of at least one other cluster, in order of preference.
    :param check_interval_ms: milliseconds between two probes, at least 1. Default 5000.
    :param failover_threshold: number of failed probes in a row before the client switches. Default 1.
    :param switch_back_threshold: number of successful probes of the primary in a row before the client switches back.
        Default 1.
    """

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: Sequence[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        if not isinstance(secondary, list) or not secondary:
            raise InvalidConfiguration("AutoClusterFailover needs a list of at least one secondary ServiceInfo")
        for info in (primary, *secondary):
            if not isinstance(info, ServiceInfo):
                raise InvalidConfiguration(f"AutoClusterFailover needs ServiceInfo objects, not {type(info).__name__}")
        _positive("check_interval_ms", check_interval_ms)
        _positive("failover_threshold", failover_threshold)
        _positive("switch_back_threshold", switch_back_threshold)
        self.primary = primary
        self.secondary = list(secondary)
        self.check_interval_ms = check_interval_ms
        self.failover_threshold = failover_threshold
        self.switch_back_threshold = switch_back_threshold

    def __repr__(self) -> str:
        return (
            f"AutoClusterFailover(primary={self.primary!r}, secondary={self.secondary!r}, "
            f"check_interval_ms={self.check_interval_ms}, failover_threshold={self.failover_threshold}, "
            f"switch_back_threshold={self.switch_back_threshold})"
        )


def _positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidConfiguration(f"{name} must be a whole number above 0, not {value!r}")


ServiceSource = str | ServiceInfoProvider | AutoClusterFailover | PolledServiceInfo | Callable[[], "str | ServiceInfo"]
