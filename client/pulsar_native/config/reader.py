"""Configuration of a reader, and of the consumer behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pulsar_native._type_names import type_name
from pulsar_native.config.base import (
    MAX_I32,
    Config,
    check_integer,
    check_key_reader,
    check_number,
    check_texts,
    check_topic,
    require,
)
from pulsar_native.config.consumer import ConsumerConfig
from pulsar_native.config.policies import KeySharedPolicy, Range, checked_ranges
from pulsar_native.crypto import KeyReader
from pulsar_native.enums import ConsumerCryptoFailureAction, InitialPosition, KeySharedMode, SubscriptionMode
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message_id import MessageId


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
    :param auto_scaled_receiver_queue_size_enabled: True begins with a queue of 1, which grows to `receiver_queue_size`
        as needed and counts against the client's `memory_limit_bytes` (PIP-74). Default False.
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
    :param auto_ack_oldest_chunked_message_on_queue_full: Java's option, without effect: a reader acknowledges no chunks
        of a message that is not complete. Default False.
    :param expire_time_of_incomplete_chunked_message_ms: milliseconds without a further chunk after which an incomplete
        chunked message is dropped; time in which none can come (no connection, no permits) does not count. Default
        60000; 0 for never.
    :param crypto_key_reader: a `KeyReader` with the private keys. Default None.
    :param crypto_failure_action: action for a message that cannot be decrypted: `FAIL` (default) logs an error,
        and does not return it; `DISCARD` skips it, `CONSUME` returns it encrypted. Ranges of columns raise
        `CryptoError` for the first.
    :param key_hash_range: pairs (first, last) of hashes, 0 to 65535, both bounds included, without overlap: only
        messages with a key in them are read. `has_message_available` counts the others, too: read with a time-out.
        Default None: all messages.
    """

    topic: str | Sequence[str]
    start_message_id: MessageId
    start_message_id_inclusive: bool = False
    receiver_queue_size: int = 1000
    auto_scaled_receiver_queue_size_enabled: bool = False
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
        topics = self.topics
        if not topics and not isinstance(self.topic, list | tuple):
            check_topic(self.topic, _NO_TOPIC)
        require(bool(topics), _NO_TOPIC)
        for name in topics:
            check_topic(name, _NO_TOPIC)
        if self._is_usual:
            return
        changed = self._check_options(_CHECKS)
        check_texts(self, *_TEXTS.intersection(changed))
        if self.key_hash_range is not None:
            object.__setattr__(self, "key_hash_range", checked_ranges("key_hash_range", self.key_hash_range))

    @property
    def topics(self) -> list[str]:
        """Topics to read, as a list."""
        if isinstance(self.topic, str):
            return [self.topic]
        return list(self.topic) if isinstance(self.topic, list | tuple) else []

    @property
    def _is_usual(self) -> bool:
        """True if nothing but the required options differs from the defaults."""
        return self._has_defaults_but(topic=self.topic, start_message_id=self.start_message_id)

    def consumer_config(self) -> ConsumerConfig:
        """Return the configuration of the reader's consumer: non-durable, exclusive, with a unique subscription name.

        Raises `InvalidConfiguration` for a start position that several topics cannot have.
        """
        if not isinstance(self.start_message_id, MessageId):
            raise InvalidConfiguration(
                "start_message_id must be a MessageId, such as MessageId.earliest, not "
                f"{type_name(self.start_message_id)}"
            )
        if len(set(self.topics)) > 1 and self.start_message_id not in (MessageId.earliest, MessageId.latest):
            raise InvalidConfiguration(
                "A reader of several topics starts at MessageId.earliest or MessageId.latest, as an id belongs to one "
                "of them; move each with seek(function) then"
            )
        if self._is_usual:
            # The usual reader: to check its consumer's options took a quarter of the time until its first request.
            return ConsumerConfig._of_valid(
                subscription_name=self._generated_name(),
                subscription_mode=SubscriptionMode.NonDurable,
                initial_position=InitialPosition.Latest,
                start_message_id=self.start_message_id,
                properties={},
                subscription_properties={},
            )
        return ConsumerConfig(
            subscription_name=self.subscription_name or self._generated_name(),
            subscription_mode=SubscriptionMode.NonDurable,
            # The broker uses this for a start id behind the end of the topic.
            initial_position=InitialPosition.Latest,
            receiver_queue_size=self.receiver_queue_size,
            auto_scaled_receiver_queue_size_enabled=self.auto_scaled_receiver_queue_size_enabled,
            consumer_name=self.reader_name,
            is_read_compacted=self.is_read_compacted,
            crypto_key_reader=self.crypto_key_reader,
            crypto_failure_action=self.crypto_failure_action,
            start_message_id=self.start_message_id,
            start_message_id_inclusive=self.start_message_id_inclusive,
            auto_update_partitions=self.auto_update_partitions,
            auto_update_partitions_interval_seconds=self.auto_update_partitions_interval_seconds,
            max_pending_chunked_message=self.max_pending_chunked_message,
            auto_ack_oldest_chunked_message_on_queue_full=self.auto_ack_oldest_chunked_message_on_queue_full,
            expire_time_of_incomplete_chunked_message_ms=self.expire_time_of_incomplete_chunked_message_ms,
            key_shared_policy=None
            if self.key_hash_range is None
            else KeySharedPolicy(key_shared_mode=KeySharedMode.Sticky, sticky_ranges=self.key_hash_range),
        )

    def _generated_name(self) -> str:
        name = f"reader-{os.urandom(5).hex()}"
        return f"{self.subscription_role_prefix}-{name}" if self.subscription_role_prefix else name


_NO_TOPIC = "a reader needs a topic, or a list of them"
_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "receiver_queue_size": partial(check_integer, minimum=0, maximum=MAX_I32),
    "auto_update_partitions_interval_seconds": partial(check_number, minimum=0.001),
    "crypto_key_reader": check_key_reader,
}
_TEXTS = frozenset({"reader_name", "subscription_role_prefix", "subscription_name"})
