"""Waiters of a producer: for the receipts of its entries (a flush), or for capacity in its queue.

Rules: in order; no callback is called under the producer's lock. The methods are called under it unless they say
otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from pulsar_native.exceptions import PulsarException
from pulsar_native.protocol.send_op import SendOp

FlushDone = Callable[[PulsarException | None], None]


class FlushWaiters:
    """Callbacks that wait for all receipts of earlier messages, each with the last entry it waits for."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[tuple[SendOp, FlushDone]] = deque()

    def add(self, last: SendOp, done: FlushDone) -> None:
        """Call `done` when an entry is completed."""
        self.waiting.append((last, done))

    def completed(self, op: SendOp, error: PulsarException | None) -> None:
        """Call the callbacks that waited for an entry. On the loop, without the lock."""
        while self.waiting and self.waiting[0][0] is op:
            self.waiting.popleft()[1](error)

    def without(self, gone: Collection[SendOp], queue: Iterable[SendOp]) -> list[FlushDone]:
        """Move callbacks of removed entries to the entry before it; return those with nothing left to wait for."""
        last_kept = None
        stands_before: dict[SendOp, SendOp | None] = {}
        for op in queue:
            if op in gone:
                stands_before[op] = last_kept
            else:
                last_kept = op
        moved = [(stands_before.get(op, op), done) for op, done in self.waiting]
        self.waiting = deque((op, done) for op, done in moved if op is not None)
        return [done for op, done in moved if op is None]


class CapacityWaiters:
    """Callbacks that wait for capacity in the queue, each for a number of messages or chunks."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def add(self, needed: int, wake: Callable[[], None]) -> None:
        """Call `wake` when there is capacity for `needed` messages or chunks."""
        self.waiting.append((needed, wake))

    def pop_ready(self, capacity: int | None) -> list[Callable[[], None]]:
        """Remove and return the callbacks to call, in order, up to one that does not fit yet; None is unlimited
        capacity.

        A woken sender that finds the capacity used up waits again.
        """
        woken: list[Callable[[], None]] = []
        while self.waiting and (capacity is None or self.waiting[0][0] <= capacity):
            woken.append(self.waiting.popleft()[1])
        return woken
