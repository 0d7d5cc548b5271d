"""Publish time bounds as users write them, to whole milliseconds since 1970.

Pure values: no I/O. Rules: a time without a zone is refused, since driver and executors may live in different ones; a
fraction of a millisecond rounds up, which keeps `[start, end)` exact for publish times that are whole milliseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from pulsar_native.exceptions import InvalidConfiguration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_time(option: str, text: str) -> int:
    """Return the milliseconds since 1970 of a number of them or of an ISO-8601 time with its zone."""
    text = text.strip()
    if re.fullmatch(r"\d{1,16}", text):
        return int(text)
    if text.startswith("{"):
        raise InvalidConfiguration(f"{option} takes one time for all partitions, not JSON by partition")
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        form = "milliseconds since 1970 or ISO-8601 such as 2026-01-31T00:00:00Z"
        raise InvalidConfiguration(f"{option} is {text[:60]!r}; write {form}") from error
    if time.tzinfo is None:
        raise InvalidConfiguration(f"{option} is {text!r}, a time without a zone; add Z or an offset such as +01:00")
    if time < _EPOCH:
        raise InvalidConfiguration(f"{option} is {text!r}, a time before 1970, which no message has")
    return -((_EPOCH - time) // _MILLISECOND)
