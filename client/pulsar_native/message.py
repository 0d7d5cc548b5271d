"""Messages as the application sees them: received ones, and those on their way out.

A received message is a view of its entry (the broker's unit, one batch): only its place is kept, and everything
else is decoded when it is asked for. Rules: no I/O, no bytes of the wire format are read here; the entry knows how.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from pulsar_native.crypto import EncryptionContext
from pulsar_native.message_id import MessageId


class SingleFields(Protocol):
    """Per-message fields, whether they stand in a batch's single metadata or in the entry's own."""

    @property
    def event_time(self) -> int: ...
    @property
    def partition_key(self) -> str: ...
    @property
    def partition_key_b64_encoded(self) -> bool: ...
    @property
    def ordering_key(self) -> bytes: ...
    @property
    def null_value(self) -> bool: ...
    @property
    def sequence_id(self) -> int: ...
    @property
    def properties(self) -> Any: ...


class EntryView(Protocol):
    """What a message needs of the entry it lies in."""

    ledger_id: int
    entry_id: int
    partition: int
    topic: str
    redelivery_count: int
    batch_size: int
    is_batch: bool
    first_chunk: MessageId | None
    schema: Any

    @property
    def body(self) -> bytes: ...
    @property
    def publish_time(self) -> int: ...
    @property
    def producer_name(self) -> str: ...
    @property
    def schema_version(self) -> bytes | None: ...
    @property
    def broker_timestamp(self) -> int | None: ...
    @property
    def encryption_context(self) -> EncryptionContext | None: ...
    def fields(self, meta_start: int, payload_start: int) -> SingleFields: ...
    def index_of(self, batch_index: int) -> int | None: ...
    def decode(self, data: bytes) -> Any: ...


class Message:
    """A received message. Reading it never blocks, except `value()` when a writer's schema must be fetched first.

    Not thread-safe while being read for the first time; safe to hand to another thread.
    """

    __slots__ = ("_end", "_fields", "_meta_start", "_start", "batch_index", "entry")

    _fields: SingleFields

    def __init__(self, entry: EntryView, batch_index: int, meta_start: int, start: int, end: int) -> None:
        # No more than this, and no object for it: it is done for each message there is.
        self.entry = entry
        self.batch_index = batch_index
        self._meta_start = meta_start
        self._start = start
        self._end = end

    def data(self) -> bytes:
        """Return the payload as it was published (decompressed); empty for a null value."""
        return self.entry.body[self._start : self._end]

    def value(self) -> Any:
        """Return the payload decoded by the consumer's schema, None for a null value."""
        return None if self.has_null_value() else self.entry.decode(self.data())

    def _single(self) -> SingleFields:
        try:
            return self._fields
        except AttributeError:
            self._fields = fields = self.entry.fields(self._meta_start, self._start)
            return fields

    def properties(self) -> dict[str, str]:
        """Return the application's properties; of a repeated key the last value."""
        return {pair.key: pair.value for pair in self._single().properties}

    def partition_key(self) -> str:
        """Return the key, empty when there is none; a key of bytes comes as base64 text, as in the other clients."""
        return self._single().partition_key

    def has_key(self) -> bool:
        """Return whether the message was published with a key, the empty one included."""
        fields: Any = self._single()
        return bool(fields.HasField("partition_key"))

    def has_base64_encoded_key(self) -> bool:
        """Return whether the key is bytes written as base64 text."""
        return self._single().partition_key_b64_encoded

    def key_bytes(self) -> bytes:
        """Return the key as bytes."""
        key = self.partition_key()
        return base64.b64decode(key) if self.has_base64_encoded_key() else key.encode()

    def ordering_key(self) -> str:
        """Return the key that decides the order on Key_Shared subscriptions, empty when there is none."""
        return self._single().ordering_key.decode("utf-8", "replace")

    def ordering_key_bytes(self) -> bytes | None:
        """Return the same key as it was published, None when there is none."""
        return self._single().ordering_key or None

    def event_timestamp(self) -> int:
        """Return the application's time of the event, in milliseconds since 1970; 0 = none."""
        return self._single().event_time

    def publish_timestamp(self) -> int:
        """Return the producer's clock when the entry was published, in milliseconds since 1970."""
        return self.entry.publish_time

    def sequence_id(self) -> int:
        """Return the producer's number of this message."""
        fields: Any = self._single()
        if self.entry.is_batch and not fields.HasField("sequence_id"):
            # Old clients number only the batch: its first id is the first message's.
            entry: Any = self.entry
            return int(entry.first_sequence_id) + self.batch_index
        return int(fields.sequence_id)

    def producer_name(self) -> str:
        """Return the name of the producer."""
        return self.entry.producer_name

    def has_null_value(self) -> bool:
        """Return whether this is a null value (a tombstone on compacted topics)."""
        return self._single().null_value

    def has_null_partition_key(self) -> bool:
        """Return whether the key of a separated pair of key and value is null."""
        fields: Any = self._single()
        return bool(fields.null_partition_key)

    def schema_version(self) -> str:
        """Return the version of the schema the message was written with: a character for each byte, "" without schema.

        `schema_version_bytes()` gives the bytes, `int_schema_version()` the number.
        """
        return (self.entry.schema_version or b"").decode("latin-1")

    def schema_version_bytes(self) -> bytes | None:
        """Return the same version as bytes, None without schema."""
        return self.entry.schema_version

    def int_schema_version(self) -> int | None:
        """Return the schema's version as a number, None without schema."""
        version = self.entry.schema_version
        return int.from_bytes(version, "big") if version else None

    def message_id(self) -> MessageId:
        """Return the id: topic, ledger, entry, partition and batch index."""
        entry = self.entry
        return MessageId(
            entry.partition,
            entry.ledger_id,
            entry.entry_id,
            self.batch_index,
            batch_size=entry.batch_size if entry.is_batch else 0,
            topic=entry.topic,
            first_chunk=entry.first_chunk,
        )

    def topic_name(self) -> str:
        """Return the full name of the topic, or of the partition, the message came from."""
        return self.entry.topic

    def encryption_context(self) -> EncryptionContext | None:
        """Return how the message was encrypted, None when it was not.

        With `ConsumerCryptoFailureAction.CONSUME`, its `is_decryption_failed()` tells that `data()` is still encrypted.
        """
        return self.entry.encryption_context

    def redelivery_count(self) -> int:
        """Return how often the broker delivered the message before (Shared and Key_Shared only)."""
        return self.entry.redelivery_count

    def index(self) -> int | None:
        """Return the broker's running number of the message in its topic, None unless the broker exposes it."""
        return self.entry.index_of(self.batch_index)

    def broker_publish_time(self) -> int | None:
        """Return the broker's clock when the entry arrived there, in ms, None unless the broker exposes it."""
        return self.entry.broker_timestamp

    def __len__(self) -> int:
        return self._end - self._start

    def __bool__(self) -> bool:
        # A message is there, whatever its payload is.
        return True

    def __repr__(self) -> str:
        return f"<Message {self.message_id()} of {self.entry.topic}, {len(self)} bytes>"


class KeyedMessage(Message):
    """A message received with a schema that has, or may have, a part of the value in the message's key."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the payload, and the key where the schema separates it, decoded; null parts are None."""
        fields: Any = self._single()
        key = None if fields.null_partition_key or not self.has_key() else self.key_bytes()
        data = None if fields.null_value else self.data()
        return self.entry.schema.decode_separated(key, data, self.entry.schema_version)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewMessage:
    """A message for `send_many`, with what `send` takes besides the content."""

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
    """A message on its way out, before it has an id."""

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
        # Of a schema other than the producer's: its version, b"" for none.
        self.schema_version = schema_version
        # The engine's state of the transaction the message is sent in.
        self.transaction: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the payload was given: the hot path writes no optional field then."""
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
        """Whether the message may not share a batch: its delivery time or its clusters are the entry's."""
        return self.deliver_at is not None or bool(self.replicate_to)


class RoutedMessage(Message):
    """A message on its way out as a `message_router` sees it, with the methods of a received one; it has no id yet."""

    __slots__ = ("_outgoing",)

    def __init__(self, outgoing: OutgoingMessage) -> None:
        self._outgoing = outgoing

    def data(self) -> bytes:
        """Return the payload, encoded by the producer's schema."""
        return self._outgoing.payload

    def value(self) -> bytes:
        """Return the payload: a router gets it encoded."""
        return self._outgoing.payload

    def properties(self) -> dict[str, str]:
        """Return the application's properties."""
        return dict(self._outgoing.properties or {})

    def partition_key(self) -> str:
        """Return the key, empty when there is none; a key of bytes comes as base64 text."""
        return self._outgoing.partition_key or ""

    def has_key(self) -> bool:
        """Return whether the message has a key, the empty one included."""
        return self._outgoing.partition_key is not None

    def has_base64_encoded_key(self) -> bool:
        """Return whether the key is bytes written as base64 text."""
        return self._outgoing.key_is_base64

    def ordering_key(self) -> str:
        """Return the key that decides the order on Key_Shared subscriptions, empty when there is none."""
        key = self._outgoing.ordering_key or ""
        return key.decode("utf-8", "replace") if isinstance(key, bytes) else key

    def ordering_key_bytes(self) -> bytes | None:
        """Return the same key as bytes, None when there is none."""
        return self.ordering_key().encode() or None

    def event_timestamp(self) -> int:
        """Return the application's time of the event, in milliseconds since 1970; 0 = none."""
        return self._outgoing.event_timestamp or 0

    def publish_timestamp(self) -> int:
        """Return 0: the message is not published yet."""
        return 0

    def sequence_id(self) -> int:
        """Return the sequence id the application gave, -1 where it gave none."""
        return -1 if self._outgoing.sequence_id is None else self._outgoing.sequence_id

    def producer_name(self) -> str:
        """Return an empty text: the name is the producer's to know."""
        return ""

    def has_null_value(self) -> bool:
        """Return whether this is a null value."""
        return self._outgoing.null_value

    def has_null_partition_key(self) -> bool:
        """Return whether the key of a separated pair of key and value is null."""
        return self._outgoing.null_partition_key

    def schema_version(self) -> str:
        """Return the version of the schema given with the message, "" where it is the producer's."""
        return (self._outgoing.schema_version or b"").decode("latin-1")

    def schema_version_bytes(self) -> bytes | None:
        """Return the same version as bytes, None where it is the producer's."""
        return self._outgoing.schema_version

    def int_schema_version(self) -> int | None:
        """Return the same version as a number, None where it is the producer's."""
        version = self._outgoing.schema_version
        return int.from_bytes(version, "big") if version else None

    def message_id(self) -> MessageId:
        """Return the empty id: the message has none yet."""
        return MessageId()

    def topic_name(self) -> str:
        """Return an empty text: the partition is what the router decides."""
        return ""

    def encryption_context(self) -> None:
        """Return None: the message is not encrypted yet."""

    def redelivery_count(self) -> int:
        """Return 0."""
        return 0

    def index(self) -> int | None:
        """Return None: the broker has not stored the message yet."""
        return None

    def broker_publish_time(self) -> int | None:
        """Return None: the broker has not stored the message yet."""
        return None

    def __len__(self) -> int:
        return len(self._outgoing.payload)

    def __repr__(self) -> str:
        return f"<Message to be routed, {len(self)} bytes>"
