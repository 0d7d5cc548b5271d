"""Hash functions of keys: the same key selects the same partition in every client.

JavaStringHash and Murmur3 equal the Java client's, Boost's hash the official Python client's. Rules: Java's string hash
runs over UTF-16 code units, the others over UTF-8 bytes; all lose their sign bit. A key of bytes is hashed as the
base64 text in the metadata, as Java does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import iter_unpack

from pulsar_native.enums import HashingScheme
from pulsar_native.wire.checksum import crc32c

_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_C1 = 0xCC9E2D51
_C2 = 0x1B873593
# Step and multiplier of Boost's hash: the golden ratio's 64 bits, and their square.
_STEP = 0x9E3779B97F4A7C15
_SQUARE = 0xDF442D22CE4859B9


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


def boost_hash(data: bytes) -> int:
    """Return Boost's hash of a string (since 1.82, 64 bits), its lower 31 bits as the C++ client takes them. Pure."""
    state = _folded(_STEP * _SQUARE)
    value = state ^ len(data)
    whole = len(data) & ~7
    for (block,) in iter_unpack("<Q", data[:whole]):
        state = state + _STEP & _U64
        value ^= _folded((block + state & _U64) * _SQUARE)
    state = state + _STEP & _U64
    value ^= _folded((_rest(data[whole:]) + state & _U64) * _SQUARE)
    return _folded((value + state & _U64) * _SQUARE) & _POSITIVE


def _folded(product: int) -> int:
    """Return the exclusive or of the halves of 128 bits."""
    return product & _U64 ^ product >> 64


def _rest(data: bytes) -> int:
    """Return the last up to seven bytes as one number, as Boost reads them: overlapping, by four or one."""
    size = len(data)
    if size >= 4:
        return int.from_bytes(data[-4:], "little") << 8 * (size - 4) | int.from_bytes(data[:4], "little")
    if size == 0:
        return 0
    middle, last = size - 1 & 2, size >> 1
    return data[middle] << 8 * middle | data[last] << 8 * last | data[0]


_HASHES: dict[HashingScheme, Callable[[str], int]] = {
    HashingScheme.JavaStringHash: java_string_hash,
    HashingScheme.Murmur3_32Hash: lambda key: murmur3_32(key.encode()),
    HashingScheme.BoostHash: lambda key: boost_hash(key.encode()),
}


def choose_partition(key: str, scheme: HashingScheme, partitions: int) -> int:
    """Return the partition of a key, 0 to `partitions` - 1. Pure; the empty key counts as a key."""
    return _HASHES[scheme](key) % partitions


def topics_hash(topics: Iterable[str]) -> str:
    """Return the hash by which client and broker compare topic lists without sending them. Pure.

    CRC32C of the sorted names joined by commas, its four bytes in little-endian order as hex; "00000000" for an empty
    list.
    """
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
