"""Interfaces of a job's caller: a small durable state, a log, and a sink of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pulsar_native import Message


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


class StreamLog(JobLog, Protocol):
    """Logger of a job without an end, which goes on after its errors."""

    def error(self, event: str, /, *args: Any) -> Any:
        """Log an error that the user is to mend."""


class BatchSink(Protocol):
    """Destination of a batch's messages as rows, which the caller makes durable when the job stores its state."""

    def row(self, message: Message, record: Mapping[str, Any]) -> Any:
        """Return the row of a message and its record; ValueError makes it a failed message."""

    def write(self, rows: Sequence[Any], reject: Callable[[int, Exception], None]) -> None:
        """Write rows, possibly none; `reject` is called with the index and the error of each that cannot be written.

        An error, also one of `reject`, ends the job before anything is acknowledged.
        """
