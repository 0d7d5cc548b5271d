"""Make the same record class twice, from our fields and from the official client's, out of one description.

A description is plain data: a leaf (its field's name and options), an array, a map, or a record with named fields.
The two modules are passed in, so this file imports neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Color(Enum):
    """An enumeration both sides use."""

    RED = 1
    GREEN = 2
    BLUE = 3


class Fruit(Enum):
    """Another one, with values that are texts."""

    apple = "apple"
    pear = "pear"


@dataclass(frozen=True)
class Leaf:
    """A field without inner fields: "Integer", "String", …, or "CustomEnum" with its class."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    enum: type[Enum] | None = None


@dataclass(frozen=True)
class Many:
    """An "Array" or a "Map" of something."""

    kind: str
    inner: Leaf | Many | Rec
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rec:
    """A record; equal descriptions become one class, so that later uses of it are references."""

    name: str
    fields: tuple[tuple[str, Leaf | Many | Rec], ...]
    attributes: tuple[tuple[str, object], ...] = ()
    required: bool = False


class Twins:
    """Build record classes from one side's module, each description once."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._classes: dict[object, Any] = {}

    def record(self, description: Rec) -> Any:
        """Return the record class of a description."""
        key = (description.name, description.fields, description.attributes)
        known = repr(key)
        if known not in self._classes:
            namespace: dict[str, Any] = {name: self._field(inner) for name, inner in description.fields}
            namespace.update(description.attributes)
            self._classes[known] = type(self._module.Record)(description.name, (self._module.Record,), namespace)
        return self._classes[known]

    def value(self, description: Leaf | Many | Rec, plain: Any) -> Any:
        """Return plain data with this side's records in the place of dictionaries where the description says so."""
        if plain is None or isinstance(description, Leaf):
            return plain
        if isinstance(description, Rec):
            made = {name: self.value(inner, plain[name]) for name, inner in description.fields if name in plain}
            return self.record(description)(**made)
        if isinstance(plain, list):
            return [self.value(description.inner, item) for item in plain]
        return {key: self.value(description.inner, item) for key, item in plain.items()}

    def _field(self, description: Leaf | Many | Rec) -> Any:
        if isinstance(description, Rec):
            return self.record(description)(required=description.required)
        make = getattr(self._module, description.kind)
        if isinstance(description, Many):
            return make(self._field(description.inner), **description.options)
        return make(*([description.enum] if description.enum else []), **description.options)


def plain(value: Any, record: type) -> Any:
    """Return a record of either side as plain data."""
    if isinstance(value, record):
        return {name: plain(item, record) for name, item in vars(value).items() if not name.startswith("_")}
    if isinstance(value, list):
        return [plain(item, record) for item in value]
    if isinstance(value, dict):
        return {key: plain(item, record) for key, item in value.items()}
    return value
