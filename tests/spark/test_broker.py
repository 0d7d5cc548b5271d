"""Questions to a real broker: where a topic begins and ends, what stands at a time, and that asking leaves nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing

import pytest

import pulsar_native
from pulsar_native import Client, MessageId
from pulsar_native.exceptions import TopicNotFound
from pyspark_pulsar import broker as live
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.offsets import Range, resolve
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position
from pyspark_pulsar.pushdown import Pushed, narrow
from support.brokers import Broker, NewTopic
from support.publishing import Publish
from support.until import wait_until


def connected(broker: Broker, topic: str, **options: str) -> live.Broker:
    """Return a connection with the options of a read of the topic."""
    return live.Broker(ReadOptions.parse({"service.url": broker.service_url, "topic": topic, **options}))


def test_broker_first_last_and_time_positions(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    ids = publish(name, ["1", "2"])
    time.sleep(1)
    ids += publish(name, ["3"], ["4", "5"])
    first, second = Position.of_message(ids[0]), Position.of_message(ids[2])
    with connected(broker, name) as asked, asked.probe(name) as probe:
        found = probe.first()
        assert found is not None and (found.position, found.number) == (first, 0)
        assert probe.last() == Position.of_message(ids[4])
        between = probe.first_at(found.publish_time + 500)
        assert between is not None and (between.position, between.number) == (second, 2)
        assert between.publish_time > found.publish_time
        # The broker searches by its own time of arrival here, which a busy machine makes later than the publish time.
        assert probe.first_at(0) == found == probe.first_at(found.publish_time - 1000)
        assert probe.first_at(between.publish_time + 10**7) is None
        assert probe.first() == found, "whatever was asked before"


def test_broker_late_entry_is_before_the_end(broker: Broker, topic: NewTopic, client: Client) -> None:
    name = topic()
    with client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000) as producer:
        for value in (b"1", b"2", b"3"):
            producer.send_async(value, None)
            time.sleep(0.1)  # The batch is stamped by the producer when it begins, by the broker when it arrives.
            producer.flush()
    with client.create_reader(name, MessageId.earliest) as reader:
        _, second, third = (reader.read_next(10_000) for _ in range(3))
    until, end = second.publish_timestamp() + 1, Position.of_message(third.message_id()).entry_start
    options = {"service.url": broker.service_url, "topic": name, "timeSlackMs": "0"}
    with connected(broker, name) as asked, asked.probe(name) as probe:
        late = probe.first_at(until)
        assert late is not None and late.publish_time < until, "the broker searches by the arrival"
        everything = resolve(name, ReadOptions.parse(options), probe)
        timed = resolve(name, ReadOptions.parse({**options, "endingTime": str(until)}), probe)
        narrowed = narrow(everything, Pushed(publish_until=until), 0, probe)
    assert timed.end >= end and narrowed.end >= end


def test_broker_empty_topic_has_no_positions(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    broker.admin("PUT", name.replace("://", "/"))
    with connected(broker, name) as asked, asked.probe(name) as probe:
        assert (probe.last(), probe.first(), probe.first_at(5)) == (None, None, None)
        assert not probe.is_trimmed()


def test_broker_trimming_is_visible_to_admin(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, ["1"])
    with connected(broker, name, **{"admin.url": broker.admin_url}) as asked, asked.probe(name) as probe:
        assert not probe.is_trimmed()


def test_broker_chunked_first_message_is_no_loss(broker: Broker, topic: NewTopic, client: Client) -> None:
    name = topic()
    producer = client.create_producer(name, chunking_enabled=True, chunk_max_message_size=1000, batching_enabled=False)
    producer.send(b"x" * 2500)
    with connected(broker, name, startingTime="1") as asked, asked.probe(name) as probe:
        found = probe.first()
        assert found is not None and found.number is not None and found.last_chunk is not None
        assert found.number == found.last_chunk.entry > found.position.entry == 0
        assert resolve(name, asked._options, probe) == Range(name, found.position, found.last_chunk.after_entry)


@pytest.mark.parametrize("rolled_over", [False, True])
def test_broker_aborted_first_messages_are_no_loss(
    broker: Broker, namespace: Callable[[], str], client: Client, publish: Publish, rolled_over: bool
) -> None:
    space = namespace()
    broker.admin("POST", f"namespaces/{space}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    name = f"persistent://{space}/aborted"
    producer = client.create_producer(name, batching_enabled=False)
    transaction = client.new_transaction()
    for _ in range(2):
        aborted = producer.send(b"aborted", txn=transaction)
    transaction.abort()
    if rolled_over:
        broker.admin("PUT", f"{name.replace('://', '/')}/unload")
    (kept,) = publish(name, ["kept"])
    assert (kept.ledger_id() != aborted.ledger_id()) == rolled_over
    options = {"startingTime": "1", "admin.url": broker.admin_url}
    with connected(broker, name, **options) as asked, asked.probe(name) as probe:
        found = probe.first()
        # The two messages and the marker of the abort come before it.
        assert found is not None and (found.position, found.number) == (Position.of_message(kept), 3)
        assert probe.entries_before(kept.ledger_id()) == (3 if rolled_over else 0)
        assert resolve(name, asked._options, probe).start == found.position.entry_start


def test_broker_start_behind_marker_is_no_loss(broker: Broker, topic: NewTopic, client: Client) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    transaction = client.new_transaction()
    last = Position.of_message(producer.send(b"committed", txn=transaction))
    transaction.commit()
    marker = Position(last.ledger, last.entry + 1)
    offsets = {"startingOffsets": json.dumps({name: str(marker.after_entry)})}
    with connected(broker, name, **offsets, **{"admin.url": broker.admin_url}) as asked, asked.probe(name) as probe:
        wait_until(lambda: probe.last() == last, 10)
        assert probe.last_entry() == marker
        assert resolve(name, asked._options, probe).is_empty
    with (
        connected(broker, name, **offsets) as asked,
        asked.probe(name) as probe,
        pytest.raises(DataLoss, match="open transaction"),
    ):
        resolve(name, asked._options, probe)


def test_broker_open_transaction_holds_back(broker: Broker, topic: NewTopic, client: Client, publish: Publish) -> None:
    name = topic()
    broker.admin("PUT", name.replace("://", "/"))
    with connected(broker, name, **{"admin.url": broker.admin_url}) as asked, asked.probe(name) as probe:
        beginning = probe.empty_ledger()
        assert beginning is not None and beginning.entry == 0
        assert not probe.is_held_back(None, 1 << 41)
        producer = client.create_producer(name, batching_enabled=False)
        transaction = client.new_transaction()
        started = producer.send(b"in transaction", txn=transaction)
        assert probe.last() is None and probe.empty_ledger() is None
        assert Position(started.ledger_id(), started.entry_id()) == beginning
        assert probe.is_held_back(None, 1 << 41)
        # Long before its first message.
        assert not probe.is_held_back(None, 1000)
        publish(name, ["behind it"])
        transaction.commit()
        wait_until(lambda: not probe.is_held_back(None, 1 << 41), 10)
        last = probe.last()
        assert last is not None and last.entry == 1
        # Its marker is no message.
        assert not probe.is_held_back(last, 1 << 41)
    with connected(broker, name) as asked, asked.probe(name) as probe:
        assert probe.empty_ledger() is None and not probe.is_held_back(None, 1 << 41)


def test_broker_partitions_create_no_topic(broker: Broker, topic: NewTopic) -> None:
    name, many = topic("absent"), topic("many", partitions=2)
    with connected(broker, name) as asked:
        assert asked.partitions(many) == [f"{many}-partition-0", f"{many}-partition-1"]
        assert asked.partitions(f"{many}-partition-1") == [f"{many}-partition-1"]
        for unknown in (name, f"{many}-partition-2"):
            with pytest.raises(TopicNotFound):
                asked.partitions(unknown)
    assert name not in str(broker.admin("GET", "persistent/public/default"))


def test_broker_reader_names_have_prefix_and_end(broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, ["1"])
    with connected(broker, name, subscriptionPrefix="my-job") as asked:
        readers = [closing(asked.reader(name, MessageId.earliest)) for _ in range(2)]
        with readers[0], readers[1]:
            stats = broker.admin("GET", f"{name.replace('://', '/')}/stats")
            assert isinstance(stats, dict) and len(stats["subscriptions"]) == 2
            assert all(subscription.startswith("my-job") for subscription in stats["subscriptions"])
            assert not any(one["durable"] for one in stats["subscriptions"].values())
    broker.wait_unsubscribed(name)


def test_broker_closed_raises(broker: Broker, topic: NewTopic) -> None:
    asked = connected(broker, topic())
    asked.close()
    with pytest.raises(pulsar_native.AlreadyClosed):
        asked.partitions("t")
