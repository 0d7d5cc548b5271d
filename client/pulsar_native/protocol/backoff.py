"""Reconnection back-off: doubling, bounded, with jitter.

Rules (Java client 4.x): the first delay is the initial one, each next is double, never above the maximum; up to 10 % is
subtracted at random, never below the initial delay. A mandatory stop makes one delay end at that time after the first
failure, so that a producer tries once more just before its send time-out.
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays of one series of attempts. Not thread-safe; all times are seconds."""

    __slots__ = ("_first_at", "_initial", "_mandatory_made", "_mandatory_stop", "_maximum", "_next", "_random")

    def __init__(
        self, initial: float, maximum: float, random: Callable[[], float], *, mandatory_stop: float = 0.0
    ) -> None:
        self._initial = initial
        self._maximum = max(maximum, initial)
        self._mandatory_stop = mandatory_stop
        self._random = random
        self._next = initial
        self._first_at: float | None = None
        self._mandatory_made = False

    def next(self, now: float) -> float:
        """Return the delay from `now` to the next attempt."""
        delay = self._next
        self._next = min(self._next * 2, self._maximum)
        if self._first_at is None:
            self._first_at = now
        if not self._mandatory_made and self._mandatory_stop > 0:
            elapsed = now - self._first_at
            if elapsed + delay > self._mandatory_stop:
                delay = max(self._initial, self._mandatory_stop - elapsed)
                self._mandatory_made = True
        delay -= delay * 0.1 * self._random()
        return max(self._initial, delay)

    def reset(self) -> None:
        """Restart with the initial delay after a success."""
        self._next = self._initial
        self._first_at = None
        self._mandatory_made = False
