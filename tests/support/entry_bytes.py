"""Entries as a broker delivers them, made from messages."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pulsar_native.enums import CompressionType
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.checksum import crc32c
from pulsar_native.wire.codec import encode_batch, encode_single_fields
from pulsar_native.wire.compression import compress

PUBLISHED = 1_700_000_000_000

NO_FIELDS: dict[str, Any] = {
    "properties": None,
    "partition_key": None,
    "key_is_base64": False,
    "ordering_key": None,
    "event_time": 0,
    "null_value": False,
}


def metadata_of(sequence_id: int = 0, **fields: Any) -> pb.MessageMetadata:
    """Return the metadata of an entry with the required fields set."""
    return pb.MessageMetadata(**{"producer_name": "p", "sequence_id": sequence_id, "publish_time": PUBLISHED, **fields})


def assemble(
    metadata: pb.MessageMetadata | bytes,
    body: bytes,
    *,
    checksum: bool = True,
    broker: pb.BrokerEntryMetadata | None = None,
) -> bytes:
    """Return an entry: the broker's block if there is one, the checksum if wanted, metadata and body."""
    data = metadata if isinstance(metadata, bytes) else metadata.SerializeToString()
    sized = struct.pack(">I", len(data)) + data + body
    parts = [b"\x0e\x01", struct.pack(">I", crc32c(sized))] if checksum else []
    if broker is not None:
        block = broker.SerializeToString()
        parts = [b"\x0e\x02", struct.pack(">I", len(block)), block, *parts]
    return b"".join([*parts, sized])


def single_entry(body: bytes, *, compression: CompressionType = CompressionType.NONE, **fields: Any) -> bytes:
    """Return the entry of one message that is not in a batch."""
    return _compressed(metadata_of(uncompressed_size=len(body), **fields), body, compression)


def batch_entry(
    payloads: Sequence[bytes],
    *,
    first_sequence_id: int = 0,
    singles: Sequence[Mapping[str, Any]] | None = None,
    compacted_out: Sequence[int] = (),
    compression: CompressionType = CompressionType.NONE,
    broker: pb.BrokerEntryMetadata | None = None,
    **fields: Any,
) -> bytes:
    """Return the entry of a batch; `singles` are the messages' own fields, as `encode_single_fields` takes them."""
    count = len(payloads)
    own = [encode_single_fields(**{**NO_FIELDS, **(singles[index] if singles else {})}) for index in range(count)]
    for index in compacted_out:
        own[index] += b"\x20\x01"
    body = encode_batch(payloads, range(first_sequence_id, first_sequence_id + count), own)
    metadata = metadata_of(first_sequence_id, num_messages_in_batch=count, uncompressed_size=len(body), **fields)
    return _compressed(metadata, body, compression, broker)


def _compressed(
    metadata: pb.MessageMetadata,
    body: bytes,
    compression: CompressionType,
    broker: pb.BrokerEntryMetadata | None = None,
) -> bytes:
    if compression is not CompressionType.NONE:
        metadata.compression = compression.value  # type: ignore[assignment]
        body = compress(compression, body)
    return assemble(metadata, body, broker=broker)
