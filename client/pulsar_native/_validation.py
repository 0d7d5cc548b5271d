"""Checks of the arguments that methods of both APIs take, before anything is sent or lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from pulsar_native.arrow.batch import ArrowBatch
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.transaction import TransactionWork
from pulsar_native.exceptions import (
    InvalidConfiguration,
    InvalidMessage,
    MessageTooBig,
    OperationNotSupported,
    PulsarException,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId

MAX_U64 = (1 << 64) - 1
MAX_I64 = (1 << 63) - 1


def checked_timeout(timeout: float | None) -> float | None:
    """Return the seconds closing may take, None for the operation time-out."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0):
        raise InvalidConfiguration(f"timeout must be seconds, 0 or more, or None; not {timeout!r}")
    return timeout


def is_argument_error(error: PulsarException) -> bool:
    """Return whether an error is about how a method was called, rather than about what became of the call."""
    return isinstance(error, InvalidConfiguration | InvalidMessage) and not isinstance(error, MessageTooBig)


def check_parts(
    properties: Mapping[str, str] | None,
    partition_key: object,
    ordering_key: object,
    sequence_id: int | None,
    event_timestamp: int | None,
) -> None:
    """Raise `InvalidMessage` for a part of a message of another type or out of its range."""
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
    whole_number("sequence_id", sequence_id, MAX_I64)
    whole_number("event_timestamp", event_timestamp, MAX_U64)


def whole_number(name: str, number: object, maximum: int) -> None:
    """Raise `InvalidMessage` unless a number is None or a whole one from 0 to the maximum."""
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= maximum:
        raise InvalidMessage(f"{name} must be a non-negative int up to {maximum}, not {number!r}")


def transaction_timeout(seconds: float) -> float:
    """Return the seconds after which a transaction is aborted, checked."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.001 <= seconds <= 1e9:
        raise InvalidConfiguration(f"timeout_seconds must be a positive number of seconds, not {seconds!r}")
    return seconds


def work_of(transaction: object, client: ClientCore) -> TransactionWork:
    """Return the engine's part of a transaction, which must be of the same client."""
    work = getattr(transaction, "_work", None)
    if not isinstance(work, TransactionWork):
        raise InvalidConfiguration(f"transaction must be what new_transaction() gave, not {type(transaction).__name__}")
    if work.client is not client:
        raise InvalidConfiguration(
            f"Transaction {work.core.txn_id} was begun by another client: begin it with the client that made the "
            "producer or consumer"
        )
    return work


def sending_work_of(transaction: object, producer: TopicProducer) -> TransactionWork:
    """Return the engine's part of a transaction that messages of a producer may be sent in."""
    work = work_of(transaction, producer.client)
    if not producer.topic.is_persistent:
        raise OperationNotSupported(
            "A non-persistent topic cannot take part in transactions: nothing of it is stored",
            topic=producer.topic.full,
        )
    return work


def ids_of(messages: Message | MessageId | Sequence[Message | MessageId] | ArrowBatch) -> list[MessageId]:
    """Return the ids to acknowledge, of one message, one id, or a list of them."""
    if isinstance(messages, Message):
        return [messages.message_id()]
    if isinstance(messages, MessageId):
        return [messages]
    if isinstance(messages, ArrowBatch):
        raise _whole_batch()
    if not isinstance(messages, list | tuple):
        raise InvalidMessage(f"Expected a message, a message id or a list of them, not {type(messages).__name__}")
    return [ids_of(message)[0] for message in messages]


def _whole_batch() -> InvalidMessage:
    return InvalidMessage(
        "What receive_arrow returned is taken as a whole, by acknowledge(batch) and negative_acknowledge(batch): not "
        "in a list, cumulatively or in a transaction; use ids of messages for that"
    )


def id_of(message: Message | MessageId | ArrowBatch) -> MessageId:
    """Return the id of one message; a list and a whole Arrow batch are refused."""
    if isinstance(message, Message):
        return message.message_id()
    if isinstance(message, MessageId):
        return message
    if isinstance(message, ArrowBatch):
        raise _whole_batch()
    raise InvalidMessage(f"Expected a message or a message id, not {type(message).__name__}")


def messages_of(messages: Message | Sequence[Message]) -> list[Message]:
    """Return the messages of one or a list; an id will not do where the message itself is needed."""
    given = [messages] if isinstance(messages, Message) else messages
    if not isinstance(given, list | tuple) or not all(isinstance(message, Message) for message in given):
        raise InvalidMessage(
            f"Expected a message or a list of messages, not {type(messages).__name__}; an id is not enough to copy it"
        )
    return list(given)


def retry_delay(delay: timedelta | int) -> int:
    """Return the delay of a retry in milliseconds."""
    if isinstance(delay, timedelta):
        delay = int(delay.total_seconds() * 1000)
    whole_number("delay", delay, MAX_I64 >> 1)
    return delay


def retry_properties(properties: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the properties to add to a retried message, checked."""
    check_parts(properties, None, None, None, None)
    return properties


def redelivery_count_of(message: Message | MessageId) -> int:
    """Return how often a message was redelivered; an id alone does not tell, and counts as never."""
    return message.redelivery_count() if isinstance(message, Message) else 0


def deadline(timeout_millis: int | None, now: float) -> float | None:
    """Return when a call with this time-out ends, on the clock of `now` (seconds); None means never."""
    if timeout_millis is None:
        return None
    # Exact type first: it is asked for each message.
    if type(timeout_millis) is not int and (isinstance(timeout_millis, bool) or not isinstance(timeout_millis, int)):
        raise InvalidConfiguration(f"timeout_millis must be an int of milliseconds or None, not {timeout_millis!r}")
    return now + timeout_millis / 1000
