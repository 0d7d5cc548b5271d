"""Compression of message bodies, in the formats Pulsar's clients share.

LZ4: a raw block without size; ZLIB: a zlib stream which other clients leave unfinished (flushed, no final block, no
check value); ZSTD: one frame, with or without content size and checksum; SNAPPY: a raw block.

May not do: keep state but a few idle ZSTD contexts, which save 3-7 % at a batch's size.

Rules: the size a producer wrote into the metadata is compared with the limit before anything is allocated, no codec may
write more than that size, and the result must have it exactly. Malformed bodies raise `InvalidMessage`; a codec that is
not installed raises `InvalidConfiguration`, since the message itself is valid and must not be discarded.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

from pulsar_native._callback_errors import is_of_signal_handler
from pulsar_native.enums import CompressionType
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage

Data = bytes | bytearray | memoryview

_ZSTD_LEVEL = 3
_ZLIB_LEVEL = 6

# Appending to and popping from a deque are atomic, so that two threads never get the same context.
_compressors: deque[Any] = deque(maxlen=16)
_decompressors: deque[Any] = deque(maxlen=16)


def compress(kind: CompressionType, data: Data) -> bytes:
    """Return the body compressed in the format of the metadata's compression field.

    Pure, thread-safe, CPU-bound. Raises `InvalidConfiguration` when the codec's package is not installed.
    """
    if kind == CompressionType.NONE:
        return bytes(data)
    return _COMPRESS[kind](data)


def check_installed(kind: CompressionType) -> None:
    """Raise `InvalidConfiguration` when the codec's package is not installed."""
    package = _PACKAGES.get(kind)
    if package is not None:
        package()


def decompress(kind: CompressionType, data: Data, uncompressed_size: int, max_size: int) -> bytes:
    """Return the uncompressed body.

    Pure, thread-safe, CPU-bound. `uncompressed_size` is the metadata's, `max_size` the limit in bytes. Without
    compression the size in the metadata is ignored: other clients omit it or set it arbitrarily. Raises
    `InvalidMessage` when a size exceeds the limit or differs from the result's, or the bytes are malformed;
    `InvalidConfiguration` when the codec's package is not installed.
    """
    size = len(data) if kind == CompressionType.NONE else uncompressed_size
    if size > max_size:
        raise InvalidMessage(f"A message of {size} bytes uncompressed exceeds the limit of {max_size}")
    if kind == CompressionType.NONE:
        return bytes(data)
    try:
        body = _DECOMPRESS[kind](data, size)
    except (InvalidMessage, InvalidConfiguration, MemoryError):
        raise
    except Exception as error:  # each codec has an error class of its own, in a package that may be missing
        if is_of_signal_handler(error):
            raise
        raise InvalidMessage(
            f"A message compressed with {CompressionType(kind).name} cannot be decompressed"
        ) from error
    if len(body) != size:
        raise InvalidMessage(f"A message has {len(body)} bytes uncompressed where its producer announced {size}")
    return body


def _missing(codec: CompressionType, package: str, install: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{codec.name} needs the package {package}: pip install {install}")


def _lz4() -> Any:
    try:
        import lz4.block
    except ImportError as error:
        raise _missing(CompressionType.LZ4, "lz4", "lz4") from error
    return lz4.block


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise _missing(CompressionType.ZSTD, "zstandard", "zstandard") from error
    return zstandard


def _snappy() -> Any:
    try:
        import cramjam
    except ImportError as error:
        raise _missing(CompressionType.SNAPPY, "cramjam", "'pulsar-native[snappy]'") from error
    return cramjam.snappy


def _compress_lz4(data: Data) -> bytes:
    return bytes(_lz4().compress(data, store_size=False))


def _decompress_lz4(data: Data, size: int) -> bytes:
    return bytes(_lz4().decompress(data, uncompressed_size=size))


def _compress_zlib(data: Data) -> bytes:
    return zlib.compress(data, _ZLIB_LEVEL)


def _decompress_zlib(data: Data, size: int) -> bytes:
    # One byte more reveals a stream that is longer than announced; the stream's end is not required.
    return zlib.decompressobj().decompress(data, size + 1)


def _compress_zstd(data: Data) -> bytes:
    context = _pooled(_compressors, lambda: _zstandard().ZstdCompressor(level=_ZSTD_LEVEL))
    try:
        return bytes(context.compress(data))
    finally:
        _compressors.append(context)


def _decompress_zstd(data: Data, size: int) -> bytes:
    # The codec trusts a content size in the frame more than the limit it is given, and would allocate that much.
    announced = _zstandard().frame_content_size(data)
    if announced not in (-1, size):
        raise InvalidMessage(f"A ZSTD frame announces {announced} bytes where its producer announced {size}")
    context = _pooled(_decompressors, lambda: _zstandard().ZstdDecompressor())
    try:
        return bytes(context.decompress(data, max_output_size=max(size, 1)))
    finally:
        _decompressors.append(context)


def _compress_snappy(data: Data) -> bytes:
    return bytes(_snappy().compress_raw(data))


def _decompress_snappy(data: Data, size: int) -> bytes:
    codec = _snappy()
    # The block's own length comes first, and the codec allocates by it.
    announced = shift = 0
    for byte in data[:5]:
        announced |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if announced != size:
        raise InvalidMessage(f"A Snappy block announces {announced} bytes where its producer announced {size}")
    return bytes(codec.decompress_raw(data))


def _pooled(idle: deque[Any], create: Callable[[], Any]) -> Any:
    try:
        return idle.pop()
    except IndexError:
        return create()


_PACKAGES: dict[CompressionType, Callable[[], Any]] = {
    CompressionType.LZ4: _lz4,
    CompressionType.ZSTD: _zstandard,
    CompressionType.SNAPPY: _snappy,
}
_COMPRESS: dict[CompressionType, Callable[[Data], bytes]] = {
    CompressionType.LZ4: _compress_lz4,
    CompressionType.ZLib: _compress_zlib,
    CompressionType.ZSTD: _compress_zstd,
    CompressionType.SNAPPY: _compress_snappy,
}
_DECOMPRESS: dict[CompressionType, Callable[[Data, int], bytes]] = {
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZLib: _decompress_zlib,
    CompressionType.ZSTD: _decompress_zstd,
    CompressionType.SNAPPY: _decompress_snappy,
}
