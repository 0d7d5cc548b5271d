"""Delays from a redelivery back-off, which is the application's: what it raises or returns never ends a redelivery.

Rules: a delay that cannot be used (an exception, a value that is no number, a negative one, NaN) is logged and replaced
by the configured one; a longer one than the options allow, infinity among them, counts as that.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import cast

from pulsar_native._callback_errors import callback_errors
from pulsar_native._loggers import get_logger
from pulsar_native._type_names import type_name
from pulsar_native.config import RedeliveryBackoff
from pulsar_native.config.base import MAX_I64

_log = get_logger("pulsar_native.consumer")

# A back-off that fails each time is called once for each message.
_LOG_INTERVAL = 60.0


class RedeliveryDelay:
    """Delays from one redelivery back-off. Not thread-safe; times in seconds."""

    __slots__ = ("_backoff", "_default", "_log_at", "_name")

    def __init__(self, backoff: RedeliveryBackoff, default: float, name: str) -> None:
        """`default` replaces a delay that cannot be used; `name` is that of the consumer and the option, for logs."""
        self._backoff = backoff
        self._default = default
        self._name = name
        self._log_at = -math.inf

    def seconds(self, redelivery_count: int, now: float) -> float:
        """Return the delay of an entry that was redelivered so many times."""
        try:
            return _seconds(self._backoff.next(redelivery_count))
        except callback_errors():
            if now >= self._log_at:
                self._log_at = now + _LOG_INTERVAL
                _log.exception("%s failed: messages are redelivered after %g s instead", self._name, self._default)
            return self._default


def _seconds(delay: object) -> float:
    """Return milliseconds as seconds; raise for anything but a number from 0."""
    if isinstance(delay, bool) or not isinstance(delay, Real):
        raise TypeError(f"next() must return a number of milliseconds, not {type_name(delay)}")
    # Before the conversion, as an int may be too large for a float.
    milliseconds = float(min(cast(float, delay), MAX_I64))
    if not milliseconds >= 0:
        raise ValueError(f"next() must return at least 0 milliseconds, not {milliseconds:g}")
    return milliseconds / 1000
