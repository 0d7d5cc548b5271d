"""Input of a Spark task's Python worker: tells rows that ended from rows that broke off.

Rules: when a task fails before its rows reach the writer (an error in the query, a cancelled job), Spark closes the
worker's input, which between two batches looks like the end of the rows; only behind a complete input stands Spark's
mark of its end. Spark has no interface for this: the stream is an argument of the worker's `main`.
"""

from __future__ import annotations

import sys
from typing import Protocol

from pulsar_native.exceptions import OperationNotSupported
from pyspark_pulsar.errors import WriteFailed


class _Stream(Protocol):
    def peek(self, size: int, /) -> bytes: ...


class TaskInput:
    """Input of the task that this thread runs; raises `OperationNotSupported` where it cannot be found."""

    def __init__(self) -> None:
        self._stream = _worker_stream()

    def check_complete(self) -> None:
        """Raise `WriteFailed` if the rows broke off. Blocks until Spark has sent the end; for after the last row."""
        if not self._stream.peek(1):
            raise WriteFailed(
                "The rows of this task broke off, as Spark has failed or cancelled it: its transaction is aborted, and "
                "none of its rows are visible",
                retryable=True,
            )


def _worker_stream() -> _Stream:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        stream: _Stream | None = frame.f_locals.get("infile") if frame.f_code.co_name == "main" else None
        if stream is not None and hasattr(stream, "peek"):
            return stream
    raise OperationNotSupported(
        "deliveryGuarantee=transactional needs the input of Spark's Python worker, to see whether the rows of a task "
        "are complete, which this version of Spark hides: use deduplicated or at-least-once"
    )
