"""Schema registry of a fake broker, and entries whose writer's schema a consumer has to fetch from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsar_native.schema import AvroSchema, wire_schema
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.entry_bytes import single_entry
from support.fake_broker import FakeBroker, Peer, failure, frame

SCHEMA: Any = AvroSchema(None, {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})

# Another definition, whose first field an old reader takes for the only one.
WIDER: Any = AvroSchema(
    None, {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in ("m", "n")]}
)


def avro_entry(number: int, version: bytes = b"\1", **metadata: Any) -> bytes:
    """Return an entry of one message with this number, published by a version of `SCHEMA`."""
    return single_entry(SCHEMA.encode({"n": number}), schema_version=version, **metadata)


def wider_entry(number: int, version: bytes = b"\1") -> bytes:
    """Return an entry of one message with this number, published by a version of `WIDER`."""
    return single_entry(WIDER.encode({"m": -1, "n": number}), schema_version=version)


def schema_answer(command: pb.BaseCommand, schema: Any = SCHEMA) -> bytes:
    """Return the answer to a request for a version."""
    asked = command.getSchema
    found = pb.CommandGetSchemaResponse(
        request_id=asked.request_id, schema=wire_schema(schema), schema_version=asked.schema_version
    )
    return frame(Kind.GET_SCHEMA_RESPONSE, getSchemaResponse=found)


def serve_schema(fake: FakeBroker, schema: Any) -> None:
    """Have the broker answer every request for a version with this schema."""
    fake.answers[Kind.GET_SCHEMA] = lambda _peer, command: [schema_answer(command, schema)]


def refuse_schema(fake: FakeBroker, version: bytes, times: int = 1) -> None:
    """Have the broker refuse the first requests for a version of `SCHEMA`; it answers all others."""
    left = times

    def answer(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        nonlocal left
        asked = command.getSchema
        if asked.schema_version == version and left:
            left -= 1
            return [failure(asked.request_id, pb.NotAllowedError)]
        return [schema_answer(command)]

    fake.answers[Kind.GET_SCHEMA] = answer
