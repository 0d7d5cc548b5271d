"""Interfaces a job needs from its caller: a small state that outlives the process, and a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class JobState(Protocol):
    """A JSON object of one job, kept over retries. May block; `set` raises the caller's error when it cannot store."""

    def get(self) -> dict[str, Any] | None:
        """Return the stored object, None for none."""

    def set(self, value: Mapping[str, Any]) -> None:
        """Replace the stored object."""

    def delete(self) -> None:
        """Delete the stored object."""


class JobLog(Protocol):
    """A logger: `logging.Logger` and Airflow's task logger are."""

    def info(self, event: str, /, *args: Any) -> Any:
        """Log progress."""

    def warning(self, event: str, /, *args: Any) -> Any:
        """Log what the user should know and mend."""
