"""Lock-free prefetch buffer: messages of the current entry that `receive()` pops without taking the consumer lock.

Rules: the messages are of one entry, in order, ahead of everything else the consumer has. The APIs pop from the left,
in any thread, one atomic step a message; `fill`, `taken` and `reclaim` are called under the consumer's lock, and
`reclaim` pops from the right. So a message is either reclaimed or taken, whatever happens at once. No message is put
here whose taking makes permits due: they go when it is taken, not when the next `receive()` comes.
"""

from __future__ import annotations

from collections import deque

from pulsar_native.message import Message
from pulsar_native.protocol.entry_decoder import Decoded


class PrefetchBuffer:
    """Prefetch buffer of one `PartitionConsumer`. The methods are called under its lock."""

    __slots__ = ("_counted", "_of", "_stop", "messages")

    def __init__(self) -> None:
        # The same for ever: the APIs hold its `popleft`.
        self.messages: deque[Message] = deque()
        # How many were there when they were last counted, of which entry, and the index behind the last of them.
        self._counted = 0
        self._of: Decoded | None = None
        self._stop = 0

    def __bool__(self) -> bool:
        """Whether anything was put here that is not counted as taken."""
        return self._counted > 0

    def fill(self, decoded: Decoded, first: int, stop: int) -> None:
        """Put messages of a batch there, from one index up to another; what was put before is taken and counted."""
        self._of, self._stop, self._counted = decoded, stop, stop - first
        self.messages.extend(decoded.messages_between(first, stop))

    def taken(self) -> tuple[int, Message | None]:
        """Return how many were taken since the last count, and the last of them."""
        left = len(self.messages)
        taken, self._counted = self._counted - left, left
        message = None
        if taken and self._of is not None:
            last = self._stop - left - 1
            (message,) = self._of.messages_between(last, last + 1)
        if not left:
            self._of = None
        return taken, message

    def reclaim(self) -> list[Message]:
        """Take back what nobody took, the last first; count before anything else is done, and after it."""
        back: list[Message] = []
        try:
            while True:
                back.append(self.messages.pop())
        except IndexError:
            # Order of events: whoever took one meanwhile took it from the left, so that what is back is the end.
            self._stop -= len(back)
            self._counted -= len(back)
            return back
