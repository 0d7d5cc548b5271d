"""Flow control of a push consumer's partition: limits on message count, size, span and memory.

Rules: a limit is exceeded when there is more than its value; size counts whole MiB; the span applies to concurrent push
consumers only. A limit of a topic is divided among its partitions. The client's memory limit applies to all of them,
and leaves each partition one message in work. The first and every 1000th time of each reason is logged.
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
    """Limits on a partition's unfinished messages: number, MiB, and span from the oldest to the newest."""

    count: int
    mebibytes: int
    span: int | None

    @classmethod
    def of(
        cls, *, queue: int, queue_size: int, topic: int, topic_size: int, span: int | None, partitions: int
    ) -> Limits:
        """Return the limits of one of a topic's partitions; a topic limit of -1 leaves the partition's own in
        effect.
        """
        return cls(
            count=queue if topic == -1 else max(1, topic // max(1, partitions)),
            mebibytes=queue_size if topic_size == -1 else max(1, topic_size // max(1, partitions)),
            span=span,
        )


@dataclass(frozen=True)
class Throttled:
    """Polling of a partition pauses; `text` is set when it is to be logged."""

    reason: Reason
    times: int
    text: str | None


class FlowControl:
    """Flow control of one partition, with a counter per reason."""

    __slots__ = ("limits", "times")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.times = dict.fromkeys(Reason, 0)

    def check(self, queue: ProcessQueue[Any], *, memory_is_full: bool = False) -> Throttled | None:
        """Return why polling must pause now, None when it may go on."""
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
