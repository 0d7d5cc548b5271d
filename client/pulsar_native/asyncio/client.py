"""Client of the asyncio API: runs the engine on the caller's loop and creates producers, consumers and readers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from pulsar_native import _validation
from pulsar_native._log_target import ConsoleLogger, FileLogger, check_log_options, send_records_to
from pulsar_native._message_builder import intercepted_fields
from pulsar_native._not_picklable import NotPicklable
from pulsar_native._option_docs import option_docs
from pulsar_native._options import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    TableViewOptions,
    check_names,
)
from pulsar_native._type_vars import S
from pulsar_native.asyncio._base import Closeable
from pulsar_native.asyncio.consumer import Consumer, Reader
from pulsar_native.asyncio.producer import Producer
from pulsar_native.asyncio.table_view import TableView
from pulsar_native.asyncio.transaction import Transaction
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerConfig,
    ConsumerEventListener,
    DeadLetterPolicy,
    KeySharedPolicy,
    ProducerConfig,
    ReaderConfig,
    Router,
    TopicsChangedListener,
)
from pulsar_native.crypto import KeyReader
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.consumer_events import ConsumerEvents
from pulsar_native.engine.consumer.pattern_multi_topics_consumer import topics_told_on_loop
from pulsar_native.engine.interceptor_chain import ConsumerChain, ProducerChain
from pulsar_native.engine.loop import Engine, check_generation, check_loop, generation
from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from pulsar_native.exceptions import AlreadyClosed, OperationNotSupported
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message_id import MessageId
from pulsar_native.schema import Schema, wire_schema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.service_info import Credentials, ServiceInfo, ServiceSource
from pulsar_native.stats import ClientStats, CloseReport
from pulsar_native.topic import TopicName

_Part = TypeVar("_Part", bound=Closeable)


@option_docs(ClientConfig, options=ClientOptions)
class Client(NotPicklable):
    """Client of one Pulsar cluster for coroutines: creates producers, consumers and readers. Connects on first use.

    Not thread-safe: it belongs to the event loop it is first used on, and raises `OperationNotSupported` on another
    one. Options are those of `pulsar_native.Client`, by name. Raises `InvalidConfiguration` for an unknown option and
    for a value of another type or out of range, `InvalidUrl` for a malformed service URL.

        async with Client("pulsar://localhost:6650") as client:
            producer = await client.create_producer("greetings")
            await producer.send(b"hello")

    :param logger: a `logging.Logger`, `ConsoleLogger` or `FileLogger` that gets the package's log records instead of
        the handlers of `pulsar_native`. Default None.
    :param log_conf_file_path: accepted for compatibility, without effect. Default None.
    """

    # Ends the forwarding of log records to this client's own logger.
    _log_target: weakref.finalize[..., Any] | None

    def __init__(
        self,
        service_url: ServiceSource,
        *,
        authentication: Credentials | None = None,
        operation_timeout_seconds: float = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: logging.Logger | ConsoleLogger | FileLogger | None = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        check_names(Client, options, ClientOptions.__optional_keys__)
        check_log_options(logger, log_conf_file_path)
        config = ClientConfig(
            service_url=service_url,
            authentication=authentication,
            operation_timeout_seconds=operation_timeout_seconds,
            io_threads=io_threads,
            message_listener_threads=message_listener_threads,
            concurrent_lookup_requests=concurrent_lookup_requests,
            stats_interval_in_seconds=stats_interval_in_seconds,
            use_tls=use_tls,
            tls_trust_certs_file_path=tls_trust_certs_file_path,
            tls_allow_insecure_connection=tls_allow_insecure_connection,
            tls_validate_hostname=tls_validate_hostname,
            connection_timeout_ms=connection_timeout_ms,
            listener_name=listener_name,
            tls_private_key_file_path=tls_private_key_file_path,
            tls_certificate_file_path=tls_certificate_file_path,
            **options,
        )
        self._open(config)
        if logger is not None:
            self._log_target = weakref.finalize(self, send_records_to(logger))

    def _open(self, config: ClientConfig) -> None:
        self._config = config
        self._generation = generation()
        self._core: ClientCore | None = None
        self._closed = self._is_shut_down = False
        self._log_target = None
        self._producers: weakref.WeakSet[Producer[Any]] = weakref.WeakSet()

    def _described(self) -> str:
        return str(self._config.service_url)

    @classmethod
    def from_config(cls, config: ClientConfig) -> Self:
        """Return a client made from its configuration. Does not connect yet.

        :param config: the configuration; picklable.
        """
        client = cls.__new__(cls)
        client._open(config)
        return client

    @property
    def config(self) -> ClientConfig:
        """Configuration of this client; picklable."""
        return self._config

    def _is_of_parent(self) -> bool:
        """Return whether the client was used before the process forked; one that was not is the child's own."""
        return self._core is not None and self._generation != generation()

    def _check_process(self) -> None:
        """Raise for a client that was used before the process forked; one that was not is the child's own."""
        if self._core is None:
            self._generation = generation()
        check_generation(self._generation)

    def _started(self) -> ClientCore:
        self._check_process()
        if self._closed:
            raise AlreadyClosed("The client is closed")
        loop = asyncio.get_running_loop()
        if self._core is None:
            self._core = ClientCore(Engine(loop, threading.get_ident()), self._config)
            # Else the loop would keep the connections of a client that is dropped without close.
            weakref.finalize(self, _drop, self._core).atexit = False
        elif self._core.engine.loop is not loop:
            raise OperationNotSupported("This client belongs to another event loop; create one for each loop")
        return self._core

    def _kept_by(self, part: _Part) -> _Part:
        part._client = self
        return part

    @option_docs(ProducerConfig, options=ProducerOptions)
    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema[S] | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: Mapping[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: KeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Router | None = None,
        *,
        encryption_keys: Sequence[str] | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        **options: Unpack[ProducerOptions],
    ) -> Producer[S]:
        """Create a producer on a topic or on all its partitions. Waits up to the operation time-out.

        Raises `InvalidConfiguration` for an option out of range, `TopicNotFound`, `ProducerBusy`, `ProducerFenced`,
        `IncompatibleSchema`, `AuthorizationError`, `Timeout` and other subclasses of `PulsarException`.

        :param schema: the schema of the contents, registered at the topic. Default None: bytes.
        :param batching_enabled: True puts messages of several tasks into one entry. Default True, as in the official
            asyncio client; the sync API's is False.
        :param interceptors: `ProducerInterceptor` objects, called in this order. Default none.
        """
        check_names(Client.create_producer, options, ProducerOptions.__optional_keys__)
        config = ProducerConfig(
            topic=topic,
            producer_name=producer_name,
            initial_sequence_id=initial_sequence_id,
            send_timeout_millis=send_timeout_millis,
            compression_type=compression_type,
            max_pending_messages=max_pending_messages,
            max_pending_messages_across_partitions=max_pending_messages_across_partitions,
            block_if_queue_full=block_if_queue_full,
            batching_enabled=batching_enabled,
            batching_max_messages=batching_max_messages,
            batching_max_allowed_size_in_bytes=batching_max_allowed_size_in_bytes,
            batching_max_publish_delay_ms=batching_max_publish_delay_ms,
            chunking_enabled=chunking_enabled,
            message_routing_mode=message_routing_mode,
            lazy_start_partitioned_producers=lazy_start_partitioned_producers,
            properties=properties or {},
            batching_type=batching_type,
            encryption_key=encryption_key,
            crypto_key_reader=crypto_key_reader,
            access_mode=access_mode,
            message_router=message_router,
            encryption_keys=encryption_keys or (),
            **options,
        )
        chain = ProducerChain(interceptors, intercepted_fields) if interceptors else None
        used_schema = _validation.checked_schema(schema)
        inner = await self._started().create_producer(config, used_schema, chain)
        producer = self._kept_by(Producer(inner, inner.schema))
        self._producers.add(producer)
        return producer

    @option_docs(ConsumerConfig, options=ConsumerOptions)
    async def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema[S] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: KeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: BatchReceivePolicy | None = None,
        key_shared_policy: KeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: DeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_pattern_topic: bool = False,
        *,
        pattern_auto_discovery_period: float = 60,
        subscription_properties: Mapping[str, str] | None = None,
        topics_changed_listener: TopicsChangedListener | None = None,
        consumer_event_listener: ConsumerEventListener | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[S]:
        """Subscribe to a topic, all its partitions, several topics, or a pattern. Waits up to the operation time-out.

        Each call creates a consumer. A pattern names tenant and namespace literally and matches whole topic names,
        without their domain. Topics created and deleted later are subscribed to and left: at once where the broker
        notifies the client, else every `pattern_auto_discovery_period` seconds. A topic found later starts at
        `initial_position` too: with Latest, messages published before are not received.

        Raises `InvalidConfiguration` for an option out of range, `ConsumerBusy`, `ConsumerAssignError`,
        `TopicNotFound`, `IncompatibleSchema`, `AuthorizationError`, `Timeout` and other subclasses of
        `PulsarException`.

        :param topic: a topic, a list of topics, or a pattern: made by `re.compile`, or a str with `is_pattern_topic`.
        :param schema: the schema that decodes the values. Default None: bytes.
        :param broker_consumer_stats_cache_time_ms: accepted for compatibility, without effect: the broker is asked each
            time. Default 30000.
        :param is_pattern_topic: True makes a str as `topic` a pattern. Default False.
        :param topics_changed_listener: a `TopicsChangedListener`; patterns only. Default None.
        :param consumer_event_listener: a `ConsumerEventListener`; Failover subscriptions only. Default None.
        :param interceptors: `ConsumerInterceptor` objects, called in this order. Default none.
        """
        check_names(Client.subscribe, options, ConsumerOptions.__optional_keys__)
        config = ConsumerConfig(
            subscription_name=subscription_name,
            consumer_type=consumer_type,
            receiver_queue_size=receiver_queue_size,
            max_total_receiver_queue_size_across_partitions=max_total_receiver_queue_size_across_partitions,
            consumer_name=consumer_name,
            unacked_messages_timeout_ms=unacked_messages_timeout_ms,
            negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
            is_read_compacted=is_read_compacted,
            properties=properties or {},
            pattern_auto_discovery_period=pattern_auto_discovery_period,
            initial_position=initial_position,
            crypto_key_reader=crypto_key_reader,
            replicate_subscription_state_enabled=replicate_subscription_state_enabled,
            max_pending_chunked_message=max_pending_chunked_message,
            auto_ack_oldest_chunked_message_on_queue_full=auto_ack_oldest_chunked_message_on_queue_full,
            start_message_id_inclusive=start_message_id_inclusive,
            batch_receive_policy=batch_receive_policy or ConsumerConfig.batch_receive_policy,
            key_shared_policy=key_shared_policy,
            batch_index_ack_enabled=batch_index_ack_enabled,
            regex_subscription_mode=regex_subscription_mode,
            dead_letter_policy=dead_letter_policy,
            crypto_failure_action=crypto_failure_action,
            subscription_properties=subscription_properties or {},
            **options,
        )
        _validation.check_stats_cache_time(broker_consumer_stats_cache_time_ms)
        _validation.check_event_listener(consumer_event_listener, config)
        topics = _validation.checked_topics(
            topic, config, is_pattern=is_pattern_topic, listener=topics_changed_listener
        )
        chain = ConsumerChain(interceptors, reads=False) if interceptors else None
        changed = None if topics_changed_listener is None else topics_told_on_loop(topics_changed_listener)
        events = None if consumer_event_listener is None else ConsumerEvents(consumer_event_listener, None)
        used_schema = _validation.checked_schema(schema)
        _validation.warn_of_unused_policy(config)
        decoder = VersionedDecoder(used_schema)
        inner = await self._started().subscribe(
            topics, config, decoder, wire_schema(used_schema), chain, changed, events
        )
        consumer = self._kept_by(Consumer(inner, decoder))
        if events is not None:
            events.bind(consumer)
        return consumer

    @option_docs(ReaderConfig, options=ReaderOptions)
    async def create_reader(
        self,
        topic: str | list[str],
        start_message_id: MessageId,
        schema: Schema[S] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        interceptors: Sequence[ReaderInterceptor] = (),
        **options: Unpack[ReaderOptions],
    ) -> Reader[S]:
        """Create a reader of one or several topics. Waits up to the operation time-out.

        A reader is an exclusive consumer of a non-durable subscription: nothing stays at the broker. Raises
        `InvalidConfiguration` for an option out of range, `TopicNotFound`, `IncompatibleSchema`, `AuthorizationError`,
        `Timeout` and other subclasses of `PulsarException`.

        :param schema: the schema that decodes the values. Default None: bytes.
        :param interceptors: `ReaderInterceptor` objects, called in this order. Default none.
        """
        check_names(Client.create_reader, options, ReaderOptions.__optional_keys__)
        config = ReaderConfig(
            topic=topic,
            start_message_id=start_message_id,
            receiver_queue_size=receiver_queue_size,
            reader_name=reader_name,
            subscription_role_prefix=subscription_role_prefix,
            is_read_compacted=is_read_compacted,
            crypto_key_reader=crypto_key_reader,
            start_message_id_inclusive=start_message_id_inclusive,
            crypto_failure_action=crypto_failure_action,
            **options,
        )
        consumer_config = config.consumer_config()
        chain = ConsumerChain(interceptors, reads=True) if interceptors else None
        used_schema = _validation.checked_schema(schema)
        decoder = VersionedDecoder(used_schema)
        inner = await self._started().subscribe(
            config.topics, consumer_config, decoder, wire_schema(used_schema), chain
        )
        return self._kept_by(Reader(inner, decoder))

    @option_docs(ReaderConfig, options=TableViewOptions)
    async def create_table_view(
        self,
        topic: str,
        subscription_name: str | None = None,
        schema: Schema[S] | None = None,
        **options: Unpack[TableViewOptions],
    ) -> TableView[S]:
        """Create a table view: a mapping of the topic's keys to their newest values, updated while it is open.

        Waits until the table has everything published so far. Partitions added later are included. The compacted topic
        is read; of a non-persistent topic, only messages published from now on are. A message that cannot be decrypted
        is left out, with an ERROR in the log: its key keeps the value before. Raises as `create_reader` does.

        :param topic: the topic.
        :param subscription_name: name of the non-durable subscription. Default None: a generated one.
        :param schema: the schema that decodes the values. Default None: bytes.
        """
        check_names(Client.create_table_view, options, TableViewOptions.__optional_keys__)
        config = ReaderConfig(
            topic=topic,
            start_message_id=MessageId.earliest,
            subscription_name=subscription_name,
            is_read_compacted=TopicName.parse(topic).is_persistent,
            **options,
        )
        consumer_config = config.consumer_config()
        used_schema = _validation.checked_schema(schema)
        decoder = VersionedDecoder(used_schema)
        inner = await self._started().subscribe([topic], consumer_config, decoder, wire_schema(used_schema))
        view: TableView[S] = TableView(inner, decoder, subscription_name)
        self._kept_by(view)
        await view._start()
        return view

    async def new_transaction(self, timeout_seconds: float = 60.0) -> Transaction:
        """Begin a transaction (PIP-31). Waits up to the operation time-out.

        The first transaction of a client connects it to the transaction coordinators. Raises `OperationNotSupported`
        if transactions are disabled at the brokers. (Java: newTransaction().withTransactionTimeout.)

        :param timeout_seconds: seconds after which the broker aborts the transaction unless it has ended, at least
            0.001. Default 60.
        """
        work = await self._started().new_transaction(_validation.transaction_timeout(timeout_seconds))
        return Transaction(work, self)

    def stats(self) -> ClientStats:
        """Return statistics of all producers and consumers. Does not block."""
        self._check_process()
        return ClientStats() if self._core is None else self._core.stats()

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of the topic's partitions, or its own name if it has none.

        Waits up to the operation time-out. Raises `InvalidTopicName`, `AuthorizationError`, `Timeout`.

        :param topic: the topic.
        """
        return await self._started().topic_partitions(topic)

    async def get_partition_count(self, topic: str, *, auto_create: bool = False) -> int:
        """Return the number of partitions of a topic, 0 for a topic without partitions.

        Waits up to the operation time-out. Raises `TopicNotFound` if the topic does not exist, which includes a
        non-persistent topic that no broker has loaded, unless `auto_create` is set. (PARTITIONED_METADATA; PIP-344.)

        :param topic: the topic.
        :param auto_create: True lets the broker create the topic if its policy allows that. Default False.
        """
        return await self._started().topic_partition_count(topic, auto_create=auto_create)

    async def get_topics_of_namespace(
        self, namespace: str, mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    ) -> list[str]:
        """Return the full names of a namespace's topics, each partition by its own name; no system topics.

        Waits up to the operation time-out. Raises `InvalidTopicName` for a wrong name, `AuthorizationError`, `Timeout`.
        (GET_TOPICS_OF_NAMESPACE.)

        :param namespace: the namespace, as `tenant/namespace`.
        :param mode: kinds of topics, as for a subscription to a pattern. Default `PersistentOnly`.
        """
        return await self._started().topics_of_namespace(namespace, mode)

    async def get_service_info(self) -> ServiceInfo:
        """Return the cluster in use. Waits only if a provider must be called first."""
        return await self._started().service_info()

    async def update_service_url(self, service_url: str) -> None:
        """Switch to another service URL; credentials and trusted certificates stay.

        All connections are closed; producers and consumers reconnect at the new URL, which is not waited for, and keep
        pending messages with their sequence ids. Raises `InvalidUrl`, and `Timeout` if a service URL provider is still
        to be called and does not return within the operation time-out.

        :param service_url: the new URL.
        """
        await self._started().update_service_url(service_url)

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Flush and close all producers, consumers and readers of this client, then the client.

        Returns the number of messages and acknowledgements sent, failed and left; messages without a receipt by then
        fail. When it is cancelled, the client ends as with `shutdown()`. Raises `AlreadyClosed` if the client was
        closed before, `OperationNotSupported` on another event loop.

        :param timeout: limit in seconds, within which lost connections are also waited for. Default None: the operation
            time-out, without waiting for lost connections, and as much again for messages that wait for capacity.
        """
        limit = _validation.checked_timeout(timeout)
        self._check_process()
        if self._is_shut_down:
            return CloseReport()
        if self._closed:
            raise AlreadyClosed("The client is closed already")
        core = self._core
        if core is not None:
            check_loop(self._generation, core.engine.loop)
        self._closed = True
        try:
            return CloseReport() if core is None else await self._close(core, limit)
        finally:
            self._end_log_target()

    async def _close(self, core: ClientCore, limit: float | None) -> CloseReport:
        counts = {each._waiting: each._waiting.counts() for each in self._producers if each._waiting.lanes}
        if not counts:
            return await core.close(limit)
        began = core.engine.loop.time()
        deadline = began + (self._config.operation_timeout_seconds if limit is None else limit)
        try:
            await asyncio.gather(*(each.before_close(deadline, waits_for_lost=limit is not None) for each in counts))
        except BaseException:
            core.shutdown()
            raise
        report = await core.close(None if limit is None else max(0.0, deadline - core.engine.loop.time()))
        parts = report.producers
        for waiting, before in counts.items():
            parts = waiting.in_report(parts, before)
        return dataclasses.replace(report, seconds=core.engine.loop.time() - began, producers=parts)

    def shutdown(self) -> None:
        """Close all connections at once, without flushing and without closing commands. Idempotent.

        A later `close()` has no effect.
        """
        self._check_process()
        if self._closed:
            return
        self._closed = self._is_shut_down = True
        if self._core is not None:
            self._core.shutdown()
        self._end_log_target()

    def _end_log_target(self) -> None:
        if self._log_target is not None:
            self._log_target()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A child that was forked in the block has nothing to close, and its own exception or exit goes on.
        if not self._closed and not self._is_of_parent():
            await self.close()


def _drop(core: ClientCore) -> None:
    """End a client that was garbage-collected: runs in any thread, so it only leaves word for the loop."""
    if core.engine.generation == generation():
        core.engine.call_soon(core.shutdown)
