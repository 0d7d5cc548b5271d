"""What a schema says of itself: its kind, name, definition and properties, as the broker's registry keeps it.

Rules: values only, no encoding. `SchemaType` has the official Python client's numbers, which are not the numbers on
the wire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from pulsar_native.exceptions import InvalidMessage


class SchemaType(IntEnum):
    """Kind of a schema; negative kinds exist in clients only and are never registered under that number."""

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


@dataclass(frozen=True)
class SchemaInfo:
    """Name, kind, definition (bytes; of JSON and AVRO the Avro definition in JSON) and properties of a schema.

    Immutable and picklable. `version` is the registry's number where the schema was read from the registry; it takes no
    part in comparisons.
    """

    name: str
    type: SchemaType
    schema: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))

    def __reduce__(self) -> tuple[object, ...]:
        return (SchemaInfo, (self.name, self.type, self.schema, dict(self.properties), self.version))

    def summary(self, limit: int = 2000) -> str:
        """Return kind and definition for a person to read, cut at `limit` characters."""
        text = " ".join(self.schema.decode("utf-8", "replace").split())
        return f"{self.type.name} {text[:limit]}{'...' if len(text) > limit else ''}".rstrip()

    def definition(self) -> dict[str, object]:
        """Return the definition as a JSON object; raises `InvalidMessage` when it is none."""
        try:
            parsed = json.loads(self.schema)
        except ValueError as error:
            raise InvalidMessage(f"The definition of the {self.type.name} schema {self.name!r} is not JSON") from error
        if not isinstance(parsed, dict):
            raise InvalidMessage(f"The definition of the {self.type.name} schema {self.name!r} is no JSON object")
        return parsed
