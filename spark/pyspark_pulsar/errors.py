"""The errors this package adds to the client's tree: data of a read that is gone, rows that could not be written.

Rules: everything else is an error of `pulsar_native.exceptions`; no error holds a secret or the text of an option
that may hold one. The class's name appears in what Spark reports of a failed task, and `load` knows it by that name.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.exceptions import PulsarException

ADVICE = (
    "Nothing was skipped in silence: set failOnDataLoss=false to read what is left, and let retention (or a durable "
    "subscription) hold messages at least as long as loads look back."
)


class DataLoss(PulsarException):
    """Tell that messages of the asked range are no longer in the topic; trying again cannot help."""


class WriteFailed(PulsarException):
    """Raised when rows of a write could not be published; it names the topic and the first such row of the task."""

    def __init__(self, message: str = "", *, retryable: bool = False, **context: Any) -> None:
        super().__init__(message, **context)
        self.retryable = retryable
