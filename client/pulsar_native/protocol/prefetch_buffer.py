"""Prefetch buffer: messages that `receive()` pops without acquiring the consumer's lock.

Rules: the messages are of one batch, or of several entries of one message each, in order, ahead of everything else the
consumer has. The APIs pop from the left, in any thread, one atomic step per message; `fill`, `taken` and `reclaim` are
called under the consumer's lock, and `reclaim` pops from the right. So a message is either reclaimed or dequeued,
whatever happens concurrently. No message is added whose dequeuing makes permits due: they are sent when it is dequeued,
not at the next `receive()`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pulsar_native.message import Message


class PrefetchBuffer:
    """Prefetch buffer of one consumer. The methods are called under its lock."""

    __slots__ = ("_counted", "_message_at", "_stop", "messages")

    def __init__(self) -> None:
        # Never replaced: the APIs hold its `popleft`.
        self.messages: deque[Message] = deque()
        # State at the last count: number of messages, the position behind the last of them, and the function that
        # returns the message at a position: the dequeued ones are not kept.
        self._counted = 0
        self._stop = 0
        self._message_at: Callable[[int], Message] | None = None

    def __bool__(self) -> bool:
        """True if anything was added that is not counted as dequeued."""
        return self._counted > 0

    def fill(self, messages: Sequence[Message], stop: int, message_at: Callable[[int], Message]) -> None:
        """Add messages whose positions end before `stop`; earlier ones must be dequeued and counted."""
        self._message_at, self._stop, self._counted = message_at, stop, len(messages)
        self.messages.extend(messages)

    def taken(self) -> tuple[int, Message | None]:
        """Return how many messages were dequeued since the last count, and the last of them."""
        left = len(self.messages)
        taken, self._counted = self._counted - left, left
        message = None
        if taken and self._message_at is not None:
            message = self._message_at(self._stop - left - 1)
        if not left:
            self._message_at = None
        return taken, message

    def reclaim(self) -> list[Message]:
        """Remove and return the remaining messages, the last first; call `taken` before anything else, and after it."""
        back: list[Message] = []
        try:
            while True:
                back.append(self.messages.pop())
        except IndexError:
            # Order of events: concurrent pops were from the left, so the reclaimed messages are the end.
            self._stop -= len(back)
            self._counted -= len(back)
            return back
