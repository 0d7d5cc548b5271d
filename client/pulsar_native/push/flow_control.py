"""When a push consumer takes no more from a partition: too many, too much, too far apart, or no memory left.

Rules: a limit is passed when there is more than it says; size counts whole MiB; the span
holds for concurrent push consumers only. A limit of a topic is shared by its partitions. The client's memory limit
holds over all of them, and leaves each partition one message in work. The log gets the first and every 1000th time of
each reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pulsar_native.push.process_queue import ProcessQueue

_MIB = 1024 * 1024
_EVERY = 1000


class Reason(Enum):
    """Reason why polling stops."""

    COUNT = "count"
    SIZE = "size"
    SPAN = "span"
    MEMORY = "memory"


@dataclass(frozen=True)
class Limits:
    """How much of a partition may be unfinished: messages, MiB, and messages between the oldest and the newest."""

    count: int
    mebibytes: int
    span: int | None

    @classmethod
    def of(
        cls, *, queue: int, queue_size: int, topic: int, topic_size: int, span: int | None, partitions: int
    ) -> Limits:
        """Return the limits of one of a topic's partitions; -1 as a topic's limit leaves it to the partition's own."""
        return cls(
            count=queue if topic == -1 else max(1, topic // max(1, partitions)),
            mebibytes=queue_size if topic_size == -1 else max(1, topic_size // max(1, partitions)),
            span=span,
        )


@dataclass(frozen=True)
class Throttled:
    """Polling of a partition stops for a moment; `text` is set when the log is to have it."""

    reason: Reason
    times: int
    text: str | None


class FlowControl:
    """Decide for one partition whether there may be more, and count how often there may not."""

    __slots__ = ("limits", "times")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.times = dict.fromkeys(Reason, 0)

    def check(self, queue: ProcessQueue[Any], *, memory_is_full: bool = False) -> Throttled | None:
        """Return why nothing may be taken now, None when it may."""
        limits = self.limits
        if len(queue) > limits.count:
            return self._stop(Reason.COUNT, queue, f"{len(queue)} unfinished messages are over {limits.count}")
        if queue.bytes // _MIB > limits.mebibytes:
            return self._stop(
                Reason.SIZE, queue, f"unfinished messages of {queue.bytes // _MIB} MiB are over {limits.mebibytes} MiB"
            )
        if limits.span is not None and queue.span > limits.span:
            return self._stop(Reason.SPAN, queue, f"a span of {queue.span} messages is over {limits.span}")
        if memory_is_full and len(queue):
            return self._stop(Reason.MEMORY, queue, "the client's memory_limit_bytes is in use")
        return None

    def _stop(self, reason: Reason, queue: ProcessQueue[Any], why: str) -> Throttled:
        times = self.times[reason]
        self.times[reason] = times + 1
        if times % _EVERY:
            return Throttled(reason, times + 1, None)
        oldest = queue.oldest()
        first = None if oldest is None else oldest.number
        text = (
            f"poller stops: {why} (unfinished {len(queue)}, {queue.bytes / _MIB:.1f} MiB, "
            f"numbers {first} to {queue.newest}, span {queue.span}, time {times + 1})"
        )
        return Throttled(reason, times + 1, text)
