"""Keyword options that the methods of both APIs share, beside the official client's parameters.

Rules: each class has the options that one method hands to its configuration as they are (`Unpack`, PEP 692): types are
here, defaults and descriptions at the configuration's fields. Options that are no fields of the configuration, such as
`interceptors`, and those for which None means the default, are parameters of the methods.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict

from pulsar_native._option_docs import parameters
from pulsar_native.config import Range, RedeliveryBackoff, TopicConfiguration
from pulsar_native.crypto import KeyReader
from pulsar_native.enums import (
    ConsumerCryptoFailureAction,
    HashingScheme,
    ProducerCryptoFailureAction,
    ProxyProtocol,
    SubscriptionMode,
)
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.payload_processor import MessagePayloadProcessor

if TYPE_CHECKING:
    import ssl


class ClientOptions(TypedDict, total=False):
    """Options of `Client`, with the Java client's names; described at `ClientConfig`."""

    connections_per_broker: int
    keep_alive_interval_seconds: float
    max_lookup_redirects: int
    max_lookup_requests: int
    max_number_of_rejected_request_per_connection: int
    connection_max_idle_seconds: float
    service_url_quarantine_init_duration_seconds: float
    service_url_quarantine_max_duration_seconds: float
    tls_context: ssl.SSLContext | None
    memory_limit_bytes: int
    starting_backoff_interval_ms: int
    max_backoff_interval_ms: int
    description: str | None
    proxy_service_url: str | None
    proxy_protocol: ProxyProtocol
    socks5_proxy_address: str | None
    socks5_proxy_username: str | None
    socks5_proxy_password: str | Callable[[], str] | None
    meter_provider: object


class ProducerOptions(TypedDict, total=False):
    """Options of `create_producer`, with the Java client's names; described at `ProducerConfig`."""

    hashing_scheme: HashingScheme
    compression_min_msg_body_size: int
    chunk_max_message_size: int
    crypto_failure_action: ProducerCryptoFailureAction
    auto_update_partitions: bool
    auto_update_partitions_interval_seconds: float


class ConsumerOptions(TypedDict, total=False):
    """Options of `subscribe`, with the Java client's names; described at `ConsumerConfig`."""

    acknowledgment_group_time_ms: int
    max_acknowledgment_group_size: int
    ack_receipt_enabled: bool
    unacked_messages_tick_ms: int
    ack_timeout_redelivery_backoff: RedeliveryBackoff | None
    negative_ack_redelivery_backoff: RedeliveryBackoff | None
    negative_ack_redelivery_delay_precision: int
    enable_retry: bool
    subscription_mode: SubscriptionMode
    start_paused: bool
    priority_level: int
    topic_configurations: Sequence[TopicConfiguration]
    message_payload_processor: MessagePayloadProcessor | None
    expire_time_of_incomplete_chunked_message_ms: int
    auto_update_partitions: bool
    auto_update_partitions_interval_seconds: float
    auto_scaled_receiver_queue_size_enabled: bool


class ReaderOptions(TypedDict, total=False):
    """Options of `create_reader`, with the Java client's names; described at `ReaderConfig`."""

    subscription_name: str | None
    auto_scaled_receiver_queue_size_enabled: bool
    auto_update_partitions: bool
    auto_update_partitions_interval_seconds: float
    max_pending_chunked_message: int
    auto_ack_oldest_chunked_message_on_queue_full: bool
    expire_time_of_incomplete_chunked_message_ms: int
    key_hash_range: Sequence[Range] | None


class TableViewOptions(TypedDict, total=False):
    """Options of `create_table_view`, with the Java client's names; described at `ReaderConfig`."""

    auto_update_partitions_interval_seconds: float
    crypto_key_reader: KeyReader | None
    crypto_failure_action: ConsumerCryptoFailureAction


class MessageOptions(TypedDict, total=False):
    """Options of `send`, for the type of a message with a schema of its own; described at `NewMessage`."""

    properties: Mapping[str, str] | None
    partition_key: str | bytes | None
    ordering_key: str | None
    sequence_id: int | None
    replication_clusters: list[str] | None
    disable_replication: bool
    event_timestamp: int | None
    deliver_at: int | None
    deliver_after: timedelta | int | None


def check_names(method: Callable[..., object], options: Mapping[str, object], known: frozenset[str]) -> None:
    """Raise `InvalidConfiguration`, which is a TypeError, for a keyword argument that a method does not have.

    The configurations have more fields than the methods have options, so that their own check is not enough.

    :param method: the method, or the class; its own parameters are suggested too.
    :param options: keyword arguments that are none of these.
    :param known: names of the options, the `__optional_keys__` of a class of this module.
    """
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, [*parameters(method), *known], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidConfiguration(f"{method.__name__}() got an unexpected keyword argument {name!r}{hint}")
