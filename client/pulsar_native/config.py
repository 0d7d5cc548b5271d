"""Immutable, validated configuration of clients, producers, consumers and readers.

Rules: every configuration is frozen and picklable, so that an Airflow connection or a Spark task can carry it; live
clients are made from it where they are used. Credentials travel by reference only (see `auth`): a configuration that
holds a literal secret refuses to be pickled. Validation happens here, at construction, and names the fix.

Key ranges: the broker hashes a message's ordering key, else its key, by Murmur3 to 0..65535; both bounds of a range
belong to it. Ranges of one consumer may not overlap; those of several consumers the broker compares. Delays of a
redelivery back-off are milliseconds, as in the Java client, so that its settings can be copied.
"""

from __future__ import annotations

import dataclasses
import difflib
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
    """How the keys are divided among the consumers of a Key_Shared subscription; the same for all of them.

    `AutoSplit`: the broker divides. `Sticky`: each consumer gets the keys whose hash lies in its `sticky_ranges`; where
    no consumer has a hash, its messages wait. `allow_out_of_order_delivery` lets messages of a key that are delivered
    again come after newer ones, so that a slow consumer does not hold up a new one.
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
    """Return ranges as tuples; those that are none, lie outside 0..65535 or overlap are refused by name."""
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
    """Give the delay before the next delivery of a message; any object with this method will do.

    Called in the application's thread or the engine's, under a lock: it must not block. A message that was refused by
    its id alone counts as never redelivered.
    """

    def next(self, redelivery_count: int) -> float:
        """Return milliseconds for a message that was redelivered so many times; 0 = delivered once."""
        ...


@dataclass(frozen=True, kw_only=True)
class MultiplierRedeliveryBackoff:
    """Multiply the delay with each redelivery: `min_delay_ms`, times `multiplier` each, at most `max_delay_ms`.

    Immutable and thread-safe. The defaults are Java's: 10 s, 20 s, 40 s … 10 minutes.
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
        """Return milliseconds to wait for a message that was redelivered so many times."""
        if redelivery_count <= 0 or not self.min_delay_ms:
            return self.min_delay_ms
        try:
            delay = self.min_delay_ms * float(self.multiplier) ** redelivery_count
        except OverflowError:
            return self.max_delay_ms
        return min(int(delay), self.max_delay_ms) if delay < self.max_delay_ms else self.max_delay_ms


# --- clients, producers, consumers, readers ---------------------------------------------------------------------------


class Router(Protocol):
    """Choose the partition of a message; an answer outside `0 <= n < num_partitions` is an error."""

    def __call__(self, message: Any, num_partitions: int) -> int: ...


class TopicsChangedListener(Protocol):
    """Be told which topics joined and left the consumer of a pattern, after it is done.

    The sync API calls from a listener thread; the asyncio API on the loop, where they may be coroutines.
    """

    def on_topics_added(self, topics: list[str]) -> Any: ...
    def on_topics_removed(self, topics: list[str]) -> Any: ...


class ConsumerEventListener(Protocol):
    """Be told when the broker makes this consumer of a Failover subscription the active one of a partition, or another.

    `partition` is -1 on a topic without partitions. A consumer that is not the active one is told so when it has
    subscribed. The sync API calls from a listener thread; the asyncio API on the loop, where they may be
    coroutines. What raises is logged.
    """

    def became_active(self, consumer: Any, partition: int) -> Any: ...
    def became_inactive(self, consumer: Any, partition: int) -> Any: ...


class Config:
    """Common behaviour of the frozen configurations: strict construction from a mapping, and changed copies."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Build the configuration from option names; an unknown name is an error that tells the nearest right one."""
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
        """Refuse what is neither True nor False, or no member of its enum: it would be found out too late."""
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if isinstance(f.default, bool) and not isinstance(value, bool):
                raise InvalidConfiguration(f"{f.name} must be True or False, not {value!r}")
            if isinstance(f.default, Enum) and not isinstance(value, type(f.default)):
                kind = type(f.default)
                known = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
                raise InvalidConfiguration(f"{f.name} must be one of {known}, not {value!r}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some options changed; the first one stays as it was."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


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
    """Refuse what is neither None nor a str; an empty one is none, as for the official client."""
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
    """Everything a client needs to reach a cluster. Times are seconds unless the name says `_ms`.

    `service_url` is a URL, or what supplies and changes it (see `service_info`). `tls_context` replaces all other TLS
    settings and cannot be pickled.
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
    # Over messages waiting for their receipts, and received ones of queues that scale; 0 is no limit.
    memory_limit_bytes: int = 0
    starting_backoff_interval_ms: int = 100
    max_backoff_interval_ms: int = 60_000
    description: str | None = None
    # An OpenTelemetry MeterProvider, or True for the process's own. It stays in its process: a pickled configuration
    # goes without.
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
        # Zero and less switch these two off.
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
        """Return the service URL in parts. Its scheme says whether TLS is used.

        Raises `InvalidConfiguration` when a provider supplies the URL.
        """
        if not isinstance(self.service_url, str) and self.service_url is not None:
            raise InvalidConfiguration("The service URL is not known yet: a provider supplies it to the live client")
        return ServiceUrl.parse(self.service_url)


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(Config):
    """Everything a producer needs besides its client. Sizes are bytes of the uncompressed messages.

    `encryption_key` and `encryption_keys` are names the key reader knows; every message can be read with the private
    key of any of them.
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
        # Of 0 bytes or milliseconds no message waits for another.
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
        """The names of all public keys to encrypt for, each once; none: messages are not encrypted."""
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
    """When `batch_receive` returns: enough messages, enough bytes, or after the time, whichever is first.

    A limit of 0 or less is off; at least one must be on.
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
    """Where messages go that fail again and again, and after how many redeliveries.

    Topics that are not named are `{topic}-{subscription}-DLQ` and `{topic}-{subscription}-RETRY`, as in the Java client
    (without retry topic, `{topic}` is the partition's name). `initial_subscription_name` is created together with the
    dead-letter topic, so that nothing of it expires unread. The `…_producer_options` are those of `create_producer`.
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
        """Return `dead_letter_topic`, empty where it is not named."""
        return self.dead_letter_topic or ""

    def getInitialSubscriptionName(self) -> str:
        """Return `initial_subscription_name`, empty where there is none."""
        return self.initial_subscription_name or ""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Config):
    """Everything a consumer needs besides its client and its topics."""

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
        # Readers by range of keys are exclusive.
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
    """Everything a reader needs besides its client."""

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
        """The topics to read, whether one or several are given."""
        if isinstance(self.topic, str):
            return [self.topic]
        return list(self.topic) if isinstance(self.topic, list | tuple) else []


# --- the official client's spelling of policies -----------------------------------------------------------------------


class ConsumerBatchReceivePolicy(BatchReceivePolicy):
    """When `batch_receive` returns: messages, bytes or milliseconds, whichever is first; 0 is no limit."""

    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        super().__init__(max_num_message, max_num_bytes, timeout_ms)

    def __eq__(self, other: object) -> bool:
        return self.policy() == (other.policy() if isinstance(other, ConsumerBatchReceivePolicy) else other)

    __hash__ = BatchReceivePolicy.__hash__

    def policy(self) -> BatchReceivePolicy:
        """Return the plain policy."""
        return BatchReceivePolicy(self.max_num_messages, self.max_num_bytes, self.timeout_ms)


class ConsumerDeadLetterPolicy(DeadLetterPolicy):
    """Where a message goes after so many redeliveries, at least 1; see `DeadLetterPolicy`."""

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
    """How a Key_Shared subscription divides its keys; `sticky_ranges` are pairs of hashes, 0 to 65535."""

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
    """Put a `DeadLetterPolicy` together step by step, as the official client's builder does."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._topic: str | None = None
        self._subscription: str | None = None

    def maxRedeliverCount(self, maxRedeliverCount: int) -> Self:
        """Set after how many redeliveries a message goes to the dead-letter topic; at least 1."""
        self._count = maxRedeliverCount
        return self

    def deadLetterTopic(self, deadLetterTopic: str) -> Self:
        """Name the dead-letter topic."""
        self._topic = deadLetterTopic
        return self

    def initialSubscriptionName(self, initialSubscriptionName: str) -> Self:
        """Name the subscription that is created together with the dead-letter topic."""
        self._subscription = initialSubscriptionName
        return self

    def build(self) -> DeadLetterPolicy:
        """Return the policy; raises `InvalidConfiguration` without a count of at least 1."""
        if self._count is None:
            raise InvalidConfiguration("a dead-letter policy needs maxRedeliverCount, at least 1")
        return DeadLetterPolicy(
            max_redeliver_count=self._count,
            dead_letter_topic=self._topic,
            initial_subscription_name=self._subscription,
        )
