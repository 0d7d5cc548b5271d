"""What becomes of a message whose handler failed: another try after a delay, or the dead letter topic.

Rules: level 0 lets the table decide, 3 + the tries so far; -1 is a dead letter at once; any
other level is taken as it is. Levels beyond the table mean its last delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A failed hand-over to the broker, or a handler that hangs, starts at this level again.
FALLBACK_LEVEL = 3
CONCURRENT_TRIES = 16


@dataclass(frozen=True)
class Again:
    """Give the message to some member again after so many ms."""

    delay_ms: int


class DeadLetter:
    """Put the message aside: it was tried often enough."""

    __slots__ = ()


DEAD_LETTER = DeadLetter()


def tries_of(written: str | None) -> int:
    """Return how often a message was tried before, by the property that counts it; what is no count is none."""
    return int(written) if written is not None and written.isascii() and written.isdigit() and len(written) < 10 else 0


def next_step(times: int, most: int, level: int, delays_ms: Sequence[int]) -> Again | DeadLetter:
    """Return what happens to a message that has failed `times` times before; `most` of -1 means sixteen tries."""
    limit = CONCURRENT_TRIES if most == -1 else most
    if level < 0 or times >= limit:
        return DEAD_LETTER
    chosen = level or FALLBACK_LEVEL + times
    return Again(delays_ms[min(chosen, len(delays_ms)) - 1])
