"""Recorders of the statistics of producers and consumers: per entry and never per message. `reports` reads them.

Rules: recorders exist only while recording is on; the hot paths hold None otherwise. Latencies go into buckets that
grow by 4.4 %, so that percentiles are right within about 2.2 %; the maximum is exact.
Thread-safe; `now` is monotonic seconds.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import log2
from typing import Any, NamedTuple

from pulsar_native.protocol.send_op import SendOp

_PER_OCTAVE = 16
_MICROSECOND = 1e-6
_PERCENTILES = ((0.5, "50pct"), (0.75, "75pct"), (0.95, "95pct"), (0.99, "99pct"), (0.999, "999pct"))


class Latencies:
    """Histogram of entry latencies, in buckets of equal ratio. Not thread-safe."""

    __slots__ = ("buckets", "maximum")

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.maximum = 0.0

    def add(self, seconds: float) -> None:
        """Record one entry."""
        self.buckets[int(log2(max(seconds, _MICROSECOND) / _MICROSECOND) * _PER_OCTAVE)] += 1
        if seconds > self.maximum:
            self.maximum = seconds

    def merge(self, other: Latencies) -> None:
        """Add the values of another histogram."""
        self.buckets.update(other.buckets)
        self.maximum = max(self.maximum, other.maximum)

    def percentile(self, share: float) -> float:
        """Return the seconds that `share` of the entries did not exceed, 0 without entries."""
        rank = share * self.buckets.total()
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                middle = _MICROSECOND * 2 ** ((bucket + 0.5) / _PER_OCTAVE)
                return float(min(middle, self.maximum))
        return 0.0

    def millis(self) -> dict[str, float]:
        """Return the percentiles and the maximum, named as the fields of `ProducerStats`."""
        found = {f"send_latency_millis_{name}": self.percentile(share) * 1000 for share, name in _PERCENTILES}
        return {**found, "send_latency_millis_max": self.maximum * 1000}


class Recorder:
    """Counters since creation, and since the interval began. Thread-safe."""

    def __init__(self, names: Sequence[str], now: float) -> None:
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(names, 0)
        self._before = dict(self.counts)
        self.began = now

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        with self.lock:
            self.counts[name] += number

    def roll(self, now: float, counts: dict[str, int]) -> None:
        """Start a new interval at these counters."""
        with self.lock:
            self._before = dict(counts)
            self.began = now

    def figures(self, counts: dict[str, int], rates: dict[str, str], now: float) -> dict[str, Any]:
        """Return counters as the fields of the stats classes: totals, values of the interval, and rates per second."""
        seconds = max(now - self.began, 0.0)
        found: dict[str, Any] = {"interval_seconds": seconds}
        for name, total in counts.items():
            found[f"total_{name}"] = total
            found[f"num_{name}"] = total - self._before[name]
        for name, rate in rates.items():
            found[rate] = found[f"num_{name}"] / seconds if seconds else 0.0
        return found


PRODUCER_COUNTS = ("msgs_sent", "bytes_sent", "send_failed", "acks_received")
CONSUMER_COUNTS = (
    "msgs_received",
    "bytes_received",
    "receive_failed",
    "batch_receive_failed",
    "acks_sent",
    "acks_failed",
    "negative_acks",
    "ack_timeouts",
)


class Durations(NamedTuple):
    """Called once per entry with its duration in seconds and whether it failed."""

    # Since it was created, and since it was written to the connection or queued for the next one.
    message: Callable[[float, bool], None]
    rpc: Callable[[float, bool], None]


class ProducerRecorder(Recorder):
    """Recorder of one `PartitionProducer`."""

    def __init__(self, now: float, durations: Durations | None) -> None:
        super().__init__(PRODUCER_COUNTS, now)
        self.latencies = Latencies()
        # The OpenTelemetry histograms, if any.
        self._durations = durations

    def sent(self, ops: Sequence[SendOp]) -> None:
        """Record entries written to the connection, or queued for the next one."""
        with self.lock:
            counts = self.counts
            for op in ops:
                counts["msgs_sent"] += op.count
                counts["bytes_sent"] += op.size
        if self._durations is not None:
            now = time.monotonic()
            for op in ops:
                op.written = now

    def completed(self, op: SendOp, failed: bool, now: float) -> None:
        """Record the end of an entry."""
        seconds = now - op.created
        with self.lock:
            self.counts["send_failed" if failed else "acks_received"] += op.count
            if not failed:
                self.latencies.add(seconds)
        if self._durations is not None:
            self._durations.message(seconds, failed)
            # An entry that failed before it was written has no network latency.
            written: float | None = getattr(op, "written", None)
            if written is not None:
                self._durations.rpc(now - written, failed)

    def roll(self, now: float, counts: dict[str, int]) -> None:
        """Start a new interval."""
        super().roll(now, counts)
        with self.lock:
            self.latencies = Latencies()

    def seen(self) -> Latencies:
        """Return a copy of the interval's latencies."""
        copy = Latencies()
        with self.lock:
            copy.merge(self.latencies)
        return copy


class ConsumerRecorder(Recorder):
    """Recorder of one `PartitionConsumer`, except what its ack group counts itself."""

    def __init__(self, now: float) -> None:
        super().__init__(CONSUMER_COUNTS, now)

    def received(self, messages: int, size: int) -> None:
        """Record messages decoded for the application, or with negative numbers messages that were dropped again."""
        with self.lock:
            self.counts["msgs_received"] += messages
            self.counts["bytes_received"] += size
