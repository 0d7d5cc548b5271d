"""Statistics of live producers, consumers and clients, read from their recorders, and their log records.

Rules: one timer for all of a client. Reading is thread-safe; `now` is monotonic seconds.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pulsar_native._loggers import get_logger
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.memory_limit import MemoryLimit
from pulsar_native.engine.metrics.statistics import CONSUMER_COUNTS, PRODUCER_COUNTS, Latencies
from pulsar_native.stats import ClientStats, ConsumerStats, ProducerStats

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.consumer import PartitionConsumer
    from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
    from pulsar_native.engine.pool import ConnectionPool
    from pulsar_native.engine.producer.partitioned_producer import TopicProducer
    from pulsar_native.engine.producer.producer import PartitionProducer

_log = get_logger("pulsar_native.stats")

_PRODUCER_RATES = {"msgs_sent": "send_msgs_rate", "bytes_sent": "send_bytes_rate"}
_CONSUMER_RATES = {"msgs_received": "rate_msgs_received", "bytes_received": "rate_bytes_received"}

S = TypeVar("S", ProducerStats, ConsumerStats)


class StatsSource(Protocol):
    """Client whose statistics are read."""

    engine: Engine
    memory: MemoryLimit
    pool: ConnectionPool
    producers: set[TopicProducer]
    consumers: set[MultiTopicsConsumer]
    # Totals of closed producers and consumers.
    retired: Counter[str]


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
        messages, size = consumer.core.opened()
        with recorder.lock:
            counts = dict(recorder.counts)
        counts["acks_sent"] = consumer.acks.sent
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
            topic=child.topic.full,
            msg_num_in_receiver_queue=child.queued_messages(),
            total_decryption_failed=child.undecodable.undecrypted_count,
            **names,
            **figures,
        )
    if len(parts) == 1 and not any(consumer.topics.values()):
        return next(iter(parts.values()))
    return _sum(ConsumerStats, parts, topic=",".join(topic.full for topic in consumer.topics), **names)


def of_client(core: StatsSource) -> ClientStats:
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

    def __init__(self, core: StatsSource, seconds: float) -> None:
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
