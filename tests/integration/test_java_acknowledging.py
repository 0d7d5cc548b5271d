"""One subscription, members or successors of both kinds: acknowledgements, positions and redeliveries they agree on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pulsar_native import Client, ConsumerType, InitialPosition, MessageId, Timeout
from support.apis import Api
from support.brokers import NewTopic
from support.java_peer import JavaClient, JavaMessage, JavaSource

EARLIEST = InitialPosition.Earliest
# Java's names.
KIND = {
    ConsumerType.Exclusive: "Exclusive",
    ConsumerType.Shared: "Shared",
    ConsumerType.Failover: "Failover",
    ConsumerType.KeyShared: "Key_Shared",
}
Eventually = Callable[..., Any]


@pytest.fixture
def numbers(api: Api, client: Any, topic: NewTopic) -> tuple[str, list[MessageId]]:
    """Give a topic with 0 to 9 in one batch of ours, 10 to 13 single, and the ids."""
    name = topic()
    batch = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    ids = api.send_all(batch, [b"%d" % number for number in range(10)])
    ids += api.send_all(
        client.create_producer(name, batching_enabled=False), [b"%d" % number for number in range(10, 14)]
    )
    return name, ids


@pytest.fixture
def java_numbers(java: JavaClient, topic: NewTopic) -> tuple[str, list[MessageId]]:
    """Give the same, published by Java."""
    name = topic()
    ids = java.producer(name, batchingMaxPublishDelayMicros=60_000_000).send_all([b"%d" % each for each in range(10)])
    ids += java.producer(name, batchingEnabled=False).send_all([b"%d" % each for each in range(10, 14)])
    return name, [MessageId.deserialize(place) for place in ids]


def take(consumer: Any, count: int) -> list[Any]:
    """Receive so many with ours."""
    return [consumer.receive(20_000) for _ in range(count)]


def left_by_us(client: Any, name: str, kind: ConsumerType = ConsumerType.Exclusive) -> list[int]:
    """Return what the subscription "sub" still gives to us."""
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST)
    found: list[int] = []
    try:
        while True:
            # Standing by, a Failover consumer gets nothing for its first second.
            found.append(int(consumer.receive(500 if found else 3000).data()))
    except Timeout:
        consumer.close()
        return found


def left_by_java(java: JavaClient, name: str, kind: ConsumerType, expected: Sequence[int]) -> None:
    """Assert what the subscription "sub" still gives to Java, and that it is all."""
    consumer = java.consumer(name, "sub", subscriptionType=KIND[kind])
    assert [int(message.data or b"") for message in consumer.receive(len(expected))] == list(expected)
    assert not consumer.poll(timeout_ms=300)
    consumer.close()


@pytest.mark.proves("C135", "C112")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=lambda kind: kind.name)
def test_java_gets_what_we_left_of_a_batch(
    client: Any, java: JavaClient, numbers: tuple[str, list[MessageId]], kind: ConsumerType
) -> None:
    name, _ = numbers
    ours = client.subscribe(name, "sub", kind, initial_position=EARLIEST, batch_index_ack_enabled=True)
    messages = take(ours, 14)
    ours.acknowledge(messages[0])
    ours.acknowledge([messages[3], messages[9].message_id(), messages[11]])
    ours.close()
    left_by_java(java, name, kind, [1, 2, 4, 5, 6, 7, 8, 10, 12, 13])


@pytest.mark.proves("C135")
def test_without_batch_index_java_gets_the_batch_whole_or_not_at_all(
    client: Any, java: JavaClient, numbers: tuple[str, list[MessageId]]
) -> None:
    name, _ = numbers
    ours = client.subscribe(name, "sub", ConsumerType.Shared, initial_position=EARLIEST)
    messages = take(ours, 14)
    ours.acknowledge(messages[:9])
    ours.acknowledge(messages[12])
    ours.close()
    left_by_java(java, name, ConsumerType.Shared, [*range(10), 10, 11, 13])
    again = client.subscribe(name, "sub", ConsumerType.Shared)
    again.acknowledge(take(again, 13)[:10])
    again.close()
    left_by_java(java, name, ConsumerType.Shared, [10, 11, 13])


@pytest.mark.proves("C135", "C112", "C129")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=lambda kind: kind.name)
@pytest.mark.parametrize("how", ["each", "list"])
def test_we_get_what_java_left_of_a_batch(
    client: Any, java: JavaClient, java_numbers: tuple[str, list[MessageId]], kind: ConsumerType, how: str
) -> None:
    name, _ = java_numbers
    theirs = java.consumer(name, "sub", subscriptionType=KIND[kind])
    messages = theirs.receive(14)
    theirs.acknowledge([messages[0], messages[3], messages[9], messages[11]], how)
    theirs.close()
    assert left_by_us(client, name, kind) == [1, 2, 4, 5, 6, 7, 8, 10, 12, 13]


@pytest.mark.proves("C136")
def test_cumulative_in_a_batch_is_continued_by_the_other(
    client: Any, java: JavaClient, numbers: tuple[str, list[MessageId]]
) -> None:
    name, _ = numbers
    kind = ConsumerType.Exclusive
    ours = client.subscribe(name, "sub", kind, initial_position=EARLIEST, batch_index_ack_enabled=True)
    ours.acknowledge_cumulative(take(ours, 14)[3])
    ours.close()
    left_by_java(java, name, kind, range(4, 14))
    theirs = java.consumer(name, "sub", subscriptionType=KIND[kind])
    theirs.acknowledge([theirs.receive(4)[3]], "cumulative")
    theirs.close()
    assert left_by_us(client, name, kind) == list(range(8, 14))


@pytest.mark.proves("C170", "C134")
def test_each_acknowledges_by_the_others_ids(
    client: Any, java: JavaClient, numbers: tuple[str, list[MessageId]], stats: Any, eventually: Eventually
) -> None:
    """Ids as bytes, as another process has them: the one receives, the other acknowledges."""
    name, ids = numbers
    theirs = java.consumer(name, "one", subscriptionType="Shared")
    ours = client.subscribe(name, "one", ConsumerType.Shared, batch_index_ack_enabled=True)
    # Java acknowledges by ids it never received: those of our receipts.
    theirs.acknowledge([place.serialize() for place in (*ids[:10:2], ids[10])])
    ours.acknowledge([MessageId.deserialize(place.serialize()) for place in (*ids[1:10:2], ids[11])])
    eventually(lambda: stats(name)["subscriptions"]["one"]["msgBacklog"] == 2)


@pytest.mark.proves("C112", "C135", "C170")
def test_members_of_both_kinds_share_a_batch_by_ids_as_bytes(
    client: Any, java: JavaClient, java_numbers: tuple[str, list[MessageId]]
) -> None:
    """Java holds the messages; we acknowledge some of them by the bytes it tells, it others; then the reverse."""
    name, _ = java_numbers
    kind = ConsumerType.Shared
    theirs = java.consumer(name, "sub", subscriptionType=KIND[kind])
    messages = theirs.receive(14)
    ours = client.subscribe(name, "sub", kind, batch_index_ack_enabled=True, ack_receipt_enabled=True)
    ours.acknowledge([MessageId.deserialize(messages[number].id) for number in (0, 2, 4, 6, 8, 10)])
    theirs.acknowledge([messages[number] for number in (1, 3, 11)])
    theirs.close()
    held = take(ours, 5)
    assert [int(message.data()) for message in held] == [5, 7, 9, 12, 13]
    theirs = java.consumer(name, "sub", subscriptionType=KIND[kind])
    theirs.acknowledge([held[0].message_id().serialize(), held[3].message_id().serialize()])
    theirs.close()
    ours.acknowledge(held[4])
    ours.close()
    left_by_java(java, name, kind, [7, 9])


@pytest.mark.proves("C112", "C136", "C170")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover], ids=lambda kind: kind.name)
def test_a_successor_acknowledges_cumulatively_by_ids_as_bytes(
    client: Any, java: JavaClient, java_numbers: tuple[str, list[MessageId]], kind: ConsumerType
) -> None:
    """What one received, the next one acknowledges up to the middle of a batch, without having received it."""
    name, _ = java_numbers
    theirs = java.consumer(name, "sub", subscriptionType=KIND[kind])
    fourth = theirs.receive(14)[3].id
    theirs.close()
    ours = client.subscribe(name, "sub", kind, batch_index_ack_enabled=True, ack_receipt_enabled=True)
    ours.acknowledge_cumulative(MessageId.deserialize(fourth))
    eighth = take(ours, 4)[3]
    assert int(eighth.data()) == 7
    ours.close()
    left_by_java(java, name, kind, range(4, 14))
    theirs = java.consumer(name, "sub", subscriptionType=KIND[kind])
    theirs.acknowledge([eighth.message_id().serialize()], "cumulative")
    theirs.close()
    assert left_by_us(client, name, kind) == list(range(8, 14))


@pytest.mark.proves("C166")
@pytest.mark.parametrize("index", [0, 1, 9, 10, 12])
def test_seek_goes_to_the_same_message(
    client: Any, java: JavaClient, java_numbers: tuple[str, list[MessageId]], index: int
) -> None:
    """Each seeks to an id of the other's, into a batch too; both continue with that message."""
    name, ids = java_numbers
    ours = client.subscribe(name, "ours", start_message_id_inclusive=True, initial_position=EARLIEST)
    theirs = java.consumer(name, "theirs", inclusive=True)
    at_ours = take(ours, 14)[index].message_id()
    at_theirs = MessageId.deserialize(theirs.receive(14)[index].id)
    assert at_ours == at_theirs == ids[index]
    ours.seek(at_theirs)
    theirs.seek(at_ours.serialize())
    expected = list(range(index, 14))
    assert [int(message.data()) for message in take(ours, len(expected))] == expected
    assert [int(message.data or b"") for message in theirs.receive(len(expected))] == expected


@pytest.mark.proves("C167")
def test_seek_to_a_time_goes_to_the_same_message(api: Api, client: Any, java: JavaClient, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    for number in range(5):
        api.send_all(producer, [b"%d" % number])
        # Publish times differ by a millisecond at least.
        began = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 <= began:
            time.sleep(0.001)
    ours = client.subscribe(name, "ours", initial_position=EARLIEST)
    theirs = java.consumer(name, "theirs")
    published = [message.publish_time for message in theirs.receive(5)]
    assert [message.publish_timestamp() for message in take(ours, 5)] == published
    for target, expected in ((published[2], 2), (published[3] - 1, 3), (0, 0)):
        ours.seek(target)
        theirs.seek(target)
        assert (int(ours.receive(20_000).data()), int(theirs.receive()[0].data or b"")) == (expected, expected)


@pytest.mark.proves("C113", "C165", "C168")
@pytest.mark.parametrize("inclusive", [True, False], ids=["inclusive", "exclusive"])
def test_readers_start_at_the_same_message(
    client: Any, java: JavaClient, numbers: tuple[str, list[MessageId]], inclusive: bool
) -> None:
    name, ids = numbers
    for index, place in enumerate(ids):
        expected = list(range(index if inclusive else index + 1, 14))
        ours = client.create_reader(name, place, start_message_id_inclusive=inclusive)
        theirs = java.reader(name, place.serialize(), inclusive=inclusive)
        assert ours.has_message_available() == theirs.has_message() == bool(expected)
        if expected:
            assert int(ours.read_next(20_000).data()) == int(theirs.receive()[0].data or b"") == expected[0]
        assert ours.get_last_message_id() == MessageId.deserialize(theirs.last_ids()[0]) == ids[-1]
        ours.close()
        theirs.close()


@pytest.mark.proves("C148", "C146")
def test_redeliveries_are_counted_across_both(
    api: Api, client: Any, java: JavaClient, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    ours = client.subscribe(name, "sub", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    theirs = java.consumer(name, "sub", subscriptionType="Shared", negativeAckRedeliveryDelayMicros=100_000)
    api.send_all(client.create_producer(name, batching_enabled=False), [b"%d" % number for number in range(6)])
    counts: dict[int, list[int]] = {number: [] for number in range(6)}
    seen: set[str] = set()

    def pass_on() -> bool:
        for message in theirs.poll(6, timeout_ms=50):
            counts[int(message.data or b"")].append(message.redelivery_count)
            seen.add("theirs")
            finish(theirs, message, counts[int(message.data or b"")])
        try:
            ours_got = ours.receive(50)
        except Timeout:
            return all(len(told) == 4 for told in counts.values())
        told = counts[int(ours_got.data())]
        told.append(ours_got.redelivery_count())
        seen.add("ours")
        if len(told) < 4:
            ours.negative_acknowledge(ours_got)
        else:
            ours.acknowledge(ours_got)
        return False

    def finish(consumer: JavaSource, message: JavaMessage, told: list[int]) -> None:
        if len(told) < 4:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge([message])

    eventually(pass_on, seconds=40)
    assert all(told == [0, 1, 2, 3] for told in counts.values()), counts
    assert seen == {"ours", "theirs"}


@pytest.mark.proves("C90")
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours first", "theirs first"])
def test_a_failover_consumer_of_the_other_kind_takes_over(
    plain_client: Client, java: JavaClient, topic: NewTopic, ours_first: bool
) -> None:
    # On a partition the first by name is active; on a topic without, a hash of the topic's name decides.
    name = topic(partitions=1)

    def subscribe_both() -> tuple[Any, JavaSource]:
        # The active one subscribes first, or the other would be active for a second and get what is sent then.
        theirs = None if ours_first else java.consumer(name, "sub", subscriptionType="Failover", consumerName="a")
        ours = plain_client.subscribe(
            name, "sub", ConsumerType.Failover, initial_position=EARLIEST, consumer_name="a" if ours_first else "b"
        )
        return ours, theirs or java.consumer(name, "sub", subscriptionType="Failover", consumerName="b")

    ours, theirs = subscribe_both()
    producer = plain_client.create_producer(name, batching_enabled=False)
    for number in range(6):
        producer.send(b"%d" % number)
    if ours_first:
        ours.acknowledge(take(ours, 6)[:3])
        ours.close()
    else:
        theirs.acknowledge(theirs.receive(6)[:3])
        theirs.close()
    # After the second that the hand-over takes; what was delivered before may wait for a new message:
    # broker-behaviour.md#failover-stall.
    time.sleep(1.5)
    producer.send(b"6")
    taken = theirs.receive(4) if ours_first else take(ours, 4)
    data = [message.data for message in taken] if ours_first else [message.data() for message in taken]
    assert data == [b"3", b"4", b"5", b"6"]
