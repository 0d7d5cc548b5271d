"""Between the registry's knowledge, the wire's form of it, and schemas that decode without any class.

Rules: pure functions; a kind without a decoder here is an error that names the kinds that have one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsar_native.exceptions import OperationNotSupported
from pulsar_native.schema.avro_schema import AvroSchema
from pulsar_native.schema.base import BytesSchema, Schema, StringSchema
from pulsar_native.schema.info import SchemaInfo, SchemaType
from pulsar_native.schema.json_schema import JsonSchema
from pulsar_native.wire import pulsar_api_pb2 as pb

# On the wire AUTO_CONSUME has a number of its own, and bytes are no schema at all.
_NUMBERS = {kind: int(kind) for kind in SchemaType if kind > 0} | {SchemaType.AUTO_CONSUME: 21}
_KINDS = {number: kind for kind, number in _NUMBERS.items()}


def wire_schema(schema: Schema[Any] | None) -> pb.Schema | None:
    """Return what PRODUCER and SUBSCRIBE carry for a schema: None for bytes, which is the absence of a schema."""
    info = schema.schema_info() if schema is not None else None
    if info is None or info.type in (SchemaType.BYTES, SchemaType.NONE):
        return None
    if info.type not in _NUMBERS:
        raise OperationNotSupported(f"A schema of kind {info.type.name} cannot be registered")
    return pb.Schema(
        name=info.name,
        schema_data=info.schema,
        type=pb.Schema.Type.Name(_NUMBERS[info.type]),
        properties=[{"key": key, "value": value} for key, value in info.properties.items()],
    )


def info_from_wire(schema: pb.Schema, version: bytes | None = None) -> SchemaInfo:
    """Return the info of a schema the broker sent, with its version (8 bytes, big endian) as a number."""
    kind = SchemaType.NONE if schema.type == 0 else _KINDS.get(schema.type)
    if kind is None:
        raise OperationNotSupported(f"The broker's schema {schema.name!r} is of the unknown kind {schema.type}")
    # In the generated stubs the enum's member KeyValue hides the message of that name.
    properties: Iterable[Any] = schema.properties
    return SchemaInfo(
        name=schema.name,
        type=kind,
        schema=schema.schema_data,
        properties={pair.key: pair.value for pair in properties},
        version=int.from_bytes(version, "big", signed=True) if version else None,
    )


def schema_from_info(info: SchemaInfo) -> Schema[Any]:
    """Return a schema that decodes the messages of a registered one: bytes, str, or dictionaries for JSON and AVRO.

    Raises `OperationNotSupported` for the other kinds.
    """
    if info.type in (SchemaType.BYTES, SchemaType.NONE):
        return BytesSchema()
    if info.type is SchemaType.STRING:
        return StringSchema()
    if info.type is SchemaType.JSON:
        return JsonSchema(schema_definition=info.definition())
    if info.type is SchemaType.AVRO:
        return AvroSchema(schema_definition=info.definition())
    raise OperationNotSupported(
        f"Messages of the schema {info.name!r} cannot be decoded: its kind is {info.type.name}, "
        "and there are decoders for BYTES, STRING, JSON and AVRO"
    )
