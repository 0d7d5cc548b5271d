"""Client core: connections, ids, and the producers and consumers created with it.

Rules: nothing is dialled before the first use; after `close` nothing new is created; closing closes everything that was
created, within a time limit. On the loop only, except the id generators and the memory limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pulsar_native._loggers import get_logger
from pulsar_native.config import ClientConfig, ConsumerConfig, ProducerConfig
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.consumer_events import ConsumerEvents
from pulsar_native.engine.consumer.dead_letter import with_retry_topic
from pulsar_native.engine.consumer.first_subscribe import FirstSubscribe
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.consumer.pattern_multi_topics_consumer import PatternTopicsWatcher, TopicsChanged
from pulsar_native.engine.interceptor_chain import ConsumerChain, ProducerChain
from pulsar_native.engine.interceptors import InterceptedConsumer, InterceptedProducer
from pulsar_native.engine.lookup import BrokerOfTopic, Lookup
from pulsar_native.engine.loop import Engine, gather
from pulsar_native.engine.memory_limit import MemoryLimit
from pulsar_native.engine.metrics.reports import StatsClock, consumer_counts, of_client, producer_counts
from pulsar_native.engine.metrics.statistics import ConsumerRecorder, ProducerRecorder
from pulsar_native.engine.metrics.telemetry import Instruments, instruments_of
from pulsar_native.engine.pool import ConnectionPool
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.engine.service_url_provider import ServiceUrlProvider
from pulsar_native.engine.transaction import Transactions, TransactionWork
from pulsar_native.enums import RegexSubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidTopicName,
    PulsarException,
    Timeout,
    TopicNotFound,
)
from pulsar_native.message import Message
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.schema.auto import AutoConsumeSchema, AutoProduceBytesSchema
from pulsar_native.schema.base import BytesSchema, Schema
from pulsar_native.schema.info import SchemaInfo
from pulsar_native.schema.registered import info_from_wire
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.service_info import ServiceInfo
from pulsar_native.stats import ClientStats, CloseReport
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.compression import check_installed

_log = get_logger("pulsar_native.client")

_Made = TypeVar("_Made")

_GRACE_SECONDS = 1.0
_EXPLAIN_SECONDS = 3.0


class ClientCore:
    """Engine side of one client."""

    def __init__(self, engine: Engine, config: ClientConfig) -> None:
        self.engine = engine
        self.config = config
        self._producer_ids = itertools.count()
        self._consumer_ids = itertools.count()
        self._watcher_ids = itertools.count()
        self._request_ids = itertools.count()
        self.memory = MemoryLimit(config.memory_limit_bytes)
        self.service = ServiceUrlProvider(engine, config)
        self.pool = ConnectionPool(engine, config, self.service)
        self.lookup = Lookup(engine, config, self.pool, self.service, self._request_ids)
        self.transactions = Transactions(self)
        self.producers: set[TopicProducer] = set()
        self.consumers: set[MultiTopicsConsumer] = set()
        self.closed = False
        # Totals of closed producers and consumers.
        self.retired: Counter[str] = Counter()
        # Held while something closed is moved from the sets above to these totals.
        self._retiring = threading.Lock()
        self._stats_clock: StatsClock | None = None
        self._instruments: Instruments | None = None

    def next_producer_id(self) -> int:
        """Return a producer id that is unique in this client."""
        return next(self._producer_ids)

    def next_consumer_id(self) -> int:
        """Return a consumer id that is unique in this client."""
        return next(self._consumer_ids)

    def next_watcher_id(self) -> int:
        """Return a watcher id that is unique in this client."""
        return next(self._watcher_ids)

    def next_request_id(self) -> int:
        """Return a request id that is unique in this client."""
        return next(self._request_ids)

    # --- statistics -------------------------------------------------------------------------------------------------

    @property
    def records(self) -> bool:
        """True while producers and consumers record statistics."""
        return self.config.stats_interval_in_seconds > 0 or self.config.meter_provider is not None

    def _telemetry(self) -> Instruments | None:
        """Return the OpenTelemetry instruments, created on first use; None without a meter provider."""
        if self._instruments is None and self.config.meter_provider is not None:
            self._instruments = instruments_of(self.config.meter_provider)
            self._instruments.add(self)
            self.pool.meter = self.lookup.meter = self._instruments
        return self._instruments

    def count_dead_letter(self, topic: TopicName, subscription_name: str) -> None:
        """Count a message of a subscription that was sent to the dead-letter topic."""
        if self._instruments is not None:
            self._instruments.dead_letter(topic, subscription_name)

    def producer_recorder(self, topic: TopicName) -> ProducerRecorder | None:
        """Return the recorder of a new producer, None when recording is off."""
        if not self.records:
            return None
        telemetry = self._telemetry()
        return ProducerRecorder(time.monotonic(), None if telemetry is None else telemetry.durations_of(topic))

    def consumer_recorder(self) -> ConsumerRecorder | None:
        """Return the recorder of a new consumer, None when recording is off."""
        if not self.records:
            return None
        return ConsumerRecorder(time.monotonic())

    def stats(self) -> ClientStats:
        """Return the client's statistics. Thread-safe."""
        return of_client(self)

    def _record(self) -> None:
        """Start logging statistics, with the first producer or consumer. Thread-safe."""
        if self._stats_clock is not None or self.config.stats_interval_in_seconds <= 0:
            return
        if not self.engine.on_loop():
            self.engine.call(self._record)
        elif not self.closed:
            self._stats_clock = StatsClock(self, self.config.stats_interval_in_seconds)

    def forget(self, handler: TopicProducer | MultiTopicsConsumer) -> None:
        """Remove a closed producer or consumer; its counts stay in the totals. Thread-safe."""
        known: set[Any] = self.producers if isinstance(handler, TopicProducer) else self.consumers
        with self._retiring:
            if handler not in known:
                return
            if self._instruments is None:
                known.discard(handler)
            else:
                self._instruments.retire(lambda: known.discard(handler), handler.children)
            for child in handler.children:
                counts = producer_counts(child) if isinstance(child, PartitionProducer) else consumer_counts(child)
                for count, number in counts.items():
                    if number:
                        self.retired[count] += number

    def retire(self, parts: list[PartitionConsumer]) -> None:
        """Add the counts of a removed topic's consumers to the totals."""
        if self._instruments is not None:
            self._instruments.retire(lambda: None, parts)
        with self._retiring:
            for part in parts:
                self.retired.update(consumer_counts(part))

    # --- creation ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise AlreadyClosed("The client is closed")
        # Before the first connection, which is measured, too.
        self._telemetry()

    async def _begin(self, is_plain: bool) -> None:
        """Check that the client is open. What is not plain is done on the loop, and so is what is measured."""
        if not is_plain or self.config.meter_provider is not None:
            await self.engine.enter_loop()
        self._check_open()

    def deadline(self) -> float:
        """Return the deadline of an operation that begins now."""
        return self.engine.loop.time() + self.config.operation_timeout_seconds

    async def partition_count(
        self, topic: TopicName, *, auto_create: bool = True, deadline: float | None = None
    ) -> int:
        """Return a topic's number of partitions, 0 for an unpartitioned topic."""
        await self._begin(True)
        if topic.is_partition:
            return 0
        until = self.deadline() if deadline is None else deadline
        return await self.lookup.partitions(topic, until, auto_create=auto_create)

    async def _looked_up(
        self, topic: TopicName, deadline: float, meanwhile: Callable[[], None]
    ) -> tuple[int, BrokerOfTopic | None]:
        """Return a topic's number of partitions, and perhaps the broker of one that has none; see the lookup's."""
        if topic.is_partition:
            return 0, None
        return await self.lookup.partitions_and_broker(topic, deadline, meanwhile)

    async def _made_for(
        self, names: list[TopicName], deadline: float, make: Callable[[dict[TopicName, int]], _Made]
    ) -> tuple[_Made, BrokerOfTopic | None]:
        """Return what `make` makes of topics and their numbers of partitions, and the broker of a single unpartitioned
        one if it has been found by the way.

        A calling thread that reads the broker's answer itself makes it meanwhile, as of a topic without partitions.
        """
        if len(names) == 1:
            (name,) = names
            early: list[_Made] = []
            count, broker = await self._looked_up(name, deadline, lambda: early.append(make({name: 0})))
            if not count:
                return early[0] if early else make({name: 0}), broker
            partitions = {name: count}
        else:
            counts = await gather(self.partition_count(name, deadline=deadline) for name in names)
            partitions = dict(zip(names, counts, strict=True))
        await self.engine.enter_loop()
        return make(partitions), None

    async def topic_partition_count(self, topic: str, *, auto_create: bool) -> int:
        """Return a topic's number of partitions; queried for a single partition, too: it may not exist."""
        await self._begin(True)
        return await self.lookup.partitions(TopicName.parse(topic), self.deadline(), auto_create=auto_create)

    async def create_producer(
        self, config: ProducerConfig, schema: Schema[Any] | None, chain: ProducerChain | None = None
    ) -> TopicProducer:
        """Create a producer on the topic, or on each of its partitions; messages are encoded with its `schema`.

        By the calling thread as far as `Engine.run_eager` allows, for a topic without partitions.
        """
        check_installed(config.compression_type)
        await self._begin(chain is None and not config.encryption_key_names)
        # One operation, however many requests it takes.
        deadline = self.deadline()
        topic = TopicName.parse(config.topic)
        schema = await self._producer_schema(topic, schema or BytesSchema())
        used_schema = schema
        producer, broker = await self._made_for(
            [topic],
            deadline,
            lambda partitions: (
                TopicProducer(self, config, topic, partitions[topic], used_schema)
                if chain is None
                else InterceptedProducer(self, config, topic, partitions[topic], used_schema, chain)
            ),
        )
        try:
            await producer.open(broker, deadline)
        except IncompatibleSchema as error:
            await self.engine.enter_loop()
            raise await self.with_both_schemas(error, topic, schema.schema_info()) from error
        self.producers.add(producer)
        self._record()
        if self.closed:
            await self.engine.enter_loop()
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
            return None  # the broker returns this for a topic without a schema, too

    async def with_both_schemas(
        self, error: IncompatibleSchema, topic: TopicName, given: SchemaInfo
    ) -> IncompatibleSchema:
        """Return the error with the topic's schema and the given one added to its message."""
        registered = None
        # The error itself matters more than its explanation, and must not wait for it.
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
        chain: ConsumerChain | None = None,
        changed: TopicsChanged | None = None,
        activity: ConsumerEvents | None = None,
    ) -> MultiTopicsConsumer:
        """Subscribe to one or several topics, or to those of a pattern; `changed` is called when these change.

        By the calling thread as far as `Engine.run_eager` allows, for one topic without partitions.
        """
        await self._begin(chain is None and activity is None and _is_plain(topics, config))
        # One operation, however many requests it takes.
        deadline = self.deadline()
        pattern = topics if isinstance(topics, TopicPattern) else None
        names: list[TopicName] = []
        if not isinstance(topics, TopicPattern):
            names = _checked_names(topics, config)
            if config.enable_retry:
                names, config = await with_retry_topic(self, names, config)
        elif config.enable_retry:
            raise InvalidConfiguration(
                "enable_retry needs topics that are named: a pattern has no retry topic of its own"
            )

        def make(partitions: dict[TopicName, int], first: FirstSubscribe | None) -> MultiTopicsConsumer:
            if chain is not None:
                return InterceptedConsumer(self, config, partitions, schema, wire_schema, chain)
            return MultiTopicsConsumer(self, config, partitions, schema, wire_schema, first)

        build = partial(FirstSubscribe, self, config, wire_schema=wire_schema) if chain is None else None
        consumer, broker = await self._consumer_of(names, deadline, build, make)
        consumer.activity = activity
        if pattern is not None:
            consumer.pattern = PatternTopicsWatcher(self, consumer.subscriptions, pattern, changed)
        try:
            await consumer.open(broker, deadline)
        except IncompatibleSchema as error:
            if error.topic is None:
                raise
            await self.engine.enter_loop()
            raise await self.with_both_schemas(error, TopicName.parse(error.topic), schema.info) from error
        self.consumers.add(consumer)
        self._record()
        if self.closed:
            await self.engine.enter_loop()
            consumer.abandon()
            raise AlreadyClosed("The client was closed meanwhile")
        return consumer

    async def _consumer_of(
        self,
        names: list[TopicName],
        deadline: float,
        build: Callable[[TopicName], FirstSubscribe] | None,
        make: Callable[[dict[TopicName, int], FirstSubscribe | None], MultiTopicsConsumer],
    ) -> tuple[MultiTopicsConsumer, BrokerOfTopic | None]:
        """Return the consumer of topics, and the broker of a single unpartitioned one if it has been found by the way.

        A calling thread that reads the broker's answers itself sends the first request of such a topic, where `build`
        makes one, and makes the consumer while the broker works on it.
        """
        if build is None or len(names) != 1:
            return await self._made_for(names, deadline, lambda partitions: make(partitions, None))
        (topic,) = names
        built: list[FirstSubscribe] = []
        count, broker = await self._looked_up(topic, deadline, lambda: built.append(build(topic)))
        if count:
            await self.engine.enter_loop()
            return make({topic: count}, None), None
        first = built[0] if built else None
        connection = None if first is None or broker is None else self.pool.only_connection(*broker)
        if first is None or connection is None or self.engine.on_loop():
            return make({topic: 0}, first), broker
        made: list[MultiTopicsConsumer] = []

        def make_registered() -> None:
            made.append(make({topic: 0}, first))
            connection.add_consumer(first.consumer_id, made[0].subscriptions.children[0])

        first.send(connection, make_registered)
        return made[0] if made else make({topic: 0}, first), broker

    def discard(self, made: TopicProducer | MultiTopicsConsumer) -> None:
        """Close what was created for a caller who was interrupted meanwhile, and does not get it. On the loop."""

        async def closed() -> None:
            with contextlib.suppress(PulsarException):
                await made.close()

        self.engine.spawn(closed())

    async def new_transaction(self, timeout_seconds: float) -> TransactionWork:
        """Begin a transaction."""
        self._check_open()
        return await self.transactions.begin(timeout_seconds)

    async def topic_partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions, or the topic itself when it is unpartitioned."""
        name = TopicName.parse(topic)
        count = await self.partition_count(name)
        return [name.with_partition(index).full for index in range(count)] if count else [name.full]

    async def topics_of_namespace(self, namespace: str, mode: RegexSubscriptionMode) -> list[str]:
        """Return the names of a namespace's topics."""
        self._check_open()
        name = TopicName.parse(f"persistent://{namespace}/topics")
        if name.namespace != namespace:
            raise InvalidTopicName(f"A namespace is written tenant/namespace, not {namespace!r}")
        return list((await self.lookup.topics_of_namespace(namespace, mode, self.deadline())).topics)

    async def writer_schema(self, topic: str, version: bytes | None) -> SchemaInfo:
        """Return a registered schema of the topic, the latest or one version."""
        self._check_open()
        answer = await self.lookup.schema(TopicName.parse(topic).base, version, self.deadline())
        return info_from_wire(answer.schema, answer.schema_version)

    async def load_writer_schema(self, message: Message, version: bytes) -> None:
        """Fetch the schema that a message was written by for its decoder, or note that the topic has lost it."""
        decoder = message.entry.schema
        try:
            decoder.learn(version, await self.writer_schema(message.topic_name(), version))
        except TopicNotFound:
            decoder.miss(version)

    async def service_info(self) -> ServiceInfo:
        """Return the cluster in use; raises `Timeout` when its provider does not return it in time."""
        self._check_open()
        try:
            async with asyncio.timeout(self.config.operation_timeout_seconds):
                return await self.service.known()
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise Timeout("The service URL's provider did not answer within operation_timeout_seconds") from error

    async def update_service_url(self, url: str) -> None:
        """Move to another URL: all connections close, producers and consumers reconnect there by themselves."""
        await self.service_info()
        self.service.change_url(url)

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Close producers (flushing them), consumers and connections; a second call raises `AlreadyClosed`.

        Limited to `timeout` seconds, else the operation time-out. The report is logged, too. A close that is cancelled
        drops what is not sent or closed by then, as `shutdown`.
        """
        if self.closed:
            raise AlreadyClosed("The client is closed already")
        self.closed = True
        limit = self.config.operation_timeout_seconds if timeout is None else timeout
        began = self.engine.loop.time()
        producers = [asyncio.ensure_future(each.close(timeout)) for each in list(self.producers)]
        consumers = [asyncio.ensure_future(each.close(timeout, counted=True)) for each in list(self.consumers)]
        tasks: list[asyncio.Future[Any]] = [*producers, *consumers]
        is_worth_a_record = bool(tasks)
        if self.transactions.is_used:
            tasks.append(asyncio.ensure_future(self.transactions.close(limit)))
        try:
            if tasks:
                # They respect the limit themselves; one that does not fails with its closed connection.
                await asyncio.wait(tasks, timeout=limit + _GRACE_SECONDS)
            report = CloseReport(
                seconds=self.engine.loop.time() - began,
                producers=tuple(part for task in producers if _is_fine(task) for part in task.result()),
                consumers=tuple(part for task in consumers if _is_fine(task) for part in task.result()),
            )
        finally:
            # Also when the close is cancelled: a second one raises, and nothing else would end the connections.
            for task in tasks:
                task.cancel()
            ended = self.shutdown()
        if ended is not None:
            # Plug-ins and the service URL provider are the application's: they may not block the close.
            await asyncio.wait([ended], timeout=limit)
        if is_worth_a_record:
            _log.log(logging.INFO if report.complete else logging.WARNING, "The client %s", report)
        return report

    def shutdown(self) -> asyncio.Future[Any] | None:
        """Drop everything without a message to the broker; returns a future of the ends of plug-ins and of the service
        URL provider, if any.
        """
        self.closed = True
        if self._stats_clock is not None:
            self._stats_clock.stop()
        handlers: list[TopicProducer | MultiTopicsConsumer] = [*self.producers, *self.consumers]
        for handler in handlers:
            handler.abandon()
        self.transactions.abandon()
        self.pool.close()
        return self.service.close()


def _is_plain(topics: list[str] | TopicPattern, config: ConsumerConfig) -> bool:
    """Return True if the calling thread may create the consumer: one topic, and no timer or task from the first."""
    return (
        isinstance(topics, list)
        and len(topics) == 1
        and config.receiver_queue_size > 0
        and not config.auto_scaled_receiver_queue_size_enabled
        and not config.unacked_messages_timeout_ms
        and not config.start_message_id_inclusive
        and not config.enable_retry
        and config.dead_letter_policy is None
    )


def _checked_names(topics: list[str], config: ConsumerConfig) -> list[TopicName]:
    """Return the topics without duplicates; raises errors that need no broker."""
    names = list(dict.fromkeys(TopicName.parse(topic) for topic in topics))
    if not names:
        raise InvalidConfiguration("A consumer needs at least one topic")
    if config.is_read_compacted:
        for name in names:
            if not name.is_persistent:
                raise InvalidConfiguration(f"is_read_compacted needs persistent topics, and {name} is none")
    return names


def _is_fine(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
