"""What a push consumer took from one partition and has not finished yet.

Rules: messages get dense running numbers in the order they are taken; the span
is how far the newest is ahead of the oldest unfinished one. The position to keep is the last one before the oldest
unfinished message, or the last one seen when everything is done: messages nobody wants move it, too. Not thread-safe,
except `holds`; seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")


@dataclass(slots=True)
class Taken(Generic[P]):
    """One message that was taken: where it stands, what stands before it, and since when a handler has it."""

    number: int
    position: P
    before: P | None
    size: int
    started: float | None = None
    # Tries that failed here without the broker's knowledge.
    tries: int = 0
    # It was put back while its handler was still at it.
    given_up: bool = False


class ProcessQueue(Generic[P]):
    """The unfinished messages of one partition; P is what tells a position."""

    __slots__ = ("_first", "_items", "_last", "_next", "bytes")

    def __init__(self) -> None:
        self._items: dict[int, Taken[P]] = {}
        self._next = 0
        # The lowest number that may be unfinished: moved on lazily, so that finishing costs a constant time.
        self._first = 0
        self._last: P | None = None
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, position: P, size: int) -> Taken[P]:
        """Take a message of so many bytes and return it with its number."""
        item = Taken(self._next, position, self._last, size)
        self._next += 1
        self._last = position
        self._items[item.number] = item
        self.bytes += size
        return item

    def skip(self, position: P) -> None:
        """Note a message nobody wants: it is done as soon as those before it are."""
        self._last = position

    def begin_at(self, position: P | None) -> None:
        """Note that everything up to a position is done before anything is taken."""
        self._last = position

    @property
    def done_up_to(self) -> P | None:
        """The position up to which everything is done, None when that is nothing yet."""
        oldest = self.oldest()
        return self._last if oldest is None else oldest.before

    def finish(self, items: Iterable[Taken[P]]) -> list[Taken[P]]:
        """Remove messages that are done, and return those that were still there: the others were given up before."""
        done = []
        for item in items:
            if self._items.pop(item.number, None) is not None:
                self.bytes -= item.size
                done.append(item)
        return done

    def holds(self, item: Taken[P]) -> bool:
        """Return whether the message is unfinished still."""
        return item.number in self._items

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
        """How far the newest message taken is ahead of the oldest unfinished one; 0 when everything is done."""
        oldest = self.oldest()
        return 0 if oldest is None else self._next - 1 - oldest.number

    @property
    def newest(self) -> int:
        """The number of the newest message taken, -1 when there was none."""
        return self._next - 1

    def stuck(self, before: float, most: int) -> list[Taken[P]]:
        """Return up to `most` of the oldest messages a handler has had since before a time, but not those given up."""
        found: list[Taken[P]] = []
        for item in self._items.values():
            if len(found) == most:
                break
            if item.started is not None and item.started < before and not item.given_up:
                found.append(item)
        return found

    def drop_waiting(self) -> list[Taken[P]]:
        """Forget what no handler has begun, and return it: it comes again, or to another member."""
        waiting = [item for item in self._items.values() if item.started is None]
        return self.finish(waiting)

    def clear(self) -> list[Taken[P]]:
        """Forget everything and return what was unfinished."""
        left = list(self._items.values())
        self._items.clear()
        self.bytes = 0
        return left


class Ascending:
    """Tell when positions go backwards, which they do only when somebody moved the subscription."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[int, ...] | None = None

    def goes_back(self, position: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the position before this one when that was behind it, None when all is well."""
        last, self._last = self._last, position
        return last if last is not None and position < last else None
