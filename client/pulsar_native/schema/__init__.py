"""Schemas: how a program's values become the bytes of messages, and what the broker's registry knows of them."""

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
from pulsar_native.schema.record import Record
from pulsar_native.schema.registered import info_from_wire, schema_from_info, wire_schema

__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "InvalidRecord",
    "JsonSchema",
    "Long",
    "Map",
    "Null",
    "Record",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "String",
    "StringSchema",
    "WriterSchemas",
    "info_from_wire",
    "schema_from_info",
    "wire_schema",
]
