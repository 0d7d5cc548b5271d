"""How long a message waits before it is delivered again: longer each time it has failed.

Rules: values only, frozen and picklable; milliseconds, as in the Java client, so that its settings can be copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pulsar_native.exceptions import InvalidConfiguration


class RedeliveryBackoff(Protocol):
    """Give the delay before the next delivery of a message; any object with this method will do.

    Called in the application's thread or the engine's, under a lock: it must not block. A message that was refused by
    its id alone counts as never redelivered.
    """

    def next(self, redelivery_count: int) -> float:
        """Return milliseconds for a message that was redelivered so many times; 0 = delivered once."""
        ...


@dataclass(frozen=True, kw_only=True)
class MultiplierRedeliveryBackoff:
    """Multiply the delay with each redelivery: `min_delay_ms`, times `multiplier` each, at most `max_delay_ms`.

    Immutable and thread-safe. The defaults are Java's: 10 s, 20 s, 40 s … 10 minutes.
    """

    min_delay_ms: int = 10_000
    max_delay_ms: int = 600_000
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        for name in ("min_delay_ms", "max_delay_ms", "multiplier"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidConfiguration(f"{name} must be a number, not {type(value).__name__}")
        if not 0 <= self.min_delay_ms <= self.max_delay_ms:
            raise InvalidConfiguration("a redelivery back-off needs 0 <= min_delay_ms <= max_delay_ms")
        if not self.multiplier >= 1:
            raise InvalidConfiguration(f"multiplier must be at least 1, not {self.multiplier}")

    def next(self, redelivery_count: int) -> float:
        """Return milliseconds to wait for a message that was redelivered so many times."""
        if redelivery_count <= 0 or not self.min_delay_ms:
            return self.min_delay_ms
        try:
            delay = self.min_delay_ms * float(self.multiplier) ** redelivery_count
        except OverflowError:
            return self.max_delay_ms
        return min(int(delay), self.max_delay_ms) if delay < self.max_delay_ms else self.max_delay_ms
