"""Exceptions of this package: removed messages of a read, and rows that could not be written.

Rules: all other errors are `pulsar_native.exceptions`. No error has a secret or the text of an option that may have
one. Spark's report of a failed task has the class name, by which `load` recognises it.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.exceptions import PulsarException

ADVICE = (
    "Nothing was skipped in silence: set failOnDataLoss=false to read what is left, and let retention (or a durable "
    "subscription) hold messages at least as long as loads look back."
)


class DataLoss(PulsarException):
    """Raised when messages of the requested range are no longer in the topic. Not retryable."""


class WriteFailed(PulsarException):
    """Raised when rows of a write could not be published; names the topic and the task's first such row."""

    def __init__(self, message: str = "", *, retryable: bool = False, **context: Any) -> None:
        super().__init__(message, **context)
        self.retryable = retryable
