"""Checks of the arguments that methods of both APIs take, before anything is sent or lost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pulsar_native._loggers import get_logger
from pulsar_native._message_checks import check_parts, whole_number
from pulsar_native._type_names import type_name
from pulsar_native.arrow.batch import ArrowBatch
from pulsar_native.config import (
    ConsumerConfig,
    ConsumerEventListener,
    MessageListenerExecutor,
    TopicsChangedListener,
)
from pulsar_native.config.base import MAX_I32, MAX_I64, check_function, check_integer, require
from pulsar_native.engine.client_context import ClientContext
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.transaction import TransactionWork
from pulsar_native.enums import ConsumerType, KeySharedMode, RegexSubscriptionMode
from pulsar_native.exceptions import (
    InvalidConfiguration,
    InvalidMessage,
    MessageTooBig,
    OperationNotSupported,
    PulsarException,
    WrongPartition,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.schema import BytesSchema, Schema

_BYTES = BytesSchema()
_log = get_logger("pulsar_native.consumer")


def checked_timeout(timeout: float | None) -> float | None:
    """Return the seconds closing may take, None for the operation time-out."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0):
        raise InvalidConfiguration(f"timeout must be seconds, 0 or more, or None; not {timeout!r}")
    return timeout


def is_argument_error(error: PulsarException) -> bool:
    """Return whether an error is about how a method was called, rather than about what became of the call."""
    of_the_call = isinstance(error, InvalidConfiguration | InvalidMessage)
    return of_the_call and not isinstance(error, MessageTooBig | WrongPartition)


def transaction_timeout(seconds: float) -> float:
    """Return a checked transaction time-out in seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.001 <= seconds <= 1e9:
        raise InvalidConfiguration(f"timeout_seconds must be a positive number of seconds, not {seconds!r}")
    return seconds


def work_of(transaction: object, client: ClientContext) -> TransactionWork:
    """Return the engine's part of a transaction; raise `InvalidConfiguration` if it belongs to another client."""
    work = getattr(transaction, "_work", None)
    if not isinstance(work, TransactionWork):
        raise InvalidConfiguration(f"txn must be what new_transaction() gave, not {type(transaction).__name__}")
    if work.client is not client:
        raise InvalidConfiguration(
            f"Transaction {work.core.txn_id} was begun by another client: begin it with the client that made the "
            "producer or consumer"
        )
    return work


def sending_work_of(transaction: object, producer: TopicProducer) -> TransactionWork:
    """Return the engine's part of a transaction for a producer; raise for a non-persistent topic."""
    work = work_of(transaction, producer.client)
    if not producer.topic.is_persistent:
        raise OperationNotSupported(
            "A non-persistent topic cannot take part in transactions: nothing of it is stored",
            topic=producer.topic.full,
        )
    return work


def ids_of(messages: Message | MessageId | Sequence[Message | MessageId] | ArrowBatch) -> list[MessageId]:
    """Return the message ids of a message, an id, or a list of these."""
    if isinstance(messages, Message):
        return [messages.message_id()]
    if isinstance(messages, MessageId):
        return [messages]
    if isinstance(messages, ArrowBatch):
        raise _whole_batch()
    if not isinstance(messages, list | tuple):
        raise InvalidMessage(f"Expected a message, a message id or a list of them, not {type_name(messages)}")
    return [ids_of(message)[0] for message in messages]


def _whole_batch() -> InvalidMessage:
    return InvalidMessage(
        "What receive_arrow returned is taken as a whole, by acknowledge(batch) and negative_acknowledge(batch): not "
        "in a list, cumulatively or in a transaction; use ids of messages for that"
    )


def id_of(message: Message | MessageId | ArrowBatch) -> MessageId:
    """Return the message id of a message or an id; raise `InvalidMessage` for a list or an Arrow batch."""
    if isinstance(message, Message):
        return message.message_id()
    if isinstance(message, MessageId):
        return message
    if isinstance(message, ArrowBatch):
        raise _whole_batch()
    raise InvalidMessage(f"Expected a message or a message id, not {type_name(message)}")


def messages_of(messages: Message | Sequence[Message]) -> list[Message]:
    """Return one message or a list of them as a list; raise `InvalidMessage` for ids, which cannot be republished."""
    given = [messages] if isinstance(messages, Message) else messages
    if not isinstance(given, list | tuple) or not all(isinstance(message, Message) for message in given):
        raise InvalidMessage(
            f"Expected a message or a list of messages, not {type_name(messages)}; an id is not enough to copy it"
        )
    return list(given)


def message_of(message: Message) -> Message:
    """Return the message; raise `InvalidMessage` for an id, which cannot be republished, and for several messages."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"Expected a message, not {type_name(message)}; an id is not enough to copy it")
    return message


def retry_delay(delay: timedelta | int) -> int:
    """Return the delay of a retry in milliseconds."""
    if isinstance(delay, timedelta):
        delay = int(delay.total_seconds() * 1000)
    whole_number("delay", delay, MAX_I64 >> 1)
    return delay


def retry_properties(properties: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the checked properties to add to a retried message."""
    check_parts(properties, None, None, None, None)
    return properties


def redelivery_count_of(message: Message | MessageId) -> int:
    """Return the redelivery count of a message, 0 for an id."""
    return message.redelivery_count() if isinstance(message, Message) else 0


def deadline(timeout_millis: int | None, now: float) -> float | None:
    """Return the deadline of a call on the clock of `now` (seconds), None for no time-out."""
    if timeout_millis is None:
        return None
    # The exact type first: this runs for each received message.
    if type(timeout_millis) is not int and (isinstance(timeout_millis, bool) or not isinstance(timeout_millis, int)):
        raise InvalidConfiguration(f"timeout_millis must be an int of milliseconds or None, not {timeout_millis!r}")
    if not -MAX_I32 - 1 <= timeout_millis <= MAX_I32:
        raise InvalidConfiguration(f"timeout_millis must be at most {MAX_I32}, or None; not {timeout_millis}")
    return now + timeout_millis / 1000


# --- subscriptions ----------------------------------------------------------------------------------------------------


def checked_schema(schema: object) -> Schema[Any]:
    """Return the schema of a producer or consumer, of bytes for None."""
    if schema is None:
        return _BYTES
    if not isinstance(schema, Schema):
        raise InvalidConfiguration(f"schema must be a Schema, such as StringSchema(), not {type_name(schema)}")
    return schema


def check_stats_cache_time(milliseconds: object) -> None:
    """Raise `InvalidConfiguration` unless an argument that has no effect has the right type all the same."""
    check_integer("broker_consumer_stats_cache_time_ms", milliseconds, float("-inf"), MAX_I64)


def checked_topics(
    topic: str | Sequence[str] | re.Pattern[str],
    config: ConsumerConfig,
    *,
    is_pattern: bool = False,
    listener: TopicsChangedListener | None = None,
) -> list[str] | TopicPattern:
    """Return the topics to subscribe to, or their pattern; raise `InvalidConfiguration` for contradicting options."""
    require(isinstance(is_pattern, bool), f"is_pattern_topic must be True or False, not {is_pattern!r}")
    if isinstance(topic, re.Pattern) or is_pattern:
        if not isinstance(topic, str | re.Pattern):
            raise InvalidConfiguration("A pattern and a list of topics exclude each other; pass one of them")
        if config.is_read_compacted and config.regex_subscription_mode is not RegexSubscriptionMode.PersistentOnly:
            raise InvalidConfiguration(
                "is_read_compacted needs persistent topics: RegexSubscriptionMode.PersistentOnly"
            )
        return TopicPattern.parse(topic)
    if config.regex_subscription_mode is not RegexSubscriptionMode.PersistentOnly:
        _log.warning(
            "regex_subscription_mode has no effect on the subscription %r, whose topic is no pattern: pass "
            "re.compile(...)",
            config.subscription_name,
        )
    if listener is not None:
        raise InvalidConfiguration("topics_changed_listener needs a pattern as the topic; pass re.compile(...)")
    names = topic if isinstance(topic, list) else [topic]
    for name in names:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise InvalidConfiguration(f"topic must be a str, a list of str, or a compiled pattern, not {kind}")
    return list(names)


def check_listener_executor(executor: MessageListenerExecutor | None, listener: object) -> None:
    """Raise `InvalidConfiguration` for an executor without a listener, or one that lacks its method."""
    if executor is None:
        return
    if listener is None:
        raise InvalidConfiguration("message_listener_executor needs a message_listener, whose calls it runs")
    check_function("message_listener_executor.execute", getattr(executor, "execute", None))


def check_event_listener(listener: ConsumerEventListener | None, config: ConsumerConfig) -> None:
    """Raise `InvalidConfiguration` for a listener that would never be called or lacks a method."""
    if listener is None:
        return
    if config.consumer_type is not ConsumerType.Failover:
        raise InvalidConfiguration("consumer_event_listener needs consumer_type=ConsumerType.Failover")
    for name in ("became_active", "became_inactive"):
        if not callable(getattr(listener, name, None)):
            raise InvalidConfiguration(
                "consumer_event_listener must have the methods became_active and became_inactive; "
                f"{type(listener).__name__} has no {name}"
            )


def warn_of_unused_policy(config: ConsumerConfig) -> None:
    """Log a warning for each policy that cannot have an effect."""
    _warn_of_unused_key_shared_policy(config)
    counts = config.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)
    if config.dead_letter_policy is None or counts or config.enable_retry:
        return
    _log.warning(
        "dead_letter_policy has no effect on the subscription %r: it is %s, and the broker counts redeliveries on "
        "Shared and Key_Shared subscriptions only. Subscribe with consumer_type=ConsumerType.Shared or KeyShared, or "
        "with enable_retry=True and refuse messages by reconsume_later()",
        config.subscription_name,
        config.consumer_type.name,
    )


def _warn_of_unused_key_shared_policy(config: ConsumerConfig) -> None:
    policy = config.key_shared_policy
    if policy is None:
        return
    if config.applied_key_shared_policy is None:
        _log.warning(
            "key_shared_policy has no effect on the subscription %r: it is %s, not Key_Shared. Subscribe with "
            "consumer_type=ConsumerType.KeyShared; a reader has key_hash_range",
            config.subscription_name,
            config.consumer_type.name,
        )
    elif policy.sticky_ranges and policy.key_shared_mode is not KeySharedMode.Sticky:
        _log.warning(
            "sticky_ranges has no effect on the subscription %r: key_shared_mode is %s, not Sticky",
            config.subscription_name,
            policy.key_shared_mode.name,
        )
