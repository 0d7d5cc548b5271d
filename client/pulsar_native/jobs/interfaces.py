"""Interfaces of a job's caller: a small durable state, and a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class JobState(Protocol):
    """JSON object of one job, kept over retries. May block; `set` raises the caller's error if it cannot store."""

    def get(self) -> dict[str, Any] | None:
        """Return the stored object, None for none."""

    def set(self, value: Mapping[str, Any]) -> None:
        """Replace the stored object."""

    def delete(self) -> None:
        """Delete the stored object."""


class JobLog(Protocol):
    """Logger, such as `logging.Logger` and Airflow's task logger."""

    def info(self, event: str, /, *args: Any) -> Any:
        """Log progress."""

    def warning(self, event: str, /, *args: Any) -> Any:
        """Log a warning for the user."""
