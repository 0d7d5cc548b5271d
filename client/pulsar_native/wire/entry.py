"""Entry parser: `[0x0e02 size broker-metadata]? [0x0e01 crc32c]? [size][metadata][body]` as the broker delivers it.

May not do: decrypt, decompress or split the body; `compression` and `codec` do.

Rules: the broker's block is read first and is not covered by the checksum; the checksum is verified behind it too
(clients that look for 0x0e01 first skip the check on such entries). An entry without checksum is accepted, as producers
may send none. Unreadable metadata count as a failed checksum.
"""

from __future__ import annotations

from struct import Struct
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from pulsar_native.exceptions import ChecksumError, InvalidMessage
from pulsar_native.wire import _impl
from pulsar_native.wire.checksum import crc32c
from pulsar_native.wire.frames import CHECKSUM_MAGIC, unknown_number
from pulsar_native.wire.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata

EntryKey = tuple[int, int]
"""Ledger id and entry id of an entry."""

BROKER_METADATA_MAGIC = b"\x0e\x02"

_SIZE = Struct(">I")
_COMPRESSION_FIELD = 8

_M = TypeVar("_M", bound=Message)


class ParsedEntry:
    """Parsed entry; `body` is still compressed and perhaps encrypted.

    Attributes: broker_timestamp: the broker's clock at arrival in ms, None unless the broker exposes it. index: the
    broker index of the entry's last message, None unless the broker exposes it. metadata: the producer's metadata of
    the entry. body: everything behind the metadata. is_batch: True if the body is a batch (the count is present,
    whatever its value). num_messages: messages in the entry, at least 1; permits count these. checksum_ok: True when a
    checksum was present and correct, None when there was none or it was not to be verified. is_encrypted, is_chunk,
    is_compacted: True for an encrypted entry, a part of a chunked message, and what compaction left of a batch.
    publish_time, compression, uncompressed_size: of the metadata.
    """

    __slots__ = (
        "body",
        "broker_timestamp",
        "checksum_ok",
        "compression",
        "index",
        "is_batch",
        "is_chunk",
        "is_compacted",
        "is_encrypted",
        "metadata",
        "num_messages",
        "publish_time",
        "uncompressed_size",
    )

    def __init__(
        self,
        metadata: MessageMetadata,
        body: bytes | memoryview,
        broker_timestamp: int | None = None,
        index: int | None = None,
        checksum_ok: bool | None = None,
    ) -> None:
        self.metadata = metadata
        self.body = body
        self.broker_timestamp = broker_timestamp
        self.index = index
        self.checksum_ok = checksum_ok
        self.is_batch = metadata.HasField("num_messages_in_batch")
        self.num_messages = max(1, metadata.num_messages_in_batch) if self.is_batch else 1
        self.publish_time = metadata.publish_time
        self.compression: int = metadata.compression
        self.uncompressed_size = metadata.uncompressed_size
        self.is_encrypted = bool(metadata.encryption_keys)
        self.is_chunk = metadata.num_chunks_from_msg > 1
        self.is_compacted = bool(metadata.compacted_batch_indexes)


def parse_entry(payload: bytes | memoryview, verify: bool = True) -> ParsedEntry:
    """Parse the payload of a MESSAGE frame. Pure.

    Raises `ChecksumError` when the checksum is wrong or the bytes are no entry, `InvalidMessage` when the entry is
    intact but its compression type is unknown to this client.
    """
    scanned: ParsedEntry | None = _impl.scan_entry(payload, verify)
    if scanned is not None:
        return scanned
    view = memoryview(payload)
    position = 0
    broker_timestamp: int | None = None
    index: int | None = None
    if view[:2] == BROKER_METADATA_MAGIC:
        start, position = _sized(view, 2, "broker metadata")
        broker = _read(BrokerEntryMetadata(), view[start:position])
        broker_timestamp = broker.broker_timestamp if broker.HasField("broker_timestamp") else None
        index = broker.index if broker.HasField("index") else None
    checksum_ok = None
    if view[position : position + 2] == CHECKSUM_MAGIC:
        position += 6
        if verify:
            _verify(view, position)
            checksum_ok = True
    start, position = _sized(view, position, "metadata")
    metadata = _read(MessageMetadata(), view[start:position])
    body = view[position:]
    _refuse_unknown_compression(metadata, len(body))
    return ParsedEntry(metadata, body, broker_timestamp, index, checksum_ok)


def _sized(view: memoryview, position: int, what: str) -> tuple[int, int]:
    """Return start and end of the block whose size is at `position`."""
    start = position + 4
    if start > len(view):
        raise ChecksumError(f"An entry ends before the size of its {what}")
    stop = start + _SIZE.unpack_from(view, position)[0]
    if stop > len(view):
        raise ChecksumError(f"An entry's {what} would end behind the entry")
    return start, stop


def _verify(view: memoryview, position: int) -> None:
    if position > len(view):
        raise ChecksumError("An entry ends inside its checksum")
    expected = _SIZE.unpack_from(view, position - 4)[0]
    actual = crc32c(view[position:])
    if actual != expected:
        raise ChecksumError(f"An entry's checksum is {actual:08x}, its producer wrote {expected:08x}")


def _read(message: _M, data: memoryview) -> _M:
    try:
        message.ParseFromString(data)  # type: ignore[arg-type]  # the runtime takes any buffer, its stub only bytes
    except (DecodeError, UnicodeDecodeError) as error:
        raise ChecksumError("An entry's metadata cannot be parsed") from error
    if not message.IsInitialized():
        raise ChecksumError("An entry's metadata lack a required field")
    return message


def _refuse_unknown_compression(metadata: MessageMetadata, size: int) -> None:
    """Raise when the compression type is unknown: the protobuf runtime then reads NONE, and the body would be garbage.

    Checked only when the sizes hint at it, since scanning unknown fields costs more than parsing the metadata.
    """
    if metadata.uncompressed_size in (0, size) or metadata.HasField("compression"):
        return
    number = unknown_number(metadata, _COMPRESSION_FIELD)
    if number is not None:
        raise InvalidMessage(f"An entry is compressed with codec {number}, which this client does not know")
