"""Configuration of a consumer, and the listeners it may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pulsar_native._type_names import type_name
from pulsar_native.config.base import (
    MAX_I32,
    MAX_I64,
    MAX_U64,
    Config,
    check_encodable,
    check_integer,
    check_key_reader,
    check_number,
    check_strings,
    check_texts,
    is_coroutine_function,
    require,
)
from pulsar_native.config.policies import (
    BatchReceivePolicy,
    DeadLetterPolicy,
    KeySharedPolicy,
    RedeliveryBackoff,
    TopicConfiguration,
)
from pulsar_native.crypto import KeyReader
from pulsar_native.enums import (
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message_id import MessageId
from pulsar_native.payload_processor import MessagePayloadProcessor
from pulsar_native.topic import TopicName

if TYPE_CHECKING:
    from pulsar_native.message import Message


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


class MessageListenerExecutor(Protocol):
    """Executor of a message listener's calls: decides on which thread each one runs (Java: MessageListenerExecutor).

    `execute` is called for one message of a consumer after the other, in their order, on a listener thread, and must
    have `runnable` called once, at any time, in any thread, or in this one. Calls that run at the same time are not in
    order: an executor that keeps the order of keys runs those of one `message.partition_key()` one after the other.
    """

    def execute(self, message: Message[Any], runnable: Callable[[], None]) -> Any: ...


_USUAL_LIMITS = BatchReceivePolicy()


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Config):
    """Configuration of a consumer, without its topics. Immutable, picklable.

    Raises `InvalidConfiguration` for a value of another type or out of range.

    :param subscription_name: the subscription; created if it does not exist.
    :param consumer_type: a `ConsumerType`. Default Exclusive: a second consumer raises `ConsumerBusy`.
    :param subscription_mode: a `SubscriptionMode`. Default Durable. `NonDurable` leaves nothing at the broker once its
        last consumer is closed; after a lost connection or an unload it continues behind the last message that was
        received, acknowledged or not. `NotAllowedError` if a durable subscription has the name.
    :param initial_position: position of a subscription that does not exist yet: `Latest` (default) or `Earliest`.
    :param receiver_queue_size: number of messages that the broker sends ahead of `receive`, at least 0. Default 1000.
        With 0 each `receive` requests one message; one topic without partitions, no `batch_receive`.
    :param max_total_receiver_queue_size_across_partitions: the same number over all partitions, each of which gets an
        equal share of at least 1. Default 50000.
    :param auto_scaled_receiver_queue_size_enabled: True begins with a queue of 1, which grows to `receiver_queue_size`
        as needed and counts against the client's `memory_limit_bytes` (PIP-74). Default False.
    :param start_paused: True subscribes as if `pause()` had been called: no message is requested, of topics that are
        added later neither, until `resume()`. Default False.
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
    :param dead_letter_policy: a `DeadLetterPolicy`. Default None. The broker counts redeliveries on Shared and
        Key_Shared subscriptions only: on Exclusive and Failover ones the policy has no effect, which a warning says at
        `subscribe`, unless `enable_retry` is True; then `reconsume_later` counts, negative acknowledgements do not.
    :param enable_retry: True subscribes to the retry topic too and allows `reconsume_later`, whose copies are counted,
        with every type of subscription. Default False.
    :param is_read_compacted: True reads the compacted topic: of each key the newest message. Persistent topics,
        Exclusive and Failover subscriptions. Default False.
    :param properties: metadata of the consumer, shown in the topic's statistics. Default none.
    :param subscription_properties: metadata of a subscription that this consumer creates. Default none.
    :param priority_level: level for dispatching, at least 0; 0 is served first. Default 0.
    :param topic_configurations: a list of `TopicConfiguration` with options of single topics; the first one that
        matches a topic counts. Default none.
    :param message_payload_processor: a `MessagePayloadProcessor`, whose `process` reads the messages of each entry, for
        topics with entries of another format than Pulsar's (PIP-96). Default None.
    :param key_shared_policy: a `KeySharedPolicy`; without effect on other subscriptions than Key_Shared ones, of which
        `subscribe` warns. Default None: AutoSplit.
    :param replicate_subscription_state_enabled: True replicates the subscription's position to other clusters (PIP-33).
        Default False.
    :param start_message_id: position of a reader's subscription. Default None: not a reader's.
    :param start_message_id_inclusive: True includes the message at the start position, and at the target of `seek`.
        Default False.
    :param crypto_key_reader: a `KeyReader` with the private keys. Default None.
    :param crypto_failure_action: action for a message that cannot be decrypted: `FAIL` (default) logs an error and
        leaves it unacknowledged, `DISCARD` acknowledges and skips it, `CONSUME` returns it encrypted. The first two do
        not return it; `ConsumerStats.total_decryption_failed` counts them.
    :param batch_receive_policy: limits of `batch_receive`. Default None: 10 MiB or 100 ms.
    :param pattern_auto_discovery_period: seconds between two listings of the topics of a pattern, at least 1 (smaller
        values count as 1), beside the broker's own notifications (PIP-145). Default 60.
    :param regex_subscription_mode: domain of the topics a pattern matches; without effect on other topics, of which
        `subscribe` warns. Default PersistentOnly.
    :param max_pending_chunked_message: number of incomplete chunked messages that are kept; one more drops the oldest.
        Default 10; 0 for no limit.
    :param auto_ack_oldest_chunked_message_on_queue_full: True acknowledges the dropped one. Default False: the broker
        redelivers it.
    :param expire_time_of_incomplete_chunked_message_ms: milliseconds without a further chunk after which an incomplete
        chunked message is dropped and acknowledged; time in which none can come (no connection, no permits) does not
        count. Default 60000; 0 for never.
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
    start_paused: bool = False
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
    topic_configurations: Sequence[TopicConfiguration] = ()
    message_payload_processor: MessagePayloadProcessor | None = None
    key_shared_policy: KeySharedPolicy | None = None
    replicate_subscription_state_enabled: bool = False
    start_message_id: MessageId | None = None
    start_message_id_inclusive: bool = False
    crypto_key_reader: KeyReader | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    batch_receive_policy: BatchReceivePolicy = _USUAL_LIMITS
    pattern_auto_discovery_period: float = 60
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    max_pending_chunked_message: int = 10
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    expire_time_of_incomplete_chunked_message_ms: int = 60_000
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: float = 60

    def __post_init__(self) -> None:
        changed = self._check_options(_CHECKS)
        if "consumer_name" in changed:
            check_texts(self, "consumer_name")
        if not _REDELIVERY.isdisjoint(changed):
            self._check_redelivery()
        if "key_shared_policy" in changed:
            self._check_key_shared()
        require(
            self.receiver_queue_size > 0 or not self.auto_scaled_receiver_queue_size_enabled,
            "auto_scaled_receiver_queue_size_enabled needs a receiver_queue_size above 0, which it scales up to",
        )
        require(
            not self.is_read_compacted or self.consumer_type in (ConsumerType.Exclusive, ConsumerType.Failover),
            "is_read_compacted needs an Exclusive or Failover subscription",
        )

    @property
    def is_reader(self) -> bool:
        """True for the consumer of a reader, which acknowledges by itself and is alone on its subscription."""
        return self.start_message_id is not None

    @property
    def start(self) -> MessageId | None:
        """Position that a non-durable subscription starts at; None for a durable one, which the broker stores."""
        if self.start_message_id is not None or self.subscription_mode is SubscriptionMode.Durable:
            return self.start_message_id
        return MessageId.earliest if self.initial_position is InitialPosition.Earliest else MessageId.latest

    @property
    def applied_key_shared_policy(self) -> KeySharedPolicy | None:
        """Policy that the broker applies: of a Key_Shared subscription, or of a reader with `key_hash_range`."""
        is_applied = self.consumer_type is ConsumerType.KeyShared or self.is_reader
        return self.key_shared_policy if is_applied else None

    def priority_level_of(self, topic: str) -> int:
        """Return the level of a topic or partition, by its full name."""
        if self.topic_configurations:
            name = TopicName.parse(topic)
            for each in self.topic_configurations:
                if each.matches(name):
                    return self.priority_level if each.priority_level is None else each.priority_level
        return self.priority_level

    def _check_key_shared(self) -> None:
        policy = self.key_shared_policy
        if policy is not None and not isinstance(policy, KeySharedPolicy):
            raise InvalidConfiguration(
                f"key_shared_policy must be a ConsumerKeySharedPolicy (or KeySharedPolicy), not {type_name(policy)}"
            )

    def _check_redelivery(self) -> None:
        if self.unacked_messages_timeout_ms:
            check_number("unacked_messages_timeout_ms", self.unacked_messages_timeout_ms, 1000, MAX_U64)
            check_number(
                "unacked_messages_tick_ms", self.unacked_messages_tick_ms, 100, self.unacked_messages_timeout_ms
            )
        require(
            self.ack_timeout_redelivery_backoff is None or bool(self.unacked_messages_timeout_ms),
            "ack_timeout_redelivery_backoff needs unacked_messages_timeout_ms",
        )


def _check_subscription_name(name: str, value: object) -> None:
    require(isinstance(value, str) and bool(value.strip()), f"a consumer needs a non-blank {name}")
    check_encodable(name, str(value))


def _check_precision(name: str, value: object) -> None:
    check_number(name, value, 0, 30)
    require(isinstance(value, int), f"{name} must be a number of bits")


def _check_backoff(name: str, value: object) -> None:
    method = getattr(value, "next", None)
    require(
        value is None or (callable(method) and not isinstance(value, type) and not is_coroutine_function(method)),
        f"{name} needs a method next(redelivery_count), not a coroutine, as MultiplierRedeliveryBackoff has",
    )


def _check_batch_receive_policy(name: str, value: object) -> None:
    require(
        isinstance(value, BatchReceivePolicy),
        f"{name} must be a ConsumerBatchReceivePolicy (or BatchReceivePolicy), not {type_name(value)}",
    )


def _check_processor(name: str, value: object) -> None:
    method = getattr(value, "process", None)
    require(
        value is None or (callable(method) and not isinstance(value, type) and not is_coroutine_function(method)),
        f"{name} needs a method process(payload, context), not a coroutine, as a MessagePayloadProcessor has",
    )


def _check_topic_configurations(name: str, value: object) -> None:
    require(
        isinstance(value, list | tuple) and all(isinstance(each, TopicConfiguration) for each in value),
        f"{name} must be a list of TopicConfiguration, not {value!r}",
    )


def _check_dead_letter_policy(name: str, value: object) -> None:
    require(
        value is None or isinstance(value, DeadLetterPolicy),
        f"{name} must be a ConsumerDeadLetterPolicy (or DeadLetterPolicy), not {type_name(value)}",
    )


_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "subscription_name": _check_subscription_name,
    "receiver_queue_size": partial(check_integer, minimum=0, maximum=MAX_I32),
    "max_total_receiver_queue_size_across_partitions": partial(check_integer, minimum=1, maximum=MAX_I32),
    "negative_ack_redelivery_delay_ms": partial(check_integer, minimum=0, maximum=MAX_I64),
    "negative_ack_redelivery_delay_precision": _check_precision,
    "negative_ack_redelivery_backoff": _check_backoff,
    "ack_timeout_redelivery_backoff": _check_backoff,
    "unacked_messages_tick_ms": partial(check_number, minimum=100),
    "acknowledgment_group_time_ms": partial(check_number, minimum=0),
    "max_acknowledgment_group_size": partial(check_integer, minimum=1),
    "dead_letter_policy": _check_dead_letter_policy,
    "properties": check_strings,
    "subscription_properties": check_strings,
    "priority_level": partial(check_integer, minimum=0, maximum=MAX_I32),
    "topic_configurations": _check_topic_configurations,
    "message_payload_processor": _check_processor,
    "crypto_key_reader": check_key_reader,
    "batch_receive_policy": _check_batch_receive_policy,
    "pattern_auto_discovery_period": partial(check_number, minimum=0),
    "max_pending_chunked_message": partial(check_integer, minimum=0, maximum=MAX_U64),
    "expire_time_of_incomplete_chunked_message_ms": partial(check_number, minimum=0),
    "auto_update_partitions_interval_seconds": partial(check_number, minimum=0.001),
}
# Options whose values are checked against each other.
_REDELIVERY = frozenset({"unacked_messages_timeout_ms", "unacked_messages_tick_ms", "ack_timeout_redelivery_backoff"})
