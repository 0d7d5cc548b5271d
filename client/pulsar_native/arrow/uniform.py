"""Metadata of one layout: messages of a batch that have the same fields with the same sizes, read column by column.

A producer's messages are mostly so: payload size, event time, key, properties of one size and a sequence id, which
differ in their values only. The fields of the first message are looked up once, and their offsets hold for all. May
not do: import numpy itself; accept metadata that protobuf would read in another way.

Rules: every byte that decides about the fields (tags, sizes, flags, names of properties, the continuation bits of
numbers) is compared in all messages. Whatever is rare (a null value, a key in base64, a field twice, numbers of ten
bytes, unknown fields) has no layout and is left to protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PAYLOAD_SIZE, EVENT_TIME, SEQUENCE_ID = 0x18, 0x28, 0x40
_PROPERTY, _KEY, _ORDERING_KEY = 0x0A, 0x12, 0x3A
_COMPACTED_OUT, _KEY_IS_BASE64, _NULL_VALUE, _NULL_KEY = 0x20, 0x30, 0x48, 0x50
_NAME, _VALUE = 0x0A, 0x12
_NUMBERS = (PAYLOAD_SIZE, EVENT_TIME, SEQUENCE_ID)
_FLAGS = (_COMPACTED_OUT, _KEY_IS_BASE64, _NULL_VALUE, _NULL_KEY)
_TEXTS = (_PROPERTY, _KEY, _ORDERING_KEY)
# A flag that is set makes another column of the values or keys.
_UNSET = (_KEY_IS_BASE64, _NULL_VALUE)
_LONGEST = 4096
_WIDEST = 9  # bytes of a number of 63 bits


@dataclass(slots=True)
class Layout:
    """Fields of the metadata of a message, by the range of their values; `properties` are names with ranges.

    `same` are offsets of bytes, `widths` of the bytes of numbers, of which only the continuation bit counts.
    """

    same: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    numbers: dict[int, range] = field(default_factory=dict)
    key: range | None = None
    properties: list[tuple[bytes, range]] = field(default_factory=list)

    @staticmethod
    def of(meta: bytes) -> Layout | None:
        """Return the layout of metadata, None if they have something rare or cannot be read. Pure."""
        if len(meta) > _LONGEST:
            return None
        found, position = Layout(), 0
        while 0 <= position < len(meta):
            found.same.append(position)
            tag = meta[position]
            if tag in _NUMBERS:
                position = found._number(meta, tag, position + 1)
            elif tag in _FLAGS:
                position = found._flag(meta, tag, position + 1)
            elif tag in _TEXTS:
                position = found._text(meta, tag, position + 1)
            else:
                return None
        is_whole = position == len(meta) and PAYLOAD_SIZE in found.numbers and SEQUENCE_ID in found.numbers
        names = [name for name, _ in found.properties]
        return found if is_whole and len(set(names)) == len(names) else None

    def fits(self, table: Any) -> bool:
        """Return True if the metadata of all messages, the rows of a table of bytes, have this layout."""
        first = table[0]
        return bool(
            (table[:, self.same] == first[self.same]).all()
            and ((table[:, self.widths] ^ first[self.widths]) < 0x80).all()
        )

    def _number(self, meta: bytes, tag: int, start: int) -> int:
        """Add a number; return the offset behind it, -1 for a rare one."""
        stop = start
        while stop < len(meta) and meta[stop] > 0x7F:
            stop += 1
        stop += 1
        if tag in self.numbers or stop > len(meta) or stop - start > _WIDEST:
            return -1
        self.numbers[tag] = range(start, stop)
        self.widths += range(start, stop)
        return stop

    def _flag(self, meta: bytes, tag: int, start: int) -> int:
        if start >= len(meta) or meta[start] > 1 or (meta[start] and tag in _UNSET):
            return -1
        self.same.append(start)
        return start + 1

    def _text(self, meta: bytes, tag: int, start: int) -> int:
        inside = _sized(meta, start, len(meta))
        if inside is None:
            return -1
        self.same += range(start, inside.start)
        if tag == _PROPERTY:
            return self._property(meta, inside)
        if tag == _KEY:
            if self.key is not None:
                return -1
            self.key = inside
        return inside.stop

    def _property(self, meta: bytes, pair: range) -> int:
        name = _sized(meta, pair.start + 1, pair.stop)
        if name is None or meta[pair.start] != _NAME or name.stop >= pair.stop or meta[name.stop] != _VALUE:
            return -1
        value = _sized(meta, name.stop + 1, pair.stop)
        if value is None or value.stop != pair.stop:
            return -1
        self.same += range(pair.start, value.start)
        self.properties.append((meta[name.start : name.stop], value))
        return pair.stop


def _sized(meta: bytes, start: int, stop: int) -> range | None:
    """Return the range of bytes behind their size, None if it is not within `stop` or of over 14 bits."""
    if start >= stop:
        return None
    size, begin = meta[start], start + 1
    if size > 0x7F:
        if begin >= stop or meta[begin] > 0x7F:
            return None
        size, begin = size & 0x7F | meta[begin] << 7, begin + 1
    return range(begin, begin + size) if begin + size <= stop else None


def numbers(numpy: Any, table: Any, place: range) -> Any:
    """Return the varints of one width in these columns of a table of bytes, as signed numbers of 64 bits. Pure."""
    found = numpy.zeros(len(table), numpy.int64)
    for shift, column in enumerate(place):
        found |= (table[:, column] & 0x7F).astype(numpy.int64) << (7 * shift)
    return found


def texts(numpy: Any, table: Any, places: Sequence[range], base: int) -> tuple[bytes, bytes]:
    """Return the bytes in these columns, row by row and in each row place by place, and their ends behind `base`. Pure.

    The ends are packed numbers of 32 bits.
    """
    columns = [column for place in places for column in place]
    widths = numpy.cumsum([len(place) for place in places], dtype=numpy.int64)
    starts = base + numpy.arange(len(table), dtype=numpy.int64) * len(columns)
    ends = (starts[:, None] + widths[None, :]).astype(numpy.int32)
    return table[:, columns].tobytes(), ends.tobytes()
