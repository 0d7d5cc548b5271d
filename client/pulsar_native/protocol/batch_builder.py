"""Batch message container: messages collected for one entry, and the entry metadata derived from them.

Rules: all messages of an entry have the same schema version and the same transaction (`BatchKey`); with key-based
batching, also the same key.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.send_op import SendCallback
from pulsar_native.protocol.transaction import TransactionCore
from pulsar_native.wire import pulsar_api_pb2 as pb

# Attributes all messages of an entry share: schema version, and the transaction if any.
BatchKey = bytes | None | tuple[bytes | None, TransactionCore]


class BatchBuilder:
    """Messages collected for one entry."""

    __slots__ = (
        "callbacks",
        "created",
        "fields",
        "first_key",
        "ids",
        "kind",
        "payload_bytes",
        "payloads",
        "potential_duplicates",
        "size",
        "wall",
    )

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.ids: range | list[int] = range(0)
        self.fields: list[bytes] = []
        self.callbacks: list[SendCallback | None] = []
        self.payload_bytes = 0
        # With the fields, and an overhead of each message.
        self.size = 0
        self.created = 0.0
        self.wall = 0
        self.first_key: OutgoingMessage | None = None
        self.potential_duplicates = False
        self.kind: BatchKey = None

    def add_ids(self, start: int, count: int) -> None:
        """Append consecutive sequence ids. They stay a range, which costs nothing per message, as long as all are."""
        ids = self.ids
        if not ids:
            self.ids = range(start, start + count)
        elif isinstance(ids, range) and ids.stop == start:
            self.ids = range(ids.start, start + count)
        else:
            listed = self.ids = ids if isinstance(ids, list) else list(ids)
            listed += range(start, start + count)

    def repair(self) -> None:
        """Remove what is left of a message whose addition was interrupted by an exception of a signal handler."""
        columns: tuple[list[Any], ...] = (self.payloads, self.fields, self.callbacks)
        count = min(len(self.ids), *map(len, columns))
        self.ids = self.ids[:count]
        for column in columns:
            del column[count:]
        self.payload_bytes = sum(map(len, self.payloads))


def single_fields(metadata: pb.MessageMetadata, extras: OutgoingMessage) -> None:
    """Write the fields of an unbatched message into the entry's metadata."""
    if extras.properties:
        metadata.properties.extend(pb.KeyValue(key=key, value=value) for key, value in extras.properties.items())
    if extras.partition_key is not None:
        metadata.partition_key = extras.partition_key
        metadata.partition_key_b64_encoded = extras.key_is_base64
    if extras.ordering_key:
        key = extras.ordering_key
        metadata.ordering_key = key if isinstance(key, bytes) else key.encode()
    if extras.event_timestamp:
        metadata.event_time = extras.event_timestamp
    if extras.replicate_to:
        metadata.replicate_to.extend(extras.replicate_to)
    if extras.deliver_at is not None:
        metadata.deliver_at_time = extras.deliver_at
    if extras.null_value:
        metadata.null_value = True
    if extras.null_partition_key:
        metadata.null_partition_key = True


def shared_keys(metadata: pb.MessageMetadata, first: OutgoingMessage | None) -> None:
    """Write the first message's keys into the batch metadata: the broker selects the Key_Shared consumer by them."""
    if first is None:
        return
    if first.partition_key is not None:
        metadata.partition_key = first.partition_key
        metadata.partition_key_b64_encoded = first.key_is_base64
    if first.ordering_key:
        key = first.ordering_key
        metadata.ordering_key = key if isinstance(key, bytes) else key.encode()


def split_by_key(batch: BatchBuilder) -> list[BatchBuilder]:
    """Return one batch per key (the ordering key, else the partition key), ordered by their first messages."""
    parts: dict[tuple[bool, bytes | str] | None, BatchBuilder] = {}
    for payload, sequence_id, fields, callback in zip(
        batch.payloads, batch.ids, batch.fields, batch.callbacks, strict=True
    ):
        single = pb.SingleMessageMetadata.FromString(fields)
        key: tuple[bool, bytes | str] | None = None
        if single.ordering_key:
            key = (True, single.ordering_key)
        elif single.HasField("partition_key"):
            key = (False, single.partition_key)
        part = parts.get(key)
        if part is None:
            part = parts[key] = BatchBuilder()
            part.created, part.wall, part.first_key = batch.created, batch.wall, message_of(single)
            part.potential_duplicates, part.kind = batch.potential_duplicates, batch.kind
        part.payloads.append(payload)
        part.payload_bytes += len(payload)
        part.add_ids(sequence_id, 1)
        part.fields.append(fields)
        part.callbacks.append(callback)
    return list(parts.values())


def described_by(fields: bytes) -> OutgoingMessage | None:
    """Return the message fields encoded in these bytes, None when there are none."""
    return message_of(pb.SingleMessageMetadata.FromString(fields)) if fields else None


def message_of(single: pb.SingleMessageMetadata) -> OutgoingMessage:
    """Return the message fields encoded in a batch's single metadata, without the payload."""
    return OutgoingMessage(
        b"",
        properties={pair.key: pair.value for pair in single.properties},
        partition_key=single.partition_key if single.HasField("partition_key") else None,
        key_is_base64=single.partition_key_b64_encoded,
        ordering_key=single.ordering_key.decode(),
        event_timestamp=single.event_time,
        null_value=single.null_value,
        null_partition_key=single.null_partition_key,
    )
