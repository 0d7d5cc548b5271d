"""Configuration of a producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pulsar_native.config.base import (
    MAX_I32,
    MAX_I64,
    MAX_U32,
    MAX_U64,
    Config,
    check_encodable,
    check_integer,
    check_key_reader,
    check_no_coroutine,
    check_number,
    check_strings,
    check_texts,
    check_topic,
    require,
)
from pulsar_native.crypto import KeyReader
from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerCryptoFailureAction,
)


class Router(Protocol):
    """Interface of message routers: return the partition of a message, `0 <= n < num_partitions`.

    Called in the thread that sends; it must not block. Any other result fails the send.
    """

    def __call__(self, message: Any, num_partitions: int) -> int: ...


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
        changed = self._check_options(_CHECKS)
        check_texts(self, *_TEXTS.intersection(changed))
        if self.chunking_enabled:
            self._check_chunking()
        if "message_routing_mode" in changed:
            custom = self.message_routing_mode == PartitionsRoutingMode.CustomPartition
            require(not custom or self.message_router is not None, "CustomPartition routing needs a message_router")
        if not _ENCRYPTION.isdisjoint(changed):
            self._check_encryption()

    @property
    def encryption_key_names(self) -> tuple[str, ...]:
        """Names of all public keys to encrypt for, without duplicates; empty if messages are not encrypted."""
        first = () if self.encryption_key is None else (self.encryption_key,)
        return tuple(dict.fromkeys((*first, *self.encryption_keys)))

    def _check_encryption(self) -> None:
        names = self.encryption_key_names
        require(
            all(isinstance(name, str) and bool(name) for name in names),
            "encryption_key and encryption_keys must be non-empty names",
        )
        for name in self.encryption_keys:
            check_encodable("encryption_keys", name)
        require(
            not names or self.crypto_key_reader is not None,
            "encryption_key needs a crypto_key_reader, for instance CryptoKeyReader(public_key_path, private_key_path)",
        )
        # The official client would send everything in the clear.
        require(
            bool(names) or self.crypto_key_reader is None,
            "a producer with a crypto_key_reader needs encryption_key, the name of the key to encrypt for; without it "
            "nothing would be encrypted",
        )

    def _check_chunking(self) -> None:
        require(
            not self.batching_enabled,
            "chunking_enabled and batching_enabled exclude each other: set batching_enabled=False",
        )
        require(not self.topic.startswith("non-persistent://"), "chunking_enabled needs a persistent topic")


def _check_topic(_name: str, value: object) -> None:
    check_topic(value, "a producer needs a topic")


def _check_sequence_id(name: str, value: object) -> None:
    if value is not None:
        check_integer(name, value, -1, MAX_I64)


def _check_router(name: str, value: object) -> None:
    require(value is None or callable(value), f"{name} must be callable")
    check_no_coroutine(name, value)


def _check_encryption_keys(name: str, value: object) -> None:
    require(
        not isinstance(value, str) and isinstance(value, Sequence | set | frozenset),
        f"{name} must be a list of str; for a single key there is encryption_key",
    )


_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "topic": _check_topic,
    "initial_sequence_id": _check_sequence_id,
    "send_timeout_millis": partial(check_integer, minimum=0, maximum=MAX_I32),
    "compression_min_msg_body_size": partial(check_integer, minimum=0),
    "max_pending_messages": partial(check_integer, minimum=0, maximum=MAX_I32),
    "max_pending_messages_across_partitions": partial(check_integer, minimum=0, maximum=MAX_I32),
    "batching_max_messages": partial(check_integer, minimum=1, maximum=MAX_U32),
    # With 0 bytes or milliseconds no message waits for another one.
    "batching_max_allowed_size_in_bytes": partial(check_integer, minimum=0, maximum=MAX_U64),
    "batching_max_publish_delay_ms": partial(check_number, minimum=0, maximum=MAX_U64),
    "chunk_max_message_size": partial(check_integer, minimum=-1),
    "message_router": _check_router,
    "round_robin_partition_switch_frequency": partial(check_number, minimum=1),
    "properties": check_strings,
    "encryption_keys": _check_encryption_keys,
    "crypto_key_reader": check_key_reader,
    "auto_update_partitions_interval_seconds": partial(check_number, minimum=0.001),
}
_TEXTS = frozenset({"producer_name", "encryption_key", "initial_subscription_name"})
# Options whose values are checked against each other.
_ENCRYPTION = frozenset({"encryption_key", "encryption_keys", "crypto_key_reader"})
