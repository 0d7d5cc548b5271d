"""Who waits for a producer: for its entries to have their receipts (a flush), or for room in its queue.

Rules: in order; nobody is called under the producer's lock. The methods are called under it unless they say otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from pulsar_native.exceptions import PulsarException
from pulsar_native.protocol.send_op import SendOp

FlushDone = Callable[[PulsarException | None], None]


class FlushWaiters:
    """Those who wait until everything sent before has its receipt, each with the last entry it waits for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[SendOp, FlushDone]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, last: SendOp, done: FlushDone) -> None:
        """Have `done` called when an entry is completed."""
        self._waiting.append((last, done))

    def completed(self, op: SendOp, error: PulsarException | None) -> None:
        """Call those who waited for an entry. On the loop, without the lock."""
        while self._waiting and self._waiting[0][0] is op:
            self._waiting.popleft()[1](error)

    def without(self, gone: Collection[SendOp], queue: Iterable[SendOp]) -> list[FlushDone]:
        """Have who waits for an entry that is gone wait for what stood before it; return those who wait no longer."""
        last_kept = None
        stands_before: dict[SendOp, SendOp | None] = {}
        for op in queue:
            if op in gone:
                stands_before[op] = last_kept
            else:
                last_kept = op
        moved = [(stands_before.get(op, op), done) for op, done in self._waiting]
        self._waiting = deque((op, done) for op, done in moved if op is not None)
        return [done for op, done in moved if op is None]


class RoomWaiters:
    """Those who wait for room in the queue, each for so many messages or chunks."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, needed: int, wake: Callable[[], None]) -> None:
        """Have `wake` called when there is room for so many."""
        self._waiting.append((needed, wake))

    def take(self, room: int | None) -> list[Callable[[], None]]:
        """Return who is to be woken, in order, up to one whose chunks do not fit yet; None is room for all.

        Whoever is woken and finds the room taken again waits anew.
        """
        woken: list[Callable[[], None]] = []
        while self._waiting and (room is None or self._waiting[0][0] <= room):
            woken.append(self._waiting.popleft()[1])
        return woken
