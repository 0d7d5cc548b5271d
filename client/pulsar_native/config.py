"""Immutable, validated configuration of clients, producers, consumers and readers.

Rules: every configuration is frozen and picklable, so that an Airflow connection or a Spark task can carry it; live
clients are made from it where they are used. Credentials travel by reference only (see `auth`): a configuration that
holds a literal secret refuses to be pickled. Validation happens here, at construction, and names the fix.

Options: each class documents its options as `:param name:` fields, with unit, default and errors. The methods of both
APIs that take the same options show these texts (`_option_docs`).

Key ranges: the broker hashes a message's ordering key, or its key if it has none, by Murmur3 to 0..65535; both bounds
of a range are included. Ranges of one consumer may not overlap; the broker compares those of different consumers.
Delays of a redelivery back-off are milliseconds, as in the Java client, so that its settings can be copied.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self

from pulsar_native.crypto import KeyReader
from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    KeySharedMode,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerCryptoFailureAction,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName
from pulsar_native.message_id import MessageId
from pulsar_native.service_info import AutoClusterFailover, Credentials, PolledServiceInfo, ServiceSource
from pulsar_native.service_url import ServiceUrl
from pulsar_native.topic import TopicName

if TYPE_CHECKING:
    import ssl

MIB = 1024 * 1024


# --- key ranges -------------------------------------------------------------------------------------------------------

MAX_HASH = 65_535

Range = tuple[int, int]
"""First and last hash, both included."""


@dataclass(frozen=True, kw_only=True)
class KeySharedPolicy:
    """Assignment of keys to the consumers of a Key_Shared subscription (PIP-34); the same for all of its consumers.

    Immutable. Raises `InvalidConfiguration` for ranges without `Sticky`, and for `Sticky` without ranges.

    :param key_shared_mode: `AutoSplit` (default), the broker assigns hashes to consumers; or `Sticky`, each consumer
        gets the keys whose hash is in its `sticky_ranges`, and messages of hashes that no consumer has wait.
    :param allow_out_of_order_delivery: True lets redelivered messages of a key arrive after newer ones, so that a slow
        consumer does not block a new one. Default False.
    :param sticky_ranges: pairs (first, last) of hashes, 0 to 65535, both bounds included, without overlap; `Sticky`
        only. Default none.
    """

    key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit
    allow_out_of_order_delivery: bool = False
    # Always a list once checked, of AutoSplit an empty one.
    sticky_ranges: Sequence[Range] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.key_shared_mode, KeySharedMode):
            raise InvalidConfiguration(
                f"key_shared_mode must be KeySharedMode.AutoSplit or KeySharedMode.Sticky, not {self.key_shared_mode!r}"
            )
        if not isinstance(self.allow_out_of_order_delivery, bool):
            raise InvalidConfiguration("allow_out_of_order_delivery must be True or False")
        if self.key_shared_mode is KeySharedMode.Sticky:
            ranges = checked_ranges("sticky_ranges", () if self.sticky_ranges is None else self.sticky_ranges)
            object.__setattr__(self, "sticky_ranges", list(ranges))
        elif self.sticky_ranges:
            raise InvalidConfiguration("sticky_ranges needs key_shared_mode=KeySharedMode.Sticky")
        else:
            object.__setattr__(self, "sticky_ranges", [])

    def get_key_shared_mode(self) -> KeySharedMode:
        """Return `key_shared_mode`, as the official client's wrapped policy does."""
        return self.key_shared_mode

    def is_allow_out_of_order_delivery(self) -> bool:
        """Return `allow_out_of_order_delivery`."""
        return self.allow_out_of_order_delivery

    def get_sticky_ranges(self) -> list[Range]:
        """Return `sticky_ranges`."""
        return list(self.sticky_ranges or ())


def checked_ranges(name: str, ranges: object) -> tuple[Range, ...]:
    """Return ranges as tuples; raise `InvalidConfiguration` for bounds outside 0..65535, overlaps, and no ranges."""
    if isinstance(ranges, str | bytes) or not isinstance(ranges, Sequence) or not ranges:
        raise InvalidConfiguration(f"{name} must be a list of (first, last) hashes with at least one, not {ranges!r}")
    found = tuple(_checked_range(name, each) for each in ranges)
    ordered = sorted(found)
    for before, after in pairwise(ordered):
        if after[0] <= before[1]:
            raise InvalidConfiguration(f"{name} overlap: {before} and {after} (both bounds belong to a range)")
    return found


def _checked_range(name: str, each: object) -> Range:
    pair = tuple(each) if isinstance(each, list | tuple) else ()
    if len(pair) != 2 or any(isinstance(bound, bool) or not isinstance(bound, int) for bound in pair):
        raise InvalidConfiguration(f"{name} must hold pairs of int, (first, last), not {each!r}")
    first, last = pair
    if not 0 <= first <= last <= MAX_HASH:
        raise InvalidConfiguration(f"{name} must have 0 <= first <= last <= {MAX_HASH}, not {each!r}")
    return first, last


# --- redelivery back-off ----------------------------------------------------------------------------------------------


class RedeliveryBackoff(Protocol):
    """Interface of redelivery back-offs: any object with this method.

    `next` is called in the application's thread or the engine's, under a lock: it must not block. A message that was
    negatively acknowledged by its id alone counts as never redelivered.
    """

    def next(self, redelivery_count: int) -> float:
        """Return the delay in milliseconds before the next delivery of a message.

        :param redelivery_count: number of redeliveries so far; 0 for a message that was delivered once.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class MultiplierRedeliveryBackoff:
    """Exponential redelivery back-off, Java's class of this name. Immutable, thread-safe.

    With the defaults, which are Java's, the delays are 10 s, 20 s, 40 s … 10 minutes. Raises `InvalidConfiguration`
    for values out of range.

    :param min_delay_ms: delay of the first redelivery in milliseconds, at least 0. Default 10000.
    :param max_delay_ms: longest delay in milliseconds, at least `min_delay_ms`. Default 600000.
    :param multiplier: factor of each further redelivery, at least 1. Default 2.0.
    """

    min_delay_ms: int = 10_000
    max_delay_ms: int = 600_000
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        for name in ("min_delay_ms", "max_delay_ms", "multiplier"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidConfiguration(f"{name} must be a number, not {type(value).__name__}")
        if not 0 <= self.min_delay_ms <= self.max_delay_ms:
            raise InvalidConfiguration("a redelivery back-off needs 0 <= min_delay_ms <= max_delay_ms")
        if not self.multiplier >= 1:
            raise InvalidConfiguration(f"multiplier must be at least 1, not {self.multiplier}")

    def next(self, redelivery_count: int) -> float:
        """Return the delay in milliseconds before the next delivery of a message.

        :param redelivery_count: number of redeliveries so far.
        """
        if redelivery_count <= 0 or not self.min_delay_ms:
            return self.min_delay_ms
        try:
            delay = self.min_delay_ms * float(self.multiplier) ** redelivery_count
        except OverflowError:
            return self.max_delay_ms
        return min(int(delay), self.max_delay_ms) if delay < self.max_delay_ms else self.max_delay_ms


# --- clients, producers, consumers, readers ---------------------------------------------------------------------------


class Router(Protocol):
    """Interface of message routers: return the partition of a message, `0 <= n < num_partitions`.

    Called in the thread that sends; it must not block. Any other result fails the send.
    """

    def __call__(self, message: Any, num_partitions: int) -> int: ...


class TopicsChangedListener(Protocol):
    """Listener for the topics a pattern consumer subscribed to and left, called after the change.

    The sync API calls it in a listener thread; the asyncio API on the loop, where the methods may be coroutines.
    """

    def on_topics_added(self, topics: list[str]) -> Any: ...
    def on_topics_removed(self, topics: list[str]) -> Any: ...


class ConsumerEventListener(Protocol):
    """Listener for the active consumer of a Failover subscription: this consumer of a partition, or another one.

    `partition` is -1 on a topic without partitions. After subscribing, `became_inactive` is called too if another
    consumer is active. The sync API calls the methods in a listener thread; the asyncio API on the loop, where they
    may be coroutines. Exceptions are logged. (ACTIVE_CONSUMER_CHANGE; Java: ConsumerEventListener.)
    """

    def became_active(self, consumer: Any, partition: int) -> Any: ...
    def became_inactive(self, consumer: Any, partition: int) -> Any: ...


class Config:
    """Common behaviour of the frozen configurations: strict construction from a mapping, and changed copies."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Return the configuration made from option names and values.

        :param options: values by option name. Raises `InvalidConfiguration` for an unknown name, with the most
            similar known one, for a missing option, and for a value out of range.
        """
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        known = [f.name for f in fields]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
                raise InvalidConfiguration(f"{cls.__name__} has no option {name!r}{hint}")
        required = (f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING)
        missing = [repr(name) for name in required if name not in options]
        if missing:
            raise InvalidConfiguration(f"{cls.__name__} needs {' and '.join(missing)}")
        return cls(**options)

    def _check_choices(self) -> None:
        """Raise `InvalidConfiguration` for a flag that is no bool, or an option that is no member of its enum."""
        for name, kind in _choices(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if isinstance(value, kind):
                continue
            if not issubclass(kind, Enum):
                raise InvalidConfiguration(f"{name} must be True or False, not {value!r}")
            known = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
            raise InvalidConfiguration(f"{name} must be one of {known}, not {value!r}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some options changed; raises `InvalidConfiguration` as the constructor does."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


@functools.cache
def _choices(kind: type) -> tuple[tuple[str, type], ...]:
    """Return the names of a configuration's flags and choices with the types of their values."""
    fields = dataclasses.fields(kind)
    return tuple((f.name, type(f.default)) for f in fields if isinstance(f.default, bool | Enum))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidConfiguration(message)


def _number(name: str, value: Any, minimum: float, maximum: float = float("inf")) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidConfiguration(f"{name} must be a number, not {type(value).__name__}")
    if not minimum <= value <= maximum:
        upper = f" and at most {maximum}" if maximum != float("inf") else ""
        raise InvalidConfiguration(f"{name} must be at least {minimum}{upper}, not {value}")


def _integer(name: str, value: Any, minimum: float, maximum: float = float("inf")) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidConfiguration(f"{name} must be an int, not {type(value).__name__}")
    _number(name, value, minimum, maximum)


def _texts(config: Config, *names: str) -> None:
    """Raise unless these options are None or a str; a blank str becomes None, as in the official client."""
    for name in names:
        value = getattr(config, name)
        _require(value is None or isinstance(value, str), f"{name} must be None or a str, not {type(value).__name__}")
        if value is not None and not value.strip():
            object.__setattr__(config, name, None)


def _strings(name: str, value: Mapping[str, str] | None) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise InvalidConfiguration(f"{name} must be a mapping of str to str")


def _topic(name: object, otherwise: str) -> None:
    if isinstance(name, str) and not name.strip():
        raise InvalidTopicName(otherwise)
    _require(isinstance(name, str), otherwise)


def _key_reader(value: object) -> None:
    _require(
        value is None or isinstance(value, KeyReader),
        f"crypto_key_reader must have the methods get_public_key and get_private_key; {type(value).__name__} has not",
    )


@dataclass(frozen=True, kw_only=True)
class ClientConfig(Config):
    """Configuration of a client. Immutable; picklable, except with a `tls_context`.

    Raises `InvalidConfiguration` for a value of another type or out of range, `InvalidUrl` for a malformed URL.

    :param service_url: pulsar:// or pulsar+ssl:// (http:// or https:// for lookups over HTTP) with one or several
        hosts, separated by commas; or a source of it: a `ServiceInfoProvider`, an `AutoClusterFailover`, a
        `PolledServiceInfo`, or a callable, which is polled every 5 s.
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
    :param use_tls: True encrypts broker connections although the service URL is http://. With other URLs the scheme
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
    :param keep_alive_interval_seconds: seconds between two PINGs; a connection without any answer during one interval
        is closed. Default 30; 0 or less switches it off.
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
    meter_provider: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "meter_provider": None}

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_service()
        provider = self.meter_provider
        _require(
            provider is None or provider is True or callable(getattr(provider, "get_meter", None)),
            f"meter_provider must be an OpenTelemetry MeterProvider, True or None, not {type(provider).__name__}",
        )
        _number("operation_timeout_seconds", self.operation_timeout_seconds, 0.001)
        _texts(
            self,
            "tls_trust_certs_file_path",
            "tls_private_key_file_path",
            "tls_certificate_file_path",
            "listener_name",
        )
        _integer("stats_interval_in_seconds", self.stats_interval_in_seconds, float("-inf"))
        _integer("connection_timeout_ms", self.connection_timeout_ms, 1)
        _number("message_listener_threads", self.message_listener_threads, 1, 1000)
        _number("io_threads", self.io_threads, 1)
        _number("concurrent_lookup_requests", self.concurrent_lookup_requests, 1)
        _number("connections_per_broker", self.connections_per_broker, 0)
        _number("max_lookup_redirects", self.max_lookup_redirects, 0)
        _number("max_lookup_requests", self.max_lookup_requests, 1)
        _number("max_number_of_rejected_request_per_connection", self.max_number_of_rejected_request_per_connection, 1)
        # Values of 0 and below switch these two off.
        _number("connection_max_idle_seconds", self.connection_max_idle_seconds, float("-inf"))
        _number(
            "service_url_quarantine_init_duration_seconds",
            self.service_url_quarantine_init_duration_seconds,
            float("-inf"),
        )
        _number("service_url_quarantine_max_duration_seconds", self.service_url_quarantine_max_duration_seconds, 0)
        _number("memory_limit_bytes", self.memory_limit_bytes, 0)
        _number("starting_backoff_interval_ms", self.starting_backoff_interval_ms, 1)
        _number("max_backoff_interval_ms", self.max_backoff_interval_ms, self.starting_backoff_interval_ms)
        _require(
            (self.tls_certificate_file_path is None) == (self.tls_private_key_file_path is None),
            "tls_certificate_file_path and tls_private_key_file_path belong together: give both or neither",
        )
        for name in ("auth_data", "method_name", "start", "close"):
            _require(
                self.authentication is None or hasattr(self.authentication, name),
                f"authentication must be an Authentication object, not {type(self.authentication).__name__}",
            )

    def _check_service(self) -> None:
        source = self.service_url
        if isinstance(source, str) or source is None:
            self.parsed_url()
        elif not callable(source):
            known = isinstance(source, AutoClusterFailover | PolledServiceInfo)
            _require(
                known or hasattr(source, "initial_service_info"),
                f"service_url must be a str, a ServiceInfoProvider, an AutoClusterFailover or a callable, "
                f"not {type(source).__name__}",
            )
            own = "authentication" if self.authentication else "tls_trust_certs_file_path"
            _require(
                isinstance(source, PolledServiceInfo) or not (self.authentication or self.tls_trust_certs_file_path),
                f"{own} belongs into each ServiceInfo when service_url is a {type(source).__name__}",
            )
        if self.tls_context is not None:
            _require(
                hasattr(self.tls_context, "wrap_socket"),
                f"tls_context must be an ssl.SSLContext, not {type(self.tls_context).__name__}",
            )
            _require(
                not (self.tls_trust_certs_file_path or self.tls_certificate_file_path)
                and not (self.tls_allow_insecure_connection or self.tls_validate_hostname),
                "tls_context stands for all TLS settings: leave the other tls_ options out, or the context",
            )

    def parsed_url(self) -> ServiceUrl:
        """Return the parsed service URL. Its scheme determines whether TLS is used.

        Raises `InvalidConfiguration` if a provider supplies the URL.
        """
        if not isinstance(self.service_url, str) and self.service_url is not None:
            raise InvalidConfiguration("The service URL is not known yet: a provider supplies it to the live client")
        return ServiceUrl.parse(self.service_url)


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(Config):
    """Configuration of a producer. Immutable, picklable. Sizes are bytes of uncompressed messages.

    Raises `InvalidConfiguration` for a value of another type or out of range, `InvalidTopicName` for a blank topic.

    :param topic: the topic: `topic`, `tenant/namespace/topic` or `persistent://tenant/namespace/topic`.
    :param producer_name: name, unique on the topic; `ProducerBusy` is raised if it is connected. Default None: the
        broker generates one.
    :param initial_sequence_id: sequence id before the first message, which gets this one plus 1; at least -1. Default
        None: continues after the last id the broker stored for `producer_name`, or begins at 0.
    :param send_timeout_millis: milliseconds after which a message without a receipt fails with `Timeout`. Default
        30000; 0 for no limit.
    :param compression_type: a `CompressionType`. Default NONE.
    :param compression_min_msg_body_size: size in bytes up to which a batch or single message is not compressed.
        Default 0.
    :param max_pending_messages: number of messages of a partition without a receipt; then sends block or raise
        `ProducerQueueIsFull`. Default 1000; 0 for no limit.
    :param max_pending_messages_across_partitions: the same number over all partitions, each of which gets an equal
        share of at least 1. Default 50000; 0 for no limit.
    :param block_if_queue_full: True has a send wait while the queue or the client's memory limit is full, instead of
        raising. Default False.
    :param batching_enabled: True puts several messages into one entry. Default False; the asyncio API's is True.
    :param batching_max_messages: number of messages that completes a batch, at least 1. Default 1000.
    :param batching_max_allowed_size_in_bytes: size in bytes that completes a batch. Default 131072; with 0 no message
        waits.
    :param batching_max_publish_delay_ms: milliseconds after which an open batch is sent. Default 10; with 0 no message
        waits.
    :param batching_type: `BatchingType.Default`, or `KeyBased`: the messages of a batch have one key, which Key_Shared
        subscriptions need.
    :param chunking_enabled: True sends a message above the broker's maximum size in chunks (PIP-37); persistent topics
        without batching. Default False: such a message raises `MessageTooBig`.
    :param chunk_max_message_size: size in bytes of a chunk. Default -1: the broker's maximum message size.
    :param lazy_start_partitioned_producers: True creates the producer of a partition at its first message; access mode
        `Shared` only. Default False.
    :param message_routing_mode: partition of a message without a key: `RoundRobinDistribution` (default),
        `UseSinglePartition`, or `CustomPartition`, which needs a `message_router`.
    :param message_router: function of a message and the number of partitions that returns the partition of every
        message. Default None.
    :param hashing_scheme: hash that determines the partition of a message with a key. Default JavaStringHash.
    :param round_robin_partition_switch_frequency: number of publish delays after which a batching producer takes the
        next partition, at least 1. Default 10.
    :param properties: metadata of the producer, shown in the topic's statistics. Default none.
    :param access_mode: a `ProducerAccessMode` (PIP-68). Default Shared. `Exclusive` raises `ProducerFenced` or
        `ProducerBusy` if the topic has another producer; `WaitForExclusive` waits for it without a time-out.
    :param encryption_key: name of the public key that data keys are encrypted with; needs a `crypto_key_reader`.
        Default None: messages are not encrypted.
    :param encryption_keys: names of further public keys; the private key of any of them decrypts every message.
        Default none.
    :param crypto_key_reader: a `KeyReader`, for instance a `CryptoKeyReader`; needs `encryption_key` or
        `encryption_keys`. Default None.
    :param crypto_failure_action: `FAIL` (default) refuses a message that cannot be encrypted with `CryptoError`; `SEND`
        sends it in plain text.
    :param auto_update_partitions: True also publishes to partitions that are added later. Default True.
    :param auto_update_partitions_interval_seconds: seconds between two requests for the number of partitions, at least
        0.001. Default 60.
    :param initial_subscription_name: subscription created together with the topic (PIP-124). Default None.
    """

    topic: str
    producer_name: str | None = None
    initial_sequence_id: int | None = None
    send_timeout_millis: int = 30_000
    compression_type: CompressionType = CompressionType.NONE
    compression_min_msg_body_size: int = 0
    max_pending_messages: int = 1000
    max_pending_messages_across_partitions: int = 50_000
    block_if_queue_full: bool = False
    batching_enabled: bool = False
    batching_max_messages: int = 1000
    batching_max_allowed_size_in_bytes: int = 128 * 1024
    batching_max_publish_delay_ms: int = 10
    batching_type: BatchingType = BatchingType.Default
    chunking_enabled: bool = False
    chunk_max_message_size: int = -1
    lazy_start_partitioned_producers: bool = False
    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    message_router: Router | None = None
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    round_robin_partition_switch_frequency: int = 10
    properties: Mapping[str, str] = field(default_factory=dict)
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    encryption_key: str | None = None
    encryption_keys: Sequence[str] = ()
    crypto_key_reader: KeyReader | None = None
    crypto_failure_action: ProducerCryptoFailureAction = ProducerCryptoFailureAction.FAIL
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: float = 60
    initial_subscription_name: str | None = None

    def __post_init__(self) -> None:
        self._check_choices()
        _topic(self.topic, "a producer needs a topic")
        _texts(self, "producer_name", "encryption_key")
        _integer("send_timeout_millis", self.send_timeout_millis, 0)
        _number("max_pending_messages", self.max_pending_messages, 0)
        _number("max_pending_messages_across_partitions", self.max_pending_messages_across_partitions, 0)
        _number("batching_max_messages", self.batching_max_messages, 1)
        # With 0 bytes or milliseconds no message waits for another one.
        _number("batching_max_allowed_size_in_bytes", self.batching_max_allowed_size_in_bytes, 0)
        _number("batching_max_publish_delay_ms", self.batching_max_publish_delay_ms, 0)
        _number("round_robin_partition_switch_frequency", self.round_robin_partition_switch_frequency, 1)
        _number("auto_update_partitions_interval_seconds", self.auto_update_partitions_interval_seconds, 0.001)
        _number("compression_min_msg_body_size", self.compression_min_msg_body_size, 0)
        _require(isinstance(self.batching_type, BatchingType), "batching_type must be a BatchingType")
        self._check_chunking()
        if self.initial_sequence_id is not None:
            _integer("initial_sequence_id", self.initial_sequence_id, -1)
        _strings("properties", self.properties)
        custom = self.message_routing_mode == PartitionsRoutingMode.CustomPartition
        _require(not custom or self.message_router is not None, "CustomPartition routing needs a message_router")
        _require(self.message_router is None or callable(self.message_router), "message_router must be callable")
        self._check_encryption()

    @property
    def encryption_key_names(self) -> tuple[str, ...]:
        """Names of all public keys to encrypt for, without duplicates; empty if messages are not encrypted."""
        first = () if self.encryption_key is None else (self.encryption_key,)
        return tuple(dict.fromkeys((*first, *self.encryption_keys)))

    def _check_encryption(self) -> None:
        _require(
            not isinstance(self.encryption_keys, str) and isinstance(self.encryption_keys, Sequence | set | frozenset),
            "encryption_keys must be a list of str; for a single key there is encryption_key",
        )
        names = self.encryption_key_names
        _require(
            all(isinstance(name, str) and bool(name) for name in names),
            "encryption_key and encryption_keys must be non-empty names",
        )
        _key_reader(self.crypto_key_reader)
        _require(
            not names or self.crypto_key_reader is not None,
            "encryption_key needs a crypto_key_reader, for instance CryptoKeyReader(public_key_path, private_key_path)",
        )
        # The official client would send everything in the clear.
        _require(
            bool(names) or self.crypto_key_reader is None,
            "a producer with a crypto_key_reader needs encryption_key, the name of the key to encrypt for; without it "
            "nothing would be encrypted",
        )

    def _check_chunking(self) -> None:
        _number("chunk_max_message_size", self.chunk_max_message_size, -1)
        _require(
            not (self.chunking_enabled and self.batching_enabled),
            "chunking_enabled and batching_enabled exclude each other: set batching_enabled=False",
        )
        _require(
            not (self.chunking_enabled and self.topic.startswith("non-persistent://")),
            "chunking_enabled needs a persistent topic",
        )


@dataclass(frozen=True)
class BatchReceivePolicy(Config):
    """Limits of one `batch_receive` call, which returns when the first one is reached. Immutable.

    A limit of 0 or less is off; `InvalidConfiguration` is raised if all of them are.

    :param max_num_messages: number of messages. Default -1.
    :param max_num_bytes: sum of the payloads in bytes. Default 10485760.
    :param timeout_ms: time since the call in milliseconds. Default 100.
    """

    max_num_messages: int = -1
    max_num_bytes: int = 10 * MIB
    timeout_ms: int = 100

    def __post_init__(self) -> None:
        for name in ("max_num_messages", "max_num_bytes", "timeout_ms"):
            _integer(name, getattr(self, name), float("-inf"))
        _require(
            self.max_num_messages > 0 or self.max_num_bytes > 0 or self.timeout_ms > 0,
            "a batch receive policy needs at least one of max_num_messages, max_num_bytes and timeout_ms",
        )

    def getMaxNumMessages(self) -> int:
        """Return `max_num_messages`, as the official client's wrapped policy does."""
        return self.max_num_messages

    def getMaxNumBytes(self) -> int:
        """Return `max_num_bytes`."""
        return self.max_num_bytes

    def getTimeoutMs(self) -> int:
        """Return `timeout_ms`."""
        return self.timeout_ms


@dataclass(frozen=True, kw_only=True)
class DeadLetterPolicy(Config):
    """Dead-letter and retry topics of a consumer (PIP-22, PIP-58). Immutable.

    Raises `InvalidConfiguration` for values out of range, `InvalidTopicName` for a malformed topic.

    :param max_redeliver_count: number of redeliveries after which a message goes to the dead-letter topic, at least 1.
    :param dead_letter_topic: the dead-letter topic. Default `{topic}-{subscription}-DLQ`, as in the Java client;
        without a retry topic, `{topic}` is the partition's name.
    :param retry_letter_topic: the retry topic. Default `{topic}-{subscription}-RETRY`.
    :param initial_subscription_name: subscription created together with the dead-letter topic, so that its messages do
        not expire unread (PIP-124). Default None.
    :param dead_letter_producer_options: options of `create_producer` for the dead-letter topic, except `topic`. Default
        none.
    :param retry_letter_producer_options: the same for the retry topic. Default none.
    """

    max_redeliver_count: int
    dead_letter_topic: str | None = None
    retry_letter_topic: str | None = None
    initial_subscription_name: str | None = None
    dead_letter_producer_options: Mapping[str, Any] = field(default_factory=dict)
    retry_letter_producer_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _number("max_redeliver_count", self.max_redeliver_count, 1)
        for name in ("dead_letter_topic", "retry_letter_topic", "initial_subscription_name"):
            value = getattr(self, name)
            blank = value is not None and not (isinstance(value, str) and value.strip())
            _require(not blank, f"{name} must be None or a non-blank str")
        for name in ("dead_letter_topic", "retry_letter_topic"):
            if getattr(self, name) is not None:
                TopicName.parse(getattr(self, name))
        for name in ("dead_letter_producer_options", "retry_letter_producer_options"):
            options = getattr(self, name)
            _require(isinstance(options, Mapping), f"{name} must be a mapping of option names")
            _require("topic" not in options, f"{name} cannot name the topic; the policy has a field for that")
            ProducerConfig.from_mapping({"topic": "letters", **options})

    def getMaxRedeliverCount(self) -> int:
        """Return `max_redeliver_count`, as the official client's wrapped policy does."""
        return self.max_redeliver_count

    def getDeadLetterTopic(self) -> str:
        """Return `dead_letter_topic`, or an empty str."""
        return self.dead_letter_topic or ""

    def getInitialSubscriptionName(self) -> str:
        """Return `initial_subscription_name`, or an empty str."""
        return self.initial_subscription_name or ""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Config):
    """Configuration of a consumer, without its topics. Immutable, picklable.

    Raises `InvalidConfiguration` for a value of another type or out of range.

    :param subscription_name: the subscription; created if it does not exist.
    :param consumer_type: a `ConsumerType`. Default Exclusive: a second consumer raises `ConsumerBusy`.
    :param subscription_mode: `SubscriptionMode.Durable`, or `NonDurable`, which ends with its last consumer. Default
        Durable.
    :param initial_position: position of a subscription that does not exist yet: `Latest` (default) or `Earliest`.
    :param receiver_queue_size: number of messages that the broker sends ahead of `receive`, at least 0. Default 1000.
        With 0 each `receive` requests one message; one topic without partitions, no `batch_receive`.
    :param max_total_receiver_queue_size_across_partitions: the same number over all partitions, each of which gets an
        equal share of at least 1. Default 50000.
    :param auto_scaled_receiver_queue_size_enabled: True begins with a queue of 1, which grows to `receiver_queue_size`
        as needed and counts against the client's `memory_limit_bytes` (PIP-74). Default False.
    :param consumer_name: name shown in the topic's statistics; it orders the consumers of Failover subscriptions.
        Default None: a generated one.
    :param unacked_messages_timeout_ms: milliseconds after which a message that is not acknowledged is redelivered, at
        least 1000. Default None or 0: never.
    :param unacked_messages_tick_ms: resolution of that time-out in milliseconds, from 100 to the time-out. Default
        1000.
    :param ack_timeout_redelivery_backoff: further delay, by the number of redeliveries, of a message whose time-out is
        over; needs `unacked_messages_timeout_ms`. Default None.
    :param negative_ack_redelivery_delay_ms: milliseconds between a negative acknowledgement and its redelivery; below
        100 counts as 100. Default 60000.
    :param negative_ack_redelivery_delay_precision: number of bits, 0 to 30, that redelivery times are rounded up by:
        with 8 (default) to multiples of 256 ms, so that messages share a request.
    :param negative_ack_redelivery_backoff: delay by the number of redeliveries instead of
        `negative_ack_redelivery_delay_ms`, for instance a `MultiplierRedeliveryBackoff`. Default None.
    :param acknowledgment_group_time_ms: milliseconds for which acknowledgements are gathered before they are sent.
        Default 100; with 0 each is sent at once.
    :param max_acknowledgment_group_size: number of gathered acknowledgements that are sent without waiting further, at
        least 1. Default 1000.
    :param batch_index_ack_enabled: True acknowledges single messages of a batch at the broker (PIP-54), which must have
        it enabled. Default False: an entry is acknowledged with its last message.
    :param ack_receipt_enabled: True has `acknowledge` wait for the broker's answer. Default False.
    :param dead_letter_policy: a `DeadLetterPolicy`, for Shared and Key_Shared subscriptions. Default None.
    :param enable_retry: True subscribes to the retry topic too and allows `reconsume_later`. Default False.
    :param is_read_compacted: True reads the compacted topic: of each key the newest message. Persistent topics,
        Exclusive and Failover subscriptions. Default False.
    :param properties: metadata of the consumer, shown in the topic's statistics. Default none.
    :param subscription_properties: metadata of a subscription that this consumer creates. Default none.
    :param priority_level: level for dispatching, at least 0; 0 is served first. Default 0.
    :param key_shared_policy: a `KeySharedPolicy`; Key_Shared subscriptions only. Default None: AutoSplit.
    :param replicate_subscription_state_enabled: True replicates the subscription's position to other clusters (PIP-33).
        Default False.
    :param start_message_id: position of a non-durable subscription. Default None.
    :param start_message_id_inclusive: True includes the message at the start position, and at the target of `seek`.
        Default False.
    :param crypto_key_reader: a `KeyReader` with the private keys. Default None.
    :param crypto_failure_action: action for a message that cannot be decrypted: `FAIL` (default) raises `CryptoError`
        and leaves it unacknowledged, `DISCARD` acknowledges and skips it, `CONSUME` returns it encrypted.
    :param batch_receive_policy: limits of `batch_receive`. Default None: 10 MiB or 100 ms.
    :param pattern_auto_discovery_period: seconds between two listings of the topics of a pattern, at least 1 (smaller
        values count as 1), beside the broker's own notifications (PIP-145). Default 60.
    :param regex_subscription_mode: domain of the topics a pattern matches; patterns only. Default PersistentOnly.
    :param max_pending_chunked_message: number of incomplete chunked messages that are kept; one more drops the oldest.
        Default 10; 0 for no limit.
    :param auto_ack_oldest_chunked_message_on_queue_full: True acknowledges the dropped one. Default False: the broker
        redelivers it.
    :param expire_time_of_incomplete_chunked_message_ms: milliseconds after which an incomplete chunked message is
        dropped and acknowledged. Default 60000; 0 for never.
    :param auto_update_partitions: True also subscribes to partitions that are added later. Default True.
    :param auto_update_partitions_interval_seconds: seconds between two requests for the number of partitions, at least
        0.001. Default 60.
    """

    subscription_name: str
    consumer_type: ConsumerType = ConsumerType.Exclusive
    subscription_mode: SubscriptionMode = SubscriptionMode.Durable
    initial_position: InitialPosition = InitialPosition.Latest
    receiver_queue_size: int = 1000
    max_total_receiver_queue_size_across_partitions: int = 50_000
    auto_scaled_receiver_queue_size_enabled: bool = False
    consumer_name: str | None = None
    unacked_messages_timeout_ms: int | None = None
    unacked_messages_tick_ms: int = 1000
    ack_timeout_redelivery_backoff: RedeliveryBackoff | None = None
    negative_ack_redelivery_delay_ms: int = 60_000
    negative_ack_redelivery_delay_precision: int = 8
    negative_ack_redelivery_backoff: RedeliveryBackoff | None = None
    acknowledgment_group_time_ms: int = 100
    max_acknowledgment_group_size: int = 1000
    batch_index_ack_enabled: bool = False
    ack_receipt_enabled: bool = False
    dead_letter_policy: DeadLetterPolicy | None = None
    enable_retry: bool = False
    is_read_compacted: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    priority_level: int = 0
    key_shared_policy: KeySharedPolicy | None = None
    replicate_subscription_state_enabled: bool = False
    start_message_id: MessageId | None = None
    start_message_id_inclusive: bool = False
    crypto_key_reader: KeyReader | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    batch_receive_policy: BatchReceivePolicy = field(default_factory=BatchReceivePolicy)
    pattern_auto_discovery_period: float = 60
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    max_pending_chunked_message: int = 10
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    expire_time_of_incomplete_chunked_message_ms: int = 60_000
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: float = 60

    def __post_init__(self) -> None:
        self._check_choices()
        _require(
            isinstance(self.subscription_name, str) and bool(self.subscription_name.strip()),
            "a consumer needs a non-blank subscription_name",
        )
        _texts(self, "consumer_name")
        _integer("receiver_queue_size", self.receiver_queue_size, 0)
        _require(
            self.receiver_queue_size > 0 or not self.auto_scaled_receiver_queue_size_enabled,
            "auto_scaled_receiver_queue_size_enabled needs a receiver_queue_size above 0, which it scales up to",
        )
        _number(
            "max_total_receiver_queue_size_across_partitions", self.max_total_receiver_queue_size_across_partitions, 1
        )
        _integer("negative_ack_redelivery_delay_ms", self.negative_ack_redelivery_delay_ms, 0)
        _require(
            isinstance(self.batch_receive_policy, BatchReceivePolicy),
            "batch_receive_policy must be a ConsumerBatchReceivePolicy (or BatchReceivePolicy)",
        )
        _number("acknowledgment_group_time_ms", self.acknowledgment_group_time_ms, 0)
        _number("max_acknowledgment_group_size", self.max_acknowledgment_group_size, 1)
        _number("priority_level", self.priority_level, 0)
        _number("pattern_auto_discovery_period", self.pattern_auto_discovery_period, 0)
        _number("auto_update_partitions_interval_seconds", self.auto_update_partitions_interval_seconds, 0.001)
        _number("max_pending_chunked_message", self.max_pending_chunked_message, 0)
        _number("expire_time_of_incomplete_chunked_message_ms", self.expire_time_of_incomplete_chunked_message_ms, 0)
        _strings("properties", self.properties)
        _strings("subscription_properties", self.subscription_properties)
        self._check_redelivery()
        self._check_key_shared()
        _require(
            not self.is_read_compacted or self.consumer_type in (ConsumerType.Exclusive, ConsumerType.Failover),
            "is_read_compacted needs an Exclusive or Failover subscription",
        )
        _key_reader(self.crypto_key_reader)

    def _check_key_shared(self) -> None:
        policy = self.key_shared_policy
        _require(
            policy is None or isinstance(policy, KeySharedPolicy),
            "key_shared_policy must be a ConsumerKeySharedPolicy (or KeySharedPolicy)",
        )
        # A reader with key_hash_range is an exclusive consumer with this policy.
        _require(
            policy is None
            or self.consumer_type is ConsumerType.KeyShared
            or self.subscription_mode is SubscriptionMode.NonDurable,
            "key_shared_policy needs consumer_type=ConsumerType.KeyShared; a reader has key_hash_range",
        )

    def _check_redelivery(self) -> None:
        if self.unacked_messages_timeout_ms:
            _number("unacked_messages_timeout_ms", self.unacked_messages_timeout_ms, 1000)
            _number("unacked_messages_tick_ms", self.unacked_messages_tick_ms, 100, self.unacked_messages_timeout_ms)
        precision = self.negative_ack_redelivery_delay_precision
        _number("negative_ack_redelivery_delay_precision", precision, 0, 30)
        _require(isinstance(precision, int), "negative_ack_redelivery_delay_precision must be a number of bits")
        for name in ("negative_ack_redelivery_backoff", "ack_timeout_redelivery_backoff"):
            backoff = getattr(self, name)
            _require(
                backoff is None or callable(getattr(backoff, "next", None)),
                f"{name} needs a method next(redelivery_count), as MultiplierRedeliveryBackoff has",
            )
        _require(
            self.ack_timeout_redelivery_backoff is None or bool(self.unacked_messages_timeout_ms),
            "ack_timeout_redelivery_backoff needs unacked_messages_timeout_ms",
        )
        _require(
            self.dead_letter_policy is None or isinstance(self.dead_letter_policy, DeadLetterPolicy),
            "dead_letter_policy must be a ConsumerDeadLetterPolicy (or DeadLetterPolicy)",
        )


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(Config):
    """Configuration of a reader. Immutable, picklable.

    Raises `InvalidConfiguration` for a value of another type or out of range, `InvalidTopicName` for a blank topic.

    :param topic: the topic, or a list of topics.
    :param start_message_id: position to begin after; `MessageId.earliest` and `latest` are the topic's ends, and the
        only ones for several topics or partitions.
    :param start_message_id_inclusive: True includes the message at the start position, and at the target of `seek`.
        Default False.
    :param receiver_queue_size: number of messages that the broker sends ahead of `read_next`, at least 0. Default 1000.
    :param reader_name: name shown in the topic's statistics. Default None: a generated one.
    :param subscription_role_prefix: prefix of the generated subscription name. Default None.
    :param subscription_name: name of the non-durable subscription. Default None: a generated one.
    :param is_read_compacted: True reads the compacted topic: of each key the newest message. Persistent topics only.
        Default False.
    :param auto_update_partitions: True also reads partitions that are added later. Default True.
    :param auto_update_partitions_interval_seconds: seconds between two requests for the number of partitions, at least
        0.001. Default 60.
    :param max_pending_chunked_message: number of incomplete chunked messages that are kept; one more drops the oldest.
        Default 10; 0 for no limit.
    :param auto_ack_oldest_chunked_message_on_queue_full: True acknowledges the dropped one. Default False: the broker
        redelivers it.
    :param expire_time_of_incomplete_chunked_message_ms: milliseconds after which an incomplete chunked message is
        dropped and acknowledged. Default 60000; 0 for never.
    :param crypto_key_reader: a `KeyReader` with the private keys. Default None.
    :param crypto_failure_action: action for a message that cannot be decrypted: `FAIL` (default) raises `CryptoError`,
        `DISCARD` skips it, `CONSUME` returns it encrypted.
    :param key_hash_range: pairs (first, last) of hashes, 0 to 65535, both bounds included, without overlap: only
        messages with a key in them are read. Default None: all messages.
    """

    topic: str | Sequence[str]
    start_message_id: MessageId
    start_message_id_inclusive: bool = False
    receiver_queue_size: int = 1000
    reader_name: str | None = None
    subscription_role_prefix: str | None = None
    subscription_name: str | None = None
    is_read_compacted: bool = False
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: float = 60
    max_pending_chunked_message: int = 10
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    expire_time_of_incomplete_chunked_message_ms: int = 60_000
    crypto_key_reader: KeyReader | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    key_hash_range: Sequence[Range] | None = None

    def __post_init__(self) -> None:
        self._check_choices()
        _require(bool(self.topics), "a reader needs a topic, or a list of them")
        for name in self.topics:
            _topic(name, "a reader needs a topic, or a list of them")
        _texts(self, "reader_name", "subscription_role_prefix", "subscription_name")
        _integer("receiver_queue_size", self.receiver_queue_size, 0)
        _key_reader(self.crypto_key_reader)
        _number("auto_update_partitions_interval_seconds", self.auto_update_partitions_interval_seconds, 0.001)
        if self.key_hash_range is not None:
            object.__setattr__(self, "key_hash_range", checked_ranges("key_hash_range", self.key_hash_range))

    @property
    def topics(self) -> list[str]:
        """Topics to read, as a list."""
        if isinstance(self.topic, str):
            return [self.topic]
        return list(self.topic) if isinstance(self.topic, list | tuple) else []


# --- the official client's spelling of policies -----------------------------------------------------------------------


class ConsumerBatchReceivePolicy(BatchReceivePolicy):
    """Limits of one `batch_receive` call, with the official client's parameters; see `BatchReceivePolicy`.

    :param max_num_message: number of messages; 0 or less for no limit.
    :param max_num_bytes: sum of the payloads in bytes; 0 or less for no limit.
    :param timeout_ms: time since the call in milliseconds; 0 or less for no limit.
    """

    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        super().__init__(max_num_message, max_num_bytes, timeout_ms)

    def __eq__(self, other: object) -> bool:
        return self.policy() == (other.policy() if isinstance(other, ConsumerBatchReceivePolicy) else other)

    __hash__ = BatchReceivePolicy.__hash__

    def policy(self) -> BatchReceivePolicy:
        """Return the plain policy."""
        return BatchReceivePolicy(self.max_num_messages, self.max_num_bytes, self.timeout_ms)


class ConsumerDeadLetterPolicy(DeadLetterPolicy):
    """Dead-letter and retry topics of a consumer, with the official client's parameters; see `DeadLetterPolicy`."""

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
        *,
        retry_letter_topic: str | None = None,
        dead_letter_producer_options: Mapping[str, Any] | None = None,
        retry_letter_producer_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            max_redeliver_count=max_redeliver_count,
            dead_letter_topic=dead_letter_topic,
            initial_subscription_name=initial_subscription_name,
            retry_letter_topic=retry_letter_topic,
            dead_letter_producer_options=dead_letter_producer_options or {},
            retry_letter_producer_options=retry_letter_producer_options or {},
        )

    def __eq__(self, other: object) -> bool:
        return self.policy() == (other.policy() if isinstance(other, ConsumerDeadLetterPolicy) else other)

    __hash__ = DeadLetterPolicy.__hash__

    def policy(self) -> DeadLetterPolicy:
        """Return the plain policy."""
        return DeadLetterPolicy(**{each.name: getattr(self, each.name) for each in dataclasses.fields(self)})


class ConsumerKeySharedPolicy(KeySharedPolicy):
    """Assignment of keys to consumers, with the official client's parameters; see `KeySharedPolicy`."""

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: Sequence[Range] | None = None,
    ) -> None:
        super().__init__(
            key_shared_mode=key_shared_mode,
            allow_out_of_order_delivery=allow_out_of_order_delivery,
            sticky_ranges=sticky_ranges,
        )

    def __eq__(self, other: object) -> bool:
        return self.policy() == (other.policy() if isinstance(other, ConsumerKeySharedPolicy) else other)

    __hash__ = KeySharedPolicy.__hash__

    def policy(self) -> KeySharedPolicy:
        """Return the plain policy."""
        return KeySharedPolicy(
            key_shared_mode=self.key_shared_mode,
            allow_out_of_order_delivery=self.allow_out_of_order_delivery,
            sticky_ranges=self.sticky_ranges,
        )


class DeadLetterPolicyBuilder:
    """Builder of a `DeadLetterPolicy`, as in the official client."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._topic: str | None = None
        self._subscription: str | None = None

    def maxRedeliverCount(self, maxRedeliverCount: int) -> Self:
        """Set the number of redeliveries after which a message goes to the dead-letter topic; at least 1."""
        self._count = maxRedeliverCount
        return self

    def deadLetterTopic(self, deadLetterTopic: str) -> Self:
        """Set the dead-letter topic."""
        self._topic = deadLetterTopic
        return self

    def initialSubscriptionName(self, initialSubscriptionName: str) -> Self:
        """Set the subscription that is created together with the dead-letter topic."""
        self._subscription = initialSubscriptionName
        return self

    def build(self) -> DeadLetterPolicy:
        """Return the policy; raises `InvalidConfiguration` without `maxRedeliverCount`."""
        if self._count is None:
            raise InvalidConfiguration("a dead-letter policy needs maxRedeliverCount, at least 1")
        return DeadLetterPolicy(
            max_redeliver_count=self._count,
            dead_letter_topic=self._topic,
            initial_subscription_name=self._subscription,
        )
