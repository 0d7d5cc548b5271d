"""Exception of values and bytes that do not fit a schema.

Rules: it is a ValueError and a TypeError, since the official client raises either of them.
"""

from __future__ import annotations

from pulsar_native.exceptions import InvalidMessage


class InvalidRecord(InvalidMessage, TypeError):
    """Raised when a value, or the payload of a message, does not fit the schema."""
