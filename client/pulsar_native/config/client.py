"""Configuration of a client.

Credentials travel by reference only (see `auth`): a configuration that holds a literal secret refuses to be pickled.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pulsar_native.config.base import (
    MAX_I32,
    MAX_U32,
    Config,
    check_integer,
    check_no_coroutine,
    check_number,
    check_pem_paths,
    check_texts,
    require,
)
from pulsar_native.enums import ProxyProtocol
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.service_info import (
    AutoClusterFailover,
    Credentials,
    PolledServiceInfo,
    ServiceSource,
    check_authentication,
)
from pulsar_native.service_url import Address, ServiceUrl, parse_address


@dataclass(frozen=True, kw_only=True)
class ClientConfig(Config):
    """Configuration of a client. Immutable; picklable, except with a `tls_context`.

    Raises `InvalidConfiguration` for a value of another type or out of range, `InvalidUrl` for a malformed URL.

    :param service_url: pulsar:// or pulsar+ssl:// (http:// or https:// for lookups over HTTP) with one or several
        hosts, separated by commas; or a source of it: a `ServiceInfoProvider`, an `AutoClusterFailover`, a
        `ControlledClusterFailover`, a `PolledServiceInfo`, or a callable, which is polled every 5 s.
    :param authentication: an object of `pulsar_native.auth`. Default None. With a provider or an
        `AutoClusterFailover` as `service_url` it belongs into each `ServiceInfo`.
    :param operation_timeout_seconds: limit in seconds of a lookup, of creating and closing a producer or consumer, and
        of other requests, their retries included; then `Timeout` is raised. Default 30, at least 0.001.
    :param io_threads: accepted for compatibility, at least 1, without effect: the sync API has one engine thread per
        process. Default 1.
    :param message_listener_threads: number of threads of the sync API that call listeners, 1 to 1000. A consumer stays
        with one thread. Default 1.
    :param concurrent_lookup_requests: number of lookups at a time, at least 1. Default 50000.
    :param stats_interval_in_seconds: seconds between two log records of statistics; 0 or less switches statistics off.
        Default 600.
    :param use_tls: True encrypts broker connections although the service URL is `http://`. With other URLs the scheme
        decides alone. Default False.
    :param tls_trust_certs_file_path: PEM file of trusted certificates; a replaced file is read again. Default None: the
        system's.
    :param tls_allow_insecure_connection: True accepts any certificate. Default False.
    :param tls_validate_hostname: True checks the host name against the certificate. Default False, as in the official
        client.
    :param tls_private_key_file_path: PEM file of the client's private key; needs `tls_certificate_file_path`. Default
        None.
    :param tls_certificate_file_path: PEM file of the client's certificate; needs `tls_private_key_file_path`. Default
        None.
    :param connection_timeout_ms: limit of one connection attempt in milliseconds, at least 1. Default 10000.
    :param listener_name: name of the advertised listener whose broker addresses are looked up (PIP-61). Default None.
    :param connections_per_broker: number of connections to each broker, between which producers and consumers are
        distributed. Default 1; with 0 each of them has its own.
    :param keep_alive_interval_seconds: seconds between two PINGs; a connection on which nothing was received during
        one interval is closed. Default 30; 0 or less switches it off.
    :param max_lookup_redirects: number of redirects followed in one lookup, then `LookupError` is raised. Default 20.
    :param max_lookup_requests: number of lookups at a time plus those that wait for their turn; one more raises
        `TooManyLookupRequestException`. Default 50000, at least 1.
    :param max_number_of_rejected_request_per_connection: number of requests that the broker may reject with
        TooManyRequests within 60 s; one more closes the connection. Default 50, at least 1.
    :param connection_max_idle_seconds: seconds after which a connection without producers and consumers is closed.
        Default 60; 0 or less keeps it.
    :param service_url_quarantine_init_duration_seconds: seconds for which a host of the service URL that cannot be
        reached is not tried, doubled with each further failure. Default 60; 0 or less switches it off.
    :param service_url_quarantine_max_duration_seconds: longest such time in seconds. Default 86400.
    :param tls_context: an `ssl.SSLContext` instead of all other TLS options; with it those raise. Default None.
    :param memory_limit_bytes: limit of the payload bytes of messages without a receipt and of receiver queues that
        scale; then sends block or raise `MemoryBufferIsFull` (PIP-74). Default 0: no limit.
    :param starting_backoff_interval_ms: first delay between two attempts to reconnect or repeat a request, in
        milliseconds, at least 1. Default 100.
    :param max_backoff_interval_ms: longest such delay in milliseconds, at least `starting_backoff_interval_ms`. Default
        60000.
    :param description: text of the application's own about this client, not sent to the broker. Default None.
    :param proxy_service_url: `pulsar+ssl://host:port` of a proxy for all connections to brokers. Needs a service URL
        that begins with pulsar+ssl://. Default None: brokers are connected to directly.
    :param proxy_protocol: protocol of this proxy. Default `ProxyProtocol.SNI`, which is the only one: the TLS handshake
        names the broker's host, against which its certificate is checked, too.
    :param socks5_proxy_address: `host:port` of a SOCKS5 proxy for all connections to brokers, and to the proxy at
        `proxy_service_url`; it resolves their names. Needs a service URL that begins with pulsar:// or pulsar+ssl://.
        Requests over HTTP, as of `AdminClient`, do not go through it. Default None.
    :param socks5_proxy_username: user name at this proxy, at most 255 bytes; needs `socks5_proxy_password`. Default
        None.
    :param socks5_proxy_password: its password, at most 255 bytes; or a plain function that returns it, called for each
        connection, off the event loop. Default None. A configuration with a password that is a str cannot be pickled.
    :param meter_provider: an OpenTelemetry MeterProvider, or True for the process's own. Default None: no metrics. It
        is left out of a pickled configuration.
    """

    service_url: ServiceSource
    authentication: Credentials | None = None
    operation_timeout_seconds: float = 30
    io_threads: int = 1
    message_listener_threads: int = 1
    concurrent_lookup_requests: int = 50_000
    stats_interval_in_seconds: int = 600
    use_tls: bool = False
    tls_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_validate_hostname: bool = False
    tls_private_key_file_path: str | None = None
    tls_certificate_file_path: str | None = None
    connection_timeout_ms: int = 10_000
    listener_name: str | None = None
    connections_per_broker: int = 1
    keep_alive_interval_seconds: float = 30
    max_lookup_redirects: int = 20
    max_lookup_requests: int = 50_000
    max_number_of_rejected_request_per_connection: int = 50
    connection_max_idle_seconds: float = 60
    service_url_quarantine_init_duration_seconds: float = 60
    service_url_quarantine_max_duration_seconds: float = 86_400
    tls_context: ssl.SSLContext | None = None
    memory_limit_bytes: int = 0
    starting_backoff_interval_ms: int = 100
    max_backoff_interval_ms: int = 60_000
    description: str | None = None
    proxy_service_url: str | None = None
    proxy_protocol: ProxyProtocol = ProxyProtocol.SNI
    socks5_proxy_address: str | None = None
    socks5_proxy_username: str | None = None
    socks5_proxy_password: str | Callable[[], str] | None = field(default=None, repr=False)
    meter_provider: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        if isinstance(self.socks5_proxy_password, str):
            raise TypeError(
                "ClientConfig holds a literal secret and cannot be pickled: it would travel in plain text. Let "
                "socks5_proxy_password be a function of a module, which is pickled by its name"
            )
        return {**self.__dict__, "meter_provider": None}

    def __post_init__(self) -> None:
        self._check_options({})
        self._check_service()
        self._check_meter_provider()
        check_number("operation_timeout_seconds", self.operation_timeout_seconds, 0.001, MAX_I32)
        check_pem_paths(self, "tls_trust_certs_file_path", "tls_private_key_file_path", "tls_certificate_file_path")
        check_texts(
            self,
            "listener_name",
            "description",
            "proxy_service_url",
            "socks5_proxy_address",
            "socks5_proxy_username",
        )
        self._check_proxies()
        check_integer("stats_interval_in_seconds", self.stats_interval_in_seconds, float("-inf"), MAX_U32)
        check_integer("connection_timeout_ms", self.connection_timeout_ms, 1, MAX_I32)
        check_integer("message_listener_threads", self.message_listener_threads, 1, 1000)
        check_integer("io_threads", self.io_threads, 1, MAX_I32)
        check_integer("concurrent_lookup_requests", self.concurrent_lookup_requests, 1, MAX_I32)
        check_integer("connections_per_broker", self.connections_per_broker, 0)
        check_integer("max_lookup_redirects", self.max_lookup_redirects, 0)
        check_integer("max_lookup_requests", self.max_lookup_requests, 1)
        check_integer(
            "max_number_of_rejected_request_per_connection", self.max_number_of_rejected_request_per_connection, 1
        )
        # Values of 0 and below switch these three off.
        check_number("keep_alive_interval_seconds", self.keep_alive_interval_seconds, float("-inf"))
        check_number("connection_max_idle_seconds", self.connection_max_idle_seconds, float("-inf"))
        check_number(
            "service_url_quarantine_init_duration_seconds",
            self.service_url_quarantine_init_duration_seconds,
            float("-inf"),
        )
        check_number("service_url_quarantine_max_duration_seconds", self.service_url_quarantine_max_duration_seconds, 0)
        check_integer("memory_limit_bytes", self.memory_limit_bytes, 0)
        check_integer("starting_backoff_interval_ms", self.starting_backoff_interval_ms, 1)
        check_integer("max_backoff_interval_ms", self.max_backoff_interval_ms, self.starting_backoff_interval_ms)
        require(
            (self.tls_certificate_file_path is None) == (self.tls_private_key_file_path is None),
            "tls_certificate_file_path and tls_private_key_file_path belong together: give both or neither",
        )
        check_authentication(self.authentication)

    def _check_meter_provider(self) -> None:
        provider = self.meter_provider
        if provider is None or provider is True:
            return
        get_meter = getattr(provider, "get_meter", None)
        shown = f"the class {provider.__name__}" if isinstance(provider, type) else type(provider).__name__
        require(
            callable(get_meter) and not isinstance(provider, type),
            f"meter_provider must be an OpenTelemetry MeterProvider, True or None, not {shown}",
        )
        check_no_coroutine("meter_provider.get_meter", get_meter)

    def _check_service(self) -> None:
        source = self.service_url
        if isinstance(source, str) or source is None:
            self.parsed_url()
        elif not callable(source):
            known = isinstance(source, AutoClusterFailover | PolledServiceInfo)
            require(
                known or hasattr(source, "initial_service_info"),
                f"service_url must be a str, a ServiceInfoProvider, an AutoClusterFailover or a callable, "
                f"not {type(source).__name__}",
            )
            own = "authentication" if self.authentication else "tls_trust_certs_file_path"
            require(
                isinstance(source, PolledServiceInfo) or not (self.authentication or self.tls_trust_certs_file_path),
                f"{own} belongs into each ServiceInfo when service_url is a {type(source).__name__}",
            )
        if self.tls_context is not None:
            require(
                isinstance(self.tls_context, ssl.SSLContext),
                f"tls_context must be an ssl.SSLContext, not {type(self.tls_context).__name__}",
            )
            require(
                self.tls_context.protocol is not ssl.PROTOCOL_TLS_SERVER,
                "tls_context is one for servers: make it with ssl.create_default_context(cafile=…), or with "
                "ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)",
            )
            require(
                not (self.tls_trust_certs_file_path or self.tls_certificate_file_path)
                and not (self.tls_allow_insecure_connection or self.tls_validate_hostname),
                "tls_context stands for all TLS settings: leave the other tls_ options out, or the context",
            )

    def _check_proxies(self) -> None:
        # Of a wrong form they raise.
        _ = self.proxy_address, self.socks5_address
        self._check_socks5_login()
        source = self.service_url
        if isinstance(source, AutoClusterFailover):
            for info in (source.primary, *source.secondary):
                self.check_url(ServiceUrl.parse(info.service_url))
        elif isinstance(source, str):
            self.check_url(self.parsed_url())

    def _check_socks5_login(self) -> None:
        name, password = self.socks5_proxy_username, self.socks5_proxy_password
        require(
            (name is None) == (password is None),
            "socks5_proxy_username and socks5_proxy_password belong together: give both or neither",
        )
        if name is None:
            return
        require(self.socks5_proxy_address is not None, "socks5_proxy_username needs socks5_proxy_address")
        socks5_bytes("socks5_proxy_username", name)
        if callable(password):
            check_no_coroutine("socks5_proxy_password", password)
        else:
            socks5_bytes("socks5_proxy_password", password)

    def check_url(self, url: ServiceUrl) -> None:
        """Raise `InvalidConfiguration` for a service URL that the client's proxies do not go with."""
        require(
            self.proxy_service_url is None or url.scheme == "pulsar+ssl",
            f"With proxy_service_url the service URL must begin with pulsar+ssl://, not {url.scheme}://: the proxy "
            "finds the broker by the TLS handshake",
        )
        require(
            self.socks5_proxy_address is None or not url.is_http,
            f"With socks5_proxy_address the service URL must begin with pulsar:// or pulsar+ssl://, not "
            f"{url.scheme}://: lookups over HTTP would not go through the proxy",
        )

    @property
    def proxy_address(self) -> Address | None:
        """Address of the proxy at `proxy_service_url`, None without one."""
        if self.proxy_service_url is None:
            return None
        scheme, _, rest = self.proxy_service_url.strip().partition("://")
        return parse_address(
            rest.rstrip("/") if scheme == "pulsar+ssl" else "", "proxy_service_url", "pulsar+ssl://host:port"
        )

    @property
    def socks5_address(self) -> Address | None:
        """Address of the SOCKS5 proxy, None without one."""
        if self.socks5_proxy_address is None:
            return None
        return parse_address(self.socks5_proxy_address.strip(), "socks5_proxy_address", "host:port")

    def parsed_url(self) -> ServiceUrl:
        """Return the parsed service URL. Its scheme determines whether TLS is used.

        Raises `InvalidConfiguration` if a provider supplies the URL.
        """
        if not isinstance(self.service_url, str) and self.service_url is not None:
            raise InvalidConfiguration("The service URL is not known yet: a provider supplies it to the live client")
        return ServiceUrl.parse(self.service_url)


def socks5_bytes(name: str, value: object) -> bytes:
    """Return a user name or password as SOCKS5 takes it; raises `InvalidConfiguration` without its text."""
    require(isinstance(value, str), f"{name} must be a str, not {type(value).__name__}")
    # An encoding error would carry the text: a lone surrogate, which has no bytes, is left out instead, and missed.
    data = str(value).encode(errors="ignore")
    require(0 < len(data) < 256 and data.decode() == value, f"{name} must be text of 1 to 255 bytes in UTF-8")
    return data
