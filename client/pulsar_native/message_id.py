"""Message ids: where a message lies in its topic, how ids compare, and their portable bytes.

The bytes are the protocol's MessageIdData and are exchanged with the Java and C++ clients; they are written by hand
here because values may not import `wire`, which replaces the two functions by compiled ones where it has them. Rules:
an id is immutable and hashable; ids of different topics compare by position only, as in the other clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import total_ordering
from typing import ClassVar

from pulsar_native.exceptions import InvalidMessage

_U64 = (1 << 64) - 1
_MAX_I64 = (1 << 63) - 1
# Tags of MessageIdData's numbers: field number << 3.
_NUMBERS = frozenset((0x08, 0x10, 0x18, 0x20, 0x30))
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


@total_ordering
class MessageId:
    """Position of a message: ledger, entry, partition and index in its batch (-1 where there is none).

    Immutable and thread-safe. A chunked message is named by its last chunk and remembers its first.
    """

    __slots__ = ("_batch_index", "_batch_size", "_entry_id", "_first_chunk", "_ledger_id", "_partition", "_topic")

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(
        self,
        partition: int = -1,
        ledger_id: int = -1,
        entry_id: int = -1,
        batch_index: int = -1,
        *,
        batch_size: int = 0,
        topic: str | None = None,
        first_chunk: MessageId | None = None,
    ) -> None:
        if not (type(partition) is int is type(ledger_id) and type(entry_id) is int is type(batch_index)):
            _check_numbers(partition, ledger_id, entry_id, batch_index)
        self._partition = partition
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._batch_index = batch_index
        self._batch_size = batch_size
        self._topic = topic
        self._first_chunk = first_chunk

    def ledger_id(self) -> int:
        """Return the number of the ledger that holds the entry."""
        return self._ledger_id

    def entry_id(self) -> int:
        """Return the number of the entry in its ledger."""
        return self._entry_id

    def batch_index(self) -> int:
        """Return the message's index in its batch, -1 when it was not batched."""
        return self._batch_index

    def batch_size(self) -> int:
        """Return the number of messages in the batch, 0 when unknown or not batched."""
        return self._batch_size

    def partition(self) -> int:
        """Return the partition's number, -1 for a topic without partitions."""
        return self._partition

    def topic_name(self) -> str | None:
        """Return the topic (partition) the message came from, where known."""
        return self._topic

    def first_chunk_message_id(self) -> MessageId | None:
        """Return the id of the first chunk of a chunked message, else None."""
        return self._first_chunk

    def without_chunks(self) -> MessageId:
        """Return the position of a chunked message's last chunk, as of a message that is not chunked."""
        if self._first_chunk is None:
            return self
        return MessageId(self._partition, self._ledger_id, self._entry_id, self._batch_index, topic=self._topic)

    def serialize(self) -> bytes:
        """Return the portable bytes (protocol's MessageIdData, as the Java client writes them)."""
        return _codec.encode(self)

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """Return the id from its portable bytes; raises `InvalidMessage` when they are not such bytes."""
        if type(message_id_bytes) is not bytes:
            if not isinstance(message_id_bytes, bytes | bytearray | memoryview):
                raise InvalidMessage(f"A serialized message id is bytes, not {type(message_id_bytes).__name__}")
            message_id_bytes = bytes(message_id_bytes)
        return _codec.decode(message_id_bytes, topic)

    @classmethod
    def wrap(cls, msg_id: MessageId) -> MessageId:
        """Return the id itself; the official client needs this call to convert, this one does not."""
        return msg_id

    def _key(self) -> tuple[int, int, int, int]:
        # No index means "the whole entry": it sorts before the entry's messages, as in the Java client.
        return (self._ledger_id, self._entry_id, self._partition, self._batch_index)

    def _order(self) -> tuple[int, int, int, int]:
        return (self._ledger_id, self._entry_id, self._batch_index, self._partition)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, MessageId)
            and self._entry_id == other._entry_id
            and self._ledger_id == other._ledger_id
            and self._batch_index == other._batch_index
            and self._partition == other._partition
        )

    def __lt__(self, other: MessageId) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self._order() < other._order()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"MessageId({self})"

    def __str__(self) -> str:
        text = f"{self._ledger_id}:{self._entry_id}:{self._partition}:{self._batch_index}"
        return f"{self._first_chunk};{text}" if self._first_chunk else text

    def __reduce__(self) -> tuple[object, ...]:
        return (MessageId.deserialize, (self.serialize(), self._topic))


MessageId.earliest = MessageId(-1, -1, -1, -1)
MessageId.latest = MessageId(-1, _MAX_I64, _MAX_I64, -1)


def _check_numbers(*numbers: object) -> None:
    for number in numbers:
        if not isinstance(number, int):
            raise InvalidMessage(f"A message id is made of int, not {type(number).__name__}")


def _varint(value: int) -> bytes:
    # The usual sizes first, each in one expression: an id has four of these numbers.
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if 0 <= value < 0x4000:
        return b"%c%c" % (value & 0x7F | 0x80, value >> 7)
    if 0 <= value < 0x200000:
        return b"%c%c%c" % (value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(message_id: MessageId) -> bytes:
    """Return the portable bytes of an id. Pure."""
    out = b"\x08" + _varint(message_id._ledger_id) + b"\x10" + _varint(message_id._entry_id)
    if message_id._partition >= 0:
        out += b"\x18" + _varint(message_id._partition)
    if message_id._batch_index >= 0:
        out += b"\x20" + _varint(message_id._batch_index)
    out += b"\x30" + _varint(message_id._batch_size)
    first = message_id._first_chunk
    if first is not None:
        inner = encode(first)
        out += b"\x3a" + _varint(len(inner)) + inner
    return out


def _signed(value: int) -> int:
    return value - (1 << 64) if value > _MAX_I64 else value


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, position
        shift += 7
    raise InvalidMessage("These bytes are not a serialized message id")


def decode(data: bytes, topic: str | None, depth: int = 0) -> MessageId:
    """Return the id of portable bytes; raises `InvalidMessage` when they are malformed. Pure."""
    fields = _plain_fields(data)
    return _from_fields(fields, topic) if fields is not None else _decode_any(data, topic, depth)


def _plain_fields(data: bytes) -> dict[int, int] | None:
    """Return the numbers by tag where there is nothing but numbers, each of at most 63 bits; None otherwise."""
    fields: dict[int, int] = {}
    rest = iter(data)
    for tag in rest:
        value = next(rest, None)
        if tag not in _NUMBERS or value is None:
            return None
        if value > 0x7F:
            value &= 0x7F
            shift = 7
            for byte in rest:
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 56:
                    return None
            else:
                return None
        fields[tag] = value
    return fields if 0x08 in fields and 0x10 in fields else None


def _from_fields(fields: dict[int, int], topic: str | None) -> MessageId:
    get = fields.get
    # Not by the constructor, which checks types: these are numbers.
    message_id = MessageId.__new__(MessageId)
    message_id._partition = get(0x18, -1)
    message_id._ledger_id = fields[0x08]
    message_id._entry_id = fields[0x10]
    message_id._batch_index = get(0x20, -1)
    message_id._batch_size = get(0x30, 0)
    message_id._topic = topic
    message_id._first_chunk = None
    return message_id


def _decode_any(data: bytes, topic: str | None, depth: int) -> MessageId:
    fields: dict[int, int] = {}
    first_chunk: MessageId | None = None
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        value, position = _read_varint(data, position) if kind in (0, 2) else (0, position)
        if kind == 0:
            fields[number] = value
        elif kind == 2 and position + value <= len(data) and depth == 0:
            if number == 7:
                first_chunk = decode(data[position : position + value], topic, depth + 1)
            position += value
        else:
            raise InvalidMessage("These bytes are not a serialized message id")
    if 1 not in fields or 2 not in fields:
        raise InvalidMessage("These bytes are not a serialized message id: ledger or entry is missing")
    return MessageId(
        _signed(fields.get(3, _U64)),
        _signed(fields[1]),
        _signed(fields[2]),
        _signed(fields.get(4, _U64)),
        batch_size=_signed(fields.get(6, 0)),
        topic=topic,
        first_chunk=first_chunk,
    )


class _Codec:
    """Functions in use for the bytes of ids: those above, or compiled ones that do the same."""

    __slots__ = ("decode", "encode")

    def __init__(self) -> None:
        self.encode: Callable[[MessageId], bytes] = encode
        self.decode: Callable[[bytes, str | None], MessageId] = decode


_codec = _Codec()


def use_codec(encoder: Callable[[MessageId], bytes], decoder: Callable[[bytes, str | None], MessageId]) -> None:
    """Replace the functions for the bytes of ids; for `wire`, which has compiled ones. Not thread-safe."""
    _codec.encode, _codec.decode = encoder, decoder
