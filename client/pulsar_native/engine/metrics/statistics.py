"""Statistics of producers and consumers, recorded per entry and never per message, and their log records.

Rules: recorders exist only while recording is on; the hot paths hold None otherwise. Latencies go into buckets that
grow by 4.4 %, so that percentiles are right within about 2.2 %; the maximum is exact. One timer for all of a client.
Thread-safe; `now` is monotonic seconds.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import log2
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pulsar_native.protocol.send_op import SendOp
from pulsar_native.stats import ClientStats, ConsumerStats, ProducerStats

if TYPE_CHECKING:
    from pulsar_native.engine.client import ClientCore
    from pulsar_native.engine.consumer.consumer import PartitionConsumer
    from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
    from pulsar_native.engine.producer.partitioned_producer import TopicProducer
    from pulsar_native.engine.producer.producer import PartitionProducer

_log = logging.getLogger("pulsar_native.stats")

_PER_OCTAVE = 16
_MICROSECOND = 1e-6
_PERCENTILES = ((0.5, "50pct"), (0.75, "75pct"), (0.95, "95pct"), (0.99, "99pct"), (0.999, "999pct"))

S = TypeVar("S", ProducerStats, ConsumerStats)


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
_PRODUCER_RATES = {"msgs_sent": "send_msgs_rate", "bytes_sent": "send_bytes_rate"}
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
_CONSUMER_RATES = {"msgs_received": "rate_msgs_received", "bytes_received": "rate_bytes_received"}


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


# --- statistics of live objects -------------------------------------------------------------------------------------


def producer_counts(producer: PartitionProducer) -> dict[str, int]:
    """Return the totals of one partition's producer; zeros when recording is off."""
    recorder = producer.stats
    if recorder is None:
        return dict.fromkeys(PRODUCER_COUNTS, 0)
    with recorder.lock:
        return dict(recorder.counts)


def consumer_counts(consumer: PartitionConsumer) -> dict[str, int]:
    """Return the totals of one partition's consumer; zeros when recording is off."""
    recorder = consumer.stats
    if recorder is None:
        return dict.fromkeys(CONSUMER_COUNTS, 0)
    # Under the consumer's lock, so that decoded and not dequeued messages are counted at the same moment.
    with consumer.lock:
        messages, size = consumer.opened()
        with recorder.lock:
            counts = dict(recorder.counts)
        counts["acks_sent"] = consumer.acks_sent
    counts["msgs_received"] -= messages
    counts["bytes_received"] -= size
    return counts


def of_producer(producer: TopicProducer, *, roll: bool = False) -> ProducerStats:
    """Return a producer's statistics; `roll` starts a new interval."""
    now = time.monotonic()
    parts: dict[str, ProducerStats] = {}
    latencies = Latencies()
    for child in producer.children:
        recorder, counts = child.stats, producer_counts(child)
        figures: dict[str, Any] = {}
        if recorder is not None:
            own = recorder.seen()
            latencies.merge(own)
            figures = {**recorder.figures(counts, _PRODUCER_RATES, now), **own.millis()}
            if roll:
                recorder.roll(now, counts)
        parts[child.topic.full] = ProducerStats(
            topic=child.topic.full,
            producer_name=child.core.name,
            pending_queue_size=child.core.pending_messages,
            **figures,
        )
    if not producer.is_partitioned:
        return next(iter(parts.values()))
    whole = _sum(ProducerStats, parts, topic=producer.topic.full, producer_name=producer.name)
    found: dict[str, Any] = {**latencies.millis()}
    return dataclasses.replace(whole, **found)


def of_consumer(consumer: MultiTopicsConsumer, *, roll: bool = False) -> ConsumerStats:
    """Return a consumer's statistics; `roll` starts a new interval."""
    now = time.monotonic()
    parts: dict[str, ConsumerStats] = {}
    names: dict[str, Any] = {
        "subscription_name": consumer.config.subscription_name,
        "consumer_name": consumer.name,
    }
    for child in consumer.children:
        recorder, counts = child.stats, consumer_counts(child)
        figures: dict[str, Any] = {}
        if recorder is not None:
            figures = recorder.figures(counts, _CONSUMER_RATES, now)
            if roll:
                recorder.roll(now, counts)
        parts[child.topic.full] = ConsumerStats(
            topic=child.topic.full, msg_num_in_receiver_queue=child.queued_messages(), **names, **figures
        )
    if len(parts) == 1 and not any(consumer.topics.values()):
        return next(iter(parts.values()))
    return _sum(ConsumerStats, parts, topic=",".join(topic.full for topic in consumer.topics), **names)


def of_client(core: ClientCore) -> ClientStats:
    """Return the statistics of all of a client's producers and consumers."""
    producers, consumers = list(core.producers), list(core.consumers)
    totals = Counter(core.retired)
    # Memory reserved ahead is not used by any message.
    spare = 0
    for producer in producers:
        for child in producer.children:
            totals.update(producer_counts(child))
            spare += child.core.spare_bytes
    for consumer in consumers:
        for part in consumer.children:
            totals.update(consumer_counts(part))
    names = {each.name for each in dataclasses.fields(ClientStats)}
    return ClientStats(
        connections=len(core.pool.connections()),
        memory_used_bytes=max(0, core.memory.used - spare),
        memory_limit_bytes=core.memory.limit,
        producers=tuple(map(of_producer, producers)),
        consumers=tuple(map(of_consumer, consumers)),
        **{f"total_{name}": number for name, number in totals.items() if f"total_{name}" in names},
    )


def _sum(kind: type[S], parts: dict[str, S], **names: Any) -> S:
    figures: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        values = [getattr(part, each.name) for part in parts.values()]
        if each.name == "interval_seconds":
            figures[each.name] = max(values, default=0.0)
        elif each.name not in names and each.name != "partition_stats":
            figures[each.name] = sum(values)
    return kind(**names, **figures, partition_stats=MappingProxyType(parts))


# --- log records ----------------------------------------------------------------------------------------------------


class StatsClock:
    """Timer that logs the statistics of every producer and consumer at the end of each interval. On the loop."""

    def __init__(self, core: ClientCore, seconds: float) -> None:
        self._core = core
        self._seconds = seconds
        self._handle = core.engine.loop.call_later(seconds, self._tick)

    def stop(self) -> None:
        """Stop logging."""
        self._handle.cancel()

    def _tick(self) -> None:
        self._handle = self._core.engine.loop.call_later(self._seconds, self._tick)
        for producer in list(self._core.producers):
            made = of_producer(producer, roll=True)
            _log.info(
                "[%s] [%s] published in %.1f s: %d messages (%.1f/s), %d bytes, %d receipts, %d failed; latency ms "
                "median %.3f, 95%% %.3f, 99%% %.3f, max %.3f; pending %d",
                made.topic, made.producer_name, made.interval_seconds, made.num_msgs_sent, made.send_msgs_rate,
                made.num_bytes_sent, made.num_acks_received, made.num_send_failed, made.send_latency_millis_50pct,
                made.send_latency_millis_95pct, made.send_latency_millis_99pct, made.send_latency_millis_max,
                made.pending_queue_size, extra={"stats": made},
            )  # fmt: skip
        for consumer in list(self._core.consumers):
            got = of_consumer(consumer, roll=True)
            _log.info(
                "[%s] [%s] [%s] received in %.1f s: %d messages (%.1f/s), %d bytes, %d failed; acknowledgements %d, "
                "failed %d, negative %d; queued %d",
                got.topic, got.subscription_name, got.consumer_name, got.interval_seconds, got.num_msgs_received,
                got.rate_msgs_received, got.num_bytes_received, got.num_receive_failed, got.num_acks_sent,
                got.num_acks_failed, got.num_negative_acks, got.msg_num_in_receiver_queue, extra={"stats": got},
            )  # fmt: skip
