"""Backlog and positions of subscriptions on the real broker."""

from __future__ import annotations

import pytest

from pulsar_native import AdminClient, Client, ConsumerType, InitialPosition, MessageId
from pulsar_native.exceptions import SubscriptionNotFound, TopicNotFound
from pulsar_native.jobs.backlog import _acknowledged, backlogs, next_positions
from support.brokers import Broker, NewTopic


@pytest.mark.parametrize("partitions", [0, 3])
def test_backlog_counts_entries_by_partition(partitions: int, broker: Broker, topic: NewTopic) -> None:
    name = topic(partitions=partitions)
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:
        for own in ("a", "b"):
            client.subscribe(name, own, initial_position=InitialPosition.Earliest).close()
        producer = client.create_producer(name, batching_enabled=False)
        for number in range(6):
            producer.send(b"x", sequence_id=number) if partitions else producer.send(b"x")
        found = backlogs(admin, name)
        assert {each.subscription for each in found} == {"a", "b"} and len(found) == 2 * max(1, partitions)
        assert sum(each.entries for each in backlogs(admin, name, "a")) == 6
        assert found[0].as_json()["type"] == "Exclusive"
        assert backlogs(admin, found[0].topic, "b")[0].topic == found[0].topic


def test_backlog_of_what_is_missing_raises(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:
        client.create_producer(name).close()
        with pytest.raises(SubscriptionNotFound, match="has no subscription 's'"):
            backlogs(admin, name, "s")
        with pytest.raises(SubscriptionNotFound, match="has no subscription 's'"):
            next_positions(admin, name, "s")
        with pytest.raises(TopicNotFound):
            backlogs(admin, f"{name}-none")


def test_next_position_leaves_acknowledged_entries_out(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:
        consumer = client.subscribe(
            name, "s", consumer_type=ConsumerType.Shared, initial_position=InitialPosition.Earliest,
            ack_receipt_enabled=True,
        )  # fmt: skip
        producer = client.create_producer(name, batching_enabled=False)
        ids = [producer.send(b"%d" % number) for number in range(6)]
        for _ in range(6):
            consumer.receive(5000)
        consumer.acknowledge([ids[0], ids[1], ids[3], ids[5]])
        ((start, is_acknowledged),) = next_positions(admin, name, "s").values()
        assert (start.ledger_id(), start.entry_id()) == (ids[2].ledger_id(), ids[2].entry_id())
        assert [is_acknowledged(each) for each in ids[2:]] == [False, True, False, True]


def test_next_position_of_similar_names(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    with Client(broker.service_url) as client, AdminClient(broker.admin_url) as admin:
        ids = [client.create_producer(name, batching_enabled=False).send(b"x") for _ in range(2)]
        # In the broker's statistics the former has the name of the latter.
        client.subscribe(name, "team/a b", initial_position=InitialPosition.Earliest).close()
        admin.create_subscription(name, "team%2Fa+b", ids[1])
        for own, expected in (("team/a b", ids[0]), ("team%2Fa+b", ids[1])):
            ((start, _),) = next_positions(admin, name, own).values()
            assert (start.ledger_id(), start.entry_id()) == (expected.ledger_id(), expected.entry_id())


def test_acknowledged_ranges_of_several_ledgers() -> None:
    test = _acknowledged({"individuallyDeletedMessages": "[(7:1..7:3],(8:-1..8:0]]"})
    places = [(7, 1), (7, 2), (7, 3), (7, 4), (8, 0), (8, 1)]
    assert [test(MessageId(-1, *place, -1)) for place in places] == [False, True, True, False, True, False]
    assert not _acknowledged({})(MessageId(-1, 7, 1, -1))


def test_acknowledged_range_of_another_form_raises() -> None:
    with pytest.raises(ValueError, match="which is not LEDGER:ENTRY"):
        _acknowledged({"individuallyDeletedMessages": "[(a:1..7:3]]"})
