"""Client of the asyncio API: runs the engine on the caller's loop and creates producers, consumers and readers."""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from pulsar_native import _validation, plans
from pulsar_native._log_target import check_log_options, send_records_to
from pulsar_native._not_picklable import NotPicklable
from pulsar_native._option_docs import option_docs
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
    Range,
    ReaderConfig,
    RedeliveryBackoff,
    Router,
    TopicsChangedListener,
)
from pulsar_native.crypto import KeyReader
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.loop import Engine, check_generation, generation
from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerCryptoFailureAction,
    RegexSubscriptionMode,
)
from pulsar_native.exceptions import AlreadyClosed, OperationNotSupported
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message_id import MessageId
from pulsar_native.schema import Schema
from pulsar_native.service_info import ServiceInfo, ServiceSource
from pulsar_native.stats import ClientStats, CloseReport

_Part = TypeVar("_Part", bound=Closeable)


@option_docs(ClientConfig)
class Client(NotPicklable):
    """Client of one Pulsar cluster for coroutines: creates producers, consumers and readers. Connects on first use.

    Not thread-safe: it belongs to the event loop it is first used on, and raises `OperationNotSupported` on another
    one. Options are those of `pulsar_native.Client`. Raises `InvalidConfiguration` for an unknown option and for a
    value of another type or out of range, `InvalidUrl` for a malformed service URL.

        async with Client("pulsar://localhost:6650") as client:
            producer = await client.create_producer("greetings")
            await producer.send(b"hello")

    :param logger: a `logging.Logger`, `ConsoleLogger` or `FileLogger` that gets the package's log records instead of
        the handlers of `pulsar_native`. Default None.
    :param log_conf_file_path: accepted for compatibility, without effect. Default None.
    """

    # Ends the forwarding of log records to this client's own logger.
    _log_target: weakref.finalize[..., Any] | None

    def __init__(self, service_url: ServiceSource, **options: Any) -> None:
        logger, log_conf_file_path = options.pop("logger", None), options.pop("log_conf_file_path", None)
        check_log_options(logger, log_conf_file_path)
        self._open(ClientConfig.from_mapping({"service_url": service_url, **options}))
        if logger is not None:
            self._log_target = weakref.finalize(self, send_records_to(logger))

    def _open(self, config: ClientConfig) -> None:
        self._config = config
        self._generation = generation()
        self._core: ClientCore | None = None
        self._closed = self._is_shut_down = False
        self._log_target = None

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

    def _started(self) -> ClientCore:
        check_generation(self._generation)
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

    @option_docs(ProducerConfig)
    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema[Any] | None = None,
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
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
        compression_min_msg_body_size: int = 0,
        chunk_max_message_size: int = -1,
        encryption_keys: Sequence[str] | None = None,
        crypto_failure_action: ProducerCryptoFailureAction = ProducerCryptoFailureAction.FAIL,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: float = 60,
        interceptors: Sequence[ProducerInterceptor] = (),
    ) -> Producer:
        """Create a producer on a topic or on all its partitions. Waits up to the operation time-out.

        Raises `InvalidConfiguration` for an option out of range, `TopicNotFound`, `ProducerBusy`, `ProducerFenced`,
        `IncompatibleSchema`, `AuthorizationError`, `Timeout` and other subclasses of `PulsarException`.

        :param schema: the schema of the contents, registered at the topic. Default None: bytes.
        :param batching_enabled: True puts messages of several tasks into one entry. Default True, as in the official
            asyncio client; the sync API's is False.
        :param interceptors: `ProducerInterceptor` objects, called in this order. Default none.
        """
        plan = plans.producer(locals())
        inner = await self._started().create_producer(*plan)
        return self._kept_by(Producer(inner, inner.schema))

    @option_docs(ConsumerConfig)
    async def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema[Any] | None = None,
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
        acknowledgment_group_time_ms: int = 100,
        max_acknowledgment_group_size: int = 1000,
        ack_receipt_enabled: bool = False,
        unacked_messages_tick_ms: int = 1000,
        ack_timeout_redelivery_backoff: RedeliveryBackoff | None = None,
        negative_ack_redelivery_backoff: RedeliveryBackoff | None = None,
        negative_ack_redelivery_delay_precision: int = 8,
        enable_retry: bool = False,
        priority_level: int = 0,
        subscription_properties: Mapping[str, str] | None = None,
        expire_time_of_incomplete_chunked_message_ms: int = 60_000,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: float = 60,
        auto_scaled_receiver_queue_size_enabled: bool = False,
        topics_changed_listener: TopicsChangedListener | None = None,
        consumer_event_listener: ConsumerEventListener | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
    ) -> Consumer:
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
        plan = plans.consumer(locals())
        made = self._kept_by(Consumer(await self._started().subscribe(*plan), plan.decoder))
        if plan.activity is not None:
            plan.activity.bind(made)
        return made

    @option_docs(ReaderConfig)
    async def create_reader(
        self,
        topic: str | list[str],
        start_message_id: MessageId,
        schema: Schema[Any] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        subscription_name: str | None = None,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: float = 60,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        expire_time_of_incomplete_chunked_message_ms: int = 60_000,
        key_hash_range: Sequence[Range] | None = None,
        interceptors: Sequence[ReaderInterceptor] = (),
    ) -> Reader:
        """Create a reader of one or several topics. Waits up to the operation time-out.

        A reader is an exclusive consumer of a non-durable subscription: nothing stays at the broker. Raises
        `InvalidConfiguration` for an option out of range, `TopicNotFound`, `IncompatibleSchema`, `AuthorizationError`,
        `Timeout` and other subclasses of `PulsarException`.

        :param schema: the schema that decodes the values. Default None: bytes.
        :param interceptors: `ReaderInterceptor` objects, called in this order. Default none.
        """
        plan = plans.reader(locals())
        return self._kept_by(Reader(await self._started().subscribe(*plan), plan.decoder))

    @option_docs(ReaderConfig)
    async def create_table_view(
        self,
        topic: str,
        subscription_name: str | None = None,
        schema: Schema[Any] | None = None,
        *,
        auto_update_partitions_interval_seconds: float = 60,
        crypto_key_reader: KeyReader | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> TableView:
        """Create a table view: a mapping of the topic's keys to their newest values, updated while it is open.

        Waits until the table has everything published so far. Partitions added later are included. The compacted topic
        is read; of a non-persistent topic, only messages published from now on are. Raises as `create_reader` does.

        :param topic: the topic.
        :param subscription_name: name of the non-durable subscription. Default None: a generated one.
        :param schema: the schema that decodes the values. Default None: bytes.
        """
        plan = plans.table_view(locals())
        view = self._kept_by(TableView(await self._started().subscribe(*plan), plan.decoder, subscription_name))
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
        return ClientStats() if self._core is None else self._core.stats()

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of the topic's partitions, or its own name if it has none.

        Waits up to the operation time-out. Raises `InvalidTopicName`, `AuthorizationError`, `Timeout`.

        :param topic: the topic.
        """
        return await self._started().topic_partitions(topic)

    async def get_partition_count(self, topic: str, *, auto_create: bool = False) -> int:
        """Return the number of partitions of a topic, 0 for a topic without partitions.

        Waits up to the operation time-out. Raises `TopicNotFound` if the topic does not exist, which includes a topic
        without partitions that no broker has loaded yet, unless `auto_create` is set. (PARTITIONED_METADATA; PIP-344.)

        :param topic: the topic.
        :param auto_create: True lets the broker create the topic if its policy allows that. Default False.
        """
        return await self._started().topic_partition_count(topic, auto_create=auto_create)

    async def get_service_info(self) -> ServiceInfo:
        """Return the cluster in use. Waits only if a provider must be called first."""
        return await self._started().service_info()

    async def update_service_url(self, service_url: str) -> None:
        """Switch to another service URL; credentials and trusted certificates stay. Does not wait.

        All connections are closed; producers and consumers reconnect at the new URL and keep pending messages with
        their sequence ids. Raises `InvalidUrl`.

        :param service_url: the new URL.
        """
        await self._started().update_service_url(service_url)

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Flush and close all producers, consumers and readers of this client, then the client.

        Returns the number of messages and acknowledgements sent, failed and left; messages without a receipt by then
        fail. Raises `AlreadyClosed` if the client was closed before.

        :param timeout: limit in seconds, within which lost connections are also waited for. Default None: the operation
            time-out, without waiting for lost connections.
        """
        limit = _validation.checked_timeout(timeout)
        check_generation(self._generation)
        if self._is_shut_down:
            return CloseReport()
        if self._closed:
            raise AlreadyClosed("The client is closed already")
        self._closed = True
        try:
            return CloseReport() if self._core is None else await self._core.close(limit)
        finally:
            self._end_log_target()

    def shutdown(self) -> None:
        """Close all connections at once, without flushing and without closing commands. Idempotent.

        A later `close()` has no effect.
        """
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
        if not self._closed:
            await self.close()


def _drop(core: ClientCore) -> None:
    """End a client that was garbage-collected: runs in any thread, so it only leaves word for the loop."""
    if core.engine.generation == generation():
        core.engine.call_soon(core.shutdown)
