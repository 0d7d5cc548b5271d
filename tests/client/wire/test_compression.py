"""Compressed bodies of other clients and of hostile peers."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.enums import CompressionType
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage
from pulsar_native.wire import compression
from pulsar_native.wire.compression import compress, decompress
from support.signals import TimeLimit, time_limit

KINDS = list(CompressionType)
CODECS = [kind for kind in KINDS if kind is not CompressionType.NONE]
LIMIT = 5 * 1024 * 1024


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=2000) | st.just(b"abc" * 50_000))
def test_compression_round_trip(kind: CompressionType, data: bytes) -> None:
    body = compress(kind, memoryview(data))
    assert type(body) is bytes
    assert decompress(kind, memoryview(body), len(data), LIMIT) == data
    assert type(decompress(kind, body, len(data), LIMIT)) is bytes


# Written by hand from each format's description: the bytes do not come from the codec under test.
@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (CompressionType.LZ4, "50 68656c6c6f", b"hello"),  # token: 5 literals
        (CompressionType.LZ4, "1f 61 0100 00 50 6161616161", b"a" * 25),  # 1 literal, 19 copied from 1 back, 5 literals
        (CompressionType.ZLib, "789c cb48cdc9c9 0700", b"hello"),
        (CompressionType.ZSTD, "28b52ffd 2005 290000 68656c6c6f", b"hello"),  # one raw block, last
        (CompressionType.SNAPPY, "05 10 68656c6c6f", b"hello"),  # length 5, literal of 5
    ],
)
def test_decompress_known_bytes(kind: CompressionType, body: str, text: bytes) -> None:
    assert decompress(kind, bytes.fromhex(body), len(text), LIMIT) == text


@given(st.binary(min_size=1, max_size=3000))
def test_decompress_zlib_unfinished_stream(data: bytes) -> None:
    codec = zlib.compressobj()
    body = codec.compress(data) + codec.flush(zlib.Z_SYNC_FLUSH)
    assert body.endswith(b"\0\0\xff\xff")
    with pytest.raises(zlib.error):
        zlib.decompress(body)
    assert decompress(CompressionType.ZLib, body, len(data), LIMIT) == data


@pytest.mark.parametrize("content_size", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
@given(data=st.binary(max_size=3000))
def test_decompress_zstd_with_and_without_size(content_size: bool, checksum: bool, data: bytes) -> None:
    writer = zstandard.ZstdCompressor(write_content_size=content_size, write_checksum=checksum)
    if content_size:
        body = writer.compress(data)
    else:
        stream = writer.compressobj()
        body = stream.compress(data) + stream.flush()
        assert not data or zstandard.frame_content_size(body) == -1
    assert decompress(CompressionType.ZSTD, body, len(data), LIMIT) == data


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("wrong", [-1, 1, 500, 100_000])
@pytest.mark.parametrize("text", [b"x", b"hello " * 100])
def test_decompress_size_mismatch_raises(kind: CompressionType, wrong: int, text: bytes) -> None:
    body = compress(kind, text)
    with pytest.raises(InvalidMessage):
        decompress(kind, body, max(0, len(text) + wrong), LIMIT)


def test_decompress_none_ignores_size() -> None:
    assert decompress(CompressionType.NONE, b"hello", 0, LIMIT) == b"hello"
    assert decompress(CompressionType.NONE, b"hello", 7, LIMIT) == b"hello"
    with pytest.raises(InvalidMessage, match="limit"):
        decompress(CompressionType.NONE, b"hello", 0, 4)


@pytest.mark.parametrize("kind", CODECS)
def test_decompress_size_over_limit_raises_first(kind: CompressionType) -> None:
    body = compress(kind, b"hello")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessage, match="exceeds the limit"):
            decompress(kind, body, 0xFFFFFFFF, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", CODECS)
def test_decompress_bomb_bounded(kind: CompressionType) -> None:
    # 200 MiB of zeros behind an announced size of 1000 bytes, read by a process that has not needed such memory yet.
    program = f"""
import resource, sys
from pulsar_native.enums import CompressionType
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.wire.compression import compress, decompress
kind = CompressionType({int(kind)})
decompress(kind, compress(kind, b"warm up"), 7, 7)
bomb = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(kind, bomb, 1000, 5 * 1024 * 1024)
except InvalidMessage:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    bomb = compress(kind, bytes(200 * 1024 * 1024))
    done = subprocess.run([sys.executable, "-c", program], input=bomb, capture_output=True, timeout=240, check=True)
    assert int(done.stdout) < 20_000  # KiB


def test_decompress_zstd_terabyte_raises() -> None:
    # Magic, descriptor: single segment with 8 bytes of content size = 2^40; then an empty last block.
    frame = bytes.fromhex("28b52ffd e0 0000000000010000 010000")
    assert zstandard.frame_content_size(frame) == 1 << 40
    with pytest.raises(InvalidMessage, match="announces"):
        decompress(CompressionType.ZSTD, frame, 1000, LIMIT)


def test_decompress_snappy_four_gib_raises() -> None:
    with pytest.raises(InvalidMessage, match="announces"):
        decompress(CompressionType.SNAPPY, bytes.fromhex("ffffffff0f 10 68656c6c6f"), 1000, LIMIT)


@pytest.mark.parametrize("kind", CODECS)
@given(data=st.binary(max_size=200), size=st.integers(0, 1000))
def test_decompress_garbage(kind: CompressionType, data: bytes, size: int) -> None:
    try:
        body = decompress(kind, data, size, LIMIT)
    except InvalidMessage:
        return
    assert len(body) == size


@pytest.mark.parametrize("kind", CODECS)
def test_decompress_truncated_raises(kind: CompressionType) -> None:
    text = bytes(range(256)) * 20
    body = compress(kind, text)
    for length in range(0, len(body) - 4, 7):
        with pytest.raises(InvalidMessage):
            decompress(kind, body[:length], len(text), LIMIT)


@pytest.mark.parametrize(
    ("package", "kind", "install"),
    [("lz4.block", "LZ4", "lz4"), ("zstandard", "ZSTD", "zstandard"), ("cramjam", "SNAPPY", "pulsar-native[snappy]")],
)
def test_compression_missing_package_named(package: str, kind: str, install: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
from pulsar_native.enums import CompressionType
from pulsar_native.wire.compression import compress, decompress
for call in (lambda: compress(CompressionType.{kind}, b"x"), lambda: decompress(CompressionType.{kind}, b"x", 1, 9)):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(InvalidConfiguration.__name__) and install in line and kind in line


@pytest.mark.parametrize("kind", CODECS)
def test_decompress_ended_by_time_limit_raises_it(kind: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
    with time_limit() as interrupted, pytest.raises(TimeLimit):
        monkeypatch.setitem(compression._DECOMPRESS, kind, interrupted)
        decompress(kind, b"x", 1, LIMIT)
