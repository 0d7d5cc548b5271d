"""Schemas that follow the topic: AUTO_CONSUME, and AUTO_PRODUCE_BYTES for payloads that are encoded already.

Rules: both receive the topic's definitions from outside, like every schema: that of a version before its first message
is returned, and the newest when the producer is created. Neither is registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.base import BytesSchema, Schema, WriterSchemas, mismatch
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaInfo, SchemaType
from pulsar_native.schema.key_value import KeyValueSchema
from pulsar_native.schema.registered import schema_from_info
from pulsar_native.wire import pulsar_api_pb2 as pb


class GenericRecord(dict[str, Any]):
    """Record as a dictionary, with its writer's schema.

    `schema_info` is the registered schema (type, name, definition, properties); `schema_version` is its version in the
    topic as bytes, as in the message.
    """

    __slots__ = ("schema_info", "schema_version")

    def __init__(self, values: Mapping[str, Any], schema_info: SchemaInfo, schema_version: bytes | None = None) -> None:
        super().__init__(values)
        self.schema_info = schema_info
        self.schema_version = schema_version

    def __reduce__(self) -> tuple[object, ...]:
        return (GenericRecord, (dict(self), self.schema_info, self.schema_version))


class AutoConsumeSchema(Schema[Any]):
    """Consumer schema that decodes each message by the schema version it was written with (Java: AUTO_CONSUME).

    Records (JSON, AVRO, PROTOBUF_NATIVE) become `GenericRecord`, text, numbers and times Python's types, pairs
    `KeyValue`, messages without a schema bytes, null messages None. PROTOBUF cannot be decoded without its class:
    `value()` raises `OperationNotSupported`, and `data()` returns the bytes. For consumers and readers; a producer
    raises `OperationNotSupported`. Thread-safe.
    """

    # Unknown until the version of a message is known.
    separates_key = True

    def __init__(self) -> None:
        self._info = SchemaInfo("AutoConsume", SchemaType.AUTO_CONSUME)
        self._find: WriterSchemas | None = None
        self._decoders: dict[bytes, tuple[SchemaInfo, Schema[Any]]] = {}

    def encode(self, obj: Any) -> bytes:
        """Raise `OperationNotSupported`: this schema only decodes."""
        raise InvalidConfiguration("AutoConsumeSchema is for consumers; producers use AutoProduceBytesSchema")

    def encode_separated(self, obj: Any) -> tuple[bytes | None, bytes | None]:
        """Raise `OperationNotSupported`: this schema only decodes."""
        raise InvalidConfiguration("AutoConsumeSchema is for consumers; producers use AutoProduceBytesSchema")

    def decode(self, data: bytes, schema_version: bytes | None = None) -> Any:
        """Return the value of a message by its schema version; bytes without one."""
        return self.decode_separated(None, data, schema_version)

    def decode_versioned(self, data: bytes, schema_version: bytes | None) -> Any:
        """Return the value of a payload by its schema version."""
        return self.decode_separated(None, data, schema_version)

    def decode_separated(self, key: bytes | None, data: bytes | None, schema_version: bytes | None) -> Any:
        """Return the value of a message, with its key if the topic's schema separates it."""
        if not schema_version or self._find is None:
            return data
        if data is None and not self._is_pair(schema_version):
            return None
        info, schema = self._of(schema_version)
        if isinstance(schema, KeyValueSchema):
            pair = schema.decode_separated(key, data, schema_version)
            if pair is None:
                return None
            parts = (schema.key_schema.schema_info(), schema.value_schema.schema_info())
            return type(pair)(*(_generic(part, of, schema_version) for part, of in zip(pair, parts, strict=True)))
        assert data is not None
        return _generic(schema.decode(data), info, schema_version)

    def _is_pair(self, version: bytes) -> bool:
        """Return True if a null payload may have a value, as its key is part of it.

        No other null payload needs its schema, which may be gone, or of a kind that cannot be decoded.
        """
        assert self._find is not None
        try:
            return self._find(version).type is SchemaType.KEY_VALUE
        except InvalidRecord:
            return False

    def _of(self, version: bytes) -> tuple[SchemaInfo, Schema[Any]]:
        found = self._decoders.get(version)
        if found is None:
            assert self._find is not None
            info = self._find(version)
            # Two threads may create the same schema; one of the two is kept.
            found = self._decoders[version] = info, schema_from_info(info)
        return found

    def with_writer_schemas(self, find: WriterSchemas) -> AutoConsumeSchema:
        """Return this schema for one topic."""
        bound = AutoConsumeSchema()
        bound._find = find
        return bound


class AutoProduceBytesSchema(Schema[bytes]):
    """Producer schema for encoded payloads, checked against the topic's schema (Java: AUTO_PRODUCE_BYTES). Thread-safe.

    The topic's newest schema at the creation of the producer is used; a topic without schema accepts any bytes.

    :param schema: schema that payloads are checked against instead, registered as with a producer of that schema.
        Payloads that do not fit raise `InvalidRecord`; for PROTOBUF it is only checked that they are Protobuf. Default
        None.
    """

    def __init__(self, schema: Schema[Any] | None = None) -> None:
        if schema is not None and schema.schema_info().type in (SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH):
            raise InvalidConfiguration(
                f"Bytes cannot be checked against a schema of kind {schema.schema_info().type.name}"
            )
        self._schema = schema
        self._info = SchemaInfo("AutoPublish", SchemaType.AUTO_PUBLISH) if schema is None else schema.schema_info()

    @property
    def follows_topic(self) -> bool:
        """True if the topic's schema must be known before encoding."""
        return self._schema is None

    def for_topic(self, info: SchemaInfo | None) -> AutoProduceBytesSchema:
        """Return this schema for a topic with a schema, or (None) without one."""
        if info is None:
            return AutoProduceBytesSchema(BytesSchema())
        made = AutoProduceBytesSchema(_validator(info))
        made._info = info
        return made

    def encode(self, obj: bytes) -> bytes:
        """Return the bytes; raises `InvalidRecord` if they do not fit the schema."""
        if self._schema is None:
            raise InvalidConfiguration("AutoProduceBytesSchema needs the topic's schema: make a producer with it")
        value: object = obj
        if not isinstance(value, bytes | bytearray | memoryview):
            raise mismatch(value, "bytes")
        data = bytes(value)
        self._schema.validate(data)
        return data

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data


class _ProtobufCheck(Schema[bytes]):
    """Check that bytes are Protobuf; the Avro form of a PROTOBUF schema does not allow more."""

    def decode(self, data: bytes) -> bytes:
        """Return the bytes; raises `InvalidRecord`."""
        try:
            pb.CommandPing.FromString(data)  # A message without fields accepts every field of another one.
        except DecodeError as error:
            raise InvalidRecord(f"The bytes are no Protobuf message: {error}") from error
        return data


def _validator(info: SchemaInfo) -> Schema[Any]:
    if info.type is SchemaType.PROTOBUF:
        return _ProtobufCheck()
    return schema_from_info(info)


def _generic(value: Any, info: SchemaInfo, version: bytes) -> Any:
    return GenericRecord(value, info, version) if isinstance(value, dict) else value
