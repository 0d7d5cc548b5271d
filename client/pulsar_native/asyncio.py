"""The asyncio face: the same nouns and verbs as `pulsar_native`, awaited, on the caller's loop.

Rules: no thread is started (credentials that may block are read in asyncio's default executor); the client belongs to
the loop it is first used on. Cancelling a waiting `receive` loses no message: a message is taken only by a task that
runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from pulsar_native import arguments
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    ReaderConfig,
    Router,
)
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.columns import ColumnsRange
from pulsar_native.engine.loop import Engine, check_generation, generation
from pulsar_native.engine.partitioned_producer import TopicProducer
from pulsar_native.engine.producer import Full
from pulsar_native.engine.topic_consumer import TopicConsumer
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
)
from pulsar_native.exceptions import AlreadyClosed, OperationNotSupported, PulsarException, Timeout
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema import BytesSchema, Schema, wire_schema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire.columns import ALL_COLUMNS

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Client", "Consumer", "Producer", "PulsarException", "Reader"]

T = TypeVar("T")
_MIB = 1024 * 1024
_SETTLE_SECONDS = 0.5


class _Guarded:
    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A live {type(self).__name__} cannot be pickled: it holds connections. Send its description instead "
            "(client.config, a ClientConfig) and create the client where it is used"
        )


class Client(_Guarded):
    """Reach a Pulsar cluster from a coroutine; make producers, consumers and readers. Connects on first use.

    Not thread-safe: belongs to the loop it is first used on. Keyword arguments are those of `pulsar_native.Client`.

        async with Client("pulsar://localhost:6650") as client:
            producer = await client.create_producer("greetings")
            await producer.send(b"hello")
    """

    def __init__(self, service_url: str, **options: Any) -> None:
        for ignored in ("log_conf_file_path", "logger"):
            options.pop(ignored, None)
        self._open(ClientConfig.from_mapping({"service_url": service_url, **options}))

    def _open(self, config: ClientConfig) -> None:
        self._config = config
        self._generation = generation()
        self._core: ClientCore | None = None
        self._closed = False

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
        elif self._core.engine.loop is not loop:
            raise OperationNotSupported("This client belongs to another event loop; create one for each loop")
        return self._core

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
        crypto_key_reader: object | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Router | None = None,
        *,
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
        compression_min_msg_body_size: int = 0,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: float = 60,
    ) -> Producer:
        """Create a producer on a topic or on all its partitions, within the operation time-out.

        Batching is on by default here, as in the official asyncio client: many tasks then share an entry.
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
        return Producer(await self._started().create_producer(config, wire_schema(used)), used)

    async def subscribe(
        self,
        topic: str | list[str],
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
        is_pattern_topic: bool = False,
        *,
        acknowledgment_group_time_ms: int = 100,
        max_acknowledgment_group_size: int = 1000,
        priority_level: int = 0,
        subscription_properties: Mapping[str, str] | None = None,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: float = 60,
    ) -> Consumer:
        """Subscribe to a topic, to all its partitions, or to several topics, within the operation time-out."""
        arguments.refuse_unsupported(
            {
                "crypto_key_reader": (crypto_key_reader, None),
                "key_shared_policy": (key_shared_policy, None),
                "dead_letter_policy": (dead_letter_policy, None),
                "is_pattern_topic": (is_pattern_topic, False),
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
        used = schema or BytesSchema()
        decoder = VersionedDecoder(used)
        names = arguments.topics_of(topic)
        return Consumer(await self._started().subscribe(names, config, decoder, wire_schema(used)), decoder)

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema[Any] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: object | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> Reader:
        """Read a topic from a position, without a subscription that stays, within the operation time-out."""
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
        used = schema or BytesSchema()
        decoder = VersionedDecoder(used)
        inner = await self._started().subscribe([topic], arguments.reader_config(config), decoder, wire_schema(used))
        return Reader(inner, decoder)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the topic's partitions, or the topic's own when it has none."""
        return await self._started().topic_partitions(topic)

    async def get_partition_count(self, topic: str, *, auto_create: bool = False) -> int:
        """Return how many partitions a topic has, 0 for one without; raises `TopicNotFound` when it does not exist.

        (PARTITIONED_METADATA without automatic creation.) A topic without partitions that was never loaded by a
        broker counts as not existing.
        """
        return await self._started().topic_partition_count(topic, auto_create=auto_create)

    async def close(self) -> None:
        """Flush and close everything made with this client, bounded by the operation time-out."""
        check_generation(self._generation)
        if self._closed:
            raise AlreadyClosed("The client is closed already")
        self._closed = True
        if self._core is not None:
            await self._core.close()

    def shutdown(self) -> None:
        """Drop everything at once, without flushing and without a goodbye to the brokers."""
        self._closed = True
        if self._core is not None:
            self._core.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            await self.close()


class _Part(_Guarded):
    async def close(self) -> None:
        """Close; see the classes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Producer(_Part):
    """Publish messages to one topic; made by `Client.create_producer`."""

    def __init__(self, inner: TopicProducer, schema: Schema[Any]) -> None:
        self._inner = inner
        self._schema = schema
        self._loop = inner.client.engine.loop
        self._generation = generation()

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

    async def send(
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
        """Publish a message and return its id once the broker has stored it.

        With batching it waits up to the publish delay for company. Cancelling the task stops the waiting, not the
        message. Errors as in the blocking face.
        """
        return await await_receipt(
            await self.enqueue(
                content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
                disable_replication, event_timestamp, deliver_at, deliver_after,
            )
        )  # fmt: skip

    async def enqueue(
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
    ) -> asyncio.Future[MessageId]:
        """Take a message for publishing and return the future of its id; waits only while a full queue blocks.

        Messages of one task keep their order, without waiting for each receipt.
        """
        check_generation(self._generation)
        message = arguments.outgoing(
            None if content is None else self._schema.encode(content),
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
        future: asyncio.Future[MessageId] = self._loop.create_future()

        def done(error: PulsarException | None, message_id: MessageId | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(message_id)  # type: ignore[arg-type]

        while True:
            full = child.enqueue(message.payload, fields, message, done)
            if full is None:
                return future
            if not self._inner.config.block_if_queue_full:
                raise full.error
            await self._room(full)

    async def _room(self, full: Full) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        full.when_room(lambda: None if future.done() else future.set_result(None))
        await future

    async def flush(self) -> None:
        """Send the open batch and return when everything sent before is confirmed; raises the last one's error."""
        check_generation(self._generation)
        futures = []
        for child in self._inner.children:
            future: asyncio.Future[None] = self._loop.create_future()

            def done(error: PulsarException | None, future: asyncio.Future[None] = future) -> None:
                if not future.done():
                    if error is not None:
                        future.set_exception(error)
                    else:
                        future.set_result(None)

            child.flush_then(done)
            futures.append(future)
        await asyncio.gather(*futures)

    async def close(self) -> None:
        """Flush and close, bounded by the operation time-out. Idempotent."""
        check_generation(self._generation)
        if not self._inner.is_closed:
            await self._inner.close()


async def await_receipt(future: asyncio.Future[MessageId]) -> MessageId:
    """Wait for a receipt without tying the message's fate to the waiting task."""
    return await asyncio.shield(future)


class _Receiving(_Part):
    def __init__(self, inner: TopicConsumer, decoder: VersionedDecoder) -> None:
        self._inner = inner
        self._decoder = decoder
        self._loop = inner.client.engine.loop
        self._generation = generation()

    async def _take(self, deadline: float | None) -> Message | None:
        check_generation(self._generation)
        inner = self._inner
        # Those who wait already go first.
        message = None if inner.has_waiters() else inner.take()
        if message is None:
            message = await self._wait_for(inner.take, deadline)
            if message is None:
                return None
        version = message.entry.schema.wanted(message.schema_version()) if self._decoder.needs_writer else None
        if version is not None:
            schema = await inner.client.writer_schema(message.topic_name(), version)
            message.entry.schema.learn(version, schema)
        return message

    async def _wait_for(self, take: Callable[[], T | None], deadline: float | None) -> T | None:
        """Wait in line until `take` gives something; None when it does not before the deadline (the loop's clock).

        Only a signal is waited for: the message stays in the queue until the task runs, so a cancelled task leaves it
        to the next one, which is woken in its place.
        """
        while True:
            future: asyncio.Future[None] = self._loop.create_future()

            def wake(future: asyncio.Future[None] = future) -> None:
                if not future.done():
                    future.set_result(None)

            self._inner.wait_then(wake)
            try:
                async with asyncio.timeout_at(deadline):
                    await future
                # Taken before the place in the line is given up: else the next one could take it first.
                taken = take()
            except TimeoutError:
                return None
            finally:
                self._inner.forget_wait(wake)
            if taken is not None:
                return taken

    def topic(self) -> str:
        """Return the topic's full name, or the names of several joined by commas."""
        return ",".join(topic.full for topic in self._inner.topics)

    def is_connected(self) -> bool:
        """Return whether every partition is connected now."""
        return self._inner.is_connected

    async def seek(self, messageid: MessageId | int) -> None:
        """Move to a message id, or to the first message published at or after a time (ms since 1970)."""
        await self._inner.seek(messageid)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, entry -1 when it is empty."""
        return await self._inner.last_message_id()

    async def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every partition."""
        return await self._inner.last_message_ids()

    def has_reached_end_of_topic(self) -> bool:
        """Return whether the topic is terminated and everything in it acknowledged."""
        return all(child.reached_end for child in self._inner.children)

    def discarded_message_ids(self) -> list[MessageId]:
        """Return the entries (at most the last 1,000 a partition) that were damaged and discarded unread."""
        return [message_id for child in self._inner.children for message_id in list(child.discarded)]

    async def close(self) -> None:
        """Send gathered acknowledgements and leave; waiting tasks get `AlreadyClosed`. Idempotent."""
        check_generation(self._generation)
        await self._inner.close()


class Consumer(_Receiving):
    """Receive messages through a subscription; `async for message in consumer` works too."""

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._inner.config.subscription_name

    def consumer_name(self) -> str:
        """Return this consumer's name."""
        return self._inner.children[0].name

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; raises `Timeout` after `timeout_millis`. Cancelling it loses nothing."""
        deadline = None if timeout_millis is None else self._loop.time() + timeout_millis / 1000
        message = await self._take(deadline)
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    async def batch_receive(self) -> list[Message]:
        """Return several messages: as many as the batch receive policy says, or as came within its time.

        Cancelled while waiting, it asks for what it had collected again.
        """
        collector = arguments.BatchCollector(self._inner.config.batch_receive_policy, self._loop.time())
        try:
            while True:
                message = await self._take(collector.deadline)
                if message is None or collector.add(message):
                    return collector.messages
        except asyncio.CancelledError:
            for message in collector.messages:
                self.negative_acknowledge_now(message)
            raise

    def negative_acknowledge_now(self, message: Message | MessageId) -> None:
        """Ask for a message again without delay."""
        (message_id,) = arguments.ids_of(message)
        self._inner.owner(message_id).redeliver([(message_id.ledger_id(), message_id.entry_id())])

    async def acknowledge(self, message: Message | MessageId | list[Message | MessageId]) -> None:
        """Tell the broker that a message, or each of a list, is done; sent within the group time."""
        check_generation(self._generation)
        if isinstance(message, Message):
            self._inner.acknowledge_message(message)
        else:
            self._inner.acknowledge(arguments.ids_of(message))

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Tell the broker that everything up to and including a message is done."""
        check_generation(self._generation)
        (message_id,) = arguments.ids_of(message)
        self._inner.owner(message_id).acknowledge_cumulative(message_id)

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Ask for a message again after `negative_ack_redelivery_delay_ms`."""
        check_generation(self._generation)
        (message_id,) = arguments.ids_of(message)
        self._inner.owner(message_id).negative_acknowledge(message_id)

    async def get_positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return the last message id and the subscription's mark-delete position of every partition.

        Everything up to the mark-delete position is acknowledged; where it is not below the last id nothing is left
        to receive. (GET_LAST_MESSAGE_ID's consumer_mark_delete_position.)
        """
        return await self._inner.positions()

    async def redeliver_unacknowledged_messages(self) -> None:
        """Ask for everything unacknowledged again, now."""
        check_generation(self._generation)
        self._inner.redeliver_all()

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Remove the subscription at the broker and close."""
        await self._inner.unsubscribe(force=force)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None


class Reader(_Receiving):
    """Read a topic from a position of one's own; nothing stays at the broker."""

    async def read_next(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; raises `Timeout` after `timeout_millis`. Cancelling it loses nothing."""
        deadline = None if timeout_millis is None else self._loop.time() + timeout_millis / 1000
        message = await self._take(deadline)
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    async def has_message_available(self) -> bool:
        """Return whether there is a message between the place reached and the end."""
        return await self._inner.has_message_available()

    async def arrow_batches(
        self,
        *,
        end: MessageId | None = None,
        columns: Sequence[str] = ALL_COLUMNS,
        max_rows: int = 10_000,
        max_bytes: int = 8 * _MIB,
        timeout_millis: int = 60_000,
        publish_time: tuple[int | None, int | None] | None = None,
    ) -> AsyncIterator[pyarrow.RecordBatch]:
        """Yield Arrow record batches up to `end` (exclusive), as `pulsar_native.Reader.arrow_batches` does."""
        work = ColumnsRange(
            self._inner,
            end=end,
            columns=columns,
            max_rows=max_rows,
            max_bytes=max_bytes,
            publish_time=publish_time,
        )
        await work.settle()
        stalled_at = self._loop.time() + timeout_millis / 1000
        while not work.done:
            soon = min(self._loop.time() + _SETTLE_SECONDS, stalled_at)
            taken = self._inner.take_slice() or await self._wait_for(self._inner.take_slice, soon)
            if taken is not None:
                work.add(*taken)
                stalled_at = self._loop.time() + timeout_millis / 1000
                for batch in work.full():
                    yield batch
            elif self._loop.time() >= stalled_at:
                raise Timeout(
                    f"The range is not complete, and nothing came for {timeout_millis} ms", topic=self.topic()
                )
            else:
                await work.settle()
        for batch in work.rest():
            yield batch

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.read_next()
        except AlreadyClosed:
            raise StopAsyncIteration from None
