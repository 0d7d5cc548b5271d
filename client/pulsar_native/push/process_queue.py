"""Process queue: messages a push consumer dequeued from one partition and has not finished.

Rules: messages get dense sequence numbers in the order they are dequeued; the span is the distance from the oldest
unfinished one to the newest. The offset to store is the last position before the oldest unfinished message, or the last
one seen when everything is done: filtered-out messages advance it, too. Where it is kept, it stays behind the message
that was the last one then. Not thread-safe, except `holds`; times in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

P = TypeVar("P")


@dataclass(slots=True)
class Taken(Generic[P]):
    """One dequeued message: its position, the position before it, and when a handler got it.

    One object for each try in this process: after `renew` the former one is not held any more.
    """

    number: int
    position: P
    before: P | None
    size: int
    started: float | None = None
    # Failed tries in this process, which the broker does not count.
    tries: int = 0
    # No handler has it any more, or it hangs: a copy is being stored, or that failed and it waits for its next try.
    is_going_back: bool = False


class ProcessQueue(Generic[P]):
    """Unfinished messages of one partition; P is the type of a position."""

    __slots__ = ("_first", "_items", "_kept", "_last", "_next", "bytes")

    def __init__(self) -> None:
        self._items: dict[int, Taken[P]] = {}
        self._next = 0
        # Lowest number that may be unfinished: advanced lazily, so that finishing has a constant cost.
        self._first = 0
        self._last: P | None = None
        # The next number and the last position when the offset was kept; None where it is not.
        self._kept: tuple[int, P | None] | None = None
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, position: P, size: int) -> Taken[P]:
        """Add a message of this size in bytes and return it with its number."""
        item = Taken(self._next, position, self._last, size)
        self._next += 1
        self._last = position
        self._items[item.number] = item
        self.bytes += size
        return item

    def skip(self, position: P) -> None:
        """Add a filtered-out message: it is done as soon as those before it are."""
        self._last = position

    def begin_at(self, position: P | None) -> None:
        """Record that everything up to a position is done, before anything is dequeued."""
        self._last = position
        self._kept = None

    def keep_offset(self) -> bool:
        """Have the offset pass no message that is added from now on; return False where it does not already."""
        if self._kept is not None:
            return False
        self._kept = (self._next, self._last)
        return True

    @property
    def done_up_to(self) -> P | None:
        """Position up to which everything is done, None when nothing is yet."""
        oldest = self.oldest()
        if self._kept is not None and (oldest is None or oldest.number >= self._kept[0]):
            return self._kept[1]
        return self._last if oldest is None else oldest.before

    def finish(self, items: Iterable[Taken[P]]) -> list[Taken[P]]:
        """Remove finished messages, and return those that were still present: the others were given up before."""
        done = []
        for item in items:
            if self.holds(item):
                del self._items[item.number]
                self.bytes -= item.size
                done.append(item)
        return done

    def holds(self, item: Taken[P]) -> bool:
        """Return True if the message is still unfinished, and this is its current try."""
        return self._items.get(item.number) is item

    def renew(self, item: Taken[P]) -> Taken[P]:
        """Replace a message that is held for its next try, which no handler has begun, and return the new object: what
        a handler of the former try still answers has no effect.
        """
        again = replace(item, started=None, is_going_back=False)
        self._items[item.number] = again
        return again

    def oldest(self) -> Taken[P] | None:
        """Return the oldest unfinished message, None when everything is done."""
        if not self._items:
            self._first = self._next
            return None
        while self._first not in self._items:
            self._first += 1
        return self._items[self._first]

    @property
    def span(self) -> int:
        """Distance from the oldest unfinished message to the newest one dequeued; 0 when everything is done."""
        oldest = self.oldest()
        return 0 if oldest is None else self._next - 1 - oldest.number

    @property
    def newest(self) -> int:
        """Number of the newest message dequeued, -1 when there was none."""
        return self._next - 1

    def stuck(self, before: float, most: int) -> list[Taken[P]]:
        """Return up to `most` of the oldest messages that a handler has since before a time."""
        found: list[Taken[P]] = []
        for item in self._items.values():
            if len(found) == most:
                break
            if item.started is not None and item.started < before and not item.is_going_back:
                found.append(item)
        return found

    def drop_waiting(self) -> list[Taken[P]]:
        """Remove and return the messages no handler has begun: they are redelivered, here or to another member."""
        waiting = [item for item in self._items.values() if item.started is None]
        return self.finish(waiting)

    def clear(self) -> list[Taken[P]]:
        """Remove and return all unfinished messages."""
        left = list(self._items.values())
        self._items.clear()
        self.bytes = 0
        return left


class Ascending:
    """Detector of positions that go backwards, which happens only when the subscription was moved."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[int, ...] | None = None

    def goes_back(self, position: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the previous position if it was behind this one, else None."""
        last, self._last = self._last, position
        return last if last is not None and position < last else None
