"""Requests of driver and tasks to the brokers, counted: they grow with the partitions, and never faster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_pulsar.batch_reader import make_splits, read_split
from pyspark_pulsar.broker import plan
from pyspark_pulsar.clients import close_clients
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.stream_reader import StreamPlanner
from support.counting_broker import CountingBroker, topic_names

ENTRIES = 10
TOPICS, PARTITIONS = 3, 8
ALL = TOPICS * PARTITIONS


@pytest.fixture
def broker() -> Iterator[CountingBroker]:
    """Give a broker with three topics of eight partitions."""
    with CountingBroker(ENTRIES) as made:
        made.partitions = dict.fromkeys(topic_names(TOPICS), PARTITIONS)
        yield made
        close_clients()


@pytest.fixture
def options(broker: CountingBroker) -> ReadOptions:
    """Give the options of a read of all topics."""
    return ReadOptions.parse({"service.url": broker.url, "topics": ",".join(topic_names(TOPICS))})


def requests(broker: CountingBroker) -> dict[str, int]:
    """Return what was asked since the last look, without permits, which arrive without being waited for."""
    return {name: count for name, count in broker.counts().items() if name != "FLOW"}


def test_batch_plan_asks_once_per_partition(broker: CountingBroker, options: ReadOptions) -> None:
    splits = make_splits(plan(options))
    counts = broker.counts()
    assert len(splits) == ALL
    assert counts["PARTITIONED_METADATA"] == TOPICS
    assert {name: counts[name] for name in ("LOOKUP", "SUBSCRIBE", "GET_LAST_MESSAGE_ID", "CLOSE_CONSUMER")} == {
        "LOOKUP": ALL,
        "SUBSCRIBE": ALL,
        "GET_LAST_MESSAGE_ID": ALL,
        "CLOSE_CONSUMER": ALL,
    }
    assert len(broker.peers) == 1


def test_tasks_of_a_worker_share_one_connection(broker: CountingBroker, options: ReadOptions) -> None:
    splits = make_splits(plan(options))
    broker.counts()
    rows = [sum(batch.num_rows for batch in read_split(options, split)) for split in splits]
    assert rows == [ENTRIES] * ALL
    counts = broker.counts()
    # The data alone: the ledger that is being written cannot have been trimmed.
    assert counts["SUBSCRIBE"] == counts["CLOSE_CONSUMER"] == ALL
    assert "CONNECT" not in counts and len(broker.peers) == 1


def test_idle_micro_batch_asks_one_request_per_partition(broker: CountingBroker, options: ReadOptions) -> None:
    planner = StreamPlanner(options)
    try:
        end = planner.latest(planner.initial(), unlimited=True)
        assert len(end.positions) == ALL
        broker.counts()
        assert planner.latest(end, unlimited=True) == end
        assert requests(broker) == {"GET_LAST_MESSAGE_ID": ALL}
    finally:
        planner.close()


def test_only_the_first_micro_batch_after_a_restart_is_compared(broker: CountingBroker, options: ReadOptions) -> None:
    planner, restarted = StreamPlanner(options), StreamPlanner(options)
    try:
        start = planner.initial()
        end = planner.latest(start, unlimited=True)
        broker.counts()
        assert len(planner.ranges(start, end)) == ALL
        assert requests(broker) == {}
        # The offsets of a checkpoint may be old.
        assert len(restarted.ranges(start, end)) == ALL
        counts = broker.counts()
        assert counts["SUBSCRIBE"] == counts["PARTITIONED_METADATA"] == ALL
        assert len(restarted.ranges(start, end)) == ALL
        assert requests(broker) == {}
    finally:
        planner.close()
        restarted.close()
