"""Protobuf schemas, registered in Java's two ways.

Rules: payloads are the Protobuf encoding in both. They differ in the registered definition and in how the registry
checks changes: PROTOBUF has the message's Avro form, PROTOBUF_NATIVE its files. Unknown fields are kept, so that old
and new programs read each other's messages. `protobuf_definition` is imported when one is used: it needs protobuf's
descriptions of descriptors, a tenth of the time to import this package.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError, EncodeError, Message

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.base import Schema, mismatch
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaInfo, SchemaType

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
        """Return the Protobuf encoding; raises `InvalidRecord` for another message, or missing required fields."""
        if not isinstance(obj, self._record_cls):
            raise mismatch(obj, self._record_cls.__name__)
        try:
            return obj.SerializeToString()
        except EncodeError as error:
            raise InvalidRecord(f"The message cannot be written: {error}") from error

    def decode(self, data: bytes) -> M:
        """Return the message; raises `InvalidRecord` for bytes that are not one."""
        return parse_message(self._record_cls, data)


class ProtobufSchema(_ProtobufSchema[M]):
    """Schema of Protobuf messages registered by their Avro form (Java: `Schema.PROTOBUF`). Thread-safe; does not block.

    :param record_cls: generated message class. Raises `InvalidConfiguration` for a message with groups, which have no
        Avro form.
    """

    def _describe(self, record_cls: type[M]) -> SchemaInfo:
        from pulsar_native.schema.protobuf_definition import avro_definition, parsing_info

        message: Any = record_cls.DESCRIPTOR
        return SchemaInfo("", SchemaType.PROTOBUF, avro_definition(message), parsing_info(message))


class ProtobufNativeSchema(_ProtobufSchema[M]):
    """Schema of Protobuf messages registered with their files (Java: `Schema.PROTOBUF_NATIVE`).

    Thread-safe; does not block.

    :param record_cls: generated message class.
    """

    def _describe(self, record_cls: type[M]) -> SchemaInfo:
        from pulsar_native.schema.protobuf_definition import native_definition, parsing_info

        message: Any = record_cls.DESCRIPTOR
        return SchemaInfo("", SchemaType.PROTOBUF_NATIVE, native_definition(message), parsing_info(message))


class GenericProtobufSchema(Schema[dict[str, Any]]):
    """Decoder of PROTOBUF_NATIVE messages into dictionaries, with the files of the registry."""

    def __init__(self, info: SchemaInfo) -> None:
        from pulsar_native.schema.protobuf_definition import native_class

        self._info = info
        self._class = native_class(info)

    def __reduce__(self) -> tuple[object, ...]:
        # Its class is in no module.
        return GenericProtobufSchema, (self._info,)

    def encode(self, obj: dict[str, Any]) -> bytes:
        """Return the encoding of a message with these values; raises `InvalidRecord`."""
        try:
            return self._class(**obj).SerializeToString()
        except (TypeError, ValueError) as error:
            raise InvalidRecord(f"The value does not fit {self._class.DESCRIPTOR.full_name}: {error}") from error

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the fields by name: enumerations by name, unset messages as None; raises `InvalidRecord`."""
        return _fields(parse_message(self._class, data))


def parse_message(kind: type[M], data: bytes) -> M:
    """Return the message of a payload; raises `InvalidRecord` for bytes that are not one. Pure."""
    try:
        message = kind.FromString(bytes(data))
    except DecodeError as error:
        raise InvalidRecord(f"The message is no {kind.DESCRIPTOR.full_name}: {error}") from error
    if not message.IsInitialized():
        # Not every version of the library checks required fields while parsing; Java does.
        lacking = ", ".join(cast(Any, message).FindInitializationErrors())
        raise InvalidRecord(f"The message is no {kind.DESCRIPTOR.full_name}: it lacks {lacking}")
    return message


def _fields(message: Message) -> dict[str, Any]:
    from pulsar_native.schema.protobuf_definition import is_repeated

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
