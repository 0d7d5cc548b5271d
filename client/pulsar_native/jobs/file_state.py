"""State of a job in a local file, for scripts and cron: durable, replaced atomically, one process at a time.

Rules: the file is one JSON object of named states. `lock` holds it for one process; the operating system releases it
when the process ends, however it ends, so no stale lock is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pulsar_native.jobs.failures import JobFailed
from pulsar_native.jobs.output import local_path, read_json, write_json


class FileState:
    """State `name` in the file `path`, for the argument `state` of a job. Blocks for the disk; not thread-safe."""

    def __init__(self, path: str, name: str) -> None:
        """Set path and name. No I/O; the folder is created when needed."""
        self.path = path
        self._name = name

    def get(self) -> dict[str, Any] | None:
        """Return the stored object, None for none; raises ValueError for a file with other content."""
        found = (read_json(self.path) or {}).get(self._name)
        return found if isinstance(found, dict) else None

    def set(self, value: Mapping[str, Any]) -> None:
        """Replace the stored object, durably."""
        write_json(self.path, {**(read_json(self.path) or {}), self._name: dict(value)})

    def delete(self) -> None:
        """Delete the stored object; no effect without one."""
        found = read_json(self.path) or {}
        if found.pop(self._name, None) is not None:
            write_json(self.path, found)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the file for this process; raises `JobFailed` at once if another process has it."""
        target = local_path(f"{self.path}.lock")
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobFailed(f"another process is working with {self.path}: wait until it has ended") from None
            yield
        finally:
            os.close(descriptor)


class MemoryState:
    """State that ends with the process, for a job that is not repeated."""

    def __init__(self) -> None:
        self._value: dict[str, Any] | None = None

    def get(self) -> dict[str, Any] | None:
        """Return the stored object, None for none."""
        return self._value

    def set(self, value: Mapping[str, Any]) -> None:
        """Replace the stored object."""
        self._value = dict(value)

    def delete(self) -> None:
        """Delete the stored object."""
        self._value = None
