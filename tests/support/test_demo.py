"""The demo waits as long as something goes on, and gives up what stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import demo
from broker import BrokerError


class Slow:
    """A broker that logs a line at every look and is ready at the last one."""

    def __init__(self, log: Path, looks: int, *, quiet: bool = False) -> None:
        self.log, self.looks, self.quiet = log, looks, quiet

    def wait_ready(self, timeout: float) -> Slow:
        """Wait shortly; raises until the last look."""
        time.sleep(0.1)
        self.looks -= 1
        if not self.looks:
            return self
        if not self.quiet:
            with self.log.open("a") as log:
                log.write("goes on\n")
        raise BrokerError("the broker is not ready")

    def process_id(self) -> int:
        """Return the id of a process that runs."""
        return os.getpid()


def test_wait_ready_lasts_while_the_log_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_BROKER_QUIET_SECONDS", 0.3)
    slow: Any = Slow(tmp_path / "log", 10)
    demo.wait_ready(slow)
    assert slow.looks == 0


def test_wait_ready_gives_up_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_BROKER_QUIET_SECONDS", 0.3)
    still: Any = Slow(tmp_path / "log", 1000, quiet=True)
    with pytest.raises(BrokerError):
        demo.wait_ready(still)
    assert still.looks > 900


def test_watchdog_kills_what_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_QUIET_SECONDS", 2)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    watchdog = demo.Watchdog(process.pid)
    for _ in range(5):
        time.sleep(0.6)
        watchdog.pat()
    assert process.poll() is None, "signs of life keep it"
    assert process.wait(30) == -signal.SIGKILL
    watchdog.stop()
