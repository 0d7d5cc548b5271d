"""Commands in the frames that a relay recorded."""

from __future__ import annotations

from typing import NamedTuple

from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import parse_entry
from pulsar_native.wire.frames import FrameDecoder
from support.relay import TO_BROKER, Command, Direction, Relay


class SentEntry(NamedTuple):
    """A SEND: its command, the metadata and the body (of a batch: all its messages, compressed if they are)."""

    command: pb.CommandSend
    metadata: pb.MessageMetadata
    body: bytes


def commands_of(relay: Relay, command: int, direction: Direction = TO_BROKER) -> list[pb.BaseCommand]:
    """Return the commands of one type that passed one way, in order."""
    return [_decode(seen.data)[0] for seen in relay.frames(command, direction)]


def sent_entries(relay: Relay) -> list[SentEntry]:
    """Return the entries sent to the broker, in order, resent ones again."""
    entries = []
    for seen in relay.frames(Command.SEND, TO_BROKER):
        command, payload = _decode(seen.data)
        parsed = parse_entry(payload)
        entries.append(SentEntry(command.send, parsed.metadata, bytes(parsed.body)))
    return entries


def _decode(data: bytes) -> tuple[pb.BaseCommand, bytes]:
    (frame,) = FrameDecoder(1 << 26).receive(data)
    return frame.command, frame.payload
