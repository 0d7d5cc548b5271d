"""The asyncio consumer and reader. Cancelling a waiting call loses no message: only a task that runs takes one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from pulsar_native import _validation
from pulsar_native.arrow.batch import ArrowBatch
from pulsar_native.arrow.columns import ALL_COLUMNS
from pulsar_native.asyncio._base import Closeable
from pulsar_native.engine.consumer.ack_receipts import completing
from pulsar_native.engine.consumer.arrow_range_reader import ArrowRangeReader
from pulsar_native.engine.consumer.arrow_receiver import ArrowReceiver
from pulsar_native.engine.consumer.batch_collector import batch_collector
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer, SeekTarget
from pulsar_native.engine.loop import check_generation, generation
from pulsar_native.engine.metrics.statistics import of_consumer
from pulsar_native.engine.waiter import no_receipt
from pulsar_native.exceptions import AlreadyClosed, PulsarException, Timeout
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.stats import CloseReport, ConsumerStats

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native.asyncio.transaction import Transaction


T = TypeVar("T")
_MIB = 1024 * 1024
_SETTLE_SECONDS = 0.5


class Receiving(Closeable):
    def __init__(self, inner: MultiTopicsConsumer, decoder: VersionedDecoder) -> None:
        self._inner = inner
        self._decoder = decoder
        # Whether there is something to do between taking a message and handing it out.
        self._attends = decoder.needs_writer or inner.chain is not None
        # What `take` has put there can be had without it.
        self._prefetched: deque[Message] = deque() if self._attends else inner.start_prefetch()
        self._fast_acks = inner.fast_acks
        if inner.chain is not None:
            inner.chain.bind(self)
        self._loop = inner.client.engine.loop
        self._generation = generation()

    def _described(self) -> str:
        return f"of {self.topic()} through {self._inner.config.subscription_name}"

    async def _next(self, timeout_millis: int | None) -> Message:
        """Return the next message where none is prefetched."""
        deadline = _validation.deadline(timeout_millis, self._loop.time())
        try:
            message = await self._take(deadline)
        except PulsarException:
            self._inner.note_failed_receive()
            raise
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    async def _take(self, deadline: float | None) -> Message | None:
        check_generation(self._generation)
        inner = self._inner
        # Those who wait already go first.
        message = None if inner.has_waiters() else inner.dequeue()
        if message is None:
            message = await self._wait_for(inner.dequeue, deadline)
            if message is None:
                return None
        return await self._attend(message) if self._attends else message

    async def _attend(self, message: Message) -> Message:
        version = message.entry.schema.wanted(message.schema_version_bytes()) if self._decoder.needs_writer else None
        if version is not None:
            schema = await self._inner.client.writer_schema(message.topic_name(), version)
            message.entry.schema.learn(version, schema)
        chain = self._inner.chain
        return message if chain is None else chain.arrived(message)

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
        """Return the topic's full name, the names of several joined by commas, or the text of the pattern."""
        return self._inner.description

    def topics(self) -> list[str]:
        """Return the full names of the topics read now, without their partitions."""
        return [topic.full for topic in self._inner.topics]

    def is_connected(self) -> bool:
        """Return whether every partition is connected now."""
        return self._inner.is_connected

    def stats(self) -> ConsumerStats:
        """Return what was received so far; see `pulsar_native.ConsumerStats`. Does not block."""
        return of_consumer(self._inner)

    async def seek(self, messageid: SeekTarget | Callable[[str], SeekTarget | None]) -> None:
        """Move to a message id, or to the first message published at or after a time (ms since 1970).

        Goes on behind the message sought, or with it where `start_message_id_inclusive` was set; `latest` is the last
        message for a reader that is inclusive. On a durable subscription a message left out so counts as acknowledged,
        since it would come again with the next consumer. A position in
        one partition moves that partition only; `earliest`, `latest` and times move all. A function is called with the
        full name of each partition and returns where that one goes, or None to leave it; nothing is moved before all
        are known.
        """
        await self._inner.seek(messageid)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, entry -1 when it is empty."""
        return await self._inner.last_message_id()

    async def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every partition."""
        return await self._inner.last_message_ids()

    def has_reached_end_of_topic(self) -> bool:
        """Return whether the topic is terminated and everything in it acknowledged."""
        return self._inner.has_reached_end

    def discarded_message_ids(self) -> list[MessageId]:
        """Return the entries (at most the last 1,000 a partition) that were damaged and discarded unread."""
        return [message_id for child in self._inner.children for message_id in list(child.decoder.discarded)]

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Send gathered acknowledgements and leave; waiting tasks get `AlreadyClosed`. Idempotent.

        Takes up to `timeout` seconds, else the operation time-out. Returns what was acknowledged and what was left.
        """
        limit = _validation.checked_timeout(timeout)
        check_generation(self._generation)
        if self._inner.is_closed:
            return CloseReport()
        began = self._loop.time()
        parts = await self._inner.close(limit)
        return CloseReport(seconds=self._loop.time() - began, consumers=parts)


class Consumer(Receiving):
    """Receive messages through a subscription; `async for message in consumer` works too."""

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._inner.config.subscription_name

    def consumer_name(self) -> str:
        """Return this consumer's name."""
        return self._inner.name

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; raises `Timeout` after `timeout_millis`. Cancelling it loses nothing."""
        # Of a time-out that must be looked at closely, the long way.
        if self._prefetched and (timeout_millis is None or type(timeout_millis) is int):
            try:
                return self._prefetched.popleft()
            except IndexError:
                pass
        return await self._next(timeout_millis)

    async def batch_receive(self) -> list[Message]:
        """Return several messages: as many as the batch receive policy says, or as came within its time.

        Cancelled while waiting, it asks for what it had collected again.
        """
        collector = batch_collector(self._inner.config, self._loop.time())
        try:
            while True:
                message = await self._take(collector.deadline)
                if message is not None and not (collector.add(message) or collector.add_all(self._prefetched)):
                    continue
                if self._inner.held:
                    # A strict pause has begun meanwhile: they are for later, and who may wait still does.
                    self._inner.put_back(collector.clear())
                    if message is not None:
                        continue
                return collector.messages
        except PulsarException:
            self._inner.note_failed_receive(batch=True)
            raise
        except asyncio.CancelledError:
            for message in collector.messages:
                self.negative_acknowledge_now(message)
            raise

    def negative_acknowledge_now(self, message: Message | MessageId) -> None:
        """Ask for a message again without delay."""
        message_id = _validation.id_of(message)
        self._inner.owner(message_id).redeliver([(message_id.ledger_id(), message_id.entry_id())])

    async def receive_arrow(
        self,
        *,
        max_rows: int = 10_000,
        max_bytes: int = 8 * _MIB,
        timeout_millis: int | None = 100,
        columns: Sequence[str] = ALL_COLUMNS,
    ) -> ArrowBatch:
        """Return messages as the rows of an Arrow record batch, as `pulsar_native.Consumer.receive_arrow` does.

        Cancelled while waiting, it leaves what it had collected to the next receive.
        """
        check_generation(self._generation)
        rows = ArrowReceiver(self._inner, columns, max_rows, max_bytes)
        deadline = _validation.deadline(timeout_millis, self._loop.time())
        try:
            while True:
                taken = None if self._inner.has_waiters() else rows.collect()
                taken = taken or await self._wait_for(rows.collect, deadline)
                if taken and not rows.full:
                    continue
                if self._inner.held:
                    # A strict pause has begun meanwhile: they are for later, and who may wait still does.
                    rows.put_back()
                    if taken:
                        continue
                return rows.result()
        except PulsarException:
            self._inner.note_failed_receive(batch=True)
            raise
        except asyncio.CancelledError:
            rows.put_back()
            raise

    async def acknowledge(
        self,
        message: Message | MessageId | list[Message | MessageId] | ArrowBatch,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Tell the broker that a message, or each of a list, or of what `receive_arrow` returned, is done.

        Sent within the group time.

        With `ack_receipt_enabled` it returns when the broker has answered, and raises its error, or `Timeout`; a task
        cancelled meanwhile takes nothing back. (Of a batch nothing is sent, or waited for, before its last message,
        unless `batch_index_ack_enabled`.)

        In a `txn` it counts when that is committed. It is sent at once and waits for the answer, each call; a
        list is one request. Raises `TransactionConflict` when it was acknowledged before, in this transaction or
        otherwise: the transaction can only be aborted then, and its commit does that.
        """
        if txn is None and isinstance(message, Message):
            acks = self._fast_acks.get(message.entry.topic)
            if acks is not None:
                # As `AckGroupingTracker.add_fast` does, in this order.
                acks.fast_path.append(message)
                if not acks.is_fast_path_open:
                    acks.open_fast_path(message)
                return
        check_generation(self._generation)
        if txn is not None:
            work = _validation.work_of(txn, self._inner.client)
            await self._inner.acknowledge_in(work, _validation.ids_of(message))
            return
        receipt = self._loop.create_future() if self._inner.config.ack_receipt_enabled else None
        done = None if receipt is None else completing(receipt)
        if isinstance(message, Message):
            self._inner.acknowledge_message(message, done)
        elif isinstance(message, ArrowBatch):
            self._inner.acknowledge_rows(message, done)
        else:
            self._inner.acknowledge(_validation.ids_of(message), done)
        if receipt is not None:
            await self._answer(receipt)

    async def _answer(self, receipt: asyncio.Future[None]) -> None:
        config = self._inner.config
        # Longer than a request may take, so that its own error is the one that is raised.
        seconds = self._inner.client.config.operation_timeout_seconds + config.acknowledgment_group_time_ms / 1000 + 1
        try:
            async with asyncio.timeout(seconds):
                await receipt
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise no_receipt(seconds) from error

    async def acknowledge_cumulative(self, message: Message | MessageId, *, txn: Transaction | None = None) -> None:
        """Tell the broker that everything up to and including a message is done; waits as `acknowledge` does."""
        check_generation(self._generation)
        message_id = _validation.id_of(message)
        if txn is not None:
            work = _validation.work_of(txn, self._inner.client)
            await self._inner.acknowledge_in(work, [message_id], cumulative=True)
            return
        receipt = self._loop.create_future() if self._inner.config.ack_receipt_enabled else None
        self._inner.acknowledge_cumulative(message_id, None if receipt is None else completing(receipt))
        if receipt is not None:
            await self._answer(receipt)

    async def negative_acknowledge(self, message: Message | MessageId | ArrowBatch) -> None:
        """Ask for a message again after `negative_ack_redelivery_delay_ms`, or as its back-off says.

        Takes what `receive_arrow` returned, too.
        """
        check_generation(self._generation)
        if isinstance(message, ArrowBatch):
            self._inner.refuse_rows(message)
            return
        message_id = _validation.id_of(message)
        if self._inner.is_closed:
            # Everything unacknowledged comes again anyway.
            return
        self._inner.owner(message_id).negative_acknowledge(message_id, _validation.redelivery_count_of(message))

    async def reconsume_later(
        self, message: Message | list[Message], delay: timedelta | int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Put a message (or each of a list) back with a delay (ms or timedelta), and acknowledge it.

        As in the sync API: a copy goes to the retry topic, after the last try to the dead-letter topic.
        """
        check_generation(self._generation)
        messages = _validation.messages_of(message)
        delay_ms = _validation.retry_delay(delay)
        await self._inner.reconsume_later(messages, delay_ms, _validation.retry_properties(properties))

    async def get_positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return the last message id and the subscription's mark-delete position of every partition.

        Everything up to the mark-delete position is acknowledged; where it is not below the last id nothing is left
        to receive. (GET_LAST_MESSAGE_ID's consumer_mark_delete_position.)
        """
        return await self._inner.positions()

    def redeliver_unacknowledged_messages(self) -> None:
        """Ask for everything unacknowledged again, now; does nothing on a closed consumer. A plain function."""
        check_generation(self._generation)
        if not self._inner.is_closed:
            self._inner.redeliver_all()

    async def unsubscribe(self, topic: str | None = None, *, force: bool = False) -> None:
        """Remove the subscription at the broker and close; `force` also when others are connected to it.

        With one of several topics, remove it there and go on with the others; raises `InvalidConfiguration` for a topic
        that is not read. Messages of it can no longer be acknowledged.
        """
        await self._inner.leave(topic, force=force)

    def pause(self, *, strict: bool = False) -> None:
        """Ask the broker for no more messages; those already asked for still come.

        With `strict` they do not: as in the sync API, nothing more is received until `resume`.
        """
        check_generation(self._generation)
        self._inner.pause(strict=strict)

    def resume(self) -> None:
        """Ask for messages again after `pause`."""
        check_generation(self._generation)
        self._inner.resume()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None


class Reader(Receiving):
    """Read a topic from a position of one's own; nothing stays at the broker."""

    async def read_next(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; raises `Timeout` after `timeout_millis`. Cancelling it loses nothing."""
        # Of a time-out that must be looked at closely, the long way.
        if self._prefetched and (timeout_millis is None or type(timeout_millis) is int):
            try:
                return self._prefetched.popleft()
            except IndexError:
                pass
        return await self._next(timeout_millis)

    async def has_message_available(self) -> bool:
        """Return whether there is a message between the place reached and the end."""
        check_generation(self._generation)
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
        work = ArrowRangeReader(
            self._inner,
            end=end,
            columns=columns,
            max_rows=max_rows,
            max_bytes=max_bytes,
            publish_time=publish_time,
        )
        await work.refresh_ends()
        stalled_at = self._loop.time() + timeout_millis / 1000
        while not work.done:
            if work.must_go_back:
                await work.go_back()
            soon = min(self._loop.time() + _SETTLE_SECONDS, stalled_at)
            taken = self._inner.dequeue_rows() or await self._wait_for(self._inner.dequeue_rows, soon)
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
                await work.refresh_ends()
        for batch in work.rest():
            yield batch

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.read_next()
        except AlreadyClosed:
            raise StopAsyncIteration from None
