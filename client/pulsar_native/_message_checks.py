"""Checks of the fields of a message: those that an application sends, and those that its payload processor returns."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_native.exceptions import InvalidMessage

_TEXT = frozenset({str})
# The broker compares sequence ids as signed numbers.
_MAX_SEQUENCE_ID = (1 << 63) - 1
_MAX_TIMESTAMP = (1 << 64) - 1


def check_parts(
    properties: Mapping[str, str] | None,
    partition_key: object,
    ordering_key: object,
    sequence_id: int | None,
    event_timestamp: int | None,
) -> None:
    """Raise `InvalidMessage` for a field of a message of another type or out of range."""
    if properties is not None and not _are_texts(properties):
        raise InvalidMessage("properties must be a mapping of str to str")
    if partition_key is not None and not isinstance(partition_key, str | bytes):
        raise InvalidMessage(f"partition_key must be str or bytes, not {type(partition_key).__name__}")
    if ordering_key is not None and not isinstance(ordering_key, str):
        raise InvalidMessage(f"ordering_key must be str, not {type(ordering_key).__name__}")
    whole_number("sequence_id", sequence_id, _MAX_SEQUENCE_ID)
    whole_number("event_timestamp", event_timestamp, _MAX_TIMESTAMP)


def _are_texts(properties: object) -> bool:
    # A dict of plain texts without a Python step per pair: this runs for each message.
    if type(properties) is dict:
        kinds = {*map(type, properties), *map(type, properties.values())}
        if kinds <= _TEXT:
            return True
    return isinstance(properties, Mapping) and all(
        isinstance(key, str) and isinstance(value, str) for key, value in properties.items()
    )


def whole_number(name: str, number: object, maximum: int) -> None:
    """Raise `InvalidMessage` unless a number is None or an int from 0 to the maximum."""
    if number is None or (type(number) is int and 0 <= number <= maximum):
        return
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= maximum:
        raise InvalidMessage(f"{name} must be a non-negative int up to {maximum}, not {number!r}")
