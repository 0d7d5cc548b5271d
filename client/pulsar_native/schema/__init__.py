"""Schemas: encoding of values into message payloads, and their definitions in the broker's schema registry."""

from __future__ import annotations

import importlib
from typing import Any

from pulsar_native.schema.auto import AutoConsumeSchema, AutoProduceBytesSchema, GenericRecord
from pulsar_native.schema.avro_schema import AvroSchema
from pulsar_native.schema.base import BytesSchema, Schema, StringSchema, WriterSchemas
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.fields import (
    Array,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    Long,
    Map,
    Null,
    String,
)
from pulsar_native.schema.info import SchemaInfo, SchemaType
from pulsar_native.schema.json_schema import JsonSchema
from pulsar_native.schema.key_value import KeyValue, KeyValueEncodingType, KeyValueSchema
from pulsar_native.schema.models import AvroType
from pulsar_native.schema.primitives import (
    BooleanSchema,
    DateSchema,
    DoubleSchema,
    FloatSchema,
    InstantSchema,
    Int8Schema,
    Int16Schema,
    Int32Schema,
    Int64Schema,
    LocalDateSchema,
    LocalDateTimeSchema,
    LocalTimeSchema,
    TimeSchema,
    TimestampSchema,
)
from pulsar_native.schema.protobuf_schema import ProtobufNativeSchema, ProtobufSchema
from pulsar_native.schema.record import Record
from pulsar_native.schema.registered import info_from_wire, schema_from_info, wire_schema

__all__ = [
    "Array",
    "AutoConsumeSchema",
    "AutoProduceBytesSchema",
    "AvroSchema",
    "AvroType",
    "Boolean",
    "BooleanSchema",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "DateSchema",
    "Double",
    "DoubleSchema",
    "Field",
    "Float",
    "FloatSchema",
    "GenericRecord",
    "InstantSchema",
    "Int8Schema",
    "Int16Schema",
    "Int32Schema",
    "Int64Schema",
    "Integer",
    "InvalidRecord",
    "JsonSchema",
    "KeyValue",
    "KeyValueEncodingType",
    "KeyValueSchema",
    "LocalDateSchema",
    "LocalDateTimeSchema",
    "LocalTimeSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "ProtobufSchema",
    "Record",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "String",
    "StringSchema",
    "TimeSchema",
    "TimestampSchema",
    "WriterSchemas",
    "info_from_wire",
    "schema_from_info",
    "wire_schema",
]

# Attributes of the package without an import of their own, as in the official client.
_SUBMODULES = frozenset(("definition", "schema", "schema_avro", "schema_protobuf"))


def __getattr__(name: str) -> Any:
    if name not in _SUBMODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES})
