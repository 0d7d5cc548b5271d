"""Schemas of numbers, booleans, dates and times, in Java's encoding.

Rules: big endian, fixed length; registered under the Java client's names and with its empty definition. A value out of
range raises. Types of an instant (DATE, TIMESTAMP, INSTANT) accept and return datetimes with a timezone (UTC is
returned); local types accept and return values without one. Fractions below the type's unit are truncated, as in Java:
milliseconds for DATE, TIME and TIMESTAMP; on reading, fractions below Python's microseconds.
"""

from __future__ import annotations

import datetime
import struct
from typing import ClassVar, TypeVar

from pulsar_native.schema.base import Schema, mismatch
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaType

T = TypeVar("T")

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
_DAY_MILLIS = 86_400_000
_DAY_NANOS = 86_400_000_000_000


class PrimitiveSchema(Schema[T]):
    """Base of schemas of one fixed-length value. Immutable, thread-safe; does not block."""

    _kind: ClassVar[SchemaType]
    _name: ClassVar[str]
    _form: ClassVar[struct.Struct]

    def __init__(self) -> None:
        super().__init__(None, self._kind, None, self._name)

    def _unpack(self, data: bytes) -> tuple[int, ...]:
        if len(data) != self._form.size:
            raise InvalidRecord(f"A message of {self._kind.name} has {self._form.size} bytes, not {len(data)}")
        found: tuple[int, ...] = self._form.unpack(data)
        return found

    def _pack(self, *numbers: int) -> bytes:
        try:
            return self._form.pack(*numbers)
        except (struct.error, OverflowError) as error:
            raise InvalidRecord(f"The value is out of the range of {self._kind.name}: {error}") from error


class BooleanSchema(PrimitiveSchema[bool]):
    """Schema of True or False, one byte."""

    _kind, _name, _form = SchemaType.BOOLEAN, "Boolean", struct.Struct(">B")

    def encode(self, obj: bool) -> bytes:
        """Return one byte, 1 or 0."""
        if not isinstance(obj, bool):
            raise mismatch(obj, "bool")
        return b"\x01" if obj else b"\x00"

    def decode(self, data: bytes) -> bool:
        """Return True unless the byte is 0."""
        return self._unpack(data)[0] != 0


class _IntegerSchema(PrimitiveSchema[int]):
    def encode(self, obj: int) -> bytes:
        """Return the number, big endian; raises `InvalidRecord` for one out of range."""
        if not isinstance(obj, int) or isinstance(obj, bool):
            raise mismatch(obj, "int")
        try:
            return self._form.pack(obj)
        except struct.error as error:
            raise InvalidRecord(f"{obj} is out of the range of {self._kind.name}") from error

    def decode(self, data: bytes) -> int:
        """Return the number."""
        return self._unpack(data)[0]


class Int8Schema(_IntegerSchema):
    """Schema of an integer in one byte, -128 to 127."""

    _kind, _name, _form = SchemaType.INT8, "INT8", struct.Struct(">b")


class Int16Schema(_IntegerSchema):
    """Schema of an integer in two bytes."""

    _kind, _name, _form = SchemaType.INT16, "INT16", struct.Struct(">h")


class Int32Schema(_IntegerSchema):
    """Schema of an integer in four bytes."""

    _kind, _name, _form = SchemaType.INT32, "INT32", struct.Struct(">i")


class Int64Schema(_IntegerSchema):
    """Schema of an integer in eight bytes."""

    _kind, _name, _form = SchemaType.INT64, "INT64", struct.Struct(">q")


class _FloatingSchema(PrimitiveSchema[float]):
    def encode(self, obj: float) -> bytes:
        """Return the IEEE 754 form, big endian; accepts an int."""
        if not isinstance(obj, float | int) or isinstance(obj, bool):
            raise mismatch(obj, "float")
        try:
            return self._form.pack(obj)
        except (struct.error, OverflowError) as error:
            raise InvalidRecord(f"{obj} is out of the range of {self._kind.name}") from error

    def decode(self, data: bytes) -> float:
        """Return the number."""
        return self._unpack(data)[0]


class FloatSchema(_FloatingSchema):
    """Schema of a floating-point number in four bytes (single precision)."""

    _kind, _name, _form = SchemaType.FLOAT, "Float", struct.Struct(">f")


class DoubleSchema(_FloatingSchema):
    """Schema of a floating-point number in eight bytes."""

    _kind, _name, _form = SchemaType.DOUBLE, "Double", struct.Struct(">d")


class _MillisSchema(PrimitiveSchema[datetime.datetime]):
    _form = struct.Struct(">q")

    def encode(self, obj: datetime.datetime) -> bytes:
        """Return milliseconds since 1970 in UTC; raises `InvalidRecord` for a datetime without a timezone."""
        return self._pack(_micros(obj) // 1000)

    def decode(self, data: bytes) -> datetime.datetime:
        """Return the datetime in UTC."""
        return _moment(self._unpack(data)[0] * 1000)


class DateSchema(_MillisSchema):
    """Schema of an instant in milliseconds (`java.util.Date`); for days see `LocalDateSchema`."""

    _kind, _name = SchemaType.DATE, "Date"


class TimestampSchema(_MillisSchema):
    """Schema of an instant in milliseconds (`java.sql.Timestamp`, whose nanoseconds Java does not send either)."""

    _kind, _name = SchemaType.TIMESTAMP, "Timestamp"


class TimeSchema(PrimitiveSchema[datetime.time]):
    """Schema of a time of day in milliseconds since midnight in UTC (`java.sql.Time`).

    Java's value is an instant whose day is ignored: it is read as its time of day in UTC.
    """

    _kind, _name, _form = SchemaType.TIME, "Time", struct.Struct(">q")

    def encode(self, obj: datetime.time) -> bytes:
        """Return milliseconds since midnight; raises `InvalidRecord` for a time with a timezone."""
        return self._pack(_nanos_of_day(obj) // 1_000_000)

    def decode(self, data: bytes) -> datetime.time:
        """Return the time of day."""
        return _time(self._unpack(data)[0] % _DAY_MILLIS * 1_000_000)


class InstantSchema(PrimitiveSchema[datetime.datetime]):
    """Schema of an instant in seconds and nanoseconds (`java.time.Instant`)."""

    _kind, _name, _form = SchemaType.INSTANT, "Instant", struct.Struct(">qi")

    def encode(self, obj: datetime.datetime) -> bytes:
        """Return seconds since 1970 in UTC and nanoseconds; raises `InvalidRecord` without a timezone."""
        seconds, micros = divmod(_micros(obj), 1_000_000)
        return self._pack(seconds, micros * 1000)

    def decode(self, data: bytes) -> datetime.datetime:
        """Return the datetime in UTC."""
        seconds, nanos = self._unpack(data)
        return _moment(seconds * 1_000_000 + nanos // 1000)


class LocalDateSchema(PrimitiveSchema[datetime.date]):
    """Schema of a day (`java.time.LocalDate`)."""

    _kind, _name, _form = SchemaType.LOCAL_DATE, "LocalDate", struct.Struct(">q")

    def encode(self, obj: datetime.date) -> bytes:
        """Return days since 1970."""
        if not isinstance(obj, datetime.date) or isinstance(obj, datetime.datetime):
            raise mismatch(obj, "date")
        return self._pack(obj.toordinal() - _EPOCH_DAY)

    def decode(self, data: bytes) -> datetime.date:
        """Return the day."""
        return _day(self._unpack(data)[0])


class LocalTimeSchema(PrimitiveSchema[datetime.time]):
    """Schema of a time of day in nanoseconds (`java.time.LocalTime`)."""

    _kind, _name, _form = SchemaType.LOCAL_TIME, "LocalTime", struct.Struct(">q")

    def encode(self, obj: datetime.time) -> bytes:
        """Return nanoseconds since midnight; raises `InvalidRecord` for a time with a timezone."""
        return self._pack(_nanos_of_day(obj))

    def decode(self, data: bytes) -> datetime.time:
        """Return the time of day."""
        return _time(self._unpack(data)[0])


class LocalDateTimeSchema(PrimitiveSchema[datetime.datetime]):
    """Schema of a day and a time of day without a timezone (`java.time.LocalDateTime`)."""

    _kind, _name, _form = SchemaType.LOCAL_DATE_TIME, "LocalDateTime", struct.Struct(">qq")

    def encode(self, obj: datetime.datetime) -> bytes:
        """Return days since 1970 and nanoseconds since midnight; raises `InvalidRecord` with a timezone."""
        if not isinstance(obj, datetime.datetime):
            raise mismatch(obj, "datetime")
        if obj.tzinfo is not None:
            raise InvalidRecord("LOCAL_DATE_TIME has no timezone: pass a datetime without one, or use InstantSchema")
        return self._pack(obj.toordinal() - _EPOCH_DAY, _nanos_of_day(obj.time()))

    def decode(self, data: bytes) -> datetime.datetime:
        """Return the day and time, without a timezone."""
        days, nanos = self._unpack(data)
        return datetime.datetime.combine(_day(days), _time(nanos))


PRIMITIVES: dict[SchemaType, type[PrimitiveSchema[object]]] = {
    kind._kind: kind  # type: ignore[misc]
    for kind in (
        BooleanSchema,
        Int8Schema,
        Int16Schema,
        Int32Schema,
        Int64Schema,
        FloatSchema,
        DoubleSchema,
        DateSchema,
        TimeSchema,
        TimestampSchema,
        InstantSchema,
        LocalDateSchema,
        LocalTimeSchema,
        LocalDateTimeSchema,
    )
}


def _micros(value: object) -> int:
    if not isinstance(value, datetime.datetime):
        raise mismatch(value, "datetime")
    if value.tzinfo is None:
        raise InvalidRecord(
            "The schema holds a moment, and the datetime has no timezone: use datetime.now(UTC), "
            "astimezone(), or LocalDateTimeSchema"
        )
    return (value - _EPOCH) // _MICROSECOND


def _moment(micros: int) -> datetime.datetime:
    try:
        return _EPOCH + datetime.timedelta(microseconds=micros)
    except OverflowError as error:
        raise InvalidRecord(
            "The message holds a moment outside the years 1 to 9999, which Python cannot hold"
        ) from error


def _day(days: int) -> datetime.date:
    try:
        return datetime.date.fromordinal(days + _EPOCH_DAY)
    except (ValueError, OverflowError) as error:
        raise InvalidRecord("The message holds a day outside the years 1 to 9999, which Python cannot hold") from error


def _nanos_of_day(value: object) -> int:
    if not isinstance(value, datetime.time):
        raise mismatch(value, "time")
    if value.tzinfo is not None:
        raise InvalidRecord("A time of day has no timezone here: pass a time without one")
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    return seconds * 1_000_000_000 + value.microsecond * 1000


def _time(nanos: int) -> datetime.time:
    if not 0 <= nanos < _DAY_NANOS:
        raise InvalidRecord(f"{nanos} nanoseconds are no time of day")
    seconds, rest = divmod(nanos, 1_000_000_000)
    return datetime.time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest // 1000)
