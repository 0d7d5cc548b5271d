"""Flow control of a consumer: permits, pausing, the zero queue, and auto-scaled queues.

Rules: permits at the broker, messages queued here and permits to be returned always add up to the size of the queue.
They are returned in bulk at half the queue, or with a queue of 0 one at a time, when a receiver waits and nothing is
queued or in transit. A strict pause withholds queued messages; on shared subscriptions they are handed back to the
broker, each entry once, since an entry that arrives a second time has no other consumer and would only increase its
redelivery count. Everything under the consumer's lock unless said otherwise.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from pulsar_native.engine.consumer.ack_grouping_tracker import BY_ENTRY
from pulsar_native.exceptions import PulsarException
from pulsar_native.protocol.ack_grouping import bits_of
from pulsar_native.protocol.entry_decoder import Delivery
from pulsar_native.protocol.unacked_tracker import in_blocks
from pulsar_native.wire import commands
from pulsar_native.wire.entry import EntryKey, parse_entry

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.consumer import PartitionConsumer

_NEVER = 1 << 62
# Share of the memory limit from which auto-scaled queues shrink.
_TIGHT = 0.95


class Permits:
    """Permits of one `PartitionConsumer`, whose `permits_to_return` counts those to be returned."""

    def __init__(self, consumer: PartitionConsumer, queue_size: int) -> None:
        self._consumer = consumer
        self.on_demand = queue_size == 0
        self.paused = False
        self.held = False
        self._handed_back: set[EntryKey] = set()
        # Subscriptions that redeliver single entries to any consumer with permits.
        self._hands_back = consumer.config.consumer_type in BY_ENTRY and consumer.topic.is_persistent
        self.resize(max(1, queue_size))

    def resize(self, size: int) -> None:
        """Set the size of the queue; granted permits stay granted."""
        self.size = size
        # With a queue of 0 permits are not sent for dequeued messages, only for waiting receivers.
        self._consumer.flow_threshold = _NEVER if self.on_demand else max(1, size // 2)

    def begin(self) -> None:
        """Grant the first permits of an attachment; with a queue of 0, or while paused, they wait."""
        self._consumer.permits_to_return = self.size
        if self._consumer.permits_to_return >= self._consumer.flow_threshold:
            self.send()

    def send(self) -> None:
        """Return collected permits, unless paused or without connection."""
        if self._consumer.connection is not None and not self.paused:
            self._grant(self._consumer.permits_to_return)

    def _grant(self, number: int) -> None:
        consumer = self._consumer
        if consumer.connection is not None and not consumer.is_rewinding:
            consumer.connection.write([commands.flow(consumer.consumer_id, number)])
            consumer.permits_to_return -= number

    def on_receive_wait(self) -> None:
        """Process a waiting receiver; with a queue of 0 grant a permit for it. Thread-safe, acquires the lock.

        None is granted while a message is queued or in transit; permits the last entry cost beyond its one are returned
        with it.
        """
        consumer = self._consumer
        with consumer.lock:
            if consumer.permits_to_return > 0 and not self.paused and not consumer.has_local:
                self._grant(consumer.permits_to_return)

    # --- pausing --------------------------------------------------------------------------------------------------

    def pause(self, *, strict: bool) -> None:
        """Grant no more permits; if strict, deliver nothing more either. Thread-safe, acquires the lock."""
        consumer = self._consumer
        with consumer.lock:
            self.paused = True
            hold = strict and not self.held
            if hold:
                self.held = True
                consumer.pause_delivery()
        if hold and self._hands_back:
            # On the loop, where deliveries are queued: none can arrive in between.
            consumer.engine.call(self._hand_back_queued)

    def resume(self) -> None:
        """Grant collected permits, and deliver what was withheld. Thread-safe, acquires the lock."""
        consumer = self._consumer
        with consumer.lock:
            self.paused = False
            if self.held:
                self.held = False
                self._handed_back.clear()
                consumer.resume_delivery()
            if consumer.permits_to_return >= consumer.flow_threshold:
                self.send()
        # Waiting receivers look again, and with a queue of 0 request a permit again.
        consumer.engine.call(consumer.look_again)

    def on_delivery(self, delivery: Delivery) -> None:
        """Process a delivery during a strict pause, or with an auto-scaled queue. On the loop, acquires the lock."""
        if self.held and self._hands_back:
            self._hand_back_queued(latest_only=True)

    def _hand_back_queued(self, *, latest_only: bool = False) -> None:
        """Have the broker redeliver undecoded deliveries, to other consumers or later. On the loop."""
        consumer = self._consumer
        with consumer.lock:
            if not self.held or consumer.connection is None:
                return
            queued = consumer.all_deliveries
            back: list[EntryKey] = []
            rest: deque[Delivery] = deque()
            while queued:
                delivery = queued.pop()
                if self._stays(delivery):
                    rest.appendleft(delivery)
                else:
                    key = (delivery.ledger_id, delivery.entry_id)
                    self._handed_back.add(key)
                    back.append(key)
                    consumer.permits_to_return += permits_of(delivery)
                    self.on_dequeue(delivery)
                if latest_only:
                    break
            queued.extend(rest)
            back.reverse()
            # A REDELIVER returns no permits: they are in `permits_to_return` until the pause ends.
            for block in in_blocks(back):
                consumer.connection.write([commands.redeliver(consumer.consumer_id, block, epoch=None)])

    def _stays(self, delivery: Delivery) -> bool:
        """True if a delivery stays here: it was handed back before, or the other chunks of its message are here."""
        if (delivery.ledger_id, delivery.entry_id) in self._handed_back:
            return True
        if delivery.attachment != self._consumer.attachment:
            return True
        with contextlib.suppress(PulsarException):
            return parse_entry(delivery.payload, verify=False).metadata.num_chunks_from_msg > 1
        return False

    # --- auto-scaled queues -----------------------------------------------------------------------------------------

    def on_dequeue(self, delivery: Delivery) -> None:
        """Process a delivery that was decoded or dropped."""


class ScaledPermits(Permits):
    """Permits of an auto-scaled queue that grows while it is too small, within the client's memory limit (PIP-74).

    The queue starts at 1, doubles up to its maximum when it was emptied faster than it could be filled and so many
    messages would fit into the memory that is left, and halves when permits are due while more than 95 % of the memory
    are in use. Over the limit nothing is granted, except one permit to a consumer that has no messages and no permits
    at the broker: so all make progress with any limit.
    """

    def __init__(self, consumer: PartitionConsumer, queue_size: int) -> None:
        super().__init__(consumer, queue_size)
        self._most = self.size
        self.resize(1)
        self._memory = consumer.client.memory
        # Messages dequeued since the queue was last empty, and the bytes of their entries.
        self.passed = 0
        self._passed_bytes = 0

    def send(self) -> None:
        """Return collected permits, as far as the memory limit allows.

        The rest is checked again with each message dequeued from then on; the last one returns its permit.
        """
        consumer, memory = self._consumer, self._memory
        if consumer.connection is None or self.paused:
            return
        if memory.is_over(_TIGHT) and self.size > 1:
            self._change(self.size // 2)
        if memory.is_over(1):
            # The broker has none left, and nothing is queued: one permit, so that this consumer makes progress.
            if consumer.permits_to_return >= self.size and not consumer.has_local:
                self._grant(consumer.permits_to_return - self.size + 1)
        elif consumer.permits_to_return >= consumer.flow_threshold:
            self._grant(consumer.permits_to_return)

    def _change(self, size: int) -> None:
        self._consumer.permits_to_return += size - self.size
        self.resize(size)

    def on_receive_wait(self) -> None:
        """Process a waiting receiver. Thread-safe, acquires the lock."""
        if self.passed:
            with self._consumer.lock:
                if not self._consumer.has_local:
                    self.on_queue_empty()

    def on_queue_empty(self) -> None:
        """Process an empty queue found by the application."""
        size = min(self._most, self.size * 2)
        # As far as messages like the last ones would fit into the memory that is left.
        if self.passed >= self.size < size and self._memory.has_room(size * self._passed_bytes // self.passed):
            self._change(size)
        self.passed = self._passed_bytes = 0
        if self._consumer.permits_to_return >= self._consumer.flow_threshold:
            self.send()

    def on_delivery(self, delivery: Delivery) -> None:
        """Count an entry that waits here. On the loop, acquires the lock."""
        self.on_retained(delivery)
        super().on_delivery(delivery)

    def on_retained(self, delivery: Delivery) -> None:
        """Count an entry that waits here."""
        self._memory.receive(len(delivery.payload))

    def on_dequeue(self, delivery: Delivery) -> None:
        """Remove an entry from the count."""
        self._memory.release_received(len(delivery.payload))
        self._passed_bytes += len(delivery.payload)


def expected_permits(count: int, delivery: Delivery) -> int:
    """Return how many permits a delivery cost: of a partly acknowledged batch only the open messages."""
    return count if delivery.ack_words is None else bits_of(delivery.ack_words).bit_count()


def permits_of(delivery: Delivery) -> int:
    """Return how many permits an undecoded delivery cost."""
    try:
        return expected_permits(parse_entry(delivery.payload, verify=False).num_messages, delivery)
    except PulsarException:
        return 1
