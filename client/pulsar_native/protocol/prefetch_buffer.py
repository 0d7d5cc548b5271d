"""Prefetch buffer: messages of the current entry that `receive()` pops without acquiring the consumer's lock.

Rules: the messages are of one entry, in order, ahead of everything else the consumer has. The APIs pop from the left,
in any thread, one atomic step per message; `fill`, `taken` and `reclaim` are called under the consumer's lock, and
`reclaim` pops from the right. So a message is either reclaimed or dequeued, whatever happens concurrently. No message
is added whose dequeuing makes permits due: they are sent when it is dequeued, not at the next `receive()`.
"""

from __future__ import annotations

from collections import deque

from pulsar_native.message import Message
from pulsar_native.protocol.entry_decoder import Decoded


class PrefetchBuffer:
    """Prefetch buffer of one consumer. The methods are called under its lock."""

    __slots__ = ("_of", "_stop", "messages", "uncounted")

    def __init__(self) -> None:
        # Never replaced: the APIs hold its `popleft`.
        self.messages: deque[Message] = deque()
        # Number of messages that were added and not counted as dequeued; their entry, and the index behind the last.
        self.uncounted = 0
        self._of: Decoded | None = None
        self._stop = 0

    def fill(self, decoded: Decoded, first: int, stop: int) -> None:
        """Add messages of a batch, from one index up to another; earlier ones must be dequeued and counted."""
        self._of, self._stop, self.uncounted = decoded, stop, stop - first
        self.messages.extend(decoded.messages_between(first, stop))

    def taken(self) -> tuple[int, Message | None]:
        """Return how many messages were dequeued since the last count, and the last of them."""
        left = len(self.messages)
        taken, self.uncounted = self.uncounted - left, left
        message = None
        if taken and self._of is not None:
            last = self._stop - left - 1
            (message,) = self._of.messages_between(last, last + 1)
        if not left:
            self._of = None
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
            self.uncounted -= len(back)
            return back
