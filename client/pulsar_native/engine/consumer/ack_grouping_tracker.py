"""Ack grouping tracker of a consumer: acknowledgements, negative acks and redelivery requests, with their timers.

Rules: nothing is written per message; acknowledgements are sent by timer or when a group is full, and survive a lost
connection. During a seek the context has no connection: see `PartitionConsumer.begin_seek`. On non-persistent topics
there is nothing to acknowledge: all their ids are the same (0, 0), and nothing is kept or sent. All calls are
thread-safe under the consumer's lock; the loop is woken only to arm a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pulsar_native._loggers import get_logger
from pulsar_native._message_fields import PendingAcks
from pulsar_native.arrow.batch import EntryRange
from pulsar_native.config import RedeliveryBackoff
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.ack_receipts import AckReceipts, Done
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.engine.consumer.dead_letter import DeadLetterRouter
from pulsar_native.enums import ConsumerType
from pulsar_native.exceptions import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidMessage,
    NotConnected,
    OperationNotSupported,
    PulsarException,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.ack_grouping import AckGroup, words_of
from pulsar_native.protocol.chunk_assembly import ChunkAssembly
from pulsar_native.protocol.entry_decoder import Decoded
from pulsar_native.protocol.nack_tracker import NegativeAcksTracker
from pulsar_native.protocol.redelivery_delay import RedeliveryDelay
from pulsar_native.protocol.transaction import AckPosition
from pulsar_native.protocol.unacked_tracker import (
    UnackedMessageRedeliveryTracker,
    UnackedMessageTracker,
)
from pulsar_native.wire import commands
from pulsar_native.wire.commands import TransactionalAckItem
from pulsar_native.wire.entry import EntryKey

_log = get_logger("pulsar_native.consumer")

# With a longer group time, or smaller groups, a full group must be sent immediately, and each message is counted.
_QUICK_GROUP_SECONDS = 1.0
_QUICK_GROUP_SIZE = 1000

# Subscription types on which the broker redelivers single entries; the others rewind to the first unacknowledged.
BY_ENTRY = (ConsumerType.Shared, ConsumerType.KeyShared)


class AckGroupingTracker:
    """Ack grouping tracker of a partition's consumer."""

    def __init__(
        self,
        context: ConsumerContext,
        chunks: ChunkAssembly,
        dead_letter_router: DeadLetterRouter | None,
        *,
        redeliver: Callable[[list[EntryKey] | None], None],
        on_redelivery: Callable[[str, list[EntryKey]], None] | None,
        batch_size_of: Callable[[EntryKey], int],
        next_request_id: Callable[[], int],
    ) -> None:
        """`batch_size_of` returns the size of the batch that is being dequeued, 0 for another entry; `on_redelivery` is
        called with the entries to be redelivered, and why. `redeliver` and `on_redelivery` are called without the lock.
        """
        self._context = context
        self._lock = context.lock
        self._redeliver = redeliver
        self._on_redelivery = on_redelivery
        self._batch_size_of = batch_size_of
        self._chunks = chunks
        self._config = config = context.config
        self._group_time = config.acknowledgment_group_time_ms / 1000
        self._group_size = config.max_acknowledgment_group_size
        self._group = AckGroup(batch_index=config.batch_index_ack_enabled)
        self._tells_parts = config.batch_index_ack_enabled or config.ack_receipt_enabled
        self._ack_timer_armed = False
        self._receipts = AckReceipts(context, self._group, next_request_id) if config.ack_receipt_enabled else None
        delay = config.negative_ack_redelivery_delay_ms / 1000
        self._nacks = NegativeAcksTracker(
            delay,
            precision_bits=config.negative_ack_redelivery_delay_precision,
            backoff=self._guarded(config.negative_ack_redelivery_backoff, "negative_ack_redelivery_backoff", delay),
        )
        self._refused = self._nacks.due
        # When the timer of negative acks is due; None while it is not armed.
        self._nack_timer_at: float | None = None
        timeout = (config.unacked_messages_timeout_ms or 0) / 1000
        self._stored = context.topic.is_persistent
        watched = timeout and self._stored
        self.unacked = UnackedMessageTracker(timeout, config.unacked_messages_tick_ms / 1000) if watched else None
        self._unacked_timer_armed = False
        backoff = self._guarded(config.ack_timeout_redelivery_backoff, "ack_timeout_redelivery_backoff", 0.0)
        self.late = (
            UnackedMessageRedeliveryTracker(backoff) if backoff is not None and self.unacked is not None else None
        )
        self._dead_letter_router = dead_letter_router
        if dead_letter_router is not None:
            dead_letter_router.acks = self
        # Requests that get no response once the broker has closed the consumer.
        self._in_transactions: set[asyncio.Future[Any]] = set()
        # One check per acknowledgement for features most consumers do not use.
        self._has_more_to_forget = self.late is not None or self._dead_letter_router is not None
        # Messages the APIs acknowledged, not yet in the group; open while the timer that moves them there runs, so that
        # the next one needs nothing else.
        self.fast_path = PendingAcks(self._open_fast_path)
        # True if appending suffices: nobody waits for a receipt, and no acknowledgement must be sent before the timer.
        # Time-outs and dead letters are looked at only after the fast path was gathered.
        self.allows_fast_path = (
            self._stored
            and self._receipts is None
            and 0 < self._group_time <= _QUICK_GROUP_SECONDS
            and self._group_size >= _QUICK_GROUP_SIZE
        )

    def _guarded(self, backoff: RedeliveryBackoff | None, option: str, default: float) -> RedeliveryDelay | None:
        return None if backoff is None else RedeliveryDelay(backoff, default, f"{self._context.describe()}: {option}")

    # --- acknowledging ----------------------------------------------------------------------------------------------

    @property
    def group(self) -> AckGroup:
        """Acknowledgements not sent yet. Under the lock."""
        if self.fast_path:
            self._gather_fast_path()
        return self._group

    def _open_fast_path(self, message: Message) -> None:
        """Start the timer for appended messages; remove the message and raise when the consumer is closed.
        Thread-safe.
        """
        with self._lock:
            try:
                self._context.check_usable()
            except PulsarException:
                # Other threads may append concurrently.
                with contextlib.suppress(ValueError, RuntimeError):
                    self.fast_path.remove(message)
                raise
            self.fast_path.is_open = True
            arm, self._ack_timer_armed = not self._ack_timer_armed, True
        if arm:
            self._context.engine.call(self._arm_ack_timer)

    def close_fast_path(self) -> None:
        """Close the fast path: each acknowledgement checks for a closed consumer again. On the loop, without the
        lock.
        """
        with self._lock:
            self.fast_path.is_open = False

    @property
    def has_receipts(self) -> bool:
        """True if the broker's responses are waited for, which takes the loop."""
        return self._receipts is not None

    @property
    def sent(self) -> int:
        """Number of messages acknowledged to the broker."""
        return self._group.taken

    @property
    def entries(self) -> AckGroup:
        """Acknowledgements not sent yet, but for those on the fast path; always the same object. Under the lock."""
        return self._group

    def unsent(self) -> int:
        """Return the number of acknowledgements not sent yet. Acquires the lock."""
        with self._lock:
            return len(self.group)

    def watch(self, key: EntryKey) -> None:
        """Have an entry redelivered that is not acknowledged in time. Called under the lock."""
        if self.unacked is not None:
            self.unacked.add(key)

    def _end_timeout(self, key: EntryKey) -> None:
        if self.unacked is not None:
            self.unacked.remove(key)
        if self.late is not None:
            self.late.remove(key)

    def catch_up(self) -> None:
        """Gather the fast path, and send the group when it is full. Called under the lock."""
        if len(self.group) >= self._group_size:
            self.send()

    def _gather_fast_path(self) -> None:
        """Move the fast path into the group, the messages of an entry together. Called under the lock."""
        # Messages appended meanwhile wait for the next time. Only this method removes any.
        elsewhere = self._chunks.delivered or self._refused or self.unacked is not None or self._has_more_to_forget
        takes_whole = self._stored and not elsewhere
        runs = self._group.add_taken(self.fast_path) if takes_whole else self.fast_path.take_runs()
        for entry, first, count, indexes in runs:
            key = (entry.ledger_id, entry.entry_id)
            several = 0
            if count > 1 and first >= 0:
                if indexes is None:
                    several = (1 << first + count) - (1 << first)
                else:
                    for index in indexes:
                        several |= 1 << index
            self._add(key, first, entry.batch_size, several)

    def add(self, key: EntryKey, batch_index: int, batch_size: int, done: Done | None = None) -> None:
        """Acknowledge one message; with receipts `done` is called with the broker's response."""
        with self._lock:
            whole = self._add(key, batch_index, batch_size)
            if done is not None:
                done = self._await_answer(done)
            # A part of a batch is nothing to send yet, unless batch-index acknowledgement is enabled.
            arm = (whole or self._tells_parts) and self._after_ack()
        if arm or done is not None:
            self._conclude(arm, done)

    def _await_answer(self, done: Done) -> Done | None:
        """Register `done` for the broker's response; return it when there is none to wait for. Called under the
        lock.
        """
        waits = self._stored and self._receipts is not None and self._receipts.wait(done)
        return None if waits else done

    def _gathered(self, done: Done | None) -> tuple[bool, Done | None]:
        """Send the group when it is due; return whether to arm the timer, and the callback to call. Under the lock."""
        if done is not None:
            done = self._await_answer(done)
        return self._after_ack(), done

    def _conclude(self, arm: bool, done: Done | None) -> None:
        """Do what `_gathered` returned, without the lock."""
        if arm:
            self._context.engine.call(self._arm_ack_timer)
        if done is not None:
            done(None)

    def add_ids(self, ids: Iterable[MessageId], done: Done | None = None) -> None:
        """Acknowledge several messages."""
        with self._lock:
            for message_id in ids:
                key = (message_id.ledger_id(), message_id.entry_id())
                first = message_id.first_chunk_message_id()
                if first is not None:
                    # Created elsewhere, the id may be all that is known of the message's chunks.
                    self.group.add((first.ledger_id(), first.entry_id()), -1, 0)
                size, index = message_id.batch_size(), message_id.batch_index()
                if index >= 0 and size == 0:
                    # An id created elsewhere has no batch size; it may stay unknown.
                    size = self.group.size_of(key) or self._batch_size_of(key)
                self._add(key, index, size)
            arm, done = self._gathered(done)
        self._conclude(arm, done)

    def add_ranges(self, ranges: Iterable[EntryRange], done: Done | None = None) -> None:
        """Acknowledge entries, or parts of them."""
        with self._lock:
            for each in ranges:
                index = -1 if each.indexes is None else 0
                for entry in each.entries:
                    self._add((each.ledger_id, entry), index, each.batch_size, each.indexes or 0)
                    if self._receipts is None and len(self.group) >= self._group_size:
                        self.send()
            arm, done = self._gathered(done)
        self._conclude(arm, done)

    def add_left_over(self, keys: Iterable[EntryKey]) -> None:
        """Acknowledge superseded entries. Called under the lock."""
        for key in keys:
            self._add(key, -1, 0)
        if self._after_ack():
            self._context.engine.call(self._arm_ack_timer)

    def _add(self, key: EntryKey, batch_index: int, batch_size: int, several: int = 0) -> bool:
        """Acknowledge messages of an entry; return True if it is complete. Called under the lock."""
        if batch_index < 0 and self._chunks.delivered:
            for chunk in self._chunks.pop_entries(key)[:-1]:
                self._group.add(chunk, -1, 0)
        if not self._stored or not self._group.add(key, batch_index, batch_size, several):
            return False
        if self._refused:
            self._nacks.remove(key)
        if self.unacked is not None:
            self.unacked.remove(key)
        if self._has_more_to_forget:
            self._forget_entry(key)
        return True

    def _forget_entry(self, key: EntryKey) -> None:
        if self.late is not None:
            self.late.remove(key)
        if self._dead_letter_router is not None:
            self._dead_letter_router.acknowledged(key)

    def still_open(self, decoded: Decoded) -> list[Message]:
        """Return an entry's messages that were delivered and not acknowledged since."""
        key = decoded.entry.key
        with self._lock:
            open_ones = 0 if self.group.covers(key) else self.group.partial(key)
        messages = decoded.messages()
        if open_ones is None:
            return messages
        return [message for message in messages if open_ones >> max(message.batch_index, 0) & 1]

    def add_cumulative(self, message_id: MessageId, done: Done | None = None) -> None:
        """Acknowledge everything up to and including a message."""
        self.check_cumulative()
        key = (message_id.ledger_id(), message_id.entry_id())
        index, size = message_id.batch_index(), message_id.batch_size()
        if not self._stored:
            if done is not None:
                done(None)
            return
        with self._lock:
            if self._chunks or self._chunks.delivered:
                safe = self._chunks.safe_position(key)
                if safe != key:
                    key, index, size = safe, -1, 0
            self.group.add_cumulative(key, index, size or self._batch_size_of(key))
            # In the middle of a batch, its remaining messages stay tracked.
            self._unwatch(key if index < 0 or index == size - 1 else (key[0], key[1] - 1))
            arm, done = self._gathered(done)
        self._conclude(arm, done)

    def check_cumulative(self) -> None:
        """Raise on a subscription that has no cumulative acknowledgements."""
        if self._config.consumer_type in BY_ENTRY:
            raise CumulativeAcknowledgementNotAllowedError(
                "A Shared or Key_Shared subscription cannot acknowledge cumulatively; acknowledge each message",
                topic=self._context.topic.full,
            )

    def _unwatch(self, last: EntryKey) -> None:
        if self.unacked is not None:
            self.unacked.remove_up_to(last)
        if self.late is not None:
            self.late.remove_up_to(last)

    def resend(self, key: EntryKey) -> None:
        """Acknowledge again the part of a batch the broker seems not to have received. Called under the lock."""
        if self.group.resend(key) and not self._ack_timer_armed and self._group_time:
            self._ack_timer_armed = True
            self._context.engine.call(self._arm_ack_timer)

    def add_empty(self, key: EntryKey) -> None:
        """Acknowledge an entry of which the payload processor made no message. Called under the lock."""
        if self._add(key, -1, 0) and self._after_ack():
            self._context.engine.call(self._arm_ack_timer)

    def _after_ack(self) -> bool:
        """Send the group if it is due now; return True if the timer must be armed."""
        if not self._stored:
            return False
        if not self._group_time or len(self.group) >= self._group_size:
            self.send()
            return False
        if self._ack_timer_armed:
            return False
        self._ack_timer_armed = True
        return True

    def send(self) -> None:
        """Send the group, if there is a connection. Called under the lock."""
        connection = self._context.connection()
        if connection is None or not len(self.group):
            return
        if self._receipts is not None:
            if self._context.engine.on_loop():
                self._receipts.send(connection)
            else:
                self._context.engine.call(self.flush)
            return
        items, cumulative = self.group.drain()
        consumer_id = self._context.consumer_id
        if cumulative is not None:
            connection.write([commands.ack(consumer_id, [cumulative], cumulative=True)])
        if items:
            connection.write([commands.ack(consumer_id, items, cumulative=False)])

    def flush(self) -> None:
        """Send the group now."""
        with self._lock:
            self.send()

    def _arm_ack_timer(self) -> None:
        self._context.call_later(self._group_time, self._ack_timer)

    def _ack_timer(self) -> None:
        with self._lock:
            self.fast_path.is_open = False
            if not len(self.group) or not self._context.is_alive():
                self._ack_timer_armed = False
                return
            self.send()
            self.fast_path.is_open = self.allows_fast_path
        self._arm_ack_timer()

    # --- acknowledging in transactions (loop) -----------------------------------------------------------------------

    def check_transactional(self, *, cumulative: bool) -> None:
        """Raise when this consumer cannot acknowledge that way in a transaction."""
        self._context.check_usable()
        if cumulative:
            self.check_cumulative()
        if not self._stored:
            raise OperationNotSupported(
                "A non-persistent topic cannot be used in transactions: its messages are not stored",
                topic=self._context.topic.full,
            )

    def places_of(self, ids: Iterable[MessageId]) -> list[AckPosition]:
        """Return the ack positions of messages: entry (all entries of a chunked message), batch index and batch
        size.
        """
        places: list[AckPosition] = []
        with self._lock:
            for message_id in ids:
                key, index = (message_id.ledger_id(), message_id.entry_id()), message_id.batch_index()
                if index < 0:
                    places += [(chunk, -1, 0) for chunk in self._chunks.delivered.get(key, ())[:-1]]
                    places.append((key, -1, 0))
                else:
                    places.append((key, index, self._size_of(key, message_id)))
        return places

    def _size_of(self, key: EntryKey, message_id: MessageId) -> int:
        size = message_id.batch_size() or self.group.size_of(key) or self._batch_size_of(key)
        if not size:
            raise InvalidMessage(
                f"The id {message_id} has no batch size, which a transaction needs; acknowledge the message itself",
                topic=self._context.topic.full,
            )
        return size

    def up_to_in_transaction(self, message_id: MessageId) -> list[TransactionalAckItem]:
        """Return the items for everything up to a message, and stop tracking it."""
        key, index = (message_id.ledger_id(), message_id.entry_id()), message_id.batch_index()
        with self._lock:
            size = self._size_of(key, message_id) if index >= 0 else 0
            if self._chunks or self._chunks.delivered:
                safe = self._chunks.safe_position(key)
                if safe != key:
                    key, index, size = safe, -1, 0
            left = ((1 << size) - 1) & (-1 << (index + 1))
            self._unwatch(key if not left else (key[0], key[1] - 1))
            return [(*key, words_of(left, size) if left else None, size)]

    def done_in_transaction(
        self, acked: Mapping[EntryKey, int], items: Iterable[TransactionalAckItem], messages: int
    ) -> None:
        """Count, and stop tracking entries with nothing left to acknowledge while the transaction is open."""
        with self._lock:
            self.group.taken += messages
            for ledger, entry, _, size in items:
                key = (ledger, entry)
                known = self.group.partial(key)
                left = ((1 << size) - 1) & ~acked.get(key, 0)
                if left if known is None else left & known:
                    continue
                self._nacks.remove(key)
                self._end_timeout(key)

    async def answered(self, connection: Connection, request_id: int, frame: bytes) -> bool:
        """Send an acknowledgement and return True if it has its response; False when the broker closed the consumer."""
        answer = connection.begin_request(request_id, frame)
        self._in_transactions.add(answer)
        try:
            # Not the future itself: its cancellation means the consumer was closed, not the waiting task cancelled.
            await asyncio.wait([answer])
        finally:
            self._in_transactions.discard(answer)
            connection.core.forget(request_id)
        if answer.cancelled():
            return False
        answer.result()
        return True

    def transaction_ended(self, acked: Mapping[EntryKey, int], *, committed: bool) -> None:
        """Apply a transaction's end to the messages acknowledged in it."""
        if not committed:
            # Where the broker does not redeliver single entries, redelivered messages would mix with new ones.
            if self._config.consumer_type not in BY_ENTRY:
                self._redeliver(None)
            return
        with self._lock:
            for key, bits in acked.items():
                self._chunks.pop_entries(key)
                size = self.group.size_of(key)
                if not size:
                    if self._dead_letter_router is not None:
                        self._dead_letter_router.acknowledged(key)
                    continue
                # The batch's other messages are acknowledged without a transaction: their completion is detected here.
                for index in range(size):
                    if bits >> index & 1:
                        self._add(key, index, size)
            arm = self._after_ack() if len(self.group) else False
        if arm:
            self._arm_ack_timer()

    # --- redelivery -------------------------------------------------------------------------------------------------

    def negative_acknowledge(self, key: EntryKey, redelivery_count: int = 0) -> None:
        """Request redelivery of an entry after the configured delay."""
        with self._lock:
            self._context.note("negative_acks", 1)
            self._gather_fast_path()
            due = self._nacks.add(key, time.monotonic(), redelivery_count)
            self._end_timeout(key)
            # With a back-off it may be due before those that wait.
            earlier = self._nack_timer_at is None or due < self._nack_timer_at
            # Without a connection it is armed by `resume_nacks`.
            arm = earlier and self._context.connection() is not None
            if arm:
                self._nack_timer_at = due
        if arm:
            self._context.engine.call(self._nack_timer)

    def resume_nacks(self) -> None:
        """Go on with negative acks that have waited for a connection, or the end of a seek. Called under the lock."""
        if self._refused and self._nack_timer_at is None:
            self._nack_timer_at = 0.0
            # Not immediately: the lock it needs is held here.
            self._context.call_later(0.0, self._nack_timer)

    def _nack_timer(self) -> None:
        now = time.monotonic()
        with self._lock:
            if self._context.connection() is None:
                # The next one is armed by `resume_nacks`.
                self._nack_timer_at = None
                return
            self._gather_fast_path()
            due = self._nacks.pop_due(now)
            following = self._nacks.next_due() if self._context.is_alive() else None
            self._nack_timer_at = following
        try:
            if due:
                if self._on_redelivery is not None:
                    self._on_redelivery("on_negative_acks_send", due)
                self._redeliver(due)
        finally:
            if following is not None:
                self._context.call_later(max(following - now, 0.02), self._nack_timer)

    def start_unacked_timer(self) -> None:
        """Start the ack time-out tracker, if it is configured. On the loop."""
        if self.unacked is not None and not self._unacked_timer_armed:
            self._unacked_timer_armed = True
            self._context.call_later(self.unacked.tick, self._unacked_tick)

    def _unacked_tick(self) -> None:
        assert self.unacked is not None
        try:
            self._redeliver_unacked()
        finally:
            # Whatever was raised, such as a Ctrl-C in the back-off: nothing else arms it again.
            if self._context.is_alive():
                self._context.call_later(self.unacked.tick, self._unacked_tick)

    def _redeliver_unacked(self) -> None:
        assert self.unacked is not None
        with self._lock:
            self._gather_fast_path()
            late = self.unacked.advance() if self._context.connection() is not None else []
            if self.late is not None:
                now = time.monotonic()
                self.late.expired(late, now)
                late = self.late.pop_due(now) if self._context.connection() is not None else []
        if late:
            _log.info("%s: %d entries were not acknowledged in time", self._context.describe(), len(late))
            self._context.note("ack_timeouts", len(late))
            if self._on_redelivery is not None:
                self._on_redelivery("on_ack_timeout_send", late)
            self._redeliver(late)

    def entries_to_redeliver(self, entries: list[EntryKey]) -> list[EntryKey]:
        """Return which entries the broker has to redeliver: without dead letters, with all chunks. Under the lock."""
        if self._dead_letter_router is not None:
            self._gather_fast_path()
            entries = self._dead_letter_router.split_dead(entries)
        self.group.redelivered(entries)
        return self._chunks.redelivered(entries) if self._chunks.delivered else entries

    # --- end --------------------------------------------------------------------------------------------------------

    def forget_redelivery(self) -> None:
        """Drop pending redeliveries: everything is redelivered. Called under the lock."""
        self._nacks.clear()
        if self.unacked is not None:
            self.unacked.clear()
        if self.late is not None:
            self.late.clear()

    def forget(self) -> None:
        """Drop everything: the subscription's position was moved. Called under the lock."""
        self.fast_path.clear()
        self.group.clear()
        self.forget_redelivery()
        if self._dead_letter_router is not None:
            self._dead_letter_router.on_seek()
        if self._receipts is not None:
            self._receipts.fail(
                NotConnected("The subscription was moved by a seek before the broker had answered the acknowledgement")
            )

    def reattached(self) -> None:
        """Start again on a new attachment: from now on the broker reports what is acknowledged. Called under the
        lock.
        """
        self.resume_nacks()
        by_entry = self._config.consumer_type in BY_ENTRY
        self.group.reattached(by_entry=by_entry)
        if by_entry and self._chunks.delivered:
            self._chunks.redelivered(self._chunks.delivered)
        if self.late is not None:
            self.late.reattached()
        if self._dead_letter_router is not None:
            self._dead_letter_router.reattached()

    def detached(self) -> None:
        """Put back what has no response from the broker. Called under the lock."""
        for answer in self._in_transactions:
            answer.cancel()
        if self._receipts is not None:
            self._receipts.detached()

    def stop(self, failure: PulsarException | None) -> None:
        """Close the fast path; callbacks that wait for a response receive the failure. On the loop."""
        self.close_fast_path()
        if self._receipts is not None:
            with self._lock:
                self._receipts.fail(
                    failure
                    or AlreadyClosed(
                        "The consumer was closed before the broker had answered the acknowledgement",
                        topic=self._context.topic.full,
                    )
                )
