"""Producer of one topic or partition: `protocol.producer` on a connection, with its timers.

Rules: `enqueue` may be called from any thread; it encodes and writes in that thread, under the producer's lock, and
wakes the loop only to arm a timer. The lock is never held across the application's callbacks. After a reconnect
everything pending is written again before anything new.

Messages that have only a payload go through `enqueue_plain`, those with usual keys, properties and event times too
through `enqueue_described`: while a batch is open, the checks for each of them (capacity of batch, queue and memory,
ids, timers) were made once for many (`_open_fast_path`), and they are appended to the `FastPathBuffer` without a lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client_context import ClientContext
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.handler import Handler, State, is_unanswered
from pulsar_native.engine.metrics.statistics import ProducerRecorder
from pulsar_native.engine.producer import backpressure
from pulsar_native.engine.producer.backpressure import Backpressure, CapacityWaiters
from pulsar_native.engine.transaction import Transactions
from pulsar_native.engine.waiter import SendWait
from pulsar_native.enums import ProducerAccessMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    ChecksumError,
    NotAllowedError,
    NotConnected,
    ProducerBlockedQuotaExceededException,
    ProducerFenced,
    PulsarException,
    TopicTerminated,
    from_server_error,
)
from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.batch_builder import described_by
from pulsar_native.protocol.data_keys import Encryptor
from pulsar_native.protocol.producer import NoRoomForChunks, ProducerCore
from pulsar_native.protocol.send_op import Callback, ChunkOp, FlushWaiters, SendCallback, SendOp, SendReceipt
from pulsar_native.protocol.transaction import NotRegistered, TransactionCore
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

# Bytes reserved of the client's memory limit at once for later messages.
_RESERVE_BYTES = 16 * 1024
# Number of threads that may append a message at the same instant without exceeding the limit of the queue.
_MOST_AT_ONCE = 16
_MANY = 1 << 30


class ProducerClient(ClientContext, Protocol):
    """Client of a partition's producer."""

    transactions: Transactions

    def producer_recorder(self, topic: TopicName) -> ProducerRecorder | None: ...


class PartitionProducer(Handler):
    """Engine side of a producer. `enqueue`, `flush_then` and the properties are thread-safe, everything else is on the
    loop.
    """

    client: ProducerClient

    def __init__(
        self,
        client: ProducerClient,
        config: ProducerConfig,
        topic: TopicName,
        *,
        max_pending: int,
        schema: pb.Schema | None,
        encryptor: Encryptor | None = None,
    ) -> None:
        super().__init__(client, topic, mandatory_stop=max(0.1, config.send_timeout_millis / 1000 - 0.1))
        self.config = config
        self.core = ProducerCore(
            config,
            client.next_producer_id(),
            topic=topic.full,
            partition=topic.partition,
            max_pending=max_pending,
            encryptor=encryptor,
        )
        self._schema = schema
        self._max_pending = max_pending
        self._fast_path = self.core.fast_path
        self._counts_memory = client.memory.limit > 0
        self._lock = threading.Lock()
        self._capacity_waiters = CapacityWaiters()
        self._flush_waiters = FlushWaiters()
        self._batch_timer_armed = False
        self._expiry_armed = False
        # Entries of the queue may not be written to the connection, which is to be closed.
        self._is_interrupted = False
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._name_known = config.producer_name is not None
        # None while recording is off; called per entry, never per message.
        self.stats: ProducerRecorder | None = client.producer_recorder(topic)
        # For the report of the close.
        self.confirmed_messages = 0
        self.failed_messages = 0

    def describe(self) -> str:
        """Return a short name for logs."""
        return f"Producer {self.core.name or self.core.producer_id} of {self.topic}"

    # --- connection -----------------------------------------------------------------------------------------------

    def is_registered(self, connection: Connection) -> bool:
        """Return True if the connection passes the broker's frames to this producer."""
        return connection.is_open and connection.has_producer(self.core.producer_id)

    async def attach(self, connection: Connection) -> None:
        """Create the producer at the broker and resend what has no receipt."""
        producer_id = self.core.producer_id
        request_id = self.client.next_request_id()
        frame = commands.producer(
            self.config,
            topic=self.topic.full,
            producer_id=producer_id,
            request_id=request_id,
            name=self.core.name if self._name_known else None,
            name_is_users=self.config.producer_name is not None,
            epoch=self._epoch,
            topic_epoch=self._topic_epoch,
            schema=self._schema,
        )
        self._epoch += 1
        connection.add_producer(producer_id, self)
        try:
            answer = await self.ask(request_id, frame, connection, pb.CommandProducerSuccess)
        except BaseException as error:
            connection.remove_producer(producer_id)
            if is_unanswered(error):
                # The broker may finish the creation later: it must not keep an unused producer. It registers a producer
                # a while after it has read PRODUCER, and a close that it reads in between has no effect.
                self._close_unused(connection)
                connection.on_late_answer(request_id, partial(self._close_unused, connection))
            raise
        # The broker's next frame may close the producer again (an unload): read, and dispatched, before this task
        # continued. Messages sent to a closed producer are lost without a response.
        if self.state not in (State.CONNECTING, State.READY) or not self.is_registered(connection):
            connection.remove_producer(producer_id)
            connection.write([commands.close_producer(producer_id, self.client.next_request_id())])
            raise NotConnected("The producer was closed, or the connection lost, meanwhile", topic=self.topic.full)
        with self._lock:
            self._name_known = True
            if answer.HasField("topic_epoch"):
                self._topic_epoch = answer.topic_epoch
            self.core.connected(
                answer.producer_name, answer.last_sequence_id, answer.schema_version, connection.max_message_size
            )
            self.connection, self._is_interrupted = connection, False
            ended = self._remove_ended()
            doubtful = self._remove(partial(self.core.remove_doubtful, answer.last_sequence_id))
            for op in self.core.queue.ops:
                connection.write(op.parts)
        self._fail_ended(ended)
        for op in doubtful:
            self._completed(op, backpressure.may_be_stored(self.topic.full, self.disconnect_reason), None)

    def _close_unused(self, connection: Connection) -> None:
        """Have the broker close the producer, unless it is created on that connection once more."""
        producer_id = self.core.producer_id
        if not connection.has_producer(producer_id):
            connection.write([commands.close_producer(producer_id, self.client.next_request_id())])

    @property
    def is_started(self) -> bool:
        """True if it was created at the broker, or is being created."""
        return True

    @property
    def waits_for_its_turn(self) -> bool:
        """True while this producer is queued for exclusive access."""
        return self.config.access_mode is ProducerAccessMode.WaitForExclusive

    def detached(self) -> None:
        """Forget the connection; messages sent meanwhile are queued."""
        with self._lock:
            if self.connection is not None:
                self.core.disconnected()
            super().detached()

    def is_final(self, error: PulsarException) -> bool:
        """Return True for a terminated topic and lost exclusive access, which do not recover."""
        return isinstance(error, TopicTerminated | ProducerFenced)

    def not_back_yet(self, error: PulsarException) -> None:
        """Fail pending messages if the topic's backlog quota says so (policy producer_exception); the other policy
        holds them.
        """
        if isinstance(error, ProducerBlockedQuotaExceededException):
            self._fail_all(error)

    def gave_up(self, error: PulsarException) -> None:
        """Fail everything pending; later sends fail with the same error."""
        self.state = State.TERMINATED if isinstance(error, TopicTerminated) else State.FAILED
        self.failure = error
        self._fail_all(error)
        self.leave()

    # --- sending --------------------------------------------------------------------------------------------------

    def enqueue_plain(self, payload: bytes, callback: SendCallback | None) -> Backpressure | None:
        """Add a message that has only a payload; return the backpressure when it was not accepted. Thread-safe, never
        blocks.
        """
        # Inlined: a function call costs as much as all of this; see `FastPathBuffer` for why it needs no lock.
        fast_path = self._fast_path
        items = fast_path.items
        if len(items) < fast_path.capacity and len(payload) <= fast_path.max_payload:
            if callback is None:
                items.append(payload)
            else:
                fast_path.has_tuples = True
                items.append((payload, callback, b""))
            if not fast_path.is_open:
                self.drain_late()
            return None
        full = self.enqueue(payload, b"", None, callback)
        if full is None:
            self._open_fast_path()
        return full

    def enqueue_described(self, payload: bytes, callback: SendCallback | None, fields: bytes) -> Backpressure | None:
        """Add a message with encoded fields that need no check, as `enqueue_plain`."""
        fast_path = self._fast_path
        items = fast_path.items
        if len(items) < fast_path.capacity and len(payload) + len(fields) <= fast_path.max_payload:
            fast_path.has_tuples = True
            items.append((payload, callback, fields))
            if not fast_path.is_open:
                self.drain_late()
            return None
        full = self.enqueue(payload, fields, described_by(fields), callback)
        if full is None:
            self._open_fast_path()
        return full

    def drain_late(self) -> None:
        """Process messages appended to the fast path while another thread closed its batch. Thread-safe."""
        with self._lock:
            if self._fast_path.is_open or not self._fast_path.items:
                return
            ready = self.core.drain_late(time.monotonic(), time.time_ns() // 1_000_000)
            self._write(ready)
            if self.core.reserved_bytes < 0:
                self._give_back_ahead()
            is_over = self.state is not State.READY and self.state is not State.CONNECTING
        if is_over:
            self._fail_all(self._refusal())
        else:
            self._arm_timers()
            self._complete_failed()

    def _open_fast_path(self) -> None:
        """Open the fast path for the next messages that need no checks of their own."""
        core = self.core
        if not core.batching:
            return
        with self._lock:
            if not core.batch_is_open or self.state is not State.READY:
                return
            late = core.drain_fast_path()
            if late:
                self._write(late)
            count = _MANY
            if self._max_pending:
                count = self._max_pending - core.pending_messages - _MOST_AT_ONCE
            size = _MANY
            if self._counts_memory:
                if core.reserved_bytes < _RESERVE_BYTES // 2:
                    core.reserved_bytes += self.client.memory.reserve_ahead(_RESERVE_BYTES - core.reserved_bytes)
                size = core.reserved_bytes
            core.open_fast_path(count, size)

    def enqueue_reading_inline(self, payload: bytes, wait: SendWait) -> Backpressure | None:
        """Send a message of a waiting sender, in a batch of its own, and try to read its receipt in this thread.

        Otherwise as `enqueue` with `flush`. Blocks a few ms at most.
        """
        connection = self.connection
        reads_inline = False
        try:
            reads_inline = connection is not None and connection.begin_inline_read()
            full = self.enqueue(payload, b"", None, wait, flush=True)
            if reads_inline and full is None and connection is not None:
                connection.read_inline(wait)
            return full
        finally:
            if reads_inline and connection is not None:
                connection.end_inline_read()

    def _give_back_ahead(self) -> bool:
        """Release memory reserved for messages that were not appended; return True if there was any.

        Called under the lock, with the fast path closed.
        """
        size, self.core.reserved_bytes = self.core.reserved_bytes, 0
        if not self._counts_memory or not size:
            return False
        if size < 0:
            # Late appends used more than was reserved.
            self.client.memory.reserve(-size)
            return False
        self.client.memory.release(size)
        return True

    def _makes_room(self, size: int) -> bool:
        """Send the open batch, as the memory limit is reached; return True if the message is accepted all the same."""
        self._write(self.core.close_batch())
        return self._give_back_ahead() and self.client.memory.try_reserve(size)

    def enqueue(
        self,
        payload: bytes,
        fields: bytes,
        extras: OutgoingMessage | None,
        callback: SendCallback | None,
        *,
        flush: bool = False,
        is_reserved: bool = False,
    ) -> Backpressure | None:
        """Add a message; return the backpressure when it was not accepted. Thread-safe, never blocks; `flush` closes
        its batch.

        With `is_reserved` the caller has reserved its bytes of the memory limit, and keeps them if it is not accepted.
        """
        now = time.monotonic()
        memory = self.client.memory
        size = 0 if is_reserved else len(payload)
        with self._lock:
            if self.state is not State.READY and self.state is not State.CONNECTING:
                raise self._refusal()
            core = self.core
            if self._max_pending and core.pending_messages >= self._max_pending:
                self._write(core.close_batch())
                return Backpressure(backpressure.queue_full(self._max_pending, self.topic.full), self.wait_for_room)
            is_counted = self._counts_memory and not is_reserved
            if is_counted and not memory.try_reserve(size) and not self._makes_room(size):
                return Backpressure(backpressure.memory_full(memory.limit, self.topic.full), memory.wait_for_room)
            try:
                ready = core.add(payload, fields, extras, callback, now, time.time_ns() // 1_000_000)
                if flush:
                    ready += core.close_batch()
                    self._give_back_ahead()
                if ready:
                    self._write(ready)
            except (NoRoomForChunks, NotRegistered) as missing:
                memory.release(size)
                self._write(core.drain_fast_path())
                return self._not_taken(missing)
            except BaseException as error:
                self._not_added(size, error)
                raise
            idle = not self._expiry_armed or (core.batch_is_open and not self._batch_timer_armed)
        if idle:
            self._arm_timers()
        if core.failed:
            self._complete_failed()
        return None

    def enqueue_entry(
        self,
        payloads: list[bytes],
        fields: list[bytes] | None,
        first: OutgoingMessage | None,
        callback: Callable[[int], Callback],
        transaction: TransactionCore | None = None,
    ) -> int | Backpressure:
        """Add messages from the first on as one entry and return how many, 0 when the first must go through `enqueue`.

        `callback(count)` returns the callback, which is called once, with the last message's id. Thread-safe, never
        blocks.
        """
        now = time.monotonic()
        memory = self.client.memory
        with self._lock:
            if self.state is not State.READY and self.state is not State.CONNECTING:
                raise self._refusal()
            core = self.core
            kind = None
            if transaction is not None:
                try:
                    kind = core.kind_in(transaction, None, now)
                except NotRegistered as missing:
                    return self._not_taken(missing)
            limit = self._entry_limit(len(payloads))
            if limit <= 0:
                self._write(core.close_batch())
                return Backpressure(backpressure.queue_full(self._max_pending, self.topic.full), self.wait_for_room)
            count, size = core.fits(payloads, fields, limit)
            if count < 2:
                return 0
            if not memory.try_reserve(size):
                self._write(core.close_batch())
                self._give_back_ahead()
                return Backpressure(backpressure.memory_full(memory.limit, self.topic.full), memory.wait_for_room)
            if count < len(payloads):
                payloads, fields = payloads[:count], None if fields is None else fields[:count]
            wall_ms = time.time_ns() // 1_000_000
            self._write_entry(payloads, size, fields, first, callback(count), now, wall_ms, kind)
            idle = not self._expiry_armed
        if idle:
            self._arm_timers()
        if core.failed:
            self._complete_failed()
        return count

    def _write_entry(self, *entry: Any) -> None:
        try:
            self._write(self.core.add_entry(*entry))
        except BaseException:
            self._interrupted()
            raise

    def _not_added(self, size: int, error: BaseException) -> None:
        """Undo what `enqueue` has done for a message. Called under the lock."""
        self.client.memory.release(size)
        self.core.open_batch.repair()
        if not isinstance(error, Exception):
            self._interrupted()
        self._write(self.core.drain_fast_path())

    def _entry_limit(self, wanted: int) -> int:
        """Return how many messages the next entry may have. Called under the lock."""
        if not self._max_pending:
            return wanted
        # At most half of the pending limit, so that one entry is in transit while the next one is built.
        return min(self._max_pending - self.core.pending_messages, max(1, self._max_pending // 2))

    def _not_taken(self, missing: NoRoomForChunks | NotRegistered) -> Backpressure:
        """Return the backpressure: wait for capacity for all chunks, or for the registration in a transaction."""
        if isinstance(missing, NoRoomForChunks):
            return Backpressure(
                backpressure.queue_full(self._max_pending, self.topic.full),
                partial(self.wait_for_room, needed=missing.needed),
            )
        error = backpressure.not_joined(self.topic.full)
        return Backpressure(error, partial(self.client.transactions.join, missing.transaction, self), always_waits=True)

    def joined(self, transaction: TransactionCore) -> None:
        """Accept messages of a transaction from now on: the partition is registered. Thread-safe."""
        with self._lock:
            self.core.transactions.add(transaction)

    def leave_transaction(self, transaction: TransactionCore) -> None:
        """Forget a transaction that is sealed; its messages without a receipt fail and are never written again."""
        with self._lock:
            ended = self._remove_ended()
            self.core.transactions.discard(transaction)
        self._fail_ended(ended)

    def _remove_ended(self) -> list[SendOp]:
        """Remove and return entries that must not be written any more. Called under the lock."""
        return self._remove(partial(self.core.remove_ended, time.monotonic()))

    def _remove(self, remove: Callable[[], list[SendOp]]) -> list[SendOp]:
        """Remove entries of transactions from the queue. Called under the lock."""
        if not self.core.transactions:
            return []
        before = list(self.core.queue.ops)
        taken = remove()
        if taken and self._flush_waiters.waiting:
            ready = self._flush_waiters.without(set(taken), before)
            if ready:
                self.engine.call(self.engine.loop.call_soon, _all_done, ready)
        return taken

    def _fail_ended(self, ended: list[SendOp]) -> None:
        if not ended:
            return
        self._complete_failed()
        for op in ended:
            assert op.transaction is not None
            self._completed(op, op.transaction.refusal(), None)
        if self.core.queue.refused:
            self._fail_refused()

    def _arm_timers(self) -> None:
        """Wake the loop for the timers that do not run: once, then they rearm themselves under traffic."""
        with self._lock:
            arm_batch = self.core.batch_is_open and not self._batch_timer_armed
            arm_expiry = not self._expiry_armed
            self._batch_timer_armed |= arm_batch
            self._expiry_armed = True
        try:
            if arm_batch:
                self.engine.call(self._batch_timer)
            if arm_expiry:
                self.engine.call(self._expiry_timer)
        except BaseException:
            # A signal handler's. A timer that runs twice ends both times.
            self._batch_timer_armed &= not arm_batch
            self._expiry_armed &= not arm_expiry
            raise

    def _write(self, ops: list[SendOp]) -> None:
        """Write entries that are queued. Called under the lock."""
        try:
            if self.stats is not None and ops:
                self.stats.sent(ops)
            connection = self.connection
            if connection is not None and not self._is_interrupted:
                for op in ops:
                    connection.write(op.parts)
        except BaseException:
            self._interrupted()
            raise

    def _interrupted(self) -> None:
        """Write nothing more to this connection, and have all pending entries written to another, in their order.

        For an exception of a signal handler, such as Ctrl-C, between the steps that queue and write entries: some may
        not be written, or in part. Called under the lock.
        """
        connection = self.connection
        if connection is not None and not self._is_interrupted:
            self._is_interrupted = True
            self.engine.call_soon(connection.close, "an exception of a signal handler interrupted a send")

    def _refusal(self) -> PulsarException:
        if self.failure is not None:
            return type(self.failure)(self.failure.message, topic=self.topic.full, broker=self.failure.broker)
        return AlreadyClosed("The producer is closed", topic=self.topic.full)

    def wait_for_room(self, wake: Callable[[], None], needed: int = 1) -> None:
        """Call `wake` once there is capacity in the queue for so many messages or chunks. Thread-safe."""
        with self._lock:
            if self._max_pending and self.core.pending_messages + needed > self._max_pending:
                self._capacity_waiters.add(needed, wake)
                return
        wake()

    def flush_then(self, done: Callable[[PulsarException | None], None]) -> None:
        """Send the open batch and call `done` when everything sent before has its receipt. Thread-safe."""
        with self._lock:
            try:
                ended = self._remove_ended()
                self._write(self.core.close_batch())
                self._give_back_ahead()
            except BaseException:
                self._interrupted()
                raise
            # Of a batch that could not be encoded, and so is in the queue no more.
            error = self.core.failed[0][1] if self.core.failed else None
            pending = self.core.queue.ops
            if pending:
                self._flush_waiters.add(pending[-1], done if error is None else partial(_fail, done, error))
                done = _nothing
        self._fail_ended(ended)
        self._complete_failed()
        done(error)

    # --- receipts and errors ----------------------------------------------------------------------------------------

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """Complete the entry with its id."""
        with self._lock:
            queue = self.core.queue
            oldest = queue.ops[0] if queue.ops else None
            if oldest is None or oldest.sequence_id == receipt.sequence_id or not self._flush_waiters.waiting:
                outcome, op = queue.receipt(receipt.sequence_id)
            else:
                before = list(queue.ops)
                outcome, op = queue.receipt(receipt.sequence_id)
                if op is not None:
                    # It overtook others: a flush that waits for it waits for those, too.
                    self._flush_waiters.without({op}, before)
        self._received(receipt, outcome, op)

    def complete_inline(self, receipt: pb.CommandSendReceipt, callback: object) -> bool:
        """Complete the oldest entry in this thread, not the loop's, if it has this callback only and nobody else waits.

        Return True if so; else nothing is changed.
        """
        with self._lock:
            pending = self.core.queue.ops
            op = pending[0] if pending else None
            if (
                op is None
                or op.sequence_id != receipt.sequence_id
                or len(op.callbacks) != 1
                or op.callbacks[0] is not callback
                or self._flush_waiters.waiting
                or self._capacity_waiters.waiting
            ):
                return False
            outcome, op = self.core.queue.receipt(receipt.sequence_id)
        self._received(receipt, outcome, op)
        return True

    def _received(self, receipt: pb.CommandSendReceipt, outcome: SendReceipt, op: SendOp | None) -> None:
        if op is not None:
            self._confirmed(receipt, op)
            if self.core.queue.refused:
                self._fail_refused()
        elif outcome is SendReceipt.OUT_OF_STEP and self.connection is not None:
            # The broker confirmed an entry that is not the oldest here: reconnect and resend everything.
            self.connection.close("a receipt came out of step")

    def _confirmed(self, receipt: pb.CommandSendReceipt, op: SendOp) -> None:
        ledger, entry = commands.entry_key(receipt.message_id)
        if entry < 0 and (op.was_damaged or self._was_overtaken(op)):
            # Later entries were stored meanwhile: deduplication drops the resent one as older than them.
            error = backpressure.lost_to_deduplication if op.was_damaged else backpressure.overtaken
            self._completed(op, error(self.topic.full), None)
        elif entry >= 0 and isinstance(op, ChunkOp) and op.is_alone:
            self._completed(op, backpressure.incomplete(self.topic.full), None)
        else:
            self.confirmed_messages += op.count
            self._completed(op, None, (self.topic.partition, ledger, entry))

    def _was_overtaken(self, op: SendOp) -> bool:
        """Return True for a resent entry of a transaction if a plain one sent after it was confirmed before it."""
        is_resent = op.may_be_stored and op.transaction is not None
        return is_resent and op.highest_sequence_id < self.core.queue.last_published

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """Recover from, or give up after, an error for one entry."""
        broker = self.connection.broker if self.connection else None
        failure = from_server_error(error.error, error.message, topic=self.topic.full, broker=broker)
        if isinstance(failure, TopicTerminated):
            self.gave_up(failure)
            return
        if isinstance(failure, NotAllowedError) or (isinstance(failure, ChecksumError) and not self._is_intact(error)):
            with self._lock:
                self.core.queue.refuse(error.sequence_id, failure)
            self._fail_refused()
            return
        if isinstance(failure, ChecksumError):
            with self._lock:
                self.core.queue.damaged(error.sequence_id)
        # Any other error may be transient: the producer is created again on the same connection and resends what is
        # pending.
        connection = self.connection
        if connection is not None:
            connection.remove_producer(self.core.producer_id)
            self.disconnected(connection, f"the broker refused a message: {failure.message}")
            self.reconnect()

    def _is_intact(self, error: pb.CommandSendError) -> bool:
        with self._lock:
            return self.core.queue.is_intact(error.sequence_id)

    def _fail_refused(self) -> None:
        with self._lock:
            refused = self.core.queue.take_refused()
        for op, error in refused:
            self._completed(op, error, None)

    def _completed(self, op: SendOp, error: PulsarException | None, place: tuple[int, int, int] | None) -> None:
        if self._counts_memory:
            self.client.memory.release(op.size)
        if error is not None:
            self.failed_messages += op.count
            if op.may_be_stored:
                error = backpressure.as_unconfirmed(error)
        if self.stats is not None:
            self.stats.completed(op, error is not None, time.monotonic())
        op.complete(error, place, self.core.topic)
        if self._flush_waiters.waiting:
            self._flush_waiters.completed(op, error)
        if self._capacity_waiters.waiting:
            self._wake_for_room()

    def _wake_for_room(self) -> None:
        with self._lock:
            alive = self.state is State.READY or self.state is State.CONNECTING
            # A closed producer wakes all: they receive its error.
            woken = self._capacity_waiters.pop_ready(self._max_pending - self.core.pending_messages if alive else None)
        for wake in woken:
            wake()

    def _complete_failed(self) -> None:
        with self._lock:
            failed, self.core.failed = self.core.failed, []
        for op, error in failed:
            self._completed(op, error, None)

    def _fail_all(self, error: PulsarException) -> None:
        with self._lock:
            ops = self.core.drain()
            self._give_back_ahead()
        self._complete_failed()
        for op in ops:
            self._completed(op, error, None)

    # --- timers ---------------------------------------------------------------------------------------------------

    def _batch_timer(self) -> None:
        ended: list[SendOp] = []
        delay = None
        with self._lock:
            if not self.core.batch_is_open:
                self._batch_timer_armed = False
                self._give_back_ahead()
            else:
                delay = self.core.batch_due() - time.monotonic()
                if delay <= 0:
                    ended = self._remove_ended()
                    self._write(self.core.close_batch())
                    # Rearmed for one more round: under steady traffic the next batch then needs no wake-up.
                    delay = self.config.batching_max_publish_delay_ms / 1000
        self._fail_ended(ended)
        # Also those of a batch that a refused message has closed: nobody else completes them.
        self._complete_failed()
        if delay is not None:
            self.call_later(delay, self._batch_timer)

    def _expiry_timer(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = self.core.next_expiry()
            if due is None:
                self._expiry_armed = False
                return
            ops = self.core.expire(now)
            due = self.core.next_expiry() or now + self.config.send_timeout_millis / 1000
        self._complete_failed()
        if ops:
            reason = ""
            if self.connection is None and self.failure is None:
                reason = f"the producer is not connected: {self.why_not_connected}"
            error = self.core.timeout_error(reason)
            for op in ops:
                self._completed(op, error, None)
        self.call_later(max(due - now, 0.001), self._expiry_timer)

    # --- end ------------------------------------------------------------------------------------------------------

    async def opening_ended(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds for a creation that its first message began: there is none."""

    def unconfirmed(self) -> int:
        """Return how many messages wait for their receipts. Thread-safe."""
        return self.core.pending_messages

    def begin_to_close(self) -> None:
        """Accept no more messages."""
        with self._lock:
            self.state = State.CLOSING
            # `enqueue` refuses messages from now on.
            self._fast_path.close()

    def begin_to_close_idle(self, connection: Connection) -> bool:
        """Accept no more messages, if it is attached to the connection and has nothing to send. Thread-safe."""
        with self._lock:
            core = self.core
            is_idle = not (core.queue.ops or core.batch_is_open or core.failed or core.transactions)
            if self.state is not State.READY or self.connection is not connection or not is_idle:
                return False
            self.state = State.CLOSING
            self._fast_path.close()
            return True

    def abandon(self) -> None:
        """Close without a message to the broker; everything pending fails."""
        self.state = State.CLOSED
        self._fail_all(AlreadyClosed("The producer was closed before the broker confirmed", topic=self.topic.full))
        self.leave()


def _nothing(_error: PulsarException | None) -> None:
    """Do nothing; replaces a callback that was passed on."""


def _fail(
    done: Callable[[PulsarException | None], None], error: PulsarException, _later: PulsarException | None
) -> None:
    """Call a callback with an error that came before the one, or the success, it is called with."""
    done(error)


def _all_done(waiters: list[Callable[[PulsarException | None], None]]) -> None:
    for done in waiters:
        done(None)
