"""Offsets of a streaming read in its checkpoint.

    {"version": 1, "positions": {"persistent://public/default/t-partition-0": "12:5", …}}

A position is that of the next message to read, in order of ledger, entry and batch index; "earliest" is that of a
partition without messages. Pure values: no I/O. Rules: equal offsets have equal text, since Spark compares texts; an
unknown version raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.positions import Position

VERSION = 1
_EARLIEST = "earliest"

Positions = dict[str, Position | None]
"""The next message by topic partition; None where there was no message yet."""


def to_document(positions: Mapping[str, Position | None]) -> dict[str, Any]:
    """Return the offset as Spark keeps it."""
    texts = {topic: _EARLIEST if at is None else str(at) for topic, at in sorted(positions.items())}
    return {"version": VERSION, "positions": texts}


def from_document(document: object) -> Positions:
    """Return the positions of a checkpoint's offset; raises `InvalidConfiguration` for another document."""
    if not isinstance(document, dict) or "version" not in document:
        raise InvalidConfiguration("The checkpoint holds offsets of another source: use a checkpoint of its own")
    if document["version"] != VERSION:
        raise InvalidConfiguration(
            f"The checkpoint's offsets have version {document['version']!r} and this program reads {VERSION}: go on "
            "with the newer pyspark-pulsar, or begin a new checkpoint with startingOffsets"
        )
    positions = document.get("positions")
    if not isinstance(positions, dict) or not all(isinstance(text, str) for text in positions.values()):
        raise InvalidConfiguration("The checkpoint's offsets have no positions: the file was changed or cut off")
    return {topic: None if text == _EARLIEST else Position.parse(text) for topic, text in positions.items()}
