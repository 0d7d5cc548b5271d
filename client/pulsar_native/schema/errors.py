"""Exceptions of values and bytes that do not fit a schema.

Rules: each is a ValueError and a TypeError, since the official client raises either of them; for a payload that is no
text or no JSON also what Python's own decoders raise, which the official client lets through.
"""

from __future__ import annotations

import json
from typing import Any

from pulsar_native.exceptions import InvalidMessage


class InvalidRecord(InvalidMessage, TypeError):
    """Raised when a value, or the payload of a message, does not fit the schema."""


class InvalidText(InvalidRecord, UnicodeDecodeError):
    """Raised when the payload of a message is not text in UTF-8."""

    def __init__(self, encoding: str, object: bytes, start: int, end: int, reason: str) -> None:
        """Create an error with the arguments of a UnicodeDecodeError."""
        super().__init__(encoding, object, start, end, reason)
        self.message = f"The message is not text in UTF-8: {reason} at byte {start}"


class InvalidJson(InvalidRecord, json.JSONDecodeError):
    """Raised when the payload of a message is not JSON."""

    def __init__(self, msg: str, doc: str, pos: int) -> None:
        """Create an error with the arguments of a JSONDecodeError."""
        super().__init__(msg, doc, pos)
        self.message = f"The message is not JSON: {self.args[0]}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.msg, self.doc, self.pos), dict(self.__dict__))
