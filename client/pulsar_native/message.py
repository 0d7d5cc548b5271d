"""Messages as the application sees them: received messages and outgoing ones.

A received message is a view of its entry (the broker's unit, one batch): it holds its offsets in the entry, and fields
are decoded on access. Rules: no I/O; the wire format is read by the entry, not here.
"""

from __future__ import annotations

import base64
import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, cast

from pulsar_native._message_fields import MessageFields, SingleFields
from pulsar_native._type_vars import T_co
from pulsar_native.crypto import EncryptionContext
from pulsar_native.message_id import MessageId


class EntryView(Protocol):
    """Interface of the entry of a message."""

    ledger_id: int
    entry_id: int
    partition: int
    topic: str
    redelivery_count: int
    batch_size: int
    is_batch: bool
    first_chunk: MessageId | None
    schema: Any
    body: bytes

    @property
    def publish_time(self) -> int: ...
    @property
    def producer_name(self) -> str: ...
    @property
    def replicated_from(self) -> str | None: ...
    @property
    def schema_version(self) -> bytes | None: ...
    @property
    def broker_timestamp(self) -> int | None: ...
    @property
    def encryption_context(self) -> EncryptionContext | None: ...
    def fields(self, meta_start: int, payload_start: int) -> SingleFields: ...
    def index_of(self, batch_index: int) -> int | None: ...
    def decode(self, data: bytes) -> Any: ...
    def decode_separated(self, key: bytes | None, data: bytes | None) -> Any: ...


class Message(MessageFields, Generic[T_co]):
    """A received message, generic in the type of its value. Its methods do no I/O.

    Not thread-safe while a field is read for the first time; it may be passed to another thread.
    """

    __slots__ = ()

    entry: EntryView

    def value(self) -> T_co:
        """Return the payload decoded by the consumer's schema, None for a null value.

        The type leaves None out; on topics with null values ask `has_null_value()` first. Raises what the schema raises
        for bytes it cannot decode, and `InvalidRecord` for a message that is still encrypted, as the crypto failure
        action CONSUME returns it; under the schema of bytes the encrypted bytes are the value.
        """
        value: Any = None if self._may_be_null() and self._single().null_value else self.entry.decode(self.data())
        return cast("T_co", value)

    def has_key(self) -> bool:
        """Return whether the message was published with a key, the empty one included."""
        fields: Any = self._single()
        return bool(fields.HasField("partition_key"))

    def has_base64_encoded_key(self) -> bool:
        """Return whether the key is a bytes key in base64 text."""
        return self._single().partition_key_b64_encoded

    def key_bytes(self) -> bytes:
        """Return the key as bytes: a bytes key decoded, any other as published.

        A key marked as base64 that is no base64 text is returned as published, too.
        """
        fields = self._single()
        return _key_bytes(fields.partition_key, fields.partition_key_b64_encoded)

    def ordering_key_bytes(self) -> bytes | None:
        """Return the ordering key as published, None if there is none."""
        return self._single().ordering_key or None

    def sequence_id(self) -> int:
        """Return the message's sequence id."""
        fields: Any = self._single()
        if self.entry.is_batch and not fields.HasField("sequence_id"):
            # Old clients write the sequence id of the batch only, which is the first message's.
            entry: Any = self.entry
            return int(entry.first_sequence_id) + self.batch_index
        return int(fields.sequence_id)

    def producer_name(self) -> str:
        """Return the name of the producer."""
        return self.entry.producer_name

    def replicated_from(self) -> str | None:
        """Return the name of the cluster the message was published in, None if that is this one."""
        return self.entry.replicated_from

    def has_null_value(self) -> bool:
        """Return whether this is a null value (a tombstone on compacted topics)."""
        return self._single().null_value

    def has_null_partition_key(self) -> bool:
        """Return whether the key of a key-value schema with SEPARATED encoding is null."""
        fields: Any = self._single()
        return bool(fields.null_partition_key)

    def schema_version(self) -> str:
        """Return the writer's schema version as text with one character per byte, "" without schema.

        The official client's form; see `schema_version_bytes()` and `int_schema_version()`.
        """
        return (self.entry.schema_version or b"").decode("latin-1")

    def schema_version_bytes(self) -> bytes | None:
        """Return the writer's schema version as bytes, None without schema."""
        return self.entry.schema_version

    def int_schema_version(self) -> int | None:
        """Return the writer's schema version as a number, None without schema."""
        version = self.entry.schema_version
        return int.from_bytes(version, "big") if version else None

    def reader_schema(self) -> Any:
        """Return the `Schema` that decodes the value, None without a schema version (Java: getReaderSchema).

        For schemas that read by the writer's definition (AVRO, AUTO_CONSUME) its `schema_info()` is the registered one
        of the message's version, and its `decode` reads payloads of that version; for others it is the consumer's.
        Raises `InvalidRecord` if the registry does not have that version.
        """
        version = self.entry.schema_version
        return self.entry.schema.at_version(version) if version else None

    def encryption_context(self) -> EncryptionContext | None:
        """Return the encryption context, None if the message was not encrypted.

        With `ConsumerCryptoFailureAction.CONSUME`, its `is_decryption_failed()` is True if `data()` is still encrypted.
        """
        return self.entry.encryption_context

    def index(self) -> int | None:
        """Return the index of the message in its topic, None unless the broker exposes it (PIP-70, PIP-90)."""
        return self.entry.index_of(self.batch_index)

    def broker_publish_time(self) -> int | None:
        """Return the broker's clock at the entry's arrival, in ms since 1970, None unless it is exposed (PIP-70)."""
        return self.entry.broker_timestamp

    def __reduce__(self) -> tuple[object, ...]:
        # With an entry of its own: the other messages of its batch are not pickled with it.
        entry, start = copy.copy(self.entry), self._meta_start
        entry.body = entry.body[start : self._end]
        return type(self), (entry, self.batch_index, 0, self._start - start, self._end - start)

    def __bool__(self) -> bool:
        # An empty message is a message.
        return True

    def __repr__(self) -> str:
        return f"<Message {self.message_id()} of {self.entry.topic}, {len(self)} bytes>"


class KeyedMessage(Message[T_co]):
    """A message received with a schema that has, or may have, the key part of the value in the message's key."""

    __slots__ = ()

    def value(self) -> T_co:
        """Return the decoded payload, with the decoded key where the schema separates it; null parts are None."""
        return cast("T_co", self.entry.decode_separated(*self._parts()))

    def _parts(self) -> tuple[bytes | None, bytes | None]:
        """Return key and payload, None for null parts."""
        fields: Any = self._single()
        key = None if fields.null_partition_key or not self.has_key() else self.key_bytes()
        return key, None if fields.null_value else self.data()


@dataclass(frozen=True, kw_only=True, slots=True)
class NewMessage:
    """A message for `send_many`, with the options of `send`. Immutable; checked when it is sent.

    :param content: the content, encoded by the schema; None is a null value (a tombstone on compacted topics).
    :param properties: the application's properties, str to str. Default none.
    :param partition_key: key, str or bytes, that determines the partition and Key_Shared's consumer, and by which
        compaction keeps the newest message. Default None.
    :param ordering_key: key that Key_Shared subscriptions use instead of `partition_key`. Default None.
    :param sequence_id: sequence id for deduplication, 0 to 2^63 - 1, larger than those before. Default None: the next
        one.
    :param replication_clusters: names of the clusters to replicate to. Default None: the namespace's.
    :param disable_replication: True keeps the message in the local cluster, whatever `replication_clusters` is. Default
        False.
    :param event_timestamp: event time in milliseconds since 1970. Default None.
    :param deliver_at: delivery time in milliseconds since 1970; Shared and Key_Shared subscriptions only (PIP-26).
        Default None: at once.
    :param deliver_after: delay of the delivery, a timedelta or milliseconds, which counts instead of `deliver_at`.
        Default None.
    """

    content: Any
    properties: Mapping[str, str] | None = None
    partition_key: str | bytes | None = None
    ordering_key: str | None = None
    sequence_id: int | None = None
    replication_clusters: list[str] | None = None
    disable_replication: bool = False
    event_timestamp: int | None = None
    deliver_at: int | None = None
    deliver_after: timedelta | int | None = None


class OutgoingMessage:
    """An outgoing message, before it has an id."""

    __slots__ = (
        "deliver_at",
        "event_timestamp",
        "key_is_base64",
        "null_partition_key",
        "null_value",
        "ordering_key",
        "partition_key",
        "payload",
        "properties",
        "replicate_to",
        "schema_version",
        "sequence_id",
        "transaction",
    )

    def __init__(
        self,
        payload: bytes,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        key_is_base64: bool = False,
        ordering_key: str | bytes | None = None,
        sequence_id: int | None = None,
        replicate_to: list[str] | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        null_value: bool = False,
        null_partition_key: bool = False,
        schema_version: bytes | None = None,
    ) -> None:
        self.payload = payload
        self.properties = properties
        self.partition_key = partition_key
        self.key_is_base64 = key_is_base64
        self.ordering_key = ordering_key
        self.sequence_id = sequence_id
        self.replicate_to = replicate_to
        self.event_timestamp = event_timestamp
        self.deliver_at = deliver_at
        self.null_value = null_value
        self.null_partition_key = null_partition_key
        # Version of a schema other than the producer's; b"" for none.
        self.schema_version = schema_version
        # The engine's state of the transaction the message is sent in.
        self.transaction: Any = None

    @property
    def is_plain(self) -> bool:
        """True if there is a payload only: the hot path then writes no optional field."""
        return not (
            self.properties
            or self.partition_key is not None
            or self.ordering_key
            or self.event_timestamp
            or self.null_value
            or self.null_partition_key
        )

    @property
    def needs_own_entry(self) -> bool:
        """True if the message cannot be batched: delivery time and clusters are fields of the entry."""
        return self.deliver_at is not None or bool(self.replicate_to)


class RoutedMessage(Message[bytes]):
    """An outgoing message as a `message_router` gets it, with the methods of a received one; it has no id yet."""

    __slots__ = ("_outgoing",)

    def __init__(self, outgoing: OutgoingMessage) -> None:
        self._outgoing = outgoing

    def data(self) -> bytes:
        """Return the payload, encoded by the producer's schema."""
        return self._outgoing.payload

    def value(self) -> bytes:
        """Return the encoded payload."""
        return self._outgoing.payload

    def properties(self) -> dict[str, str]:
        """Return the application's properties."""
        return dict(self._outgoing.properties or {})

    def partition_key(self) -> str:
        """Return the key, "" if there is none; a bytes key as base64 text."""
        return self._outgoing.partition_key or ""

    def has_key(self) -> bool:
        """Return whether the message has a key, the empty one included."""
        return self._outgoing.partition_key is not None

    def has_base64_encoded_key(self) -> bool:
        """Return whether the key is a bytes key in base64 text."""
        return self._outgoing.key_is_base64

    def key_bytes(self) -> bytes:
        """Return the key as bytes."""
        return _key_bytes(self.partition_key(), self._outgoing.key_is_base64)

    def ordering_key(self) -> str:
        """Return the ordering key, which Key_Shared subscriptions prefer to the key; "" if there is none."""
        key = self._outgoing.ordering_key or ""
        return key.decode("utf-8", "replace") if isinstance(key, bytes) else key

    def ordering_key_bytes(self) -> bytes | None:
        """Return the ordering key as bytes, None if there is none."""
        return self.ordering_key().encode() or None

    def event_timestamp(self) -> int:
        """Return the event time that the application set, in milliseconds since 1970; 0 if it set none."""
        return self._outgoing.event_timestamp or 0

    def publish_timestamp(self) -> int:
        """Return 0: the message is not published yet."""
        return 0

    def sequence_id(self) -> int:
        """Return the sequence id that the application set, -1 if it set none."""
        return -1 if self._outgoing.sequence_id is None else self._outgoing.sequence_id

    def producer_name(self) -> str:
        """Return "": the producer's name is not part of an outgoing message."""
        return ""

    def replicated_from(self) -> None:
        """Return None: the message is published here."""

    def reader_schema(self) -> None:
        """Return None: nothing is decoded."""

    def has_null_value(self) -> bool:
        """Return whether this is a null value."""
        return self._outgoing.null_value

    def has_null_partition_key(self) -> bool:
        """Return whether the key of a key-value schema with SEPARATED encoding is null."""
        return self._outgoing.null_partition_key

    def schema_version(self) -> str:
        """Return the version of the schema given with the message, "" for the producer's."""
        return (self._outgoing.schema_version or b"").decode("latin-1")

    def schema_version_bytes(self) -> bytes | None:
        """Return the version of the schema given with the message as bytes, None for the producer's."""
        return self._outgoing.schema_version

    def int_schema_version(self) -> int | None:
        """Return the version of the schema given with the message as a number, None for the producer's."""
        version = self._outgoing.schema_version
        return int.from_bytes(version, "big") if version else None

    def message_id(self) -> MessageId:
        """Return the empty message id."""
        return MessageId()

    def topic_name(self) -> str:
        """Return "": the router chooses the partition."""
        return ""

    def encryption_context(self) -> None:
        """Return None: messages are encrypted after routing."""

    def redelivery_count(self) -> int:
        """Return 0."""
        return 0

    def index(self) -> int | None:
        """Return None: the message is not stored yet."""
        return None

    def broker_publish_time(self) -> int | None:
        """Return None: the message is not stored yet."""
        return None

    def __reduce__(self) -> tuple[object, ...]:
        return RoutedMessage, (self._outgoing,)

    def __len__(self) -> int:
        return len(self._outgoing.payload)

    def __repr__(self) -> str:
        return f"<Message to be routed, {len(self)} bytes>"


def _key_bytes(key: str | bytes, is_base64: bool) -> bytes:
    if isinstance(key, bytes):
        return key
    if is_base64:
        with contextlib.suppress(ValueError):
            return base64.b64decode(key)
    return key.encode()


def copied_key(message: Message) -> tuple[str | None, bool]:
    """Return the key for a copy of a message, and whether it is base64 text; one that is not UTF-8 as a bytes key."""
    if not message.has_key():
        return None, False
    fields = message._single()
    if isinstance(fields.partition_key, bytes):
        return base64.b64encode(fields.partition_key).decode(), True
    return fields.partition_key, fields.partition_key_b64_encoded
