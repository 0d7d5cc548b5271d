"""Client of the sync API: keeps the engine's thread running and creates producers, consumers and readers."""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

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
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerConfig,
    ConsumerEventListener,
    DeadLetterPolicy,
    KeySharedPolicy,
    MessageListenerExecutor,
    ProducerConfig,
    ReaderConfig,
    Router,
    TopicsChangedListener,
)
from pulsar_native.config.base import check_function
from pulsar_native.crypto import KeyReader
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.consumer_events import ConsumerEvents
from pulsar_native.engine.consumer.listener import ListenerThreads
from pulsar_native.engine.consumer.pattern_multi_topics_consumer import topics_told
from pulsar_native.engine.interceptor_chain import ConsumerChain, ProducerChain
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
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from pulsar_native.exceptions import AlreadyClosed, OperationNotSupported
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema import Schema, wire_schema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.service_info import Credentials, ServiceInfo, ServiceSource
from pulsar_native.stats import ClientStats, CloseReport
from pulsar_native.sync.consumer import Consumer, MessageListener, Reader
from pulsar_native.sync.producer import Producer
from pulsar_native.sync.table_view import TableView
from pulsar_native.sync.transaction import Transaction
from pulsar_native.topic import TopicName

# Limit in seconds for joining the engine's thread: a name resolver that does not answer can delay its end.
_JOIN_SECONDS = 5.0
# The same for a client that is only dropped, perhaps by the garbage collector in a thread that holds a lock which the
# engine's or a listener's thread needs for its end, such as that of a log; and for the listeners after `shutdown`.
_BRIEF_JOIN_SECONDS = 1.0


@option_docs(ClientConfig, options=ClientOptions)
class Client(NotPicklable):
    """Client of one Pulsar cluster: creates producers, consumers and readers. Connects on first use.

    Thread-safe. It belongs to the process that created it: after a fork, calls in the child raise `AlreadyClosed`.
    Options are the official client's, with their units and defaults; the keyword-only ones have the Java client's
    names. Raises `InvalidConfiguration` for a value of another type or out of range, `InvalidUrl` for a malformed
    service URL.

        with Client("pulsar://localhost:6650") as client:
            client.create_producer("greetings").send(b"hello")

    :param logger: a `logging.Logger`, `ConsoleLogger` or `FileLogger` that gets the package's log records instead of
        the handlers of `pulsar_native`. Default None.
    :param log_conf_file_path: accepted for compatibility, without effect. Default None.
    """

    # Ends the forwarding of log records to this client's own logger.
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
        self._lock = threading.Lock()
        self._core: ClientCore | None = None
        self._closed = self._is_shut_down = False
        self._listeners = ListenerThreads(config.message_listener_threads)
        # Parts whose listeners are called although the application may have dropped them.
        self._kept: set[object] = set()
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._log_target = None

    def _described(self) -> str:
        return str(self._config.service_url)

    @classmethod
    def from_config(cls, config: ClientConfig) -> Self:
        """Return a client made from its configuration, for instance in another process. Does not connect yet.

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
        with self._lock:
            if self._closed:
                raise AlreadyClosed("The client is closed")
            if self._core is None:
                engine = acquire_thread_engine()
                self._core = ClientCore(engine, self._config)
                # A client that is dropped without close must not keep the engine's thread alive.
                self._finalizer = weakref.finalize(self, _drop, self._core, self._listeners)
                # Exit handlers that run later may use it.
                self._finalizer.atexit = False
            return self._core

    @option_docs(ProducerConfig, options=ProducerOptions)
    def create_producer(
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
        encryption_keys: Sequence[str] | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        **options: Unpack[ProducerOptions],
    ) -> Producer[S]:
        """Create a producer on a topic or on all its partitions. Blocks up to the operation time-out; thread-safe.

        Raises `InvalidConfiguration` for an option out of range, `TopicNotFound`, `ProducerBusy`, `ProducerFenced`,
        `IncompatibleSchema`, `AuthorizationError`, `Timeout` and other subclasses of `PulsarException`.

        :param schema: the schema of the contents, registered at the topic. Default None: bytes.
        :param initial_sequence_id: sequence id before the first message, which gets this one plus 1; at least -1.
            Default None, and 0 as in the official client: continues after the last id the broker stored for
            `producer_name`, or begins at 0.
        :param batching_enabled: True puts several messages into one entry. Default False.
        :param interceptors: `ProducerInterceptor` objects, called in this order. Default none.
        """
        check_names(Client.create_producer, options, ProducerOptions.__optional_keys__)
        if type(initial_sequence_id) is int and initial_sequence_id == 0:
            # None, as in the official client's sync API.
            initial_sequence_id = None
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
        core = self._started()
        inner = core.engine.run_eager(core.create_producer(config, used_schema, chain), core.discard)
        return Producer(self, inner, inner.schema)

    @option_docs(ConsumerConfig, options=ConsumerOptions)
    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema[S] | None = None,
        message_listener: MessageListener[S] | None = None,
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
        subscription_properties: Mapping[str, str] | None = None,
        topics_changed_listener: TopicsChangedListener | None = None,
        consumer_event_listener: ConsumerEventListener | None = None,
        message_listener_executor: MessageListenerExecutor | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[S]:
        """Subscribe to a topic, all its partitions, several topics, or a pattern. Blocks up to the operation time-out.

        Thread-safe. Each call creates a consumer. A pattern names tenant and namespace literally and matches whole
        topic names, without their domain. Topics created and deleted later are subscribed to and left: at once where
        the broker notifies the client, else every `pattern_auto_discovery_period` seconds. A topic found later starts
        at `initial_position` too: with Latest, messages published before are not received.

        Raises `InvalidConfiguration` for an option out of range, `ConsumerBusy`, `ConsumerAssignError`,
        `TopicNotFound`, `IncompatibleSchema`, `AuthorizationError`, `Timeout` and other subclasses of
        `PulsarException`.

        :param topic: a topic, a list of topics, or a pattern made by `re.compile`.
        :param schema: the schema that decodes the values. Default None: bytes.
        :param message_listener: function of the consumer and a message, called for each message in a listener thread;
            `receive` raises then. An exception is logged, and the message stays unacknowledged. Default None.
        :param broker_consumer_stats_cache_time_ms: accepted for compatibility, without effect: the broker is asked each
            time. Default 30000.
        :param topics_changed_listener: a `TopicsChangedListener`; patterns only. Default None.
        :param consumer_event_listener: a `ConsumerEventListener`; Failover subscriptions only. Default None.
        :param message_listener_executor: a `MessageListenerExecutor` that decides on which thread each call of
            `message_listener` runs, at most `receiver_queue_size` (at least 1) of them at a time. A message that it
            rejects with an exception counts as one whose listener failed. `close` waits for the calls that run; those
            that have not begun by then are not made. Default None: the consumer's listener thread.
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
        if message_listener is not None:
            check_function("message_listener", message_listener)
        _validation.check_listener_executor(message_listener_executor, message_listener)
        topics = _validation.checked_topics(topic, config, listener=topics_changed_listener)
        chain = ConsumerChain(interceptors, reads=False) if interceptors else None
        changed = events = None
        if topics_changed_listener is not None:
            changed = topics_told(topics_changed_listener, self._listeners.assign())
        if consumer_event_listener is not None:
            events = ConsumerEvents(consumer_event_listener, self._listeners.assign())
        used_schema = _validation.checked_schema(schema)
        _validation.warn_of_unused_policy(config)
        decoder = VersionedDecoder(used_schema)
        core = self._started()
        inner = core.engine.run_eager(
            core.subscribe(topics, config, decoder, wire_schema(used_schema), chain, changed, events), core.discard
        )
        consumer = Consumer(
            self, inner, decoder, self._listeners, self._kept, message_listener, message_listener_executor
        )
        if events is not None:
            events.bind(consumer)
        return consumer

    @option_docs(ReaderConfig, options=ReaderOptions)
    def create_reader(
        self,
        topic: str | list[str],
        start_message_id: MessageId,
        schema: Schema[S] | None = None,
        reader_listener: Callable[[Reader[S], Message[S]], Any] | None = None,
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
        """Create a reader of one or several topics. Blocks up to the operation time-out; thread-safe.

        A reader is an exclusive consumer of a non-durable subscription: nothing stays at the broker. Raises
        `InvalidConfiguration` for an option out of range, `TopicNotFound`, `IncompatibleSchema`, `AuthorizationError`,
        `Timeout` and other subclasses of `PulsarException`.

        :param schema: the schema that decodes the values. Default None: bytes.
        :param reader_listener: function of the reader and a message, called for each message in a listener thread;
            `read_next` raises then. Default None.
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
        if reader_listener is not None:
            check_function("reader_listener", reader_listener)
        consumer_config = config.consumer_config()
        chain = ConsumerChain(interceptors, reads=True) if interceptors else None
        used_schema = _validation.checked_schema(schema)
        decoder = VersionedDecoder(used_schema)
        core = self._started()
        inner = core.engine.run_eager(
            core.subscribe(config.topics, consumer_config, decoder, wire_schema(used_schema), chain), core.discard
        )
        return Reader(self, inner, decoder, self._listeners, self._kept, reader_listener)

    @option_docs(ReaderConfig, options=TableViewOptions)
    def create_table_view(
        self,
        topic: str,
        subscription_name: str | None = None,
        schema: Schema[S] | None = None,
        **options: Unpack[TableViewOptions],
    ) -> TableView[S]:
        """Create a table view: a mapping of the topic's keys to their newest values, updated while it is open.

        Blocks until the table has everything published so far; thread-safe. Partitions added later are included. The
        compacted topic is read; of a non-persistent topic, only messages published from now on are. A message that
        cannot be decrypted is left out, with an ERROR in the log: its key keeps the value before. Raises as
        `create_reader` does.

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
        core = self._started()
        subscribing = core.subscribe([topic], consumer_config, decoder, wire_schema(used_schema))
        inner = core.engine.run(subscribing, discard=core.discard)
        view: TableView[S] = TableView(self, inner, decoder, self._listeners, self._kept, subscription_name)
        view._start()
        return view

    def new_transaction(self, timeout_seconds: float = 60.0) -> Transaction:
        """Begin a transaction (PIP-31). Blocks up to the operation time-out; thread-safe.

        The first transaction of a client connects it to the transaction coordinators. Raises `OperationNotSupported`
        if transactions are disabled at the brokers. (Java: newTransaction().withTransactionTimeout.)

        :param timeout_seconds: seconds after which the broker aborts the transaction unless it has ended, at least
            0.001. Default 60.
        """
        limit = _validation.transaction_timeout(timeout_seconds)
        core = self._started()
        return Transaction(core.engine, core.engine.run(core.new_transaction(limit)))

    def stats(self) -> ClientStats:
        """Return statistics of all producers and consumers. Does not block; thread-safe."""
        self._check_process()
        return ClientStats() if self._core is None else self._core.stats()

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of the topic's partitions, or its own name if it has none.

        Blocks up to the operation time-out; thread-safe. Raises `InvalidTopicName`, `AuthorizationError`, `Timeout`.

        :param topic: the topic.
        """
        core = self._started()
        return core.engine.run_eager(core.topic_partitions(topic))

    def get_partition_count(self, topic: str, *, auto_create: bool = False) -> int:
        """Return the number of partitions of a topic, 0 for a topic without partitions.

        Blocks up to the operation time-out; thread-safe. Raises `TopicNotFound` if the topic does not exist, which
        includes a non-persistent topic that no broker has loaded, unless `auto_create` is set.
        (PARTITIONED_METADATA; PIP-344.)

        :param topic: the topic.
        :param auto_create: True lets the broker create the topic if its policy allows that. Default False.
        """
        core = self._started()
        return core.engine.run_eager(core.topic_partition_count(topic, auto_create=auto_create))

    def get_topics_of_namespace(
        self, namespace: str, mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    ) -> list[str]:
        """Return the full names of a namespace's topics, each partition by its own name; no system topics.

        Blocks up to the operation time-out; thread-safe. Raises `InvalidTopicName` for a wrong name,
        `AuthorizationError`, `Timeout`. (GET_TOPICS_OF_NAMESPACE.)

        :param namespace: the namespace, as `tenant/namespace`.
        :param mode: kinds of topics, as for a subscription to a pattern. Default `PersistentOnly`.
        """
        core = self._started()
        return core.engine.run(core.topics_of_namespace(namespace, mode))

    def get_service_info(self) -> ServiceInfo:
        """Return the cluster in use. Thread-safe; blocks only if a provider must be called first."""
        core = self._started()
        return core.engine.run(core.service_info())

    def update_service_url(self, service_url: str) -> None:
        """Switch to another service URL; credentials and trusted certificates stay. Blocks; thread-safe.

        All connections are closed; producers and consumers reconnect at the new URL, which is not waited for, and keep
        pending messages with their sequence ids. Raises `InvalidUrl`, and `Timeout` if a service URL provider is still
        to be called and does not return within the operation time-out.

        :param service_url: the new URL.
        """
        core = self._started()
        core.engine.run(core.update_service_url(service_url))

    def close(self, timeout: float | None = None) -> CloseReport:
        """Flush and close all producers, consumers and readers of this client, then the client. Blocks; thread-safe.

        Returns the number of messages and acknowledgements sent, failed and left; messages without a receipt by then
        fail. When it is interrupted (Ctrl-C), the client ends as with `shutdown()`. Raises `AlreadyClosed` if the
        client was closed before, `OperationNotSupported` inside a callback of the client.

        :param timeout: limit in seconds for all of that, within which lost connections are also waited for. Default
            None: the operation time-out, once for running calls of listeners and once for the rest, without waiting for
            lost connections.
        """
        began = time.monotonic()
        limit = _validation.checked_timeout(timeout)
        core = self._end()
        if core is None:
            self._release()
            return CloseReport()
        try:
            # Order of events: listeners stop first, so that each message they received can still be acknowledged.
            self._listeners.stop()
            self._listeners.join(self._config.operation_timeout_seconds if limit is None else limit)
            left = None if limit is None else max(0.0, limit - (time.monotonic() - began))
            return core.engine.run(core.close(left))
        except BaseException:
            # Interrupted, maybe before the core's close has begun: a second close raises, and nothing else would end
            # the connections.
            core.engine.call(core.shutdown)
            raise
        finally:
            self._release()

    def shutdown(self) -> None:
        """Close all connections at once, without flushing and without closing commands. Idempotent; thread-safe.

        A later `close()` has no effect.
        """
        self._check_may_end("shutdown()")
        with self._lock:
            if self._closed:
                return
            self._closed = self._is_shut_down = True
        try:
            if self._core is not None:
                self._listeners.stop()
                self._core.engine.run(_shutdown(self._core))
                self._listeners.join(_BRIEF_JOIN_SECONDS)
        finally:
            self._release()

    def _check_may_end(self, method: str) -> None:
        # Before the client counts as closed: nothing could close it after that.
        self._check_process()
        if self._core is not None and self._core.engine.on_loop():
            raise OperationNotSupported(
                f"{method} was called inside a callback of the client, where it would wait for itself; call it in "
                "another thread"
            )

    def _end(self) -> ClientCore | None:
        self._check_may_end("close()")
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
        # Also without a core: a subscription that failed before it was created may have started them.
        self._listeners.stop()
        self._kept.clear()
        if self._finalizer is not None and self._finalizer.detach() is not None:
            release_thread_engine(self._generation, _JOIN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A child that was forked in the block has nothing to close, and its own exception or exit goes on.
        if not self._closed and not self._is_of_parent():
            self.close()


async def _shutdown(core: ClientCore) -> None:
    core.shutdown()


def _drop(core: ClientCore, listeners: ListenerThreads) -> None:
    """Shut down a garbage-collected client. Runs in any thread, the engine's among them."""
    if core.engine.generation == generation():
        listeners.stop()
        core.engine.call_soon(core.shutdown)
        release_thread_engine(core.engine.generation, _BRIEF_JOIN_SECONDS)
        listeners.join(_BRIEF_JOIN_SECONDS)
