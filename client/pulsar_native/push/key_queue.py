"""Key queues of an orderly push consumer: each holds messages that must be handled one after another.

Rules: a queue is a partition or a key; one worker has it at a time; a worker keeps it for at most a minute in a row and
then releases it for 10 ms, so that a busy queue does not occupy a worker indefinitely; a suspended queue pauses with
its messages first in line. Messages handled but not committed yet are first in line again when they are rolled back.
Not thread-safe; times in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

M = TypeVar("M")

_LONGEST_RUN = 60.0
_BREAK = 0.010
_SHORTEST_REST = 0.010
_LONGEST_REST = 30.0


class KeyQueue(Generic[M]):
    """Messages of one partition or key, in order."""

    __slots__ = ("busy", "key", "queued", "run_since", "uncommitted", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: deque[M] = deque()
        self.busy = False
        self.queued = False
        # Handled, and neither committed nor rolled back yet.
        self.uncommitted: list[M] = []
        self.run_since: float | None = None


class KeyQueues(Generic[M]):
    """All queues of a push consumer, and which of them a worker may claim now."""

    __slots__ = ("_key_queues", "_ready", "_resting", "_serial")

    def __init__(self) -> None:
        self._key_queues: dict[Hashable, KeyQueue[M]] = {}
        self._ready: deque[KeyQueue[M]] = deque()
        self._resting: list[tuple[float, int, KeyQueue[M]]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._key_queues)

    def add(self, key: Hashable, messages: Iterable[M]) -> None:
        """Append messages to their queue."""
        key_queue = self._key_queues.get(key)
        if key_queue is None:
            key_queue = self._key_queues[key] = KeyQueue(key)
        key_queue.waiting.extend(messages)
        self._line_up(key_queue)

    def _line_up(self, key_queue: KeyQueue[M]) -> None:
        if key_queue.waiting and not key_queue.busy and not key_queue.queued:
            key_queue.queued = True
            self._ready.append(key_queue)

    def _line_up_or_remove(self, key_queue: KeyQueue[M]) -> None:
        if key_queue.waiting:
            self._line_up(key_queue)
        elif not key_queue.uncommitted:
            # A key that is seen once must not stay indefinitely.
            self._key_queues.pop(key_queue.key, None)

    def claim(self, now: float) -> KeyQueue[M] | None:
        """Return a queue for exclusive use by a worker until `release`; None when none is available."""
        while self._resting and self._resting[0][0] <= now:
            _, _, key_queue = heappop(self._resting)
            key_queue.queued = False
            self._line_up_or_remove(key_queue)
        if not self._ready:
            return None
        key_queue = self._ready.popleft()
        key_queue.queued = False
        key_queue.busy = True
        if key_queue.run_since is None:
            key_queue.run_since = now
        return key_queue

    def next_wake(self) -> float | None:
        """Return when the next paused queue may be claimed, None when none is paused."""
        return self._resting[0][0] if self._resting else None

    def dequeue(self, key_queue: KeyQueue[M], most: int) -> list[M]:
        """Return the next messages of a claimed queue, at most `most`."""
        return [key_queue.waiting.popleft() for _ in range(min(most, len(key_queue.waiting)))]

    def note(self, key_queue: KeyQueue[M], messages: Iterable[M]) -> None:
        """Keep handled messages until they are committed or rolled back."""
        key_queue.uncommitted.extend(messages)

    def commit(self, key_queue: KeyQueue[M]) -> list[M]:
        """Remove and return the uncommitted messages, which are done."""
        uncommitted, key_queue.uncommitted = key_queue.uncommitted, []
        return uncommitted

    def roll_back(self, key_queue: KeyQueue[M]) -> list[M]:
        """Remove and return the uncommitted messages, to be handled again."""
        uncommitted, key_queue.uncommitted = key_queue.uncommitted, []
        return uncommitted

    def must_pause(self, key_queue: KeyQueue[M], now: float) -> bool:
        """Return True if a worker has had the queue for its maximum time."""
        return key_queue.run_since is not None and now - key_queue.run_since > _LONGEST_RUN

    def release(self, key_queue: KeyQueue[M], now: float) -> None:
        """Release a claimed queue; it is lined up again if it has messages, after a break if it was in use for long."""
        key_queue.busy = False
        if self.must_pause(key_queue, now):
            self._rest(key_queue, now + _BREAK)
            return
        key_queue.run_since = None
        self._line_up_or_remove(key_queue)

    def suspend(self, key_queue: KeyQueue[M], messages: Iterable[M], seconds: float, now: float) -> None:
        """Release a claimed queue with the failed messages first in line, and let it pause."""
        key_queue.busy = False
        key_queue.waiting.extendleft(reversed(list(messages)))
        self._rest(key_queue, now + min(max(seconds, _SHORTEST_REST), _LONGEST_REST))

    def _rest(self, key_queue: KeyQueue[M], until: float) -> None:
        key_queue.run_since = None
        key_queue.queued = True
        self._serial += 1
        heappush(self._resting, (until, self._serial, key_queue))
