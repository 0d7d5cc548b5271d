"""Hashes, equal to the Java client's: the same key goes to the same partition whoever sends it.

Rules: Java's string hash runs over UTF-16 code units, Murmur over UTF-8 bytes; both lose their sign bit. A key of bytes
is hashed as the base64 text that stands in the metadata, as Java does. The official Python client uses a third hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import iter_unpack

from pulsar_native.enums import HashingScheme
from pulsar_native.wire.checksum import crc32c

_U32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_C1 = 0xCC9E2D51
_C2 = 0x1B873593


def java_string_hash(key: str) -> int:
    """Return Java's `String.hashCode()` without its sign bit. Pure."""
    value = 0
    if key.isascii():
        for unit in key.encode():
            value = 31 * value + unit & _U32
    else:
        for (unit,) in iter_unpack("<H", key.encode("utf-16-le", "surrogatepass")):
            value = 31 * value + unit & _U32
    return value & _POSITIVE


def murmur3_32(data: bytes) -> int:
    """Return the 32-bit Murmur3 hash with seed 0, without its sign bit. Pure."""
    value = 0
    whole = len(data) & ~3
    for (block,) in iter_unpack("<I", data[:whole]):
        value ^= _mixed(block)
        value = (value << 13 | value >> 19) & _U32
        value = value * 5 + 0xE6546B64 & _U32
    value ^= _mixed(int.from_bytes(data[whole:], "little")) ^ len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _U32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _U32
    return (value ^ value >> 16) & _POSITIVE


def _mixed(block: int) -> int:
    block = block * _C1 & _U32
    return (block << 15 | block >> 17) * _C2 & _U32


def choose_partition(key: str, scheme: HashingScheme, partitions: int) -> int:
    """Return the partition of a key, 0 to `partitions` - 1. Pure; the empty key counts as a key."""
    hashed = java_string_hash(key) if scheme == HashingScheme.JavaStringHash else murmur3_32(key.encode())
    return hashed % partitions


def topics_hash(topics: Iterable[str]) -> str:
    """Return the hash by which client and broker compare lists of topics without sending them. Pure.

    CRC32C of the sorted names joined by commas, its four bytes in little-endian order as hex; "00000000" for none.
    """
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
