"""Transactions of Java's and of ours meet in the same topics and subscriptions, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_native import ConsumerType, InitialPosition, Timeout, TransactionConflict
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.java_peer import JavaClient, JavaError, JavaPeer

pytestmark = pytest.mark.proves("N7")

EARLIEST = InitialPosition.Earliest


@pytest.fixture
def java_in_transactions(java_peer: JavaPeer, broker: Broker) -> Iterator[JavaClient]:
    """Give a Java client that takes part in transactions."""
    java_peer.start()
    made = java_peer.client(broker.service_url, transactions=True)
    yield made
    made.release()


def take(consumer: Any, count: int) -> list[bytes]:
    """Receive so many with ours."""
    return [consumer.receive(20_000).data() for _ in range(count)]


def test_java_reads_what_we_committed(api: Api, client: Any, java_in_transactions: JavaClient, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True)
    kept, gone = client.new_transaction(), client.new_transaction()
    for transaction in (kept, gone):
        text = b"kept" if transaction is kept else b"gone"
        api.send_all(producer, [text + b"%d" % number for number in range(3)], txn=transaction)
    api.send_all(producer, [b"plain"])
    consumer = java_in_transactions.consumer(name)
    assert consumer.poll(timeout_ms=500) == []
    gone.abort()
    kept.commit()
    assert [message.data for message in consumer.receive(4)] == [b"kept0", b"kept1", b"kept2", b"plain"]
    assert consumer.poll(timeout_ms=300) == []
    # The metadata tell the transaction, too.
    metadata = pb.MessageMetadata.FromString(java_in_transactions.raw(name, 1)[0].metadata_bytes)
    assert (metadata.txnid_most_bits, metadata.txnid_least_bits) == tuple(kept.txn_id())


def test_we_read_what_java_committed(api: Api, client: Any, java_in_transactions: JavaClient, topic: NewTopic) -> None:
    name = topic()
    producer = java_in_transactions.producer(name)
    kept, gone = java_in_transactions.begin(), java_in_transactions.begin()
    producer.send_all([b"kept0", b"kept1"], txn=kept)
    producer.send_all([b"gone0", b"gone1"], txn=gone)
    producer.send(b"plain")
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    with pytest.raises(Timeout):
        consumer.receive(500)
    kept.commit()
    gone.abort()
    assert take(consumer, 3) == [b"kept0", b"kept1", b"plain"]
    with pytest.raises(Timeout):
        consumer.receive(300)


def test_one_subscription_of_both(api: Api, client: Any, java_in_transactions: JavaClient, topic: NewTopic) -> None:
    """What is acknowledged in an open transaction of the one is nothing for the other, until it is aborted."""
    name = topic()
    api.send_all(client.create_producer(name, batching_enabled=True), [b"%d" % number for number in range(10)])
    ours = client.subscribe(name, "sub", ConsumerType.Shared, initial_position=EARLIEST, batch_index_ack_enabled=True)
    messages = [ours.receive(20_000) for _ in range(10)]
    undone = client.new_transaction()
    ours.acknowledge(messages[:5], txn=undone)
    theirs = java_in_transactions.consumer(name, "sub", subscriptionType="Shared", batchIndexAckEnabled=True)
    txn = java_in_transactions.begin()
    # An id of a message of ours, acknowledged by Java in its transaction, conflicts with ours.
    with pytest.raises(JavaError):
        theirs.acknowledge([messages[4].message_id().serialize()], "each", txn)
    txn.abort()
    ours.close()
    # Those that are pending do not come to Java, the others do.
    found = theirs.receive(5)
    assert sorted(message.data for message in found) == [b"%d" % number for number in range(5, 10)]
    assert theirs.poll(timeout_ms=500) == []
    kept = java_in_transactions.begin()
    # Not the last one: of an entry of which everything is pending, the broker (4.2.4) sees no conflict any more.
    found.sort(key=lambda message: message.data or b"")
    theirs.acknowledge(found[:4], "list", kept)
    ours = client.subscribe(name, "sub", ConsumerType.Shared, batch_index_ack_enabled=True)
    other = client.new_transaction()
    with pytest.raises(TransactionConflict):
        ours.acknowledge(messages[8], txn=other)
    other.abort()
    kept.commit()
    theirs.close()
    undone.abort()
    # Of the batch all that is open comes again, so the last one may come twice.
    found_here: set[bytes] = set()
    while len(found_here) < 6:
        found_here.add(ours.receive(20_000).data())
    assert found_here == {b"0", b"1", b"2", b"3", b"4", b"9"}


def test_from_java_to_us_and_back(api: Api, client: Any, java_in_transactions: JavaClient, topic: NewTopic) -> None:
    """A pipeline of two transactional steps, the one in Java, the other here."""
    source, middle, target = topic("in"), topic("middle"), topic("out")
    java_in_transactions.producer(source).send_all([b"%d" % number for number in range(6)])
    theirs = java_in_transactions.consumer(source, "step", subscriptionType="Shared")
    forward = java_in_transactions.producer(middle)
    for commit in (False, True):
        found = theirs.receive(6)
        txn = java_in_transactions.begin()
        forward.send_all([message.data for message in found], txn=txn)
        theirs.acknowledge(found, "list", txn)
        (txn.commit if commit else txn.abort)()
    ours = client.subscribe(middle, "step", ConsumerType.Failover, initial_position=EARLIEST)
    back = client.create_producer(target, batching_enabled=True)
    for commit in (False, True):
        messages = [ours.receive(20_000) for _ in range(6)]
        transaction = client.new_transaction()
        api.send_all(back, [message.data() * 2 for message in messages], txn=transaction)
        ours.acknowledge_cumulative(messages[-1], txn=transaction)
        (transaction.commit if commit else transaction.abort)()
    found = java_in_transactions.consumer(target).receive(6)
    assert sorted(message.data for message in found) == [b"%d%d" % (number, number) for number in range(6)]
    assert theirs.poll(timeout_ms=300) == []
    with pytest.raises(Timeout):
        ours.receive(300)
