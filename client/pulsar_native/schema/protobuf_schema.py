"""Protobuf messages, registered in Java's two ways.

Rules: messages are the plain Protobuf encoding in both; they differ in what the registry gets and in how it judges
changes: PROTOBUF has an Avro form of the message, PROTOBUF_NATIVE the message's files. Unknown fields are kept, as
Protobuf does, so old and new programs read each other.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError, EncodeError, Message

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.base import Schema, mismatch
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaInfo, SchemaType
from pulsar_native.schema.protobuf_definition import (
    avro_definition,
    is_repeated,
    native_class,
    native_definition,
    parsing_info,
)

M = TypeVar("M", bound=Message)


class _ProtobufSchema(Schema[M]):
    def __init__(self, record_cls: type[M]) -> None:
        given: object = record_cls
        if not isinstance(given, type) or not issubclass(given, Message):
            shown = given.__name__ if isinstance(given, type) else repr(given)
            raise InvalidConfiguration(f"A Protobuf schema needs a generated message class, not {shown}")
        self._record_cls: type[M] = record_cls
        self._info = self._describe(record_cls)

    def _describe(self, record_cls: type[M]) -> SchemaInfo:
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._record_cls.__name__})"

    def encode(self, obj: M) -> bytes:
        """Return the Protobuf encoding; raises `InvalidRecord` for another message, or one that lacks fields."""
        if not isinstance(obj, self._record_cls):
            raise mismatch(obj, self._record_cls.__name__)
        try:
            return obj.SerializeToString()
        except EncodeError as error:
            raise InvalidRecord(f"The message cannot be written: {error}") from error

    def decode(self, data: bytes) -> M:
        """Return the message; raises `InvalidRecord` for bytes that are none."""
        return _parsed(self._record_cls, data)


class ProtobufSchema(_ProtobufSchema[M]):
    """Protobuf messages registered by their Avro form, as Java's `Schema.PROTOBUF`.

    `record_cls` is a generated message class. Thread-safe, never blocks. Raises `InvalidConfiguration` for a message
    with groups, which have no Avro form.
    """

    def _describe(self, record_cls: type[M]) -> SchemaInfo:
        message: Any = record_cls.DESCRIPTOR
        return SchemaInfo("", SchemaType.PROTOBUF, avro_definition(message), parsing_info(message))


class ProtobufNativeSchema(_ProtobufSchema[M]):
    """Protobuf messages registered with their files, as Java's `Schema.PROTOBUF_NATIVE`.

    `record_cls` is a generated message class. Thread-safe, never blocks.
    """

    def _describe(self, record_cls: type[M]) -> SchemaInfo:
        message: Any = record_cls.DESCRIPTOR
        return SchemaInfo("", SchemaType.PROTOBUF_NATIVE, native_definition(message), parsing_info(message))


class GenericProtobufSchema(Schema[dict[str, Any]]):
    """Decode PROTOBUF_NATIVE messages into dictionaries, with the files the registry has."""

    def __init__(self, info: SchemaInfo) -> None:
        self._info = info
        self._class = native_class(info)

    def encode(self, obj: dict[str, Any]) -> bytes:
        """Return the encoding of a message with these values; raises `InvalidRecord`."""
        try:
            return self._class(**obj).SerializeToString()
        except (TypeError, ValueError) as error:
            raise InvalidRecord(f"The value does not fit {self._class.DESCRIPTOR.full_name}: {error}") from error

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the fields by name: enumerations by name, messages not set as None; raises `InvalidRecord`."""
        return _fields(_parsed(self._class, data))


def _parsed(kind: type[M], data: bytes) -> M:
    try:
        message = kind.FromString(bytes(data))
    except DecodeError as error:
        raise InvalidRecord(f"The message is no {kind.DESCRIPTOR.full_name}: {error}") from error
    if not message.IsInitialized():
        # Not every version of the library looks while it parses; Java's does.
        lacking = ", ".join(cast(Any, message).FindInitializationErrors())
        raise InvalidRecord(f"The message is no {kind.DESCRIPTOR.full_name}: it lacks {lacking}")
    return message


def _fields(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    described: list[Any] = list(message.DESCRIPTOR.fields)
    for field in described:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _single(inner, value[key]) for key in value}
        elif is_repeated(field):
            found[field.name] = [_single(field, item) for item in value]
        elif field.message_type is not None and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _single(field, value)
    return found


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _fields(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named is not None else value
    return value
