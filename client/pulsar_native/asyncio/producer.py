"""The asyncio producer: many tasks share an entry and wait for their own receipt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsar_native import _message_builder, _validation
from pulsar_native.asyncio._base import Closeable
from pulsar_native.engine.interceptors import InterceptedProducer
from pulsar_native.engine.loop import check_generation, generation
from pulsar_native.engine.metrics.statistics import of_producer
from pulsar_native.engine.producer.backpressure import Backpressure
from pulsar_native.engine.producer.bulk_send import BulkSend, Slice
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.transaction import SendOperation
from pulsar_native.exceptions import AlreadyClosed, PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.message_ids import MessageIds
from pulsar_native.protocol.send_op import Callback
from pulsar_native.schema import Schema
from pulsar_native.stats import CloseReport, ProducerStats

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native.asyncio.transaction import Transaction


class Producer(Closeable):
    """Publish messages to one topic; made by `Client.create_producer`."""

    def __init__(self, inner: TopicProducer, schema: Schema[Any]) -> None:
        self._inner = inner
        if isinstance(inner, InterceptedProducer):
            inner.chain.bind(self)
        self._schema = schema
        self._separates_key = schema.separates_key
        self._take_plain = inner.fast_send()
        self._loop = inner.client.engine.loop
        self._generation = generation()

    def _described(self) -> str:
        return f"{self._inner.name} of {self._inner.topic.full}"

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

    def stats(self) -> ProducerStats:
        """Return what was sent so far; see `pulsar_native.ProducerStats`. Does not block."""
        return of_producer(self._inner)

    async def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | int | None = None,
        schema: Schema[Any] | None = None,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Publish a message and return its id once the broker has stored it.

        With batching it waits up to the publish delay for company. Cancelling the task stops the waiting, not the
        message. Errors as in the sync API.
        """
        # Nobody else has the future, so it needs no shield: that it is cancelled with the task concerns nobody.
        return await (
            await self.enqueue(
                content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
                disable_replication, event_timestamp, deliver_at, deliver_after, schema, txn,
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
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | int | None = None,
        schema: Schema[Any] | None = None,
        txn: Transaction | None = None,
    ) -> asyncio.Future[MessageId]:
        """Take a message for publishing and return the future of its id; waits only while a full queue blocks.

        Messages of one task keep their order, without waiting for each receipt. `schema` is for a value of another
        schema than the producer's: its first use registers it, which may raise `IncompatibleSchema`. In a
        `txn`, consumers get it when that is committed; the first message of it to a partition waits for the
        broker to know of that.
        """
        check_generation(self._generation)
        if (
            content is not None and properties is None and partition_key is None and ordering_key is None
            and sequence_id is None and replication_clusters is None and not disable_replication
            and event_timestamp is None and deliver_at is None and deliver_after is None and schema is None
            and txn is None and not self._separates_key
        ):  # fmt: skip
            return await self._enqueue_plain(self._schema.encode(content))
        payload, key, null_key = _message_builder.encoded(schema or self._schema, content, partition_key)
        message = _message_builder.outgoing(
            payload,
            properties=properties,
            partition_key=key,
            ordering_key=ordering_key,
            sequence_id=sequence_id,
            replication_clusters=replication_clusters,
            disable_replication=disable_replication,
            event_timestamp=event_timestamp,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            null_partition_key=null_key,
            schema_version=None if schema is None else await self._version_of(schema),
        )
        fields = _message_builder.encoded_fields(message)
        child = self._inner.route(message.payload, message)
        future: asyncio.Future[MessageId] = self._loop.create_future()
        callback: Callback = partial(_done, future)
        if txn is not None:
            callback = _message_builder.into_transaction(txn, self._inner, message, callback)
        try:
            full = child.enqueue(message.payload, fields, message, callback)
            if full is not None:
                await self._wait_for_room(full, partial(child.enqueue, message.payload, fields, message, callback))
        except BaseException:
            if isinstance(callback, SendOperation):
                callback.withdraw()
            raise
        return future

    async def _enqueue_plain(self, payload: bytes) -> asyncio.Future[MessageId]:
        future: asyncio.Future[MessageId] = self._loop.create_future()
        callback = partial(_done, future)
        full = self._take_plain(payload, callback)
        if full is not None:
            await self._wait_for_room(full, partial(self._take_plain, payload, callback))
        return future

    async def _wait_for_room(self, full: Backpressure, again: Callable[[], Backpressure | None]) -> None:
        attempt: Backpressure | None = full
        while attempt is not None:
            if not (self._inner.config.block_if_queue_full or attempt.always_waits):
                raise attempt.refusal()
            await self._room(attempt)
            attempt = again() if attempt.retry is None else attempt.retry()

    async def _version_of(self, schema: Schema[Any]) -> bytes | None:
        schemas = self._inner.message_schemas
        try:
            return schemas.versions[schema.schema_info()]
        except KeyError:
            return await schemas.register(schema)

    async def _room(self, full: Backpressure) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        full.wait_for_room(lambda: None if future.done() else future.set_result(None))
        await future

    async def send_many(
        self,
        messages: Iterable[Any] | AsyncIterable[Any],
        *,
        progress: Callable[[int], Any] | None = None,
        txn: Transaction | None = None,
    ) -> MessageIds:
        """Publish contents, or `NewMessage`s with keys and properties, and return their ids in order.

        As in the sync API; `messages` may be asynchronous. Cancelling the task stops after what was handed over.
        """
        schema, config = self._schema, self._inner.config
        if isinstance(messages, AsyncIterable):
            return await self._send_slices(_message_builder.slices_of_async(messages, schema, config), progress, txn)
        return await self._send_slices(_message_builder.slices_of(messages, schema, config), progress, txn)

    async def send_table(
        self,
        table: pyarrow.Table | pyarrow.RecordBatch,
        *,
        value: str | Sequence[str] = "value",
        key: str | None = None,
        properties: str | Sequence[str] | Mapping[str, str] = (),
        event_time: str | None = None,
        progress: Callable[[int], Any] | None = None,
        txn: Transaction | None = None,
    ) -> MessageIds:
        """Publish the rows of an Arrow table and return their ids in order, as `pulsar_native.Producer.send_table`."""
        slices = _message_builder.table_slices(
            table, self._schema, self._inner.config, value=value, key=key, properties=properties, event_time=event_time
        )
        return await self._send_slices(slices, progress, txn)

    async def _send_slices(
        self,
        slices: Iterator[Slice] | AsyncIterator[Slice],
        progress: Callable[[int], Any] | None,
        txn: Transaction | None,
    ) -> MessageIds:
        check_generation(self._generation)
        if txn is None:
            return await self._sent(BulkSend(self._inner), slices, progress)
        own = _validation.sending_work_of(txn, self._inner)
        with own.bulk(BulkSend(self._inner, own.core)) as work:
            return await self._sent(work, slices, progress)

    async def _sent(
        self,
        work: BulkSend,
        slices: Iterator[Slice] | AsyncIterator[Slice],
        progress: Callable[[int], Any] | None,
    ) -> MessageIds:
        while await work.add_next_async(slices) if isinstance(slices, AsyncIterator) else work.add_next(slices):
            while (full := work.push()) is not None:
                await self._room(full)
            # The loop reads the receipts of what was sent.
            await asyncio.sleep(0)
            if progress is not None:
                progress(work.confirmed)
        outcomes: asyncio.Future[None] = self._loop.create_future()
        work.flush_then(lambda: None if outcomes.done() else outcomes.set_result(None))
        await outcomes
        if progress is not None:
            progress(work.confirmed)
        return work.result()

    async def flush(self) -> None:
        """Send the open batch and return when everything sent before is confirmed; raises the last one's error."""
        check_generation(self._generation)
        if self._inner.is_closed:
            raise AlreadyClosed("The producer is closed", topic=self.topic())
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

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Flush and close; return what was sent, what failed and what was left.

        Raises `AlreadyClosed` when it, or its client, was closed before. Takes up to `timeout` seconds, else the
        operation time-out; what is not confirmed by then fails.
        """
        limit = _validation.checked_timeout(timeout)
        check_generation(self._generation)
        if self._inner.is_closed:
            raise AlreadyClosed("The producer is closed already", topic=self.topic())
        began = self._loop.time()
        parts = await self._inner.close(limit)
        return CloseReport(seconds=self._loop.time() - began, producers=parts)


def _done(future: asyncio.Future[MessageId], error: PulsarException | None, message_id: MessageId | None) -> None:
    # A task that was cancelled waits no more; the message goes its way.
    if not future.done():
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(message_id)  # type: ignore[arg-type]
