"""What both faces do with their callers' arguments: checking them, and turning a message's parts into what is sent.

Rules: everything is checked here, before anything is sent or lost. Options of the official client that this version
cannot honour are refused by name rather than ignored.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pulsar_native.config import BatchReceivePolicy, ConsumerConfig, ReaderConfig
from pulsar_native.enums import BatchingType, InitialPosition, SubscriptionMode
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage, OperationNotSupported
from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.wire.codec import encode_single_fields

_MAX_U64 = (1 << 64) - 1
_MAX_I64 = (1 << 63) - 1


def refuse_unsupported(options: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise for the first option that has another value than the one this version supports."""
    for name, (value, supported) in options.items():
        if value != supported:
            raise OperationNotSupported(
                f"{name}={value!r} is not supported by this version of pulsar_native; leave it at {supported!r}"
            )


def refuse_producer_options(
    *,
    chunking_enabled: bool,
    lazy_start_partitioned_producers: bool,
    batching_type: BatchingType,
    encryption_key: str | None,
    crypto_key_reader: object,
) -> None:
    """Raise for producer options of the official client that are not there yet."""
    refuse_unsupported(
        {
            "chunking_enabled": (chunking_enabled, False),
            "lazy_start_partitioned_producers": (lazy_start_partitioned_producers, False),
            "batching_type": (batching_type, BatchingType.Default),
            "encryption_key": (encryption_key, None),
            "crypto_key_reader": (crypto_key_reader, None),
        }
    )


def topics_of(topic: str | Sequence[str] | re.Pattern[str]) -> list[str]:
    """Return the topics to subscribe to; a pattern is refused."""
    if isinstance(topic, str):
        return [topic]
    if isinstance(topic, re.Pattern):
        raise OperationNotSupported("Subscribing by pattern is not supported by this version; pass a list of topics")
    if not isinstance(topic, list | tuple) or not all(isinstance(name, str) for name in topic):
        raise InvalidConfiguration("topic must be a str or a list of str")
    return list(topic)


def reader_config(config: ReaderConfig) -> ConsumerConfig:
    """Return the consumer behind a reader: non-durable, exclusive, with a name nobody else has."""
    if not isinstance(config.start_message_id, MessageId):
        raise InvalidConfiguration("start_message_id must be a MessageId, such as MessageId.earliest")
    return ConsumerConfig(
        subscription_name=_reader_subscription(config.subscription_role_prefix),
        subscription_mode=SubscriptionMode.NonDurable,
        # An id behind the end is resolved by this: "latest" must mean latest.
        initial_position=InitialPosition.Latest,
        receiver_queue_size=config.receiver_queue_size,
        consumer_name=config.reader_name,
        is_read_compacted=config.is_read_compacted,
        start_message_id=config.start_message_id,
        start_message_id_inclusive=config.start_message_id_inclusive,
    )


def _reader_subscription(prefix: str | None) -> str:
    name = f"reader-{secrets.token_hex(5)}"
    return f"{prefix}-{name}" if prefix else name


def outgoing(
    payload: bytes | None,
    *,
    properties: Mapping[str, str] | None,
    partition_key: str | bytes | None,
    ordering_key: str | None,
    sequence_id: int | None,
    replication_clusters: list[str] | None,
    disable_replication: bool,
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | int | None,
) -> OutgoingMessage:
    """Check the parts of a message and put them together; None as payload is a null value."""
    _check_parts(properties, partition_key, ordering_key, sequence_id, event_timestamp)
    _check_clusters(replication_clusters)
    if disable_replication and replication_clusters:
        raise InvalidMessage("disable_replication and replication_clusters exclude each other")
    is_bytes = isinstance(partition_key, bytes)
    return OutgoingMessage(
        payload if payload is not None else b"",
        properties=properties,
        partition_key=base64.b64encode(partition_key).decode() if isinstance(partition_key, bytes) else partition_key,
        key_is_base64=is_bytes,
        ordering_key=ordering_key,
        sequence_id=sequence_id,
        replicate_to=["__local__"] if disable_replication else replication_clusters,
        event_timestamp=event_timestamp,
        deliver_at=_delivery_time(deliver_at, deliver_after),
        null_value=payload is None,
    )


def _check_parts(
    properties: Mapping[str, str] | None,
    partition_key: object,
    ordering_key: object,
    sequence_id: int | None,
    event_timestamp: int | None,
) -> None:
    if properties is not None and not (
        isinstance(properties, Mapping)
        and all(isinstance(key, str) and isinstance(value, str) for key, value in properties.items())
    ):
        raise InvalidMessage("properties must be a mapping of str to str")
    if partition_key is not None and not isinstance(partition_key, str | bytes):
        raise InvalidMessage(f"partition_key must be str or bytes, not {type(partition_key).__name__}")
    if ordering_key is not None and not isinstance(ordering_key, str):
        raise InvalidMessage(f"ordering_key must be str, not {type(ordering_key).__name__}")
    # The broker compares sequence ids as signed numbers.
    _whole_number("sequence_id", sequence_id, _MAX_I64)
    _whole_number("event_timestamp", event_timestamp, _MAX_U64)


def _whole_number(name: str, number: object, maximum: int) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= maximum:
        raise InvalidMessage(f"{name} must be a non-negative int up to {maximum}, not {number!r}")


def _check_clusters(clusters: object) -> None:
    if clusters is None:
        return
    if not isinstance(clusters, list | tuple) or not all(isinstance(name, str) for name in clusters):
        raise InvalidMessage("replication_clusters must be a list of str")


def _delivery_time(deliver_at: int | None, deliver_after: timedelta | int | None) -> int | None:
    if deliver_after is None:
        _whole_number("deliver_at", deliver_at, _MAX_I64)
        return deliver_at
    if deliver_at is not None:
        raise InvalidMessage("deliver_at and deliver_after exclude each other")
    if isinstance(deliver_after, timedelta):
        deliver_after = int(deliver_after.total_seconds() * 1000)
    if isinstance(deliver_after, bool) or not isinstance(deliver_after, int):
        raise InvalidMessage(f"deliver_after must be a timedelta or an int of milliseconds, not {deliver_after!r}")
    at = time.time_ns() // 1_000_000 + deliver_after
    _whole_number("deliver_after", at, _MAX_I64)
    return at


def encoded_fields(message: OutgoingMessage) -> bytes:
    """Return a message's optional fields as they stand in a batch."""
    return encode_single_fields(
        message.properties,
        message.partition_key,
        message.key_is_base64,
        message.ordering_key.encode() if message.ordering_key else None,
        message.event_timestamp or 0,
        message.null_value,
    )


def ids_of(messages: Message | MessageId | Sequence[Message | MessageId]) -> list[MessageId]:
    """Return the ids to acknowledge, of one message, one id, or a list of them."""
    if isinstance(messages, Message):
        return [messages.message_id()]
    if isinstance(messages, MessageId):
        return [messages]
    if not isinstance(messages, list | tuple):
        raise InvalidMessage(f"Expected a message, a message id or a list of them, not {type(messages).__name__}")
    return [ids_of(message)[0] for message in messages]


class BatchCollector:
    """Collect what one batch receive returns, until its policy is met. `now` is monotonic seconds."""

    __slots__ = ("_bytes", "_policy", "deadline", "messages")

    def __init__(self, policy: BatchReceivePolicy, now: float) -> None:
        self._policy = policy
        self._bytes = 0
        self.messages: list[Message] = []
        self.deadline = now + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None

    def add(self, message: Message) -> bool:
        """Take a message and return whether the batch is complete."""
        self.messages.append(message)
        self._bytes += len(message)
        policy = self._policy
        if 0 < policy.max_num_messages <= len(self.messages):
            return True
        return 0 < policy.max_num_bytes <= self._bytes
