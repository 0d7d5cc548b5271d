"""Permits of a consumer: how many messages the broker may send, and auto-scaled queue sizes.

Rules: permits at the broker, messages queued here and permits to be returned always add up to the size of the queue.
They are returned in bulk at half the queue, or with a queue of 0 one at a time, when a receiver waits and nothing is
queued or in transit. Not thread-safe: called under the consumer's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pulsar_native.protocol.entry_decoder import Delivery

_NEVER = 1 << 62
# Share of the memory limit from which auto-scaled queues shrink.
_TIGHT = 0.95
_FASTEST_GROWTH = 8


class ReceiverMemory(Protocol):
    """Memory limit that received entries count against."""

    def receive(self, size: int) -> None: ...
    def release_received(self, size: int) -> None: ...
    def has_room(self, size: int) -> bool: ...
    def is_over(self, share: float) -> bool: ...


class Permits:
    """Permits of one consumer. `grant` is called with the number of permits to send to the broker."""

    def __init__(self, queue_size: int, grant: Callable[[int], None]) -> None:
        self._send = grant
        self.on_demand = queue_size == 0
        # Permits to return, and the number that is returned at once.
        self.to_return = self.threshold = 0
        # Reasons to return none now: no connection, a pause, and a rewind of the cursor in progress.
        self.is_attached = self.is_paused = self.is_withheld = False
        self.resize(max(1, queue_size))

    def resize(self, size: int) -> None:
        """Set the size of the queue; granted permits stay granted."""
        self.size = size
        # With a queue of 0 permits are not returned for dequeued messages, only for waiting receivers.
        self.threshold = _NEVER if self.on_demand else max(1, size // 2)

    def begin(self) -> None:
        """Grant the first permits of an attachment; with a queue of 0, or while paused, they wait."""
        self.is_attached = True
        self.to_return = self.size
        self.count(0)

    def count(self, number: int) -> None:
        """Count permits to return, and return them once they are half a queue."""
        self.to_return += number
        if self.to_return >= self.threshold:
            self.release()

    def release(self) -> None:
        """Return the collected permits, unless there is a reason to wait."""
        if not self.is_paused:
            self._grant(self.to_return)

    def _grant(self, number: int) -> None:
        if self.is_attached and not self.is_withheld:
            self.to_return -= number
            self._send(number)

    def outstanding(self) -> int:
        """Return how many permits the broker has left, when nothing is queued here."""
        return self.size - self.to_return

    def resume(self) -> None:
        """End a pause."""
        self.is_paused = False
        self.count(0)

    def resume_rewound(self) -> None:
        """End the rewind of the cursor."""
        self.is_withheld = False
        self.count(0)

    def on_receive_wait(self, is_empty: bool) -> None:
        """Process a waiting receiver; with a queue of 0 grant a permit for it.

        None is granted while a message is queued or in transit; permits the last entry cost beyond its one are returned
        with it.
        """
        if self.on_demand and is_empty and self.to_return > 0 and not self.is_paused:
            self._grant(self.to_return)


class AutoScaledPermits(Permits):
    """Permits of a queue that grows while it is too small, within the client's memory limit (PIP-74).

    The queue starts at 1, grows up to its maximum when it was emptied faster than it could be filled, and halves when
    permits are due while more than 95 % of the memory are in use. It becomes twice as large, and eight times, since
    each step is a wait for the broker, if more than one message was dequeued and so many like these would fit into the
    memory that is left. A queue smaller than an entry, which is sent whole, counts as one such entry. Over the limit
    nothing is granted, except one permit to a consumer that has no messages and no permits at the broker: so all make
    progress with any limit.
    """

    def __init__(
        self, queue_size: int, grant: Callable[[int], None], memory: ReceiverMemory, is_empty: Callable[[], bool]
    ) -> None:
        super().__init__(queue_size, grant)
        self._most = self.size
        self.resize(1)
        self._memory = memory
        self._is_empty = is_empty
        # Messages dequeued since the queue was last empty, the most of one entry, and the bytes of their entries.
        self._passed = self._largest_entry = 0
        self._passed_bytes = 0

    def release(self) -> None:
        """Return collected permits, as far as the memory limit allows.

        The rest is checked again with each message dequeued from then on; the last one returns its permit.
        """
        memory = self._memory
        if not self.is_attached or self.is_paused:
            return
        if memory.is_over(_TIGHT) and self.size > 1:
            self._change(self.size // 2)
        if memory.is_over(1):
            # The broker has none left, and nothing is queued: one permit, so that this consumer makes progress.
            if self.to_return >= self.size and self._is_empty():
                self._grant(self.to_return - self.size + 1)
        elif self.to_return >= self.threshold:
            self._grant(self.to_return)

    def _change(self, size: int) -> None:
        self.to_return += size - self.size
        self.resize(size)

    def on_receive_wait(self, is_empty: bool) -> None:
        """Process a waiting receiver."""
        if self._passed and is_empty:
            self.on_queue_empty()

    def on_queue_empty(self) -> None:
        """Process an empty queue found by the application."""
        if self._passed >= self.size:
            self._grow()
        self._passed = self._largest_entry = self._passed_bytes = 0
        self.count(0)

    def _grow(self) -> None:
        least = max(self.size, self._largest_entry)
        # Whoever waits for one message at a time needs no long queue.
        most = _FASTEST_GROWTH if self._passed > 1 else 2
        for size in (most * least, 2 * least, 2 * self.size):
            size = min(self._most, size)
            # As far as messages like the last ones would fit into the memory that is left.
            if size > self.size and self._memory.has_room(size * self._passed_bytes // self._passed):
                self._change(size)
                return

    def on_decoded(self, messages: int) -> None:
        """Count an entry's messages, which are dequeued next."""
        self._passed += messages
        self._largest_entry = max(self._largest_entry, messages)

    def on_queued(self, delivery: Delivery) -> None:
        """Count an entry that waits here. Thread-safe, without lock."""
        self._memory.receive(len(delivery.payload))

    def on_removed(self, delivery: Delivery) -> None:
        """Remove an entry from the count: it was decoded or dropped."""
        self._memory.release_received(len(delivery.payload))
        self._passed_bytes += len(delivery.payload)
