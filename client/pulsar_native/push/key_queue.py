"""The lanes of an orderly container: each holds messages that must be handled one after another.

Rules (client.md C216, C217): a lane is a partition or a key; one worker has it at a time; a worker keeps it for at
most a minute in a row and then leaves it for 10 ms, so that a busy lane does not hold a worker for ever; a suspended
lane rests, with its messages first in line. Messages handled but not committed yet are noted, and come first again
when they are rolled back. Not thread-safe; seconds.
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


class Lane(Generic[M]):
    """Messages of one partition or key, in order."""

    __slots__ = ("attempts", "busy", "key", "noted", "queued", "run_since", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: deque[M] = deque()
        self.busy = False
        self.queued = False
        # Handled, and neither committed nor rolled back yet.
        self.noted: list[M] = []
        self.run_since: float | None = None
        # How often the messages at the head were given to the handler before.
        self.attempts = 0


class Lanes(Generic[M]):
    """All lanes of a container, and which of them a worker may take now."""

    __slots__ = ("_lanes", "_ready", "_resting", "_serial")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane[M]] = {}
        self._ready: deque[Lane[M]] = deque()
        self._resting: list[tuple[float, int, Lane[M]]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, key: Hashable, messages: Iterable[M]) -> None:
        """Put messages at the end of their lane."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        lane.waiting.extend(messages)
        self._line_up(lane)

    def _line_up(self, lane: Lane[M]) -> None:
        if lane.waiting and not lane.busy and not lane.queued:
            lane.queued = True
            self._ready.append(lane)

    def claim(self, now: float) -> Lane[M] | None:
        """Return a lane for a worker, which has it alone until `release`; None when none may be taken now."""
        while self._resting and self._resting[0][0] <= now:
            _, _, lane = heappop(self._resting)
            lane.queued = False
            self._line_up(lane)
        if not self._ready:
            return None
        lane = self._ready.popleft()
        lane.queued = False
        lane.busy = True
        if lane.run_since is None:
            lane.run_since = now
        return lane

    def next_wake(self) -> float | None:
        """Return when the next resting lane may be taken, None when none rests."""
        return self._resting[0][0] if self._resting else None

    def take(self, lane: Lane[M], most: int) -> list[M]:
        """Return the next messages of a claimed lane, at most so many."""
        return [lane.waiting.popleft() for _ in range(min(most, len(lane.waiting)))]

    def note(self, lane: Lane[M], messages: Iterable[M]) -> None:
        """Keep messages that are handled, until they are committed or rolled back."""
        lane.noted.extend(messages)
        lane.attempts = 0

    def commit(self, lane: Lane[M]) -> list[M]:
        """Return what was noted and forget it: it is done."""
        noted, lane.noted = lane.noted, []
        lane.attempts = 0
        return noted

    def roll_back(self, lane: Lane[M]) -> list[M]:
        """Return what was noted, to be given again."""
        noted, lane.noted = lane.noted, []
        return noted

    def must_pause(self, lane: Lane[M], now: float) -> bool:
        """Return whether a worker has had the lane for long enough."""
        return lane.run_since is not None and now - lane.run_since > _LONGEST_RUN

    def release(self, lane: Lane[M], now: float) -> None:
        """Give a claimed lane back; it is lined up again if it has messages, after a break if it was long in use."""
        lane.busy = False
        if self.must_pause(lane, now):
            self._rest(lane, now + _BREAK)
            return
        lane.run_since = None
        if lane.waiting:
            self._line_up(lane)
        elif not lane.noted:
            # A key that is seen once must not stay for ever.
            self._lanes.pop(lane.key, None)

    def suspend(self, lane: Lane[M], messages: Iterable[M], seconds: float, now: float) -> None:
        """Give a claimed lane back with the messages that failed first in line, and let it rest."""
        lane.busy = False
        lane.attempts += 1
        lane.waiting.extendleft(reversed(list(messages)))
        self._rest(lane, now + min(max(seconds, _SHORTEST_REST), _LONGEST_REST))

    def _rest(self, lane: Lane[M], until: float) -> None:
        lane.run_since = None
        lane.queued = True
        self._serial += 1
        heappush(self._resting, (until, self._serial, lane))
