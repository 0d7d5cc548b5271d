"""Consumer and reader of the sync API: split, verify and decode entries in the calling thread, and run listeners."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pulsar_native import _validation
from pulsar_native._callback_errors import callback_errors
from pulsar_native._loggers import get_logger
from pulsar_native._message_fields import MessageQueue, compiled_form
from pulsar_native._type_vars import T_co
from pulsar_native.arrow.batch import ArrowBatch
from pulsar_native.arrow.columns import ALL_COLUMNS
from pulsar_native.arrow.package import import_pyarrow
from pulsar_native.config import MessageListenerExecutor
from pulsar_native.engine.consumer.arrow_range_reader import ArrowRangeReader
from pulsar_native.engine.consumer.arrow_receiver import ArrowReceiver
from pulsar_native.engine.consumer.batch_collector import BatchFull, batch_collector
from pulsar_native.engine.consumer.listener import Drain, ExecutedCalls, ListenerThreads, is_thread_of
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer, SeekTarget
from pulsar_native.engine.loop import (
    check_generation,
    this_process,
)
from pulsar_native.engine.metrics.reports import of_consumer
from pulsar_native.engine.waiter import AckWait, Wait
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
    Timeout,
    log_text,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.stats import CloseReport, ConsumerStats
from pulsar_native.sync._base import Closeable
from pulsar_native.sync.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow

_log = get_logger("pulsar_native")

T = TypeVar("T")
_MIB = 1024 * 1024
# Seconds without a message after which a bounded read asks the broker whether any are left.
_SETTLE_SECONDS = 0.5
# Pause of a listener before the next attempt to fetch a writer's schema, in seconds.
_RETRY_SECONDS = 1.0


class Receiving(Closeable, Generic[T_co]):
    """Common base of consumers and readers: waiting for messages in the calling thread, and listeners."""

    def __init__(
        self,
        client: object,
        inner: MultiTopicsConsumer,
        decoder: VersionedDecoder,
        threads: ListenerThreads,
        kept: set[object],
    ) -> None:
        super().__init__(client, inner.client.engine)
        self._threads = threads
        self._process = this_process()
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
        self._has_listener = False
        # True while the listener waits for another attempt to fetch a writer's schema.
        self._is_retrying = False
        self._submit: Callable[[Drain], None] | None = None
        # Calls that the application's executor runs; None where the listener thread does.
        self._executed: ExecutedCalls | None = None
        self._listener: Callable[[Message[T_co]], Any] = _ignore
        self._kept = kept
        self._listening = True
        # True from the begin of a close or unsubscribe on, unless that fails: the listener is called no more.
        self._is_closing = False
        # Held while the listener is called, so that a strict pause can wait for the running call.
        self._draining = threading.RLock()

    def _described(self) -> str:
        return f"of {self.topic()} through {self._inner.config.subscription_name}"

    def _next(self, timeout_millis: int | None, refusal: str) -> Message[T_co]:
        """Return the next message if none is prefetched; raise `refusal` if there is a listener."""
        if self._has_listener:
            raise InvalidConfiguration(refusal)
        deadline = None if timeout_millis is None else _validation.deadline(timeout_millis, time.monotonic())
        try:
            message = self._take(deadline)
        except PulsarException:
            self._inner.note_failed_receive()
            raise
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    def _take(
        self,
        deadline: float | None,
        dequeue: Callable[[], Message[T_co] | None] | None = None,
        collected: list[Message[T_co]] | None = None,
    ) -> Message[T_co] | None:
        """Return the next message, None if there is none before the deadline (monotonic seconds).

        If its writer's schema cannot be fetched, it is queued again, and before it those `collected`, which are none
        then. Those `collected` that are redelivered or not wanted any more, by what happens during the wait, are
        removed. With a listener the fetch is repeated later, and None is returned.
        """
        if self._process.is_over:
            check_generation(self._generation)
        inner = self._inner
        dequeue = dequeue or inner.dequeue
        # Earlier waiters have precedence.
        message = None if inner.has_waiters() else dequeue()
        if message is None:
            restarts = inner.restarts() if collected else {}
            try:
                message = self._wait_for(dequeue, deadline)
            finally:
                if collected:
                    inner.drop_outdated(collected, restarts)
            if message is None:
                return None
        if not self._has_listener:
            self._prefetched = inner.prefetched
        return self._attend(message, collected or []) if self._attends else message

    def _take_now(self) -> Message[T_co] | None:
        """Return the next message if none is prefetched, for the listener; None if there is none, or at the end."""
        try:
            return self._take(time.monotonic())
        except AlreadyClosed:
            return None

    def _attend(self, message: Message[T_co], collected: list[Message[T_co]]) -> Message[T_co] | None:
        version = message.entry.schema.wanted(message.schema_version_bytes()) if self._decoder.needs_writer else None
        if version is not None:
            try:
                with self._inner.put_back_on_error(message, collected):
                    self._engine.run(self._inner.client.load_writer_schema(message, version))
            except Exception as error:
                if not self._has_listener or isinstance(error, AlreadyClosed):
                    raise
                self._retry_later(error)
                return None
        chain = self._inner.chain
        return message if chain is None else chain.arrived(message)

    def _retry_later(self, error: Exception) -> None:
        """Have the listener's thread take the same message again after a pause, in which it can do other work."""
        self._is_retrying = True
        _log.warning(
            "Cannot fetch the writer's schema of a message of %s for its listener, next try in %g s: %s",
            self.topic(), _RETRY_SECONDS, log_text(error),
        )  # fmt: skip
        engine = self._engine
        engine.call(engine.loop.call_later, _RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        self._wake_listener()

    def _wake_listener(self) -> None:
        wake = self._inner.on_ready
        if wake is not None:
            wake()

    def _wait_for(self, take: Callable[[], T | None], deadline: float | None) -> T | None:
        """Wait in order of arrival until `take` returns something; None at the deadline (monotonic seconds)."""
        if deadline is None or deadline > time.monotonic():
            self._engine.check_may_wait()
        while True:
            wait = Wait()
            try:
                self._inner.wait_then(wait.wake)
                woken = wait.wait(None if deadline is None else deadline - time.monotonic())
                # Taken before the waiter is removed: else the next waiter could take it first.
                taken = take() if woken else None
                self._inner.forget_wait(wait.wake)
            except BaseException:
                # Not in a `finally`: the handler of a signal may raise within that call, too.
                self._inner.forget_wait(wait.wake)
                raise
            if taken is not None or not woken:
                return taken

    def _listen(
        self, listener: Callable[[Message[T_co]], Any], executor: MessageListenerExecutor | None = None
    ) -> None:
        self._has_listener = True
        # Prefetched messages belong to the listener: receive() raises.
        self._prefetched = MessageQueue()
        self._listener = listener
        # The client keeps what listens, so that an application need not; the engine does not, so that both can go.
        self._kept.add(self)
        inner = self._inner
        self._submit = submit = self._threads.assign()
        inner.on_ready = wake = _wake_of(weakref.ref(self), submit)
        if executor is not None:
            limit = max(1, inner.config.receiver_queue_size)
            self._executed = self._threads.executed_calls(executor, limit, self._may_call, wake)
        # With receiver_queue_size=0, the first attempt requests the first message.
        if inner.may_have_more() or inner.asks_for_each:
            wake()

    def _drain(self) -> None:
        """Call the listener for what is queued. In the listener's thread."""
        inner, threads, listener, executed = self._inner, self._threads, self._listener, self._executed
        with self._draining:
            while self._listening and not self._is_closing and threads.is_open and not self._is_retrying:
                if executed is not None and executed.is_full:
                    return
                message: Message[T_co] | None
                try:
                    message = inner.prefetched.popleft()
                except IndexError:
                    message = self._take_now()
                if message is None:
                    return
                if executed is not None:
                    self._execute(message)
                    continue
                # As `_call`, without its cost for each message.
                try:
                    listener(message)
                except callback_errors():
                    self._log_failure("message listener", message)

    def _call(self, message: Message[T_co]) -> None:
        try:
            self._listener(message)
        except callback_errors():
            self._log_failure("message listener", message)

    def _execute(self, message: Message[T_co]) -> None:
        """Have the executor call the listener; a message it rejects is one whose listener failed."""
        inner, executed = self._inner, self._executed
        assert executed is not None
        try:
            owner = inner.owner(message.message_id())
        except PulsarException:
            # Its topic was removed meanwhile: it is redelivered to the next consumer.
            return
        restarts = {owner: owner.core.restarts}
        try:
            executed.start(message, partial(self._call, message), lambda: inner.put_back([message], restarts))
        except callback_errors():
            self._log_failure("message listener executor", message)

    def _log_failure(self, what: str, message: Message[T_co]) -> None:
        # The message stays unacknowledged: redelivered after the ack time-out or to the next consumer.
        name = self._inner.name
        _log.exception(
            "The %s of consumer %s of %s failed for %s", what, name, message.topic_name(), message.message_id()
        )

    def _may_call(self) -> bool:
        """Return True unless the listener is paused, or the consumer is, strictly, or closed."""
        return self._listening and not self._is_closing and not self._inner.held

    def _wait_for_calls(self, seconds: float) -> None:
        """Wait for the listener's running call, after `_is_closing` or `held` was changed."""
        if self._executed is not None:
            # The listener thread makes no call, and may be waiting in the executor for the calling one.
            self._executed.wait_ended(seconds)
        elif self._draining.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            # The listener's thread holds the lock while it has messages to deliver.
            self._draining.release()

    def _on_listener_thread(self) -> bool:
        """Return True if the calling thread is the one that calls the listener."""
        return self._submit is not None and is_thread_of(self._submit)

    def _stop_listening(self, limit: float | None) -> None:
        """Stop calling the listener and wait up to `limit` seconds for its running call.

        Order of events: 1. the flag is set, which the listener's thread reads before each message; 2. the lock is
        acquired, which that thread holds during a call. After 2 no call runs and none begins.
        """
        self._is_closing = True
        self._kept.discard(self)
        if self._has_listener and not self._engine.on_loop():
            seconds = self._inner.client.config.operation_timeout_seconds if limit is None else limit
            self._wait_for_calls(seconds)

    def _listen_again(self) -> None:
        """Undo `_stop_listening`, unless the consumer was closed meanwhile."""
        if self._inner.is_closed:
            return
        self._is_closing = False
        if self._has_listener:
            self._kept.add(self)
            self._wake_listener()

    def _set_listening(self, listening: bool) -> None:
        check_generation(self._generation)
        if not self._has_listener:
            raise InvalidConfiguration(
                "There is no message_listener to pause or resume; to stop receiving, use pause() and resume()"
            )
        self._listening = listening
        if listening:
            self._wake_listener()

    def topic(self) -> str:
        """Return the full name of the topic, the names of several separated by commas, or the pattern."""
        return self._inner.description

    def topics(self) -> list[str]:
        """Return the full names of the current topics, without their partitions. Does not block."""
        return [topic.full for topic in self._inner.topics]

    def is_connected(self) -> bool:
        """Return whether every partition is connected, which none is in a forked child. Does not block."""
        return self._inner.is_connected

    def stats(self) -> ConsumerStats:
        """Return the statistics of this consumer or reader. Does not block."""
        check_generation(self._generation)
        return of_consumer(self._inner)

    def seek(self, messageid: SeekTarget | Callable[[str], SeekTarget | None]) -> None:
        """Reset the position to a message id or a publish time. Blocks up to the operation time-out; thread-safe.

        The next message is the one after the id, or the message itself with `start_message_id_inclusive`; `latest` is
        the last message for an inclusive reader. On a durable subscription the message skipped this way is
        acknowledged, since the next consumer would receive it. Raises `InvalidConfiguration` for a target of another
        type, `Timeout`, and other subclasses of `PulsarException`. (SEEK.)

        :param messageid: a message id, which moves its partition only (`earliest` and `latest` move all); a time in
            milliseconds since 1970, for the first message published at or after it; or a function of a partition's full
            name that returns one of these, or None to leave the partition. It is called for all partitions before any
            is moved.
        """
        self._engine.run(self._inner.move(self._inner.seek_targets(messageid)))

    def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, with entry -1 if it is empty. Blocks; thread-safe.

        Raises `Timeout` after the operation time-out, `OperationNotSupported` for a non-persistent topic, which stores
        none. (GET_LAST_MESSAGE_ID.)
        """
        return self._engine.run_eager(self._inner.last_message_id())

    def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every partition. Blocks; thread-safe; raises as the method for one."""
        return self._engine.run_eager(self._inner.last_message_ids())

    def has_reached_end_of_topic(self) -> bool:
        """Return whether the topic is terminated and all of its messages are acknowledged. Does not block.

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

    def close(self, timeout: float | None = None) -> CloseReport:
        """Send gathered acknowledgements and close. Blocks; thread-safe; idempotent.

        Waiting calls raise `AlreadyClosed`. The listener is not called any more, and its running call is waited for,
        unless it is the caller. Returns the numbers of acknowledgements sent and left, and of messages queued.

        :param timeout: seconds for all of that, also for the broker's counts in the report. Default None: the operation
            time-out, once for the listener's call and once for the rest.
        """
        limit = _validation.checked_timeout(timeout)
        if self._inner.is_closed:
            self._kept.discard(self)
            return CloseReport()
        # Before the listener's lock, which its thread may have held at a fork.
        check_generation(self._generation)
        began = time.monotonic()
        self._stop_listening(limit)
        left = None if limit is None else max(0.0, limit - (time.monotonic() - began))
        parts = None if self._engine.on_loop() else self._inner.close_inline(left)
        if parts is None:
            parts = self._engine.run(self._inner.close(left))
        return CloseReport(seconds=time.monotonic() - began, consumers=parts)


def _ignore(_message: Message[Any]) -> None:
    """Do nothing with a message."""


def _wake_of(receiving: weakref.ref[Receiving[Any]], submit: Callable[[Drain], None]) -> Drain:
    """Return the function that the engine calls when there are messages; it does not keep their consumer alive."""
    scheduled = threading.Event()

    def drain() -> None:
        scheduled.clear()
        found = receiving()
        if found is not None:
            found._drain()

    def wake() -> None:
        if not scheduled.is_set():
            scheduled.set()
            submit(drain)

    return wake


class Consumer(Receiving[T_co]):
    """Consumer of a subscription, created by `Client.subscribe`. Thread-safe; a context manager that closes it.

    Generic in the type of the values, which is the schema's.
    """

    def __init__(
        self,
        client: object,
        inner: MultiTopicsConsumer,
        decoder: VersionedDecoder,
        threads: ListenerThreads,
        kept: set[object],
        listener: MessageListener[T_co] | None,
        executor: MessageListenerExecutor | None = None,
    ) -> None:
        super().__init__(client, inner, decoder, threads, kept)
        config = inner.config
        self._wants_receipts = config.ack_receipt_enabled
        # Longer than the request's own time-out, so that the request's error is raised.
        self._receipt_seconds = (
            inner.client.config.operation_timeout_seconds + config.acknowledgment_group_time_ms / 1000 + 1
        )
        if listener is not None:
            self._listen(lambda message: listener(self, message), executor)

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._inner.config.subscription_name

    def consumer_name(self) -> str:
        """Return this consumer's name."""
        return self._inner.name

    def last_disconnected_timestamp(self) -> int:
        """Return when a partition was last disconnected, in ms since 1970; 0 if none was. Does not block.

        That is a lost connection, or a topic that the broker closed, such as one it unloads; not a seek. Of several
        topics the latest counts, of a pattern those that it has now.
        """
        return self._inner.last_disconnected_timestamp

    @compiled_form
    def receive(self, timeout_millis: int | None = None) -> Message[T_co]:
        """Return the next message. Blocks until there is one; thread-safe, waiting calls are served in order.

        A message that cannot be decrypted is not returned, unless `crypto_failure_action` is `CONSUME`. Raises
        `Timeout`, `AlreadyClosed`, `Interrupted`, and `InvalidConfiguration` on a consumer with a `message_listener`.

        :param timeout_millis: limit in milliseconds. Default None: no limit.
        """
        # Other types of time-out are checked on the slow path.
        if self._prefetched and (timeout_millis is None or type(timeout_millis) is int):
            try:
                return self._prefetched.popleft()
            except IndexError:
                pass
        return self._next(timeout_millis, "receive() cannot be used on a consumer with a message_listener")

    def batch_receive(self) -> list[Message[T_co]]:
        """Return messages up to the limits of `batch_receive_policy`, or none. Blocks; thread-safe.

        A message that cannot be decrypted is left out as by `receive`. Raises `AlreadyClosed`, `Interrupted`, and
        `InvalidConfiguration` on a consumer with a `message_listener`; what it had collected then stays queued.
        """
        if self._has_listener:
            raise InvalidConfiguration("batch_receive() cannot be used on a consumer with a message_listener")
        collector = batch_collector(self._inner, self._inner.config, time.monotonic())
        try:
            while True:
                message = None
                with contextlib.suppress(BatchFull):
                    while (
                        message := self._take(collector.deadline, collector.dequeue, collector.messages)
                    ) is not None:
                        if collector.add(message) or collector.add_all(self._prefetched):
                            break
                if not self._inner.held:
                    return collector.messages
                # A strict pause has begun: put the messages back, and go on waiting while time is left.
                self._inner.put_back(collector.clear())
                if message is None:
                    return []
        except BaseException as error:
            # Of an interrupted call, too.
            self._inner.put_back(collector.clear())
            if isinstance(error, PulsarException):
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
        """Return messages as the rows of an Arrow record batch, with their ids for `acknowledge`. Blocks; thread-safe.

        Returns at `max_rows`, `max_bytes` or `timeout_millis`, whichever is first; there may be no rows. The limits are
        exact: the rest of an entry stays for the next receive of either kind. Rows of a partition are consecutive and
        in order. Values are payloads as published. A call that raises leaves the messages it had collected to the next
        receive. Needs pyarrow (extra `arrow`).

        Raises `InvalidConfiguration` on consumers with a listener, interceptors, or `receiver_queue_size=0`;
        `AlreadyClosed`, `Interrupted`; and `CryptoError` for a message that cannot be decrypted, until it is taken with
        `receive`.

        :param max_rows: number of rows. Default 10000.
        :param max_bytes: sum of the payloads in bytes; a larger first message is one row. Default 8388608.
        :param timeout_millis: limit in milliseconds, default 100; None for no limit.
        :param columns: names of the columns. Default all: `ALL_COLUMNS`.
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
                    # A strict pause has begun: put the messages back, and go on waiting while time is left.
                    rows.put_back()
                    if taken:
                        continue
                return rows.result()
        except BaseException as error:
            # Of an interrupted call, too.
            rows.put_back()
            if isinstance(error, PulsarException):
                self._inner.note_failed_receive(batch=True)
            raise

    @compiled_form
    def acknowledge(
        self,
        message: Message | MessageId | Sequence[Message | MessageId] | ArrowBatch,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge messages, so that the broker does not redeliver them. Thread-safe.

        Does not block: acknowledgements are gathered and sent within `acknowledgment_group_time_ms`. With
        `ack_receipt_enabled` it blocks until the broker has answered, and raises the broker's error or `Timeout`. A
        batch is acknowledged with its last message, unless `batch_index_ack_enabled`. Raises `InvalidMessage` for an
        argument of another type, and `AlreadyClosed`.

        :param message: a message, a message id, a list of these, or the result of `receive_arrow`.
        :param txn: transaction whose commit makes the acknowledgement effective (PIP-31). It is then sent at once and
            blocks for the answer, a list as one request. Raises `TransactionConflict` if the message was acknowledged
            before, in this transaction or otherwise; the transaction can only be aborted then. Default None.
        """
        if txn is None and isinstance(message, Message):
            pending = self._fast_acks.get(message.entry.topic)
            if pending is not None:
                pending.add(message)
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
            # A callback of the client cannot wait; a failure is raised by the commit.
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
        """Acknowledge all messages of a partition up to and including this one. Blocks and raises as `acknowledge`.

        Raises `CumulativeAcknowledgementNotAllowedError` on Shared and Key_Shared subscriptions.

        :param message: a message or a message id.
        :param txn: transaction whose commit makes the acknowledgement effective. Default None.
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
        """Have a message redelivered after `negative_ack_redelivery_delay_ms`, or its back-off.

        Does not block; thread-safe; no effect on a closed consumer. Raises `InvalidMessage` for an argument of another
        type.

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

    def reconsume_later(
        self, message: Message | list[Message], delay: timedelta | int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish messages to the retry topic for later delivery, and acknowledge them. Blocks; thread-safe.

        A copy goes to the retry topic with its number of attempts (property RECONSUMETIMES); after
        `max_redeliver_count` attempts it goes to the dead-letter topic. On an error the message is redelivered. Raises
        `InvalidMessage` for arguments of another type, and `InvalidConfiguration` without `enable_retry`. (PIP-58.)

        :param message: a message or a list of messages; ids are not enough.
        :param delay: delay, a timedelta or milliseconds; effective on Shared and Key_Shared subscriptions only.
        :param properties: properties added to the copies. Default none.
        """
        check_generation(self._generation)
        messages = _validation.messages_of(message)
        delay_ms = _validation.retry_delay(delay)
        added = _validation.retry_properties(properties)
        self._engine.run(self._inner.reconsume_later(messages, delay_ms, added))

    def reconsume_later_cumulative(
        self, message: Message, delay: timedelta | int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message to the retry topic, and acknowledge everything up to it in its partition. Blocks.

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
        self._engine.run(self._inner.reconsume_later_cumulative(_validation.message_of(message), delay_ms, added))

    def get_positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return last message id and mark-delete position of every partition. Blocks; thread-safe.

        All messages up to the mark-delete position are acknowledged; if it is not below the last id, none is left to
        receive. Raises `Timeout` after the operation time-out. (GET_LAST_MESSAGE_ID, consumer_mark_delete_position.)
        """
        return self._engine.run_eager(self._inner.positions())

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages redelivered now. Does not block; thread-safe; no effect if closed.

        A non-persistent topic redelivers nothing: there it has no effect either.
        """
        check_generation(self._generation)
        if not self._inner.is_closed:
            self._inner.redeliver_all()

    def unsubscribe(self, topic: str | None = None, *, force: bool = False) -> None:
        """Delete the subscription at the broker and close the consumer. Blocks; thread-safe.

        Raises what the broker answers, for instance if other consumers are connected to the subscription: it is
        consumed as before then.

        :param topic: one of several topics, where the subscription is deleted while the others stay; its messages can
            no longer be acknowledged. Raises `InvalidConfiguration` for a topic that is not subscribed to. Default
            None: all.
        :param force: True deletes the subscription although other consumers are connected (PIP-313). Default False.
        """
        check_generation(self._generation)
        if topic is not None:
            self._engine.run(self._inner.leave(topic, force=force))
            return
        try:
            self._stop_listening(None)
            self._engine.run(self._inner.leave(None, force=force))
        except BaseException:
            # The consumer goes on: the broker has rejected it, or the call was interrupted.
            self._listen_again()
            raise

    def pause(self, *, strict: bool = False) -> None:
        """Stop granting permits to the broker; messages on granted permits still arrive. Does not block; thread-safe.

        :param strict: True also stops delivery to the application: after the return of this call nothing is received
            until `resume`, by `receive`, `batch_receive`, iteration or listener; waiting calls go on waiting, or time
            out. Exclusive and Failover consumers keep their queue in order. Shared and Key_Shared consumers return
            queued and arriving entries to the broker for other consumers, each entry once per pause, which counts as
            one redelivery; redelivered entries, partly received batches and chunks are kept. With a listener it blocks
            until the running call has ended, unless called by the listener or by a callback of the client. Default
            False.
        """
        check_generation(self._generation)
        self._inner.pause(strict=strict)
        if strict and self._has_listener and not self._engine.on_loop():
            self._wait_for_calls(threading.TIMEOUT_MAX)

    def resume(self) -> None:
        """Grant permits again after `pause`, or for the first time with `start_paused`. Does not block; thread-safe."""
        check_generation(self._generation)
        self._inner.resume()

    def pause_message_listener(self) -> None:
        """Stop calling the message listener after its running call; queued messages stay. Does not block; thread-safe.

        Raises `InvalidConfiguration` without a listener.
        """
        self._set_listening(False)

    def resume_message_listener(self) -> None:
        """Call the message listener again. Does not block; raises `InvalidConfiguration` without a listener."""
        self._set_listening(True)


MessageListener = Callable[[Consumer[T_co], Message[T_co]], Any]


class Reader(Receiving[T_co]):
    """Reader of topics from a given position, created by `Client.create_reader`. Thread-safe; a context manager.

    Generic in the type of the values, which is the schema's.
    Nothing stays at the broker when it is closed.
    """

    def __init__(
        self,
        client: object,
        inner: MultiTopicsConsumer,
        decoder: VersionedDecoder,
        threads: ListenerThreads,
        kept: set[object],
        listener: Callable[[Reader[T_co], Message[T_co]], Any] | None,
    ) -> None:
        super().__init__(client, inner, decoder, threads, kept)
        if listener is not None:
            self._listen(lambda message: listener(self, message))

    @compiled_form
    def read_next(self, timeout_millis: int | None = None) -> Message[T_co]:
        """Return the next message. Blocks until there is one; thread-safe, waiting calls are served in order.

        A message that cannot be decrypted is not returned, unless `crypto_failure_action` is `CONSUME`. Raises
        `Timeout`, `AlreadyClosed`, `Interrupted`, and `InvalidConfiguration` on a reader with a `reader_listener`.

        :param timeout_millis: limit in milliseconds. Default None: no limit.
        """
        # Other types of time-out are checked on the slow path.
        if self._prefetched and (timeout_millis is None or type(timeout_millis) is int):
            try:
                return self._prefetched.popleft()
            except IndexError:
                pass
        return self._next(timeout_millis, "read_next() cannot be used on a reader with a reader_listener")

    def has_message_available(self) -> bool:
        """Return whether there is a message between the current position and the end of the topic. Thread-safe.

        Blocks for the broker's answer if no message is queued, then up to 5 s for the next entry, which may be a chunk
        of a message that no producer completed; raises `Timeout` after the operation time-out.
        """
        if self._prefetched:
            return True
        # The queue of a forked child is a copy of its parent's.
        check_generation(self._generation)
        return self._inner.has_queued() or self._engine.run_eager(self._inner.has_message_available())

    def arrow_batches(
        self,
        *,
        end: MessageId | None = None,
        columns: Sequence[str] = ALL_COLUMNS,
        max_rows: int = 10_000,
        max_bytes: int = _MIB,
        timeout_millis: int = 60_000,
        publish_time: tuple[int | None, int | None] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield Arrow record batches from the current position up to an end. Blocks; one thread at a time.

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
        check_generation(self._generation)
        import_pyarrow("arrow_batches")
        work = ArrowRangeReader(
            self._inner,
            end=end,
            columns=columns,
            max_rows=max_rows,
            max_bytes=max_bytes,
            publish_time=publish_time,
        )
        self._engine.run_eager(work.refresh_ends())
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
                self._engine.run_eager(work.refresh_ends())
        yield from work.rest()
