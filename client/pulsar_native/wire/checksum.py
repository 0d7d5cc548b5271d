"""CRC32C (Castagnoli), the checksum over metadata and payload of an entry.

Rule: hardware speed through the `crc32c` package; where that is missing (a zip shipped to an executor cannot carry an
extension module) a table computes the same values about a thousand times slower, with one warning for large input.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from functools import cache
from importlib.machinery import PathFinder
from typing import Any, Protocol

Data = bytes | bytearray | memoryview


class _Checksum(Protocol):
    def __call__(self, data: Data, value: int = 0, /) -> int: ...


_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its bits reversed
_BIG = 16 * 1024


@cache
def _table() -> tuple[int, ...]:
    values = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        values.append(value)
    return tuple(values)


def _table_crc32c(data: Data, value: int = 0) -> int:
    if len(data) > _BIG:
        # Shown once by the default warning filter: text and location are always the same.
        warnings.warn(
            "Checksums are computed in Python, which is slow for large messages: pip install crc32c",
            RuntimeWarning,
            stacklevel=2,
        )
    table = _table()
    crc = value ^ 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _extension() -> Any:
    """Return the package's extension module, without the package where it can be found so.

    The package imports a command line and its own metadata, which takes a seventh of importing the whole client.
    """
    if "crc32c" in sys.modules:
        return importlib.import_module("crc32c")
    package = importlib.util.find_spec("crc32c")
    folders = None if package is None else package.submodule_search_locations
    found = None if folders is None else PathFinder.find_spec("crc32c._crc32c", list(folders))
    if found is None or found.loader is None:
        return importlib.import_module("crc32c")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    # Whoever imports the package finds it there.
    return sys.modules.setdefault(found.name, module)


def _choose() -> _Checksum:
    try:
        chosen: _Checksum = _extension().crc32c
    except ImportError:
        return _table_crc32c
    return chosen


crc32c = _choose()
"""Return the CRC32C of `data`; `value`, 0 by default, is the checksum of the bytes before it.

Does not block (35 ns per KB with the package), thread-safe. The check value of b"123456789" is 0xE3069283.
"""
