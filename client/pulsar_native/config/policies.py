"""Policies of consumers: key ranges, redelivery back-off, limits of a batch receive, dead-letter and retry topics,
options of single topics.

Key ranges: the broker hashes a message's ordering key, or its key if it has none, by Murmur3 to 0..65535; both bounds
of a range are included. Ranges of one consumer may not overlap; the broker compares those of different consumers.
Delays of a redelivery back-off are milliseconds, as in the Java client, so that its settings can be copied.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, Self

from pulsar_native.config.base import MAX_I32, MAX_I64, Config, check_encodable, check_integer, require
from pulsar_native.config.producer import ProducerConfig
from pulsar_native.enums import KeySharedMode
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.topic import TopicName

# --- key ranges -------------------------------------------------------------------------------------------------------

MAX_HASH = 65_535

Range = tuple[int, int]
"""First and last hash, both included."""


@dataclass(frozen=True, kw_only=True)
class KeySharedPolicy:
    """Assignment of keys to the consumers of a Key_Shared subscription (PIP-34); the same for all of its consumers.

    Immutable. Raises `InvalidConfiguration` for `Sticky` without ranges.

    :param key_shared_mode: `AutoSplit` (default), the broker assigns hashes to consumers; or `Sticky`, each consumer
        gets the keys whose hash is in its `sticky_ranges`, and messages of hashes that no consumer has wait.
    :param allow_out_of_order_delivery: True lets redelivered messages of a key arrive after newer ones, so that a slow
        consumer does not block a new one. Default False.
    :param sticky_ranges: pairs (first, last) of hashes, 0 to 65535, both bounds included, without overlap. With
        `AutoSplit` they have no effect, of which `subscribe` warns. Default none.
    """

    key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit
    allow_out_of_order_delivery: bool = False
    # Always a list once checked.
    sticky_ranges: Sequence[Range] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.key_shared_mode, KeySharedMode):
            raise InvalidConfiguration(
                f"key_shared_mode must be KeySharedMode.AutoSplit or KeySharedMode.Sticky, not {self.key_shared_mode!r}"
            )
        if not isinstance(self.allow_out_of_order_delivery, bool):
            raise InvalidConfiguration("allow_out_of_order_delivery must be True or False")
        ranges: Sequence[Range] = () if self.sticky_ranges is None else self.sticky_ranges
        if ranges or self.key_shared_mode is KeySharedMode.Sticky:
            ranges = checked_ranges("sticky_ranges", ranges)
        object.__setattr__(self, "sticky_ranges", list(ranges))

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
    negatively acknowledged by its id alone counts as never redelivered. What it raises is logged, at most once a minute
    for each partition, and so is a result that is negative, NaN or no number: the delay is then the configured
    `negative_ack_redelivery_delay_ms`, and none after an ack time-out.
    """

    def next(self, redelivery_count: int) -> float:
        """Return the delay in milliseconds before the next delivery of a message, at least 0; more than 2**63 - 1, and
        infinity, count as that.

        :param redelivery_count: number of redeliveries so far; 0 for a message that was delivered once.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class MultiplierRedeliveryBackoff:
    """Exponential redelivery back-off, Java's class of this name. Immutable, thread-safe.

    With the defaults, which are Java's, the delays are 10 s, 20 s, 40 s … 10 minutes. Raises `InvalidConfiguration`
    for values out of range, infinity among them.

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
            if not abs(value) < math.inf:
                raise InvalidConfiguration(f"{name} must be finite, not {value}")
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


# --- batch receive, dead letters --------------------------------------------------------------------------------------


MIB = 1024 * 1024


@dataclass(frozen=True)
class BatchReceivePolicy(Config):
    """Limits of one `batch_receive` call, which returns when the first one is reached. Immutable.

    A limit of 0 or less is off; `InvalidConfiguration` is raised if all of them are.

    :param max_num_messages: number of messages; of a consumer whose `receiver_queue_size` is smaller, that. Default -1.
    :param max_num_bytes: sum of the payloads in bytes; a message that would exceed it stays for the next call, a larger
        first message is returned alone. Default 10485760.
    :param timeout_ms: time since the call in milliseconds. Default 100.
    """

    max_num_messages: int = -1
    max_num_bytes: int = 10 * MIB
    timeout_ms: int = 100

    def __post_init__(self) -> None:
        for name, most in (("max_num_messages", MAX_I32), ("max_num_bytes", MAX_I32), ("timeout_ms", MAX_I64)):
            check_integer(name, getattr(self, name), -most - 1, most)
        require(
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
        With `batch_index_ack_enabled=True` the broker counts from 0 again whenever another message of the same batch
        is acknowledged, so that it may be redelivered more often.
    :param dead_letter_topic: the dead-letter topic. Default `{topic}-{subscription}-DLQ`, as in the Java client;
        without a retry topic, `{topic}` is the partition's name.
    :param retry_letter_topic: the retry topic. Default `{topic}-{subscription}-RETRY`. Consumers of one subscription
        that share it get each other's messages, and so need the same schema.
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
        check_integer("max_redeliver_count", self.max_redeliver_count, 1, MAX_I32)
        for name in ("dead_letter_topic", "retry_letter_topic", "initial_subscription_name"):
            value = getattr(self, name)
            blank = value is not None and not (isinstance(value, str) and value.strip())
            require(not blank, f"{name} must be None or a non-blank str")
        if self.initial_subscription_name is not None:
            check_encodable("initial_subscription_name", self.initial_subscription_name)
        for name in ("dead_letter_topic", "retry_letter_topic"):
            if getattr(self, name) is not None:
                TopicName.parse(getattr(self, name))
        for name in ("dead_letter_producer_options", "retry_letter_producer_options"):
            options = getattr(self, name)
            require(isinstance(options, Mapping), f"{name} must be a mapping of option names")
            require("topic" not in options, f"{name} cannot name the topic; the policy has a field for that")
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


# --- the official client's spelling of policies -----------------------------------------------------------------------


class ConsumerBatchReceivePolicy(BatchReceivePolicy):
    """Limits of one `batch_receive` call, with the official client's parameters; see `BatchReceivePolicy`.

    :param max_num_message: number of messages; of a consumer whose `receiver_queue_size` is smaller, that; 0 or less
        for no limit.
    :param max_num_bytes: sum of the payloads in bytes; a larger first message is alone; 0 or less for no limit.
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


def _unless_empty(text: str | None) -> str | None:
    """Return None for an empty str, which the official client takes for none."""
    return None if text == "" else text


class ConsumerDeadLetterPolicy(DeadLetterPolicy):
    """Dead-letter and retry topics of a consumer, with the official client's parameters; see `DeadLetterPolicy`.

    An empty `dead_letter_topic` or `initial_subscription_name` counts as None.
    """

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
            dead_letter_topic=_unless_empty(dead_letter_topic),
            initial_subscription_name=_unless_empty(initial_subscription_name),
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
            dead_letter_topic=_unless_empty(self._topic),
            initial_subscription_name=_unless_empty(self._subscription),
        )


# --- options of single topics -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TopicConfiguration(Config):
    """Options of those topics of a consumer that a name or a pattern matches (Java: topicConfiguration).

    Immutable, picklable. Raises `InvalidTopicName` for a name that is none, `InvalidConfiguration` for a value of
    another type or out of range.

    :param topic: name of a topic, for all its partitions, or of one partition; or a pattern made by `re.compile`, which
        must match a whole name with its domain, `persistent://tenant/namespace/topic`.
    :param priority_level: level for dispatching, at least 0; 0 is served first. Default None: the consumer's.
    """

    topic: str | re.Pattern[str]
    priority_level: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.topic, re.Pattern):
            require(isinstance(self.topic.pattern, str), "topic must be a pattern of str, not of bytes")
        else:
            require(
                isinstance(self.topic, str), f"topic must be a str or a re.Pattern, not {type(self.topic).__name__}"
            )
            TopicName.parse(self.topic)
        if self.priority_level is not None:
            check_integer("priority_level", self.priority_level, 0, MAX_I32)

    def matches(self, topic: TopicName) -> bool:
        """Return True if the options are a topic's or partition's."""
        names = {topic.full, topic.base.full}
        if isinstance(self.topic, str):
            return TopicName.parse(self.topic).full in names
        return any(map(self.topic.fullmatch, names))
