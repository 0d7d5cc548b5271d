"""Selection of the hot codecs: plain Python (`codec`), or compiled (`_speedups`) where it is built.

Rules: the only module that imports the compiled one. The environment variable PULSAR_NATIVE_IMPL is read at import:
unset, compiled if built; `python` or `compiled`, that one. Both behave the same for every input, errors included.
Callers on a hot path may bind the functions at import; `wire` looks them up at each call, once per batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pulsar_native import message_id
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.wire import codec

if TYPE_CHECKING:
    from pulsar_native.wire._speedups import Singles, Spans

VARIABLE = "PULSAR_NATIVE_IMPL"


def _not_scanned(body: bytes, first: int, last: int, skip: bytes | None, sequence_id: int) -> Singles | None:
    """Return None: plain Python builds columns faster in bulk than message by message."""
    return None


def _not_scanned_entries(parts: list[Any]) -> Singles | None:
    """Return None: plain Python builds columns of entries of one message from their parsed metadata."""
    return None


def _not_scanned_batches(parts: list[Any]) -> Singles | None:
    """Return None: plain Python adds batches one by one."""
    return None


def _no_entry_ids(parts: list[Any], partition: int, base: int) -> tuple[bytes, bytes] | None:
    """Return None: plain Python encodes the ids of entries, and of a batch's messages, one by one."""
    return None


def _nothing_cut(view: memoryview, position: int, most: int, frames: list[Any], kind: type[Any]) -> int:
    """Return `position`: plain Python cuts frames one by one."""
    return position


def _no_run(frames: list[Any], start: int) -> int:
    """Return `start`: plain Python passes messages on one by one."""
    return start


def _not_scanned_entry(payload: bytes | memoryview, verify: bool) -> Any:
    """Return None: plain Python parses entries with the protobuf runtime."""
    return None


def _no_spans(body: bytes, count: int) -> Spans | None:
    """Return None: plain Python splits batches with `same_size` and `split_batch`."""
    return None


def _no_ids(items: list[Any]) -> bytes | None:
    """Return None: plain Python encodes ids with the protobuf runtime."""
    return None


def _not_read(data: bytes, names: tuple[str, ...], kinds: bytes) -> dict[str, Any] | None:
    """Return None: without the compiled codec fastavro reads Avro records."""
    return None


def _not_written(values: dict[str, Any], names: tuple[str, ...], kinds: bytes) -> bytes | None:
    """Return None: without the compiled codec fastavro writes Avro records."""
    return None


def _join(parts: list[Any]) -> bytes:
    return b"".join(parts)


name = "python"
"""Implementation in use: "python" or "compiled"."""

split_batch = codec.split_batch
payload_bytes = codec.payload_bytes
may_be_compacted = codec.may_be_compacted
only_place = codec.only_place
encode_batch = codec.encode_batch
only_bytes = codec.only_bytes
cut_values = codec.cut_values
fitting = codec.fitting
encode_single_fields = codec.encode_single_fields
text_fields = codec.text_fields
usual_fields = codec.usual_fields
# The metadata of a message: compiled an object with the same attributes, whose properties are a dict.
single_fields: Callable[[bytes, int, int], Any] = codec.single_fields
encode_message_id = message_id.encode
decode_message_id = message_id.decode
# Arrow columns of a batch from its messages, of several batches with their ids, and of entries of one message each with
# their ids, None where that is left to plain Python; and joining of column parts.
scan_batch = _not_scanned
scan_batches = _not_scanned_batches
batch_ids = _no_entry_ids
scan_entries = _not_scanned_entries
entry_ids = _no_entry_ids
join_parts = _join
# MESSAGE frames up to the first that is not ordinary, with light commands; and entries whose metadata are parsed later.
cut_messages = _nothing_cut
# End of the frames with such commands that are of one consumer, from a position on.
messages_end = _no_run
scan_entry = _not_scanned_entry
# Offsets of a batch's messages, packed.
scan_spans = _no_spans
# Ids of an acknowledgement as its repeated field, None where one has an ack set.
encode_ack_ids = _no_ids
# Avro records of primitive fields, None for what is left to fastavro.
read_flat = _not_read
write_flat = _not_written


FUNCTIONS = (
    "batch_ids",
    "cut_messages",
    "cut_values",
    "decode_message_id",
    "encode_ack_ids",
    "encode_batch",
    "encode_message_id",
    "encode_single_fields",
    "entry_ids",
    "fitting",
    "join_parts",
    "may_be_compacted",
    "messages_end",
    "only_bytes",
    "only_place",
    "payload_bytes",
    "read_flat",
    "scan_batch",
    "scan_batches",
    "scan_entries",
    "scan_entry",
    "scan_spans",
    "single_fields",
    "split_batch",
    "text_fields",
    "usual_fields",
    "write_flat",
)
_PYTHON = {function: globals()[function] for function in FUNCTIONS}


def select(wanted: str | None) -> None:
    """Select "python", "compiled", or None for the default. Raises `InvalidConfiguration`. Not thread-safe."""
    if wanted not in (None, "python", "compiled"):
        raise InvalidConfiguration(f"{VARIABLE} is {wanted!r}; it may be python or compiled, or not be set")
    found = None if wanted == "python" else _compiled()
    if found is None and wanted == "compiled":
        raise InvalidConfiguration(
            f"{VARIABLE} is 'compiled', but this installation of pulsar-native has no compiled codec for this Python: "
            "install a wheel of this platform, build it (a C compiler is needed), or unset the variable"
        )
    globals().update(_PYTHON if found is None else found, name="python" if found is None else "compiled")
    message_id.use_codec(encode_message_id, decode_message_id)


def available() -> Sequence[str]:
    """Return the names of the implementations this installation has."""
    return ("python",) if _compiled() is None else ("python", "compiled")


def _compiled() -> dict[str, Any] | None:
    """Return the compiled functions; None where they are not built, or were built from another version."""
    try:
        from pulsar_native.wire import _speedups

        return {function: getattr(_speedups, function) for function in FUNCTIONS}
    except (ImportError, AttributeError):
        return None


select(os.environ.get(VARIABLE) or None)
