"""What the system shows everybody of the processes on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path


def command_lines() -> set[str]:
    """Return the command lines of all processes, as `ps` shows them."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(entry.read_text(errors="replace").replace("\0", " "))
    return found
