"""Schema information: type, name, definition and properties, as in the broker's registry.

Rules: values only, no encoding. `SchemaType` has the official Python client's numbers, which differ from those on the
wire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pulsar_native.enums import OfficialEnum
from pulsar_native.exceptions import InvalidMessage


class SchemaType(OfficialEnum):
    """Type of a schema; negative types exist in clients only and are not registered under that number."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    BYTES = -1
    AUTO_CONSUME = -3
    AUTO_PUBLISH = -4


@dataclass(frozen=True, init=False)
class SchemaInfo:
    """Type, name, definition (of JSON and AVRO the Avro definition in JSON) and properties of a schema.

    `data` is the definition in bytes; `name()`, `schema_type()`, `schema()` and `properties()` are the official
    client's methods. Immutable and picklable. `version` is the registry's version of a schema read from the registry;
    comparisons ignore it.
    """

    _name: str
    type: SchemaType
    data: bytes
    _properties: Mapping[str, str] = field(hash=False)
    version: int | None = field(compare=False)

    def __init__(
        self,
        name: str,
        type: SchemaType,
        schema: bytes = b"",
        properties: Mapping[str, str] | None = None,
        version: int | None = None,
    ) -> None:
        for attribute, value in {
            "_name": name,
            "type": type,
            "data": schema,
            "_properties": MappingProxyType(dict(properties or {})),
            "version": version,
        }.items():
            object.__setattr__(self, attribute, value)

    def __reduce__(self) -> tuple[object, ...]:
        return (SchemaInfo, (self._name, self.type, self.data, dict(self._properties), self.version))

    def name(self) -> str:
        """Return the schema's name."""
        return self._name

    def schema_type(self) -> SchemaType:
        """Return the schema's type."""
        return self.type

    def schema(self) -> str:
        """Return the definition as text; bytes that are not UTF-8 are escaped."""
        return self.data.decode("utf-8", "backslashreplace")

    def properties(self) -> Mapping[str, str]:
        """Return the schema's properties, read-only."""
        return self._properties

    def summary(self, limit: int = 2000) -> str:
        """Return type and definition as text for people, cut at `limit` characters."""
        text = " ".join(self.schema().split())
        return f"{self.type.name} {text[:limit]}{'...' if len(text) > limit else ''}".rstrip()

    def definition(self) -> dict[str, object]:
        """Return the definition as a JSON object; raises `InvalidMessage` if it is not one."""
        try:
            parsed = json.loads(self.data)
        except ValueError as error:
            raise InvalidMessage(f"The definition of the {self.type.name} schema {self._name!r} is not JSON") from error
        if not isinstance(parsed, dict):
            raise InvalidMessage(f"The definition of the {self.type.name} schema {self._name!r} is no JSON object")
        return parsed
