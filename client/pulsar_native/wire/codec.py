"""Batch codec: n times `[size u32][SingleMessageMetadata][payload]`, encoded and decoded without one object per
message.

May not do: compress, checksum or frame a batch; keep state between calls.

Rules: this is the hot path, in plain Python on purpose; the functions `_speedups` compiles must behave the same, and
callers import them from `_impl`. Repeating values are computed once per run of messages, differing ones go through
C-speed primitives (join, strided slices). Sizes a peer wrote are checked against the batch before they are used; a scan
always moves forward, so a hostile batch costs no more than its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from google.protobuf.message import DecodeError

from pulsar_native.exceptions import InvalidMessage
from pulsar_native.wire.frames import VARINT_LAST, VARINT_MORE, varint
from pulsar_native.wire.pulsar_api_pb2 import SingleMessageMetadata

_SIZE = Struct(">I")
_START = Struct(">IBBB")  # size of a message's metadata, and the first three bytes of the metadata
_U64 = (1 << 64) - 1
_TEXT = frozenset({str})
_BYTES = frozenset({bytes})

# Tags of SingleMessageMetadata: field number << 3 | kind (0 = varint, 2 = bytes).
_PROPERTIES = b"\x0a"
_PARTITION_KEY = b"\x12"
_PAYLOAD_SIZE = b"\x18"
COMPACTED_OUT = b"\x20\x01"  # compacted_out = true
_EVENT_TIME = b"\x28"
_KEY_IS_BASE64 = b"\x30\x01"
_ORDERING_KEY = b"\x3a"
_SEQUENCE_ID = b"\x40"
_NULL_VALUE = b"\x48\x01"
_NULL_KEY = b"\x50\x01"

_PAYLOAD_SIZE_TAG = _PAYLOAD_SIZE[0]

_WORTH_PICKING = 128  # bytes per message; below, searching the payloads too is faster than extracting the metadata
_WORTH_A_RUN = 8  # messages; below, reading them one by one is as fast


@lru_cache(maxsize=1024)
def _property_key(key: str) -> bytes:
    """Return an encoded property up to its value's size; cached, as applications use few different keys."""
    text = key.encode()
    return b"\x0a" + varint(len(text)) + text + b"\x12"


def encode_single_fields(
    properties: Mapping[str, str] | None = None,
    partition_key: str | None = None,
    key_is_base64: bool = False,
    ordering_key: bytes | None = None,
    event_time: int = 0,
    null_value: bool = False,
    null_partition_key: bool = False,
) -> bytes:
    """Return a message's own metadata fields, without its payload size and sequence id. Pure.

    `event_time` in ms since 1970, 0 = none. Returns b"" when nothing is set. Raises `InvalidMessage` for text that is
    not valid Unicode or a negative time.
    """
    parts: list[bytes] = []
    try:
        for key, value in (properties or {}).items():
            text = value.encode()
            pair = _property_key(key) + varint(len(text)) + text
            parts += (_PROPERTIES, varint(len(pair)), pair)
        if partition_key is not None:
            text = partition_key.encode()
            parts += (_PARTITION_KEY, varint(len(text)), text)
    except UnicodeEncodeError as error:
        raise InvalidMessage("A message's key or properties cannot be written as UTF-8") from error
    if event_time:
        if not 0 < event_time <= _U64:
            raise InvalidMessage(f"An event time must be milliseconds since 1970, not {event_time}")
        parts += (_EVENT_TIME, varint(event_time))
    if partition_key is not None and key_is_base64:
        parts.append(_KEY_IS_BASE64)
    if ordering_key is not None:
        parts += (_ORDERING_KEY, varint(len(ordering_key)), ordering_key)
    if null_value:
        parts.append(_NULL_VALUE)
    if null_partition_key:
        parts.append(_NULL_KEY)
    return b"".join(parts)


def usual_fields(properties: object, partition_key: object, ordering_key: object, event_time: object) -> bytes | None:
    """Return a message's own fields encoded, None if one is not of its usual type or out of range. Pure.

    Usual are a dict of str to str, str keys (the ordering key in ASCII), and an int of 64 bits. Raises `InvalidMessage`
    as `encode_single_fields`.
    """
    if properties is None:
        pairs: dict[str, str] | None = None
    # Without a Python step per pair: this runs for each message.
    elif type(properties) is dict and {*map(type, properties), *map(type, properties.values())} <= _TEXT:
        pairs = properties
    else:
        return None
    if not (partition_key is None or type(partition_key) is str):
        return None
    if not (ordering_key is None or (type(ordering_key) is str and ordering_key.isascii())):
        return None
    if not (event_time is None or (type(event_time) is int and 0 <= event_time <= _U64)):
        return None
    encoded_key = ordering_key.encode() if ordering_key else None
    return encode_single_fields(pairs, partition_key, False, encoded_key, event_time or 0)


def text_fields(name: str | None, values: Sequence[str | None]) -> list[bytes]:
    """Return the metadata field of a property with each of these values, b"" for None; of the key if `name` is None.

    Pure. Repeating values are encoded once. Raises `InvalidMessage` for text that is not valid Unicode.
    """
    known: dict[str | None, bytes] = {None: b""}
    found: list[bytes] = []
    for value in values:
        field = known.get(value)
        if field is None:
            assert value is not None
            own = encode_single_fields(partition_key=value) if name is None else encode_single_fields({name: value})
            field = known[value] = own
        found.append(field)
    return found


def encode_batch(payloads: Sequence[bytes], sequence_ids: Sequence[int], fields: Sequence[bytes] = ()) -> bytes:
    """Return the body of a batch, uncompressed. Pure; 0.1 us per message without fields.

    `fields[i]` is the result of `encode_single_fields` for message i; () if no message has fields. Sequence ids may be
    a `range`. Raises `ValueError` when the lengths differ.
    """
    count = len(payloads)
    if len(sequence_ids) != count or (fields and len(fields) != count):
        raise ValueError("A batch needs one sequence id, and one item of fields, for each payload")
    if not count:
        return b""
    firsts, rests, width = _sequence_ids(sequence_ids)
    if fields and any(fields):
        return _encode_rich(payloads, firsts, rests, fields)
    lengths = list(map(len, payloads))
    parts: list[bytes] = [b""] * (4 * count)
    parts[0::4] = _heads(lengths, width) if width else list(map(_head, lengths, map(len, firsts)))
    parts[1::4] = firsts
    parts[2::4] = rests
    parts[3::4] = payloads
    return b"".join(parts)


def _heads(lengths: list[int], width: int) -> list[bytes]:
    if lengths.count(lengths[0]) == len(lengths):
        return [_head(lengths[0], width)] * len(lengths)
    heads = {length: _head(length, width) for length in set(lengths)}
    return [heads[length] for length in lengths]


@lru_cache(maxsize=4096)
def _head(length: int, width: int) -> bytes:
    """Return the bytes before a sequence id of `width` bytes, for a payload of `length` bytes."""
    size = _PAYLOAD_SIZE + varint(length) + _SEQUENCE_ID
    return _SIZE.pack(len(size) + width) + size


def _sequence_ids(ids: Sequence[int]) -> tuple[list[bytes], list[bytes], int]:
    """Return the ids as varints in two parts, and their width in bytes; width 0: it differs, or the second is empty.

    Built in runs of consecutive ids, as a producer's nearly always are: up to 128 neighbours differ only in the lowest
    seven bits, the first byte.
    """
    first = ids[0] if ids else 0
    end = first + len(ids)
    if not 0 <= first <= end <= _U64 or list(range(first, end)) != list(ids):
        return [varint(value & _U64) for value in ids], [b""] * len(ids), 0
    width = len(varint(first))
    if width != len(varint(max(first, end - 1))):
        return [varint(value) for value in ids], [b""] * len(ids), 0
    firsts: list[bytes] = []
    rests: list[bytes] = []
    while first < end:
        high = first >> 7
        stop = min(end, (high + 1) << 7)
        firsts += (VARINT_MORE if high else VARINT_LAST)[first & 127 : (stop - 1 & 127) + 1]
        rests += [varint(high) if high else b""] * (stop - first)
        first = stop
    return firsts, rests, width


def sequence_fields(first: int, count: int) -> bytes:
    """Return the metadata fields of `count` sequence ids from `first` on, joined; b"" unless of one width. Pure."""
    firsts, rests, width = _sequence_ids(range(first, first + count))
    if not width:
        return b""
    parts = [_SEQUENCE_ID] * (3 * count)
    parts[1::3] = firsts
    parts[2::3] = rests
    return b"".join(parts)


def _encode_rich(payloads: Sequence[bytes], firsts: list[bytes], rests: list[bytes], fields: Sequence[bytes]) -> bytes:
    """Encode with fields. The payload's size is written before them: readers then find it without a search."""
    parts: list[bytes] = []
    sizes: dict[int, bytes] = {}
    for payload, first, rest, own in zip(payloads, firsts, rests, fields, strict=True):
        length = len(payload)
        size = sizes.get(length)
        if size is None:
            size = sizes[length] = _PAYLOAD_SIZE + varint(length)
        meta = len(size) + len(own) + 1 + len(first) + len(rest)
        parts += (_SIZE.pack(meta), size, own, _SEQUENCE_ID, first, rest, payload)
    return b"".join(parts)


def only_bytes(values: list[Any]) -> bool:
    """Return True if each value is of type bytes itself. Pure."""
    return set(map(type, values)) <= _BYTES


def fitting(payloads: list[bytes], fields: list[bytes] | None, count: int, most: int, overhead: int) -> tuple[int, int]:
    """Return how many messages of the first `count`, and how many bytes their payloads have. Pure.

    As many as have at most `most` bytes together, with their fields and `overhead` bytes each.
    """
    lengths = list(map(len, payloads if count >= len(payloads) else payloads[:count]))
    total = sum(lengths)
    more = 0 if fields is None else sum(map(len, fields[: len(lengths)]))
    if total + more + len(lengths) * overhead <= most:
        return len(lengths), total
    taken = used = whole = 0
    for taken, length in enumerate(lengths):
        used += length + overhead + (0 if fields is None else len(fields[taken]))
        if used > most:
            break
        whole += length
    return taken, whole


def cut_values(data: memoryview, ends: memoryview) -> list[bytes]:
    """Return the values of a buffer of bytes, each from one of the positions to the next. Pure.

    `ends` has one position more than there are values, in ascending order. Raises `ValueError` for positions outside.
    """
    places = ends.tolist()
    base = places[0]
    if base < 0 or places[-1] > len(data) or places != sorted(places):
        raise ValueError("Values outside of their buffer")
    packed = bytes(data[base : places[-1]])
    if base:
        places = [place - base for place in places]
    return list(map(packed.__getitem__, map(slice, places, places[1:])))


def split_batch(body: bytes | memoryview, count: int) -> list[tuple[int, int, int]]:
    """Return the offsets of a decompressed batch's messages: (metadata start, payload start, payload end) each.

    Pure; 0.1 us per message of one size, 0.2 us of varying sizes. Metadata are `body[metadata start : payload start]`.
    Bytes behind message `count` are ignored. Raises `InvalidMessage` when a size does not fit into the batch or
    metadata have no payload size.
    """
    data = body if isinstance(body, bytes) else bytes(body)
    if count < 1:
        raise InvalidMessage(f"A batch cannot have {count} messages")
    places: list[tuple[int, int, int]] = []
    position = 0
    patience = 1
    while len(places) < count:
        run, size, length = _same_heads(data, position, count - len(places))
        if run > 1:
            stride = 4 + size + length
            stop = position + run * stride
            first = position + 4
            places += zip(
                range(first, stop, stride),
                range(first + size, stop + 1, stride),
                range(position + stride, stop + 1, stride),
                strict=True,
            )
            position = stop
            patience = 1
        else:
            # After each failed look-ahead, more messages are read one by one before the next.
            position = _split_singly(data, position, min(patience, count - len(places)), places)
            patience *= 2
    return places


def _split_singly(data: bytes, position: int, count: int, places: list[tuple[int, int, int]]) -> int:
    """Append the offsets of `count` messages; return the end of the last one."""
    unpack = _START.unpack_from
    append = places.append
    total = len(data)
    safe = total - _START.size
    for _ in range(count):
        start = position + 4
        if position > safe:
            payload = _metadata_end(data, start)
            position = payload + payload_size(data, start, payload)
        else:
            size, tag, low, high = unpack(data, position)
            payload = start + size
            # Sizes below 16384 take one or two bytes, inside metadata of three bytes or more.
            if tag == _PAYLOAD_SIZE_TAG and size > 2 and low < 128:
                position = payload + low
            elif tag == _PAYLOAD_SIZE_TAG and size > 2 and high < 128:
                position = payload + (low & 127 | high << 7)
            else:
                payload = _metadata_end(data, start)
                position = payload + payload_size(data, start, payload)
        if position > total:
            raise InvalidMessage(f"Message {len(places)} of a batch would end behind the batch")
        append((start, payload, position))
    return position


def _metadata_end(data: bytes, start: int) -> int:
    """Return the end of the metadata that begin at `start`, behind their size."""
    if start > len(data):
        raise InvalidMessage("A batch ends where another message should begin")
    stop = start + int(_SIZE.unpack_from(data, start - 4)[0])
    if stop > len(data):
        raise InvalidMessage("A message's metadata would end behind its batch")
    return stop


def payload_bytes(places: list[tuple[int, int, int]]) -> int:
    """Return the sum of the payload sizes, from the offsets of `split_batch`. Pure."""
    return sum([end - start for _, start, end in places])


def may_be_compacted(body: bytes, places: list[tuple[int, int, int]]) -> bool:
    """Return True if any message may have the compacted-out mark; a false positive only costs a slower check. Pure."""
    if len(body) < _WORTH_PICKING * len(places):
        return COMPACTED_OUT in body
    return COMPACTED_OUT in b"".join([body[start:stop] for start, stop, _ in places])


def only_place(body: bytes) -> tuple[int, int, int] | None:
    """Return the offsets of the message of a batch of one; None if they do not fit or it may be compacted out. Pure."""
    try:
        places = split_batch(body, 1)
    except InvalidMessage:
        return None
    return None if may_be_compacted(body, places) else places[0]


def same_size(body: bytes, count: int) -> tuple[int, int] | None:
    """Return the sizes of metadata and payload if the first `count` messages of a batch have them in common. Pure.

    None proves nothing: few messages, or metadata that begin with another field, are not examined.
    """
    run, size, length = _same_heads(body, 0, count)
    return (size, length) if run and run == count else None


def _same_heads(data: bytes, position: int, count: int) -> tuple[int, int, int]:
    """Return how many messages from `position` begin with the same bytes at a fixed distance, and their two sizes.

    The bytes compared are the metadata's size and, first in the metadata, the payload's size: where they repeat, the
    messages have one size. 0 messages: nothing repeats, or the metadata begin with another field.
    """
    head = data[position : position + _START.size]
    if len(head) < _START.size or head[4] != _PAYLOAD_SIZE_TAG:
        return 0, 0, 0
    size, _, low, high = _START.unpack(head)
    width, length = (6, low) if low < 128 else (7, low & 127 | high << 7)
    stride = 4 + size + length
    count = min(count, (len(data) - position) // stride)
    if size < 3 or (width == 7 and high > 127) or count < _WORTH_A_RUN:
        return 0, 0, 0
    for ahead in (position + stride, position + (_WORTH_A_RUN - 1) * stride):
        if data[ahead : ahead + width] != head[:width]:
            return 0, 0, 0
    run = 0
    # Growing steps: where the runs are short, no more is compared than their length.
    step = 16
    while run < count:
        first = position + run * stride
        step = min(step, count - run)
        stop = first + (step - 1) * stride + 1
        same = step
        for offset in range(width):
            column = data[first + offset : stop + offset : stride]
            same = min(same, step - len(column.lstrip(head[offset : offset + 1])))
        run += same
        if same < step:
            break
        step *= 4
    return run, size, length


def payload_size(data: bytes, position: int, stop: int) -> int:
    """Return the payload size from the metadata between two offsets, reading field after field up to it.

    Pure. Raises `InvalidMessage` when the metadata are malformed or have no payload size.
    """
    while position < stop:
        tag = data[position]
        if tag & 0x87 == 2 and position + 1 < stop and data[position + 1] < 128:
            position += 2 + data[position + 1]  # a short text, such as a property or the key
            continue
        tag, position = _read_varint(data, position, stop)
        kind = tag & 7
        if tag == _PAYLOAD_SIZE_TAG:
            # A negative size becomes one of 2 GiB or more, which exceeds every batch.
            return _read_varint(data, position, stop)[0] & 0xFFFFFFFF
        if kind == 0:
            position = _read_varint(data, position, stop)[1]
        elif kind == 2:
            length, position = _read_varint(data, position, stop)
            position += length
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            break
    raise InvalidMessage("The metadata of a message in a batch have no payload size")


def _read_varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while position < stop and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _U64, position
        shift += 7
    raise InvalidMessage("A number in a message's metadata does not end")


def single_fields(body: bytes, start: int, stop: int) -> SingleMessageMetadata:
    """Return the metadata of a message of a batch, from its place in the body; raises as `parse_single`."""
    return parse_single(body[start:stop])


def parse_single(meta: bytes | memoryview) -> SingleMessageMetadata:
    """Return the metadata of one message of a batch. Pure; raises `InvalidMessage` when they cannot be parsed."""
    try:
        single = SingleMessageMetadata.FromString(meta)  # type: ignore[arg-type]  # of any buffer; its stub of bytes
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessage("A message's metadata in a batch cannot be parsed") from error
    if not single.HasField("payload_size"):
        raise InvalidMessage("The metadata of a message in a batch have no payload size")
    return single
