"""Base of schemas, and the schemas of bytes and text.

Rules: a schema is immutable, thread-safe and without I/O: the registry's schemas come in through a function
(`with_writer_schemas`). Values or bytes that do not fit raise `InvalidRecord`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.errors import InvalidRecord, InvalidText
from pulsar_native.schema.info import SchemaInfo, SchemaType

T = TypeVar("T")

# Returns the schema of a version in a message's metadata; may block and raise.
WriterSchemas = Callable[[bytes], SchemaInfo]


class Schema(Generic[T]):
    """Base of schemas: encoding of values into payloads and back. Immutable, thread-safe.

    A subclass overrides `encode` and `decode`. `schema_type`, `schema_definition` (the Avro definition of JSON and AVRO
    as a dictionary) and `schema_name` are sent to the registry; the default is plain bytes.
    """

    _info = SchemaInfo("BYTES", SchemaType.BYTES)
    # True if a part of the value is the message's key (`KeyValueSchema`): encode_separated and decode_separated are
    # used then.
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
        # Subclasses written for the official client know it by the second name.
        self._info = self._schema_info = SchemaInfo(schema_name, schema_type, text)

    def encode(self, obj: T) -> bytes:
        """Return the payload of a value; raises `InvalidRecord`. Does not block."""
        raise NotImplementedError

    def decode(self, data: bytes) -> T:
        """Return the value of a payload; raises `InvalidRecord`."""
        raise NotImplementedError

    def decode_versioned(self, data: bytes, schema_version: bytes | None) -> T:
        """Return the value of a payload by its schema version.

        May block to fetch the writer's schema after `with_writer_schemas`.
        """
        return self.decode(data)

    def decode_many(self, payloads: Iterable[bytes | None], schema_version: bytes | None) -> list[T | None]:
        """Return the values of payloads of one schema version, None for null; raises `InvalidRecord` for a wrong one.

        May block like `decode_versioned`.
        """
        return [None if data is None else self.decode_versioned(data, schema_version) for data in payloads]

    def validate(self, data: bytes) -> None:
        """Raise `InvalidRecord` unless the bytes are one message of this schema."""
        self.decode(data)

    def encode_separated(self, obj: T) -> tuple[bytes | None, bytes | None]:
        """Return key and payload of a value; for schemas that separate them."""
        raise NotImplementedError

    def decode_separated(self, key: bytes | None, data: bytes | None, schema_version: bytes | None) -> T | None:
        """Return the value of a key and a payload; for schemas that separate them."""
        raise NotImplementedError

    def with_writer_schemas(self, find: WriterSchemas) -> Schema[T]:
        """Return the schema for decoding one topic's messages; `find` returns writers' schemas by version."""
        return self

    def schema_info(self) -> SchemaInfo:
        """Return the schema's definition for the registry."""
        return self._info

    def attach_client(self, client: object) -> None:
        """Do nothing; for programs that call it on the official client's schemas."""

    def _validate_object_type(self, obj: object) -> None:
        """Raise `InvalidRecord` unless a value is an instance of the class given to the constructor; for subclasses."""
        if not isinstance(obj, self._record_cls):
            raise mismatch(obj, getattr(self._record_cls, "__name__", str(self._record_cls)))

    def __str__(self) -> str:
        return type(self).__name__

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self


class BytesSchema(Schema[bytes]):
    """Schema of bytes; on the wire, no schema."""

    def __init__(self) -> None:
        super().__init__(bytes)

    def encode(self, obj: bytes) -> bytes:
        """Return the bytes; accepts bytearray and memoryview too."""
        value: object = obj
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        fix = "pass text.encode(), or give" if isinstance(value, str) else "give"
        raise mismatch(value, "bytes", f"; {fix} the producer a schema")

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data


class StringSchema(Schema[str]):
    """Schema of UTF-8 text, registered with an empty definition as by the Java client."""

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
            raise InvalidText(*error.args) from error


def definition_text(definition: Mapping[str, object]) -> bytes:
    """Return a definition in the official Python client's text: another text would be another version."""
    try:
        return json.dumps(definition, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration(f"The schema definition is not JSON: {error}") from error


def mismatch(value: object, wanted: str, fix: str = "") -> InvalidRecord:
    """Return the error for a value of another type than the schema's."""
    return InvalidRecord(f"The schema needs a value of type {wanted}, not {type(value).__name__}{fix}")
