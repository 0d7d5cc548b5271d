"""Fields of records: accepted Python values and Avro types.

Rules: a field is immutable after its class is created. It converts a value once, when it is set, to the type it is
stored as (`bytes` for Bytes, `str` for String, the member of an enumeration, a record for a dictionary), at every depth
of arrays and maps. A list or dictionary in which nothing was converted is stored itself: later changes of it count. A
definition writes each named type once and refers to it afterwards, as Avro requires. What an application's subclass of
a field overrides (`validate_type`, `type`, `schema_info`, `python_type`, `default`) counts as in the official client.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from enum import Enum
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.errors import InvalidRecord

if TYPE_CHECKING:
    Definition = dict[str, "Definition"] | list["Definition"] | str

T = TypeVar("T")

_PACKAGE = __name__.partition(".")[0] + "."


class NamedTypes:
    """Named types (records, enumerations) that a definition has written so far, by full name.

    The first occurrence of a type is written out; later ones are the shortest unambiguous name.
    """

    def __init__(self) -> None:
        # None for a type that a class's own `schema_info` has written.
        self._seen: dict[str, type | None] = {}

    def define(
        self, kind: type, own_namespace: str | None, namespace: str | None, write: Callable[[], Definition]
    ) -> Definition:
        """Return the reference to a type written before, or the result of `write`."""
        given = own_namespace or namespace
        full = f"{given}.{kind.__name__}" if given else kind.__name__
        if full not in self._seen:
            self._seen[full] = kind
            return write()
        if self._seen[full] not in (kind, None):
            raise InvalidConfiguration(
                f"Two different types of the schema have the name {full!r}: rename one, or give it an _avro_namespace"
            )
        return full if own_namespace else kind.__name__

    def call(self, schema_info: Callable[[set[str]], Definition]) -> Definition:
        """Return what a `schema_info` of the application returns, which is given the names and adds new ones."""
        names = set(self._seen)
        made = schema_info(names)
        for name in names:
            self._seen.setdefault(name, None)
        return made


class GivenNames(NamedTypes):
    """Named types in a caller's set of names, as in the official client."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self._names = names

    def define(
        self, kind: type, own_namespace: str | None, namespace: str | None, write: Callable[[], Definition]
    ) -> Definition:
        """Return the reference to a name written before, or the result of `write`."""
        full = f"{own_namespace}.{kind.__name__}" if own_namespace else kind.__name__
        if full in self._names:
            return full
        self._names.add(full)
        return write()

    def call(self, schema_info: Callable[[set[str]], Definition]) -> Definition:
        """Return what a `schema_info` of the application returns."""
        return schema_info(self._names)


class RecordValue:
    """Interface of records that fields need; implemented in `schema.record`."""

    def _pulsar_values(self) -> dict[str, Any]:
        raise NotImplementedError

    def _pulsar_copy(self) -> Self:
        raise NotImplementedError

    def _pulsar_field(self) -> Field[Any]:
        raise NotImplementedError


class Field(Generic[T]):
    """Base of the fields of a record.

    :param default: value of a record created without one. Default None.
    :param required: True leaves null out of the Avro type. Default False.
    :param required_default: True writes the default, None included, into the definition, as the broker's stricter
        compatibility checks require. Default False.
    """

    avro_type = ""
    # As in the official client, some types accept None even if required, until an Avro message is encoded.
    refuses_none = True
    _python_type: Any = object
    # Whether the official client's field of this class is checked by `python_type` alone.
    _is_checked_by_type: ClassVar[bool] = True
    # The nearest class of this package, whose methods are meant where one of the application overrides them.
    _package_class: ClassVar[builtins.type[Field[Any]]]

    def __init_subclass__(cls, **options: Any) -> None:
        """Let what an application overrides take part where this package works with a field."""
        super().__init_subclass__(**options)
        if cls.__module__.startswith(_PACKAGE):
            cls._package_class = cls
            return
        base = cls._package_class
        if cls.validate_type is not base.validate_type and cls.accept is base.accept:
            cls.accept = Field._accept_validated  # type: ignore[method-assign]
        if cls.schema_info is not base.schema_info and cls.definition is base.definition:
            cls.definition = Field._definition_of_info  # type: ignore[method-assign]
        if cls.python_type is not base.python_type and cls.convert is base.convert and base._is_checked_by_type:
            cls.convert = Field.convert  # type: ignore[method-assign]

    def __init__(self, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        # A copy: the caller may change a list or dictionary.
        self._default: Any = None if default is None else fresh(self.accept("default", default))
        self._required = required
        self._required_default = required_default

    if TYPE_CHECKING:

        @overload
        def __get__(self, record: None, owner: type) -> Self: ...
        @overload
        def __get__(self, record: object, owner: type) -> T | None: ...
        def __get__(self, record: object, owner: type) -> Self | T | None: ...
        def __set__(self, record: object, value: T | None) -> None: ...

    def type(self) -> str:
        """Return the name of the Avro type."""
        return self.avro_type

    def declared(self) -> Field[Any] | RecordValue:
        """Return what the class of the record was given: this field, or a record."""
        return self

    def schema(self) -> Definition:
        """Return the Avro type with named types written out."""
        return self.definition(NamedTypes(), None)

    def schema_info(self, defined_names: set[str]) -> Definition:
        """Return the Avro type after the named types in a set, to which new ones are added."""
        return self._package_class.definition(self, GivenNames(defined_names), None)

    def python_type(self) -> Any:
        """Return the accepted type, or a tuple of types."""
        return self._python_type

    def validate_type(self, name: str, val: object) -> Any:
        """Return a value as it is stored; raises `InvalidRecord`, a TypeError, that names the field."""
        return self._package_class.accept(self, name, val)

    def _accept_validated(self, name: str, value: object) -> Any:
        return self.validate_type(name, value)

    def _definition_of_info(self, names: NamedTypes, namespace: str | None) -> Definition:
        return names.call(self.schema_info)

    def required_default(self) -> bool:
        """Return True if the definition has the default."""
        return self._required_default

    def definition(self, names: NamedTypes, namespace: str | None) -> Definition:
        """Return the Avro type as written after `names` inside a namespace."""
        return self.type()

    def entry(self, name: str, names: NamedTypes, namespace: str | None) -> dict[str, Any]:
        """Return the field's entry in a record's definition."""
        entry: dict[str, Any] = {"name": name}
        if self._required_default:
            entry["default"] = avro_default(self.written_default())
        written = self.definition(names, namespace)
        entry["type"] = written if self._required else ["null", written]
        return entry

    def written_default(self) -> Any:
        """Return the default in the definition."""
        return self._default

    def default(self) -> Any:
        """Return the value of a record created without one: the default, copied if it is mutable."""
        return fresh(self._default)

    def accept(self, name: str, value: object) -> Any:
        """Return a value as it is stored; raises `InvalidRecord` for another type, or for None if required."""
        if value is not None:
            return self.convert(name, value)
        if self._required and self.refuses_none:
            raise self.refusal(name, value)
        return self.none_value()

    def none_value(self) -> Any:
        """Return the meaning of an explicit None: the default, as in the official client."""
        return self.default()

    def accept_inner(self, name: str, value: object) -> Any:
        """Return an item of an array or a value of a map as it is stored; None is not allowed."""
        if value is None:
            raise InvalidRecord(f"Field {name!r} must be {self.type()}, not None")
        return self.convert(name, value)

    def convert(self, name: str, value: object) -> Any:
        """Return a value of `python_type`, which is stored as it is."""
        if not isinstance(value, self.python_type()):
            raise self.refusal(name, value)
        return value

    def refusal(self, name: str, value: object, wanted: str = "") -> InvalidRecord:
        """Return the error for a value of another type."""
        return InvalidRecord(f"Field {name!r} must be {wanted or self.type()}, not {type(value).__name__}")


# `__init_subclass__` is called for classes below only.
Field._package_class = Field


class Null(Field[None]):
    """Field that is always None (Avro null)."""

    avro_type = "null"
    _python_type = type(None)
    _is_checked_by_type = False

    def convert(self, name: str, value: object) -> Any:
        """Raise `InvalidRecord`: no value is accepted."""
        raise self.refusal(name, value, "None")

    def accept(self, name: str, value: object) -> Any:
        """Return None; raises `InvalidRecord` for anything else."""
        return None if value is None else self.convert(name, value)


class Boolean(Field[bool]):
    """Field of True or False (Avro boolean), False by default."""

    avro_type = "boolean"
    _python_type = bool

    def __init__(self, default: bool | None = None, required: bool = False, required_default: bool = False) -> None:
        super().__init__(default, required, required_default)

    def default(self) -> bool:
        """Return the default, or False."""
        return bool(self._default)

    def written_default(self) -> bool:
        """Return the default, or False."""
        return self.default()

    def convert(self, name: str, value: object) -> bool:
        """Return a bool."""
        if not isinstance(value, bool):
            raise self.refusal(name, value, "bool")
        return value


class Integer(Field[int]):
    """Field of a 32-bit integer (Avro int)."""

    avro_type = "int"
    _python_type = int

    lowest: ClassVar[int] = -(1 << 31)
    highest: ClassVar[int] = (1 << 31) - 1

    def convert(self, name: str, value: object) -> int:
        """Return an int within the range of the Avro type."""
        if not isinstance(value, int):
            raise self.refusal(name, value, "int")
        if not self.lowest <= value <= self.highest:
            raise InvalidRecord(f"Field {name!r} is {value}, out of the range of {self.type()}")
        return value


class Long(Integer):
    """Field of a 64-bit integer (Avro long)."""

    avro_type = "long"
    lowest = -(1 << 63)
    highest = (1 << 63) - 1


class Float(Field[float]):
    """Field of a 32-bit floating-point number (Avro float); accepts an int."""

    avro_type = "float"
    _python_type = (float, int)

    def convert(self, name: str, value: object) -> float:
        """Return a float or an int."""
        if not isinstance(value, float | int):
            raise self.refusal(name, value, "float or int")
        return value


class Double(Float):
    """Field of a 64-bit floating-point number (Avro double); accepts an int."""

    avro_type = "double"


class Bytes(Field[bytes]):
    """Field of bytes (Avro bytes); accepts a str as UTF-8. JSON messages have it as text."""

    avro_type = "bytes"
    _python_type = (bytes, str)
    _is_checked_by_type = False
    refuses_none = False

    def convert(self, name: str, value: object) -> bytes:
        """Return bytes."""
        if isinstance(value, str):
            return value.encode()
        if not isinstance(value, bytes):
            raise self.refusal(name, value, "bytes or str")
        return value


class String(Field[str]):
    """Field of text (Avro string); accepts bytes as UTF-8."""

    avro_type = "string"
    _python_type = (str, bytes)
    _is_checked_by_type = False

    def convert(self, name: str, value: object) -> str:
        """Return a str."""
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise InvalidRecord(f"Field {name!r} was given bytes that are not UTF-8") from error
        if not isinstance(value, str):
            raise self.refusal(name, value, "str or bytes")
        return value


_STORED_AS_GIVEN: dict[type[Field[Any]], type] = {
    Boolean: bool, Integer: int, Long: int, Float: float, Double: float, Bytes: bytes, String: str,
}  # fmt: skip
AcceptedAs = tuple[str, Field[Any], Any, tuple[int, int] | None]


def accepted_as(name: str, field: Field[Any]) -> AcceptedAs:
    """Return name, field, and the type whose values the field stores as they are, with their range if it has one.

    It saves calling `accept` for each of these, the usual values. None for a field of another class, which may convert
    otherwise.
    """
    bounds = (field.lowest, field.highest) if isinstance(field, Integer) else None
    return name, field, _STORED_AS_GIVEN.get(type(field)), bounds


class CustomEnum(Field[Enum]):
    """Field of an enumeration member (Avro enum of the members' names).

    Accepts a member, its name, or its value. Avro messages have the name, JSON messages the value.
    """

    avro_type = "enum"
    _is_checked_by_type = False
    refuses_none = False

    def __init__(
        self,
        enum_type: type[Enum],
        default: Enum | str | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        if not isinstance(enum_type, type) or not issubclass(enum_type, Enum):
            raise InvalidConfiguration(f"CustomEnum needs an Enum class, not {_shown(enum_type)}")
        self.enum_type = self._python_type = enum_type
        super().__init__(default, required, required_default)

    @property
    def values(self) -> dict[Any, Enum]:
        """Return the members by their values."""
        return {member.value: member for member in self.enum_type.__members__.values()}

    def definition(self, names: NamedTypes, namespace: str | None) -> Definition:
        """Return the enumeration, or a reference to it."""
        # Without aliases: a member has one name in Avro.
        symbols: Definition = [member.name for member in self.enum_type]
        return names.define(
            self.enum_type,
            None,
            namespace,
            lambda: {"type": "enum", "name": self.enum_type.__name__, "symbols": symbols},
        )

    def none_value(self) -> None:
        """Return None: only a missing value gets the default."""

    def convert(self, name: str, value: object) -> Enum:
        """Return the member; a str is first tried as a name, then as a value."""
        if isinstance(value, self.enum_type):
            return value
        if isinstance(value, str) and value in self.enum_type.__members__:
            return self.enum_type[value]
        for member in self.enum_type:
            # Compared with the type as well: True is not 1 here.
            if type(member.value) is type(value) and member.value == value:
                return member
        wanted = f"a member of {self.enum_type.__name__} ({', '.join(self.enum_type.__members__)})"
        raise InvalidRecord(f"Field {name!r} must be {wanted}, not {_shown(value)}")


class Array(Field[list[Any]]):
    """Field of a list (Avro array) with one item type: a field, a record, or a record class."""

    avro_type = "array"
    _is_checked_by_type = False
    _python_type = list
    refuses_none = False

    def __init__(
        self,
        array_type: object,
        default: list[Any] | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        self.array_type = self.items = _inner_field(array_type)
        super().__init__(default, required, required_default)

    def definition(self, names: NamedTypes, namespace: str | None) -> Definition:
        """Return the array type; its items are not null."""
        return {"type": "array", "items": self.items.definition(names, namespace)}

    def none_value(self) -> None:
        """Return None: only a missing value gets the default."""

    def convert(self, name: str, value: object) -> list[Any]:
        """Return a list of converted items: the caller's own if none is converted, as in the official client."""
        if not isinstance(value, list):
            raise self.refusal(name, value, "list")
        inner = f"{name}[]"
        items = [self.items.accept_inner(inner, item) for item in value]
        return value if all(map(is_, items, value)) else items


class Map(Field[dict[str, Any]]):
    """Field of a dictionary with str keys (Avro map) and one value type: a field, a record, or a record class."""

    avro_type = "map"
    _is_checked_by_type = False
    _python_type = dict
    refuses_none = False

    def __init__(
        self,
        value_type: object,
        default: dict[str, Any] | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        self.value_type = self.values = _inner_field(value_type)
        super().__init__(default, required, required_default)

    def definition(self, names: NamedTypes, namespace: str | None) -> Definition:
        """Return the map type; its values are not null."""
        return {"type": "map", "values": self.values.definition(names, namespace)}

    def none_value(self) -> None:
        """Return None: only a missing value gets the default."""

    def convert(self, name: str, value: object) -> dict[str, Any]:
        """Return a dictionary of converted values: the caller's own if none is converted, as in the official client."""
        if not isinstance(value, dict):
            raise self.refusal(name, value, "dict")
        for key in value:
            if not isinstance(key, str):
                raise InvalidRecord(f"Field {name!r} must have str keys, not {type(key).__name__}")
        inner = f"{name}[]"
        items = {key: self.values.accept_inner(inner, item) for key, item in value.items()}
        return value if all(map(is_, items.values(), value.values())) else items


def as_field(value: object) -> Field[Any] | None:
    """Return the field of a class attribute: a field, a record or its class, an Enum class; else None."""
    if isinstance(value, Field):
        return value
    if isinstance(value, type) and issubclass(value, RecordValue):
        value = value()
    if isinstance(value, RecordValue):
        return value._pulsar_field()
    if isinstance(value, type) and issubclass(value, Enum):
        return CustomEnum(value)
    return None


def fresh(value: Any) -> Any:
    """Return a copy of the value and of the lists, dictionaries and records in it."""
    if isinstance(value, list):
        return [fresh(item) for item in value]
    if isinstance(value, dict):
        return {key: fresh(item) for key, item in value.items()}
    return value._pulsar_copy() if isinstance(value, RecordValue) else value


def avro_default(value: Any) -> object:
    """Return a default as an Avro definition has it: bytes as one character each, members by name."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, RecordValue):
        value = value._pulsar_values()
    if isinstance(value, list):
        return [avro_default(item) for item in value]
    if isinstance(value, dict):
        return {key: avro_default(item) for key, item in value.items()}
    return value


def _inner_field(value: object) -> Field[Any]:
    field = as_field(value)
    if field is None:
        raise InvalidConfiguration(f"Arrays and maps need a field like String(), or a record, not {_shown(value)}")
    return field


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"{type(value).__name__} {str(value)[:40]!r}"
