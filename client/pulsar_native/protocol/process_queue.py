"""What a listener container took from one partition and has not finished yet.

Rules (client.md C201-C204, C215): messages get dense running numbers in the order they are taken; the span is how far
the newest is ahead of the oldest unfinished one, the position to keep is that of the oldest unfinished one. Not
thread-safe; seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")


@dataclass(slots=True)
class Taken(Generic[P]):
    """One message that was taken: where it stands, how large it is, and since when a handler has it."""

    number: int
    position: P
    size: int
    started: float | None = None


class ProcessQueue(Generic[P]):
    """The unfinished messages of one partition; P is what tells a position."""

    __slots__ = ("_first", "_items", "_next", "bytes")

    def __init__(self) -> None:
        self._items: dict[int, Taken[P]] = {}
        self._next = 0
        # The lowest number that may be unfinished: moved on lazily, so that finishing costs a constant time.
        self._first = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, arrived: Sequence[tuple[P, int]]) -> list[Taken[P]]:
        """Take messages, each a position and a size in bytes, and return them with their numbers."""
        taken = [Taken(self._next + index, position, size) for index, (position, size) in enumerate(arrived)]
        self._next += len(taken)
        for item in taken:
            self._items[item.number] = item
            self.bytes += item.size
        return taken

    def start(self, items: Iterable[Taken[P]], now: float) -> None:
        """Note that a handler has the messages from now on."""
        for item in items:
            item.started = now

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
        """Return up to `most` of the oldest messages whose handler has had them since before a time."""
        found: list[Taken[P]] = []
        for item in self._items.values():
            if len(found) == most:
                break
            if item.started is not None and item.started < before:
                found.append(item)
        return found

    def clear(self) -> list[Taken[P]]:
        """Forget everything and return what was unfinished."""
        left = list(self._items.values())
        self._items.clear()
        self.bytes = 0
        return left
