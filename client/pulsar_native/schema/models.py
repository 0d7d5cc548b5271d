"""Record classes of the application: dataclasses and pydantic models (version 2).

Rules: the class is read once, when the schema is created: fields, types, defaults; a type without an Avro type raises
then, with the field's name. Values are checked when they are encoded. Logical types are exact: datetimes with a
timezone are timestamp-micros; in JSON, dates and times are the numbers of their definition, decimals are text. Fields
missing in a message get the class's default; unknown names are ignored, since newer messages may have more. pydantic is
not imported here: only an application that has imported it has models.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar, Union, get_args, get_origin

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.base import mismatch
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.fields import NamedTypes
from pulsar_native.schema.model_values import LEAVES, Part, deeper, overridden, typed

T = TypeVar("T")

_ARRAYS: dict[object, type] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
}
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_EMPTY_FACTORIES: dict[object, object] = {list: [], tuple: [], set: [], frozenset: [], dict: {}}
_NO_DEFAULT: Any = object()
_ADVICE = (
    "use bool, int, float, str, bytes, datetime, date, time, Decimal, UUID, an Enum, Optional, list, dict[str, ...] or "
    "another such class; or name the Avro type: Annotated[..., AvroType(...)]"
)


@dataclass(frozen=True)
class AvroType:
    """Avro type of a field: `Annotated[int, AvroType("int")]`.

    :param definition: name of a primitive type, or a definition as a dictionary, such as `{"type": "bytes",
        "logicalType": "decimal", "precision": 12, "scale": 2}`. With "string", dates, decimals and UUIDs are written as
        text.
    """

    definition: str | Mapping[str, Any]


def is_model(kind: object) -> bool:
    """Return True if a class is a dataclass or a pydantic model."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or _is_pydantic(kind))


def _is_pydantic(kind: type) -> bool:
    loaded = sys.modules.get("pydantic")
    return loaded is not None and issubclass(kind, loaded.BaseModel)


class Model(Generic[T]):
    """Class with its Avro definition, and conversions between its objects and plain values. Immutable."""

    def __init__(self, kind: type[T], *, json: bool) -> None:
        compiler = _Compiler(json)
        part = compiler.record(kind, None)
        assert isinstance(part.definition, dict)
        self.kind = kind
        self.definition: dict[str, object] = part.definition
        self._json = json
        self._part = part

    def __reduce__(self) -> tuple[object, ...]:
        # Its functions do not pickle: the class, pickled by its name, is read again.
        return partial(Model, json=self._json), (self.kind,)

    def encode(self, obj: T) -> Any:
        """Return the dictionary to write for an object; raises `InvalidRecord` with the path of a wrong value."""
        if not isinstance(obj, self.kind):
            raise mismatch(obj, self.kind.__name__)
        try:
            return self._part.encode(obj)
        except InvalidRecord as error:
            raise deeper(self.kind.__name__, error) from error.__cause__

    def decode(self, values: Mapping[str, Any]) -> T:
        """Return an object of the values of a message; raises `InvalidRecord`."""
        try:
            made: T = self._part.decode(values)
        except InvalidRecord as error:
            raise deeper(self.kind.__name__, error) from error.__cause__
        return made


@dataclass
class _Field:
    """One field of the class; `key` is the constructor's parameter."""

    name: str
    key: str
    hint: Any
    metadata: tuple[object, ...]
    default: Any = _NO_DEFAULT
    has_default: bool = False
    part: Part | None = None


class _Compiler:
    def __init__(self, json: bool) -> None:
        self._json = json
        self._names = NamedTypes()
        self._records: dict[type, list[_Field]] = {}

    def record(self, kind: type, namespace: str | None) -> Part:
        own = getattr(kind, "_avro_namespace", None)
        own = own if isinstance(own, str) else None
        definition = self._names.define(kind, own, namespace, lambda: self._write(kind, own, own or namespace))
        fields = self._records[kind]
        validate = _validator(kind) if _is_pydantic(kind) else None

        def encode(value: Any) -> Any:
            if not isinstance(value, kind):
                raise InvalidRecord(f" must be {kind.__name__}, not {type(value).__name__}")
            return {field.name: _inside(f".{field.name}", _coder(field).encode, value) for field in fields}

        return Part(definition, encode, _maker(kind, fields, validate), lambda value: _written(fields, value))

    def _write(self, kind: type, own: str | None, namespace: str | None) -> Any:
        fields = self._records[kind] = _fields_of(kind)
        entries = []
        for field in fields:
            where = f"{kind.__name__}.{field.name}"
            part = self.part(field.hint, namespace, where, field.metadata)
            entry: dict[str, Any] = {"name": field.name, "type": part.definition}
            if field.default is not _NO_DEFAULT:
                # Avro requires the default to be of the union's first type.
                if isinstance(part.definition, list) and field.default is not None:
                    entry["type"] = part.definition[::-1]
                try:
                    entry["default"] = part.written(field.default)
                except InvalidRecord as error:
                    raise InvalidConfiguration(f"{where}: the default{error.message}") from error
            field.part = part
            entries.append(entry)
        space = {"namespace": own} if own else {}
        return {"type": "record", "name": kind.__name__, **space, "fields": entries}

    def part(self, hint: Any, namespace: str | None, where: str, metadata: tuple[object, ...] = ()) -> Part:
        """Return the part of a type hint; raises `InvalidConfiguration` for one without an Avro type."""
        hint, metadata = _unwrapped(hint, metadata)
        given = next((each for each in metadata if isinstance(each, AvroType)), None)
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self._optional(arguments, namespace, where, metadata)
        if given is not None:
            return overridden(hint, given.definition, where, json=self._json)
        if hint in LEAVES:
            return LEAVES[hint](self._json)
        if origin is Literal and all(isinstance(each, str) for each in arguments):
            return _literal(arguments)
        if origin in _ARRAYS:
            return self._array(_ARRAYS[origin], arguments, namespace, where)
        if origin in _MAPS and len(arguments) == 2 and arguments[0] is str:
            return self._map(arguments[1], namespace, where)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._enum(hint, namespace)
        if is_model(hint):
            return self.record(hint, namespace)
        raise InvalidConfiguration(f"{where}: the type {_shown(hint)} has no Avro type; {_ADVICE}")

    def _optional(
        self, members: tuple[Any, ...], namespace: str | None, where: str, metadata: tuple[object, ...]
    ) -> Part:
        others = [each for each in members if each is not type(None)]
        if len(others) != 1 or len(members) != 2:
            raise InvalidConfiguration(
                f"{where}: a union of several types is not supported; use one type, or Optional of one"
            )
        inner = self.part(others[0], namespace, where, metadata)
        return Part(
            ["null", inner.definition],
            lambda value: None if value is None else inner.encode(value),
            lambda value: None if value is None else inner.decode(value),
            lambda value: None if value is None else inner.written(value),
        )

    def _array(self, made: type, arguments: tuple[Any, ...], namespace: str | None, where: str) -> Part:
        if made is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
            raise InvalidConfiguration(f"{where}: a tuple must be of any length and one type: tuple[X, ...]")
        inner = self.part(arguments[0], namespace, f"{where}[]")

        def each(code: Callable[[Any], Any], value: Any) -> list[Any]:
            if not isinstance(value, list | tuple | set | frozenset):
                raise InvalidRecord(f" must be {made.__name__}, not {type(value).__name__}")
            return [_step(f"[{index}]", code, item) for index, item in enumerate(value)]

        return Part(
            {"type": "array", "items": inner.definition},
            lambda value: each(inner.encode, value),
            lambda value: made(each(inner.decode, value)),
            lambda value: each(inner.written, value),
        )

    def _map(self, values: Any, namespace: str | None, where: str) -> Part:
        inner = self.part(values, namespace, f"{where}[]")

        def each(code: Callable[[Any], Any], value: Any) -> dict[str, Any]:
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise InvalidRecord(f" must be a dict with str keys, not {type(value).__name__}")
            return {key: _step(f"[{key!r}]", code, item) for key, item in value.items()}

        return Part(
            {"type": "map", "values": inner.definition},
            lambda value: each(inner.encode, value),
            lambda value: each(inner.decode, value),
            lambda value: each(inner.written, value),
        )

    def _enum(self, kind: type[Enum], namespace: str | None) -> Part:
        symbols: Any = list(kind.__members__)
        definition = self._names.define(
            kind, None, namespace, lambda: {"type": "enum", "name": kind.__name__, "symbols": symbols}
        )

        def member(value: Any) -> Enum:
            try:
                return value if isinstance(value, kind) else kind(value)
            except ValueError:
                raise InvalidRecord(f" must be one of {', '.join(symbols)}, not {str(value)[:40]!r}") from None

        def decode(value: Any) -> Enum:
            return kind[value] if isinstance(value, str) and value in kind.__members__ else member(value)

        return Part(definition, lambda value: member(value).name, decode, lambda value: member(value).name)


def _unwrapped(hint: Any, metadata: tuple[object, ...]) -> tuple[Any, tuple[object, ...]]:
    while get_origin(hint) is Annotated or isinstance(hint, NewType):
        if isinstance(hint, NewType):
            hint = hint.__supertype__
        else:
            metadata, hint = (*metadata, *hint.__metadata__), hint.__origin__
    return hint, metadata


def _fields_of(kind: type) -> list[_Field]:
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise InvalidConfiguration(
            f"The types of {kind.__name__} cannot be resolved: {error}; define what they name in the module, not in a "
            "function"
        ) from error
    found = _pydantic_fields(kind) if _is_pydantic(kind) else _dataclass_fields(kind, hints)
    if not found:
        raise InvalidConfiguration(f"{kind.__name__} has no fields")
    return found


def _dataclass_fields(kind: type, hints: Mapping[str, Any]) -> list[_Field]:
    made = []
    given: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind)
    for field in given:
        if not field.init:
            continue  # Computed by the class itself.
        made.append(_field(field.name, field.name, hints[field.name], (), field.default, field.default_factory))
    return made


def _pydantic_fields(kind: Any) -> list[_Field]:
    made = []
    undefined = sys.modules["pydantic_core"].PydanticUndefined
    by_name = _takes_names(kind) or _has_alias_choices(kind)
    for name, info in kind.model_fields.items():
        alias = info.validation_alias if isinstance(info.validation_alias, str) else info.alias
        key = alias if isinstance(alias, str) and not by_name else name
        default = dataclasses.MISSING if info.default is undefined else info.default
        factory = dataclasses.MISSING if info.default_factory is None else info.default_factory
        made.append(_field(name, key, info.annotation, tuple(info.metadata), default, factory))
    return made


def _takes_names(kind: Any) -> bool:
    """Return True if the constructor of a pydantic model takes the names of fields with an alias."""
    return bool(kind.model_config.get("populate_by_name") or kind.model_config.get("validate_by_name"))


def _has_alias_choices(kind: Any) -> bool:
    """Return True if a field of a pydantic model has AliasChoices or an AliasPath, which are no keys."""
    return any(not isinstance(info.validation_alias, str | None) for info in kind.model_fields.values())


def _validator(kind: Any) -> Any:
    """Return the function that makes an object of a pydantic model; raises `InvalidConfiguration`."""
    validate: Any = kind.model_validate
    if not _takes_names(kind) and not _has_alias_choices(kind):
        return validate
    if "by_name" in inspect.signature(validate).parameters:
        # By names alone: an alias may be the name of another field.
        return partial(validate, by_alias=False, by_name=True)
    if not _takes_names(kind):
        raise InvalidConfiguration(
            f"{kind.__name__} has fields with AliasChoices or an AliasPath, which need pydantic 2.11 or later, or "
            "ConfigDict(populate_by_name=True)"
        )
    return validate


def _field(name: str, key: str, hint: Any, metadata: tuple[object, ...], default: Any, factory: Any) -> _Field:
    made = _Field(name, key, hint, metadata)
    made.has_default = default is not dataclasses.MISSING or factory is not dataclasses.MISSING
    if default is not dataclasses.MISSING:
        made.default = default
    elif factory is not dataclasses.MISSING:
        # Results of other factories may differ each time: they are left out of the definition.
        made.default = _EMPTY_FACTORIES.get(factory, _NO_DEFAULT)
    return made


def _maker(kind: Any, fields: list[_Field], validate: Any) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidRecord(f" must be an object for {kind.__name__}, not {type(value).__name__}")
        values = {}
        for field in fields:
            if field.name in value:
                values[field.key] = _step(f".{field.name}", _coder(field).decode, value[field.name])
            elif not field.has_default:
                if not isinstance(_coder(field).definition, list):
                    raise InvalidRecord(f" lacks the field {field.name!r}, which has no default")
                values[field.key] = None
        try:
            return kind(**values) if validate is None else validate(values)
        except (TypeError, ValueError) as error:
            raise InvalidRecord(f" does not pass the checks of {kind.__name__}: {error}") from error

    return decode


def _written(fields: list[_Field], value: Any) -> dict[str, Any]:
    return {field.name: _coder(field).written(getattr(value, field.name)) for field in fields}


def _coder(field: _Field) -> Part:
    assert field.part is not None, "a record's fields are used only after its definition is complete"
    return field.part


def _inside(step: str, encode: Callable[[Any], Any], holder: Any) -> Any:
    return _step(step, encode, getattr(holder, step[1:]))


def _step(step: str, code: Callable[[Any], Any], value: Any) -> Any:
    try:
        return code(value)
    except InvalidRecord as error:
        raise deeper(step, error) from error.__cause__


def _literal(allowed: tuple[Any, ...]) -> Part:
    def check(value: Any) -> Any:
        if value not in allowed:
            raise InvalidRecord(f" must be one of {', '.join(allowed)}, not {str(value)[:40]!r}")
        return value

    return Part("string", check, typed("string", str), check)


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
