"""Values of model fields: Avro's primitive and logical types.

Rules: each is a `Part`: the Avro type, and functions from Python's value to the written one (numbers and text in JSON,
fastavro's input in Avro), back, and to a default in a definition. They raise `InvalidRecord` with a message that begins
after the path. Reading accepts both forms, since a default taken from a definition is raw.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.errors import InvalidRecord

Code = Callable[[Any], Any]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LOCAL_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_UNITS = {"millis": 1000, "micros": 1}
_RANGES = {"int": 1 << 31, "long": 1 << 63}
# The application's context would round to its precision, which is 28 digits if it has not set another.
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}


class Part(NamedTuple):
    """Avro type with its conversions; `written` returns a default as in a definition."""

    definition: Any
    encode: Code
    decode: Code
    written: Code


def deeper(step: str, error: InvalidRecord) -> InvalidRecord:
    """Return the error with one more step in front of its path."""
    return InvalidRecord(step + error.message)


def typed(name: str, *kinds: type) -> Code:
    """Return the function that returns a value of these types and raises for any other."""

    def check(value: Any) -> Any:
        if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
            return value
        raise InvalidRecord(f" must be {name}, not {type(value).__name__}")

    return check


def _plain(definition: Any, *kinds: type) -> Part:
    check = typed(kinds[0].__name__, *kinds)
    return Part(definition, check, check, check)


def _integer(name: str) -> Part:
    check, limit = typed("int", int), _RANGES[name]

    def encode(value: Any) -> int:
        number: int = check(value)
        if not -limit <= number < limit:
            raise InvalidRecord(f" is {number}, out of the range of {name}")
        return number

    return Part(name, encode, check, encode)


def _floating(name: str) -> Part:
    check = typed("float", float, int)
    return Part(name, check, lambda value: float(check(value)), check)


def _bytes(json: bool) -> Part:
    check = typed("bytes", bytes)

    def as_text(value: Any) -> str:
        try:
            text: str = check(value).decode()
        except UnicodeDecodeError as error:
            raise InvalidRecord(" is not UTF-8, and JSON has bytes as text only: use AvroSchema") from error
        return text

    def decode(value: Any) -> Any:
        return value.encode("utf-8" if json else "latin-1") if isinstance(value, str) else check(value)

    return Part("bytes", as_text if json else check, decode, lambda value: check(value).decode("latin-1"))


def _number_of(part: Any, definition: Mapping[str, Any], json: bool, to: Code, of: Code) -> Part:
    """Return the part of a value written as a number; for Avro, fastavro converts it."""

    def decode(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                return of(value)
            except (OverflowError, ValueError) as error:
                raise InvalidRecord(f" is {value}, which Python cannot hold as {part.__name__}") from error
        return typed(f"the number of a {part.__name__}", part)(value)

    def checked(value: Any) -> Any:
        to(value)
        return value

    return Part(dict(definition), to if json else checked, decode, to)


def _moment(definition: Mapping[str, Any], json: bool) -> Part:
    logical = str(definition["logicalType"])
    local = logical.startswith("local-")
    unit = _UNITS[logical.rpartition("-")[2]]
    epoch = _LOCAL_EPOCH if local else _EPOCH
    check = typed("datetime", datetime.datetime)

    def to(value: Any) -> int:
        moment: datetime.datetime = check(value)
        if (moment.tzinfo is None) is not local:
            raise InvalidRecord(
                f" has a timezone, which {logical} has not"
                if local
                else " has no timezone: use datetime.now(UTC), or Annotated[datetime, AvroType({'type': 'long', "
                "'logicalType': 'local-timestamp-micros'})]"
            )
        return (moment - epoch) // _MICROSECOND // unit

    return _number_of(
        datetime.datetime, definition, json, to, lambda number: epoch + datetime.timedelta(microseconds=number * unit)
    )


def _time(definition: Mapping[str, Any], json: bool) -> Part:
    unit = _UNITS[str(definition["logicalType"]).rpartition("-")[2]]
    check = typed("time", datetime.time)

    def to(value: Any) -> int:
        time: datetime.time = check(value)
        if time.tzinfo is not None:
            raise InvalidRecord(" has a timezone, which a time of day has not here")
        seconds = time.hour * 3600 + time.minute * 60 + time.second
        return (seconds * 1_000_000 + time.microsecond) // unit

    return _number_of(
        datetime.time,
        definition,
        json,
        to,
        lambda number: (_LOCAL_EPOCH + datetime.timedelta(microseconds=number * unit)).time(),
    )


def _date(definition: Mapping[str, Any], json: bool) -> Part:
    check, start = typed("date", datetime.date), _EPOCH.toordinal()

    def to(value: Any) -> int:
        if isinstance(value, datetime.datetime):
            raise InvalidRecord(" must be date, not datetime")
        days: int = check(value).toordinal() - start
        return days

    return _number_of(datetime.date, definition, json, to, lambda number: datetime.date.fromordinal(number + start))


def _decimal(definition: Mapping[str, Any]) -> Part:
    scale, check = int(definition.get("scale", 0)), typed("Decimal", decimal.Decimal)

    def written(value: Any) -> str:
        exact = _EXACT.scaleb(check(value), scale)
        if exact != exact.to_integral_value():
            raise InvalidRecord(f" has more than {scale} digits after the point")
        number = int(exact)
        return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True).decode("latin-1")

    def decode(value: Any) -> Any:
        if isinstance(value, str):
            value = value.encode("latin-1")
        if isinstance(value, bytes):
            return _EXACT.scaleb(decimal.Decimal(int.from_bytes(value, "big", signed=True)), -scale)
        return check(value)

    return Part(dict(definition), check, decode, written)


def _text_of(kind: type, definition: Any, read: Code, write: Code = str) -> Part:
    check = typed(kind.__name__, kind)

    def encode(value: Any) -> str:
        text: str = write(check(value))
        return text

    def decode(value: Any) -> Any:
        if not isinstance(value, str):
            return check(value)
        try:
            return read(value)
        except (ValueError, ArithmeticError) as error:
            raise InvalidRecord(f" is {value[:40]!r}, which is no {kind.__name__}") from error

    return Part(definition, encode, decode, encode)


def _isoformat(value: Any) -> str:
    text: str = value.isoformat()
    return text


_TEXTS: dict[object, tuple[Code, Code]] = {
    datetime.datetime: (datetime.datetime.fromisoformat, _isoformat),
    datetime.date: (datetime.date.fromisoformat, _isoformat),
    datetime.time: (datetime.time.fromisoformat, _isoformat),
    decimal.Decimal: (decimal.Decimal, str),
    uuid.UUID: (uuid.UUID, str),
}
_UUID = {"type": "string", "logicalType": "uuid"}

LEAVES: dict[object, Callable[[bool], Part]] = {
    bool: lambda json: _plain("boolean", bool),
    int: lambda json: _integer("long"),
    float: lambda json: _floating("double"),
    str: lambda json: _plain("string", str),
    bytes: _bytes,
    type(None): lambda json: _plain("null", type(None)),
    datetime.datetime: lambda json: _moment({"type": "long", "logicalType": "timestamp-micros"}, json),
    datetime.date: lambda json: _date({"type": "int", "logicalType": "date"}, json),
    datetime.time: lambda json: _time({"type": "long", "logicalType": "time-micros"}, json),
    decimal.Decimal: lambda json: _text_of(decimal.Decimal, "string", decimal.Decimal) if json else _decimal(_DECIMAL),
    uuid.UUID: lambda json: _text_of(uuid.UUID, dict(_UUID), uuid.UUID),
}


def overridden(hint: Any, definition: str | Mapping[str, Any], where: str, *, json: bool) -> Part:
    """Return the part of an Avro type that the application names; raises `InvalidConfiguration`."""
    logical = definition.get("logicalType") if isinstance(definition, Mapping) else None
    if definition == "string" and hint in _TEXTS:
        return _text_of(hint, "string", *_TEXTS[hint])
    simple: dict[tuple[object, str], Callable[[], Part]] = {
        (int, "int"): lambda: _integer("int"),
        (int, "long"): lambda: _integer("long"),
        (float, "float"): lambda: _floating("float"),
        (float, "double"): lambda: _floating("double"),
        (str, "string"): lambda: _plain("string", str),
    }
    if isinstance(definition, str) and (hint, definition) in simple:
        return simple[hint, definition]()
    if isinstance(definition, Mapping) and isinstance(logical, str):
        if hint is datetime.datetime and logical.removeprefix("local-") in ("timestamp-millis", "timestamp-micros"):
            return _moment(definition, json)
        if hint is datetime.time and logical in ("time-millis", "time-micros"):
            return _time(definition, json)
        if hint is decimal.Decimal and logical == "decimal" and not json:
            return _decimal(definition)
    raise InvalidConfiguration(
        f"{where}: {getattr(hint, '__name__', hint)} cannot be written as the Avro type {definition!r}"
        + (" in JSON" if json else "")
    )
