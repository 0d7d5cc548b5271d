"""Schemas as producers and consumers use them: the base, bytes, and text.

Rules: a schema is immutable and thread-safe; it never sees the network: what the registry knows comes in through a
function (`with_writer_schemas`). Values or bytes that do not fit raise `InvalidRecord`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaInfo, SchemaType

T = TypeVar("T")

# Gives the schema a message was written with, by the version in its metadata; may block, may raise.
WriterSchemas = Callable[[bytes], SchemaInfo]


class Schema(Generic[T]):
    """Turn values into the bytes of messages and back; derive from it for an encoding of your own.

    A schema of your own overrides `encode` and `decode`; `schema_type`, `schema_definition` (the Avro definition of
    JSON and AVRO as a dictionary) and `schema_name` are what the registry is told, plain bytes without them.
    """

    _info = SchemaInfo("BYTES", SchemaType.BYTES)
    # Whether a part of the value travels as the message's key (`KeyValueSchema`): then encode_separated and
    # decode_separated are used.
    separates_key = False

    def __init__(
        self,
        record_cls: object = None,
        schema_type: SchemaType = SchemaType.BYTES,
        schema_definition: Mapping[str, object] | None = None,
        schema_name: str = "BYTES",
    ) -> None:
        self._record_cls: Any = record_cls
        text = b"" if schema_definition is None else definition_text(schema_definition)
        self._info = SchemaInfo(schema_name, schema_type, text)

    def encode(self, obj: T) -> bytes:
        """Return the bytes of a value; raises `InvalidRecord`. Never blocks."""
        raise NotImplementedError

    def decode(self, data: bytes) -> T:
        """Return the value of a message's bytes; raises `InvalidRecord`."""
        raise NotImplementedError

    def decode_versioned(self, data: bytes, schema_version: bytes | None) -> T:
        """Return the value of bytes written with a version of the topic's schema.

        May block to find the writer's schema after `with_writer_schemas`; most schemas need none.
        """
        return self.decode(data)

    def validate(self, data: bytes) -> None:
        """Raise `InvalidRecord` if the bytes are no message of this schema."""
        self.decode(data)

    def encode_separated(self, obj: T) -> tuple[bytes | None, bytes | None]:
        """Return the message's key and its payload; only of a schema that separates them."""
        raise NotImplementedError

    def decode_separated(self, key: bytes | None, data: bytes | None, schema_version: bytes | None) -> T | None:
        """Return the value of a message's key and payload; only of a schema that separates them."""
        raise NotImplementedError

    def with_writer_schemas(self, find: WriterSchemas) -> Schema[T]:
        """Return the schema as it decodes one topic's messages, with `find` to get writers' schemas by version."""
        return self

    def schema_info(self) -> SchemaInfo:
        """Return what the registry is told."""
        return self._info

    def attach_client(self, client: object) -> None:
        """Do nothing; there for programs that call it on the official client's schemas."""

    def _validate_object_type(self, obj: object) -> None:
        """Raise `InvalidRecord` unless a value is of the class given to the constructor; for schemas of your own."""
        if not isinstance(obj, self._record_cls):
            raise mismatch(obj, getattr(self._record_cls, "__name__", str(self._record_cls)))

    def __str__(self) -> str:
        return type(self).__name__

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self


class BytesSchema(Schema[bytes]):
    """Bytes as they are; on the wire this is the absence of a schema."""

    def __init__(self) -> None:
        super().__init__(bytes)

    def encode(self, obj: bytes) -> bytes:
        """Return the bytes; also a bytearray or a memoryview is taken."""
        value: object = obj
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise mismatch(value, "bytes")

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data


class StringSchema(Schema[str]):
    """Text in UTF-8; registered with an empty definition, as the Java client does."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING")

    def encode(self, obj: str) -> bytes:
        """Return the text in UTF-8."""
        if not isinstance(obj, str):
            raise mismatch(obj, "str")
        try:
            return obj.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"The text cannot be written in UTF-8: {error.reason}") from error

    def decode(self, data: bytes) -> str:
        """Return the text."""
        try:
            return bytes(data).decode()
        except UnicodeDecodeError as error:
            raise InvalidRecord(f"The message is not text in UTF-8: {error.reason} at byte {error.start}") from error


def definition_text(definition: Mapping[str, object]) -> bytes:
    """Return a definition as the official Python client writes it: another text would be another version."""
    try:
        return json.dumps(definition, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration(f"The schema definition is not JSON: {error}") from error


def mismatch(value: object, wanted: str) -> InvalidRecord:
    """Return the error for a value of another type than the schema's."""
    return InvalidRecord(f"The schema needs a value of type {wanted}, not {type(value).__name__}")
