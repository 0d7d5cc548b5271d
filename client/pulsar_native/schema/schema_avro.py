"""The official client's module of this name."""

from pulsar_native.schema.avro_schema import AvroSchema

__all__ = ["AvroSchema"]
