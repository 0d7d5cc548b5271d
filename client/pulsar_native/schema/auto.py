"""Schemas that follow the topic: whatever it has is consumed, and ready-made bytes are checked against it.

Rules: both are told the topic's definitions from outside, like every schema: a version's before its first message is
handed over, and the newest when the producer is made. Neither is ever registered.
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
    """A record as a dictionary, with the definition it was written with.

    `schema_info` is the registered schema (kind, name, definition, properties); `schema_version` its version in the
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
    """Take whatever the topic has, each message by the version it was written with. For consumers and readers only.

    Records (JSON, AVRO, PROTOBUF_NATIVE) come as `GenericRecord`, text, numbers and times as Python's, pairs as
    `KeyValue`, messages without a schema as bytes. PROTOBUF cannot be decoded without its class: `value()` then raises
    `OperationNotSupported`, and `data()` has the bytes. A producer refuses it.
    """

    # It may turn out so, version by version.
    separates_key = True

    def __init__(self) -> None:
        self._info = SchemaInfo("AutoConsume", SchemaType.AUTO_CONSUME)
        self._find: WriterSchemas | None = None
        self._decoders: dict[bytes, tuple[SchemaInfo, Schema[Any]]] = {}

    def encode(self, obj: Any) -> bytes:
        """Refuse: this schema only reads."""
        raise InvalidConfiguration("AutoConsumeSchema is for consumers; producers use AutoProduceBytesSchema")

    def encode_separated(self, obj: Any) -> tuple[bytes | None, bytes | None]:
        """Refuse: this schema only reads."""
        raise InvalidConfiguration("AutoConsumeSchema is for consumers; producers use AutoProduceBytesSchema")

    def decode(self, data: bytes, schema_version: bytes | None = None) -> Any:
        """Return the value of a message written with a version of the topic's schema; bytes without one."""
        return self.decode_separated(None, data, schema_version)

    def decode_versioned(self, data: bytes, schema_version: bytes | None) -> Any:
        """Return the value of bytes written with a version of the topic's schema."""
        return self.decode_separated(None, data, schema_version)

    def decode_separated(self, key: bytes | None, data: bytes | None, schema_version: bytes | None) -> Any:
        """Return the value of a message, with its key where the topic's schema puts a part there."""
        if not schema_version or self._find is None:
            return data
        info, schema = self._of(schema_version)
        if isinstance(schema, KeyValueSchema):
            pair = schema.decode_separated(key, data, schema_version)
            if pair is None:
                return None
            parts = (schema.key_schema.schema_info(), schema.value_schema.schema_info())
            return type(pair)(*(_generic(part, of, schema_version) for part, of in zip(pair, parts, strict=True)))
        return None if data is None else _generic(schema.decode(data), info, schema_version)

    def _of(self, version: bytes) -> tuple[SchemaInfo, Schema[Any]]:
        found = self._decoders.get(version)
        if found is None:
            assert self._find is not None
            info = self._find(version)
            # Two threads may both get here: the same schema is then made twice, and one of the two kept.
            found = self._decoders[version] = info, schema_from_info(info)
        return found

    def with_writer_schemas(self, find: WriterSchemas) -> AutoConsumeSchema:
        """Return this schema for one topic."""
        bound = AutoConsumeSchema()
        bound._find = find
        return bound


class AutoProduceBytesSchema(Schema[bytes]):
    """Send ready-made bytes, each message checked against the schema the topic has when the producer is made.

    A topic without schema takes any bytes. With `schema` the bytes are checked against that one, and it is registered
    as if the producer had been made with it. Bytes that do not fit raise `InvalidRecord`; of PROTOBUF topics it is
    checked only that they are Protobuf. Thread-safe.
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
        """Whether the topic's schema must be found before anything can be encoded."""
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
    """Whether bytes are Protobuf at all: more cannot be told of a message known in its Avro form only."""

    def decode(self, data: bytes) -> bytes:
        """Return the bytes; raises `InvalidRecord`."""
        try:
            pb.CommandPing.FromString(data)  # a message without fields takes every field of another
        except DecodeError as error:
            raise InvalidRecord(f"The bytes are no Protobuf message: {error}") from error
        return data


def _validator(info: SchemaInfo) -> Schema[Any]:
    if info.type is SchemaType.PROTOBUF:
        return _ProtobufCheck()
    return schema_from_info(info)


def _generic(value: Any, info: SchemaInfo, version: bytes) -> Any:
    return GenericRecord(value, info, version) if isinstance(value, dict) else value
