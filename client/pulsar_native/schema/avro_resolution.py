"""Preparation of two Avro definitions, so that values of a writer's are read as those of the reader's.

Rules: fastavro reads by the writer's logical types and returns defaults as their JSON. Here a value has the logical
type of the reader's field, or none, and a default is the value that it stands for. The writer's logical type holds only
where the reader's differs from it in unit or scale alone: the instant or number stays the same. Both definitions are
those of `fastavro.parse_schema`; neither is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_NAMED_TYPES = "__named_schemas"
_PARTS = ("type", "items", "values")
# Types of the reader that a value of the writer's type is read as.
_READ_AS = {
    "boolean": ("boolean",),
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
    "bytes": ("bytes", "string"),
    "string": ("string", "bytes"),
    "fixed": ("fixed",),
}
# Logical type of all values whose reader is asked for the logical type, and the key of the one that the writer has.
_READERS = "pulsar-native-readers"
_WRITERS = "pulsar-native-writers"
_NOT_FINITE = ("NaN", "Infinity", "-Infinity", "INF", "-INF")


def prepare(fastavro: Any, writer: Any, reader: Any) -> tuple[Any, Any]:
    """Return the two definitions as `fastavro.schemaless_reader` takes them."""
    logical_readers = fastavro.read.LOGICAL_READERS
    if f"long-{_READERS}" not in logical_readers:
        read = _value_reader(logical_readers)
        logical_readers.update({f"{kind}-{_READERS}": read for kind in _READ_AS})
    return _with_readers_types(writer, reader, logical_readers), _with_default_values(reader, logical_readers)


def _value_reader(logical_readers: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function that fastavro calls with a plain value, the writer's type of it, and the reader's."""

    def read(value: Any, writer: Any, reader: Any) -> Any:
        if type(reader) is str:
            return value if reader == writer["type"] else _promoted(value, reader)
        wanted, written = reader.get("logicalType"), writer[_WRITERS]
        if written is not None and wanted is not None and (written == wanted or _family(written) == _family(wanted)):
            # The bytes are in the writer's unit or scale.
            reader, wanted = writer, written
        kind = reader["type"]
        if kind != writer["type"]:
            value = _promoted(value, kind)
        convert = logical_readers.get(f"{kind}-{wanted}")
        return value if convert is None else convert(value, reader, None)

    return read


def _family(logical: str) -> str:
    """Return what a logical type stands for, without the unit."""
    return logical.removesuffix("-millis").removesuffix("-micros").removesuffix("-nanos")


def _promoted(value: Any, kind: str) -> Any:
    if kind in ("float", "double"):
        return float(value)
    if kind == "bytes":
        return value.encode()
    return value.decode() if kind == "string" else value


def _with_readers_types(writer: Any, reader: Any, known: Mapping[str, object]) -> Any:
    """Return the writer's definition with the logical types left to the reader's."""
    logical = {type_["type"] for type_ in _types_of(reader) if "logicalType" in type_}

    def with_readers(type_: Any) -> Any:
        if isinstance(type_, list):
            return type_
        kind = type_ if isinstance(type_, str) else type_.get("type")
        if not isinstance(kind, str) or kind not in _READ_AS:
            return type_
        own = {"type": kind} if isinstance(type_, str) else dict(type_)
        written = own.pop("logicalType", None)
        if logical.isdisjoint(_READ_AS[kind]):
            # No field of the reader's can have one.
            return type_ if written is None else own
        return {**own, "logicalType": _READERS, _WRITERS: written if f"{kind}-{written}" in known else None}

    return _mapped(writer, with_readers)


def _with_default_values(reader: Any, logical_readers: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the reader's definition with the values that the defaults of fields stand for."""
    defaults = _Defaults(reader.get(_NAMED_TYPES, {}), logical_readers)

    def with_values(type_: Any) -> Any:
        if isinstance(type_, list):
            # fastavro finds a type that the writer's field refers to by name only as a name in a union.
            return [defaults.name_of(branch) for branch in type_]
        if isinstance(type_, dict) and "fields" in type_:
            return {**type_, "fields": [defaults.converted(field) for field in type_["fields"]]}
        return type_

    return _mapped(reader, with_values)


class _Unfit(ValueError):
    """A default that is not one of the type: of another branch of a union, or wrong."""


class _Defaults:
    def __init__(self, named: Mapping[str, Any], logical_readers: Mapping[str, Callable[..., Any]]) -> None:
        self._named = named
        self._logical_readers = logical_readers

    def name_of(self, branch: Any) -> Any:
        name = branch.get("name") if isinstance(branch, dict) else None
        return name if name in self._named else branch

    def converted(self, field: Mapping[str, Any]) -> Mapping[str, Any]:
        if "default" not in field:
            return field
        try:
            return {**field, "default": self.value(field["default"], field["type"])}
        except (_Unfit, RecursionError):
            # Left to whoever reads the field.
            return field

    def value(self, default: Any, type_: Any) -> Any:
        """Return the value that the JSON of a default stands for; raises `_Unfit`."""
        if isinstance(type_, list):
            return self._of_union(default, type_)
        if isinstance(type_, str):
            return self.value(default, self._named[type_]) if type_ in self._named else _plain(default, type_, {})
        kind = type_["type"]
        if not isinstance(kind, str):
            return self.value(default, kind)
        if "fields" in type_:
            return self._of_record(default, type_["fields"])
        if kind == "array":
            return [self.value(item, type_["items"]) for item in _checked(default, list)]
        if kind == "map":
            return {key: self.value(item, type_["values"]) for key, item in _checked(default, dict).items()}
        convert = self._logical_readers.get(f"{kind}-{type_.get('logicalType')}")
        value = _plain(default, kind, type_)
        if convert is None:
            return value
        try:
            return convert(value, type_, None)
        except (ArithmeticError, ValueError) as error:
            raise _Unfit from error

    def _of_union(self, default: Any, branches: list[Any]) -> Any:
        for branch in branches:
            try:
                return self.value(default, branch)
            except _Unfit:
                continue
        raise _Unfit

    def _of_record(self, default: Any, fields: list[Any]) -> dict[str, Any]:
        values = {}
        for field in fields:
            name = field["name"]
            if name in _checked(default, dict):
                values[name] = self.value(default[name], field["type"])
            elif "default" in field:
                values[name] = self.value(field["default"], field["type"])
            else:
                raise _Unfit
        return values


def _plain(default: Any, kind: str, type_: Mapping[str, Any]) -> Any:
    """Return the value of a default of a type that has no parts; raises `_Unfit`."""
    if kind in ("bytes", "fixed"):
        try:
            # Each character stands for the byte of its number.
            value = _checked(default, str).encode("latin-1")
        except UnicodeEncodeError as error:
            raise _Unfit from error
        if kind == "fixed" and len(value) != type_["size"]:
            raise _Unfit
        return value
    if kind in ("float", "double"):
        if isinstance(default, bool) or (not isinstance(default, int | float) and default not in _NOT_FINITE):
            raise _Unfit
        return float(default)
    if kind in ("int", "long") and isinstance(default, bool):
        raise _Unfit
    if kind == "enum" and default not in type_["symbols"]:
        raise _Unfit
    types = {"null": type(None), "boolean": bool, "int": int, "long": int, "string": str, "enum": str}
    return _checked(default, types.get(kind, object))


def _checked(default: Any, kind: type) -> Any:
    if not isinstance(default, kind):
        raise _Unfit
    return default


def _mapped(parsed: Any, change: Callable[[Any], Any]) -> Any:
    """Return a parsed definition with each type of it changed, from the inside out, and what it knows by name."""

    def of(type_: Any) -> Any:
        if isinstance(type_, list):
            return change([of(branch) for branch in type_])
        if not isinstance(type_, dict):
            return change(type_)
        made = {**type_, **{part: of(type_[part]) for part in _PARTS if isinstance(type_.get(part), dict | list)}}
        for part in ("items", "values"):
            if isinstance(made.get(part), str):
                made[part] = change(made[part])
        if "fields" in made:
            made["fields"] = [{**field, "type": of(field["type"])} for field in made["fields"]]
        return change(made)

    made = of(parsed)
    if isinstance(made, dict) and _NAMED_TYPES in made:
        made[_NAMED_TYPES] = {name: of(type_) for name, type_ in made[_NAMED_TYPES].items()}
    return made


def _types_of(parsed: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the types of a definition that are not just names."""
    if isinstance(parsed, list):
        for branch in parsed:
            yield from _types_of(branch)
    elif isinstance(parsed, dict):
        if isinstance(parsed.get("type"), str):
            yield parsed
        for part in _PARTS:
            yield from _types_of(parsed.get(part))
        for field in parsed.get("fields", ()):
            yield from _types_of(field["type"])
