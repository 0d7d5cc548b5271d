"""Statistics read from live producers and consumers: sums over partitions, intervals, log records."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.metrics import reports
from pulsar_native.engine.metrics.reports import StatsClock, of_client, of_consumer, of_producer
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.stats import ConsumerStats, ProducerStats
from pulsar_native.wire.commands import Kind
from support.clock import stopped_clock
from support.fake_broker import FakeBroker, swallow
from support.fake_topic import FakeTopic
from support.until import until

Cores = Callable[..., ClientCore]
TOPIC = "persistent://public/default/t"


async def producing(core: ClientCore, **options: Any) -> TopicProducer:
    return await core.create_producer(ProducerConfig(topic="t", batching_enabled=False, **options), None)


async def send(producer: TopicProducer, *partitions: int) -> None:
    """Send five bytes to each of these partitions and wait for the receipts."""
    told: list[object] = []
    for partition in partitions:
        child = producer.children[partition]
        assert child.enqueue(b"12345", b"", None, lambda error, place: told.append(place)) is None
    await until(lambda: len(told) == len(partitions))


async def test_partitions_are_summed(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 2
    core = cores(fake.url)
    producer = await producing(core)
    await send(producer, 0, 1, 1)
    found = of_producer(producer)
    assert (found.topic, found.num_msgs_sent, found.num_bytes_sent, found.num_acks_received) == (TOPIC, 3, 15, 3)
    parts = {name: part.num_msgs_sent for name, part in found.partition_stats.items()}
    assert parts == {f"{TOPIC}-partition-0": 1, f"{TOPIC}-partition-1": 2}
    assert 0 < found.send_latency_millis_50pct <= found.send_latency_millis_max
    whole = of_client(core)
    assert (whole.total_msgs_sent, whole.total_bytes_sent, whole.connections) == (3, 15, 1)


async def test_closed_producers_stay_in_the_totals(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    producer = await producing(core)
    await send(producer, 0, 0)
    await producer.close()
    found = of_client(core)
    assert not found.producers and (found.total_msgs_sent, found.total_bytes_sent) == (2, 10)


async def test_interval_begins_with_the_roll(fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, reports)
    producer = await producing(cores(fake.url))
    first = of_producer(producer, roll=True)
    await send(producer, 0, 0, 0, 0)
    clock.advance(2.0)
    during = of_producer(producer)
    assert during.num_msgs_sent == 4 and during.send_msgs_rate == pytest.approx(2.0, rel=0.2)
    assert of_producer(producer, roll=True).num_msgs_sent == 4
    after = of_producer(producer)
    assert after.num_msgs_sent == 0 == first.num_msgs_sent and after.total_msgs_sent == 4


async def test_recording_off_leaves_zeros(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.SEND] = swallow
    core = cores(fake.url, stats_interval_in_seconds=0)
    producer = await producing(core)
    producer.enqueue(b"12345", b"", None, None)
    found = of_producer(producer)
    assert (found.num_msgs_sent, found.total_msgs_sent, found.pending_queue_size) == (0, 0, 1)
    assert of_client(core).total_msgs_sent == 0


async def test_memory_reserved_ahead_is_not_used(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.SEND] = swallow
    core = cores(fake.url, memory_limit_bytes=64 << 20)
    producer = await core.create_producer(
        ProducerConfig(topic="t", batching_enabled=True, batching_max_publish_delay_ms=60_000), None
    )
    enqueue = producer.fast_send()
    for _ in range(3):
        assert enqueue(b"12345", None) is None
    assert core.memory.used > 15 and of_client(core).memory_used_bytes == 15


async def test_received_counts_what_was_taken(fake: FakeBroker, cores: Cores, subscribed: Callable[..., Any]) -> None:
    FakeTopic(fake, b"a", b"bb", b"ccc")
    core = cores(fake.url)
    consumer = await subscribed(core)
    await until(lambda: of_consumer(consumer).msg_num_in_receiver_queue == 3)
    assert of_consumer(consumer).num_msgs_received == 0
    await until(consumer.dequeue)
    found = of_consumer(consumer)
    assert (found.topic, found.subscription_name, found.partition_stats) == (TOPIC, "s", {})
    assert (found.num_msgs_received, found.num_bytes_received, found.msg_num_in_receiver_queue) == (1, 1, 2)
    assert of_client(core).total_msgs_received == 1


async def test_clock_logs_each_at_the_end_of_an_interval(
    fake: FakeBroker, cores: Cores, subscribed: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pulsar_native.stats")
    core = cores(fake.url)
    producer = await producing(core)
    await subscribed(core, "other")
    await send(producer, 0)
    clock = StatsClock(core, 0.01)
    await until(lambda: len(caplog.records) >= 4)
    clock.stop()
    stats = [record.stats for record in caplog.records if record.name == "pulsar_native.stats"]
    assert [type(each) for each in stats[:2]] == [ProducerStats, ConsumerStats]
    sent = [each.num_msgs_sent for each in stats if isinstance(each, ProducerStats)]
    # Each interval by itself.
    assert sent[0] == 1 and not any(sent[1:])
    assert f"[{TOPIC}]" in caplog.records[0].getMessage() and "1 messages" in caplog.records[0].getMessage()
