"""Virtual time: for a module that reads the clock, and for the timers of a running loop; moved by the test."""

from __future__ import annotations

import asyncio
import time as real
from types import ModuleType
from typing import Any

import pytest


class Clock:
    """Replacement of the module `time`: its two clocks stand still but for `advance`; everything else is real."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._time, self._monotonic = real.time(), real.monotonic()

    def advance(self, seconds: float) -> None:
        """Let seconds pass."""
        self._passed += seconds

    def time(self) -> float:
        """Return seconds since 1970."""
        return self._time + self._passed

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self._monotonic + self._passed

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)


def stopped_clock(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Clock:
    """Give modules, which say `import time`, a clock of their own until the test's end."""
    clock = Clock()
    for module in modules:
        monkeypatch.setattr(module, "time", clock)
    return clock


class LoopClock:
    """Clock of the running loop: real time, and what the test adds; timers are due when it is advanced.

    Sockets and threads are real. Time limits of the test's own are better above what it advances.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._passed, self._time = 0.0, loop.time
        monkeypatch.setattr(loop, "time", self.time)

    def time(self) -> float:
        """Return the loop's time in seconds."""
        return self._time() + self._passed

    async def advance(self, seconds: float, *, steps: int = 10) -> None:
        """Let seconds pass in steps, each with the timers that are due and what they wake."""
        for _ in range(steps):
            self._passed += seconds / steps
            for _ in range(5):
                await asyncio.sleep(0)
