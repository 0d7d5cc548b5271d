"""Waiting for what tests expect, on a loop or without one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until the answer is true, and return it; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds} s"
        await asyncio.sleep(0.005)
    return answer


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait, outside a loop, until the answer is true, and return it; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds} s"
        time.sleep(0.02)
    return answer


def next_millisecond() -> int:
    """Return a time in ms since 1970 that is later than all before the call, and not later than what follows."""
    last = time.time_ns() // 1_000_000
    return int(wait_until(lambda: (now := time.time_ns() // 1_000_000) > last and now))
