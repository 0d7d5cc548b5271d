"""The core of a client: its connections, its ids, and the producers and consumers made with it.

Rules: nothing is dialled before the first use; after `close` nothing new is made; closing closes everything that was
made, bounded in time. On the loop only, except the id generators and the memory limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

from pulsar_native.config import ClientConfig, ConsumerConfig, ProducerConfig
from pulsar_native.engine.lookup import Lookup
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.memory import MemoryLimit
from pulsar_native.engine.partitioned_producer import TopicProducer
from pulsar_native.engine.pattern import PatternTopics, TopicsChanged
from pulsar_native.engine.pool import ConnectionPool
from pulsar_native.engine.service import Service
from pulsar_native.engine.topic_consumer import TopicConsumer
from pulsar_native.exceptions import (
    AlreadyClosed,
    IncompatibleSchema,
    InvalidConfiguration,
    PulsarException,
    Timeout,
    TopicNotFound,
)
from pulsar_native.protocol.topic_list import TopicPattern
from pulsar_native.schema.auto import AutoConsumeSchema, AutoProduceBytesSchema
from pulsar_native.schema.base import BytesSchema, Schema
from pulsar_native.schema.info import SchemaInfo
from pulsar_native.schema.registered import info_from_wire
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.service_info import ServiceInfo
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb

_EXPLAIN_SECONDS = 3.0


class ClientCore:
    """Everything that lives on one engine for one client."""

    def __init__(self, engine: Engine, config: ClientConfig) -> None:
        self.engine = engine
        self.config = config
        self._producer_ids = itertools.count()
        self._consumer_ids = itertools.count()
        self._watcher_ids = itertools.count()
        self._request_ids = itertools.count()
        self.memory = MemoryLimit(config.memory_limit_bytes)
        self.service = Service(engine, config)
        self.pool = ConnectionPool(engine, config, self.service)
        self.lookup = Lookup(engine, config, self.pool, self.service, self._request_ids)
        self.producers: set[TopicProducer] = set()
        self.consumers: set[TopicConsumer] = set()
        self.closed = False

    def next_producer_id(self) -> int:
        """Return an id no other producer of this client has."""
        return next(self._producer_ids)

    def next_consumer_id(self) -> int:
        """Return an id no other consumer of this client has."""
        return next(self._consumer_ids)

    def next_watcher_id(self) -> int:
        """Return an id no other watcher of this client has."""
        return next(self._watcher_ids)

    def next_request_id(self) -> int:
        """Return an id no other request of this client has."""
        return next(self._request_ids)

    def _check_open(self) -> None:
        if self.closed:
            raise AlreadyClosed("The client is closed")
        self.service.begin_with(self.config.authentication)

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

    async def create_producer(self, config: ProducerConfig, schema: Schema[Any] | None) -> TopicProducer:
        """Create a producer on the topic, or on each of its partitions; its `schema` is the one to encode with."""
        self._check_open()
        topic = TopicName.parse(config.topic)
        schema = await self._producer_schema(topic, schema or BytesSchema())
        partitions = await self.partition_count(topic)
        producer = TopicProducer(self, config, topic, partitions, schema)
        try:
            await producer.open()
        except IncompatibleSchema as error:
            raise await self.with_both_schemas(error, topic, schema.schema_info()) from error
        self.producers.add(producer)
        if self.closed:
            producer.abandon()
            raise AlreadyClosed("The client was closed meanwhile")
        return producer

    async def _producer_schema(self, topic: TopicName, schema: Schema[Any]) -> Schema[Any]:
        if isinstance(schema, AutoConsumeSchema):
            raise InvalidConfiguration(
                "AutoConsumeSchema is for consumers: a producer needs a schema of its own, or AutoProduceBytesSchema",
                topic=topic.full,
            )
        if not isinstance(schema, AutoProduceBytesSchema) or not schema.follows_topic:
            return schema
        return schema.for_topic(await self._topic_schema(topic))

    async def _topic_schema(self, topic: TopicName) -> SchemaInfo | None:
        try:
            return await self.writer_schema(topic.full, None)
        except TopicNotFound:
            return None  # the broker says so of a topic without a schema, too

    async def with_both_schemas(
        self, error: IncompatibleSchema, topic: TopicName, given: SchemaInfo
    ) -> IncompatibleSchema:
        """Return the error with the topic's schema and the one that was given in its message."""
        registered = None
        # The refusal matters more than what explains it, and must not wait for it.
        with contextlib.suppress(PulsarException, TimeoutError):
            async with asyncio.timeout(_EXPLAIN_SECONDS):
                registered = await self._topic_schema(topic)
        shown = "none" if registered is None else f"version {registered.version}, {registered.summary()}"
        return IncompatibleSchema(
            f"{error.message}\n  the topic's schema: {shown}\n  the schema given: {given.summary()}",
            topic=error.topic or topic.full,
            broker=error.broker,
            request_id=error.request_id,
        )

    async def subscribe(
        self,
        topics: list[str] | TopicPattern,
        config: ConsumerConfig,
        schema: VersionedDecoder,
        wire_schema: pb.Schema | None,
        changed: TopicsChanged | None = None,
    ) -> TopicConsumer:
        """Subscribe to one or several topics, or to those of a pattern, of whose changes `changed` is told."""
        self._check_open()
        if isinstance(topics, TopicPattern):
            consumer = TopicConsumer(self, config, {}, schema, wire_schema)
            consumer.pattern = PatternTopics(self, consumer, topics, changed)
        else:
            names = _checked_names(topics, config)
            counts = await asyncio.gather(*(self.partition_count(name) for name in names))
            consumer = TopicConsumer(self, config, dict(zip(names, counts, strict=True)), schema, wire_schema)
        try:
            await consumer.open()
        except IncompatibleSchema as error:
            if error.topic is None:
                raise
            raise await self.with_both_schemas(error, TopicName.parse(error.topic), schema.info) from error
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

    async def service_info(self) -> ServiceInfo:
        """Return the cluster the client uses now; raises `Timeout` when its provider does not tell it in time."""
        self._check_open()
        try:
            async with asyncio.timeout(self.config.operation_timeout_seconds):
                return await self.service.known()
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise Timeout("The service URL's provider did not answer within operation_timeout_seconds") from error

    async def update_service_url(self, url: str) -> None:
        """Move to another URL: all connections close, producers and consumers come back there by themselves."""
        await self.service_info()
        self.service.change_url(url)

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
        ended = self.shutdown()
        if ended is not None:
            # The provider of the service URL is the application's: its error is logged, and it may not hold us.
            await asyncio.wait([ended], timeout=self.config.operation_timeout_seconds)

    def shutdown(self) -> asyncio.Future[None] | None:
        """Drop everything without a goodbye; what the service URL's provider needs to end can be waited for."""
        self.closed = True
        handlers: list[TopicProducer | TopicConsumer] = [*self.producers, *self.consumers]
        for handler in handlers:
            handler.abandon()
        self.pool.close()
        return self.service.close()


def _checked_names(topics: list[str], config: ConsumerConfig) -> list[TopicName]:
    """Return the topics, each once; raises what can be told without asking a broker."""
    names = list(dict.fromkeys(TopicName.parse(topic) for topic in topics))
    if not names:
        raise InvalidConfiguration("A consumer needs at least one topic")
    if config.is_read_compacted:
        for name in names:
            if not name.is_persistent:
                raise InvalidConfiguration(f"is_read_compacted needs persistent topics, and {name} is none")
    return names
