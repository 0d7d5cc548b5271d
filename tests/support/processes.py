"""Processes of a test, and what the system shows everybody of all processes on this machine."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def child_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Give a process, with the options of `Popen`, that is killed at the end if it still runs.

    `with Popen(…)` would wait for its end, also when a time-out has ended the test that waits for its output.
    """
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def command_lines() -> set[str]:
    """Return the command lines of all processes, as `ps` shows them."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(entry.read_text(errors="replace").replace("\0", " "))
    return found


class ProcessWatch:
    """Record of command lines that have one of some words in them, looked at all the time in a `with` block."""

    def __init__(self, *words: str) -> None:
        self.command_lines: set[str] = set()
        self._words = words
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.wait(0.05):
            self.command_lines |= {line for line in command_lines() if any(word in line for word in self._words)}

    def __enter__(self) -> ProcessWatch:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        """Stop looking."""
        self._done.set()
        self._thread.join()
