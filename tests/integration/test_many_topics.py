"""One consumer or reader over several topics on a real broker: subscribing twice, control of all parts, growth."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    AlreadyClosed,
    Client,
    ConsumerBusy,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    InvalidTopicName,
    Message,
    MessageId,
    NotConnected,
    OperationNotSupported,
    PulsarException,
    Timeout,
)
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.frames import FrameDecoder, encode_command
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import commands_of
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest


def publish(client: Any, name: str, *contents: bytes) -> list[MessageId]:
    """Publish entries of one message each."""
    producer = client.create_producer(name, batching_enabled=False)
    try:
        return [producer.send(content) for content in contents]
    finally:
        producer.close()


def take(consumer: Any, count: int) -> list[Message]:
    """Receive so many messages, and find that no more come."""
    messages = [consumer.receive(10_000) for _ in range(count)]
    with pytest.raises(Timeout):
        consumer.receive(100)
    return messages


@pytest.mark.proves("C88")
def test_several_topics_of_several_namespaces(
    api: Api, client: Any, topic: NewTopic, namespace: Callable[[], str], stats: Stats
) -> None:
    names = [topic("here"), topic("there", namespace=namespace()), topic("split", partitions=2)]
    consumer = client.subscribe([*names, names[0]], "sub", initial_position=EARLIEST)
    assert consumer.topics() == names and consumer.topic() == ",".join(names)
    # A name given twice is one topic: a second Exclusive consumer would have been refused.
    assert len(stats(names[0])["subscriptions"]["sub"]["consumers"]) == 1
    for name in names:
        publish(client, name, name.encode(), name.encode())
    assert sorted(message.data().decode() for message in take(consumer, 6)) == sorted(names * 2)
    with pytest.raises(OperationNotSupported, match="get_last_message_ids"):
        consumer.get_last_message_id()
    assert len(consumer.get_last_message_ids()) == 4


@pytest.mark.proves("C156")
@pytest.mark.parametrize("kind", list(ConsumerType))
def test_subscribing_twice_with_one_client(
    api: Api, client: Any, topic: NewTopic, stats: Stats, kind: ConsumerType
) -> None:
    """As in the Java client 4.2.4 and the official one: two consumers, or ConsumerBusy from the broker."""
    name = topic()
    first = client.subscribe(name, "sub", kind, initial_position=EARLIEST)
    if kind is ConsumerType.Exclusive:
        with pytest.raises(ConsumerBusy):
            client.subscribe(name, "sub", kind)
        # The refused one took nothing along, also in the list of several topics.
        with pytest.raises(ConsumerBusy):
            client.subscribe([topic("other"), name], "sub", kind)
        publish(client, name, b"x")
        assert first.receive(10_000).data() == b"x"
        first.close()
        assert client.subscribe(name, "sub", kind).receive(10_000).data() == b"x"
        return
    with pytest.raises(ConsumerBusy):
        client.subscribe(name, "sub", ConsumerType.Exclusive)
    second = client.subscribe(name, "sub", kind)
    assert len(stats(name)["subscriptions"]["sub"]["consumers"]) == 2
    # Closing the one leaves the other: nothing is counted.
    first.close()
    with pytest.raises(AlreadyClosed):
        first.receive(100)
    publish(client, name, b"x")
    message = second.receive(10_000)
    second.acknowledge(message)
    assert message.data() == b"x" and len(stats(name)["subscriptions"]["sub"]["consumers"]) == 1


@pytest.mark.proves("C160")
def test_pause_and_resume_reach_every_partition(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic, stats: Stats
) -> None:
    name = topic(partitions=4)
    parts = [f"{name}-partition-{index}" for index in range(4)]
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(name, "sub", initial_position=EARLIEST, receiver_queue_size=4)

    def flows() -> int:
        return through.count(Command.FLOW, TO_BROKER)

    through.wait_for(Command.FLOW, 4)
    consumer.pause()
    for part in parts:
        publish(client, part, *[b"%d" % number for number in range(10)])
    # What was granted before still comes, and not one more.
    assert len(take(consumer, 16)) == 16
    assert flows() == 4
    assert [stats(part)["subscriptions"]["sub"]["consumers"][0]["availablePermits"] for part in parts] == [0] * 4
    consumer.resume()
    assert len(take(consumer, 24)) == 24 and flows() >= 8


@pytest.mark.proves("C160")
def test_a_paused_consumer_asks_for_nothing_after_a_reconnect_either(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    through = relay(broker.service_url)
    consumer = api.client(through.service_url, starting_backoff_interval_ms=20).subscribe(
        name, "sub", initial_position=EARLIEST
    )
    consumer.pause()
    through.cut()
    eventually(lambda: through.count(Command.SUBSCRIBE) == 2 and consumer.is_connected())
    publish(client, name, b"x")
    with pytest.raises(Timeout):
        consumer.receive(300)
    consumer.resume()
    assert consumer.receive(10_000).data() == b"x"


@pytest.mark.proves("C160")
def test_unsubscribe_and_close_reach_every_part(
    api: Api, client: Any, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    split, single = topic(partitions=4), topic()
    parts = [single, *(f"{split}-partition-{index}" for index in range(4))]

    def found(subscription: str) -> list[int]:
        each = [stats(part)["subscriptions"].get(subscription) for part in parts]
        return [-1 if one is None else len(one["consumers"]) for one in each]

    stays, goes = (client.subscribe([split, single], name) for name in ("stays", "goes"))
    assert found("stays") == found("goes") == [1] * 5
    stays.close()
    goes.unsubscribe()
    assert found("stays") == [0] * 5 and found("goes") == [-1] * 5
    for consumer in (stays, goes):
        with pytest.raises(AlreadyClosed):
            consumer.receive(100)
        assert not consumer.is_connected()


@pytest.mark.proves("C160", "C157")
def test_unsubscribing_from_one_topic(api: Api, client: Any, topic: NewTopic, stats: Stats) -> None:
    split, single, third = topic("split", partitions=2), topic("single"), topic("third")
    consumer = client.subscribe([split, single, third], "sub", initial_position=EARLIEST)
    publish(client, split, b"split", b"split")
    taken = take(consumer, 2)
    publish(client, single, b"single")
    consumer.unsubscribe(split)
    for index in range(2):
        assert "sub" not in stats(f"{split}-partition-{index}")["subscriptions"]
    assert consumer.topics() == [single, third] and consumer.is_connected()
    # What came from it can no longer be acknowledged; the others go on.
    for use in (consumer.acknowledge, consumer.negative_acknowledge, consumer.seek):
        with pytest.raises(NotConnected, match="split"):
            use(taken[0].message_id())
    publish(client, third, b"third")
    publish(client, split, b"lost")
    assert sorted(message.data() for message in take(consumer, 2)) == [b"single", b"third"]
    with pytest.raises(InvalidConfiguration, match="does not read"):
        consumer.unsubscribe(split)
    # The only topic of a plain consumer is all of it.
    alone = client.subscribe(single, "alone")
    alone.unsubscribe(single)
    with pytest.raises(AlreadyClosed):
        alone.receive(100)


@pytest.mark.proves("C160", "C171")
def test_a_refused_unsubscribe_of_one_topic_keeps_it(api: Api, client: Any, topic: NewTopic) -> None:
    names = [topic("a"), topic("b")]
    consumer, other = (client.subscribe(names, "sub", ConsumerType.Shared, initial_position=EARLIEST) for _ in range(2))
    with pytest.raises(PulsarException, match="shared consumer"):
        consumer.unsubscribe(names[0])
    other.close()
    assert set(consumer.topics()) == set(names)
    publish(client, names[0], b"x")
    message = consumer.receive(10_000)
    consumer.acknowledge(message)
    consumer.unsubscribe(names[0], force=True)
    assert consumer.topics() == [names[1]]


@pytest.mark.proves("C161")
def test_growth_is_noticed_after_another_topic_was_left(
    api: Api, client: Any, broker: Broker, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    growing, left, fixed = topic("growing", partitions=1), topic("left", partitions=2), topic("fixed")
    consumer = client.subscribe(
        [growing, left, fixed], "sub", initial_position=EARLIEST, auto_update_partitions_interval_seconds=0.2
    )
    still = client.subscribe(growing, "still", auto_update_partitions=False)
    consumer.unsubscribe(left)
    broker.admin("POST", growing.replace("://", "/") + "/partitions", 4)
    for index in range(4):
        # Two more than a queue of permits of its own could explain: the new partitions are granted permits again.
        publish(client, f"{growing}-partition-{index}", *[b"%d" % index] * 3)
    assert sorted(message.data() for message in take(consumer, 12)) == sorted([b"%d" % i for i in range(4)] * 3)
    eventually(
        lambda: (
            [len(stats(f"{growing}-partition-{index}")["subscriptions"]["sub"]["consumers"]) for index in range(4)]
            == [1] * 4
        )
    )
    assert len(still.get_last_message_ids()) == 1, "not asked to follow"
    # The broker takes no partition away again.
    with pytest.raises(Exception, match="4"):
        broker.admin("POST", growing.replace("://", "/") + "/partitions", 2)
    publish(client, f"{growing}-partition-3", b"on")
    assert consumer.receive(10_000).data() == b"on"


def refused(frame: bytes) -> bytes:
    """Return the answer to a question for a topic's partitions as a refusal that no repetition helps against."""
    answer = FrameDecoder(1 << 26).receive(frame)[0].command
    failed = answer.partitionMetadataResponse
    failed.ClearField("partitions")
    failed.response, failed.error = failed.Failed, pb.AuthorizationError
    failed.message = "as the test wants it"
    return encode_command(answer)


@pytest.mark.proves("C161")
@pytest.mark.parametrize("fault", ["refusal", "silence", "connection lost"])
def test_growth_is_found_after_failed_lookups(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, plain_client: Client, fault: str,
    eventually: Eventually, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    name = topic(partitions=1)
    through = relay(broker.service_url)
    client = api.client(through.service_url, operation_timeout_seconds=1, starting_backoff_interval_ms=10)
    options = {"initial_position": EARLIEST, "auto_update_partitions_interval_seconds": 0.1}
    consumer = client.subscribe(name, "sub", **options)
    reader = client.create_reader(name, MessageId.earliest, auto_update_partitions_interval_seconds=0.1)
    answer = Command.PARTITIONED_METADATA_RESPONSE
    if fault == "refusal":
        through.replace(answer, TO_CLIENT, refused)
    elif fault == "silence":
        through.drop(answer, TO_CLIENT, times=None)
    else:
        through.refuse()
        through.cut()
    told = "cannot join new partitions yet"
    # Of both, and more than once: a failure ends nothing.
    eventually(lambda: sum(told in each for each in caplog.messages) >= 4)
    broker.admin("POST", name.replace("://", "/") + "/partitions", 3)
    places = publish(plain_client, f"{name}-partition-2", b"grown")
    through.release()
    if fault == "connection lost":
        through.accept()
    assert consumer.receive(20_000).data() == b"grown"
    message = reader.read_next(20_000)
    assert (message.data(), message.message_id()) == (b"grown", places[0])


@pytest.mark.proves("C161")
def test_a_reader_reads_new_partitions_from_their_beginning(
    api: Api, client: Any, broker: Broker, topic: NewTopic
) -> None:
    name = topic(partitions=1)
    reader = client.create_reader(name, MessageId.latest, auto_update_partitions_interval_seconds=0.5)
    broker.admin("POST", name.replace("://", "/") + "/partitions", 2)
    # Published before the reader can know of the partition.
    publish(client, f"{name}-partition-1", b"early")
    assert reader.read_next(15_000).data() == b"early"


@pytest.mark.proves("C159")
def test_seek_by_a_function(api: Api, client: Any, topic: NewTopic) -> None:
    split, single, other = topic("split", partitions=2), topic("single"), topic("other")
    consumer = client.subscribe([split, single, other], "sub", initial_position=EARLIEST)
    parts = [f"{split}-partition-0", f"{split}-partition-1", single, other]
    ids = {part: publish(client, part, b"0", b"1", b"2") for part in parts}
    first = {(message.topic_name(), message.data()): message for message in take(consumer, 12)}
    at = first[parts[1], b"2"].publish_timestamp()
    asked: list[str] = []

    def where(name: str) -> MessageId | int | None:
        asked.append(name)
        return {parts[0]: ids[parts[0]][0], parts[1]: at, single: MessageId.latest}.get(name)

    consumer.seek(where)
    assert sorted(asked) == sorted(parts)
    again = sorted((message.topic_name(), message.data()) for message in take(consumer, 3))
    # Behind an id, by time, to the end, and left where it was.
    assert again == [(parts[0], b"1"), (parts[0], b"2"), (parts[1], b"2")]
    # Nothing is moved when one answer is of no use.
    for wrong in ("0", -1, True, 1.5):
        with pytest.raises(InvalidConfiguration, match="Seek needs"):
            consumer.seek(lambda name, wrong=wrong: wrong if name == other else MessageId.earliest)
    with pytest.raises(ZeroDivisionError):
        consumer.seek(lambda name: 1 // 0)
    take(consumer, 0)


def test_a_reader_of_several_topics(api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    names = [topic("a"), topic("b", partitions=2), topic("c")]
    places = [place for name in names for place in publish(client, name, b"0", b"1")]
    reader = client.create_reader(names, MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(10_000).message_id())
    assert sorted(read, key=str) == sorted(places, key=str) and reader.topic() == ",".join(names)
    reader.seek(lambda name: MessageId.latest if name != names[2] else 0)
    assert [reader.read_next(10_000).topic_name() for _ in range(2)] == [names[2]] * 2
    assert not reader.has_message_available()
    publish(client, names[0], b"2")
    assert reader.has_message_available() and reader.read_next(10_000).data() == b"2"
    latest = client.create_reader(names, MessageId.latest)
    assert not latest.has_message_available()
    # An id is one topic's only: told before anything is asked, or, of partitions, once they are known.
    through = relay(broker.service_url)
    other = api.client(through.service_url)
    for wrong, error in (
        ([], InvalidConfiguration),
        (["", "a"], InvalidTopicName),
        (5, InvalidConfiguration),
        (None, InvalidConfiguration),
    ):
        with pytest.raises(error, match="a reader needs a topic"):
            other.create_reader(wrong, MessageId.earliest)
    with pytest.raises(InvalidConfiguration, match="earliest or"):
        other.create_reader(names, places[0])
    assert through.accepted == 0
    with pytest.raises(InvalidConfiguration, match="earliest or"):
        client.create_reader(names[1], places[2])


@pytest.mark.proves("C158")
def test_each_partition_is_asked_only_for_its_own_again(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic(partitions=2)
    parts = [f"{name}-partition-{index}" for index in range(2)]
    ids = [publish(client, part, b"0", b"1", b"2") for part in parts]
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, unacked_messages_timeout_ms=1000
    )
    first = take(consumer, 6)
    consumer.acknowledge([message for message in first if message.data() == b"1"])
    again = [consumer.receive(15_000) for _ in range(4)]
    assert sorted(message.message_id() for message in again) == sorted(each[i] for each in ids for i in (0, 2))
    consumer.acknowledge(again)
    subscribed = {each.subscribe.consumer_id: each.subscribe.topic for each in commands_of(through, Command.SUBSCRIBE)}
    asked: dict[str, set[tuple[int, int]]] = {}
    for each in commands_of(through, Command.REDELIVER_UNACKNOWLEDGED_MESSAGES):
        request = each.redeliverUnacknowledgedMessages
        wanted = {(data.ledgerId, data.entryId) for data in request.message_ids}
        assert wanted, "everything, instead of its own"
        asked.setdefault(subscribed[request.consumer_id], set()).update(wanted)
    assert asked == {
        part: {(each[i].ledger_id(), each[i].entry_id()) for i in (0, 2)} for part, each in zip(parts, ids, strict=True)
    }


def test_a_paused_listener_holds_its_messages(broker: Broker, topic: NewTopic, eventually: Eventually) -> None:
    blocking = Api("blocking")
    try:
        client, name = blocking.client(broker.service_url), topic()
        heard: list[bytes] = []
        consumer = client.subscribe(
            name, "sub", message_listener=lambda consumer, message: heard.append(message.data())
        )
        publish(client, name, b"0")
        eventually(lambda: heard == [b"0"])
        consumer.pause_message_listener()
        publish(client, name, b"1", b"2")
        inner = consumer._inner
        eventually(inner.may_have_more)
        time.sleep(0.2)  # what must not happen has its chance
        assert heard == [b"0"]
        consumer.resume_message_listener()
        eventually(lambda: heard == [b"0", b"1", b"2"])
        plain = client.subscribe(name, "plain")
        for use in (plain.pause_message_listener, plain.resume_message_listener):
            with pytest.raises(InvalidConfiguration, match="no message_listener"):
                use()
    finally:
        blocking.close()
