"""Module `schema_avro` of the official client."""

from pulsar_native.schema.avro_schema import AvroSchema

__all__ = ["AvroSchema"]
