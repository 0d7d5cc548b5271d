"""Messages as the engine takes them, built from the checked arguments of `send`, `send_many` and `send_table`."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, timedelta
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsar_native._loggers import get_logger
from pulsar_native._message_checks import check_parts, whole_number
from pulsar_native._message_fields import FastPathBuffer
from pulsar_native._validation import sending_work_of
from pulsar_native.arrow.encode import TableRows
from pulsar_native.config import ProducerConfig
from pulsar_native.config.base import MAX_I64
from pulsar_native.engine.producer.bulk_send import Slice, slice_size
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.transaction import SendOperation
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage
from pulsar_native.message import NewMessage, OutgoingMessage
from pulsar_native.protocol.send_op import Callback
from pulsar_native.schema import AvroSchema, BytesSchema, Schema, StringSchema
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.wire._impl import encode_single_fields, only_bytes, usual_fields

if TYPE_CHECKING:
    import pyarrow

_log = get_logger("pulsar_native.producer")


class FastPaths(NamedTuple):
    """Buffer that the compiled forms of `send` and `send_async` append to, where no message needs another check."""

    of_bytes: FastPathBuffer | None
    # The same of a producer whose values a schema encodes.
    of_values: FastPathBuffer | None
    drain_late: Callable[[], None] | None
    usual_fields: Callable[[object, object, object, object], bytes | None]


def fast_paths(producer: TopicProducer, schema: Schema[Any]) -> FastPaths:
    """Return what a producer of an API may append to."""
    encoder = usual_fields if producer.sends_described else _looked_at
    found = None if schema.separates_key else producer.fast_path()
    if found is None:
        return FastPaths(None, None, None, encoder)
    buffer, drain_late = found
    if type(schema) is BytesSchema:
        return FastPaths(buffer, None, drain_late, encoder)
    return FastPaths(None, buffer, drain_late, encoder)


def _looked_at(_properties: object, _key: object, _ordering_key: object, _event_time: object) -> None:
    """Return no encoded fields: the message is looked at on its way."""


def outgoing(
    payload: bytes | None,
    *,
    properties: Mapping[str, str] | None,
    partition_key: str | bytes | None,
    ordering_key: str | None,
    sequence_id: int | None,
    replication_clusters: list[str] | None,
    disable_replication: bool | None,
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | int | None,
    null_partition_key: bool = False,
    schema_version: bytes | None = None,
) -> OutgoingMessage:
    """Return an outgoing message from checked fields; None as payload is a null value."""
    check_parts(properties, partition_key, ordering_key, sequence_id, event_timestamp)
    _check_clusters(replication_clusters)
    if disable_replication is not None and not isinstance(disable_replication, bool):
        raise InvalidMessage(f"disable_replication must be True or False, not {disable_replication!r}")
    if disable_replication and replication_clusters:
        _warn_of_unused("replication_clusters", "disable_replication")
    is_bytes = isinstance(partition_key, bytes)
    return OutgoingMessage(
        payload if payload is not None else b"",
        # A copy: the caller may change the mapping while the message waits in its batch.
        properties=dict(properties) if properties else None,
        partition_key=_base64(partition_key) if isinstance(partition_key, bytes) else partition_key,
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
    """Return the payload of a value, the message's key, and True if the schema's key is null."""
    if content is None:
        return None, partition_key, False
    if not schema.separates_key:
        return payload_of(schema, content), partition_key, False
    if partition_key is not None:
        raise InvalidMessage("The schema makes the message's key of the value: partition_key must not be given besides")
    key, payload = schema.encode_separated(content)
    return None if payload is None else _checked(schema, payload), key, key is None


class Encoded:
    """Outcome of a schema that has encoded a content: it is called once, since it may read what it is given up."""

    __slots__ = ("_error", "_payload")

    def __init__(self, payload: object, error: Exception | None = None) -> None:
        self._payload = payload
        self._error = error

    def result(self) -> object:
        """Return what the schema returned, or raise its error."""
        error, self._error = self._error, None
        if error is None:
            return self._payload
        try:
            raise error
        finally:
            # The error refers to this frame, which would refer to it.
            del error


def payload_of(schema: Schema[Any], value: Any) -> bytes:
    """Return the payload of a value; raises `InvalidRecord` also where the schema, an application's, returns none."""
    payload = value.result() if type(value) is Encoded else schema.encode(value)
    return payload if type(payload) is bytes else _checked(schema, payload)


def _checked(schema: Schema[Any], payload: object) -> bytes:
    return _as_bytes(payload, f"The payload of {type(schema).__name__}", InvalidRecord)


def _as_bytes(given: object, name: str, refusal: type[InvalidMessage] = InvalidMessage) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise refusal(f"{name} must be bytes, not {type(given).__name__}")


def _check_clusters(clusters: object) -> None:
    if clusters is None:
        return
    if not isinstance(clusters, list) or not all(isinstance(name, str) for name in clusters):
        raise InvalidMessage("replication_clusters must be a list of str")
    try:
        "".join(clusters).encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage("A message's replication_clusters cannot be written as UTF-8") from error


@cache
def _warn_of_unused(unused: str, used: str) -> None:
    """Log a warning, once per process, for an option without effect, as with the official client."""
    _log.warning("A message was given %s and %s: the first has no effect", unused, used)


def _delivery_time(deliver_at: int | None, deliver_after: timedelta | int | None) -> int | None:
    if deliver_after is None:
        whole_number("deliver_at", deliver_at, MAX_I64)
        return deliver_at
    if deliver_at is not None:
        whole_number("deliver_at", deliver_at, MAX_I64)
        _warn_of_unused("deliver_at", "deliver_after")
    if isinstance(deliver_after, timedelta):
        deliver_after = int(deliver_after.total_seconds() * 1000)
    if isinstance(deliver_after, bool) or not isinstance(deliver_after, int):
        raise InvalidMessage(f"deliver_after must be a timedelta or an int of milliseconds, not {deliver_after!r}")
    at = time.time_ns() // 1_000_000 + deliver_after
    whole_number("deliver_after", at, MAX_I64)
    return at


def encoded_fields(message: OutgoingMessage) -> bytes:
    """Return a message's optional fields, encoded for a batch."""
    ordering_key = message.ordering_key
    try:
        encoded_key = ordering_key.encode() if isinstance(ordering_key, str) and ordering_key else None
    except UnicodeEncodeError as error:
        raise InvalidMessage("A message's ordering_key cannot be written as UTF-8") from error
    return encode_single_fields(
        message.properties,
        message.partition_key,
        message.key_is_base64,
        encoded_key,
        message.event_timestamp or 0,
        message.null_value,
        message.null_partition_key,
    )


def intercepted_fields(message: OutgoingMessage) -> bytes:
    """Return the optional fields of a message that interceptors may have changed, encoded.

    Raises `InvalidMessage` for a field that they have set to another type, or out of range.
    """
    try:
        message.payload = _as_bytes(message.payload, "payload")
        key: object = message.partition_key
        if isinstance(key, bytes):
            message.partition_key, message.key_is_base64 = _base64(key), True
        ordering_key = None if isinstance(message.ordering_key, bytes) else message.ordering_key
        check_parts(
            message.properties, message.partition_key, ordering_key, message.sequence_id, message.event_timestamp
        )
        _check_clusters(message.replicate_to)
        whole_number("deliver_at", message.deliver_at, MAX_I64)
        if message.schema_version is not None:
            message.schema_version = _as_bytes(message.schema_version, "schema_version")
    except InvalidMessage as error:
        raise InvalidMessage(f"An interceptor made the message invalid: {error}") from error
    return encoded_fields(message)


def _base64(key: bytes) -> str:
    return base64.b64encode(key).decode()


def slice_of(contents: list[Any], schema: Schema[Any]) -> Slice:
    """Return contents, or `NewMessage`s, encoded for a bulk send."""
    if type(schema) is BytesSchema and only_bytes(contents):
        return Slice(contents, None, None, _nothing)
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
    size = slice_size(config)
    if type(messages) is list:
        for start in range(0, len(messages), size):
            yield slice_of(messages[start : start + size], schema)
        return
    rows = iter(messages)
    while contents := list(islice(rows, size)):
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
    encode: Callable[[Any], bytes] | None = None
    if type(schema) not in (BytesSchema, StringSchema):
        encode = partial(payload_of, schema)
    rows = TableRows(
        table,
        value=value,
        key=key,
        properties=properties,
        event_time=event_time,
        encode=encode,
        # The other schemas refuse times without a timezone, or need them; fastavro takes them for local ones.
        zone=UTC if isinstance(schema, AvroSchema) else None,
    )
    return (Slice(*part) for part in rows.slices(slice_size(config)))


def into_transaction(
    transaction: object, producer: TopicProducer, message: OutgoingMessage, callback: Callback | None
) -> SendOperation:
    """Put a message into a transaction and return the callback it is to have; raises when none is taken any more."""
    work = sending_work_of(transaction, producer)
    message.transaction = work.core
    return work.sending(callback)
