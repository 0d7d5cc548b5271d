"""The blocking face: the official client's classes and signatures on the engine.

Rules: this file decides nothing, it checks arguments, calls the engine and waits. Sending and receiving happen in the
calling thread; only control operations cross to the engine's thread. Everything here is thread-safe.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from pulsar_native import arguments
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerConfig,
    Credentials,
    ProducerConfig,
    ReaderConfig,
    Router,
)
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.columns import ColumnsRange
from pulsar_native.engine.listener import ListenerThreads
from pulsar_native.engine.loop import (
    Engine,
    acquire_thread_engine,
    check_generation,
    generation,
    release_thread_engine,
)
from pulsar_native.engine.partitioned_producer import TopicProducer
from pulsar_native.engine.producer import Full
from pulsar_native.engine.topic_consumer import TopicConsumer
from pulsar_native.engine.waiting import SendWait, Wait
from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    Result,
)
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, PulsarException, Timeout
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.producer import Callback
from pulsar_native.schema import BytesSchema, Schema, wire_schema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire.columns import ALL_COLUMNS

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("pulsar_native")

T = TypeVar("T")
SendCallback = Callable[[Result, MessageId | None], Any]
MessageListener = Callable[["Consumer", Message], Any]
_MIB = 1024 * 1024
# How long a bounded read waits before it asks the broker whether there is anything left.
_SETTLE_SECONDS = 0.5


class _Guarded:
    """Common behaviour of live objects: they refuse to be pickled, with advice."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A live {type(self).__name__} cannot be pickled: it holds connections. Send its description instead "
            "(client.config, a ClientConfig) and create the client where it is used"
        )


class Client(_Guarded):
    """Reach a Pulsar cluster; make producers, consumers and readers. Connects on first use.

    Thread-safe. Works in the process that made it: after a fork, calls raise `AlreadyClosed` at once. Arguments are the
    official client's, with their units and defaults; the keyword-only ones are additions named after the Java client's.

        with Client("pulsar://localhost:6650") as client:
            client.create_producer("greetings").send(b"hello")
    """

    def __init__(
        self,
        service_url: str,
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
        logger: object | None = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        *,
        connections_per_broker: int = 1,
        keep_alive_interval_seconds: float = 30,
        max_lookup_redirects: int = 20,
        memory_limit_bytes: int = 64 * _MIB,
        starting_backoff_interval_ms: int = 100,
        max_backoff_interval_ms: int = 60_000,
    ) -> None:
        # `log_conf_file_path` and `logger` configure the C++ core's logging; here all logs go to Python's `logging`.
        self._open(
            ClientConfig(
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
                connections_per_broker=connections_per_broker,
                keep_alive_interval_seconds=keep_alive_interval_seconds,
                max_lookup_redirects=max_lookup_redirects,
                memory_limit_bytes=memory_limit_bytes,
                starting_backoff_interval_ms=starting_backoff_interval_ms,
                max_backoff_interval_ms=max_backoff_interval_ms,
            )
        )

    def _open(self, config: ClientConfig) -> None:
        self._config = config
        self._generation = generation()
        self._lock = threading.Lock()
        self._core: ClientCore | None = None
        self._closed = False
        self._listeners = ListenerThreads(config.message_listener_threads)
        self._finalizer: weakref.finalize[..., Any] | None = None

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
        crypto_key_reader: object | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Router | None = None,
        *,
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
        compression_min_msg_body_size: int = 0,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: float = 60,
    ) -> Producer:
        """Create a producer on a topic or on all its partitions. Blocks up to the operation time-out.

        Raises `TopicNotFound`, `ProducerBusy`, `IncompatibleSchema`, `AuthorizationError`, `Timeout` and others.
        """
        arguments.refuse_producer_options(
            chunking_enabled=chunking_enabled,
            lazy_start_partitioned_producers=lazy_start_partitioned_producers,
            batching_type=batching_type,
            encryption_key=encryption_key,
            crypto_key_reader=crypto_key_reader,
        )
        config = ProducerConfig(
            topic=topic,
            producer_name=producer_name,
            initial_sequence_id=initial_sequence_id,
            send_timeout_millis=send_timeout_millis,
            compression_type=compression_type,
            compression_min_msg_body_size=compression_min_msg_body_size,
            max_pending_messages=max_pending_messages,
            max_pending_messages_across_partitions=max_pending_messages_across_partitions,
            block_if_queue_full=block_if_queue_full,
            batching_enabled=batching_enabled,
            batching_max_messages=batching_max_messages,
            batching_max_allowed_size_in_bytes=batching_max_allowed_size_in_bytes,
            batching_max_publish_delay_ms=batching_max_publish_delay_ms,
            message_routing_mode=message_routing_mode,
            message_router=message_router,
            hashing_scheme=hashing_scheme,
            properties=properties or {},
            access_mode=access_mode,
            auto_update_partitions=auto_update_partitions,
            auto_update_partitions_interval_seconds=auto_update_partitions_interval_seconds,
        )
        used = schema or BytesSchema()
        core = self._started()
        return Producer(self, core.engine.run(core.create_producer(config, wire_schema(used))), used)

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
        crypto_key_reader: object | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: BatchReceivePolicy | None = None,
        key_shared_policy: object | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: object | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        acknowledgment_group_time_ms: int = 100,
        max_acknowledgment_group_size: int = 1000,
        priority_level: int = 0,
        subscription_properties: Mapping[str, str] | None = None,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: float = 60,
    ) -> Consumer:
        """Subscribe to a topic, to all its partitions, or to several topics. Blocks up to the operation time-out.

        Raises `ConsumerBusy`, `TopicNotFound`, `AuthorizationError`, `Timeout` and others.
        """
        arguments.refuse_unsupported(
            {
                "crypto_key_reader": (crypto_key_reader, None),
                "key_shared_policy": (key_shared_policy, None),
                "dead_letter_policy": (dead_letter_policy, None),
            }
        )
        config = ConsumerConfig(
            subscription_name=subscription_name,
            consumer_type=consumer_type,
            initial_position=initial_position,
            receiver_queue_size=receiver_queue_size,
            max_total_receiver_queue_size_across_partitions=max_total_receiver_queue_size_across_partitions,
            consumer_name=consumer_name,
            unacked_messages_timeout_ms=unacked_messages_timeout_ms,
            negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
            acknowledgment_group_time_ms=acknowledgment_group_time_ms,
            max_acknowledgment_group_size=max_acknowledgment_group_size,
            batch_index_ack_enabled=batch_index_ack_enabled,
            is_read_compacted=is_read_compacted,
            properties=properties or {},
            subscription_properties=subscription_properties or {},
            priority_level=priority_level,
            replicate_subscription_state_enabled=replicate_subscription_state_enabled,
            start_message_id_inclusive=start_message_id_inclusive,
            batch_receive_policy=batch_receive_policy or BatchReceivePolicy(),
            auto_update_partitions=auto_update_partitions,
            auto_update_partitions_interval_seconds=auto_update_partitions_interval_seconds,
        )
        core = self._started()
        used = schema or BytesSchema()
        decoder = VersionedDecoder(used)
        names = arguments.topics_of(topic)
        inner = core.engine.run(core.subscribe(names, config, decoder, wire_schema(used)))
        return Consumer(self, inner, decoder, message_listener)

    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema[Any] | None = None,
        reader_listener: Callable[[Reader, Message], Any] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: object | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> Reader:
        """Read a topic from a position, without a subscription that stays. Blocks up to the operation time-out."""
        arguments.refuse_unsupported({"crypto_key_reader": (crypto_key_reader, None)})
        config = ReaderConfig(
            topic=topic,
            start_message_id=start_message_id,
            start_message_id_inclusive=start_message_id_inclusive,
            receiver_queue_size=receiver_queue_size,
            reader_name=reader_name,
            subscription_role_prefix=subscription_role_prefix,
            is_read_compacted=is_read_compacted,
        )
        core = self._started()
        used = schema or BytesSchema()
        decoder = VersionedDecoder(used)
        inner = core.engine.run(core.subscribe([topic], arguments.reader_config(config), decoder, wire_schema(used)))
        return Reader(self, inner, decoder, reader_listener)

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

    def close(self) -> None:
        """Flush and close everything made with this client, bounded by the operation time-out.

        Raises `AlreadyClosed` when it was closed before.
        """
        core = self._end()
        if core is not None:
            try:
                core.engine.run(core.close())
            finally:
                self._release()

    def shutdown(self) -> None:
        """Drop everything at once, without flushing and without a goodbye to the brokers."""
        core = self._end()
        if core is not None:
            try:
                core.engine.run(_shutdown(core))
            finally:
                self._release()

    def _end(self) -> ClientCore | None:
        check_generation(self._generation)
        with self._lock:
            if self._closed:
                raise AlreadyClosed("The client is closed already")
            self._closed = True
            return self._core

    def _release(self) -> None:
        if self._finalizer is not None and self._finalizer.detach() is not None:
            self._listeners.stop()
            release_thread_engine(self._generation)

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
        core.engine.call(core.shutdown)
        release_thread_engine(core.engine.generation)


class _Part(_Guarded):
    """Common behaviour of producers, consumers and readers."""

    def __init__(self, client: Client, engine: Engine) -> None:
        self._client = client
        self._engine = engine
        self._generation = generation()

    def close(self) -> None:
        """Close; see the classes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Part):
    """Publish messages to one topic. Thread-safe; made by `Client.create_producer`."""

    def __init__(self, client: Client, inner: TopicProducer, schema: Schema[Any]) -> None:
        super().__init__(client, inner.client.engine)
        self._inner = inner
        self._schema = schema
        self._plain_bytes = type(schema) is BytesSchema
        self._block = inner.config.block_if_queue_full

    def topic(self) -> str:
        """Return the topic's full name."""
        return self._inner.topic.full

    def producer_name(self) -> str:
        """Return the producer's name, given or made by the broker."""
        return self._inner.name

    def last_sequence_id(self) -> int:
        """Return the highest sequence id the broker has confirmed, -1 initially."""
        return self._inner.last_sequence_id

    def is_connected(self) -> bool:
        """Return whether the producer is connected to the broker of every partition now."""
        return self._inner.is_connected

    def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | int | None = None,
    ) -> MessageId:
        """Publish a message and return its id. Blocks until the broker has stored it, or the send time-out.

        A batch that is open is sent with it. The id is (-1, -1) when the broker dropped a duplicate. Raises `Timeout`,
        `MessageTooBig`, `ProducerQueueIsFull` and others; a raised message may still have been stored.
        """
        wait = SendWait()
        self._send(
            content, wait, properties, partition_key, ordering_key, sequence_id, replication_clusters,
            disable_replication, event_timestamp, deliver_at, deliver_after, flush=True,
        )  # fmt: skip
        return wait.result()

    def send_async(
        self,
        content: Any,
        callback: SendCallback | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | int | None = None,
    ) -> None:
        """Publish a message and return at once; `callback(result, message_id)` is called in the engine's thread.

        Blocks only while the queue is full and `block_if_queue_full` is set; without it raises `ProducerQueueIsFull`.
        """
        self._send(
            content, None if callback is None else _ResultCallback(callback), properties, partition_key, ordering_key,
            sequence_id, replication_clusters, disable_replication, event_timestamp, deliver_at, deliver_after,
        )  # fmt: skip

    def _send(
        self,
        content: Any,
        callback: Callback | None,
        properties: Mapping[str, str] | None,
        partition_key: str | bytes | None,
        ordering_key: str | None,
        sequence_id: int | None,
        replication_clusters: list[str] | None,
        disable_replication: bool,
        event_timestamp: int | None,
        deliver_at: int | None,
        deliver_after: timedelta | int | None,
        *,
        flush: bool = False,
    ) -> None:
        check_generation(self._generation)
        payload: bytes | None
        if self._plain_bytes and type(content) is bytes:
            payload = content
        else:
            payload = None if content is None else self._schema.encode(content)
        if (
            payload is not None and properties is None and partition_key is None and ordering_key is None
            and sequence_id is None and replication_clusters is None and not disable_replication
            and event_timestamp is None and deliver_at is None and deliver_after is None
        ):  # fmt: skip
            full = self._inner.enqueue(payload, b"", None, callback, flush=flush)
            if full is not None:
                self._wait_for_room(full, lambda: self._inner.enqueue(payload, b"", None, callback, flush=flush))
            return
        message = arguments.outgoing(
            payload,
            properties=properties,
            partition_key=partition_key,
            ordering_key=ordering_key,
            sequence_id=sequence_id,
            replication_clusters=replication_clusters,
            disable_replication=disable_replication,
            event_timestamp=event_timestamp,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
        )
        fields = arguments.encoded_fields(message)
        child = self._inner.route(message.payload, message)
        full = child.enqueue(message.payload, fields, message, callback, flush=flush)
        if full is not None:
            self._wait_for_room(full, lambda: child.enqueue(message.payload, fields, message, callback, flush=flush))

    def _wait_for_room(self, full: Full, again: Callable[[], Full | None]) -> None:
        if not self._block or self._engine.on_loop():
            # In a callback of the engine waiting would stop the receipts that make room.
            raise full.error
        attempt: Full | None = full
        while attempt is not None:
            wait = Wait()
            attempt.when_room(wait.wake)
            while not wait.wait(1.0):
                check_generation(self._generation)
            attempt = again()

    def flush(self, timeout: float | None = None) -> None:
        """Send the open batch and block until everything sent before is confirmed.

        Raises the error of the last message if it failed, and `Timeout` after `timeout` seconds; without one, the send
        time-out bounds the wait.
        """
        check_generation(self._generation)
        deadline = None if timeout is None else time.monotonic() + timeout
        waits = []
        for child in self._inner.children:
            wait = SendWait()
            child.flush_then(lambda error, wait=wait: wait(error, None))  # type: ignore[misc]
            waits.append(wait)
        for wait in waits:
            if not wait.wait(None if deadline is None else deadline - time.monotonic()):
                raise Timeout(f"Not everything was confirmed within {timeout:g} s", topic=self.topic())
            if wait.error is not None:
                raise wait.error

    def close(self) -> None:
        """Flush and close, bounded by the operation time-out; what is not confirmed by then fails. Idempotent."""
        if not self._inner.is_closed:
            self._engine.run(self._inner.close())


class _ResultCallback:
    """The official callback: result code and message id."""

    __slots__ = ("_callback",)

    def __init__(self, callback: SendCallback) -> None:
        self._callback = callback

    def __call__(self, error: PulsarException | None, message_id: MessageId | None) -> None:
        self._callback(Result.Ok if error is None else error.result, message_id)


class _Receiving(_Part):
    """What consumers and readers share: waiting for messages in the calling thread, and listeners."""

    def __init__(self, client: Client, inner: TopicConsumer, decoder: VersionedDecoder) -> None:
        super().__init__(client, inner.client.engine)
        self._inner = inner
        self._decoder = decoder
        self._has_listener = False

    def _take(self, deadline: float | None) -> Message | None:
        """Return the next message, None when none comes before the deadline (monotonic seconds)."""
        check_generation(self._generation)
        inner = self._inner
        # Those who wait already go first.
        message = None if inner.has_waiters() else inner.take()
        if message is None:
            message = self._wait_for(inner.take, deadline)
            if message is None:
                return None
        version = message.entry.schema.wanted(message.schema_version()) if self._decoder.needs_writer else None
        if version is not None:
            self._load_schema(message, version)
        return message

    def _load_schema(self, message: Message, version: bytes) -> None:
        core = self._inner.client
        schema = self._engine.run(core.writer_schema(message.topic_name(), version))
        message.entry.schema.learn(version, schema)

    def _wait_for(self, take: Callable[[], T | None], deadline: float | None) -> T | None:
        """Wait in line until `take` gives something; None when it does not before the deadline (monotonic seconds)."""
        while True:
            wait = Wait()
            self._inner.wait_then(wait.wake)
            try:
                woken = wait.wait(None if deadline is None else deadline - time.monotonic())
                # Taken before the place in the line is given up: else the next one could take it first.
                taken = take() if woken else None
            finally:
                self._inner.forget_wait(wait.wake)
            if taken is not None or not woken:
                return taken

    def _listen(self, listener: Callable[[Message], Any]) -> None:
        self._has_listener = True
        submit = self._client._listeners.assign()
        scheduled = threading.Event()
        inner = self._inner

        def drain() -> None:
            scheduled.clear()
            while True:
                try:
                    message = self._take(time.monotonic())
                except AlreadyClosed:
                    return
                if message is None:
                    return
                try:
                    listener(message)
                except Exception:
                    # The message stays unacknowledged; the ack time-out or the next consumer gets it.
                    _log.exception("The message listener failed for %s", message.message_id())

        def wake() -> None:
            if not scheduled.is_set():
                scheduled.set()
                submit(drain)

        inner.on_ready = wake
        if inner.may_have_more():
            wake()

    def topic(self) -> str:
        """Return the topic's full name, or the names of several joined by commas."""
        return ",".join(topic.full for topic in self._inner.topics)

    def is_connected(self) -> bool:
        """Return whether every partition is connected now."""
        return self._inner.is_connected

    def seek(self, messageid: MessageId | int) -> None:
        """Move to a message id, or to the first message published at or after a time (ms since 1970). Blocks.

        A consumer continues with the message sought; a reader behind it, unless it was made inclusive. A position in
        one partition moves that partition only.
        """
        self._engine.run(self._inner.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, entry -1 when it is empty. Blocks."""
        return self._engine.run(self._inner.last_message_id())

    def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every partition. Blocks."""
        return self._engine.run(self._inner.last_message_ids())

    def has_reached_end_of_topic(self) -> bool:
        """Return whether the topic is terminated and everything in it acknowledged."""
        return all(child.reached_end for child in self._inner.children)

    def discarded_message_ids(self) -> list[MessageId]:
        """Return the entries (at most the last 1,000 a partition) that were damaged and discarded unread."""
        return [message_id for child in self._inner.children for message_id in list(child.discarded)]

    def close(self) -> None:
        """Send gathered acknowledgements and leave; waiting calls raise `AlreadyClosed`. Idempotent."""
        if not self._inner.is_closed:
            self._engine.run(self._inner.close())


class Consumer(_Receiving):
    """Receive messages through a subscription. Thread-safe; made by `Client.subscribe`."""

    def __init__(
        self, client: Client, inner: TopicConsumer, decoder: VersionedDecoder, listener: MessageListener | None
    ) -> None:
        super().__init__(client, inner, decoder)
        if listener is not None:
            self._listen(lambda message: listener(self, message))

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._inner.config.subscription_name

    def consumer_name(self) -> str:
        """Return this consumer's name."""
        return self._inner.children[0].name

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Return the next message. Blocks until there is one; raises `Timeout` after `timeout_millis`."""
        if self._has_listener:
            raise InvalidConfiguration("receive() cannot be used on a consumer with a message_listener")
        deadline = None if timeout_millis is None else time.monotonic() + timeout_millis / 1000
        message = self._take(deadline)
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    def batch_receive(self) -> list[Message]:
        """Return several messages: as many as the batch receive policy says, or as came within its time. Blocks."""
        if self._has_listener:
            raise InvalidConfiguration("batch_receive() cannot be used on a consumer with a message_listener")
        collector = arguments.BatchCollector(self._inner.config.batch_receive_policy, time.monotonic())
        while True:
            message = self._take(collector.deadline)
            if message is None or collector.add(message):
                return collector.messages

    def acknowledge(self, message: Message | MessageId | list[Message | MessageId]) -> None:
        """Tell the broker that a message, or each of a list, is done. Does not block; sent within the group time."""
        check_generation(self._generation)
        if isinstance(message, Message):
            self._inner.acknowledge_message(message)
        else:
            self._inner.acknowledge(arguments.ids_of(message))

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Tell the broker that everything up to and including a message is done. Does not block.

        Raises `CumulativeAcknowledgementNotAllowedError` on Shared and Key_Shared subscriptions.
        """
        check_generation(self._generation)
        (message_id,) = arguments.ids_of(message)
        self._inner.owner(message_id).acknowledge_cumulative(message_id)

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Ask for a message again after `negative_ack_redelivery_delay_ms`. Does not block."""
        check_generation(self._generation)
        (message_id,) = arguments.ids_of(message)
        self._inner.owner(message_id).negative_acknowledge(message_id)

    def get_positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return the last message id and the subscription's mark-delete position of every partition. Blocks.

        Everything up to the mark-delete position is acknowledged; where it is not below the last id nothing is left
        to receive. (GET_LAST_MESSAGE_ID's consumer_mark_delete_position.)
        """
        return self._engine.run(self._inner.positions())

    def redeliver_unacknowledged_messages(self) -> None:
        """Ask for everything unacknowledged again, now. Does not block."""
        check_generation(self._generation)
        self._inner.redeliver_all()

    def unsubscribe(self, *, force: bool = False) -> None:
        """Remove the subscription at the broker and close. Blocks; `force` also when others are connected to it."""
        self._engine.run(self._inner.unsubscribe(force=force))


class Reader(_Receiving):
    """Read a topic from a position of one's own; nothing stays at the broker. Thread-safe."""

    def __init__(
        self,
        client: Client,
        inner: TopicConsumer,
        decoder: VersionedDecoder,
        listener: Callable[[Reader, Message], Any] | None,
    ) -> None:
        super().__init__(client, inner, decoder)
        if listener is not None:
            self._listen(lambda message: listener(self, message))

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """Return the next message. Blocks until there is one; raises `Timeout` after `timeout_millis`."""
        if self._has_listener:
            raise InvalidConfiguration("read_next() cannot be used on a reader with a reader_listener")
        deadline = None if timeout_millis is None else time.monotonic() + timeout_millis / 1000
        message = self._take(deadline)
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    def has_message_available(self) -> bool:
        """Return whether there is a message between the place reached and the end. Blocks for the broker's answer."""
        return self._engine.run(self._inner.has_message_available())

    def arrow_batches(
        self,
        *,
        end: MessageId | None = None,
        columns: Sequence[str] = ALL_COLUMNS,
        max_rows: int = 10_000,
        max_bytes: int = 8 * _MIB,
        timeout_millis: int = 60_000,
        publish_time: tuple[int | None, int | None] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield Arrow record batches from the reader's place up to `end`, exclusive, to the index in a batch.

        Without `end`, up to the last message there is at the call. `publish_time` is (from, until) in ms, half-open.
        Batches hold at most `max_rows` rows and about `max_bytes`, unless one entry alone is larger. Blocks; raises
        `Timeout` when nothing comes for `timeout_millis`, and `ChecksumError` for a damaged entry: a short result is
        never passed off as the whole.
        """
        work = ColumnsRange(
            self._inner,
            end=end,
            columns=columns,
            max_rows=max_rows,
            max_bytes=max_bytes,
            publish_time=publish_time,
        )
        self._engine.run(work.settle())
        stalled_at = time.monotonic() + timeout_millis / 1000
        while not work.done:
            soon = min(time.monotonic() + _SETTLE_SECONDS, stalled_at)
            taken = self._inner.take_slice() or self._wait_for(self._inner.take_slice, soon)
            if taken is not None:
                work.add(*taken)
                stalled_at = time.monotonic() + timeout_millis / 1000
                yield from work.full()
            elif time.monotonic() >= stalled_at:
                raise Timeout(
                    f"The range is not complete, and nothing came for {timeout_millis} ms", topic=self.topic()
                )
            else:
                self._engine.run(work.settle())
        yield from work.rest()
