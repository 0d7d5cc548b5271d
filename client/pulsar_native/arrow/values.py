"""Values of primitive schemas as Arrow arrays, a column at a time.

May not do: receive messages, or raise for a single wrong value: its row is null and named in the result. Rules: no
Python object per row, except for text that is not UTF-8. pyarrow is imported when needed, numpy is not.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pulsar_native.schema.info import SchemaType

if TYPE_CHECKING:
    import pyarrow

_MAX = (1 << 63) - 1
_DAY_MILLIS = 86_400_000
_DAY_NANOS = _DAY_MILLIS * 1_000_000
_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}
_WIDTHS = {
    SchemaType.BOOLEAN: 1,
    SchemaType.INT8: 1,
    SchemaType.INT16: 2,
    SchemaType.INT32: 4,
    SchemaType.INT64: 8,
    SchemaType.FLOAT: 4,
    SchemaType.DOUBLE: 8,
    SchemaType.DATE: 8,
    SchemaType.TIME: 8,
    SchemaType.TIMESTAMP: 8,
    SchemaType.INSTANT: 12,
    SchemaType.LOCAL_DATE: 8,
    SchemaType.LOCAL_TIME: 8,
    SchemaType.LOCAL_DATE_TIME: 16,
}


def primitive_array(kind: SchemaType, payloads: pyarrow.BinaryArray) -> tuple[pyarrow.Array, dict[int, str]]:
    """Return the values of payloads of a primitive schema, and the reasons of the rows that are not of it, by row.

    Types: numbers of the schema's width, text, bytes, DATE, TIMESTAMP and INSTANT as microseconds in UTC,
    LOCAL_DATE_TIME as microseconds without a zone, LOCAL_DATE as days; TIME and LOCAL_TIME as milliseconds and
    nanoseconds of the day in 64 bits. A null payload is a null value, and so is a wrong one. Pure, thread-safe; needs
    pyarrow. Raises `KeyError` for a type that is not primitive.
    """
    import pyarrow as pa

    if kind in (SchemaType.BYTES, SchemaType.NONE):
        return payloads, {}
    if kind is SchemaType.STRING:
        return _texts(pa, payloads)
    column = _Fixed(pa, payloads, _WIDTHS[kind])
    found = _CONVERT[kind](column)
    size = f"a message of {kind.name} has {_WIDTHS[kind]} bytes"
    reasons = dict.fromkeys(_rows(column.pc, column.is_misfit), size)
    if column.out_of_range is not None:
        found = column.pc.if_else(column.out_of_range, None, found)
        reasons |= dict.fromkeys(_rows(column.pc, column.out_of_range), f"the {kind.name} is out of range")
    return found, reasons


def _rows(pc: Any, mask: Any) -> list[int]:
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found


def _texts(pa: Any, payloads: Any) -> tuple[Any, dict[int, str]]:
    try:
        return payloads.cast(pa.string()), {}
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    reasons = {}
    for row, payload in enumerate(payloads.to_pylist()):
        try:
            texts.append(None if payload is None else payload.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            reasons[row] = f"it is not text in UTF-8: {error.reason} at byte {error.start}"
    return pa.array(texts, pa.string()), reasons


class _Fixed:
    """Payloads of one width; those of another width count as null."""

    def __init__(self, pa: Any, payloads: Any, width: int) -> None:
        import pyarrow.compute

        self.pa = pa
        self.pc: Any = pyarrow.compute
        pc = self.pc
        self._width = width
        self._count = len(payloads)
        fits = pc.equal(pc.binary_length(payloads), width)
        self.is_misfit = pc.invert(fits)
        self.out_of_range: Any = None
        self._is_there = pc.fill_null(fits, False)
        self._is_whole = pc.all(self._is_there).as_py() in (True, None)
        if not self._is_whole:
            payloads = pc.if_else(self._is_there, payloads, pa.scalar(bytes(width), pa.binary()))
        self._packed = _packed(payloads, self._count * width)

    def numbers(self, kind: Any, start: int = 0, size: int | None = None) -> Any:
        """Return a part of each payload, big endian, as numbers of a type of that size (by default all of it)."""
        size = self._width if size is None else size
        packed = self._packed
        if size != self._width:
            part = bytearray(self._count * size)
            for index in range(size):
                part[index::size] = packed[start + index :: self._width]
            packed = bytes(part)
        native = array(_CODES[size], packed)
        if sys.byteorder == "little":
            native.byteswap()
        found = self.pa.Array.from_buffers(kind, self._count, [None, self.pa.py_buffer(native.tobytes())])
        return found if self._is_whole else self.pc.if_else(self._is_there, found, None)

    def integers(self, start: int = 0, size: int | None = None) -> Any:
        """Return a part of each payload as integers of 64 bits."""
        kinds = {4: self.pa.int32(), 8: self.pa.int64()}
        return self.numbers(kinds[size or self._width], start, size).cast(self.pa.int64())

    def within(self, numbers: Any, low: int, high: int) -> Any:
        """Return the numbers, with null and a mark in `out_of_range` for those below `low` or above `high`."""
        pc = self.pc
        outside = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
        if not pc.any(outside).as_py():
            return numbers
        self.out_of_range = outside if self.out_of_range is None else pc.or_kleene(self.out_of_range, outside)
        return pc.if_else(outside, None, numbers)


def _packed(payloads: Any, size: int) -> bytes:
    if not size:
        return b""
    _, offsets, data = payloads.buffers()
    start = memoryview(offsets).cast("i")[payloads.offset]
    packed: bytes = data.slice(start, size).to_pybytes()
    return packed


def _boolean(column: _Fixed) -> Any:
    return column.pc.not_equal(column.numbers(column.pa.int8()), 0)


def _instant_of_millis(column: _Fixed) -> Any:
    millis = column.within(column.integers(), -(_MAX // 1000), _MAX // 1000)
    return column.pc.multiply(millis, 1000).cast(column.pa.timestamp("us", "UTC"))


def _instant(column: _Fixed) -> Any:
    limit = _MAX // 1_000_000 - 1
    seconds = column.within(column.integers(0, 8), -limit, limit)
    nanos = column.within(column.integers(8, 4), 0, 999_999_999)
    micros = column.pc.add(column.pc.multiply(seconds, 1_000_000), column.pc.divide(nanos, 1000))
    return micros.cast(column.pa.timestamp("us", "UTC"))


def _time(column: _Fixed) -> Any:
    # Java's value is an instant whose day is ignored.
    pc, millis = column.pc, column.integers()
    rest = pc.subtract(millis, pc.multiply(pc.divide(millis, _DAY_MILLIS), _DAY_MILLIS))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, _DAY_MILLIS), rest)


def _local_date(column: _Fixed) -> Any:
    limit = (1 << 31) - 1
    days = column.within(column.integers(), -limit, limit)
    return days.cast(column.pa.int32()).cast(column.pa.date32())


def _local_time(column: _Fixed) -> Any:
    return column.within(column.integers(), 0, _DAY_NANOS - 1)


def _local_date_time(column: _Fixed) -> Any:
    limit = _MAX // (_DAY_MILLIS * 1000) - 1
    days = column.within(column.integers(0, 8), -limit, limit)
    nanos = column.within(column.integers(8, 8), 0, _DAY_NANOS - 1)
    micros = column.pc.add(column.pc.multiply(days, _DAY_MILLIS * 1000), column.pc.divide(nanos, 1000))
    return micros.cast(column.pa.timestamp("us"))


_CONVERT: dict[SchemaType, Callable[[_Fixed], Any]] = {
    SchemaType.BOOLEAN: _boolean,
    SchemaType.INT8: lambda column: column.numbers(column.pa.int8()),
    SchemaType.INT16: lambda column: column.numbers(column.pa.int16()),
    SchemaType.INT32: lambda column: column.numbers(column.pa.int32()),
    SchemaType.INT64: lambda column: column.numbers(column.pa.int64()),
    SchemaType.FLOAT: lambda column: column.numbers(column.pa.float32()),
    SchemaType.DOUBLE: lambda column: column.numbers(column.pa.float64()),
    SchemaType.DATE: _instant_of_millis,
    SchemaType.TIMESTAMP: _instant_of_millis,
    SchemaType.TIME: _time,
    SchemaType.INSTANT: _instant,
    SchemaType.LOCAL_DATE: _local_date,
    SchemaType.LOCAL_TIME: _local_time,
    SchemaType.LOCAL_DATE_TIME: _local_date_time,
}
