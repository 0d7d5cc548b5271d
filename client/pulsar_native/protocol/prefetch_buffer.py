"""Prefetch buffer: messages that `receive()` pops without acquiring the consumer's lock.

Rules: the messages are of one batch, or of several entries of one message each, in order, ahead of everything else the
consumer has. The APIs pop from the left, in any thread, one atomic step per message; `fill`, `taken` and `reclaim` are
called under the consumer's lock, and `reclaim` pops from the right. So a message is either reclaimed or dequeued,
whatever happens concurrently. No message is added whose dequeuing makes permits due: they are sent when it is dequeued,
not at the next `receive()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pulsar_native._message_fields import MessageQueue
from pulsar_native.message import Message


class Batch(Protocol):
    """Batch whose messages are made on demand."""

    def message_at(self, index: int) -> Message: ...
    def extend_queue(self, queue: MessageQueue[Message], first: int, stop: int) -> None: ...


class PrefetchBuffer:
    """Prefetch buffer of one consumer. The methods are called under its lock."""

    __slots__ = ("_message_at", "_stop", "messages", "uncounted")

    def __init__(self) -> None:
        # Never replaced: the APIs hold its `popleft`.
        self.messages: MessageQueue[Message] = MessageQueue()
        # State at the last count: number of messages, the position behind the last of them, and the function that
        # returns the message at a position: the dequeued ones are not kept.
        self.uncounted = 0
        self._stop = 0
        self._message_at: Callable[[int], Message] | None = None

    def fill(self, messages: Sequence[Message]) -> None:
        """Add messages; earlier ones must be dequeued and counted."""
        self._message_at, self._stop, self.uncounted = messages.__getitem__, len(messages), len(messages)
        self.messages.extend(messages)

    def fill_from(self, batch: Batch, first: int, stop: int) -> None:
        """Add messages of a batch, from index `first` to `stop`; earlier ones must be dequeued and counted."""
        self._message_at, self._stop, self.uncounted = batch.message_at, stop, stop - first
        batch.extend_queue(self.messages, first, stop)

    def taken(self) -> tuple[int, Message | None]:
        """Return how many messages were dequeued since the last count, and the last of them."""
        left = len(self.messages)
        taken, self.uncounted = self.uncounted - left, left
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
            self.uncounted -= len(back)
            return back
