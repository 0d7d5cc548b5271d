"""Processes of a test, and what the system shows everybody of all processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest


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


def in_child(work: Callable[[], Any], seconds: float = 120) -> Any:
    """Fork, run the work in the child and return its (JSON) result; a child that hangs is killed and fails the test."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                answer = {"result": work()}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            os.write(write_end, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        ready, _, _ = select.select([read_end], [], [], seconds)
        if not ready:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the child hangs")
        answer = json.loads(b"".join(iter(lambda: os.read(read_end, 65536), b"")))
    finally:
        os.close(read_end)
        os.waitpid(child, 0)
    assert "error" not in answer, answer["error"]
    return answer["result"]


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
