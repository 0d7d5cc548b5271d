"""Key-value schema: a key and a value, each with its own schema.

Rules: INLINE has both in the payload, each after its length (-1 for None, as in Java). SEPARATED has the value in the
payload and the key in the message's key as base64 text, for routing, compaction and Key_Shared. The registry gets both
definitions in one, and names and properties of both as properties.
"""

from __future__ import annotations

import json
import struct
from enum import Enum
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.base import Schema, WriterSchemas, mismatch
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaInfo, SchemaType

K = TypeVar("K")
V = TypeVar("V")

_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
_ENCODING = "kv.encoding.type"


class KeyValueEncodingType(Enum):
    """Location of the key of a `KeyValueSchema`: in the payload, or in the message's key."""

    INLINE = "INLINE"
    SEPARATED = "SEPARATED"


class KeyValue(NamedTuple, Generic[K, V]):
    """Key and value, either of which may be None."""

    key: K | None
    value: V | None


class KeyValueSchema(Schema[KeyValue[K, V]], Generic[K, V]):
    """Schema of a key and a value; values are `KeyValue` (any pair is accepted). Immutable and thread-safe.

    Blocks only to fetch writers' schemas. With `encoding_type=KeyValueEncodingType.SEPARATED` the key becomes the
    message's partition_key (base64, flagged as bytes), and `send` raises `InvalidMessage` for another `partition_key`.
    """

    def __init__(
        self,
        key_schema: Schema[K],
        value_schema: Schema[V],
        encoding_type: KeyValueEncodingType = KeyValueEncodingType.INLINE,
    ) -> None:
        for name, part in (("key_schema", key_schema), ("value_schema", value_schema)):
            if not isinstance(part, Schema):
                raise InvalidConfiguration(f"{name} must be a schema such as StringSchema(), not {part!r}")
            if part.schema_info().type in (SchemaType.KEY_VALUE, SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH):
                raise InvalidConfiguration(f"{name} cannot be of kind {part.schema_info().type.name}")
        if not isinstance(encoding_type, KeyValueEncodingType):
            raise InvalidConfiguration(f"encoding_type must be a KeyValueEncodingType, not {encoding_type!r}")
        self.key_schema = key_schema
        self.value_schema = value_schema
        self.encoding_type = encoding_type
        self.separates_key = encoding_type is KeyValueEncodingType.SEPARATED
        self._info = join_infos(key_schema.schema_info(), value_schema.schema_info(), encoding_type)

    def encode(self, obj: KeyValue[K, V]) -> bytes:
        """Return both parts in one payload, INLINE only; raises `InvalidRecord`."""
        if self.separates_key:
            raise InvalidRecord("A separated key is no part of the payload: encode_separated gives both parts")
        key, value = _pair(obj)
        return b"".join((*_inline(self.key_schema, key), *_inline(self.value_schema, value)))

    def encode_separated(self, obj: KeyValue[K, V]) -> tuple[bytes | None, bytes | None]:
        """Return the message's key and its payload, None for null parts; raises `InvalidRecord`."""
        key, value = _pair(obj)
        return (
            None if key is None else self.key_schema.encode(key),
            None if value is None else self.value_schema.encode(value),
        )

    def decode(self, data: bytes, schema_version: bytes | None = None) -> KeyValue[K, V]:
        """Return key and value of a payload, INLINE only; raises `InvalidRecord`."""
        if self.separates_key:
            raise InvalidRecord("The key is no part of the payload: decode_separated takes both parts")
        key, value = split_payload(data)
        return self._decoded(key, value, schema_version)

    def validate(self, data: bytes) -> None:
        """Raise `InvalidRecord` unless the bytes are a payload of this schema; a separated key is not checked."""
        if self.separates_key:
            self.value_schema.validate(data)
            return
        key, value = split_payload(data)
        if key is not None:
            self.key_schema.validate(key)
        if value is not None:
            self.value_schema.validate(value)

    def decode_versioned(self, data: bytes, schema_version: bytes | None) -> KeyValue[K, V]:
        """Return key and value of a payload by its schema version."""
        return self.decode(data, schema_version)

    def decode_separated(
        self, key: bytes | None, data: bytes | None, schema_version: bytes | None
    ) -> KeyValue[K, V] | None:
        """Return the value of a payload and a key in bytes; None for null parts."""
        if self.separates_key:
            return self._decoded(key, data, schema_version)
        return None if data is None else self.decode(data, schema_version)

    def _decoded(self, key: bytes | None, data: bytes | None, version: bytes | None) -> KeyValue[K, V]:
        return KeyValue(
            None if key is None else self.key_schema.decode_versioned(key, version),
            None if data is None else self.value_schema.decode_versioned(data, version),
        )

    def with_writer_schemas(self, find: WriterSchemas) -> KeyValueSchema[K, V]:
        """Return this schema for one topic if one of its parts needs writers' schemas, else itself."""
        # No functions in this one, which would not pickle.
        key = self.key_schema.with_writer_schemas(partial(_part_of_writer, find, 0))
        value = self.value_schema.with_writer_schemas(partial(_part_of_writer, find, 1))
        if key is self.key_schema and value is self.value_schema:
            return self
        return KeyValueSchema(key, value, self.encoding_type)


def _part_of_writer(find: WriterSchemas, part: Literal[0, 1], version: bytes) -> SchemaInfo:
    """Return the schema of the keys (0) or of the values (1) of a version."""
    return split_info(find(version))[part]


def split_payload(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Return key and value of an INLINE payload, None for null parts; raises `InvalidRecord`. Pure."""
    key, rest = _cut(data)
    value, rest = _cut(rest)
    if rest:
        raise InvalidRecord(f"The message goes on for {len(rest)} bytes after its key and value")
    return key, value


def join_infos(key: SchemaInfo, value: SchemaInfo, encoding: KeyValueEncodingType) -> SchemaInfo:
    """Return the definition of a pair of schemas for the registry."""
    properties = {}
    for part, info in (("key", key), ("value", value)):
        properties[f"{part}.schema.name"] = info.name()
        properties[f"{part}.schema.type"] = info.type.name
        properties[f"{part}.schema.properties"] = json.dumps(dict(info.properties()), separators=(",", ":"))
    properties[_ENCODING] = encoding.value
    definition = b"".join((_LENGTH.pack(len(key.data)), key.data, _LENGTH.pack(len(value.data)), value.data))
    return SchemaInfo("KeyValue", SchemaType.KEY_VALUE, definition, properties)


def split_info(info: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo, KeyValueEncodingType]:
    """Return the key's schema, the value's, and the encoding; raises `InvalidRecord`."""
    if info.type is not SchemaType.KEY_VALUE:
        raise InvalidRecord(f"The message was written with a schema of kind {info.type.name}, not KEY_VALUE")
    key, rest = _cut(info.data)
    value, _ = _cut(rest)
    encoding = info.properties().get(_ENCODING, KeyValueEncodingType.INLINE.value)
    try:
        return _part(info, "key", key), _part(info, "value", value), KeyValueEncodingType(encoding)
    except (KeyError, ValueError) as error:
        raise InvalidRecord(f"The properties of the KEY_VALUE schema {info.name()!r} are damaged: {error}") from error


def definition_from_rest(text: bytes) -> bytes:
    """Return a pair's definition in its form on the wire from the JSON object of the REST interface.

    Raises `InvalidRecord`. The texts of the parts are compact JSON, not the registered texts.
    """
    try:
        given = json.loads(text)
        parts = ["" if given[part] is None else given[part] for part in ("key", "value")]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRecord(f"The definition of a KEY_VALUE schema is no object of key and value: {error}") from error
    written = b""
    for part in parts:
        data = part.encode() if isinstance(part, str) else json.dumps(part, separators=(",", ":")).encode()
        written += _LENGTH.pack(len(data)) + data
    return written


def definition_to_rest(definition: bytes) -> str:
    """Return the JSON object of the REST interface for a pair's definition in its form on the wire.

    Raises `InvalidRecord`.
    """
    found, rest = {}, definition
    for part in ("key", "value"):
        if len(rest) < _LENGTH.size:
            raise InvalidRecord("The definition of a KEY_VALUE schema ends too early")
        (length,) = _LENGTH.unpack_from(rest)
        data, rest = rest[_LENGTH.size : _LENGTH.size + max(length, 0)], rest[_LENGTH.size + max(length, 0) :]
        try:
            found[part] = json.loads(data) if data else ""
        except ValueError as error:
            raise InvalidRecord(f"The {part} of a KEY_VALUE schema has a definition that is no JSON") from error
    return json.dumps(found)


def _part(info: SchemaInfo, part: str, definition: bytes | None) -> SchemaInfo:
    properties: Any = json.loads(info.properties().get(f"{part}.schema.properties") or "{}")
    if not isinstance(properties, dict):
        raise ValueError(f"{part}.schema.properties is no JSON object")
    kind = SchemaType[info.properties().get(f"{part}.schema.type", "BYTES")]
    name = info.properties().get(f"{part}.schema.name", "")
    return SchemaInfo(name, kind, definition or b"", {str(key): str(value) for key, value in properties.items()})


def _pair(value: object) -> tuple[Any, Any]:
    if isinstance(value, tuple) and len(value) == 2:
        return value
    raise mismatch(value, "KeyValue")


def _inline(schema: Schema[Any], value: object) -> tuple[bytes, bytes]:
    if value is None:
        return _NULL, b""
    encoded = schema.encode(value)
    return _LENGTH.pack(len(encoded)), encoded


def _cut(data: bytes) -> tuple[bytes | None, bytes]:
    if len(data) < _LENGTH.size:
        raise InvalidRecord("The pair of key and value ends before the length of a part")
    length: int = _LENGTH.unpack_from(data)[0]
    rest = data[_LENGTH.size :]
    if length < 0:
        return None, rest
    if length > len(rest):
        raise InvalidRecord(f"The pair of key and value ends before a part of {length} bytes")
    return rest[:length], rest[length:]
