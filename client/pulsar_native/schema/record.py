"""Records: classes whose attributes are typed fields, with the official Python client's semantics.

Rules: the fields are the attributes of the class itself, in their order, not those of a parent class. An instance has
all of them, each converted when it is set; one whose own constructor leaves some out is written without these. A record
as an attribute of another record's class is a field of that type and its default. The constructor ignores names that
are not fields, since newer messages may have more. A class with a constructor of its own is decoded through it.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.fields import (
    AcceptedAs,
    Field,
    GivenNames,
    NamedTypes,
    RecordValue,
    accepted_as,
    as_field,
    fresh,
)

if TYPE_CHECKING:
    from pulsar_native.schema.fields import Definition

T = TypeVar("T")

_OPTIONS = "_pulsar_options"


class RecordMeta(type):
    """Collect the fields of a record class."""

    _pulsar_fields: dict[str, Field[Any]]
    # The same, for storing many values.
    _pulsar_accepted: tuple[AcceptedAs, ...]
    # As in the official client, for programs that list a record's fields: a record stands for itself there.
    _fields: dict[str, Field[Any] | RecordValue]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> RecordMeta:
        fields = {}
        for attribute, value in namespace.items():
            # The class attribute stays as it is, so that a nested record or Enum class can be used through it.
            field = as_field(value)
            if field is not None:
                fields[attribute] = field
        made = super().__new__(mcs, name, bases, namespace)
        made._pulsar_fields = fields
        made._pulsar_accepted = tuple(accepted_as(attribute, field) for attribute, field in fields.items())
        made._fields = {attribute: field.declared() for attribute, field in fields.items()}
        return made


class Record(RecordValue, metaclass=RecordMeta):
    """Base of records (Avro record): subclasses define fields as attributes.

    `default`, `required` and `required_default` are for records that are fields of other records; a class with fields
    of these names takes them as values. `_avro_namespace` sets the namespace, `_sorted_fields = True` sorts the
    definition's fields by name. Records compare by value and are mutable, so they are not hashable. Not thread-safe
    while being changed.
    """

    _avro_namespace: ClassVar[str | None] = None
    _sorted_fields: ClassVar[bool] = False
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        default: object = None,
        required_default: bool = False,
        required: bool = False,
        *ignored: object,
        **values: object,
    ) -> None:
        if values and type(self) is Record:
            raise AttributeError(f"Record has no field {next(iter(values))!r}: derive a class that has it")
        if not (default is None and required_default is False and required is False):
            self._take_options({"default": default, "required_default": required_default, "required": required}, values)
        if type(self).__setattr__ is _SETATTR:
            _store(self, values)
            return
        _store(self, {})
        for name in type(self)._pulsar_fields:
            if name in values:
                setattr(self, name, values[name])

    def _take_options(self, given: dict[str, object], values: dict[str, object]) -> None:
        """Keep the options of a record that becomes a field; those that the class has as fields are values."""
        options: dict[str, object] = {}
        for name, value in given.items():
            if name not in type(self)._pulsar_fields:
                options[name] = value
            elif value is not None and value is not False:
                values[name] = value
        if any(options.values()):
            self.__dict__[_OPTIONS] = options

    @classmethod
    def schema(cls) -> dict[str, Definition]:
        """Return the Avro definition as a dictionary."""
        return _whole_definition(cls)

    @classmethod
    def schema_info(cls, defined_names: set[str]) -> Definition:
        """Return the Avro definition, or the name if a set has it; new names are added to the set."""
        return _own_definition(cls, GivenNames(defined_names), None)

    def python_type(self) -> builtins.type:
        """Return the record's class."""
        return self.__class__

    def type(self) -> str:
        """Return the name of the record's class."""
        return self.__class__.__name__

    def default(self) -> Any:
        """Return the option `default`: the meaning of None where this record is a field."""
        return self._option("default", None)

    def required_default(self) -> bool:
        """Return the option `required_default`: whether a definition has the default of this field."""
        return bool(self._option("required_default", False))

    def validate_type(self, name: str, val: object) -> Any:
        """Return a value of this field as it is stored; raises `InvalidRecord`, a TypeError, that names the field.

        A dictionary is not converted, as by the official client's method.
        """
        if val is None and not self._option("required", False):
            return self._option("default", None)
        if not isinstance(val, type(self)):
            raise self._pulsar_field().refusal(name, val, type(self).__name__)
        return val

    def _option(self, name: str, otherwise: object) -> Any:
        return self.__dict__.get(_OPTIONS, {}).get(name, otherwise)

    def _pulsar_values(self) -> dict[str, Any]:
        state = self.__dict__
        return {name: state[name] for name in type(self)._pulsar_fields if name in state}

    def _pulsar_copy(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update({name: fresh(value) for name, value in self._pulsar_values().items()})
        return copied

    def _pulsar_field(self) -> Field[Any]:
        return RecordField(self, **self.__dict__.get(_OPTIONS, {}))

    def __setattr__(self, name: str, value: object) -> None:
        field = type(self)._pulsar_fields.get(name)
        if field is None:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        self.__dict__[name] = field.accept(name, value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, Record):
            return NotImplemented
        return self._pulsar_values() == other._pulsar_values()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._pulsar_values().items())
        return f"{type(self).__name__}({shown})"

    def __str__(self) -> str:
        return str(self._pulsar_values())


class RecordField(Field[Record]):
    """Record as a field of another record; created by the class, not by users."""

    avro_type = "record"

    def __init__(
        self, prototype: Record, default: object = None, required: bool = False, required_default: bool = False
    ) -> None:
        self._prototype = prototype
        super().__init__(default, required, required_default)

    def type(self) -> str:
        """Return the name of the record's class."""
        return type(self._prototype).__name__

    def declared(self) -> Record:
        """Return the record that the class was given."""
        return self._prototype

    def definition(self, names: NamedTypes, namespace: str | None) -> Definition:
        """Return the record's definition, or a reference to it."""
        return _definition(type(self._prototype), names, namespace)

    def default(self) -> Record:
        """Return a copy of the class's record."""
        return self._prototype._pulsar_copy()

    def none_value(self) -> Any:
        """Return the meaning of an explicit None: the record's `default`, or None."""
        return fresh(self._default)

    def convert(self, name: str, value: object) -> Record:
        """Return a record; a dictionary is converted."""
        kind = type(self._prototype)
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            return record_from(kind, value)
        raise self.refusal(name, value)


def record_definition(kind: type[Record]) -> dict[str, Definition]:
    """Return the Avro definition of a record class: of its own `schema` method if it has one that no field hides."""
    return kind.schema() if _overrides(kind, "schema") else _whole_definition(kind)


def _whole_definition(kind: type[Record]) -> dict[str, Definition]:
    definition = _definition(kind, NamedTypes(), None)
    assert isinstance(definition, dict)
    return definition


def _overrides(kind: type[Record], name: str) -> bool:
    """Return whether a record class has a class method of its own instead of that of `Record`."""
    given = inspect.getattr_static(kind, name)
    return isinstance(given, classmethod | staticmethod) and given is not vars(Record)[name]


# What `_store` does the work of.
_INIT, _NEW, _SETATTR = Record.__init__, Record.__new__, Record.__setattr__


def record_from(kind: type[T], values: Mapping[Any, object]) -> T:
    """Return a record, or an object of another class with a definition, with the values of a dictionary.

    Raises `InvalidRecord` for a wrong one, and errors of its own that the class's constructor raises.
    """
    # Asked each time: the decorator of dataclasses replaces a finished class's `__init__`.
    if kind.__init__ is _INIT and kind.__new__ is _NEW and kind.__setattr__ is _SETATTR:
        made: Any = kind.__new__(kind)
        _store(made, values)
        result: T = made
        return result
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise  # Also `InvalidRecord`, which names the field.
        raise InvalidRecord(f"The values do not pass the constructor of {kind.__name__}: {error}") from error


def _store(record: Record, values: Mapping[Any, Any]) -> None:
    """Set all fields of a record, those without a value to their default."""
    state = record.__dict__
    for name, field, kind, bounds in type(record)._pulsar_accepted:
        if name not in values:
            state[name] = field.default()
            continue
        value = values[name]
        if kind is type(value) and (bounds is None or bounds[0] <= value <= bounds[1]):
            state[name] = value
        else:
            state[name] = field.accept(name, value)


def record_values(record: object) -> dict[str, Any]:
    """Return the values of a record, or of an object of another class with a definition, by field, not copied."""
    return record._pulsar_values() if isinstance(record, Record) else vars(record)


def _definition(kind: type[Record], names: NamedTypes, namespace: str | None) -> Definition:
    if _overrides(kind, "schema_info"):
        return names.call(kind.schema_info)
    return _own_definition(kind, names, namespace)


def _own_definition(kind: type[Record], names: NamedTypes, namespace: str | None) -> Definition:
    own = kind._avro_namespace

    def write() -> Definition:
        fields = kind._pulsar_fields
        order = sorted(fields) if kind._sorted_fields else list(fields)
        definition: dict[str, Definition] = {"type": "record", "name": kind.__name__}
        if own:
            definition["namespace"] = own
        entries: list[Definition] = [fields[name].entry(name, names, own or namespace) for name in order]
        definition["fields"] = entries
        return definition

    return names.define(kind, own, namespace, write)
