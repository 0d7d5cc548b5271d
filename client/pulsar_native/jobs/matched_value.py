"""Value of a message that a condition on the value tests. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.codecs import decode

if TYPE_CHECKING:
    from pulsar_native import Message


def matched_value(message: Message, decoded: tuple[Any, str]) -> Any:
    """Return the value that a condition tests: without a schema of records, JSON in the message's text.

    `decoded` is what `decode` returned for the message. Raises `InvalidRecord` for text that is not JSON.
    """
    value, encoding = decoded
    return decode(message, "json")[0] if encoding in ("text", "base64") else value
