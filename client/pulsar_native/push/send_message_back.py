"""Send-message-back decision for a failed message: redelivery after a delay, or the dead-letter topic.

Rules: level 0 selects level 3 + the previous tries; -1 is the dead-letter topic immediately; any other level is used as
it is. Levels beyond the table mean its last delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A failed send-back, or a handler that hangs, starts at this level.
FALLBACK_LEVEL = 3
CONCURRENT_TRIES = 16


@dataclass(frozen=True)
class Again:
    """Redeliver the message to any member after this delay in ms."""

    delay_ms: int


class DeadLetter:
    """Send the message to the dead-letter topic."""

    __slots__ = ()


DEAD_LETTER = DeadLetter()


def tries_of(written: str | None) -> int:
    """Return the number of previous tries from the reconsume property; an invalid value counts as none."""
    return int(written) if written is not None and written.isascii() and written.isdigit() and len(written) < 10 else 0


def next_step(times: int, most: int, level: int, delays_ms: Sequence[int]) -> Again | DeadLetter:
    """Return the decision for a message that has failed `times` times before; `most` of -1 means sixteen tries."""
    limit = CONCURRENT_TRIES if most == -1 else most
    if level < 0 or times >= limit:
        return DEAD_LETTER
    chosen = level or FALLBACK_LEVEL + times
    return Again(delays_ms[min(chosen, len(delays_ms)) - 1])
