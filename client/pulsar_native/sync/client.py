"""The blocking client: holds the engine's thread while it is open and makes producers, consumers and readers."""

from __future__ import annotations

import logging
import re
import ssl
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from pulsar_native import _validation, plans
from pulsar_native._log_target import ConsoleLogger, FileLogger, check_log_options, send_records_to
from pulsar_native._not_picklable import NotPicklable
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
from pulsar_native.engine.consumer.listener import ListenerThreads
from pulsar_native.engine.loop import (
    acquire_thread_engine,
    check_generation,
    generation,
    release_thread_engine,
)
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
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema import Schema
from pulsar_native.service_info import Credentials, ServiceInfo, ServiceSource
from pulsar_native.stats import ClientStats, CloseReport
from pulsar_native.sync.consumer import Consumer, MessageListener, Reader
from pulsar_native.sync.producer import Producer
from pulsar_native.sync.table_view import TableView
from pulsar_native.sync.transaction import Transaction

# How long the end of the engine's thread is waited for; a resolver of names that does not answer may hold it up.
_JOIN_SECONDS = 5.0


class Client(NotPicklable):
    """Reach a Pulsar cluster; make producers, consumers and readers. Connects on first use.

    Thread-safe. Works in the process that made it: after a fork, calls raise `AlreadyClosed` at once. Arguments are the
    official client's, with their units and defaults; the keyword-only ones are additions named after the Java client's.
    `service_url` is pulsar:// or pulsar+ssl:// (http(s):// for lookups over HTTP) with one or several hosts, or
    what supplies it: a `ServiceInfoProvider`, an `AutoClusterFailover`, a `PolledServiceInfo` or a callable.

        with Client("pulsar://localhost:6650") as client:
            client.create_producer("greetings").send(b"hello")
    """

    # Ends the going of records to a logger of the client's own.
    _log_target: weakref.finalize[..., Any] | None

    def __init__(
        self,
        service_url: ServiceSource,
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
        *,
        connections_per_broker: int = 1,
        keep_alive_interval_seconds: float = 30,
        max_lookup_redirects: int = 20,
        max_lookup_requests: int = 50_000,
        max_number_of_rejected_request_per_connection: int = 50,
        connection_max_idle_seconds: float = 60,
        service_url_quarantine_init_duration_seconds: float = 60,
        service_url_quarantine_max_duration_seconds: float = 86_400,
        tls_context: ssl.SSLContext | None = None,
        memory_limit_bytes: int = 0,
        starting_backoff_interval_ms: int = 100,
        max_backoff_interval_ms: int = 60_000,
        meter_provider: object = None,
    ) -> None:
        check_log_options(logger, log_conf_file_path)
        self._open(plans.client_config(locals()))
        if isinstance(logger, logging.Logger | ConsoleLogger | FileLogger):
            self._log_target = weakref.finalize(self, send_records_to(logger))

    def _open(self, config: ClientConfig) -> None:
        self._config = config
        self._generation = generation()
        self._lock = threading.Lock()
        self._core: ClientCore | None = None
        self._closed = self._is_shut_down = False
        self._listeners = ListenerThreads(config.message_listener_threads)
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._log_target = None

    def _described(self) -> str:
        return str(self._config.service_url)

    @classmethod
    def from_config(cls, config: ClientConfig) -> Self:
        """Make a client from its description, for instance in another process. Does not connect yet."""
        client = cls.__new__(cls)
        client._open(config)
        return client

    @property
    def config(self) -> ClientConfig:
        """The description this client was made from; picklable."""
        return self._config

    def _started(self) -> ClientCore:
        check_generation(self._generation)
        with self._lock:
            if self._closed:
                raise AlreadyClosed("The client is closed")
            if self._core is None:
                engine = acquire_thread_engine()
                self._core = ClientCore(engine, self._config)
                # A client that is dropped without close must not keep the engine's thread alive.
                self._finalizer = weakref.finalize(self, _drop, self._core, self._listeners)
            return self._core

    def create_producer(
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
        batching_enabled: bool = False,
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
        """Create a producer on a topic or on all its partitions. Blocks up to the operation time-out.

        Raises `TopicNotFound`, `ProducerBusy`, `IncompatibleSchema`, `AuthorizationError`, `Timeout` and others.
        """
        plan = plans.producer(locals())
        core = self._started()
        inner = core.engine.run(core.create_producer(*plan))
        return Producer(self, inner, inner.schema)

    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema[Any] | None = None,
        message_listener: MessageListener | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
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
        *,
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
        """Subscribe to a topic, to all its partitions, to several topics, or to those of a pattern (`re.compile`).

        A pattern names tenant and namespace literally and matches whole topic names, without their domain; topics that
        come and go are followed, at once where the broker tells of them, else every `pattern_auto_discovery_period`
        seconds. A topic found later is subscribed to at `initial_position`, too: with Latest, what was published before
        is not received. Subscribing twice makes two consumers. Blocks up to the operation time-out.

        `receiver_queue_size` of 0 has each message asked for by a `receive` that waits for it (one topic without
        partitions, no batch_receive). With `auto_scaled_receiver_queue_size_enabled` the queue begins at 1, grows up to
        that size as needed, and is counted against the client's memory_limit_bytes (PIP-74).

        Raises `ConsumerBusy`, `TopicNotFound`, `AuthorizationError`, `Timeout` and others.
        """
        plan = plans.consumer(locals(), self._listeners)
        core = self._started()
        made = Consumer(self, core.engine.run(core.subscribe(*plan)), plan.decoder, message_listener)
        if plan.activity is not None:
            plan.activity.bind(made)
        return made

    def create_reader(
        self,
        topic: str | list[str],
        start_message_id: MessageId,
        schema: Schema[Any] | None = None,
        reader_listener: Callable[[Reader, Message], Any] | None = None,
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

        Over several topics or partitions the position is `MessageId.earliest` or `latest`. Blocks up to the operation
        time-out.
        """
        plan = plans.reader(locals())
        core = self._started()
        return Reader(self, core.engine.run(core.subscribe(*plan)), plan.decoder, reader_listener)

    def create_table_view(
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

        Returns when everything published so far is in it; blocks until then. Partitions added later are joined. A topic
        that is compacted is read so; of a non-persistent one only what is published from now on is seen.
        """
        plan = plans.table_view(locals())
        core = self._started()
        view = TableView(self, core.engine.run(core.subscribe(*plan)), plan.decoder, subscription_name)
        view._start()
        return view

    def new_transaction(self, timeout_seconds: float = 60.0) -> Transaction:
        """Begin a transaction, which the broker aborts when it is not ended after `timeout_seconds`. Blocks.

        The first one connects the client to the coordinators. Raises `OperationNotSupported` where the brokers have
        transactions off. (PIP-31; Java: newTransaction().withTransactionTimeout.)
        """
        limit = _validation.transaction_timeout(timeout_seconds)
        core = self._started()
        return Transaction(core.engine, core.engine.run(core.new_transaction(limit)))

    def stats(self) -> ClientStats:
        """Return the figures of all producers and consumers; see `pulsar_native.ClientStats`. Does not block."""
        return ClientStats() if self._core is None else self._core.stats()

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the topic's partitions, or the topic's own when it has none. Blocks."""
        core = self._started()
        return core.engine.run(core.topic_partitions(topic))

    def get_partition_count(self, topic: str, *, auto_create: bool = False) -> int:
        """Return how many partitions a topic has, 0 for one without; raises `TopicNotFound` when it does not exist.

        Blocks. (PARTITIONED_METADATA without automatic creation.)
        """
        core = self._started()
        return core.engine.run(core.topic_partition_count(topic, auto_create=auto_create))

    def get_service_info(self) -> ServiceInfo:
        """Return the cluster the client uses now. Blocks only where a provider is asked for it first."""
        core = self._started()
        return core.engine.run(core.service_info())

    def update_service_url(self, service_url: str) -> None:
        """Move to another service URL; credentials and trusted certificates stay. Returns at once.

        All connections close; producers and consumers come back at the new URL by themselves and keep what is pending,
        with its sequence ids. Raises `InvalidUrl`.
        """
        core = self._started()
        core.engine.run(core.update_service_url(service_url))

    def close(self, timeout: float | None = None) -> CloseReport:
        """Flush and close everything made with this client; return what was sent, what failed and what was left.

        Blocks up to `timeout` seconds, else the operation time-out; what is not confirmed by then fails. With a
        `timeout`, lost connections are waited for. Raises `AlreadyClosed` when it was closed before.
        """
        limit = _validation.checked_timeout(timeout)
        core = self._end()
        if core is None:
            self._release()
            return CloseReport()
        # Order of events: first no listener is called any more, so that each message it got can still be acknowledged.
        self._listeners.stop()
        if not core.engine.on_loop():
            self._listeners.join(self._config.operation_timeout_seconds if limit is None else limit)
        try:
            return core.engine.run(core.close(limit))
        finally:
            self._release()

    def shutdown(self) -> None:
        """Drop everything at once, without flushing and without a goodbye to the brokers. Idempotent.

        `close()` may follow, and does nothing more.
        """
        check_generation(self._generation)
        with self._lock:
            if self._closed:
                return
            self._closed = self._is_shut_down = True
        try:
            if self._core is not None:
                self._listeners.stop()
                self._core.engine.run(_shutdown(self._core))
        finally:
            self._release()

    def _end(self) -> ClientCore | None:
        check_generation(self._generation)
        with self._lock:
            if self._is_shut_down:
                return None
            if self._closed:
                raise AlreadyClosed("The client is closed already")
            self._closed = True
            return self._core

    def _release(self) -> None:
        if self._log_target is not None:
            self._log_target()
        if self._finalizer is not None and self._finalizer.detach() is not None:
            self._listeners.stop()
            thread = release_thread_engine(self._generation)
            if thread is not None and thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self.close()


async def _shutdown(core: ClientCore) -> None:
    core.shutdown()


def _drop(core: ClientCore, listeners: ListenerThreads) -> None:
    """End a client that was garbage-collected: runs in any thread, so it only leaves word for the engine."""
    listeners.stop()
    if core.engine.generation == generation():
        core.engine.call_soon(core.shutdown)
        release_thread_engine(core.engine.generation)
