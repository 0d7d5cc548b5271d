"""What both faces do with their callers' arguments: checking them, and turning a message's parts into what is sent.

Rules: everything is checked here, before anything is sent or lost.
"""

from __future__ import annotations

import base64
import sys
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from pulsar_native.arrow.batch import ReceivedRows
from pulsar_native.arrow.encode import TableRows
from pulsar_native.config import (
    BatchReceivePolicy,
    ConsumerConfig,
    ProducerConfig,
)
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.producer.bulk_send import Slice, slice_size
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.transaction import SendOperation, TransactionWork
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage, OperationNotSupported
from pulsar_native.message import Message, NewMessage, OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.send_op import Callback
from pulsar_native.schema import BytesSchema, Schema, StringSchema
from pulsar_native.wire._impl import encode_single_fields

if TYPE_CHECKING:
    import pyarrow

_MAX_U64 = (1 << 64) - 1
_MAX_I64 = (1 << 63) - 1


def checked_timeout(timeout: float | None) -> float | None:
    """Return the seconds closing may take, None for the operation time-out."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0):
        raise InvalidConfiguration(f"timeout must be seconds, 0 or more, or None; not {timeout!r}")
    return timeout


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
    null_partition_key: bool = False,
    schema_version: bytes | None = None,
) -> OutgoingMessage:
    """Check the parts of a message and put them together; None as payload is a null value."""
    _check_parts(properties, partition_key, ordering_key, sequence_id, event_timestamp)
    _check_clusters(replication_clusters)
    if disable_replication and replication_clusters:
        raise InvalidMessage("disable_replication and replication_clusters exclude each other")
    is_bytes = isinstance(partition_key, bytes)
    return OutgoingMessage(
        payload if payload is not None else b"",
        # A copy: the caller may change the mapping while the message waits in its batch.
        properties=dict(properties) if properties else None,
        partition_key=base64.b64encode(partition_key).decode() if isinstance(partition_key, bytes) else partition_key,
        key_is_base64=is_bytes,
        ordering_key=ordering_key,
        sequence_id=sequence_id,
        replicate_to=["__local__"] if disable_replication else replication_clusters,
        event_timestamp=event_timestamp,
        deliver_at=_delivery_time(deliver_at, deliver_after),
        null_value=payload is None,
        null_partition_key=null_partition_key,
        schema_version=schema_version,
    )


def encoded(
    schema: Schema[Any], content: Any, partition_key: str | bytes | None
) -> tuple[bytes | None, str | bytes | None, bool]:
    """Return a value's payload, the message's key, and whether the key is a null one, by a schema of any kind."""
    if content is None:
        return None, partition_key, False
    if not schema.separates_key:
        return schema.encode(content), partition_key, False
    if partition_key is not None:
        raise InvalidMessage("The schema makes the message's key of the value: partition_key must not be given besides")
    key, payload = schema.encode_separated(content)
    return payload, key, key is None


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
        message.ordering_key.encode() if isinstance(message.ordering_key, str) and message.ordering_key else None,
        message.event_timestamp or 0,
        message.null_value,
        message.null_partition_key,
    )


# --- many messages ----------------------------------------------------------------------------------------------------


def slice_of(contents: Sequence[Any], schema: Schema[Any]) -> Slice:
    """Return contents, or `NewMessage`s, encoded for a bulk send."""
    if type(schema) is BytesSchema and all(type(content) is bytes for content in contents):
        return Slice(list(contents), None, None, _nothing)
    messages = [_outgoing_of(content, schema) for content in contents]
    plain = all(message.is_plain for message in messages)
    keyed = any(message.partition_key is not None for message in messages)
    alone = [row for row, message in enumerate(messages) if message.needs_own_entry or message.sequence_id is not None]
    return Slice(
        [message.payload for message in messages],
        None if plain else list(map(encoded_fields, messages)),
        [message.partition_key for message in messages] if keyed else None,
        messages.__getitem__,
        frozenset(alone),
    )


def _nothing(_row: int) -> None:
    """Tell that a row is nothing but its payload."""


def _outgoing_of(content: Any, schema: Schema[Any]) -> OutgoingMessage:
    message = content if isinstance(content, NewMessage) else NewMessage(content=content)
    payload, key, null_key = encoded(schema, message.content, message.partition_key)
    return outgoing(
        payload,
        properties=message.properties,
        partition_key=key,
        null_partition_key=null_key,
        ordering_key=message.ordering_key,
        sequence_id=message.sequence_id,
        replication_clusters=message.replication_clusters,
        disable_replication=message.disable_replication,
        event_timestamp=message.event_timestamp,
        deliver_at=message.deliver_at,
        deliver_after=message.deliver_after,
    )


def slices_of(messages: Iterable[Any], schema: Schema[Any], config: ProducerConfig) -> Iterator[Slice]:
    """Yield what `send_many` was given in slices; bad items raise when their slice is made."""
    rows = iter(messages)
    while contents := list(islice(rows, slice_size(config))):
        yield slice_of(contents, schema)


async def slices_of_async(
    messages: AsyncIterable[Any], schema: Schema[Any], config: ProducerConfig
) -> AsyncIterator[Slice]:
    """Yield what an asynchronous source gives in slices."""
    contents: list[Any] = []
    async for content in messages:
        contents.append(content)
        if len(contents) >= slice_size(config):
            yield slice_of(contents, schema)
            contents = []
    if contents:
        yield slice_of(contents, schema)


def table_slices(
    table: pyarrow.Table | pyarrow.RecordBatch,
    schema: Schema[Any],
    config: ProducerConfig,
    *,
    value: str | Sequence[str],
    key: str | None,
    properties: str | Sequence[str] | Mapping[str, str],
    event_time: str | None,
) -> Iterator[Slice]:
    """Return what `send_table` was given in slices; columns that do not fit are refused at once."""
    if schema.separates_key:
        raise InvalidConfiguration("send_table has no form for a schema that separates the key; use send_many")
    encode: Callable[[Any], bytes] | None = None if type(schema) in (BytesSchema, StringSchema) else schema.encode
    rows = TableRows(table, value=value, key=key, properties=properties, event_time=event_time, encode=encode)
    return (Slice(*part) for part in rows.slices(slice_size(config)))


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


def into_transaction(
    transaction: object, producer: TopicProducer, message: OutgoingMessage, callback: Callback | None
) -> SendOperation:
    """Put a message into a transaction and return the callback it is to have; raises when none is taken any more."""
    work = sending_work_of(transaction, producer)
    message.transaction = work.core
    return work.sending(callback)


def ids_of(messages: Message | MessageId | Sequence[Message | MessageId] | ReceivedRows) -> list[MessageId]:
    """Return the ids to acknowledge, of one message, one id, or a list of them."""
    if isinstance(messages, Message):
        return [messages.message_id()]
    if isinstance(messages, MessageId):
        return [messages]
    if isinstance(messages, ReceivedRows):
        raise InvalidMessage(
            "Rows of receive_arrow are acknowledged, or refused, as a whole: not in a list, cumulatively or in a "
            "transaction; use ids of messages for that"
        )
    if not isinstance(messages, list | tuple):
        raise InvalidMessage(f"Expected a message, a message id or a list of them, not {type(messages).__name__}")
    return [ids_of(message)[0] for message in messages]


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
    _whole_number("delay", delay, _MAX_I64 >> 1)
    return delay


def retry_properties(properties: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the properties to add to a retried message, checked."""
    _check_parts(properties, None, None, None, None)
    return properties


def redelivery_count_of(message: Message | MessageId) -> int:
    """Return how often a message was redelivered; an id alone does not tell, and counts as never."""
    return message.redelivery_count() if isinstance(message, Message) else 0


_NUMBERS = (int, float)


def deadline(timeout_millis: float | None, now: float) -> float | None:
    """Return when a call with this time-out ends, on the clock of `now` (seconds); None means never."""
    if timeout_millis is None:
        return None
    # Exact types first: it is asked for each message.
    if type(timeout_millis) not in _NUMBERS and (
        isinstance(timeout_millis, bool) or not isinstance(timeout_millis, int | float)
    ):
        raise InvalidConfiguration(f"timeout_millis must be a number of milliseconds or None, not {timeout_millis!r}")
    return now + timeout_millis / 1000


def batch_collector(config: ConsumerConfig, now: float) -> BatchCollector:
    """Return what collects one batch receive's messages; refused where messages come one by one."""
    if config.receiver_queue_size == 0:
        raise InvalidConfiguration(
            "batch_receive() needs a queue: with receiver_queue_size=0 messages are asked for one by one; use "
            "receive(), or a receiver_queue_size above 0"
        )
    return BatchCollector(config.batch_receive_policy, now)


class BatchCollector:
    """Collect what one batch receive returns, until its policy is met. `now` is monotonic seconds."""

    __slots__ = ("_bytes", "_policy", "deadline", "messages")

    def __init__(self, policy: BatchReceivePolicy, now: float) -> None:
        self._policy = policy
        # As many or more.
        self._bytes = 0
        self.messages: list[Message] = []
        self.deadline = now + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None

    def clear(self) -> list[Message]:
        """Begin anew, and return what was collected."""
        messages, self.messages = self.messages, []
        self._bytes = 0
        return messages

    def add_all(self, ready: deque[Message]) -> bool:
        """Take messages from the left as long as there are any, and return whether the batch is complete."""
        take, collect = ready.popleft, self.messages.append
        policy = self._policy
        room = policy.max_num_messages - len(self.messages) if policy.max_num_messages > 0 else sys.maxsize
        most = policy.max_num_bytes if policy.max_num_bytes > 0 else sys.maxsize
        entry, exactly = None, False
        try:
            for _ in range(room):
                message = take()
                collect(message)
                if exactly:
                    self._bytes += len(message)
                elif message.entry is not entry:
                    # The messages of an entry together have no more bytes than it; where that is too many, each counts.
                    entry = message.entry
                    self._bytes += len(entry.body)
                    exactly = self._bytes >= most
                    if exactly:
                        self._count()
                if exactly and self._bytes >= most:
                    return True
        except IndexError:
            # Somebody else may take from there, too.
            return False
        return True

    def _count(self) -> None:
        self._bytes = sum(map(len, self.messages))

    def add(self, message: Message) -> bool:
        """Take a message and return whether the batch is complete."""
        self.messages.append(message)
        self._bytes += len(message)
        policy = self._policy
        if 0 < policy.max_num_messages <= len(self.messages):
            return True
        if 0 < policy.max_num_bytes <= self._bytes:
            self._count()
            return policy.max_num_bytes <= self._bytes
        return False
