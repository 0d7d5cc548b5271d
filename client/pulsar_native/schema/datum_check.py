"""Validation of dictionaries against an Avro definition, with its defaults filled in.

Rules: compiled once per schema into nested functions, since it runs for every message. Nothing is rounded, truncated or
dropped silently: unknown names (unless allowed), missing values without default, wrong types and numbers out of range
raise errors that name the path. A missing nullable value is null.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.errors import InvalidRecord

DatumCheck = Callable[[object], Any]

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
_NO_DEFAULT: Any = object()


def compile_check(
    definition: Mapping[str, object] | str | Sequence[object],
    *,
    ignore_unknown_fields: bool = False,
    logical_types: bool = False,
    bytes_as_text: bool = False,
) -> DatumCheck:
    """Return the function that checks a value and returns it completed; it raises `InvalidRecord`.

    With `logical_types`, dates, times, decimals and UUIDs are accepted for logical types; with `bytes_as_text`, a str
    is accepted for bytes. Raises `InvalidConfiguration` for a definition that is not Avro.
    """
    check = _Compiler(ignore_unknown_fields, logical_types, bytes_as_text).compile(definition, "")
    name = definition.get("name") if isinstance(definition, Mapping) else None
    root = name if isinstance(name, str) else "The value"

    def check_value(value: object) -> Any:
        try:
            return check(value)
        except InvalidRecord as error:
            raise _deeper(root, error) from None

    return check_value


class _Compiler:
    def __init__(self, ignore_unknown_fields: bool, logical_types: bool, bytes_as_text: bool) -> None:
        self._ignore_unknown_fields = ignore_unknown_fields
        self._logical_types = logical_types
        self._bytes: tuple[type, ...] = (bytes, str) if bytes_as_text else (bytes,)
        self._named: dict[str, DatumCheck] = {}

    def compile(self, definition: object, namespace: str) -> DatumCheck:
        if isinstance(definition, str):
            return self._primitive(definition) or self._reference(definition, namespace)
        if isinstance(definition, Sequence):
            return self._union([(self._is_null(each), self.compile(each, namespace)) for each in definition])
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
        return self._with_logical_type(check, definition.get("logicalType"))

    def _with_logical_type(self, check: DatumCheck, name: object) -> DatumCheck:
        kinds = _LOGICAL.get(name) if self._logical_types and isinstance(name, str) else None
        if kinds is None:
            return check

        def check_logical(value: object) -> Any:
            return value if isinstance(value, kinds) else check(value)

        return check_logical

    def _primitive(self, name: str) -> DatumCheck | None:
        if name in _RANGES:
            return _integer_check(name, *_RANGES[name])
        if name in ("float", "double"):
            return _float_check(name)
        kinds: dict[str, tuple[type, ...]] = {
            "null": (type(None),),
            "boolean": (bool,),
            "string": (str,),
            "bytes": self._bytes,
        }
        return _type_check(name, kinds[name]) if name in kinds else None

    def _reference(self, name: str, namespace: str) -> DatumCheck:
        for full in (_full_name(name, namespace), name):
            if full in self._named or full.rpartition(".")[2] in self._named:
                named, found = self._named, full if full in self._named else full.rpartition(".")[2]
                # Looked up at each call: a record may refer to itself before it is complete.
                return lambda value: named[found](value)
        raise InvalidConfiguration(f"The schema definition refers to the unknown type {name!r}")

    def _union(self, branches: Sequence[tuple[bool, DatumCheck]]) -> DatumCheck:
        nullable = any(is_null for is_null, _ in branches)
        others = [check for is_null, check in branches if not is_null]
        if len(others) == 1:
            only = others[0]
            return (lambda value: None if value is None else only(value)) if nullable else only

        def check_union(value: object) -> Any:
            if value is None and nullable:
                return None
            failures = []
            for check in others:
                try:
                    return check(value)
                except InvalidRecord as error:
                    failures.append(error.message)
            raise InvalidRecord(", and".join(failures) or f" must be null, not {type(value).__name__}")

        return check_union

    @staticmethod
    def _is_null(definition: object) -> bool:
        return definition == "null" or (isinstance(definition, Mapping) and definition.get("type") == "null")

    def _record(self, definition: Mapping[str, Any], namespace: str) -> DatumCheck:
        full = _defined_name(definition, namespace)
        self._named[full] = _not_ready
        inner = full.rpartition(".")[0]
        fields: list[tuple[str, DatumCheck, Any]] = []
        for field in definition.get("fields") or ():
            if not isinstance(field, Mapping) or not isinstance(field.get("name"), str) or "type" not in field:
                raise InvalidConfiguration(f"The schema definition of {full} has a field without name or type")
            default = field.get("default", _NO_DEFAULT)
            if default is _NO_DEFAULT and _may_be_null(field["type"]):
                default = None
            fields.append((field["name"], self.compile(field["type"], inner), default))
        self._named[full] = check = _record_check(full, fields, self._ignore_unknown_fields)
        return check

    def _enum(self, definition: Mapping[str, Any], namespace: str) -> DatumCheck:
        symbols = definition.get("symbols")
        if not isinstance(symbols, Sequence) or isinstance(symbols, str):
            raise InvalidConfiguration(f"The enum {definition.get('name')!r} of the schema definition has no symbols")
        known = frozenset(symbols)

        def check_enum(value: object) -> Any:
            symbol = value.name if isinstance(value, Enum) else value
            if isinstance(symbol, str) and symbol in known:
                return symbol
            raise InvalidRecord(f" must be one of {', '.join(map(str, symbols))}, not {str(value)[:40]!r}")

        self._named[_defined_name(definition, namespace)] = check_enum
        return check_enum

    def _fixed(self, definition: Mapping[str, Any], namespace: str) -> DatumCheck:
        size, kinds = definition.get("size"), self._bytes

        def check_fixed(value: object) -> Any:
            if isinstance(value, kinds) and len(value) == size:  # type: ignore[arg-type]
                return value
            raise InvalidRecord(f" must be {size} bytes, not {type(value).__name__}")

        self._named[_defined_name(definition, namespace)] = check_fixed
        return check_fixed

    def _array(self, definition: Mapping[str, Any], namespace: str) -> DatumCheck:
        check = self.compile(definition.get("items"), namespace)

        def check_array(value: object) -> Any:
            if not isinstance(value, list | tuple):
                raise InvalidRecord(f" must be a list, not {type(value).__name__}")
            return [_inside(f"[{index}]", check, item) for index, item in enumerate(value)]

        return check_array

    def _map(self, definition: Mapping[str, Any], namespace: str) -> DatumCheck:
        check = self.compile(definition.get("values"), namespace)

        def check_map(value: object) -> Any:
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise InvalidRecord(f" must be a dict with str keys, not {type(value).__name__}")
            return {key: _inside(f"[{key!r}]", check, item) for key, item in value.items()}

        return check_map


def _record_check(full: str, fields: Sequence[tuple[str, DatumCheck, Any]], ignore_unknown: bool) -> DatumCheck:
    known = [name for name, _, _ in fields]

    def check_record(value: object) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidRecord(f" must be a dict for {full}, not {type(value).__name__}")
        checked: dict[str, Any] = {}
        found = 0
        for name, check, default in fields:
            if name in value:
                found += 1
                try:
                    checked[name] = check(value[name])
                except InvalidRecord as error:
                    raise _deeper(f".{name}", error) from None
            elif default is not _NO_DEFAULT:
                checked[name] = default
            else:
                raise InvalidRecord(f" lacks the field {name!r}, which has no default")
        if found != len(value) and not ignore_unknown:
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


def _integer_check(name: str, low: int, high: int) -> DatumCheck:
    def check_integer(value: object) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            if low <= value <= high:
                return value
            raise InvalidRecord(f" is {value}, out of the range of {name}")
        raise InvalidRecord(f" must be {name}, not {type(value).__name__}")

    return check_integer


def _float_check(name: str) -> DatumCheck:
    def check_float(value: object) -> Any:
        if isinstance(value, float | int) and not isinstance(value, bool):
            return value
        raise InvalidRecord(f" must be {name}, not {type(value).__name__}")

    return check_float


def _type_check(name: str, kinds: tuple[type, ...]) -> DatumCheck:
    def check_type(value: object) -> Any:
        if isinstance(value, kinds):
            return value
        raise InvalidRecord(f" must be {name}, not {type(value).__name__}")

    return check_type


def _not_ready(value: object) -> Any:
    raise AssertionError("a record's check runs only after its definition is compiled")


def _inside(step: str, check: DatumCheck, value: object) -> Any:
    try:
        return check(value)
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
