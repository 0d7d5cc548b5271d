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


def avro_entry(number: int, version: bytes = b"\1", **metadata: Any) -> bytes:
    """Return an entry of one message with this number, published by a version of `SCHEMA`."""
    return single_entry(SCHEMA.encode({"n": number}), schema_version=version, **metadata)


def refuse_schema(fake: FakeBroker, version: bytes, times: int = 1) -> None:
    """Have the broker refuse the first requests for a version of `SCHEMA`; it answers all others."""
    left = times

    def answer(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        nonlocal left
        asked = command.getSchema
        if asked.schema_version == version and left:
            left -= 1
            return [failure(asked.request_id, pb.NotAllowedError)]
        found = pb.CommandGetSchemaResponse(
            request_id=asked.request_id, schema=wire_schema(SCHEMA), schema_version=asked.schema_version
        )
        return [frame(Kind.GET_SCHEMA_RESPONSE, getSchemaResponse=found)]

    fake.answers[Kind.GET_SCHEMA] = answer
