"""Varints of protobuf: base-128 numbers, the lowest seven bits first."""

from __future__ import annotations

VARINT_LAST = tuple(bytes((value,)) for value in range(128))
"""A varint's only or last byte, by its seven bits."""

VARINT_MORE = tuple(bytes((value | 128,)) for value in range(128))
"""A varint byte that others follow, by its seven bits."""


def varint(value: int) -> bytes:
    """Return a non-negative number of at most 64 bits as a protobuf varint. Pure."""
    if value < 128:
        return VARINT_LAST[value]
    if value < 16384:
        return VARINT_MORE[value & 127] + VARINT_LAST[value >> 7]
    return VARINT_MORE[value & 127] + VARINT_MORE[value >> 7 & 127] + varint(value >> 14)
