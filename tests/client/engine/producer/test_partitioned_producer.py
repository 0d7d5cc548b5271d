"""Producer of a partitioned topic: limits of the partitions, routing, one name, growth, creation of all or none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest

from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.handler import State
from pulsar_native.engine.producer.backpressure import Backpressure
from pulsar_native.engine.producer.lazy_producer import LazyPartitionProducer
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.waiter import SendWait
from pulsar_native.enums import PartitionsRoutingMode, ProducerAccessMode
from pulsar_native.exceptions import ProducerBusy
from pulsar_native.message import OutgoingMessage
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Peer, failure, receipt, success, swallow
from support.until import until

Cores = Callable[..., ClientCore]
TOPIC = "persistent://public/default/t"


async def producer_of(core: ClientCore, **options: Any) -> TopicProducer:
    return await core.create_producer(ProducerConfig(topic="t", **options), None)


def created(fake: FakeBroker) -> list[tuple[int, str | None]]:
    """Return partition and name of each PRODUCER, in order."""
    return [
        (
            int(seen.command.producer.topic.rpartition("-")[2]),
            seen.command.producer.producer_name if seen.command.producer.HasField("producer_name") else None,
        )
        for seen in fake.seen(Kind.PRODUCER)
    ]


@pytest.mark.parametrize(
    ("own", "across", "limit"), [(1000, 0, 1000), (1000, 100, 25), (10, 100, 10), (0, 100, 25), (1000, 2, 1)]
)
async def test_partition_limit_is_its_share(fake: FakeBroker, cores: Cores, own: int, across: int, limit: int) -> None:
    fake.partitions[TOPIC] = 4
    producer = await producer_of(
        cores(fake.url), max_pending_messages=own, max_pending_messages_across_partitions=across
    )
    assert [child._max_pending for child in producer.children] == [limit] * 4


async def test_generated_name_is_shared_by_partitions(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 3
    producer = await producer_of(cores(fake.url))
    (first, none), *others = created(fake)
    assert (first, none) == (0, None)
    assert sorted(others) == [(1, producer.name), (2, producer.name)]


def refuse_last(fake: FakeBroker) -> None:
    """Make a topic of three partitions, of which the last one refuses producers."""
    create = fake.answers[Kind.PRODUCER]

    def answer(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if command.producer.topic.endswith("-2"):
            return [failure(command.producer.request_id, pb.ProducerBusy)]
        return create(peer, command)

    fake.partitions[TOPIC] = 3
    fake.answers[Kind.PRODUCER] = answer


async def test_creation_failure_closes_all_partitions(fake: FakeBroker, cores: Cores) -> None:
    refuse_last(fake)
    core = cores(fake.url)
    with pytest.raises(ProducerBusy):
        await producer_of(core)
    asked = {seen.command.producer.topic: seen.command.producer.producer_id for seen in fake.seen(Kind.PRODUCER)}
    closed = {seen.command.close_producer.producer_id for seen in fake.wait(Kind.CLOSE_PRODUCER, 2)}
    assert closed == {asked[f"{TOPIC}-partition-0"], asked[f"{TOPIC}-partition-1"]} and not core.producers


async def test_creation_failure_waits_for_closing_once(fake: FakeBroker, cores: Cores) -> None:
    refuse_last(fake)
    fake.answers[Kind.CLOSE_PRODUCER] = swallow
    creation = asyncio.create_task(producer_of(cores(fake.url, operation_timeout_seconds=60)))
    # One after another, the second would come when the first has timed out.
    closing = await asyncio.to_thread(fake.wait, Kind.CLOSE_PRODUCER, 2)
    assert not creation.done()
    for seen in closing:
        seen.peer.send(success(seen.command.close_producer.request_id))
    with pytest.raises(ProducerBusy):
        await creation


async def test_key_chooses_one_partition(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 4
    producer = await producer_of(cores(fake.url))
    chosen = {
        key: {producer.route(b"x", OutgoingMessage(b"x", partition_key=key)).topic.partition for _ in range(20)}
        for key in map(str, range(40))
    }
    assert all(len(partitions) == 1 for partitions in chosen.values())
    assert set.union(*chosen.values()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("mode", "partitions"),
    [(PartitionsRoutingMode.UseSinglePartition, 1), (PartitionsRoutingMode.RoundRobinDistribution, 3)],
)
async def test_routing_mode_spreads_plain_messages(
    fake: FakeBroker, cores: Cores, mode: PartitionsRoutingMode, partitions: int
) -> None:
    fake.partitions[TOPIC] = 3
    producer = await producer_of(cores(fake.url), message_routing_mode=mode, batching_enabled=False)
    counts = Counter(producer.route(b"x", None).topic.partition for _ in range(30))
    assert len(counts) == partitions and max(counts.values()) == 30 // partitions


@pytest.mark.parametrize("way", ["plain", "waiting", "other"])
async def test_message_router_called_once_for_full_queue(fake: FakeBroker, cores: Cores, way: str) -> None:
    fake.partitions[TOPIC] = 2
    fake.answers[Kind.SEND] = swallow
    calls = count()
    producer = await producer_of(
        cores(fake.url),
        batching_enabled=False,
        max_pending_messages=1,
        message_routing_mode=PartitionsRoutingMode.CustomPartition,
        message_router=lambda _message, _metadata: next(calls) % 2,
    )
    ways: dict[str, Callable[[], Backpressure | None]] = {
        "plain": lambda: producer.fast_send()(b"x", None),
        "waiting": lambda: producer.fast_send_sync()(b"x", SendWait()),
        "other": lambda: producer.enqueue(b"x", b"", None, None),
    }
    assert ways[way]() is None and ways[way]() is None
    full = ways[way]()
    assert full is not None and full.retry is not None
    for _ in range(3):
        full = full.retry()
        assert full is not None and full.retry is not None
    first = next(
        seen for seen in await asyncio.to_thread(fake.wait, Kind.SEND, 2) if seen.command.send.producer_id == 0
    )
    first.peer.send(receipt(first.command.send, 0))
    await until(lambda: not producer.children[0].core.pending_messages)
    # The third message is the first partition's.
    assert full.retry() is None and next(calls) == 3 and producer.children[0].core.pending_messages == 1


async def test_last_disconnected_timestamp_is_the_latest_partitions(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 2
    producer = await producer_of(cores(fake.url))
    assert producer.last_disconnected_timestamp == 0
    for child, at in zip(producer.children, (7, 5), strict=True):
        child.last_disconnected_timestamp = at
    assert producer.last_disconnected_timestamp == 7


async def test_growth_joins_new_partitions_under_the_name(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 1
    producer = await producer_of(cores(fake.url), message_routing_mode=PartitionsRoutingMode.RoundRobinDistribution)
    before = list(producer.children)
    fake.partitions[TOPIC] = 3
    await producer.update_partitions()
    assert producer.children[:1] == before and len(producer.children) == 3 and producer.is_connected
    assert created(fake)[1:] == [(1, producer.name), (2, producer.name)]
    fake.partitions[TOPIC] = 2
    await producer.update_partitions()
    assert len(producer.children) == 3


async def test_growth_failure_keeps_the_old_partitions(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 2
    producer = await producer_of(cores(fake.url))
    before = list(producer.children)
    create = fake.answers[Kind.PRODUCER]
    fake.answers[Kind.PRODUCER] = lambda _peer, command: [failure(command.producer.request_id, pb.ProducerBusy)]
    fake.partitions[TOPIC] = 3
    with pytest.raises(ProducerBusy):
        await producer.update_partitions()
    assert producer.children == before
    fake.answers[Kind.PRODUCER] = create
    await producer.update_partitions()
    assert len(producer.children) == 3 and all(child.state is State.READY for child in producer.children)


@pytest.mark.parametrize(("access", "started"), [(ProducerAccessMode.Shared, 1), (ProducerAccessMode.Exclusive, 3)])
async def test_lazy_only_with_shared_access(
    fake: FakeBroker, cores: Cores, access: ProducerAccessMode, started: int
) -> None:
    fake.partitions[TOPIC] = 3
    producer = await producer_of(cores(fake.url), lazy_start_partitioned_producers=True, access_mode=access)
    assert len(fake.seen(Kind.PRODUCER)) == started == sum(child.is_started for child in producer.children)
    assert isinstance(producer.children[0], LazyPartitionProducer) is (started == 1)


async def test_close_reports_each_partition(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 2
    core = cores(fake.url)
    producer = await producer_of(core, batching_enabled=False)
    producer.children[1].enqueue(b"x", b"", None, None)
    reports = await producer.close()
    assert [(each.topic, each.sent) for each in reports] == [
        (f"{TOPIC}-partition-0", 0),
        (f"{TOPIC}-partition-1", 1),
    ]
    assert producer.is_closed and not core.producers
