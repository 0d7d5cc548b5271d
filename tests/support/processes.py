"""What the system shows everybody of the processes on this machine."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path


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
