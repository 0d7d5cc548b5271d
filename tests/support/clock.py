"""Virtual time for code that reads the clock: patched into one module, moved by the test."""

from __future__ import annotations

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


def stopped_clock(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Clock:
    """Give a module, which says `import time`, a clock of its own until the test's end."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock
