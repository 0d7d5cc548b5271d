"""Hashes of keys and topic lists, against values of the Java client."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_native.enums import HashingScheme
from pulsar_native.wire.checksum import crc32c
from pulsar_native.wire.hashing import boost_hash, choose_partition, java_string_hash, murmur3_32, topics_hash


# Values computed with Java's String.hashCode and Pulsar's Murmur3_32Hash.
@pytest.mark.proves("C48")
@pytest.mark.parametrize(
    ("key", "java", "murmur"),
    [
        ("key1", 3288498, 462881061),
        ("test", 3556498, 980144659),
        ("my-key", 1086286526, 1844492593),
        ("中文", 646394, 1529246103),
    ],
)
def test_hashes_equal_java(key: str, java: int, murmur: int) -> None:
    assert java_string_hash(key) == java
    assert murmur3_32(key.encode()) == murmur


# Partitions the Java client really sent these keys to, of 7.
@pytest.mark.proves("C48")
@pytest.mark.parametrize(
    ("key", "java", "murmur"),
    [
        ("key1", 3, 6),
        ("test", 1, 4),
        ("my-key", 3, 6),
        ("中文", 0, 0),
        ("a", 6, 4),
        ("user-42", 4, 0),
        ("0", 6, 6),
        ("", 0, 0),
    ],
)
def test_choose_partition_equals_java(key: str, java: int, murmur: int) -> None:
    assert choose_partition(key, HashingScheme.JavaStringHash, 7) == java
    assert choose_partition(key, HashingScheme.Murmur3_32Hash, 7) == murmur


@pytest.mark.proves("C48")
def test_choose_partition_byte_key_as_base64() -> None:
    assert choose_partition("a2V5MQ==", HashingScheme.JavaStringHash, 7) == 2


# Values of Java's definition, s[0]*31^(n-1) + ... over UTF-16 code units in 32 bits, on which Java's own is documented.
def _java_by_definition(key: str) -> int:
    data = key.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
    return int(sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units)) % (1 << 32)) & 0x7FFFFFFF


@given(st.text())
@example("\ud83d")  # half a character: a Java string may hold it
def test_java_string_hash_definition(key: str) -> None:
    assert java_string_hash(key) == _java_by_definition(key)


def test_java_string_hash_surrogates() -> None:
    assert java_string_hash("😀") == (0xD83D * 31 + 0xDE00) & 0x7FFFFFFF


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(HashingScheme), st.integers(1, 1000))
def test_choose_partition_in_range(key: str, scheme: HashingScheme, partitions: int) -> None:
    assert 0 <= choose_partition(key, scheme, partitions) < partitions


# Published test values of Murmur3 x86 32-bit with seed 0, one for each length of the tail; the sign bit is dropped.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"\x21", 0x72661CF4),
        (b"\x21\x43", 0xA0F7B07A),
        (b"\x21\x43\x65", 0x7E4A8634),
        (b"\x21\x43\x65\x87", 0xF55B516B),
        (b"\0\0\0\0", 0x2362F9DE),
        (b"\xff\xff\xff\xff", 0x76293B50),
    ],
)
def test_murmur3_every_tail(data: bytes, expected: int) -> None:
    assert murmur3_32(data) == expected & 0x7FFFFFFF


def test_topics_hash_of_sorted_names() -> None:
    names = ["persistent://public/default/b", "persistent://public/default/a"]
    joined = b"persistent://public/default/a,persistent://public/default/b"
    number = crc32c(joined)
    assert topics_hash(names) == "".join(f"{number >> shift & 255:02x}" for shift in (0, 8, 16, 24))
    assert topics_hash(reversed(names)) == topics_hash(names)
    assert topics_hash([]) == "00000000"
    assert topics_hash(["123456789"]) == "839206e3"


# Measured with pulsar-client 3.13.0 over seven partitions.
@pytest.mark.parametrize(
    ("key", "partition"),
    [("key1", 1), ("test", 5), ("my-key", 0), ("中文", 1), ("a", 4), ("user-42", 0), ("0", 2)],
)
def test_boost_hash_gives_the_official_partitions(key: str, partition: int) -> None:
    assert choose_partition(key, HashingScheme.BoostHash, 7) == partition


def test_boost_hash_of_long_keys_is_positive() -> None:
    assert len({boost_hash(b"x" * size) for size in range(40)}) == 40
    assert all(0 <= boost_hash(b"\xff" * size) < 1 << 31 for size in range(40))


def test_boost_hash_of_every_length_is_the_official_one() -> None:
    # Measured as above: keys that fill the hash's blocks, and those one byte shorter or longer.
    measured = {7: 6, 8: 6, 9: 0, 15: 1, 16: 3, 17: 6, 24: 4, 31: 0, 32: 1, 33: 3, 64: 0, 128: 2}
    found = {length: choose_partition("x" * length, HashingScheme.BoostHash, 7) for length in measured}
    assert found == measured
