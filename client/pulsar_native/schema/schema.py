"""Module `schema` of the official client: the base of schemas and the plain ones."""

from pulsar_native.schema.base import BytesSchema, Schema, StringSchema
from pulsar_native.schema.json_schema import JsonSchema

__all__ = ["BytesSchema", "JsonSchema", "Schema", "StringSchema"]
