"""Interface of a client for its producers, consumers and transactions: configuration, connections, lookups, ids.

`ClientCore` has all of it. The kinds of handlers that need more extend this interface beside their class.
"""

from __future__ import annotations

from typing import Protocol

from pulsar_native.config import ClientConfig
from pulsar_native.engine.lookup import Lookup
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.memory_limit import MemoryLimit
from pulsar_native.engine.pool import ConnectionPool
from pulsar_native.engine.service_url_provider import ServiceUrlProvider
from pulsar_native.exceptions import IncompatibleSchema
from pulsar_native.message import Message
from pulsar_native.schema.info import SchemaInfo
from pulsar_native.topic import TopicName


class ClientContext(Protocol):
    """Configuration, connections, lookups and ids of one client, for all of its parts."""

    engine: Engine
    config: ClientConfig
    memory: MemoryLimit
    service: ServiceUrlProvider
    pool: ConnectionPool
    lookup: Lookup
    # From the beginning of its close.
    closed: bool

    def next_producer_id(self) -> int: ...
    def next_consumer_id(self) -> int: ...
    def next_watcher_id(self) -> int: ...
    def next_request_id(self) -> int: ...
    def deadline(self) -> float: ...
    async def partition_count(self, topic: TopicName, *, auto_create: bool = True) -> int: ...
    async def topic_partition_count(self, topic: str, *, auto_create: bool) -> int: ...
    async def writer_schema(self, topic: str, version: bytes | None) -> SchemaInfo: ...
    async def load_writer_schema(self, message: Message, version: bytes) -> None: ...
    async def with_both_schemas(
        self, error: IncompatibleSchema, topic: TopicName, given: SchemaInfo
    ) -> IncompatibleSchema: ...
