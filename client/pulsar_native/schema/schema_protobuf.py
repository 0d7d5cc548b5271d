"""The official client's module of this name."""

from pulsar_native.schema.protobuf_schema import ProtobufNativeSchema

__all__ = ["ProtobufNativeSchema"]
