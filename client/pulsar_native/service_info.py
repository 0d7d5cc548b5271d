"""Where a client's cluster is and how to identify there: fixed, supplied by a provider, or the first that answers.

Rules: values and interfaces only; nothing is connected, watched or started here. What of this is picklable travels in
a `ClientConfig`; the client watches and switches where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.service_url import ServiceUrl


class Credentials(Protocol):
    """What a client needs of an authentication plug-in; `pulsar_native.auth` has the ready ones.

    `auth_data` and `http_headers` may block and are called off the engine's loop.
    """

    method_name: str

    def auth_data(self) -> bytes: ...
    def http_headers(self) -> dict[str, str]: ...
    def tls_certificate(self) -> tuple[str, str] | None: ...
    def start(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class ServiceInfo:
    """The service URL of one cluster, with the credentials and the trusted certificates that are used there.

    Immutable, checked at construction; picklable when its authentication is. (PIP-121.)
    """

    service_url: str
    authentication: Credentials | None = field(default=None, repr=False)
    tls_trust_certs_file_path: str | None = None

    def __post_init__(self) -> None:
        ServiceUrl.parse(self.service_url)
        if self.authentication is not None and not hasattr(self.authentication, "auth_data"):
            raise InvalidConfiguration(
                f"authentication must be an Authentication object, not {type(self.authentication).__name__}"
            )
        if self.tls_trust_certs_file_path is not None and not isinstance(self.tls_trust_certs_file_path, str):
            raise InvalidConfiguration("tls_trust_certs_file_path must be the path of a PEM file")

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )

    @property
    def use_tls(self) -> bool:
        """Whether the URL asks for encrypted connections."""
        return ServiceUrl.parse(self.service_url).use_tls


class ServiceInfoProvider:
    """Supply the cluster a client belongs to, and move the client to another one; base of your own providers.

    All three are called off the client's event loop, so they may block. One provider serves one client.
    """

    def initial_service_info(self) -> ServiceInfo:
        """Return the cluster to begin with; called once, at the client's first use."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Keep the function, and call it with each new cluster, from any thread; called once, after the first."""
        raise NotImplementedError

    def close(self) -> None:
        """End what was started; called when the client is closed or shut down."""


class PolledServiceInfo:
    """Ask a function for the cluster, at first use and then at every interval; a new answer moves the client.

    `supply` returns a service URL or a `ServiceInfo`; it is called off the event loop and may block. An answer that
    fails later is logged, and the client stays where it is. A plain callable given as `service_url` means this, with
    the default interval.
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
    """Use the primary cluster; when it cannot be reached, the first of the secondary ones that can; then come back.

    Every `check_interval_ms` the cluster in use is probed (a TCP connection to one of its hosts): after
    `failover_threshold` failures in a row the client moves to the first cluster that answers, and after
    `switch_back_threshold` successes of the primary in a row back to it. Moving closes all connections; producers and
    consumers come back by themselves and keep what is pending. Immutable; picklable when the credentials are.
    (PIP-121.)
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
