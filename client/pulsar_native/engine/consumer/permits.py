"""How many messages the broker may send ahead: permits, pausing, the queue of none, and queues that scale.

Rules: permits at the broker, messages queued here and permits to be given back are
together always the size of the queue. They are given back in bulk at half the queue, or with a queue of 0 one at a
time, when a receiver waits and nothing is here or on its way. A strict pause puts what is queued out of reach; on
shared subscriptions it is handed back to the broker, each entry once, since one that comes a second time has nowhere
else to go and would only count as redelivered. Everything under the consumer's lock unless said otherwise.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from pulsar_native.engine.consumer.ack_grouping_tracker import BY_ENTRY
from pulsar_native.exceptions import PulsarException
from pulsar_native.protocol.ack_grouping import bits_of
from pulsar_native.protocol.entry_decoder import Delivery
from pulsar_native.protocol.unacked_tracker import EntryKey, in_blocks
from pulsar_native.wire import commands
from pulsar_native.wire.entry import parse_entry

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.consumer import PartitionConsumer

_NEVER = 1 << 62
# From this share of the memory limit on, queues that scale shrink.
_TIGHT = 0.95


class Permits:
    """The permits of one `PartitionConsumer`, whose `permits_to_return` counts those to be given back."""

    def __init__(self, consumer: PartitionConsumer, queue_size: int) -> None:
        self._consumer = consumer
        self.on_demand = queue_size == 0
        self.paused = False
        self.held = False
        self._handed_back: set[EntryKey] = set()
        # Where entries of their own come again, to whoever has permits.
        self._hands_back = consumer.config.consumer_type in BY_ENTRY and consumer.topic.is_persistent
        self.resize(max(1, queue_size))

    def resize(self, size: int) -> None:
        """Set the size of the queue; what was granted stays granted."""
        self.size = size
        # With a queue of 0 nothing is sent for having been taken, only for being wanted.
        self._consumer.flow_threshold = _NEVER if self.on_demand else max(1, size // 2)

    def begin(self) -> None:
        """Grant the first permits of an attachment; with a queue of 0, or while paused, they wait."""
        self._consumer.permits_to_return = self.size
        if self._consumer.permits_to_return >= self._consumer.flow_threshold:
            self.send()

    def send(self) -> None:
        """Give back what has collected, unless paused or without connection."""
        if self._consumer.connection is not None and not self.paused:
            self._grant(self._consumer.permits_to_return)

    def _grant(self, number: int) -> None:
        consumer = self._consumer
        if consumer.connection is not None and not consumer.is_rewinding:
            consumer.connection.write([commands.flow(consumer.consumer_id, number)])
            consumer.permits_to_return -= number

    def on_receive_wait(self) -> None:
        """Note that somebody waits; with a queue of 0 grant a permit for it. Thread-safe, takes the lock.

        None is granted while a message is here or on its way; what the last entry cost beyond its one permit is given
        back with it.
        """
        consumer = self._consumer
        with consumer.lock:
            if consumer.permits_to_return > 0 and not self.paused and not consumer.has_local:
                self._grant(consumer.permits_to_return)

    # --- pausing --------------------------------------------------------------------------------------------------

    def pause(self, *, strict: bool) -> None:
        """Grant no more; if strict, give out nothing more either. Thread-safe, takes the lock."""
        consumer = self._consumer
        with consumer.lock:
            self.paused = True
            hold = strict and not self.held
            if hold:
                self.held = True
                consumer.pause_delivery()
        if hold and self._hands_back:
            # On the loop, where deliveries are queued: none can slip in between.
            consumer.engine.call(self._hand_back_queued)

    def resume(self) -> None:
        """Grant what has collected meanwhile, and give out what was kept. Thread-safe, takes the lock."""
        consumer = self._consumer
        with consumer.lock:
            self.paused = False
            if self.held:
                self.held = False
                self._handed_back.clear()
                consumer.resume_delivery()
            if consumer.permits_to_return >= consumer.flow_threshold:
                self.send()
        # Whoever waits looks again, and with a queue of 0 asks again.
        consumer.engine.call(consumer.look_again)

    def on_delivery(self, delivery: Delivery) -> None:
        """Note a delivery while held, or with a queue that scales. On the loop, takes the lock."""
        if self.held and self._hands_back:
            self._hand_back_queued(latest_only=True)

    def _hand_back_queued(self, *, latest_only: bool = False) -> None:
        """Have the broker take back what waits unopened, for other consumers or for later. On the loop."""
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
            # A REDELIVER gives no permits back: they are in `permits_to_return` until the pause ends.
            for block in in_blocks(back):
                consumer.connection.write([commands.redeliver(consumer.consumer_id, block, epoch=None)])

    def _stays(self, delivery: Delivery) -> bool:
        """Whether a delivery waits here: it was handed back before, or the other chunks of its message are here."""
        if (delivery.ledger_id, delivery.entry_id) in self._handed_back:
            return True
        if delivery.attachment != self._consumer.attachment:
            return True
        with contextlib.suppress(PulsarException):
            return parse_entry(delivery.payload, verify=False).metadata.num_chunks_from_msg > 1
        return False

    # --- what only queues that scale need -------------------------------------------------------------------------

    def on_dequeue(self, delivery: Delivery) -> None:
        """Note that a delivery was opened or dropped."""


class ScaledPermits(Permits):
    """Permits of a queue that grows while it is too small, within the client's memory limit (PIP-74).

    The queue begins at 1, doubles up to its limit when it was emptied faster than it could be filled and so many
    messages would fit into the memory that is left, and halves when permits are due while more than 95 % of the memory
    are in use. Over the limit nothing is granted, except one permit to a consumer that has nothing and expects nothing:
    so all go on, however small the limit.
    """

    def __init__(self, consumer: PartitionConsumer, queue_size: int) -> None:
        super().__init__(consumer, queue_size)
        self._most = self.size
        self.resize(1)
        self._memory = consumer.client.memory
        # Messages given out since the queue was last found empty, and the bytes they came in.
        self.passed = 0
        self._passed_bytes = 0

    def send(self) -> None:
        """Give back what has collected, as far as the memory limit allows.

        What it does not allow is looked at again with each message taken from then on; the last one gets its permit.
        """
        consumer, memory = self._consumer, self._memory
        if consumer.connection is None or self.paused:
            return
        if memory.is_over(_TIGHT) and self.size > 1:
            self._change(self.size // 2)
        if memory.is_over(1):
            # The broker has none left, and nothing is here: one, so that this consumer gets on.
            if consumer.permits_to_return >= self.size and not consumer.has_local:
                self._grant(consumer.permits_to_return - self.size + 1)
        elif consumer.permits_to_return >= consumer.flow_threshold:
            self._grant(consumer.permits_to_return)

    def _change(self, size: int) -> None:
        self._consumer.permits_to_return += size - self.size
        self.resize(size)

    def on_receive_wait(self) -> None:
        """Note that somebody waits for messages. Thread-safe, takes the lock."""
        if self.passed:
            with self._consumer.lock:
                if not self._consumer.has_local:
                    self.on_queue_empty()

    def on_queue_empty(self) -> None:
        """Note that the application has found the queue empty."""
        size = min(self._most, self.size * 2)
        # As far as messages like the last ones would fit into what is left.
        if self.passed >= self.size < size and self._memory.has_room(size * self._passed_bytes // self.passed):
            self._change(size)
        self.passed = self._passed_bytes = 0
        if self._consumer.permits_to_return >= self._consumer.flow_threshold:
            self.send()

    def on_delivery(self, delivery: Delivery) -> None:
        """Count an entry that waits here. On the loop, takes the lock."""
        self.on_retained(delivery)
        super().on_delivery(delivery)

    def on_retained(self, delivery: Delivery) -> None:
        """Count an entry that waits here."""
        self._memory.receive(len(delivery.payload))

    def on_dequeue(self, delivery: Delivery) -> None:
        """Count it no more."""
        self._memory.take(len(delivery.payload))
        self._passed_bytes += len(delivery.payload)


def expected_permits(count: int, delivery: Delivery) -> int:
    """Return how many permits a delivery cost: of a partly acknowledged batch only what is left."""
    return count if delivery.ack_words is None else bits_of(delivery.ack_words).bit_count()


def permits_of(delivery: Delivery) -> int:
    """Return how many permits a delivery cost that was not looked at yet."""
    try:
        return expected_permits(parse_entry(delivery.payload, verify=False).num_messages, delivery)
    except PulsarException:
        return 1
