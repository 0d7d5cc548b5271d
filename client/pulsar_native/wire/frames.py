"""Frame codec of the binary protocol: `[total u32][command size u32][BaseCommand]`, then the payload of SEND and
MESSAGE.

May not do: parse payloads (`entry` does), keep or change the caller's input buffer after `receive` has returned.

Rules: every split of the stream gives the same frames. A payload is copied exactly once, out of the input; a frame that
is larger than the input grows in one buffer of its exact size. Sizes are checked before anything is allocated for them.
A command of a type unknown to this client is skipped and logged, as newer brokers may send such; any other violation of
the protocol raises `ProtocolViolation`, after which the connection must be closed: the decoder accepts no more input,
and the frames before the malformed one in the same input are lost with it.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from struct import Struct
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from pulsar_native._loggers import get_logger
from pulsar_native.exceptions import ProtocolViolation
from pulsar_native.wire.checksum import crc32c
from pulsar_native.wire.pulsar_api_pb2 import BaseCommand

DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024
"""Maximum message size in bytes unless CONNECTED.max_message_size sets another."""

FRAME_PADDING = 10 * 1024
"""Bytes a whole frame, its first four included, may have above the message size."""

CHECKSUM_MAGIC = b"\x0e\x01"

_HEAD = Struct(">II")
_SIZE = Struct(">I")
_HEAD_SIZE = _HEAD.size
_TOTAL_SIZE = 4  # the total counts everything after itself
_WEB_PORT = " An HTTP server answered: a broker's binary port is 6650 by default, 6651 with TLS"

# A broker newer than this client may have more values of these enumerations. Their fields are required, so such a
# command parses as incomplete though it is not: reading the field returns the enumeration's first value (an unknown
# error).
_OPEN_ENUMERATIONS = frozenset({"error.error", "send_error.error", "getSchemaResponse.schema.type"})

VARINT_LAST = tuple(bytes((value,)) for value in range(128))
"""A varint's only or last byte, by its seven bits."""

VARINT_MORE = tuple(bytes((value | 128,)) for value in range(128))
"""A varint byte that others follow, by its seven bits."""

_log = get_logger(__name__)


class Frame(NamedTuple):
    """One frame: the command, and all bytes after it (b"" when there are none)."""

    command: BaseCommand
    payload: bytes


CutMessages = Callable[[memoryview, int, int, list[Any], type[Frame]], int]
"""Function that cuts the ordinary MESSAGE frames from a position on, and returns where they end (`_impl`)."""


class FrameDecoder:
    """Decoder of a connection's stream into frames.

    Not thread-safe: one reader per connection. `max_frame_size` counts the whole frame with its first four bytes, may
    be set at any time (CONNECTED has the broker's message size) and applies from the next frame on.
    """

    __slots__ = ("_broken", "_cut_messages", "_head", "_missing", "_partial", "_payload", "_skipped", "max_frame_size")

    def __init__(
        self,
        max_frame_size: int = DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING,
        cut_messages: CutMessages = lambda _view, position, _most, _frames, _kind: position,
    ) -> None:
        self.max_frame_size = max_frame_size
        self._cut_messages = cut_messages
        self._head = bytearray()  # sizes and command of a frame before its payload
        self._partial: BaseCommand | None = None  # the command of a frame whose payload has begun
        self._payload = BytesIO()
        self._missing = 0  # missing bytes of its payload
        self._skipped: set[int] = set()
        self._broken = False

    def receive(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames completed by these bytes; does not block.

        Raises `ProtocolViolation` on a frame over `max_frame_size`, on contradictory sizes and on bytes that are no
        command; every later call raises too.
        """
        if self._broken:
            raise ProtocolViolation("This connection's stream was broken before")
        try:
            return self._cut(memoryview(data))
        except ProtocolViolation:
            self._broken = True
            raise

    def only_command(self, data: bytes) -> BaseCommand | None:
        """Return the command if these bytes are exactly one frame without payload and no frame is partly read.

        Else None, without any change of state: the bytes are to be passed to `receive`.
        """
        first = self.first_command(data)
        return first[0] if first is not None and first[1] == len(data) else None

    @property
    def is_between_frames(self) -> bool:
        """True if no frame is partly read, and the stream was not broken."""
        return not self._head and self._partial is None and not self._broken

    def first_command(self, data: bytes) -> tuple[BaseCommand, int] | None:
        """Return the command of the first frame in these bytes and the frame's size, if it is whole and without payload
        and no frame is partly read.

        Else None. No state is changed: the bytes, or those after the frame, are to be passed to `receive`.
        """
        if not self.is_between_frames or len(data) < _HEAD_SIZE:
            return None
        total, size = _HEAD.unpack_from(data)
        whole = total + _TOTAL_SIZE
        if whole > len(data) or size + _HEAD_SIZE != whole:
            return None
        command = BaseCommand()
        try:
            command.ParseFromString(data[_HEAD_SIZE:whole])
            command.SerializeToString()
        except (DecodeError, EncodeError, UnicodeDecodeError):
            return None
        field = _BODIES.get(command.type)
        return (command, whole) if field is not None and command.HasField(field) else None

    def _cut(self, view: memoryview) -> list[Frame]:
        frames: list[Frame] = []
        position = self._resume(view, frames)
        end = len(view)
        while end - position >= _HEAD_SIZE:
            position = self._cut_messages(view, position, self.max_frame_size, frames, Frame)
            if end - position < _HEAD_SIZE:
                break
            total, size = self._sizes(view, position)
            start = position + _HEAD_SIZE
            stop = position + _TOTAL_SIZE + total
            if stop > end:
                break
            command = self._parse(view[start : start + size])
            if command is not None:
                frames.append(Frame(command, bytes(view[start + size : stop])))
            position = stop
        if position < end:
            self._begin(view[position:])
        return frames

    def _sizes(self, buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
        total, size = _HEAD.unpack_from(buffer, position)
        if total + _TOTAL_SIZE > self.max_frame_size:
            hint = _WEB_PORT if _SIZE.pack(total) == b"HTTP" else ""
            raise ProtocolViolation(
                f"A frame of {total + _TOTAL_SIZE} bytes exceeds the limit of {self.max_frame_size};"
                f" is this a Pulsar broker's binary port?{hint}"
            )
        if not 0 < size <= total - 4:
            raise ProtocolViolation(f"A frame of {total} bytes cannot hold a command of {size} bytes")
        return total, size

    def _begin(self, rest: memoryview) -> None:
        """Keep the start of an incomplete frame: head until the command is complete, then the payload."""
        taken = self._read_head(rest)
        if self._partial is not None:
            self._payload.write(rest[taken:])
            self._missing -= len(rest) - taken

    def _resume(self, view: memoryview, frames: list[Frame]) -> int:
        """Continue the incomplete frame; return how many bytes of `view` belong to it."""
        taken = 0
        if self._partial is None:
            if not self._head:
                return 0
            taken = self._read_head(view)
            if self._partial is None:
                return taken
        part = view[taken : taken + self._missing]
        self._payload.write(part)
        self._missing -= len(part)
        if not self._missing:
            # BytesIO returns its own buffer when the size is exact: no second copy of the payload.
            command, payload = self._partial, self._payload.getvalue()
            self._partial, self._payload = None, BytesIO()
            if command.HasField("type"):
                frames.append(Frame(command, payload))
        return taken + len(part)

    def _read_head(self, view: memoryview) -> int:
        """Complete sizes and command as far as `view` reaches; when they are complete, allocate the payload."""
        head = self._head
        had = len(head)
        head += view[: max(0, _HEAD_SIZE - had)]
        if len(head) < _HEAD_SIZE:
            return len(head) - had
        total, size = self._sizes(head, 0)
        whole = _HEAD_SIZE + size
        head += view[len(head) - had : whole - had]
        if len(head) < whole:
            return len(head) - had
        # The payload of a skipped command must be skipped too: an empty command without type represents it.
        self._partial = self._parse(memoryview(bytes(head))[_HEAD_SIZE:]) or BaseCommand()
        self._missing = total - 4 - size
        if self._missing:
            self._payload.seek(self._missing - 1)
            self._payload.write(b"\0")
            self._payload.seek(0)
        self._head = bytearray()
        return whole - had

    def _parse(self, data: memoryview) -> BaseCommand | None:
        command = BaseCommand()
        try:
            command.ParseFromString(data)  # type: ignore[arg-type]  # the runtime takes any buffer, its stub only bytes
        except (DecodeError, UnicodeDecodeError) as error:
            raise ProtocolViolation("A frame's command cannot be parsed") from error
        try:
            command.SerializeToString()  # fails where a required field is missing, at half the cost of IsInitialized()
        except EncodeError:
            return self._judge(command)
        field = _BODIES.get(command.type)
        if field is not None and not command.HasField(field):
            raise ProtocolViolation(f"A command of type {command.type} has no {field}")
        return command

    def _judge(self, command: BaseCommand) -> BaseCommand | None:
        """Distinguish commands a newer broker may send from malformed ones."""
        if not command.HasField("type"):
            number = unknown_number(command, 1)
            if number is None:
                raise ProtocolViolation("A command has no type")
            if number not in self._skipped:
                self._skipped.add(number)
                _log.warning("Skipping commands of type %d, which this client does not know", number)
            return None
        missing = set(command.FindInitializationErrors())  # type: ignore[attr-defined]  # forgotten in the stub
        if not missing <= _OPEN_ENUMERATIONS:
            raise ProtocolViolation(f"A command of type {command.type} lacks {', '.join(sorted(missing))}")
        return command


def unknown_number(message: Message, field: int) -> int | None:
    """Return the value of an unreadable enumeration field: a number added after this client, None if there is none.
    Pure.
    """
    unknown = UnknownFieldSet(message)
    for position in range(len(unknown)):
        if unknown[position].field_number == field and unknown[position].wire_type == 0:
            return int(unknown[position].data)
    return None


def _bodies() -> dict[int, str]:
    """Return the required field of each command type; PING and PONG have none."""
    names = {number: field.name for number, field in BaseCommand.DESCRIPTOR.fields_by_number.items()}
    return {
        number: names[number]
        for number in BaseCommand.Type.values()
        if not getattr(BaseCommand(), names[number]).IsInitialized()
    }


_BODIES = _bodies()


def encode_command(command: BaseCommand) -> bytes:
    """Return the frame of a command without payload. Pure; raises `ValueError` when a required field is not set."""
    body = _serialize(command)
    return _HEAD.pack(len(body) + 4, len(body)) + body


def encode_send(command: BaseCommand | bytes, metadata: bytes, payload: bytes | memoryview) -> list[bytes | memoryview]:
    """Return the frame of a SEND as two parts for a vectored write: everything up to the metadata, and the payload.

    Pure; the payload is not copied. The checksum covers the metadata's size, the metadata and the payload.
    """
    body = command if isinstance(command, bytes) else _serialize(command)
    sized = _SIZE.pack(len(metadata)) + metadata
    total = 4 + len(body) + 6 + len(sized) + len(payload)
    checksum = crc32c(payload, crc32c(sized))
    head = b"".join((_HEAD.pack(total, len(body)), body, CHECKSUM_MAGIC, _SIZE.pack(checksum), sized))
    return [head, payload]


def varint(value: int) -> bytes:
    """Return a non-negative number of at most 64 bits as a protobuf varint. Pure."""
    if value < 128:
        return VARINT_LAST[value]
    if value < 16384:
        return VARINT_MORE[value & 127] + VARINT_LAST[value >> 7]
    return VARINT_MORE[value & 127] + VARINT_MORE[value >> 7 & 127] + varint(value >> 14)


def _serialize(command: BaseCommand) -> bytes:
    return command.SerializeToString()
