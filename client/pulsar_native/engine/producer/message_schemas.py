"""Schemas of single messages: a producer's messages may have other schemas than the producer (Java's multi-schema).

Rules: a schema is registered in the topic with its first message, before that message is accepted, so that no batch
waits for it; its version is cached for the producer's life. `versions` may be read in any thread, everything else is on
the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pulsar_native.exceptions import IncompatibleSchema, NotConnected, TopicNotFound
from pulsar_native.schema.base import Schema
from pulsar_native.schema.info import SchemaInfo
from pulsar_native.schema.registered import wire_schema
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.client_context import ClientContext
    from pulsar_native.engine.producer.producer import PartitionProducer


class SchemaProducer(Protocol):
    """Producer whose messages may have schemas of their own."""

    topic: TopicName
    schema: Schema[Any]

    @property
    def client(self) -> ClientContext: ...
    @property
    def children(self) -> Sequence[PartitionProducer]: ...


class MessageSchemas:
    """Versions of the schemas of a producer's messages so far."""

    def __init__(self, producer: SchemaProducer) -> None:
        self._producer = producer
        # None is the producer's own version, b"" means no schema.
        self.versions: dict[SchemaInfo, bytes | None] = {producer.schema.schema_info(): None}

    async def register(self, schema: Schema[Any]) -> bytes | None:
        """Return the version of a schema in the topic, registering it first; raises `IncompatibleSchema`."""
        info = schema.schema_info()
        wire = wire_schema(schema)
        if wire is None:
            self.versions[info] = b""
            return b""
        client = self._producer.client
        topic = self._producer.topic
        try:
            version = await client.lookup.retry(lambda: self._ask(wire), topic, client.deadline())
        except IncompatibleSchema as error:
            raise await client.with_both_schemas(error, topic, info) from error
        self.versions[info] = version
        return version

    async def _ask(self, wire: pb.Schema) -> bytes:
        client = self._producer.client
        children = self._producer.children
        # Any partition will do: they share the registry's entry. The broker responds only where the topic is loaded.
        child = next((each for each in children if each.is_connected), children[0])
        connection = await child.ready(client.config.operation_timeout_seconds)
        request_id = client.next_request_id()
        frame = commands.get_or_create_schema(child.topic.full, request_id, wire)
        try:
            answer = await child.ask(request_id, frame, connection, pb.CommandGetOrCreateSchemaResponse)
        except TopicNotFound as error:
            raise NotConnected("The topic was unloaded meanwhile", topic=child.topic.full) from error
        return answer.schema_version
