"""What a consumer owes the broker: acknowledgements, negative ones, and requests to deliver again, with their timers.

Rules: nothing is written per message; acknowledgements leave by timer or when a group is full, and survive a lost
connection. On non-persistent topics there is nothing to acknowledge: all their ids are alike (0, 0), and nothing is
kept or sent. All calls are thread-safe under the consumer's lock; the loop is woken only to arm a timer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pulsar_native.config import ConsumerConfig
from pulsar_native.enums import ConsumerType
from pulsar_native.exceptions import CumulativeAcknowledgementNotAllowedError
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.acks import AckGroup
from pulsar_native.protocol.redelivery import EntryKey, NegativeAcknowledgements, UnackedTracker, in_blocks
from pulsar_native.wire import commands

if TYPE_CHECKING:
    from pulsar_native.engine.consumer import PartitionConsumer

_log = logging.getLogger("pulsar_native.consumer")

# Subscription types on which the broker redelivers single entries; the others rewind to the first unacknowledged.
BY_ENTRY = (ConsumerType.Shared, ConsumerType.KeyShared)


class Acknowledging:
    """The acknowledgements of one `PartitionConsumer`."""

    def __init__(self, consumer: PartitionConsumer, config: ConsumerConfig) -> None:
        self._consumer = consumer
        self._config = config
        self._group_time = config.acknowledgment_group_time_ms / 1000
        self._group_size = config.max_acknowledgment_group_size
        self.group = AckGroup(batch_index=config.batch_index_ack_enabled)
        self._ack_timer_armed = False
        self._nacks = NegativeAcknowledgements(config.negative_ack_redelivery_delay_ms / 1000)
        self._nack_timer_armed = False
        timeout = (config.unacked_messages_timeout_ms or 0) / 1000
        self._stored = consumer.topic.is_persistent
        watched = timeout and self._stored
        self.unacked = UnackedTracker(timeout, config.unacked_messages_tick_ms / 1000) if watched else None
        self._unacked_timer: asyncio.TimerHandle | None = None

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def add(self, key: EntryKey, batch_index: int, batch_size: int) -> None:
        """Note one message as done."""
        with self._consumer.lock:
            self._add(key, batch_index, batch_size)
            arm = self._after_ack()
        if arm:
            self._consumer.engine.call(self._arm_ack_timer)

    def add_ids(self, ids: Iterable[MessageId]) -> None:
        """Note several messages as done."""
        with self._consumer.lock:
            for message_id in ids:
                key = (message_id.ledger_id(), message_id.entry_id())
                size, index = message_id.batch_size(), message_id.batch_index()
                if index >= 0 and size == 0:
                    # An id made elsewhere does not tell its batch's size; it may stay unknown.
                    size = self.group.size_of(key) or self._consumer.size_of(key)
                self._add(key, index, size)
            arm = self._after_ack()
        if arm:
            self._consumer.engine.call(self._arm_ack_timer)

    def _add(self, key: EntryKey, batch_index: int, batch_size: int) -> None:
        if self._stored and self.group.add(key, batch_index, batch_size):
            if self._nacks:
                self._nacks.remove(key)
            if self.unacked is not None:
                self.unacked.remove(key)

    def add_cumulative(self, message_id: MessageId) -> None:
        """Note everything up to and including a message as done."""
        if self._config.consumer_type in BY_ENTRY:
            raise CumulativeAcknowledgementNotAllowedError(
                "A Shared or Key_Shared subscription cannot acknowledge cumulatively; acknowledge each message",
                topic=self._consumer.topic.full,
            )
        key = (message_id.ledger_id(), message_id.entry_id())
        index, size = message_id.batch_index(), message_id.batch_size()
        if not self._stored:
            return
        with self._consumer.lock:
            self.group.add_cumulative(key, index, size or self._consumer.size_of(key))
            if self.unacked is not None:
                # In the middle of a batch, the rest of it stays watched.
                self.unacked.remove_up_to(key if index < 0 or index == size - 1 else (key[0], key[1] - 1))
            arm = self._after_ack()
        if arm:
            self._consumer.engine.call(self._arm_ack_timer)

    def resend(self, key: EntryKey) -> None:
        """Acknowledge again what the broker seems not to have heard of a batch. Called under the lock."""
        if self.group.resend(key) and not self._ack_timer_armed and self._group_time:
            self._ack_timer_armed = True
            self._consumer.engine.call(self._arm_ack_timer)

    def _after_ack(self) -> bool:
        """Send the group when it is due now; return whether the timer must be armed."""
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
        """Send what is gathered, when there is a connection. Called under the lock."""
        connection = self._consumer.connection
        if connection is None or not len(self.group):
            return
        items, cumulative = self.group.take()
        consumer_id = self._consumer.consumer_id
        if cumulative is not None:
            connection.write([commands.ack(consumer_id, [cumulative], cumulative=True)])
        if items:
            connection.write([commands.ack(consumer_id, items, cumulative=False)])

    def flush(self) -> None:
        """Send what is gathered now."""
        with self._consumer.lock:
            self.send()

    def _arm_ack_timer(self) -> None:
        self._consumer.engine.loop.call_later(self._group_time, self._ack_timer)

    def _ack_timer(self) -> None:
        with self._consumer.lock:
            if not len(self.group) or not self._consumer.is_alive:
                self._ack_timer_armed = False
                return
            self.send()
        self._arm_ack_timer()

    # --- redelivery -------------------------------------------------------------------------------------------------

    def refuse(self, key: EntryKey) -> None:
        """Ask for an entry again after the configured delay."""
        with self._consumer.lock:
            self._nacks.add(key, time.monotonic())
            if self.unacked is not None:
                self.unacked.remove(key)
            arm = not self._nack_timer_armed
            self._nack_timer_armed = True
        if arm:
            self._consumer.engine.call(self._nack_timer)

    def _nack_timer(self) -> None:
        now = time.monotonic()
        with self._consumer.lock:
            due = self._nacks.take_due(now) if self._consumer.connection is not None else []
            following = self._nacks.next_due() if self._consumer.is_alive else None
            self._nack_timer_armed = following is not None
        if due:
            self._consumer.redeliver(due)
        if following is not None:
            self._consumer.engine.loop.call_later(max(following - now, 0.02), self._nack_timer)

    def start_unacked_timer(self) -> None:
        """Begin to watch for messages that are not acknowledged in time, when that was asked for. On the loop."""
        if self.unacked is not None and self._unacked_timer is None:
            self._unacked_timer = self._consumer.engine.loop.call_later(self.unacked.tick, self._unacked_tick)

    def _unacked_tick(self) -> None:
        assert self.unacked is not None
        with self._consumer.lock:
            late = self.unacked.advance() if self._consumer.connection is not None else []
        if late:
            _log.info("%s: %d entries were not acknowledged in time", self._consumer.describe(), len(late))
            self._consumer.redeliver(late)
        if self._consumer.is_alive:
            self._unacked_timer = self._consumer.engine.loop.call_later(self.unacked.tick, self._unacked_tick)

    def request_entries(self, entries: list[EntryKey]) -> bool:
        """Ask for single entries again; False on subscriptions where only everything can be asked for."""
        connection = self._consumer.connection
        if self._config.consumer_type not in BY_ENTRY:
            return False
        if connection is not None:
            for block in in_blocks(entries):
                connection.write([commands.redeliver(self._consumer.consumer_id, block, epoch=None)])
        return True

    # --- end --------------------------------------------------------------------------------------------------------

    def forget_redelivery(self) -> None:
        """Drop what waits for redelivery: everything comes again. Called under the lock."""
        self._nacks.clear()
        if self.unacked is not None:
            self.unacked.clear()

    def forget(self) -> None:
        """Drop everything: the subscription's position was moved. Called under the lock."""
        self.group.clear()
        self.forget_redelivery()

    def stop(self) -> None:
        """Stop the timers. On the loop."""
        if self._unacked_timer is not None:
            self._unacked_timer.cancel()
