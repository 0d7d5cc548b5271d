"""Descriptions of clients, producers, consumers and readers: what is asked for, checked, before anything starts.

Rules: every description is frozen and picklable, so that an Airflow connection or a Spark task can carry it; live
clients are made from it where they are used. Credentials travel by reference only (see `auth`): a description that
holds a literal secret refuses to be pickled. Validation happens here, at construction, and names the fix.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    SubscriptionMode,
)
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message_id import MessageId
from pulsar_native.service_url import ServiceUrl

MIB = 1024 * 1024


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


class Router(Protocol):
    """Choose the partition of a message; an answer outside `0 <= n < num_partitions` is an error."""

    def __call__(self, message: Any, num_partitions: int) -> int: ...


class _Description:
    """Common behaviour of the frozen descriptions: strict construction from a mapping, and changed copies."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Build the description from option names; an unknown name is an error that tells the nearest right one."""
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


def _strings(name: str, value: Mapping[str, str] | None) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise InvalidConfiguration(f"{name} must be a mapping of str to str")


@dataclass(frozen=True, kw_only=True)
class ClientConfig(_Description):
    """Everything a client needs to reach a cluster. Times are seconds unless the name says `_ms`."""

    service_url: str
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
    memory_limit_bytes: int = 64 * MIB
    starting_backoff_interval_ms: int = 100
    max_backoff_interval_ms: int = 60_000
    description: str | None = None

    def __post_init__(self) -> None:
        self.parsed_url()
        _number("operation_timeout_seconds", self.operation_timeout_seconds, 0.001)
        _number("connection_timeout_ms", self.connection_timeout_ms, 1)
        _number("message_listener_threads", self.message_listener_threads, 1, 1000)
        _number("io_threads", self.io_threads, 1)
        _number("concurrent_lookup_requests", self.concurrent_lookup_requests, 1)
        _number("connections_per_broker", self.connections_per_broker, 0)
        _number("max_lookup_redirects", self.max_lookup_redirects, 0)
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

    def parsed_url(self) -> ServiceUrl:
        """Return the service URL in parts; `use_tls=True` with a `pulsar://` URL means `pulsar+ssl://`."""
        url = ServiceUrl.parse(self.service_url)
        return ServiceUrl("pulsar+ssl", url.addresses) if self.use_tls else url


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(_Description):
    """Everything a producer needs besides its client. Sizes are bytes of the uncompressed messages."""

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
    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    message_router: Router | None = None
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    round_robin_partition_switch_frequency: int = 10
    properties: Mapping[str, str] = field(default_factory=dict)
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: float = 60

    def __post_init__(self) -> None:
        _require(isinstance(self.topic, str) and bool(self.topic.strip()), "a producer needs a topic")
        _require(
            self.producer_name is None or (isinstance(self.producer_name, str) and bool(self.producer_name.strip())),
            "producer_name must be None or a non-blank str: the broker would take '' for the name itself",
        )
        _number("send_timeout_millis", self.send_timeout_millis, 0)
        _number("max_pending_messages", self.max_pending_messages, 0)
        _number("max_pending_messages_across_partitions", self.max_pending_messages_across_partitions, 0)
        _number("batching_max_messages", self.batching_max_messages, 1)
        _number("batching_max_allowed_size_in_bytes", self.batching_max_allowed_size_in_bytes, 1)
        _number("batching_max_publish_delay_ms", self.batching_max_publish_delay_ms, 1)
        _number("round_robin_partition_switch_frequency", self.round_robin_partition_switch_frequency, 1)
        _number("auto_update_partitions_interval_seconds", self.auto_update_partitions_interval_seconds, 0.001)
        _number("compression_min_msg_body_size", self.compression_min_msg_body_size, 0)
        if self.initial_sequence_id is not None:
            _number("initial_sequence_id", self.initial_sequence_id, -1)
        _strings("properties", self.properties)
        custom = self.message_routing_mode == PartitionsRoutingMode.CustomPartition
        _require(not custom or self.message_router is not None, "CustomPartition routing needs a message_router")
        _require(self.message_router is None or callable(self.message_router), "message_router must be callable")


@dataclass(frozen=True, kw_only=True)
class BatchReceivePolicy(_Description):
    """When `batch_receive` returns: enough messages, enough bytes, or after the time, whichever is first.

    A limit of 0 or less is off; at least one must be on.
    """

    max_num_messages: int = -1
    max_num_bytes: int = 10 * MIB
    timeout_ms: int = 100

    def __post_init__(self) -> None:
        _require(
            self.max_num_messages > 0 or self.max_num_bytes > 0 or self.timeout_ms > 0,
            "a batch receive policy needs at least one of max_num_messages, max_num_bytes and timeout_ms",
        )


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(_Description):
    """Everything a consumer needs besides its client and its topics."""

    subscription_name: str
    consumer_type: ConsumerType = ConsumerType.Exclusive
    subscription_mode: SubscriptionMode = SubscriptionMode.Durable
    initial_position: InitialPosition = InitialPosition.Latest
    receiver_queue_size: int = 1000
    max_total_receiver_queue_size_across_partitions: int = 50_000
    consumer_name: str | None = None
    unacked_messages_timeout_ms: int | None = None
    unacked_messages_tick_ms: int = 1000
    negative_ack_redelivery_delay_ms: int = 60_000
    acknowledgment_group_time_ms: int = 100
    max_acknowledgment_group_size: int = 1000
    batch_index_ack_enabled: bool = False
    is_read_compacted: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    priority_level: int = 0
    replicate_subscription_state_enabled: bool = False
    start_message_id: MessageId | None = None
    start_message_id_inclusive: bool = False
    batch_receive_policy: BatchReceivePolicy = field(default_factory=BatchReceivePolicy)
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: float = 60

    def __post_init__(self) -> None:
        _require(
            isinstance(self.subscription_name, str) and bool(self.subscription_name.strip()),
            "a consumer needs a non-blank subscription_name",
        )
        _number("receiver_queue_size", self.receiver_queue_size, 1)
        _number(
            "max_total_receiver_queue_size_across_partitions", self.max_total_receiver_queue_size_across_partitions, 1
        )
        _number("negative_ack_redelivery_delay_ms", self.negative_ack_redelivery_delay_ms, 0)
        _number("acknowledgment_group_time_ms", self.acknowledgment_group_time_ms, 0)
        _number("max_acknowledgment_group_size", self.max_acknowledgment_group_size, 1)
        _number("priority_level", self.priority_level, 0)
        _number("auto_update_partitions_interval_seconds", self.auto_update_partitions_interval_seconds, 0.001)
        _strings("properties", self.properties)
        _strings("subscription_properties", self.subscription_properties)
        if self.unacked_messages_timeout_ms:
            _number("unacked_messages_timeout_ms", self.unacked_messages_timeout_ms, 1000)
            _number("unacked_messages_tick_ms", self.unacked_messages_tick_ms, 100, self.unacked_messages_timeout_ms)
        _require(
            not self.is_read_compacted or self.consumer_type in (ConsumerType.Exclusive, ConsumerType.Failover),
            "is_read_compacted needs an Exclusive or Failover subscription",
        )


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(_Description):
    """Everything a reader needs besides its client."""

    topic: str
    start_message_id: MessageId
    start_message_id_inclusive: bool = False
    receiver_queue_size: int = 1000
    reader_name: str | None = None
    subscription_role_prefix: str | None = None
    is_read_compacted: bool = False

    def __post_init__(self) -> None:
        _require(isinstance(self.topic, str) and bool(self.topic.strip()), "a reader needs a topic")
        _number("receiver_queue_size", self.receiver_queue_size, 1)
