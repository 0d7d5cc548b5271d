"""Conversions to the types of an Avro definition: texts of CSV files, values of tables, times of every source.

Rules: a time without a timezone is in UTC. A text or number that its column's type cannot hold is refused, with the
column; no digit of a text is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from pulsar_native.jobs import validation
from pulsar_native.schema.datum_check import is_array

Conversion = Callable[[Any], Any]
ColumnConversion = Callable[[str, Any], Any]

_UNITS = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}
_TIMESTAMPS = frozenset(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in _UNITS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# From here on a float stands for several whole numbers.
_INEXACT = 2**53


def _types_of(field: Mapping[str, Any]) -> list[Any]:
    """Return the types of a record field, one or those of its union."""
    kind = field["type"]
    return kind if isinstance(kind, list) else [kind]


def _split(kind: Any) -> tuple[Any, Any]:
    """Return the plain and the logical type of a type."""
    return (kind["type"], kind.get("logicalType")) if isinstance(kind, Mapping) else (kind, None)


# ---- texts of a CSV file ---------------------------------------------------------------------------------------------


class _FromText(NamedTuple):
    """Conversion of the texts of one type, with the type's name in errors."""

    name: str
    convert: Callable[[str], Any]
    # Whether NA and null, which programs write for a missing value, cannot be a value of the type.
    has_null_words: bool = True


_NULL_WORDS = ("NA", "null")
_TRUE, _FALSE = ("true", "t", "yes", "1"), ("false", "f", "no", "0")
_FRACTION = re.compile(r"[.,](\d+)")
_FRACTION_DIGITS = {"millis": 3}
# Finer than a datetime.
_MAX_FRACTION_DIGITS = 6


def _flag(text: str) -> bool:
    folded = text.strip().lower()
    if folded not in _TRUE + _FALSE:
        raise ValueError("not a truth value")
    return folded in _TRUE


def _number(convert: Callable[[str], Any], text: str) -> Any:
    # Python's own notation of large numbers, which no other program reads.
    if "_" in text:
        raise ValueError("an underscore in a number")
    return convert(text)


def _count_or(convert: Callable[[str], Any], text: str) -> Any:
    """Return a count, as the type is stored, or what another text stands for."""
    text = text.strip()
    return int(text) if text.lstrip("+-").isdecimal() else convert(text)


def _day(text: str) -> int | date:
    found = _count_or(date.fromisoformat, text)
    if isinstance(found, int):
        # Refuses 20260131, which means a day and no count of days.
        date.fromordinal(found + _EPOCH.toordinal())
    return found  # type: ignore[no-any-return]


def _check_fraction(logical: str, text: str) -> None:
    found = _FRACTION.search(text)
    digits = _FRACTION_DIGITS.get(logical.rpartition("-")[2], _MAX_FRACTION_DIGITS)
    if found is not None and len(found[1].rstrip("0")) > digits:
        raise ValueError("more digits of a second than the type has")


def _time_of_day(logical: str, text: str) -> time:
    found = time.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError("a timezone")
    _check_fraction(logical, text)
    return found


def _timestamp(logical: str, text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is not None and logical.startswith("local-"):
        raise ValueError("a timezone")
    _check_fraction(logical, text)
    return _zoned(found, logical)


def _uuid(text: str) -> str:
    """Return a UUID as it is written, in capitals too; one without hyphens, or in braces, in the usual notation."""
    found = str(UUID(_number(str.strip, text)))
    return text if text.lower() == found else found


def _decimal(kind: Mapping[str, Any], is_avro: bool) -> _FromText:
    """Return the conversion to a decimal; JSON, which has no form of it, takes the text."""
    precision, scale = kind["precision"], kind.get("scale", 0)
    context = Context(prec=precision, traps=[InvalidOperation, Inexact])
    unit = Decimal((0, (1,), -scale))

    def convert(text: str) -> Decimal | str:
        exact = context.quantize(Decimal(_number(str.strip, text)), unit)
        if not exact.is_finite():
            raise ValueError("not a finite number")
        return exact if is_avro else text

    return _FromText(f"decimal of {precision} digits, {scale} of them after the point", convert)


_FROM_TEXT: dict[Any, _FromText] = {
    "int": _FromText("int", partial(_number, int)),
    "long": _FromText("int", partial(_number, int)),
    "float": _FromText("float", partial(_number, float)),
    "double": _FromText("float", partial(_number, float)),
    "boolean": _FromText("flag", _flag),
    "string": _FromText("text", str, has_null_words=False),
    "bytes": _FromText("text", str.encode, has_null_words=False),
}
_LOGICAL_FROM_TEXT: dict[Any, _FromText] = {
    ("int", "date"): _FromText("date, such as 2026-01-31", _day),
    ("string", "uuid"): _FromText("UUID", _uuid),
    **{
        (plain, logical): _FromText(f"{logical}, such as 05:00:00", partial(_count_or, partial(_time_of_day, logical)))
        for plain, logical in (("int", "time-millis"), ("long", "time-micros"))
    },
    **{
        ("long", logical): _FromText(
            f"{logical}, such as 2026-01-31T05:00:00{'' if logical.startswith('local-') else 'Z'}",
            partial(_count_or, partial(_timestamp, logical)),
        )
        for logical in _TIMESTAMPS
    },
}


def text_conversions(definition: Mapping[str, Any], is_avro: bool) -> dict[str, ColumnConversion]:
    """Return the conversion of each record field from the text of a CSV column."""
    found = {}
    named: dict[str, Any] = {}
    for field in definition.get("fields", ()):
        # A type with a name may be used again by its name.
        kinds = [named.get(kind, kind) if isinstance(kind, str) else kind for kind in _types_of(field)]
        named.update((kind["name"], kind) for kind in kinds if isinstance(kind, Mapping) and "name" in kind)
        made = next((each for kind in kinds if (each := _from_text(kind, is_avro)) is not None), _FROM_TEXT["string"])
        found[field["name"]] = _column_of_texts("null" in map(_plain, kinds), made)
    return found


def _plain(kind: Any) -> Any:
    return _split(kind)[0]


def _from_text(kind: Any, is_avro: bool) -> _FromText | None:
    plain, logical = _split(kind)
    if isinstance(plain, Mapping):
        return _from_text(plain, is_avro)
    if logical == "decimal" and plain in ("bytes", "fixed"):
        return _decimal(kind, is_avro)
    return _LOGICAL_FROM_TEXT.get((plain, logical)) or _FROM_TEXT.get(plain)


def _column_of_texts(nullable: bool, made: _FromText) -> ColumnConversion:
    nulls = ("", *(_NULL_WORDS if made.has_null_words else ())) if nullable else ()

    def one(name: str, text: Any) -> Any:
        if not isinstance(text, str):
            return text
        if text in nulls:
            return None
        try:
            return made.convert(text)
        except (ValueError, ArithmeticError):
            validation.refuse(f"the column {name!r} holds {text[:60]!r}, which is no {made.name}")

    return one


# ---- rows of a table -------------------------------------------------------------------------------------------------

_CONVERTED = frozenset(("int", "long", "float", "double", "string"))


def table_conversions(definition: Mapping[str, Any]) -> dict[str, ColumnConversion]:
    """Return the conversion from a table's value of each record field that needs one."""
    found = {}
    for field in definition.get("fields", ()):
        plain, logical = _split(next((kind for kind in _types_of(field) if kind != "null"), "null"))
        if isinstance(plain, str) and plain in _CONVERTED:
            found[field["name"]] = _table_conversion(plain, logical)
    return found


def _table_conversion(plain: str, logical: Any) -> ColumnConversion:
    def one(name: str, value: Any) -> Any:
        if isinstance(value, float) and plain in ("int", "long") and value.is_integer():
            return _whole(name, value)
        if plain == "string" and isinstance(value, datetime | date | time):
            return value.isoformat()
        if plain == "string" and isinstance(value, Decimal | UUID):
            return str(value)
        if isinstance(value, Decimal) and plain in ("float", "double"):
            return float(value)
        if isinstance(value, datetime) and plain == "long":
            return _table_time(value, logical)
        if isinstance(value, date) and plain == "int" and logical != "date":
            return _days(value)
        return value

    return one


def _whole(name: str, value: float) -> int:
    """Return a whole number that pandas has as a float, as it does where a value of the column is missing."""
    if abs(value) >= _INEXACT:
        validation.refuse(
            f"the column {name!r} holds the float {value!r}, which stands for several whole numbers: read the column "
            "as integers (dtype Int64 in pandas)"
        )
    return int(value)


def _table_time(value: datetime, logical: Any) -> Any:
    if logical is None:
        return _count("timestamp-millis", value)
    return _zoned(value, logical) if logical in _TIMESTAMPS else value


# ---- values of every source ------------------------------------------------------------------------------------------


def logical_conversion(definition: Mapping[str, Any], is_avro: bool) -> Conversion | None:
    """Return the conversion of a value's logical types, nested ones too, None if it has none to convert.

    For Avro, times without a timezone become times in UTC: fastavro takes them for the machine's local time. For JSON,
    times become counts of their unit and UUIDs text.
    """
    return _Compiler(is_avro).compile(definition, "") if _has_logical_type(definition) else None


def _has_logical_type(part: Any) -> bool:
    if isinstance(part, Mapping):
        return "logicalType" in part or any(map(_has_logical_type, part.values()))
    return isinstance(part, list) and any(map(_has_logical_type, part))


class _Compiler:
    """Conversions of one definition's types, compiled once since they run for every message."""

    def __init__(self, is_avro: bool) -> None:
        self._logical = _AVRO_VALUES if is_avro else _JSON_VALUES
        # Records by their full names, and those of them whose fields are not complete yet.
        self._records: dict[str, Conversion | None] = {}
        self._open: set[str] = set()

    def compile(self, kind: Any, namespace: str) -> Conversion | None:
        if isinstance(kind, str):
            return self._reference(kind, namespace)
        if isinstance(kind, list):
            return _sequence([found for each in kind if (found := self.compile(each, namespace)) is not None])
        plain, logical = _split(kind)
        if not isinstance(plain, str):
            return self.compile(plain, namespace) if isinstance(kind, Mapping) else None
        if plain in ("record", "error"):
            return self._record(kind, namespace)
        if plain in ("array", "map"):
            inner = self.compile(kind["items" if plain == "array" else "values"], namespace)
            return None if inner is None else partial(_each if plain == "array" else _each_value, inner)
        return self._logical.get((plain, logical)) or self._reference(plain, namespace)

    def _reference(self, name: str, namespace: str) -> Conversion | None:
        full = next((each for each in (f"{namespace}.{name}", name) if each in self._records), None)
        if full is None or full not in self._open:
            return self._records.get(full or name)

        def convert_record(value: Any) -> Any:
            convert = self._records[full]
            return value if convert is None else convert(value)

        return convert_record

    def _record(self, kind: Mapping[str, Any], namespace: str) -> Conversion | None:
        name, namespace = kind["name"], kind.get("namespace", namespace)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        self._records[full] = None
        self._open.add(full)
        fields = {}
        for field in kind.get("fields", ()):
            found = self.compile(field["type"], full.rpartition(".")[0])
            if found is not None:
                fields[field["name"]] = found
        self._open.remove(full)
        self._records[full] = convert = partial(_fields, fields) if fields else None
        return convert


def _sequence(branches: list[Conversion]) -> Conversion | None:
    """Return the conversion by all types of a union, of which each leaves the values of others."""
    if not branches:
        return None

    def convert_all(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
            # A branch chosen by its name.
            return value[0], convert_all(value[1])
        for convert in branches:
            value = convert(value)
        return value

    return convert_all


def _fields(fields: Mapping[str, Conversion], value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    changed = {
        name: found
        for name, convert in fields.items()
        if name in value and (found := convert(value[name])) is not value[name]
    }
    return {**value, **changed} if changed else value


def _each(convert: Conversion, value: Any) -> Any:
    return [convert(each) for each in value] if is_array(value) else value


def _each_value(convert: Conversion, value: Any) -> Any:
    return {name: convert(each) for name, each in value.items()} if isinstance(value, Mapping) else value


def _zoned(value: datetime, logical: str) -> datetime:
    """Return a time with a timezone, UTC where it has none; without one for a local time."""
    if logical.startswith("local-"):
        return value.replace(tzinfo=None)
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _count(logical: str, value: Any) -> Any:
    """Return a time as its count of the logical type's units since 1970."""
    if not isinstance(value, datetime):
        return value
    is_wall_clock = value.tzinfo is None or logical.startswith("local-")
    since = (value.replace(tzinfo=UTC) if is_wall_clock else value) - _EPOCH
    # Of times of pandas.
    nanoseconds = getattr(since, "nanoseconds", 0)
    return _in_units(logical, since.days * 86_400 + since.seconds, since.microseconds, nanoseconds)


def _count_of_day(logical: str, value: Any) -> Any:
    """Return a time of day as its count of the logical type's units since midnight."""
    if not isinstance(value, time) or value.tzinfo is not None:
        return value
    return _in_units(logical, (value.hour * 60 + value.minute) * 60 + value.second, value.microsecond)


def _in_units(logical: str, seconds: int, microseconds: int, nanoseconds: int = 0) -> int:
    whole = (seconds * 1_000_000 + microseconds) * 1000 + nanoseconds
    return whole * _UNITS[logical.rpartition("-")[2]] // _UNITS["nanos"]


def _days(value: Any) -> Any:
    return value.toordinal() - _EPOCH.toordinal() if isinstance(value, date) else value


def _text_of_uuid(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


_AVRO_VALUES: dict[Any, Conversion] = {
    ("long", "timestamp-millis"): _in_utc,
    ("long", "timestamp-micros"): _in_utc,
    # Unknown to fastavro.
    **{("long", logical): partial(_count, logical) for logical in ("timestamp-nanos", "local-timestamp-nanos")},
}
_JSON_VALUES: dict[Any, Conversion] = {
    ("int", "date"): _days,
    ("int", "time-millis"): partial(_count_of_day, "time-millis"),
    ("long", "time-micros"): partial(_count_of_day, "time-micros"),
    ("string", "uuid"): _text_of_uuid,
    **{("long", logical): partial(_count, logical) for logical in _TIMESTAMPS},
}
