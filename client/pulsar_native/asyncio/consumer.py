"""Consumer and reader of the asyncio API.

Rule: cancelling a waiting call loses no message, since only a running task dequeues one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from pulsar_native import _validation
from pulsar_native._message_fields import MessageQueue
from pulsar_native._type_vars import T_co
from pulsar_native.arrow.batch import ArrowBatch
from pulsar_native.arrow.columns import ALL_COLUMNS
from pulsar_native.arrow.package import import_pyarrow
from pulsar_native.asyncio._base import Closeable
from pulsar_native.asyncio.transaction import Transaction
from pulsar_native.engine.consumer.ack_receipts import completing
from pulsar_native.engine.consumer.arrow_range_reader import ArrowRangeReader
from pulsar_native.engine.consumer.arrow_receiver import ArrowReceiver
from pulsar_native.engine.consumer.batch_collector import BatchFull, batch_collector
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer, SeekTarget
from pulsar_native.engine.loop import check_generation, check_loop, generation
from pulsar_native.engine.metrics.reports import of_consumer
from pulsar_native.engine.waiter import no_receipt
from pulsar_native.exceptions import AlreadyClosed, PulsarException, Timeout
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.stats import CloseReport, ConsumerStats

if TYPE_CHECKING:
    import pyarrow


T = TypeVar("T")
_MIB = 1024 * 1024
_SETTLE_SECONDS = 0.5


class Receiving(Closeable, Generic[T_co]):
    """Common base of consumers and readers: waiting for messages in the calling task."""

    def __init__(self, inner: MultiTopicsConsumer, decoder: VersionedDecoder) -> None:
        self._inner = inner
        self._decoder = decoder
        # True if a message needs its writer's schema or interceptors between dequeueing and returning it.
        self._attends = decoder.needs_writer or inner.chain is not None
        if inner.chain is None:
            # Of entries whose writer's schema is known: their first message has been here.
            inner.start_prefetch()
        # Messages that `receive` pops without taking the consumer lock.
        self._prefetched: MessageQueue[Message[T_co]] = inner.prefetched
        self._fast_acks = inner.fast_acks
        if inner.chain is not None:
            inner.chain.bind(self)
        self._loop = inner.client.engine.loop
        self._generation = generation()

    def _described(self) -> str:
        return f"of {self.topic()} through {self._inner.config.subscription_name}"

    async def _next(self, timeout_millis: int | None) -> Message[T_co]:
        """Return the next message if none is prefetched."""
        deadline = _validation.deadline(timeout_millis, self._loop.time())
        try:
            message = await self._take(deadline)
        except PulsarException:
            self._inner.note_failed_receive()
            raise
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    async def _take(
        self,
        deadline: float | None,
        dequeue: Callable[[], Message[T_co] | None] | None = None,
        collected: list[Message[T_co]] | None = None,
    ) -> Message[T_co] | None:
        """Return the next message, None if there is none before the deadline (the loop's clock).

        If its writer's schema cannot be fetched, it is queued again, and before it those `collected`, which are none
        then. Those `collected` that are redelivered or not wanted any more, by what happens during the wait, are
        removed.
        """
        check_generation(self._generation)
        inner = self._inner
        dequeue = dequeue or inner.dequeue
        # Earlier waiters have precedence.
        message = None if inner.has_waiters() else dequeue()
        if message is None:
            restarts = inner.restarts() if collected else {}
            try:
                message = await self._wait_for(dequeue, deadline)
            finally:
                if collected:
                    inner.drop_outdated(collected, restarts)
            if message is None:
                return None
        self._prefetched = inner.prefetched
        return await self._attend(message, collected or []) if self._attends else message

    async def _attend(self, message: Message[T_co], collected: list[Message[T_co]]) -> Message[T_co]:
        version = message.entry.schema.wanted(message.schema_version_bytes()) if self._decoder.needs_writer else None
        if version is not None:
            with self._inner.put_back_on_error(message, collected):
                await self._inner.client.load_writer_schema(message, version)
        chain = self._inner.chain
        return message if chain is None else chain.arrived(message)

    async def _wait_for(self, take: Callable[[], T | None], deadline: float | None) -> T | None:
        """Wait in order of arrival until `take` returns something; None at the deadline (the loop's clock).

        The task waits for a signal only: the message stays in the queue until the task runs, so a cancelled task leaves
        it to the next one, which is woken instead.
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
                # Taken before the waiter is removed: else the next waiter could take it first.
                taken = take()
            except TimeoutError:
                return None
            finally:
                self._inner.forget_wait(wake)
            if taken is not None:
                return taken

    def topic(self) -> str:
        """Return the full name of the topic, the names of several separated by commas, or the pattern."""
        return self._inner.description

    def topics(self) -> list[str]:
        """Return the full names of the current topics, without their partitions."""
        return [topic.full for topic in self._inner.topics]

    def is_connected(self) -> bool:
        """Return whether every partition is connected, which none is in a forked child."""
        return self._inner.is_connected

    def stats(self) -> ConsumerStats:
        """Return the statistics of this consumer or reader. Does not block."""
        check_generation(self._generation)
        return of_consumer(self._inner)

    async def seek(self, messageid: SeekTarget | Callable[[str], SeekTarget | None]) -> None:
        """Reset the position to a message id or a publish time. Waits up to the operation time-out.

        The next message is the one after the id, or the message itself with `start_message_id_inclusive`; `latest` is
        the last message for an inclusive reader. On a durable subscription the message skipped this way is
        acknowledged, since the next consumer would receive it. Cancelling the task does not stop the seek; a second
        one waits for its end. Raises `InvalidConfiguration` for a target of another type, `Timeout`, and other
        subclasses of `PulsarException`. (SEEK.)

        :param messageid: a message id, which moves its partition only (`earliest` and `latest` move all); a time in
            milliseconds since 1970, for the first message published at or after it; or a function of a partition's full
            name that returns one of these, or None to leave the partition. It is called for all partitions before any
            is moved.
        """
        check_loop(self._generation, self._loop)
        await self._inner.seek(messageid)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, with entry -1 if it is empty.

        Raises `Timeout` after the operation time-out, `OperationNotSupported` for a non-persistent topic, which stores
        none. (GET_LAST_MESSAGE_ID.)
        """
        check_loop(self._generation, self._loop)
        return await self._inner.last_message_id()

    async def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every partition; raises as the method for one."""
        check_loop(self._generation, self._loop)
        return await self._inner.last_message_ids()

    def has_reached_end_of_topic(self) -> bool:
        """Return whether the topic is terminated and all of its messages are acknowledged.

        A reader acknowledges what it has returned by itself, at the latest in this call: the broker's answer is seen
        by a later one.
        """
        check_generation(self._generation)
        # The broker tells of the end in answer to that.
        self._inner.acknowledge_read()
        return self._inner.has_reached_end

    def discarded_message_ids(self) -> list[MessageId]:
        """Return the ids of damaged entries that were discarded, at most the last 1,000 of each partition."""
        return [message_id for child in self._inner.children for message_id in list(child.undecodable.discarded)]

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Send gathered acknowledgements and close. Idempotent.

        Waiting calls raise `AlreadyClosed`. Returns the numbers of acknowledgements sent and left, and of messages
        queued.

        :param timeout: seconds, also for the broker's counts in the report. Default None: the operation time-out.
        """
        limit = _validation.checked_timeout(timeout)
        check_loop(self._generation, self._loop)
        if self._inner.is_closed:
            return CloseReport()
        began = self._loop.time()
        parts = await self._inner.close(limit)
        return CloseReport(seconds=self._loop.time() - began, consumers=parts)


class Consumer(Receiving[T_co]):
    """Consumer of a subscription, created by `Client.subscribe`. Belongs to the client's loop; not thread-safe.

    Generic in the type of the values, which is the schema's.
    An async context manager that closes it, and an async iterator of messages that ends when it is closed.
    """

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._inner.config.subscription_name

    def consumer_name(self) -> str:
        """Return this consumer's name."""
        return self._inner.name

    def last_disconnected_timestamp(self) -> int:
        """Return when a partition was last disconnected, in ms since 1970; 0 if none was.

        That is a lost connection, or a topic that the broker closed, such as one it unloads; not a seek. Of several
        topics the latest counts, of a pattern those that it has now.
        """
        return self._inner.last_disconnected_timestamp

    async def receive(self, timeout_millis: int | None = None) -> Message[T_co]:
        """Return the next message. Waits until there is one; waiting tasks are served in order.

        Cancelling the task loses no message. A message that cannot be decrypted is not returned, unless
        `crypto_failure_action` is `CONSUME`. Raises `Timeout` and `AlreadyClosed`.

        :param timeout_millis: limit in milliseconds. Default None: no limit.
        """
        # Other types of time-out are checked on the slow path.
        if self._prefetched and (timeout_millis is None or type(timeout_millis) is int):
            try:
                return self._prefetched.popleft()
            except IndexError:
                pass
        return await self._next(timeout_millis)

    async def batch_receive(self) -> list[Message[T_co]]:
        """Return messages up to the limits of `batch_receive_policy`; none if none came in its time.

        A cancelled call leaves the messages it had collected to the next receive. Messages that cannot be decrypted
        are left out, as by `receive`. Raises `AlreadyClosed`.
        """
        collector = batch_collector(self._inner, self._inner.config, self._loop.time())
        try:
            while True:
                message = None
                with contextlib.suppress(BatchFull):
                    while (
                        message := await self._take(collector.deadline, collector.dequeue, collector.messages)
                    ) is not None:
                        if collector.add(message) or collector.add_all(self._prefetched):
                            break
                if not self._inner.held:
                    return collector.messages
                # A strict pause has begun: put the messages back, and go on waiting while time is left.
                self._inner.put_back(collector.clear())
                if message is None:
                    return []
        except (PulsarException, asyncio.CancelledError) as error:
            self._inner.put_back(collector.clear())
            if isinstance(error, PulsarException):
                self._inner.note_failed_receive(batch=True)
            raise

    def negative_acknowledge_now(self, message: Message | MessageId) -> None:
        """Have a message redelivered without delay.

        :param message: a message or a message id. Raises `InvalidMessage` for another type.
        """
        check_generation(self._generation)
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
        """Return messages as the rows of an Arrow record batch, with their ids for `acknowledge`.

        Returns at `max_rows`, `max_bytes` or `timeout_millis`, whichever is first; there may be no rows. The limits are
        exact: the rest of an entry stays for the next receive of either kind. Rows of a partition are consecutive and
        in order. Values are payloads as published. A call that raises, or is cancelled, leaves the messages it had
        collected to the next receive. Needs pyarrow (extra `arrow`).

        Raises `InvalidConfiguration` on consumers with interceptors or `receiver_queue_size=0`; `AlreadyClosed`; and
        `CryptoError` for a message that cannot be decrypted, until it is taken with `receive`.

        :param max_rows: number of rows. Default 10000.
        :param max_bytes: sum of the payloads in bytes; a larger first message is one row. Default 8388608.
        :param timeout_millis: limit in milliseconds, default 100; None for no limit.
        :param columns: names of the columns. Default all: `ALL_COLUMNS`.
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
                    # A strict pause has begun: put the messages back, and go on waiting while time is left.
                    rows.put_back()
                    if taken:
                        continue
                return rows.result()
        except (PulsarException, asyncio.CancelledError) as error:
            rows.put_back()
            if isinstance(error, PulsarException):
                self._inner.note_failed_receive(batch=True)
            raise

    async def acknowledge(
        self,
        message: Message | MessageId | Sequence[Message | MessageId] | ArrowBatch,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge messages, so that the broker does not redeliver them.

        Does not wait: acknowledgements are gathered and sent within `acknowledgment_group_time_ms`. With
        `ack_receipt_enabled` it waits until the broker has answered, and raises the broker's error or `Timeout`;
        cancelling the task does not take the acknowledgement back. A batch is acknowledged with its last message,
        unless `batch_index_ack_enabled`. Raises `InvalidMessage` for an argument of another type, and `AlreadyClosed`.

        :param message: a message, a message id, a list of these, or the result of `receive_arrow`.
        :param txn: transaction whose commit makes the acknowledgement effective (PIP-31). It is then sent at once and
            waits for the answer, a list as one request. Raises `TransactionConflict` if the message was acknowledged
            before, in this transaction or otherwise; the transaction can only be aborted then. Default None.
        """
        if txn is None and isinstance(message, Message):
            pending = self._fast_acks.get(message.entry.topic)
            if pending is not None:
                pending.add(message)
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
        # Longer than the request's own time-out, so that the request's error is raised.
        seconds = self._inner.client.config.operation_timeout_seconds + config.acknowledgment_group_time_ms / 1000 + 1
        try:
            async with asyncio.timeout(seconds):
                await receipt
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise no_receipt(seconds) from error

    async def acknowledge_cumulative(self, message: Message | MessageId, *, txn: Transaction | None = None) -> None:
        """Acknowledge all messages of a partition up to and including this one. Waits and raises as `acknowledge` does.

        Raises `CumulativeAcknowledgementNotAllowedError` on Shared and Key_Shared subscriptions.

        :param message: a message or a message id.
        :param txn: transaction whose commit makes the acknowledgement effective. Default None.
        """
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
        """Have a message redelivered after `negative_ack_redelivery_delay_ms`, or its back-off. Does not wait.

        Raises `InvalidMessage` for an argument of another type; no effect on a closed consumer.

        :param message: a message, a message id, or the result of `receive_arrow`.
        """
        check_generation(self._generation)
        if isinstance(message, ArrowBatch):
            self._inner.refuse_rows(message)
            return
        message_id = _validation.id_of(message)
        if self._inner.is_closed:
            # The broker redelivers all unacknowledged messages anyway.
            return
        self._inner.owner(message_id).negative_acknowledge(message_id, _validation.redelivery_count_of(message))

    async def reconsume_later(
        self, message: Message | list[Message], delay: timedelta | int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish messages to the retry topic for later delivery, and acknowledge them.

        A copy goes to the retry topic with its number of attempts (property RECONSUMETIMES); after
        `max_redeliver_count` attempts it goes to the dead-letter topic. On an error the message is redelivered; a call
        that is cancelled goes on. Raises `InvalidMessage` for arguments of another type, and `InvalidConfiguration`
        without `enable_retry`. (PIP-58.)

        :param message: a message or a list of messages; ids are not enough.
        :param delay: delay, a timedelta or milliseconds; effective on Shared and Key_Shared subscriptions only.
        :param properties: properties added to the copies. Default none.
        """
        check_generation(self._generation)
        messages = _validation.messages_of(message)
        delay_ms = _validation.retry_delay(delay)
        await self._inner.reconsume_later(messages, delay_ms, _validation.retry_properties(properties))

    async def reconsume_later_cumulative(
        self, message: Message, delay: timedelta | int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message to the retry topic, and acknowledge everything up to it in its partition.

        Only this message is published again, as in the Java client: those before it are done. Else as
        `reconsume_later`; raises `CumulativeAcknowledgementNotAllowedError` on Shared and Key_Shared subscriptions,
        before anything is published.

        :param message: a message; an id is not enough.
        :param delay: delay, a timedelta or milliseconds; without effect on Exclusive and Failover subscriptions, whose
            messages the broker does not delay.
        :param properties: properties added to the copy. Default none.
        """
        check_generation(self._generation)
        delay_ms = _validation.retry_delay(delay)
        added = _validation.retry_properties(properties)
        await self._inner.reconsume_later_cumulative(_validation.message_of(message), delay_ms, added)

    async def get_positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return last message id and mark-delete position of every partition.

        All messages up to the mark-delete position are acknowledged; if it is not below the last id, none is left to
        receive. Raises `Timeout` after the operation time-out. (GET_LAST_MESSAGE_ID, consumer_mark_delete_position.)
        """
        check_loop(self._generation, self._loop)
        return await self._inner.positions()

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages redelivered now. Not a coroutine; no effect on a closed consumer.

        A non-persistent topic redelivers nothing: there it has no effect either.
        """
        check_generation(self._generation)
        if not self._inner.is_closed:
            self._inner.redeliver_all()

    async def unsubscribe(self, topic: str | None = None, *, force: bool = False) -> None:
        """Delete the subscription at the broker and close the consumer.

        Raises what the broker answers, for instance if other consumers are connected to the subscription: it is
        consumed as before then.

        :param topic: one of several topics, where the subscription is deleted while the others stay; its messages can
            no longer be acknowledged. Raises `InvalidConfiguration` for a topic that is not subscribed to. Default
            None: all.
        :param force: True deletes the subscription although other consumers are connected (PIP-313). Default False.
        """
        check_loop(self._generation, self._loop)
        await self._inner.leave(topic, force=force)

    def pause(self, *, strict: bool = False) -> None:
        """Stop granting permits to the broker; messages on granted permits still arrive. Not a coroutine.

        :param strict: True also stops delivery to the application: after the return of this call nothing is received
            until `resume`, by `receive`, `batch_receive` or iteration; waiting calls go on waiting, or time out.
            Exclusive and Failover consumers keep their queue in order. Shared and Key_Shared consumers return queued
            and arriving entries to the broker for other consumers, each entry once per pause, which counts as one
            redelivery; redelivered entries, partly received batches and chunks are kept. Default False.
        """
        check_generation(self._generation)
        self._inner.pause(strict=strict)

    def resume(self) -> None:
        """Grant permits again after `pause`, or for the first time with `start_paused`. Not a coroutine."""
        check_generation(self._generation)
        self._inner.resume()

    def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        return self

    async def __anext__(self) -> Message[T_co]:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None


class Reader(Receiving[T_co]):
    """Reader of topics from a given position, created by `Client.create_reader`. Belongs to the client's loop.

    Generic in the type of the values, which is the schema's.
    Nothing stays at the broker when it is closed. An async context manager that closes it, and an async iterator of
    messages that ends when it is closed.
    """

    async def read_next(self, timeout_millis: int | None = None) -> Message[T_co]:
        """Return the next message. Waits until there is one; waiting tasks are served in order.

        Cancelling the task loses no message. A message that cannot be decrypted is not returned, unless
        `crypto_failure_action` is `CONSUME`. Raises `Timeout` and `AlreadyClosed`.

        :param timeout_millis: limit in milliseconds. Default None: no limit.
        """
        # Other types of time-out are checked on the slow path.
        if self._prefetched and (timeout_millis is None or type(timeout_millis) is int):
            try:
                return self._prefetched.popleft()
            except IndexError:
                pass
        return await self._next(timeout_millis)

    async def has_message_available(self) -> bool:
        """Return whether there is a message between the current position and the end of the topic.

        Waits for the broker's answer if no message is queued, then up to 5 s for the next entry, which may be a chunk
        of a message that no producer completed; raises `Timeout` after the operation time-out.
        """
        check_generation(self._generation)
        return await self._inner.has_message_available()

    async def arrow_batches(
        self,
        *,
        end: MessageId | None = None,
        columns: Sequence[str] = ALL_COLUMNS,
        max_rows: int = 10_000,
        max_bytes: int = _MIB,
        timeout_millis: int = 60_000,
        publish_time: tuple[int | None, int | None] | None = None,
    ) -> AsyncIterator[pyarrow.RecordBatch]:
        """Yield Arrow record batches from the current position up to an end.

        The result is complete or an error is raised: `Timeout`, `ChecksumError` for a damaged entry, `CryptoError`
        for one that cannot be decrypted, unless the crypto failure action is DISCARD, which leaves it out. The rows
        read and not yielded when the iteration is left early are lost to the reader, until it seeks back.
        Needs pyarrow (extra `arrow`).

        :param end: first message id that is not read, exact to the index in a batch. Default None: all messages present
            at the call.
        :param columns: names of the columns. Default all: `ALL_COLUMNS`.
        :param max_rows: number of rows of a record batch. Default 10000.
        :param max_bytes: approximate size of a record batch in bytes, exceeded by a larger entry. Default 1048576.
        :param timeout_millis: limit in milliseconds of the wait for the next message. Default 60000.
        :param publish_time: only messages published in [from, until), in milliseconds since 1970; None for no bound.
            Default None: all.
        """
        check_loop(self._generation, self._loop)
        import_pyarrow("arrow_batches")
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

    def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        return self

    async def __anext__(self) -> Message[T_co]:
        try:
            return await self.read_next()
        except AlreadyClosed:
            raise StopAsyncIteration from None
