"""The blocking consumer and reader: they split, verify and decode entries in the calling thread, and run listeners."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pulsar_native import _validation
from pulsar_native.arrow.batch import ArrowBatch
from pulsar_native.arrow.columns import ALL_COLUMNS
from pulsar_native.engine.consumer.arrow_range_reader import ArrowRangeReader
from pulsar_native.engine.consumer.arrow_receiver import ArrowReceiver
from pulsar_native.engine.consumer.batch_collector import batch_collector
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer, SeekTarget
from pulsar_native.engine.loop import (
    check_generation,
)
from pulsar_native.engine.metrics.statistics import of_consumer
from pulsar_native.engine.waiter import AckWait, Wait
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
    Timeout,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.stats import CloseReport, ConsumerStats
from pulsar_native.sync._base import Closeable

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native.sync.client import Client
    from pulsar_native.sync.transaction import Transaction

_log = logging.getLogger("pulsar_native")

T = TypeVar("T")
MessageListener = Callable[["Consumer", Message], Any]
_MIB = 1024 * 1024
# How long a bounded read waits before it asks the broker whether there is anything left.
_SETTLE_SECONDS = 0.5


class Receiving(Closeable):
    """What consumers and readers share: waiting for messages in the calling thread, and listeners."""

    def __init__(self, client: Client, inner: MultiTopicsConsumer, decoder: VersionedDecoder) -> None:
        super().__init__(client, inner.client.engine)
        self._inner = inner
        self._decoder = decoder
        # Whether there is something to do between taking a message and handing it out.
        self._attends = decoder.needs_writer or inner.chain is not None
        # What `take` has put there can be had without it.
        self._prefetched: deque[Message] = deque() if self._attends else inner.start_prefetch()
        self._fast_acks = inner.fast_acks
        if inner.chain is not None:
            inner.chain.bind(self)
        self._has_listener = False
        self._listening = True
        # Held while the listener is called, so that a strict pause can wait for that.
        self._draining = threading.RLock()

    def _described(self) -> str:
        return f"of {self.topic()} through {self._inner.config.subscription_name}"

    def _next(self, timeout_millis: int | None, refusal: str) -> Message:
        """Return the next message where none is prefetched; with a listener raise with `refusal`."""
        if self._has_listener:
            raise InvalidConfiguration(refusal)
        deadline = _validation.deadline(timeout_millis, time.monotonic())
        try:
            message = self._take(deadline)
        except PulsarException:
            self._inner.note_failed_receive()
            raise
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    def _take(self, deadline: float | None) -> Message | None:
        """Return the next message, None when none comes before the deadline (monotonic seconds)."""
        check_generation(self._generation)
        inner = self._inner
        # Those who wait already go first.
        message = None if inner.has_waiters() else inner.dequeue()
        if message is None:
            message = self._wait_for(inner.dequeue, deadline)
            if message is None:
                return None
        return self._attend(message) if self._attends else message

    def _take_now(self, prefetched: deque[Message]) -> Message | None:
        """Return the next message that is here, for the listener."""
        try:
            return prefetched.popleft()
        except IndexError:
            return self._take(time.monotonic())

    def _attend(self, message: Message) -> Message:
        version = message.entry.schema.wanted(message.schema_version_bytes()) if self._decoder.needs_writer else None
        if version is not None:
            self._load_schema(message, version)
        chain = self._inner.chain
        return message if chain is None else chain.arrived(message)

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
        # What is prefetched is for the listener alone: receive() is refused.
        prefetched, self._prefetched = self._prefetched, deque()
        listeners = self._client._listeners
        submit = listeners.assign()
        scheduled = threading.Event()
        inner = self._inner

        def drain() -> None:
            scheduled.clear()
            with self._draining:
                give_all()

        def give_all() -> None:
            while self._listening and listeners.is_open:
                try:
                    message = self._take_now(prefetched)
                except AlreadyClosed:
                    return
                if message is None:
                    return
                try:
                    listener(message)
                except Exception:
                    # The message stays unacknowledged; the ack time-out or the next consumer gets it.
                    name = inner.children[0].name
                    _log.exception(
                        "The message listener of consumer %s of %s failed for %s",
                        name, message.topic_name(), message.message_id(),
                    )  # fmt: skip

        def wake() -> None:
            if not scheduled.is_set():
                scheduled.set()
                submit(drain)

        inner.on_ready = wake
        # Without a queue, the first look is what asks for the first message.
        if inner.may_have_more() or inner.asks_for_each:
            wake()

    def _stop_listening(self, limit: float | None) -> None:
        """Call the listener no more, and wait up to `limit` seconds for the call that runs to end.

        Order of events: the flag is set first, which the thread that calls the listener reads before each message, so
        that whoever gets the lock after this finds no call running, and none begins.
        """
        self._listening = False
        if self._has_listener and not self._engine.on_loop():
            seconds = self._inner.client.config.operation_timeout_seconds if limit is None else limit
            if self._draining.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
                self._draining.release()

    def _set_listening(self, listening: bool) -> None:
        check_generation(self._generation)
        if not self._has_listener:
            raise InvalidConfiguration(
                "The consumer has no message_listener; pause() and resume() are for those without"
            )
        self._listening = listening
        wake = self._inner.on_ready
        if listening and wake is not None:
            wake()

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

    def seek(self, messageid: SeekTarget | Callable[[str], SeekTarget | None]) -> None:
        """Move to a message id, or to the first message published at or after a time (ms since 1970). Blocks.

        Goes on behind the message sought, or with it where `start_message_id_inclusive` was set; `latest` is the last
        message for a reader that is inclusive. On a durable subscription a message left out so counts as acknowledged,
        since it would come again with the next consumer. A position in
        one partition moves that partition only; `earliest`, `latest` and times move all. A function is called with the
        full name of each partition and returns where that one goes, or None to leave it; nothing is moved before all
        are known.
        """
        self._engine.run(self._inner.move(self._inner.seek_targets(messageid)))

    def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, entry -1 when it is empty. Blocks."""
        return self._engine.run(self._inner.last_message_id())

    def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every partition. Blocks."""
        return self._engine.run(self._inner.last_message_ids())

    def has_reached_end_of_topic(self) -> bool:
        """Return whether the topic is terminated and everything in it acknowledged."""
        return self._inner.has_reached_end

    def discarded_message_ids(self) -> list[MessageId]:
        """Return the entries (at most the last 1,000 a partition) that were damaged and discarded unread."""
        return [message_id for child in self._inner.children for message_id in list(child.decoder.discarded)]

    def close(self, timeout: float | None = None) -> CloseReport:
        """Send gathered acknowledgements and leave; waiting calls raise `AlreadyClosed`. Idempotent.

        A listener is called no more, and its running call is waited for, unless it is the one that closes. Blocks up to
        `timeout` seconds, else the operation time-out. Returns what was acknowledged and what was left.
        """
        limit = _validation.checked_timeout(timeout)
        if self._inner.is_closed:
            return CloseReport()
        began = time.monotonic()
        self._stop_listening(limit)
        parts = self._engine.run(self._inner.close(limit))
        return CloseReport(seconds=time.monotonic() - began, consumers=parts)


class Consumer(Receiving):
    """Receive messages through a subscription. Thread-safe; made by `Client.subscribe`."""

    def __init__(
        self, client: Client, inner: MultiTopicsConsumer, decoder: VersionedDecoder, listener: MessageListener | None
    ) -> None:
        super().__init__(client, inner, decoder)
        config = inner.config
        self._wants_receipts = config.ack_receipt_enabled
        # Longer than a request may take, so that its own error is the one that is raised.
        self._receipt_seconds = (
            inner.client.config.operation_timeout_seconds + config.acknowledgment_group_time_ms / 1000 + 1
        )
        if listener is not None:
            self._listen(lambda message: listener(self, message))

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._inner.config.subscription_name

    def consumer_name(self) -> str:
        """Return this consumer's name."""
        return self._inner.name

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Return the next message. Blocks until there is one; raises `Timeout` after `timeout_millis`."""
        # Of a time-out that must be looked at closely, the long way.
        if self._prefetched and (timeout_millis is None or type(timeout_millis) is int):
            try:
                return self._prefetched.popleft()
            except IndexError:
                pass
        return self._next(timeout_millis, "receive() cannot be used on a consumer with a message_listener")

    def batch_receive(self) -> list[Message]:
        """Return several messages: as many as the batch receive policy says, or as came within its time. Blocks."""
        if self._has_listener:
            raise InvalidConfiguration("batch_receive() cannot be used on a consumer with a message_listener")
        collector = batch_collector(self._inner.config, time.monotonic())
        try:
            while True:
                message = self._take(collector.deadline)
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

    def receive_arrow(
        self,
        *,
        max_rows: int = 10_000,
        max_bytes: int = 8 * _MIB,
        timeout_millis: int | None = 100,
        columns: Sequence[str] = ALL_COLUMNS,
    ) -> ArrowBatch:
        """Return messages as the rows of an Arrow record batch, with what `acknowledge` needs. Blocks.

        Waits until there are `max_rows`, or as many as have at most `max_bytes` of payload (a first one that alone is
        larger is taken), and at most `timeout_millis` (None: for ever); then there may be fewer rows, or none. Both are
        exact: an entry is cut, and its rest stays for the next receive of either kind. Rows of a partition are together
        and in order. Values are payloads as they were published; what cannot be decrypted is no row, and raises
        `CryptoError` until it is taken with `receive`. Not for consumers with a listener, interceptors, or
        receiver_queue_size=0. Needs pyarrow (extra `arrow`).
        """
        check_generation(self._generation)
        if self._has_listener:
            raise InvalidConfiguration("receive_arrow() cannot be used on a consumer with a message_listener")
        rows = ArrowReceiver(self._inner, columns, max_rows, max_bytes)
        deadline = _validation.deadline(timeout_millis, time.monotonic())
        try:
            while True:
                taken = None if self._inner.has_waiters() else rows.collect()
                taken = taken or self._wait_for(rows.collect, deadline)
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

    def acknowledge(
        self,
        message: Message | MessageId | list[Message | MessageId] | ArrowBatch,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Tell the broker that a message, or each of a list, or of what `receive_arrow` returned, is done.

        Does not block; sent within the group time.

        With `ack_receipt_enabled` it blocks until the broker has answered, and raises its error, or `Timeout`. (Of a
        batch nothing is sent, or waited for, before its last message, unless `batch_index_ack_enabled`.)

        In a `txn` it counts when that is committed. It is sent at once and blocks for the answer, each call;
        a list is one request. Raises `TransactionConflict` when it was acknowledged before, in this transaction or
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
            self._acknowledge_in(txn, _validation.ids_of(message), cumulative=False)
            return
        wait = self._receipt() if self._wants_receipts else None
        if isinstance(message, Message):
            self._inner.acknowledge_message(message, wait)
        elif isinstance(message, ArrowBatch):
            self._inner.acknowledge_rows(message, wait)
        else:
            self._inner.acknowledge(_validation.ids_of(message), wait)
        if wait is not None:
            wait.result(self._receipt_seconds)

    def _acknowledge_in(self, txn: Transaction, ids: list[MessageId], *, cumulative: bool) -> None:
        work = _validation.work_of(txn, self._inner.client)
        acknowledging = self._inner.acknowledge_in(work, ids, cumulative=cumulative)
        if self._engine.on_loop():
            # A callback of the client cannot wait; the outcome is seen at the commit.
            task = self._engine.spawn(acknowledging)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            return
        self._engine.run(acknowledging)

    def _receipt(self) -> AckWait:
        if self._engine.on_loop():
            raise OperationNotSupported(
                "With ack_receipt_enabled acknowledging waits for the broker, and cannot be done in a callback of the "
                "client, where it would wait for itself; use another thread"
            )
        return AckWait()

    def acknowledge_cumulative(self, message: Message | MessageId, *, txn: Transaction | None = None) -> None:
        """Tell the broker that everything up to and including a message is done. Blocks as `acknowledge` does.

        Raises `CumulativeAcknowledgementNotAllowedError` on Shared and Key_Shared subscriptions.
        """
        check_generation(self._generation)
        message_id = _validation.id_of(message)
        if txn is not None:
            self._acknowledge_in(txn, [message_id], cumulative=True)
            return
        wait = self._receipt() if self._wants_receipts else None
        self._inner.acknowledge_cumulative(message_id, wait)
        if wait is not None:
            wait.result(self._receipt_seconds)

    def negative_acknowledge(self, message: Message | MessageId | ArrowBatch) -> None:
        """Ask for a message again after `negative_ack_redelivery_delay_ms`, or as its back-off says. Does not block.

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

    def reconsume_later(
        self, message: Message | list[Message], delay: timedelta | int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Put a message (or each of a list) back with a delay (ms or timedelta), and acknowledge it. Blocks.

        A copy goes to the retry topic, with `properties` added and its tries counted (RECONSUMETIMES); after
        `max_redeliver_count` tries it goes to the dead-letter topic. Needs `enable_retry`. On an error the message is
        delivered again. Delays work on Shared and Key_Shared subscriptions only.
        """
        check_generation(self._generation)
        messages = _validation.messages_of(message)
        delay_ms = _validation.retry_delay(delay)
        added = _validation.retry_properties(properties)
        self._engine.run(self._inner.reconsume_later(messages, delay_ms, added))

    def get_positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return the last message id and the subscription's mark-delete position of every partition. Blocks.

        Everything up to the mark-delete position is acknowledged; where it is not below the last id nothing is left
        to receive. (GET_LAST_MESSAGE_ID's consumer_mark_delete_position.)
        """
        return self._engine.run(self._inner.positions())

    def redeliver_unacknowledged_messages(self) -> None:
        """Ask for everything unacknowledged again, now. Does not block; does nothing on a closed consumer."""
        check_generation(self._generation)
        if not self._inner.is_closed:
            self._inner.redeliver_all()

    def unsubscribe(self, topic: str | None = None, *, force: bool = False) -> None:
        """Remove the subscription at the broker and close. Blocks; `force` also when others are connected to it.

        With one of several topics, remove it there and go on with the others; raises `InvalidConfiguration` for a topic
        that is not read. Messages of it can no longer be acknowledged.
        """
        if topic is None:
            self._stop_listening(None)
        self._engine.run(self._inner.leave(topic, force=force))

    def pause(self, *, strict: bool = False) -> None:
        """Ask the broker for no more messages; those already asked for still come. Does not block.

        With `strict` they do not: from the return of this call nothing is received until `resume`, by receive,
        batch_receive, iteration or listener; who waits goes on waiting, or times out. Exclusive and Failover consumers
        keep what they have, in order. Shared and Key_Shared ones hand back to the broker what nobody has looked at, and
        what still comes on granted permits, for other consumers to have: each entry once a pause, which counts as one
        redelivery; one that comes again, a batch partly received, and chunks are kept. With a listener it blocks until
        the call that runs has ended, unless called by the listener itself or by a callback of the client.
        """
        check_generation(self._generation)
        self._inner.pause(strict=strict)
        if strict and self._has_listener and not self._engine.on_loop():
            # Held by the thread that calls the listener, until there is nothing more to give it.
            with self._draining:
                pass

    def resume(self) -> None:
        """Ask for messages again after `pause`. Does not block."""
        check_generation(self._generation)
        self._inner.resume()

    def pause_message_listener(self) -> None:
        """Call the message listener no more, once the present call ends; what the queue holds waits. Does not block.

        Raises `InvalidConfiguration` when there is no listener.
        """
        self._set_listening(False)

    def resume_message_listener(self) -> None:
        """Call the message listener again. Does not block."""
        self._set_listening(True)


class Reader(Receiving):
    """Read a topic from a position of one's own; nothing stays at the broker. Thread-safe."""

    def __init__(
        self,
        client: Client,
        inner: MultiTopicsConsumer,
        decoder: VersionedDecoder,
        listener: Callable[[Reader, Message], Any] | None,
    ) -> None:
        super().__init__(client, inner, decoder)
        if listener is not None:
            self._listen(lambda message: listener(self, message))

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """Return the next message. Blocks until there is one; raises `Timeout` after `timeout_millis`."""
        # Of a time-out that must be looked at closely, the long way.
        if self._prefetched and (timeout_millis is None or type(timeout_millis) is int):
            try:
                return self._prefetched.popleft()
            except IndexError:
                pass
        return self._next(timeout_millis, "read_next() cannot be used on a reader with a reader_listener")

    def has_message_available(self) -> bool:
        """Return whether there is a message between the place reached and the end.

        Blocks for the broker's answer where no message has arrived yet.
        """
        if self._prefetched:
            return True
        # The queue of a forked child is a copy of its parent's.
        check_generation(self._generation)
        return self._inner.has_queued() or self._engine.run(self._inner.has_message_available())

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
        work = ArrowRangeReader(
            self._inner,
            end=end,
            columns=columns,
            max_rows=max_rows,
            max_bytes=max_bytes,
            publish_time=publish_time,
        )
        self._engine.run(work.refresh_ends())
        stalled_at = time.monotonic() + timeout_millis / 1000
        while not work.done:
            if work.must_go_back:
                self._engine.run(work.go_back())
            soon = min(time.monotonic() + _SETTLE_SECONDS, stalled_at)
            taken = self._inner.dequeue_rows() or self._wait_for(self._inner.dequeue_rows, soon)
            if taken is not None:
                work.add(*taken)
                stalled_at = time.monotonic() + timeout_millis / 1000
                yield from work.full()
            elif time.monotonic() >= stalled_at:
                raise Timeout(
                    f"The range is not complete, and nothing came for {timeout_millis} ms", topic=self.topic()
                )
            else:
                self._engine.run(work.refresh_ends())
        yield from work.rest()
