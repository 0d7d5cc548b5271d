"""Readers: where they start, what they leave, what is left to read, and the end of a topic, on a real broker."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    Client,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    Message,
    MessageId,
    RegexSubscriptionMode,
    SubscriptionMode,
    Timeout,
)
from support.apis import Api, publish_batches
from support.brokers import Broker, NewTopic
from support.compaction import compact
from support.relay import NewRelay

Eventually = Callable[..., Any]

EARLIEST = InitialPosition.Earliest


def read_on(reader: Any) -> list[int]:
    """Read to the end of the topic and return the numbers of the messages."""
    numbers = []
    while reader.has_message_available():
        numbers.append(int(reader.read_next(10_000).data()))
    return numbers


@pytest.mark.proves("C165")
def test_a_reader_reads_from_its_place_and_leaves_nothing(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    ids = publish_batches(api, client, name, 1, 3, 1, 4)
    reader = client.create_reader(name, MessageId.earliest)
    messages = [reader.read_next(10_000) for _ in range(9)]
    assert [message.message_id() for message in messages] == ids
    with pytest.raises(Timeout):
        reader.read_next(100)
    others = [client.create_reader(name, MessageId.earliest, reader_name="r", subscription_role_prefix="role")]
    assert read_on(others[0]) == list(range(9))

    def cursors() -> list[str]:
        found: Any = broker.admin("GET", name.replace("://", "/") + "/internalStats")
        return list(found["cursors"])

    assert len(cursors()) == 2
    reader.close()
    others[0].close()
    eventually(lambda: cursors() == [])


@pytest.mark.proves("C113", "C129")
@pytest.mark.parametrize("inclusive", [True, False])
def test_a_start_position_includes_its_message_or_not(api: Api, client: Any, topic: NewTopic, inclusive: bool) -> None:
    name = topic()
    ids = publish_batches(api, client, name, 1, 5, 1)
    # A message of its own, the first, a middle and the last of a batch, the topic's last one.
    for number in (0, 1, 3, 5, 6):
        # As a position comes from a database: nothing but its bytes.
        start = MessageId.deserialize(ids[number].serialize())
        reader = client.create_reader(name, start, start_message_id_inclusive=inclusive)
        assert read_on(reader) == list(range(number + (not inclusive), 7)), number
        reader.close()


@pytest.mark.proves("C129")
def test_unpacking_leaves_out_what_was_acknowledged(api: Api, client: Any, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish_batches(api, client, name, 10)
    options = {"initial_position": EARLIEST, "batch_index_ack_enabled": True, "receiver_queue_size": 20}
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, **options)
    messages = [consumer.receive(10_000) for _ in range(10)]
    consumer.acknowledge([messages[number] for number in (0, 4, 5, 9)])
    consumer.close()
    again = api.client(broker.service_url).subscribe(name, "sub", ConsumerType.Shared, **options)
    assert [int(again.receive(10_000).data()) for _ in range(6)] == [1, 2, 3, 6, 7, 8]
    # What was left out gave its permits back: the queue of 20 takes all of these.
    publish_batches(api, client, name, 40)
    assert len([again.receive(10_000) for _ in range(40)]) == 40


@pytest.mark.proves("C129")
def test_a_compacted_batch_gives_only_its_last_values(api: Api, client: Any, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(12):
        api.enqueue(producer, b"%d" % number, partition_key=f"key{number % 4}")
        if number == 6:
            producer.flush()
    producer.flush()
    compact(broker, name)
    reader = client.create_reader(name, MessageId.earliest, is_read_compacted=True)
    assert read_on(reader) == [8, 9, 10, 11]


@pytest.mark.proves("C129", "C168")
def test_compacted_messages_whose_ledger_is_removed_are_read(
    api: Api, client: Any, broker: Broker, topic: NewTopic, namespace: Any, eventually: Eventually
) -> None:
    space = namespace()
    broker.admin("POST", f"namespaces/{space}/deduplication", False)
    name = topic(namespace=space)
    path = name.replace("://", "/")
    producer = client.create_producer(name)
    for number in range(6):
        producer.send(b"%d" % number, partition_key=f"key{number % 2}")
    producer.close()
    compact(broker, name)
    written = client.create_reader(name, MessageId.earliest).get_last_message_id().ledger_id()
    # Deduplication and retention would hold the old ledger; without any, a topic that is loaded again has no messages,
    # compacted or not.
    broker.admin("POST", f"namespaces/{space}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})

    def is_removed() -> bool:
        broker.admin("PUT", f"{path}/unload")
        client.create_producer(name).close()
        broker.admin("POST", f"{path}/trim")
        ledgers = broker.admin("GET", f"{path}/internalStats")["ledgers"]  # type: ignore[index]
        return all(ledger["ledgerId"] != written for ledger in ledgers)

    eventually(is_removed)
    options = {"is_read_compacted": True}
    assert read_on(client.create_reader(name, MessageId.earliest, **options)) == [4, 5]
    sought = client.create_reader(name, MessageId.latest, **options)
    sought.seek(1)
    assert read_on(sought) == [4, 5]
    latest = client.create_reader(name, MessageId.latest, **options)
    assert not latest.has_message_available() and list(latest.arrow_batches(timeout_millis=10_000)) == []
    assert read_on(client.create_reader(name, MessageId.earliest)) == []


@pytest.mark.proves("C168")
@pytest.mark.parametrize("inclusive", [True, False])
class TestMessageAvailable:
    """Every kind of position, on an empty topic and on one with messages."""

    def test_empty(self, client: Any, topic: NewTopic, inclusive: bool) -> None:
        for start in (MessageId.earliest, MessageId.latest, MessageId(-1, 7, 7, -1)):
            reader = client.create_reader(topic(), start, start_message_id_inclusive=inclusive)
            assert not reader.has_message_available(), start
        reader.seek(0)
        assert not reader.has_message_available()

    def test_with_messages(self, api: Api, client: Any, topic: NewTopic, inclusive: bool) -> None:
        name = topic()
        ids = publish_batches(api, client, name, 1, 3)
        time.sleep(0.02)  # so that "now" is after their publish time
        for start, wanted in (
            (MessageId.earliest, 4),
            (MessageId.latest, 1 if inclusive else 0),
            (ids[0], 4 if inclusive else 3),
            (ids[2], 2 if inclusive else 1),
            (ids[3], 1 if inclusive else 0),
        ):
            reader = client.create_reader(name, start, start_message_id_inclusive=inclusive)
            for left in range(wanted, 0, -1):
                assert reader.has_message_available(), (start, left)
                assert reader.read_next(10_000).message_id() == ids[-left]
            assert not reader.has_message_available(), start
            reader.close()
        reader = client.create_reader(name, MessageId.earliest, start_message_id_inclusive=inclusive)
        reader.seek(int(time.time() * 1000) + 60_000)
        assert not reader.has_message_available()
        reader.seek(0)
        assert read_on(reader) == [0, 1, 2, 3]
        publish_batches(api, client, name, 2)
        assert reader.has_message_available()


CASES = [
    # (where, what is sought or started at; how many of three entries of two messages are left: exclusive, inclusive)
    ("earliest", 6, 6),
    ("latest", 0, 1),
    ("id", 3, 4),
    ("time before", 6, 6),
    ("time between", 2, 2),
    ("time behind", 0, 0),
]


@pytest.mark.proves("C168")
@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
@pytest.mark.parametrize("inclusive", [False, True], ids=["exclusive", "inclusive"])
@pytest.mark.parametrize("how", ["start", "seek", "seek back"])
def test_whether_there_is_more_is_never_wrong(
    api: Api, client: Any, topic: NewTopic, how: str, inclusive: bool, filled: bool
) -> None:
    name = topic()
    ids: list[MessageId] = []
    between = 0
    if filled:
        ids = publish_batches(api, client, name, 2, 2)
        time.sleep(0.05)
        between = int(time.time() * 1000)
        time.sleep(0.05)
        ids += publish_batches(api, client, name, 2)
    behind = int(time.time() * 1000) + 60_000
    places: dict[str, Any] = {
        "earliest": MessageId.earliest,
        "latest": MessageId.latest,
        "id": ids[2] if filled else MessageId(-1, 7, 7, -1),
        "time before": 1,
        "time between": between or 1,
        "time behind": behind,
    }
    for where, exclusive_left, inclusive_left in CASES:
        place = places[where]
        if how == "start" and not isinstance(place, MessageId):
            continue
        if how == "start":
            reader = client.create_reader(name, place, start_message_id_inclusive=inclusive)
        elif not filled and where == "id":
            continue  # there is nothing to seek to
        else:
            start = MessageId.latest if where == "earliest" else MessageId.earliest
            reader = client.create_reader(name, start, start_message_id_inclusive=inclusive)
            if how == "seek back" and filled and start == MessageId.earliest:
                assert reader.read_next(10_000).message_id() == ids[0]
            reader.seek(place)
        left = (inclusive_left if inclusive else exclusive_left) if filled else 0
        for number in range(left, 0, -1):
            assert reader.has_message_available(), (where, number)
            assert reader.read_next(10_000).message_id() == ids[-number], where
        assert not reader.has_message_available(), where
        with pytest.raises(Timeout):
            reader.read_next(20)
        assert not reader.has_message_available(), where
        reader.close()


@pytest.mark.proves("C167", "C168")
@pytest.mark.parametrize("kept", [0, 3])
def test_a_time_sought_outlives_an_unload(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually, kept: int
) -> None:
    """The broker forgets the cursor of a reader with its connection, and where the time was with it."""
    name = topic()
    publish_batches(api, client, name, 1, 2, 1)
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    publish_batches(api, client, name, *[1] * kept)
    # The queue holds what was delivered before: only what comes again tells where the reader stands.
    reader = client.create_reader(name, MessageId.earliest, receiver_queue_size=1)
    reader.seek(between)
    for _ in range(2):
        broker.admin("PUT", name.replace("://", "/") + "/unload")
        eventually(reader.is_connected)
        assert reader.has_message_available() is bool(kept)
    got = read_on(reader)
    assert got == list(range(kept))
    publish_batches(api, client, name, 2)
    assert read_on(reader) == [0, 1]


@pytest.mark.proves("C101")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_compacted_topic_gives_one_value_of_each_key(
    api: Api, client: Any, broker: Broker, topic: NewTopic, kind: ConsumerType
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"key{number % 3}")
    producer.send(None, partition_key="key0")
    compact(broker, name)
    producer.send(b"after", partition_key="key1")
    compacted = client.subscribe(name, "compacted", kind, initial_position=EARLIEST, is_read_compacted=True)
    got = [compacted.receive(15_000) for _ in range(3)]
    assert [(message.partition_key(), message.data()) for message in got] == [
        ("key1", b"28"),
        ("key2", b"29"),
        # What came after the compaction is there as it came.
        ("key1", b"after"),
    ]
    with pytest.raises(Timeout):
        compacted.receive(200)
    compacted.acknowledge_cumulative(got[-1])
    whole = client.subscribe(name, "whole", kind, initial_position=EARLIEST)
    assert len([whole.receive(15_000) for _ in range(32)]) == 32


@pytest.mark.proves("C101", "C88")
def test_only_persistent_topics_with_one_reader_are_read_compacted(api: Api, broker: Broker, relay: NewRelay) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    for kind in (ConsumerType.Shared, ConsumerType.KeyShared):
        with pytest.raises(InvalidConfiguration, match="Exclusive or Failover"):
            client.subscribe("a", "sub", kind, is_read_compacted=True)
    for topics in ("non-persistent://public/default/a", ["a", "non-persistent://public/default/a"]):
        with pytest.raises(InvalidConfiguration, match="persistent topics"):
            client.subscribe(topics, "sub", is_read_compacted=True)
        with pytest.raises(InvalidConfiguration, match="persistent topics"):
            client.create_reader(topics, MessageId.earliest, is_read_compacted=True)
    with pytest.raises(InvalidConfiguration, match="persistent topics"):
        client.subscribe(
            re.compile("public/default/a.*"),
            "sub",
            is_read_compacted=True,
            regex_subscription_mode=RegexSubscriptionMode.AllTopics,
        )
    assert through.accepted == 0


@pytest.mark.proves("C119")
@pytest.mark.parametrize("start", [MessageId.earliest, MessageId.latest])
def test_an_unload_while_reading_loses_and_repeats_nothing(
    api: Api, client: Any, broker: Broker, topic: NewTopic, start: MessageId
) -> None:
    name = topic()
    if start == MessageId.latest:
        publish_batches(api, client, name, 3)
    reader = client.create_reader(name, start, receiver_queue_size=50)
    producer = client.create_producer(name, batching_enabled=True, batching_max_messages=7)
    got: list[int] = []

    def read() -> None:
        got.extend(int(reader.read_next(30_000).data()) for _ in range(2000))

    reading = threading.Thread(target=read)
    reading.start()
    for part in range(5):
        api.send_all(producer, [b"%d" % number for number in range(part * 400, part * 400 + 400)])
        broker.admin("PUT", name.replace("://", "/") + "/unload")
    reading.join(60)
    assert got == list(range(2000))


def test_a_reader_at_the_end_keeps_its_place_while_nothing_was_read(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    publish_batches(api, client, name, 3)
    through = relay(broker.service_url)
    reader = api.client(through.service_url).create_reader(name, MessageId.latest)
    through.refuse()
    through.cut()
    eventually(lambda: not reader.is_connected())
    publish_batches(api, client, name, 2)
    through.accept()
    assert [int(reader.read_next(20_000).data()) for _ in range(2)] == [0, 1]


@pytest.mark.proves("C169")
def test_the_end_of_a_terminated_topic(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    publish_batches(api, client, name, 2)
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    messages = [consumer.receive(10_000) for _ in range(2)]
    broker.admin("POST", name.replace("://", "/") + "/terminate")
    consumer.acknowledge(messages[0])
    with pytest.raises(Timeout):
        consumer.receive(300)
    assert not consumer.has_reached_end_of_topic(), "one message is still to be acknowledged"
    consumer.acknowledge(messages[1])
    eventually(consumer.has_reached_end_of_topic)


@pytest.mark.parametrize("partitions", [0, 2], ids=["plain", "partitioned"])
@pytest.mark.parametrize("terminated", ["before", "after", "waiting"])
def test_reader_reaches_end_of_terminated_topic(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually, terminated: str, partitions: int
) -> None:
    name = topic(partitions=partitions)
    names = [f"{name}-partition-{number}" for number in range(partitions)] or [name]

    def do(method: str, what: str) -> list[Any]:
        return [broker.admin(method, each.replace("://", "/") + what) for each in names]

    for each in names:
        publish_batches(api, client, each, 1, 3, 1, 3)
    everything = sorted([*range(8)] * len(names))
    if terminated == "before":
        do("POST", "/terminate")
    reader = client.create_reader(name, MessageId.earliest)
    read = [int(reader.read_next(10_000).data()) for _ in everything[1:]]
    assert not reader.has_reached_end_of_topic(), "one message is still to be read"
    do("PUT", "/unload")
    read.append(int(reader.read_next(10_000).data()))
    assert sorted(read) == everything
    if terminated == "waiting":
        with pytest.raises(Timeout):
            reader.read_next(100)
    if terminated != "before":
        eventually(lambda: do("POST", "/terminate"))
    eventually(reader.has_reached_end_of_topic)
    backlogs = [each["msgBacklog"] for stats in do("GET", "/stats") for each in stats["subscriptions"].values()]
    assert backlogs == [0] * len(names)
    reader.seek(MessageId.earliest)
    assert not reader.has_reached_end_of_topic()
    assert sorted(read_on(reader)) == everything
    eventually(reader.has_reached_end_of_topic)


def test_reader_behind_last_message_reaches_end(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    last = publish_batches(api, client, name, 2)[-1]
    broker.admin("POST", name.replace("://", "/") + "/terminate")
    unread = client.create_reader(name, last, start_message_id_inclusive=True)
    eventually(client.create_reader(name, last).has_reached_end_of_topic)
    assert not unread.has_reached_end_of_topic()


def unload(broker: Broker, name: str) -> None:
    broker.admin("PUT", name.replace("://", "/") + "/unload")


@pytest.fixture
def ended(api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually) -> str:
    """Give a topic of 8 messages that was terminated while its last ledger was empty, and loaded again since."""
    name = topic()
    publish_batches(api, client, name, 1, 3, 1, 3)
    unload(broker, name)
    eventually(lambda: broker.admin("POST", name.replace("://", "/") + "/terminate"))
    unload(broker, name)
    return name


def test_topic_terminated_with_empty_ledger_has_last_id(
    client: Any, broker: Broker, ended: str, eventually: Eventually
) -> None:
    def admin(what: str) -> Any:
        return broker.admin("GET", ended.replace("://", "/") + what)

    assert admin("/lastMessageId")["entryId"] == -1, "the broker has no last id of it"
    reader = client.create_reader(ended, MessageId.earliest)
    (last,) = reader.get_last_message_ids()
    (ledger,) = (each for each in admin("/internalStats")["ledgers"] if each["entries"])
    assert (last.ledger_id(), last.entry_id()) == (ledger["ledgerId"], 3)
    for _ in range(3):
        assert read_on(reader) == list(range(8))
        eventually(reader.has_reached_end_of_topic)
        reader.seek(MessageId.earliest)
    latest = client.create_reader(ended, MessageId.latest, start_message_id_inclusive=True)
    assert read_on(latest)[-1] == 7
    assert not [name for name in admin("/stats")["subscriptions"] if "-last-" in name], "the search leaves nothing"


@pytest.mark.parametrize("is_reader", [True, False], ids=["reader", "consumer"])
def test_latest_of_terminated_topic_survives_unload(
    client: Any, broker: Broker, ended: str, topic: NewTopic, eventually: Eventually, is_reader: bool
) -> None:
    def at_latest(name: str) -> Any:
        if is_reader:
            return client.create_reader(name, MessageId.latest)
        return client.subscribe(name, "latest", subscription_mode=SubscriptionMode.NonDurable)

    passed, empty = at_latest(ended), topic()
    unload(broker, ended)
    eventually(passed.has_reached_end_of_topic)
    with pytest.raises(Timeout):
        (passed.read_next if is_reader else passed.receive)(100)
    # An empty topic has no last id either: what is published during an unload is not skipped.
    waiting, producer = at_latest(empty), client.create_producer(empty)
    unload(broker, empty)
    producer.send(b"first")
    assert (waiting.read_next if is_reader else waiting.receive)(10_000).data() == b"first"


def test_the_last_id(api: Api, client: Any, topic: NewTopic) -> None:
    name, split = topic(), topic("split", partitions=2)
    reader = client.create_reader(name, MessageId.earliest)
    assert reader.get_last_message_id().entry_id() == -1
    ids = publish_batches(api, client, name, 1, 3)
    assert reader.get_last_message_id() == ids[-1] == reader.get_last_message_ids()[0]
    consumer = client.subscribe(split, "sub")
    places = {place.partition(): place for place in publish_batches(api, client, split, *[1] * 8)}
    found = consumer.get_last_message_ids()
    assert {each.partition() for each in found} == {0, 1}
    assert all(places[each.partition()] == each for each in found if each.entry_id() >= 0)


def test_a_listener_of_a_reader(plain_client: Client, api: Api, topic: NewTopic, eventually: Eventually) -> None:
    name = topic()
    client = plain_client if api.name == "blocking" else api.client(plain_client.config.service_url)
    publish_batches(api, client, name, 5)
    heard: list[Message] = []
    reader = plain_client.create_reader(
        name, MessageId.earliest, reader_listener=lambda reader, message: heard.append(message)
    )
    eventually(lambda: len(heard) == 5)
    assert [int(message.data()) for message in heard] == list(range(5))
    reader.close()


def test_a_reader_over_partitions(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=3)
    producer = client.create_producer(name, batching_enabled=False)
    ids = api.send_all(producer, [b"x"] * 12)
    reader = client.create_reader(name, MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(10_000).message_id())
    assert sorted(read) == sorted(ids)
