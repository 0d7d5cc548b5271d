"""The hot codecs in use: those in plain Python (`codec`), or the same ones compiled (`_speedups`) where they are built.

Rules: the one place that imports the compiled module. The environment variable PULSAR_NATIVE_IMPL decides when this is
imported: unset, compiled if there; `python` or `compiled`, that one. Both do the same to every input, errors included.
Callers on a hot path may bind the functions when they are imported; `wire` looks them up at each call, a batch each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.wire import codec

if TYPE_CHECKING:
    from pulsar_native.wire._speedups import Singles

VARIABLE = "PULSAR_NATIVE_IMPL"


def _not_scanned(body: bytes, first: int, last: int, skip: bytes | None, sequence_id: int) -> Singles | None:
    """Return None: plain Python has quicker ways to columns than message by message."""
    return None


def _join(parts: list[Any]) -> bytes:
    return b"".join(parts)


name = "python"
"""Which one is in use: "python" or "compiled"."""

split_batch = codec.split_batch
encode_batch = codec.encode_batch
text_fields = codec.text_fields
# Columns of a batch from its messages, None where that is left to plain Python; and pieces of a column as one.
scan_batch = _not_scanned
join_parts = _join


def use(wanted: str | None) -> None:
    """Choose: "python", "compiled", or None for what is there. Raises `InvalidConfiguration`. Not thread-safe."""
    global name, split_batch, encode_batch, text_fields, scan_batch, join_parts
    if wanted not in (None, "python", "compiled"):
        raise InvalidConfiguration(f"{VARIABLE} is {wanted!r}; it may be python or compiled, or not be set")
    name, scan_batch, join_parts = "python", _not_scanned, _join
    split_batch, encode_batch, text_fields = codec.split_batch, codec.encode_batch, codec.text_fields
    if wanted == "python":
        return
    try:
        from pulsar_native.wire import _speedups as compiled
    except ImportError as error:
        if wanted == "compiled":
            raise InvalidConfiguration(
                f"{VARIABLE} is 'compiled', but this installation of pulsar-native has no compiled codec for this "
                "Python: install a wheel of this platform, build it (a C compiler is needed), or unset the variable"
            ) from error
        return
    name, scan_batch, join_parts = "compiled", compiled.scan_batch, compiled.join_parts
    split_batch, encode_batch, text_fields = compiled.split_batch, compiled.encode_batch, compiled.text_fields


def available() -> Sequence[str]:
    """Return the names of the implementations this installation has."""
    try:
        from pulsar_native.wire import _speedups  # noqa: F401
    except ImportError:
        return ("python",)
    return ("python", "compiled")


use(os.environ.get(VARIABLE) or None)
