"""A producer's state machine to play with, and what the entries it makes say."""

from __future__ import annotations

from typing import Any, NamedTuple

from pulsar_native.config import ProducerConfig
from pulsar_native.enums import CompressionType
from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.data_keys import Encryptor
from pulsar_native.protocol.producer import ProducerCore
from pulsar_native.protocol.send_op import SendOp
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import encode_single_fields, parse_single, split_batch
from pulsar_native.wire.compression import decompress
from pulsar_native.wire.entry import ParsedEntry, parse_entry
from pulsar_native.wire.frames import FrameDecoder

TOPIC = "persistent://public/default/t"


def core(
    *,
    max_message_size: int = 5 << 20,
    last_sequence_id: int = -1,
    schema: bytes = b"",
    max_pending: int = 0,
    encryptor: Encryptor | None = None,
    **options: Any,
) -> ProducerCore:
    """Return a connected core; `options` are those of the description."""
    config = ProducerConfig(topic="t", **{"batching_enabled": True, **options})
    made = ProducerCore(config, 7, topic=TOPIC, partition=2, max_pending=max_pending, encryptor=encryptor)
    made.connected("the-name", last_sequence_id, schema, max_message_size)
    return made


def add(
    made: ProducerCore, payload: bytes = b"x", now: float = 0.0, callback: Any = None, **parts: Any
) -> list[SendOp]:
    """Add a message with these parts; return the entries that became ready."""
    extras = OutgoingMessage(payload, **parts) if parts else None
    fields = b""
    if extras is not None:
        ordering = extras.ordering_key.encode() if isinstance(extras.ordering_key, str) else extras.ordering_key
        fields = encode_single_fields(
            extras.properties, extras.partition_key, extras.key_is_base64, ordering, extras.event_timestamp or 0,
            extras.null_value,
        )  # fmt: skip
    return made.add(payload, fields, extras, callback, now, 1_700_000_000_000)


class Sent(NamedTuple):
    """Decoded fields of an entry."""

    command: pb.CommandSend
    entry: ParsedEntry
    body: bytes
    messages: list[tuple[int, bytes]]


def bytes_of(op: SendOp) -> bytes:
    """Return the frame of an entry."""
    return b"".join(bytes(part) for part in op.parts)


def read(op: SendOp) -> Sent:
    """Return what the frame of an entry says."""
    (frame,) = FrameDecoder().receive(bytes_of(op))
    entry = parse_entry(frame.payload)
    body = bytes(entry.body)
    if entry.metadata.compression and not entry.metadata.uuid:
        body = decompress(CompressionType(entry.metadata.compression), body, entry.metadata.uncompressed_size, 1 << 24)
    command = frame.command.send
    if not entry.is_batch:
        return Sent(command, entry, body, [(entry.metadata.sequence_id, body)])
    messages = []
    for meta, start, end in split_batch(body, entry.num_messages):
        messages.append((parse_single(body[meta:start]).sequence_id, body[start:end]))
    return Sent(command, entry, body, messages)
