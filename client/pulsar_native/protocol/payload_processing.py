"""Payload processing: an application's processor reads an entry, and its messages are encoded as an entry again.

The steps behind (splitting, acknowledging, columns) see what a producer would have published. Pure but for the
processor.
"""

from __future__ import annotations

import base64

from pulsar_native._callback_errors import is_of_signal_handler
from pulsar_native._message_fields import text_of
from pulsar_native._type_names import type_name
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.payload_processor import MessagePayloadProcessor, PayloadMessage
from pulsar_native.protocol.batch_builder import described_by, single_fields
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire._impl import encode_batch
from pulsar_native.wire.codec import encode_single_fields, parse_single, split_batch
from pulsar_native.wire.entry import ParsedEntry

# Fields of an entry's metadata that an unbatched message has of its own.
_MESSAGE_FIELDS = (
    "properties", "partition_key", "partition_key_b64_encoded", "ordering_key", "event_time", "null_value",
    "null_partition_key",
)  # fmt: skip


class EntryPayloadContext:
    """`MessagePayloadContext` of an entry."""

    def __init__(self, parsed: ParsedEntry) -> None:
        self._parsed = parsed

    @property
    def is_batch(self) -> bool:
        """True if the producer published the entry as a batch."""
        return self._parsed.is_batch

    @property
    def num_messages(self) -> int:
        """Number of messages in the entry as its metadata say."""
        return self._parsed.num_messages

    def get_property(self, key: str) -> str | None:
        """Return a property of the entry; of a repeated key the last one, as of a message."""
        found = [pair.value for pair in self._parsed.metadata.properties if pair.key == key]
        return text_of(found[-1]) if found else None

    def messages(self, payload: bytes) -> list[PayloadMessage]:
        """Return the messages of a payload in Pulsar's own format."""
        parsed = self._parsed
        if not parsed.is_batch:
            return [_message_of(parsed.metadata, payload)]
        singles = (
            (parse_single(payload[meta:start]), payload[start:end])
            for meta, start, end in split_batch(payload, parsed.num_messages)
        )
        return [_message_of(single, data) for single, data in singles if not single.compacted_out]


def process(processor: MessagePayloadProcessor, parsed: ParsedEntry, body: bytes) -> tuple[ParsedEntry, bytes]:
    """Return an entry as its processor has read it, and its body: a batch of 0 or more messages, or still one message.

    Raises `InvalidMessage` if the processor raises an exception or returns anything but messages.
    """
    try:
        messages = [_checked(message) for message in processor.process(body, EntryPayloadContext(parsed))]
        if len(messages) == 1 and not parsed.is_batch:
            return _single(parsed, messages[0])
        if messages and parsed.is_chunk:
            raise InvalidMessage(f"a message in chunks cannot become {len(messages)} messages")
        return _batch(parsed, messages)
    except Exception as error:
        if is_of_signal_handler(error):
            raise
        raise InvalidMessage(f"message_payload_processor failed: {type_name(error)}: {error}") from error


def _single(parsed: ParsedEntry, message: PayloadMessage) -> tuple[ParsedEntry, bytes]:
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(parsed.metadata)
    for name in _MESSAGE_FIELDS:
        metadata.ClearField(name)
    if message.sequence_id is not None:
        metadata.sequence_id = message.sequence_id
    fields = described_by(_fields_of(message))
    if fields is not None:
        single_fields(metadata, fields)
    return _parsed(parsed, metadata, parsed.index), message.data or b""


def _batch(parsed: ParsedEntry, messages: list[PayloadMessage]) -> tuple[ParsedEntry, bytes]:
    first_id = parsed.metadata.sequence_id
    ids = [first_id if message.sequence_id is None else message.sequence_id for message in messages]
    body = encode_batch([message.data or b"" for message in messages], ids, [_fields_of(each) for each in messages])
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(parsed.metadata)
    metadata.num_messages_in_batch = len(messages)
    # The broker's index counts the messages that the producer has published.
    processed = _parsed(parsed, metadata, parsed.index if len(messages) == parsed.num_messages else None)
    processed.num_messages = len(messages)
    return processed, body


def _parsed(parsed: ParsedEntry, metadata: pb.MessageMetadata, index: int | None) -> ParsedEntry:
    return ParsedEntry(metadata, b"", parsed.broker_timestamp, index, parsed.checksum_ok)


def _message_of(fields: pb.SingleMessageMetadata | pb.MessageMetadata, data: bytes) -> PayloadMessage:
    key: str | bytes | None = text_of(fields.partition_key) if fields.HasField("partition_key") else None
    if key is not None and fields.partition_key_b64_encoded:
        key = base64.b64decode(key)
    return PayloadMessage(
        None if fields.null_value else data,
        properties={text_of(pair.key): text_of(pair.value) for pair in fields.properties},
        partition_key=key,
        ordering_key=fields.ordering_key.decode("utf-8", "replace") if fields.HasField("ordering_key") else None,
        event_timestamp=fields.event_time or None,
        sequence_id=fields.sequence_id if fields.HasField("sequence_id") else None,
    )


def _checked(message: PayloadMessage) -> PayloadMessage:
    if not isinstance(message, PayloadMessage):
        raise InvalidMessage(f"it must return PayloadMessages, not {type_name(message)}")
    return message


def _fields_of(message: PayloadMessage) -> bytes:
    """Return a message's own fields, encoded."""
    key, ordering_key = message.partition_key, message.ordering_key
    return encode_single_fields(
        message.properties,
        base64.b64encode(key).decode() if isinstance(key, bytes) else key,
        isinstance(key, bytes),
        None if ordering_key is None else ordering_key.encode(),
        message.event_timestamp or 0,
        message.data is None,
    )
