"""Growing Arrow columns: packed bytes, row ends and nulls, converted by pyarrow without another pass.

May not do: know Pulsar's entries (`columns` does) or import pyarrow itself: the module is an argument.

Rules: 32-bit offsets. Parts are kept as they arrive and joined once, into memory of the exact size: growing buffers
page by page was measured to cost more than all parsing. numpy is used for long ramps of numbers if it is present.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from struct import Struct
from typing import Any, Protocol

from pulsar_native.wire import _impl

_MAX_OFFSET = (1 << 31) - 1
_COMMON = 4096  # numbers that are kept packed
_I32 = Struct("=i")
_PACK = {code: Struct(f"={code}").pack for code in "iq"}


class Pair(Protocol):
    """One property."""

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str: ...


class NumberColumn:
    """Integers of 32 ("i") or 64 ("q") bits; also used for times."""

    __slots__ = ("_code", "_nulls", "_parts", "rows")

    def __init__(self, code: str) -> None:
        self._code = code
        self._parts: list[bytes] = []
        self._nulls: list[int] = []
        self.rows = 0

    def repeat(self, value: int | None, count: int) -> None:
        """Add one value `count` times."""
        if value is None:
            self._nulls += range(self.rows, self.rows + count)
        self._append(array(self._code, (value or 0,)).tobytes() * count, count)

    def repeat_each(self, values: Sequence[int | None], counts: Sequence[int]) -> None:
        """Add each value as often as its count says."""
        if None in values:
            for value, count in zip(values, counts, strict=True):
                self.repeat(value, count)
            return
        pack = _PACK[self._code]
        rows = [pack(value) * count for value, count in zip(values, counts, strict=True)]
        self._append(b"".join(rows), sum(counts))

    def nothing(self, count: int) -> None:
        """Add nulls."""
        self.repeat(None, count)

    def extend(self, values: Sequence[int]) -> None:
        """Add values."""
        if isinstance(values, range) and (numpy := numpy_or_none()) is not None:
            packed = numpy.arange(values.start, values.stop, values.step, dtype=self._code).tobytes()
        else:
            packed = array(self._code, values).tobytes()
        self._append(packed, len(values))

    def extend_optional(self, values: Sequence[int | None]) -> None:
        """Add values, None for null."""
        self._nulls += [self.rows + row for row, value in enumerate(values) if value is None]
        self.extend([value or 0 for value in values])

    def packed(self, values: bytes, nulls: Sequence[int] = ()) -> None:
        """Add packed values, with the rows among them that are null."""
        self._nulls += [self.rows + row for row in nulls]
        self._append(values, len(values) // array(self._code).itemsize)

    def _append(self, packed: bytes, count: int) -> None:
        self._parts.append(packed)
        self.rows += count

    def finish(self, pa: Any, kind: Any) -> Any:
        """Return the Arrow array."""
        buffers = [_validity(pa, self.rows, self._nulls), pa.py_buffer(b"".join(self._parts))]
        return pa.Array.from_buffers(kind, self.rows, buffers, len(self._nulls))


class TextColumn:
    """Bytes or text."""

    __slots__ = ("_ends", "_nulls", "_parts", "rows", "size")

    def __init__(self) -> None:
        # Bytes, or the other type `_impl.join_parts` accepts.
        self._parts: list[Any] = []
        self._ends: list[bytes] = [_I32.pack(0)]
        self._nulls: list[int] = []
        self.size = 0
        self.rows = 0

    def repeat(self, item: bytes, count: int) -> None:
        """Add one item `count` times."""
        self.block(item * count, len(item), count)

    def block(self, items: bytes, width: int, count: int) -> None:
        """Add `count` items of one width that are joined already."""
        start = self.size
        self._grow(len(items), count)
        self._parts.append(items)
        self._ends.append(_ramp(start + width, width, count))

    def extend(self, items: Sequence[bytes]) -> None:
        """Add items."""
        ends = list(accumulate(map(len, items), initial=self.size))
        self._grow(ends[-1] - self.size, len(items))
        self._parts += items
        self._ends.append(array("i", ends).tobytes()[_I32.size :])

    def extend_optional(self, items: Sequence[bytes | None]) -> None:
        """Add items, None for null."""
        self._nulls += [self.rows + row for row, item in enumerate(items) if item is None]
        self.extend([item or b"" for item in items])

    def nothing(self, count: int) -> None:
        """Add nulls."""
        self._nulls += range(self.rows, self.rows + count)
        self.block(b"", 0, count)

    def packed(self, part: Any, size: int, ends: bytes, nulls: Sequence[int] = ()) -> None:
        """Add joined items of `size` bytes, with their ends behind this column's size."""
        self._nulls += [self.rows + row for row in nulls]
        self._grow(size, len(ends) // _I32.size)
        self._parts.append(part)
        self._ends.append(ends)

    def _grow(self, size: int, count: int) -> None:
        self.size += size
        self.rows += count
        if self.size > _MAX_OFFSET:
            raise ValueError("A column of a record batch holds at most 2 GiB: take fewer entries at a time")

    def finish(self, pa: Any, kind: Any) -> Any:
        """Return the Arrow array. In text, invalid UTF-8 is replaced, as Java does."""
        data = _impl.join_parts(self._parts)
        buffers = [
            _validity(pa, self.rows, self._nulls),
            pa.py_buffer(b"".join(self._ends)),
            pa.py_buffer(data),
        ]
        column = pa.Array.from_buffers(kind, self.rows, buffers, len(self._nulls))
        return column if kind != pa.string() or data.isascii() else _valid_text(pa, column)


class MapColumn:
    """Properties: text to text, never null."""

    __slots__ = ("_ends", "keys", "rows", "values")

    def __init__(self) -> None:
        self.keys = TextColumn()
        self.values = TextColumn()
        self._ends: list[bytes] = [_I32.pack(0)]
        self.rows = 0

    def nothing(self, count: int) -> None:
        """Add empty maps."""
        self.rows += count
        self._ends.append(_I32.pack(self.keys.rows) * count)

    def extend(self, maps: Iterable[Sequence[Pair]]) -> None:
        """Add maps. Of a repeated key the last value is used: a map with a duplicate key is an error in Spark."""
        keys: list[bytes] = []
        values: list[bytes] = []
        size = self.keys.rows
        ends: list[int] = []
        for pairs in maps:
            if pairs:
                own = {pair.key: pair.value for pair in pairs}
                keys += map(utf8, own)
                values += map(utf8, own.values())
                size += len(own)
            ends.append(size)
        self.keys.extend(keys)
        self.values.extend(values)
        self.ends(array("i", ends).tobytes())

    def ends(self, ends: bytes) -> None:
        """Add maps by the packed cumulative numbers of pairs; their pairs are added to keys and values."""
        self.rows += len(ends) // _I32.size
        self._ends.append(ends)

    def finish(self, pa: Any, kind: Any) -> Any:
        """Return the Arrow array."""
        ends = pa.Array.from_buffers(pa.int32(), self.rows + 1, [None, pa.py_buffer(b"".join(self._ends))])
        keys, values = self.keys.finish(pa, pa.string()), self.values.finish(pa, pa.string())
        return pa.MapArray.from_arrays(ends, keys, values, type=kind)


def utf8(text: str | bytes) -> bytes:
    """Return text as UTF-8; protobuf's runtime returns invalid UTF-8 as the bytes it found. Pure."""
    return text if isinstance(text, bytes) else text.encode()


def ramps(slices: Iterable[Sequence[int]]) -> bytes:
    """Return the numbers of all ranges and lists, none of them negative, as packed 32-bit numbers. Pure."""
    common, size = _common_ramp(), _I32.size
    return b"".join(
        [
            common[part.start * size : part.stop * size]
            if isinstance(part, range) and part.stop <= _COMMON
            else array("i", part).tobytes()
            for part in slices
        ]
    )


@cache
def _common_ramp() -> bytes:
    return array("i", range(_COMMON)).tobytes()


@cache
def numpy_or_none() -> Any:
    """Return the numpy module if it is installed; the first call imports it."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _ramp(start: int, step: int, count: int) -> bytes:
    """Return `start`, `start + step`, ... as `count` packed 32-bit numbers."""
    if not step or not count:
        return _I32.pack(start) * count if count else b""
    numpy = numpy_or_none()
    if numpy is None:
        return array("i", range(start, start + step * count, step)).tobytes()
    return bytes(numpy.arange(start, start + step * count, step, dtype=numpy.int32).tobytes())


def _validity(pa: Any, rows: int, nulls: list[int]) -> Any:
    """Return Arrow's validity bitmap; None when no row is null."""
    if not nulls:
        return None
    size = (rows + 7) // 8
    if len(nulls) == rows:
        return pa.py_buffer(bytes(size))
    bits = bytearray(b"\xff" * size)
    for row in nulls:
        bits[row >> 3] &= ~(1 << (row & 7))
    return pa.py_buffer(bytes(bits))


def _valid_text(pa: Any, column: Any) -> Any:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        items = column.cast(pa.binary()).to_pylist()
        return pa.array([None if item is None else item.decode("utf-8", "replace") for item in items], pa.string())
    return column
