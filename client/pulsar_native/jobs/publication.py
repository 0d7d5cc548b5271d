"""Record of a job's publications: producer names, progress, and a digest of the content.

No I/O but the caller's state. Rules: a record is written before the first message is sent, so that a killed process
leaves one. The digest covers order, keys, properties, times, payloads and schema, with checkpoints at message 1, 2, 4,
8, … and the end, so that changed content is found at the first checkpoint that differs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.failures import JobRefused

if TYPE_CHECKING:
    from pulsar_native.jobs.interfaces import JobState
    from pulsar_native.jobs.sources import MessageParts

_VERSION = 1
# Number of stored entry ids in a record, for naming possible duplicates of a repetition without deduplication.
_IDS = 20

Record = dict[str, Any]


class ContentChanged(JobRefused):
    """Raised when a repetition has other messages than before, or that cannot be determined."""


class ContentDigest:
    """Digest of the messages of one publication in their order. Not thread-safe."""

    def __init__(self, schema: str) -> None:
        self._hash = hashlib.blake2b(schema.encode(), digest_size=16)
        self._next = 1
        self.count = 0
        self.checkpoints: dict[int, str] = {}

    def add(self, payload: bytes | None, parts: MessageParts) -> None:
        """Add a message."""
        _, key, ordering_key, event_time, properties, deliver_at = parts
        size = -1 if payload is None else len(payload)
        if key is None and ordering_key is None and event_time is None and properties is None and deliver_at is None:
            self._hash.update(b"%d;" % size)
        else:
            more = None if properties is None else sorted(properties.items())
            self._hash.update(repr((size, key, ordering_key, event_time, more, deliver_at)).encode())
        if payload:
            self._hash.update(payload)
        self.count += 1
        if self.count == self._next:
            self._next *= 2
            self.checkpoints[self.count] = self.value()

    def value(self) -> str:
        """Return the digest so far."""
        return self._hash.hexdigest()

    def with_end(self) -> dict[int, str]:
        """Return the checkpoints, the last of which is the digest of all."""
        return {**self.checkpoints, self.count: self.value()} if self.count else {}


class ExpectedContent:
    """Comparison of a digest, message by message, with a record's checkpoints."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._points = sorted((int(count), str(value)) for count, value in record["checkpoints"])
        self._at = 0
        self._total: int | None = record["count"]

    def check(self, digest: ContentDigest) -> None:
        """Compare after adding a message, before sending it; raises `ContentChanged`."""
        count = digest.count
        if self._total is not None and count > self._total:
            raise ContentChanged(f"there are more messages than the {self._total:,} published before")
        if self._at < len(self._points) and self._points[self._at][0] == count:
            if self._points[self._at][1] != digest.value():
                first = self._points[self._at - 1][0] if self._at else 0
                where = f"message {first}" if first == count - 1 else f"one of the messages {first} to {count - 1}"
                raise ContentChanged(f"{where} is not the one published before (counted from 0)")
            self._at += 1

    def is_behind(self, count: int) -> bool:
        """Return True if all checkpoints were equal and `count` is no less than their number of messages."""
        return self._at == len(self._points) and (not self._points or count >= self._points[-1][0])

    def end(self, digest: ContentDigest) -> None:
        """Compare at the end of the messages; raises `ContentChanged`."""
        if self._at < len(self._points):
            raise ContentChanged(
                f"there are {digest.count:,} messages, fewer than the {self._points[-1][0]:,} published before"
            )


class Publication:
    """Generations of one publication to one topic under one identity. Blocks for the caller's state."""

    def __init__(self, state: JobState, identity: str, topic: str) -> None:
        self._state = state
        self._identity, self._topic = identity, topic
        found = state.get() or {}
        same = (found.get("version"), found.get("identity"), found.get("topic")) == (_VERSION, identity, topic)
        self._generations: list[Record] = list(found["generations"]) if same else []
        self._is_open = False

    @property
    def number(self) -> int:
        """Number of the generation to publish, from 1."""
        return max(1, len(self._generations) + self._is_open)

    @property
    def record(self) -> Record | None:
        """Record of earlier tries of this generation, None for its first try."""
        return self._generations[-1] if self._generations and not self._is_open else None

    def next_generation(self, producer_name: str | None) -> None:
        """Continue with an unused generation; `producer_name` is that of the one before."""
        if self._is_open or not self._generations:
            self._generations.append({"producer_name": producer_name, "phase": "unknown", "stored": None})
        self._is_open = True

    def begin(self, record: Record) -> None:
        """Store the record of a try that begins; raises the caller's error if that fails."""
        if self._is_open or not self._generations:
            self._generations = [
                {name: each[name] for name in ("producer_name", "phase", "stored")} for each in self._generations
            ]
            self._generations.append(record)
            self._is_open = False
        else:
            self._generations[-1] = record
        self.save()

    def save(self) -> None:
        """Store the current record."""
        self._state.set(
            {
                "version": _VERSION,
                "identity": self._identity,
                "topic": self._topic,
                "generations": self._generations,
            }
        )


def new_record(producer_name: str | None, partitions: int, deduplicated: bool | None, earlier: Record | None) -> Record:
    """Return the record of a try before sending, continued from the generation's earlier one."""
    before = earlier or {}
    return {
        "producer_name": producer_name,
        "phase": "sending",
        "partitions": partitions,
        "deduplicated": deduplicated,
        "checkpoints": before.get("checkpoints", []),
        "count": before.get("count"),
        "file": None,
        "last": before.get("last", -1),
        "stored": before.get("stored", 0),
        "ids": before.get("ids", []),
        "at": round(time.time()),
    }


def restarted(record: Record) -> Record:
    """Return an earlier try's record for a topic that was created again: the same content, of which none is there."""
    return {**record, "phase": "failed", "last": -1, "stored": 0, "ids": []}


def merged(earlier: list[list[Any]], checkpoints: Mapping[int, str]) -> list[list[Any]]:
    """Return checkpoints as JSON, with earlier ones of the same content."""
    return [list(each) for each in sorted({**{int(n): value for n, value in earlier}, **checkpoints}.items())]


def shown_ids(earlier: list[str], found: list[str]) -> list[str]:
    """Return the first ids of earlier tries and this one."""
    return [*earlier, *found][:_IDS]
