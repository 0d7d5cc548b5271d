"""Conversion between registered schemas, their form on the wire, and schemas that decode without a class.

Rules: pure functions; a type without a decoder raises an error that names the supported types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsar_native.exceptions import InvalidConfiguration, OperationNotSupported
from pulsar_native.schema.avro_schema import AvroSchema
from pulsar_native.schema.base import BytesSchema, Schema, StringSchema
from pulsar_native.schema.info import SchemaInfo, SchemaType
from pulsar_native.schema.json_schema import JsonSchema
from pulsar_native.schema.key_value import KeyValueSchema, split_info
from pulsar_native.schema.primitives import PRIMITIVES
from pulsar_native.schema.protobuf_schema import GenericProtobufSchema
from pulsar_native.wire import pulsar_api_pb2 as pb

# On the wire AUTO_CONSUME has its own number, and bytes are no schema.
_NUMBERS = {kind: int(kind) for kind in SchemaType if kind > 0} | {SchemaType.AUTO_CONSUME: 21}
_KINDS = {number: kind for kind, number in _NUMBERS.items()}


def wire_schema(schema: Schema[Any] | None) -> pb.Schema | None:
    """Return the schema field of PRODUCER and SUBSCRIBE; None for bytes, which is no schema."""
    info = schema.schema_info() if schema is not None else None
    if info is None or info.type in (SchemaType.BYTES, SchemaType.NONE):
        return None
    if info.type is SchemaType.AUTO_PUBLISH:
        raise InvalidConfiguration(
            "AutoProduceBytesSchema is for producers, which are made with it; consumers take AutoConsumeSchema or bytes"
        )
    if info.type not in _NUMBERS:
        raise OperationNotSupported(f"A schema of kind {info.type.name} cannot be registered")
    return pb.Schema(
        name=info.name(),
        schema_data=info.data,
        type=pb.Schema.Type.Name(_NUMBERS[info.type]),
        properties=[{"key": key, "value": value} for key, value in info.properties().items()],
    )


def info_from_wire(schema: pb.Schema, version: bytes | None = None) -> SchemaInfo:
    """Return the schema info of the broker's answer, with its version (8 bytes, big endian) as a number."""
    kind = SchemaType.NONE if schema.type == 0 else _KINDS.get(schema.type)
    if kind is None:
        raise OperationNotSupported(f"The broker's schema {schema.name!r} is of the unknown kind {schema.type}")
    # In the generated stubs the enum member KeyValue hides the message of that name.
    properties: Iterable[Any] = schema.properties
    return SchemaInfo(
        name=schema.name,
        type=kind,
        schema=schema.schema_data,
        properties={pair.key: pair.value for pair in properties},
        version=int.from_bytes(version, "big", signed=True) if version else None,
    )


def schema_from_info(info: SchemaInfo) -> Schema[Any]:
    """Return a schema that decodes the messages of a registered one without a class.

    Records (JSON, AVRO, PROTOBUF_NATIVE) become dictionaries, pairs `KeyValue`, other types Python's values. Raises
    `OperationNotSupported` for PROTOBUF, which needs its class.
    """
    made: Schema[Any]
    if info.type in (SchemaType.BYTES, SchemaType.NONE):
        made = BytesSchema()
    elif info.type is SchemaType.STRING:
        made = StringSchema()
    elif info.type is SchemaType.JSON:
        made = JsonSchema(schema_definition=info.definition())
    elif info.type is SchemaType.AVRO:
        made = AvroSchema(schema_definition=info.definition())
    elif info.type is SchemaType.PROTOBUF_NATIVE:
        made = GenericProtobufSchema(info)
    elif info.type is SchemaType.KEY_VALUE:
        key, value, encoding = split_info(info)
        made = KeyValueSchema(schema_from_info(key), schema_from_info(value), encoding)
    elif info.type in PRIMITIVES:
        made = PRIMITIVES[info.type]()
    else:
        raise OperationNotSupported(
            f"Messages of the schema {info.name()!r} cannot be decoded without their class: its kind is "
            f"{info.type.name}. Consume with ProtobufSchema(the class), or take data()"
        )
    return made
