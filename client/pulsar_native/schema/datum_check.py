"""Validation of dictionaries against an Avro definition, with its defaults filled in.

Rules: compiled once per schema into nested functions, since it runs for every message. Nothing is rounded, truncated or
dropped silently: unknown names (unless allowed), missing values without default, wrong types and numbers out of range
raise errors that name the path. A missing nullable value is null. Values of other types that fastavro writes without a
loss, such as those of NumPy, which is not imported here, are converted; a Decimal becomes the nearest double.

Of a union, a branch that has all fields of a dictionary, nested ones too, goes first. Where unknown names are allowed
and no branch has all, the record with most of them is taken. Of equals the first is taken, but a map after a fitting
record is taken as by fastavro.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import math
import numbers
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.errors import InvalidRecord

DatumCheck = Callable[[object], Any]
# Of one type: a value, and whether unknown names are refused.
_Check = Callable[[object, bool], Any]

_RANGES = {"int": (-(1 << 31), (1 << 31) - 1), "long": (-(1 << 63), (1 << 63) - 1)}
_LOGICAL: dict[str, tuple[type, ...]] = {
    "date": (datetime.date,),
    "time-millis": (datetime.time,),
    "time-micros": (datetime.time,),
    "timestamp-millis": (datetime.datetime,),
    "timestamp-micros": (datetime.datetime,),
    "timestamp-nanos": (datetime.datetime,),
    "local-timestamp-millis": (datetime.datetime,),
    "local-timestamp-micros": (datetime.datetime,),
    "decimal": (decimal.Decimal,),
    "uuid": (uuid.UUID,),
}
_FLOATS = ("float", "double")
# Converted to bytes; no arrays.
_BUFFERS = (bytearray, memoryview)
_NAMED = ("record", "error", "enum", "fixed")
_UNNAMED = ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")
_NO_DEFAULT: Any = object()


def compile_check(
    definition: Mapping[str, object] | str | Sequence[object],
    *,
    ignore_unknown_fields: bool = False,
    logical_types: bool = False,
    bytes_as_text: bool = False,
    tuple_notation: bool = False,
) -> DatumCheck:
    """Return the function that checks a value and returns it completed; it raises `InvalidRecord`.

    With `logical_types`, dates, times, decimals and UUIDs are accepted for logical types; with `bytes_as_text`, a str
    is accepted for bytes. With `tuple_notation`, as fastavro calls it, `(name, value)` and a dictionary with "-type"
    choose a branch of a union by name, and records in unions are returned as such tuples, so that fastavro writes the
    branch chosen here. Raises `InvalidConfiguration` for a definition that is not Avro.
    """
    check = _Compiler(logical_types, bytes_as_text, tuple_notation).compile(definition, "")
    name = definition.get("name") if isinstance(definition, Mapping) else None
    root = name if isinstance(name, str) else "The value"

    def check_value(value: object) -> Any:
        try:
            return check(value, not ignore_unknown_fields)
        except InvalidRecord as error:
            raise _deeper(root, error) from None

    return check_value


class _Branch(NamedTuple):
    """Type of a union, with the name by which fastavro knows it: a full name, or that of the type."""

    name: str
    is_record: bool
    check: _Check


class _Compiler:
    def __init__(self, logical_types: bool, bytes_as_text: bool, tuple_notation: bool) -> None:
        self._logical_types = logical_types
        self._bytes: tuple[type, ...] = (bytes, str) if bytes_as_text else (bytes,)
        self._tuple_notation = tuple_notation
        self._named: dict[str, _Check] = {}
        self._records: set[str] = set()

    def compile(self, definition: object, namespace: str) -> _Check:
        if isinstance(definition, str):
            return self._primitive(definition) or self._reference(definition, namespace)
        if isinstance(definition, Sequence):
            return self._union([self._branch(each, namespace) for each in definition])
        if not isinstance(definition, Mapping) or "type" not in definition:
            raise InvalidConfiguration(f"The schema definition has no type in {str(definition)[:80]!r}")
        kind = definition["type"]
        if not isinstance(kind, str):
            return self.compile(kind, namespace)
        makers = {
            "record": self._record,
            "error": self._record,
            "enum": self._enum,
            "fixed": self._fixed,
            "array": self._array,
            "map": self._map,
        }
        check = makers[kind](definition, namespace) if kind in makers else self.compile(kind, namespace)
        return self._with_logical_type(check, kind, definition.get("logicalType"))

    def _with_logical_type(self, check: _Check, kind: str, name: object) -> _Check:
        kinds = _LOGICAL.get(name) if self._logical_types and isinstance(name, str) else None
        if kinds is None:
            return check
        if (kind, name) == ("int", "date"):
            check = _date_text_check(check)

        def check_logical(value: object, strict: bool) -> Any:
            return value if isinstance(value, kinds) else check(value, strict)

        return check_logical

    def _primitive(self, name: str) -> _Check | None:
        if name in _RANGES:
            return _integer_check(name, *_RANGES[name])
        if name in _FLOATS:
            return _float_check(name, self._logical_types)
        if name == "boolean":
            return _check_boolean
        if name == "bytes":
            return _bytes_check(self._bytes)
        kinds: dict[str, type] = {"null": type(None), "string": str}
        return _type_check(name, kinds[name]) if name in kinds else None

    def _reference(self, name: str, namespace: str) -> _Check:
        named, found = self._named, self._resolved(name, namespace)
        # Looked up at each call: a record may refer to itself before it is complete.
        return lambda value, strict: named[found](value, strict)

    def _resolved(self, name: str, namespace: str) -> str:
        """Return the full name of a type defined before."""
        for full in (_full_name(name, namespace), name):
            for known in (full, full.rpartition(".")[2]):
                if known in self._named:
                    return known
        raise InvalidConfiguration(f"The schema definition refers to the unknown type {name!r}")

    def _branch(self, definition: object, namespace: str) -> _Branch:
        check, name = self.compile(definition, namespace), self._name(definition, namespace)
        is_record = name in self._records
        return _Branch(name, is_record, _named_record(name, check) if is_record and self._tuple_notation else check)

    def _name(self, definition: object, namespace: str) -> str:
        if isinstance(definition, str):
            return definition if definition in _UNNAMED else self._resolved(definition, namespace)
        if not isinstance(definition, Mapping):
            return "union"
        kind = definition["type"]
        return _defined_name(definition, namespace) if kind in _NAMED else self._name(kind, namespace)

    def _union(self, branches: Sequence[_Branch]) -> _Check:
        nullable = any(branch.name == "null" for branch in branches)
        # Numbers with a point last, since they take a Decimal, which another branch may write as it is.
        others = sorted(
            (branch for branch in branches if branch.name != "null"), key=lambda branch: branch.name in _FLOATS
        )
        choose = others[0].check if len(others) == 1 else _union_choice(others)
        if not self._tuple_notation:
            return (lambda value, strict: None if value is None else choose(value, strict)) if nullable else choose
        by_name = _choice_by_name(branches, choose)

        def check_union(value: object, strict: bool) -> Any:
            if value is None and nullable:
                return None
            return by_name(value, strict) if isinstance(value, tuple) else choose(value, strict)

        return check_union

    @staticmethod
    def _is_null(definition: object) -> bool:
        return definition == "null" or (isinstance(definition, Mapping) and definition.get("type") == "null")

    def _record(self, definition: Mapping[str, Any], namespace: str) -> _Check:
        full = _defined_name(definition, namespace)
        self._named[full] = _not_ready
        self._records.add(full)
        inner = full.rpartition(".")[0]
        fields: list[tuple[str, _Check, Any]] = []
        for field in definition.get("fields") or ():
            if not isinstance(field, Mapping) or not isinstance(field.get("name"), str) or "type" not in field:
                raise InvalidConfiguration(f"The schema definition of {full} has a field without name or type")
            default = field.get("default", _NO_DEFAULT)
            if default is _NO_DEFAULT and _may_be_null(field["type"]):
                default = None
            fields.append((field["name"], self.compile(field["type"], inner), default))
        self._named[full] = check = _record_check(full, fields)
        return check

    def _enum(self, definition: Mapping[str, Any], namespace: str) -> _Check:
        symbols = definition.get("symbols")
        if not isinstance(symbols, Sequence) or isinstance(symbols, str):
            raise InvalidConfiguration(f"The enum {definition.get('name')!r} of the schema definition has no symbols")
        known = frozenset(symbols)

        def check_enum(value: object, strict: bool) -> Any:
            symbol = value.name if isinstance(value, Enum) else value
            if isinstance(symbol, str) and symbol in known:
                return symbol
            raise InvalidRecord(f" must be one of {', '.join(map(str, symbols))}, not {str(value)[:40]!r}")

        self._named[_defined_name(definition, namespace)] = check_enum
        return check_enum

    def _fixed(self, definition: Mapping[str, Any], namespace: str) -> _Check:
        size, kinds = definition.get("size"), self._bytes

        def check_fixed(value: object, strict: bool) -> Any:
            if isinstance(value, _BUFFERS):
                value = bytes(value)
            if isinstance(value, kinds) and len(value) == size:  # type: ignore[arg-type]
                return value
            raise InvalidRecord(f" must be {size} bytes, not {type(value).__name__}")

        self._named[_defined_name(definition, namespace)] = check_fixed
        return check_fixed

    def _array(self, definition: Mapping[str, Any], namespace: str) -> _Check:
        check = self.compile(definition.get("items"), namespace)

        def check_array(value: object, strict: bool) -> Any:
            if not isinstance(value, list | tuple) and not is_array(value):
                raise InvalidRecord(f" must be a list, not {type(value).__name__}")
            items: Sequence[Any] = value  # type: ignore[assignment]
            return [_inside(f"[{index}]", check, item, strict) for index, item in enumerate(items)]

        return check_array

    def _map(self, definition: Mapping[str, Any], namespace: str) -> _Check:
        check = self.compile(definition.get("values"), namespace)

        def check_map(value: object, strict: bool) -> Any:
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise InvalidRecord(f" must be a dict with str keys, not {type(value).__name__}")
            return {key: _inside(f"[{key!r}]", check, item, strict) for key, item in value.items()}

        return check_map


def _named_record(name: str, check: _Check) -> _Check:
    """Return the check of a record in a union, which returns the record with its name."""

    def check_named(value: object, strict: bool) -> Any:
        if isinstance(value, Mapping) and "-type" in value:
            if value["-type"] != name:
                raise InvalidRecord(f" must be a dict for {name}, not for {str(value['-type'])[:80]!r}")
            value = {key: item for key, item in value.items() if key != "-type"}
        return name, check(value, strict)

    return check_named


def _union_choice(branches: Sequence[_Branch]) -> _Check:
    """Return the check that takes the branch of a union that keeps most of a value."""

    def check_choice(value: object, strict: bool) -> Any:
        failures: list[str] = []
        for refuse in (True,) if strict else (True, False):
            best, most, failures = None, -1, []
            for _, is_record, check in branches:
                try:
                    checked = check(value, refuse)
                except InvalidRecord as error:
                    failures.append(error.message)
                    continue
                if not is_record:
                    return checked
                found = _fields_found(value, checked)
                if found > most:
                    best, most = checked, found
            if best is not None:
                return best
        raise InvalidRecord(", and".join(failures) or f" must be null, not {type(value).__name__}")

    return check_choice


def _fields_found(value: Any, checked: Any) -> int:
    """Return how many of the names of a dictionary the record made of it has."""
    fields = checked[1] if isinstance(checked, tuple) else checked
    return sum(name in fields for name in value)


def _choice_by_name(branches: Sequence[_Branch], choose: _Check) -> _Check:
    """Return the check of a tuple for a union: the name of a branch and its value, or else a list."""
    named = {branch.name: branch for branch in branches}

    def check_tuple(value: Any, strict: bool) -> Any:
        branch = named.get(value[0]) if len(value) == 2 and isinstance(value[0], str) else None
        if branch is None:
            return choose(value, strict)
        try:
            checked = branch.check(value[1], strict)
        except InvalidRecord as error:
            try:
                return choose(value, strict)  # A list of two that begins with such a name.
            except InvalidRecord:
                raise error from None
        return checked if branch.is_record else (branch.name, checked)

    return check_tuple


def _record_check(full: str, fields: Sequence[tuple[str, _Check, Any]]) -> _Check:
    known = [name for name, _, _ in fields]

    def check_record(value: object, strict: bool) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidRecord(f" must be a dict for {full}, not {type(value).__name__}")
        checked: dict[str, Any] = {}
        found = 0
        for name, check, default in fields:
            if name in value:
                found += 1
                try:
                    checked[name] = check(value[name], strict)
                except InvalidRecord as error:
                    raise _deeper(f".{name}", error) from None
            elif default is not _NO_DEFAULT:
                checked[name] = default
            else:
                raise InvalidRecord(f" lacks the field {name!r}, which has no default")
        if strict and found != len(value):
            raise InvalidRecord(_unknown_names(full, known, value))
        return checked

    return check_record


def _unknown_names(full: str, known: Sequence[str], value: Mapping[Any, object]) -> str:
    unknown = next(str(name) for name in value if name not in known)
    near = difflib.get_close_matches(unknown, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"{full} has {', '.join(known) or 'no fields'}"
    return (
        f" has the field {unknown!r}, which the schema has not; {hint} (ignore_unknown_fields=True drops such fields)"
    )


def _integer_check(name: str, low: int, high: int) -> _Check:
    def check_integer(value: object, strict: bool) -> Any:
        # Also the integers of NumPy, as fastavro takes them.
        if isinstance(value, int | numbers.Integral) and not isinstance(value, bool):
            number = int(value)
            if low <= number <= high:
                return number
            raise InvalidRecord(f" is {value}, out of the range of {name}")
        raise InvalidRecord(f" must be {name}, not {type(value).__name__}")

    return check_integer


def _float_check(name: str, takes_decimals: bool) -> _Check:
    def check_float(value: object, strict: bool) -> Any:
        if not isinstance(value, bool):
            if isinstance(value, float | int):
                return value
            if isinstance(value, numbers.Real):
                return float(value)  # NumPy's, as fastavro takes them.
            if takes_decimals and isinstance(value, decimal.Decimal) and not value.is_snan():
                return _nearest_double(name, value)
        raise InvalidRecord(f" must be {name}, not {type(value).__name__}")

    return check_float


def _nearest_double(name: str, value: decimal.Decimal) -> float:
    number = float(value)
    if math.isinf(number) and value.is_finite():
        raise InvalidRecord(f" is {value}, out of the range of {name}")
    return number


def _date_text_check(check: _Check) -> _Check:
    """Return the check of a date that takes its text, too."""

    def check_date(value: object, strict: bool) -> Any:
        if not isinstance(value, str):
            return check(value, strict)
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            raise InvalidRecord(f" is {value[:40]!r}, which is no date such as '2026-01-31'") from None

    return check_date


def _check_boolean(value: object, strict: bool) -> Any:
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise InvalidRecord(f" must be boolean, not {type(value).__name__}")


def _bytes_check(kinds: tuple[type, ...]) -> _Check:
    def check_bytes(value: object, strict: bool) -> Any:
        if isinstance(value, kinds):
            return value
        if isinstance(value, _BUFFERS):
            return bytes(value)
        raise InvalidRecord(f" must be bytes, not {type(value).__name__}")

    return check_bytes


def is_array(value: object) -> bool:
    """Return True for a sequence of values, or an array or column of one dimension, as NumPy and pandas have them.

    Neither for sets, which have no order, nor for views of dictionaries.
    """
    if isinstance(value, Sequence):
        return not isinstance(value, (str, bytes, *_BUFFERS))
    return hasattr(value, "__array__") and getattr(value, "ndim", None) == 1


def _type_check(name: str, kind: type) -> _Check:
    def check_type(value: object, strict: bool) -> Any:
        if isinstance(value, kind):
            return value
        raise InvalidRecord(f" must be {name}, not {type(value).__name__}")

    return check_type


def _not_ready(value: object, strict: bool) -> Any:
    raise AssertionError("a record's check runs only after its definition is compiled")


def _inside(step: str, check: _Check, value: object, strict: bool) -> Any:
    try:
        return check(value, strict)
    except InvalidRecord as error:
        raise _deeper(step, error) from None


def _deeper(step: str, error: InvalidRecord) -> InvalidRecord:
    # The path is built from the inside out; the name of the root is added last, in front.
    return InvalidRecord(step + error.message)


def _may_be_null(definition: object) -> bool:
    if isinstance(definition, Sequence) and not isinstance(definition, str):
        return any(_Compiler._is_null(each) for each in definition)
    return _Compiler._is_null(definition)


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _defined_name(definition: Mapping[str, Any], namespace: str) -> str:
    name, own = definition.get("name"), definition.get("namespace")
    if not isinstance(name, str) or not name:
        raise InvalidConfiguration(f"The schema definition has a {definition.get('type')} without a name")
    return _full_name(name, own if isinstance(own, str) else namespace)
