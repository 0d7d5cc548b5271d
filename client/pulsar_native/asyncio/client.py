"""The asyncio client: runs the engine on the caller's loop and makes producers, consumers and readers."""

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
from pulsar_native.asyncio._base import Closeable
from pulsar_native.asyncio.consumer import Consumer, Reader
from pulsar_native.asyncio.producer import Producer
from pulsar_native.asyncio.table_view import TableView
from pulsar_native.asyncio.transaction import Transaction
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerEventListener,
    DeadLetterPolicy,
    KeySharedPolicy,
    Range,
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


class Client(NotPicklable):
    """Reach a Pulsar cluster from a coroutine; make producers, consumers and readers. Connects on first use.

    Not thread-safe: belongs to the loop it is first used on. Keyword arguments are those of `pulsar_native.Client`.

        async with Client("pulsar://localhost:6650") as client:
            producer = await client.create_producer("greetings")
            await producer.send(b"hello")
    """

    # Ends the going of records to a logger of the client's own.
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
        """Make a client from its description. Does not connect yet."""
        client = cls.__new__(cls)
        client._open(config)
        return client

    @property
    def config(self) -> ClientConfig:
        """The description this client was made from; picklable."""
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
        """Create a producer on a topic or on all its partitions, within the operation time-out.

        Batching is on by default here, as in the official asyncio client: many tasks then share an entry.
        """
        plan = plans.producer(locals())
        inner = await self._started().create_producer(*plan)
        return self._kept_by(Producer(inner, inner.schema))

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
        """Subscribe to a topic, to all its partitions, to several topics, or to those of a pattern.

        A pattern is a compiled one, or a str with `is_pattern_topic`; see `pulsar_native.Client.subscribe`. Within the
        operation time-out.
        """
        plan = plans.consumer(locals())
        made = self._kept_by(Consumer(await self._started().subscribe(*plan), plan.decoder))
        if plan.activity is not None:
            plan.activity.bind(made)
        return made

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
        """Read a topic, or several, from a position, without a subscription that stays.

        Over several topics or partitions the position is `MessageId.earliest` or `latest`. Within the operation
        time-out.
        """
        plan = plans.reader(locals())
        return self._kept_by(Reader(await self._started().subscribe(*plan), plan.decoder))

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
        """Make a mapping of the topic's keys to their newest values, which follows the topic.

        Returns when everything published so far is in it; waits until then. Partitions added later are joined. A topic
        that is compacted is read so; of a non-persistent one only what is published from now on is seen.
        """
        plan = plans.table_view(locals())
        view = self._kept_by(TableView(await self._started().subscribe(*plan), plan.decoder, subscription_name))
        await view._start()
        return view

    async def new_transaction(self, timeout_seconds: float = 60.0) -> Transaction:
        """Begin a transaction, which the broker aborts when it is not ended after `timeout_seconds`.

        The first one connects the client to the coordinators. Raises `OperationNotSupported` where the brokers have
        transactions off. (PIP-31; Java: newTransaction().withTransactionTimeout.)
        """
        work = await self._started().new_transaction(_validation.transaction_timeout(timeout_seconds))
        return Transaction(work, self)

    def stats(self) -> ClientStats:
        """Return the figures of all producers and consumers; see `pulsar_native.ClientStats`. Does not block."""
        return ClientStats() if self._core is None else self._core.stats()

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the topic's partitions, or the topic's own when it has none."""
        return await self._started().topic_partitions(topic)

    async def get_partition_count(self, topic: str, *, auto_create: bool = False) -> int:
        """Return how many partitions a topic has, 0 for one without; raises `TopicNotFound` when it does not exist.

        (PARTITIONED_METADATA without automatic creation.) A topic without partitions that was never loaded by a
        broker counts as not existing.
        """
        return await self._started().topic_partition_count(topic, auto_create=auto_create)

    async def get_service_info(self) -> ServiceInfo:
        """Return the cluster the client uses now; a provider may be asked for it first."""
        return await self._started().service_info()

    async def update_service_url(self, service_url: str) -> None:
        """Move to another service URL; credentials and trusted certificates stay. Returns at once.

        All connections close; producers and consumers come back at the new URL by themselves and keep what is pending,
        with its sequence ids. Raises `InvalidUrl`.
        """
        await self._started().update_service_url(service_url)

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Flush and close everything made with this client; return what was sent, what failed and what was left.

        Takes up to `timeout` seconds, else the operation time-out; what is not confirmed by then fails. With a
        `timeout`, lost connections are waited for. Raises `AlreadyClosed` when it was closed before.
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
        """Drop everything at once, without flushing and without a goodbye to the brokers. Idempotent.

        `close()` may follow, and does nothing more.
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
