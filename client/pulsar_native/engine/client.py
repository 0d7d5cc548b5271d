"""The core of a client: its connections, its ids, and the producers and consumers made with it.

Rules: nothing is dialled before the first use; after `close` nothing new is made; closing closes everything that was
made, bounded in time. On the loop only, except the id generators and the memory limit.
"""

from __future__ import annotations

import asyncio
import itertools

from pulsar_native.config import ClientConfig, ConsumerConfig, ProducerConfig
from pulsar_native.engine.lookup import Lookup
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.memory import MemoryLimit
from pulsar_native.engine.partitioned_producer import TopicProducer
from pulsar_native.engine.pool import ConnectionPool
from pulsar_native.engine.topic_consumer import TopicConsumer
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration
from pulsar_native.schema.info import SchemaInfo
from pulsar_native.schema.registered import info_from_wire
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb


class ClientCore:
    """Everything that lives on one engine for one client."""

    def __init__(self, engine: Engine, config: ClientConfig) -> None:
        self.engine = engine
        self.config = config
        self._producer_ids = itertools.count()
        self._consumer_ids = itertools.count()
        self._request_ids = itertools.count()
        self.memory = MemoryLimit(config.memory_limit_bytes)
        self.pool = ConnectionPool(engine, config)
        self.lookup = Lookup(engine, config, self.pool, self._request_ids)
        self.producers: set[TopicProducer] = set()
        self.consumers: set[TopicConsumer] = set()
        self.closed = False
        self._auth_started = False

    def next_producer_id(self) -> int:
        """Return an id no other producer of this client has."""
        return next(self._producer_ids)

    def next_consumer_id(self) -> int:
        """Return an id no other consumer of this client has."""
        return next(self._consumer_ids)

    def next_request_id(self) -> int:
        """Return an id no other request of this client has."""
        return next(self._request_ids)

    def _check_open(self) -> None:
        if self.closed:
            raise AlreadyClosed("The client is closed")
        if not self._auth_started and self.config.authentication is not None:
            self._auth_started = True
            self.config.authentication.start()

    def deadline(self) -> float:
        """Return when an operation begun now times out."""
        return self.engine.loop.time() + self.config.operation_timeout_seconds

    async def partition_count(self, topic: TopicName, *, auto_create: bool = True) -> int:
        """Return how many partitions a topic has, 0 for a topic without."""
        self._check_open()
        if topic.is_partition:
            return 0
        return await self.lookup.partitions(topic, self.deadline(), auto_create=auto_create)

    async def topic_partition_count(self, topic: str, *, auto_create: bool) -> int:
        """Return how many partitions a topic has; the broker is asked of a partition, too: it may not exist."""
        self._check_open()
        return await self.lookup.partitions(TopicName.parse(topic), self.deadline(), auto_create=auto_create)

    async def create_producer(self, config: ProducerConfig, schema: pb.Schema | None) -> TopicProducer:
        """Create a producer on the topic, or on each of its partitions."""
        self._check_open()
        topic = TopicName.parse(config.topic)
        partitions = await self.partition_count(topic)
        producer = TopicProducer(self, config, topic, partitions, schema)
        await producer.open()
        self.producers.add(producer)
        if self.closed:
            producer.abandon()
            raise AlreadyClosed("The client was closed meanwhile")
        return producer

    async def subscribe(
        self, topics: list[str], config: ConsumerConfig, schema: VersionedDecoder, wire_schema: pb.Schema | None
    ) -> TopicConsumer:
        """Subscribe to one or several topics."""
        self._check_open()
        names = list(dict.fromkeys(TopicName.parse(topic) for topic in topics))
        if not names:
            raise InvalidConfiguration("A consumer needs at least one topic")
        counts = await asyncio.gather(*(self.partition_count(name) for name in names))
        consumer = TopicConsumer(self, config, dict(zip(names, counts, strict=True)), schema, wire_schema)
        await consumer.open()
        self.consumers.add(consumer)
        if self.closed:
            consumer.abandon()
            raise AlreadyClosed("The client was closed meanwhile")
        return consumer

    async def topic_partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions, or the topic itself when it has none."""
        name = TopicName.parse(topic)
        count = await self.partition_count(name)
        return [name.with_partition(index).full for index in range(count)] if count else [name.full]

    async def writer_schema(self, topic: str, version: bytes | None) -> SchemaInfo:
        """Return a registered schema of the topic, the newest or one version."""
        self._check_open()
        answer = await self.lookup.schema(TopicName.parse(topic).base, version, self.deadline())
        return info_from_wire(answer.schema, answer.schema_version)

    async def close(self) -> None:
        """Close producers (flushing them), consumers and connections; a second call raises `AlreadyClosed`."""
        if self.closed:
            raise AlreadyClosed("The client is closed already")
        self.closed = True
        handlers: list[TopicProducer | TopicConsumer] = [*self.producers, *self.consumers]
        try:
            async with asyncio.timeout(self.config.operation_timeout_seconds):
                await asyncio.gather(*(handler.close() for handler in handlers), return_exceptions=True)
        except TimeoutError:
            # Whatever the brokers do not answer in time is left to find out by the closed connection.
            pass
        self.shutdown()

    def shutdown(self) -> None:
        """Drop everything without a goodbye."""
        self.closed = True
        handlers: list[TopicProducer | TopicConsumer] = [*self.producers, *self.consumers]
        for handler in handlers:
            handler.abandon()
        self.pool.close()
        if self._auth_started and self.config.authentication is not None:
            self._auth_started = False
            self.config.authentication.close()
