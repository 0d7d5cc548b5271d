"""The error of values and bytes that do not fit a schema.

Rules: it is both a ValueError and a TypeError, since the official client raises now one, now the other.
"""

from __future__ import annotations

from pulsar_native.exceptions import InvalidMessage


class InvalidRecord(InvalidMessage, TypeError):
    """Tell that a value, or the bytes of a message, do not fit the schema."""
