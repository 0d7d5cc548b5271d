"""Topics with partitions: routing, one object over all of them, growth, and ids that find their way back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    AlreadyClosed,
    Client,
    ConsumerBusy,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    InvalidConfiguration,
    InvalidTopicName,
    Message,
    MessageId,
    NewMessage,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerBusy,
    ProducerQueueIsFull,
    PulsarException,
    RegexSubscriptionMode,
    Result,
    Timeout,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import commands_of
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

ReadAll = Callable[..., list[Any]]
Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest

# Which of 7 partitions the Java client sends a key to, by its default scheme and by Murmur3, and the official Python
# client 3.13.0 by the hash of its C++ library (recorded from real sends; it takes an empty key for none).
CHOICE: dict[str, tuple[int, ...]] = {
    "key1": (3, 6, 1),
    "test": (1, 4, 5),
    "my-key": (3, 6, 0),
    "中文": (0, 0, 1),
    "a": (6, 4, 4),
    "user-42": (4, 0, 0),
    "0": (6, 6, 2),
    "": (0, 0),
}


def test_get_topics_of_namespace_lists_partitions(client: Any, broker: Broker, namespace: Callable[[], str]) -> None:
    space = namespace()
    assert client.get_topics_of_namespace(space) == []
    broker.admin("PUT", f"persistent/{space}/many/partitions", 2)
    client.create_producer(f"persistent://{space}/one").close()
    live = client.create_producer(f"non-persistent://{space}/live")
    persistent = {f"persistent://{space}/{name}" for name in ("one", "many-partition-0", "many-partition-1")}
    assert set(client.get_topics_of_namespace(space)) == persistent
    everything = client.get_topics_of_namespace(space, RegexSubscriptionMode.AllTopics)
    assert set(everything) == persistent | {f"non-persistent://{space}/live"}
    live.close()


@pytest.mark.parametrize("name", ["", "public", "public/default/more", "persistent://public/default"])
def test_get_topics_of_namespace_wrong_name_raises(client: Any, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        client.get_topics_of_namespace(name)


@pytest.mark.proves("C19")
def test_names_of_the_partitions(client: Any, topic: NewTopic) -> None:
    for count in (1, 4):
        name = topic(partitions=count)
        assert client.get_topic_partitions(name) == [f"{name}-partition-{index}" for index in range(count)]
        assert client.get_partition_count(name) == count
    single = topic()
    assert client.get_topic_partitions(single) == [single]
    short = single.rpartition("/")[2]
    assert client.get_topic_partitions(short) == [single]


@pytest.mark.proves("C32", "C153")
@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_one_producer_and_consumer_per_partition(
    api: Api, client: Any, topic: NewTopic, stats: Stats, partitions: int
) -> None:
    name = topic(partitions=partitions)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    producer = client.create_producer(name, batching_enabled=False)
    ids = api.send_all(producer, [b"%d" % number for number in range(12)])
    names = [f"{name}-partition-{index}" for index in range(partitions)] or [name]
    for each in names:
        found = stats(each)
        assert len(found["publishers"]) == 1 and len(found["subscriptions"]["sub"]["consumers"]) == 1
    assert Counter(each.partition() for each in ids) == (
        dict.fromkeys(range(partitions), 12 // partitions) if partitions else {-1: 12}
    )
    # One object for the user, whatever is behind it.
    received = [consumer.receive(10_000) for _ in range(12)]
    assert sorted(message.message_id() for message in received) == sorted(ids)
    assert {message.topic_name() for message in received} == set(names)
    assert producer.is_connected() and consumer.is_connected() and consumer.topic() == producer.topic() == name


@pytest.mark.proves("C47")
class TestRouting:
    """Messages without a key over four partitions."""

    def test_round_robin(self, api: Api, client: Any, topic: NewTopic) -> None:
        producer = client.create_producer(topic(partitions=4), batching_enabled=False)
        order = [each.partition() for each in api.send_all(producer, [b"x"] * 20)]
        assert order == [(order[0] + number) % 4 for number in range(20)]

    def test_single_partition(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic(partitions=4)
        chosen = set()
        for _ in range(12):
            producer = client.create_producer(name, message_routing_mode=PartitionsRoutingMode.UseSinglePartition)
            (partition,) = {each.partition() for each in api.send_all(producer, [b"x"] * 4)}
            chosen.add(partition)
            producer.close()
        assert len(chosen) > 1, "each producer chooses by chance"

    def test_custom(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic(partitions=4)
        producer = client.create_producer(
            name,
            message_routing_mode=PartitionsRoutingMode.CustomPartition,
            message_router=lambda message, partitions: partitions - 1,
        )
        assert {each.partition() for each in api.send_all(producer, [b"x"] * 4)} == {3}
        with pytest.raises(InvalidConfiguration, match="message_router"):
            client.create_producer(name, message_routing_mode=PartitionsRoutingMode.CustomPartition)


@pytest.mark.proves("C49")
def test_a_router_sees_the_message_and_may_not_go_astray(
    api: Api, client: Any, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic(partitions=3)
    seen: list[tuple[Any, ...]] = []

    def route(message: Any, partitions: int) -> int:
        seen.append((message.data(), message.partition_key(), message.properties(), partitions))
        return int(message.properties()["to"])

    producer = client.create_producer(name, message_router=route)
    assert [
        api.send_all(producer, [b"x"], properties={"to": str(index)}, partition_key="k")[0].partition()
        for index in (2, 0)
    ] == [2, 0]
    assert seen == [(b"x", "k", {"to": "2"}, 3), (b"x", "k", {"to": "0"}, 3)]
    for astray in ("99", "-1", "3"):
        with pytest.raises(InvalidConfiguration, match=astray):
            producer.send(b"lost", properties={"to": astray})
    assert len(read_all(name)) == 2


@pytest.mark.proves("C48", "C86")
@pytest.mark.parametrize(
    "mode", [PartitionsRoutingMode.RoundRobinDistribution, PartitionsRoutingMode.UseSinglePartition]
)
@pytest.mark.parametrize("scheme", list(HashingScheme))
def test_a_key_goes_where_the_other_clients_send_it(
    api: Api, client: Any, topic: NewTopic, scheme: HashingScheme, mode: PartitionsRoutingMode
) -> None:
    name = topic(partitions=7)
    producer = client.create_producer(name, hashing_scheme=scheme, message_routing_mode=mode, batching_enabled=False)
    for key, choice in CHOICE.items():
        if scheme >= len(choice):
            continue
        places = api.send_all(producer, [b"x"] * 3, partition_key=key)
        assert {place.partition() for place in places} == {choice[scheme]}, key
    if scheme is HashingScheme.JavaStringHash:
        # Of a key of bytes Java hashes the base64 text.
        assert api.send_all(producer, [b"x"], partition_key=b"key1")[0].partition() == 2


@pytest.mark.proves("C45")
def test_the_limit_over_all_partitions_is_shared_out(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        topic(partitions=10),
        max_pending_messages_across_partitions=50,
        batching_enabled=False,
        message_router=lambda message, partitions: int(message.data()),
    )
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    outcomes = [api.enqueue(producer, b"%d" % partition) for partition in range(10) for _ in range(5)]
    for partition in range(10):
        with pytest.raises(ProducerQueueIsFull):
            api.enqueue_refused(producer, b"%d" % partition)
    through.wait_for(Command.SEND_RECEIPT, 50)
    through.release()
    assert {outcome.result(10)[0] for outcome in outcomes} == {Result.Ok}


@pytest.mark.proves("C84")
def test_a_partitioned_producer_is_made_whole_or_not(
    client: Any, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic(partitions=4)
    taken = client.create_producer(f"{name}-partition-2", producer_name="mine")
    with pytest.raises(ProducerBusy):
        client.create_producer(name, producer_name="mine")
    eventually(lambda: [len(stats(f"{name}-partition-{i}")["publishers"]) for i in range(4)] == [0, 0, 1, 0])
    taken.close()
    client.create_producer(name, producer_name="mine").close()


@pytest.mark.proves("C84")
def test_partitions_are_joined_when_first_used(
    api: Api, client: Any, broker: Broker, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic(partitions=4)

    def joined(count: int = 4) -> list[int]:
        return [len(stats(f"{name}-partition-{index}")["publishers"]) for index in range(count)]

    producer = client.create_producer(
        name,
        lazy_start_partitioned_producers=True,
        batching_enabled=False,
        message_router=lambda message, partitions: int(message.data().split()[0]),
        auto_update_partitions_interval_seconds=0.2,
    )
    assert joined() == [1, 0, 0, 0] and producer.is_connected()
    # The first of them have the partition joined and wait for that; nothing overtakes them.
    ids = api.send_all(producer, [b"2 %d" % number for number in range(50)])
    assert {place.partition() for place in ids} == {2} and ids == sorted(ids)
    assert joined() == [1, 0, 1, 0]
    assert producer.send(b"0").partition() == 0 and joined() == [1, 0, 1, 0]
    names = {stats(f"{name}-partition-{index}")["publishers"][0]["producerName"] for index in (0, 2)}
    assert names == {producer.producer_name()}
    broker.admin("POST", name.replace("://", "/") + "/partitions", 6)
    inner = (producer.target if api.name == "asyncio" else producer)._inner
    eventually(lambda: len(inner.children) == 6)
    assert joined(6) == [1, 0, 1, 0, 0, 0]
    assert producer.send(b"5").partition() == 5
    producer.flush()
    producer.close()
    eventually(lambda: joined(6) == [0] * 6)
    with pytest.raises(AlreadyClosed):
        producer.send(b"3")
    # Others want the topic to themselves: they join everywhere at once.
    alone = client.create_producer(
        name, lazy_start_partitioned_producers=True, access_mode=ProducerAccessMode.Exclusive
    )
    assert joined(6) == [1] * 6
    alone.close()


@pytest.mark.proves("C56", "C84")
def test_a_partition_joined_late_goes_on_from_the_ids_it_has(
    api: Api, client: Any, topic: NewTopic, deduplicating: str, eventually: Eventually
) -> None:
    name = topic(partitions=2, namespace=deduplicating)
    options: dict[str, Any] = {"producer_name": "mine", "message_router": lambda message, partitions: 1}
    before = client.create_producer(name, **options)
    api.send_all(before, [b"0", b"1", b"2"])
    before.close()
    producer = client.create_producer(name, lazy_start_partitioned_producers=True, **options)
    assert all(place.entry_id() >= 0 for place in api.send_all(producer, [b"3", b"4"]))
    assert producer.last_sequence_id() == 4


@pytest.mark.proves("C84")
def test_a_partition_that_cannot_be_joined_fails_its_messages_only(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic(partitions=3)
    taken = client.create_producer(f"{name}-partition-2", producer_name="mine")
    producer = client.create_producer(
        name,
        producer_name="mine",
        lazy_start_partitioned_producers=True,
        message_router=lambda message, partitions: int(message.data()),
    )
    for _ in range(2):
        outcomes = [api.enqueue(producer, b"2") for _ in range(3)]
        assert {outcome.result(10)[0] for outcome in outcomes} == {Result.ProducerBusy}
    assert producer.send(b"1").partition() == 1 and producer.is_connected()
    taken.close()
    assert producer.send(b"2").partition() == 2


@pytest.mark.proves("C84", "C87")
def test_closing_while_a_partition_is_being_joined(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, operation_timeout_seconds=3)
    options: dict[str, Any] = {
        "lazy_start_partitioned_producers": True,
        "message_router": lambda message, partitions: 1,
    }
    for held in (True, False):
        producer = client.create_producer(topic(partitions=2), max_pending_messages=3, **options)
        if held:
            through.drop(Command.PRODUCER_SUCCESS, TO_CLIENT)
        outcomes = [api.enqueue(producer, b"x") for _ in range(3)]
        if held:
            with pytest.raises(ProducerQueueIsFull):
                api.enqueue_refused(producer, b"x")
        producer.close()
        results = {outcome.result(10)[0] for outcome in outcomes}
        assert results == ({Result.Timeout} if held else {Result.Ok})


@pytest.mark.proves("C155")
def test_a_topic_is_subscribed_whole_or_not(client: Any, topic: NewTopic, stats: Stats, eventually: Eventually) -> None:
    name = topic(partitions=3)
    client.subscribe(f"{name}-partition-1", "sub")
    with pytest.raises(ConsumerBusy):
        client.subscribe(name, "sub")

    def consumers() -> list[int]:
        found = [stats(f"{name}-partition-{i}")["subscriptions"].get("sub", {"consumers": []}) for i in range(3)]
        return [len(each["consumers"]) for each in found]

    eventually(lambda: consumers() == [0, 1, 0])


@pytest.mark.proves("C59", "C108")
def test_new_partitions_are_noticed(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic(partitions=2)
    options = {"auto_update_partitions_interval_seconds": 0.2}
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, **options)
    producer = client.create_producer(name, batching_enabled=False, **options)
    before = api.send_all(producer, [b"before"] * 8)
    broker.admin("POST", name.replace("://", "/") + "/partitions", 4)

    sent = list(before)
    deadline = time.monotonic() + 15
    while {each.partition() for each in sent} != {0, 1, 2, 3}:
        assert time.monotonic() < deadline, "the producer never went to the new partitions"
        sent += api.send_all(producer, [b"during"] * 4)
    received = [consumer.receive(10_000) for _ in sent]
    assert sorted(message.message_id() for message in received) == sorted(sent)
    consumer.acknowledge(received)


@pytest.mark.proves("C108")
def test_growth_delivers_when_all_have_joined(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic(partitions=1)
    parts = [f"{name}-partition-{index}" for index in range(3)]
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, auto_update_partitions_interval_seconds=0.2
    )
    # The broker's answer about one of the new partitions is late; the other one's message arrives.
    through.hold(Command.SUCCESS, TO_CLIENT, times=1)
    broker.admin("POST", name.replace("://", "/") + "/partitions", 3)
    for part in parts[1:]:
        client.create_producer(part).send(b"x")
    through.wait_for(Command.MESSAGE)
    eventually(lambda: through.held == 1)
    with pytest.raises(Timeout):
        consumer.receive(200)
    through.release()
    for _ in parts[1:]:
        consumer.acknowledge(consumer.receive(10_000).message_id())
    eventually(lambda: [stats(part)["subscriptions"]["sub"]["msgBacklog"] for part in parts] == [0] * 3)


@pytest.mark.proves("C94")
def test_the_prefetch_is_shared_among_the_partitions(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    through = relay(broker.service_url)
    api.client(through.service_url).subscribe(
        topic(partitions=20), "sub", max_total_receiver_queue_size_across_partitions=100
    )
    through.wait_for(Command.FLOW, 20)
    assert [each.flow.messagePermits for each in commands_of(through, Command.FLOW)] == [5] * 20


@pytest.mark.proves("C154")
def test_a_busy_partition_does_not_starve_the_others(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic(partitions=5)
    hot = client.create_producer(f"{name}-partition-0", batching_enabled=True)
    api.send_all(hot, [b"hot"] * 900)
    for index in range(1, 5):
        api.send_all(client.create_producer(f"{name}-partition-{index}"), [b"cold"] * 3)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST, receiver_queue_size=1000)
    # All is there before the first is taken, so that the order is the queue's choice and not the network's.
    target = consumer.target if api.name == "asyncio" else consumer
    eventually(lambda: all(child.may_have_more() for child in target._inner.children))
    received = [consumer.receive(10_000) for _ in range(60)]
    cold = [message for message in received if message.data() == b"cold"]
    assert len(cold) == 12, "each cold partition had its turns"


@pytest.mark.proves("C157")
def test_ids_find_their_partition(
    api: Api, client: Any, broker: Broker, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name, other = topic("split", partitions=3), topic("whole")
    consumer = client.subscribe([name, other], "sub", initial_position=EARLIEST)
    producer = client.create_producer(name, batching_enabled=False)
    api.send_all(producer, [b"x"] * 9)
    api.send_all(client.create_producer(other), [b"y"] * 3)
    received = [consumer.receive(10_000) for _ in range(12)]
    ids = [message.message_id() for message in received]
    assert {each.topic_name() for each in ids} == {other, *(f"{name}-partition-{index}" for index in range(3))}
    # One at a time, a list of several topics, and one that crossed a process boundary as bytes.
    consumer.acknowledge(received[0])
    consumer.acknowledge(ids[1:11])
    consumer.acknowledge(MessageId.deserialize(ids[11].serialize(), ids[11].topic_name()))
    parts = [other, *(f"{name}-partition-{index}" for index in range(3))]
    eventually(lambda: [stats(each)["subscriptions"]["sub"]["msgBacklog"] for each in parts] == [0] * 4)
    stranger = MessageId(0, 1, 1, -1, topic="persistent://public/default/not-subscribed")
    for use in (consumer.acknowledge, consumer.negative_acknowledge, consumer.seek):
        with pytest.raises(PulsarException, match="not-subscribed"):
            use(stranger)


@pytest.mark.proves("C159")
def test_seek_over_partitions(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=3)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    producer = client.create_producer(name, batching_enabled=False)
    first = api.send_all(producer, [b"%d" % number for number in range(9)])
    time.sleep(0.05)  # the publish times of the two halves differ
    between = time.time_ns() // 1_000_000
    time.sleep(0.05)
    second = api.send_all(producer, [b"%d" % number for number in range(9, 18)])

    def taken(count: int) -> list[Message]:
        messages = [consumer.receive(10_000) for _ in range(count)]
        with pytest.raises(PulsarException, match="300"):
            consumer.receive(300)
        return messages

    taken(18)
    consumer.seek(MessageId.earliest)
    assert sorted(message.message_id() for message in taken(18)) == sorted(first + second)
    consumer.seek(between)
    assert sorted(message.message_id() for message in taken(9)) == sorted(second)
    consumer.seek(MessageId.latest)
    taken(0)
    # A position goes to the partition it names; the others stay where they are.
    target = first[3]
    consumer.seek(target)
    own = sorted(each for each in first + second if each.partition() == target.partition() and each > target)
    assert [message.message_id() for message in taken(len(own))] == own


def test_unsubscribe_and_close_reach_every_partition(client: Any, topic: NewTopic, stats: Stats) -> None:
    name = topic(partitions=4)
    parts = [f"{name}-partition-{index}" for index in range(4)]
    client.subscribe(name, "stays").close()
    client.subscribe(name, "goes").unsubscribe()
    for part in parts:
        (subscription,) = stats(part)["subscriptions"].items()
        assert subscription[0] == "stays" and subscription[1]["consumers"] == []


def test_waiting_over_partitions_wakes_for_any(plain_client: Client, topic: NewTopic) -> None:
    name = topic(partitions=4)
    consumer = plain_client.subscribe(name, "sub")
    producers = [plain_client.create_producer(f"{name}-partition-{index}") for index in range(4)]
    got: list[bytes] = []
    done = threading.Thread(target=lambda: got.extend(consumer.receive(10_000).data() for _ in range(4)))
    done.start()
    for index in (3, 1, 2, 0):
        producers[index].send(b"%d" % index)
    done.join(15)
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


def test_a_partition_is_a_topic_of_its_own(api: Api, broker: Broker, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=2)
    place = client.create_producer(f"{name}-partition-1").send(b"x")
    assert place.partition() == 1
    reader = client.create_reader(f"{name}-partition-1", MessageId.earliest)
    assert reader.read_next(10_000).message_id() == place


def test_the_parts_of_one_producer_share_its_name(client: Any, topic: NewTopic, stats: Stats) -> None:
    name = topic(partitions=3)
    producer = client.create_producer(name)
    names = {stats(f"{name}-partition-{index}")["publishers"][0]["producerName"] for index in range(3)}
    assert names == {producer.producer_name()}


def test_the_frames_of_partitions_share_a_connection(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(topic(partitions=4), batching_enabled=False)
    api.send_all(producer, [b"x"] * 8)
    assert through.count(Command.SEND, TO_BROKER) == 8 and through.count(Command.PRODUCER) == 4
    assert through.accepted <= 2


@pytest.mark.proves("C84")
def test_a_bulk_send_joins_partitions_as_it_needs_them(client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic(partitions=3)
    producer = client.create_producer(name, batching_enabled=True, lazy_start_partitioned_producers=True)
    rows = [NewMessage(content=b"%d" % number, partition_key=str(number % 10)) for number in range(500)]
    ids = producer.send_many(rows)
    assert len(ids) == 500 and {place.partition() for place in ids} == {0, 1, 2}
    assert sorted(int(message.data()) for message in read_all(name)) == list(range(500))
