"""Offsets of a streaming read in its checkpoint.

    {"version": 1, "positions": {"persistent://public/default/t-partition-0": "12:5", …}}

A position is that of the next message to read, in order of ledger, entry and batch index; "earliest" is that of a
partition without messages. The end of a micro-batch that has the first messages of a partition also holds where these
begin, since the start does not tell:

    {…, "begins": {"persistent://public/default/t-partition-1": "14:0"}}

A query that began at a time has it in all its offsets, as `"startingTime": 1767225600000`: earlier messages behind the
start are left out, and the options of a restarted query may have another time.

Pure values: no I/O. Rules: equal offsets have equal text, since Spark compares texts; an unknown version raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.positions import Position

VERSION = 1
_EARLIEST = "earliest"

Positions = dict[str, Position | None]
"""The next message by topic partition; None where there was no message yet."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Offset: the positions, and the first messages of partitions that the offset before it has no position of.

    `starting_time` is the publish time (ms) at which the query began, None for one that began at offsets.
    """

    positions: Positions
    begins: Mapping[str, Position] = field(default_factory=dict)
    starting_time: int | None = None


def to_document(offset: Offset) -> dict[str, Any]:
    """Return the offset as Spark keeps it."""
    texts = {topic: _EARLIEST if at is None else str(at) for topic, at in sorted(offset.positions.items())}
    document: dict[str, Any] = {"version": VERSION, "positions": texts}
    if offset.begins:
        document["begins"] = {topic: str(at) for topic, at in sorted(offset.begins.items())}
    if offset.starting_time is not None:
        document["startingTime"] = offset.starting_time
    return document


def from_document(document: object) -> Offset:
    """Return a checkpoint's offset; raises `InvalidConfiguration` for another document."""
    if not isinstance(document, dict) or "version" not in document:
        raise InvalidConfiguration("The checkpoint holds offsets of another source: use a checkpoint of its own")
    if document["version"] != VERSION:
        raise InvalidConfiguration(
            f"The checkpoint's offsets have version {document['version']!r} and this program reads {VERSION}: go on "
            "with the newer pyspark-pulsar, or begin a new checkpoint with startingOffsets"
        )
    positions = {
        topic: None if text == _EARLIEST else Position.parse(text)
        for topic, text in _texts(document.get("positions"), "positions").items()
    }
    begins = _texts(document.get("begins", {}), "beginnings")
    time = document.get("startingTime")
    if time is not None and type(time) is not int:
        raise InvalidConfiguration(
            "The checkpoint's offsets have no startingTime in milliseconds: the file was changed"
        )
    return Offset(positions, {topic: Position.parse(text) for topic, text in begins.items()}, time)


def _texts(found: object, name: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise InvalidConfiguration(f"The checkpoint's offsets have no {name}: the file was changed or cut off")
    return found
