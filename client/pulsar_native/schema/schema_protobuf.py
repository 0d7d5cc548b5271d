"""Module `schema_protobuf` of the official client."""

from pulsar_native.schema.protobuf_schema import ProtobufNativeSchema

__all__ = ["ProtobufNativeSchema"]
