"""Messages to and from the Java client: compression, batches, single ones, every field, ids, and the stored bytes."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from pulsar_native import CompressionType, ConsumerType, InitialPosition, MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.apis import Api
from support.brokers import NewTopic
from support.java_peer import JavaClient, JavaMessage

# Java compresses what is larger than 4 KiB, and a batch as a whole: the first group stays below, the second does not.
SMALL = [b"", b"a" * 20, "\u00fc".encode() * 9]
LARGE = [b"z" * 100_000, random.Random(7).randbytes(5000), bytes(range(256)) * 20, b""]
# Java's names of the codecs.
JAVA = {kind: kind.name.upper() for kind in CompressionType}
# Longer than any test: only a flush closes the batch.
NEVER_MS = 60_000


def ids_of(messages: list[JavaMessage]) -> list[MessageId]:
    """Return Java's ids as ours."""
    return [MessageId.deserialize(message.id) for message in messages]


@pytest.mark.parametrize("batching", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("compression", list(CompressionType), ids=lambda kind: kind.name)
@pytest.mark.proves("C51")
class TestEveryCompression:
    """Both ways, in batches and single, below and above the size from which Java compresses."""

    def test_java_reads_ours(
        self, api: Api, client: Any, java: JavaClient, topic: NewTopic, compression: CompressionType, batching: bool
    ) -> None:
        name = topic()
        producer = client.create_producer(
            name, compression_type=compression, batching_enabled=batching, batching_max_publish_delay_ms=NEVER_MS
        )
        ids = [place for group in (SMALL, LARGE) for place in api.send_all(producer, group)]
        messages = java.reader(name).receive(len(ids))
        assert [message.data for message in messages] == SMALL + LARGE
        assert ids_of(messages) == ids
        entries = java.raw(name, 2 if batching else len(ids))
        assert all(entry.checksum_right for entry in entries)
        assert [entry.metadata.get("num_messages_in_batch") for entry in entries][:2] == (
            [len(SMALL), len(LARGE)] if batching else [None, None]
        )
        # Ours compresses whatever the size, as the C++ client does, but for nothing at all.
        wanted = None if compression is CompressionType.NONE else JAVA[compression]
        assert [entry.metadata.get("compression") for entry in entries] == [
            wanted if entry.body else None for entry in entries
        ]

    def test_we_read_javas(
        self, api: Api, client: Any, java: JavaClient, topic: NewTopic, compression: CompressionType, batching: bool
    ) -> None:
        name = topic()
        producer = java.producer(
            name,
            compressionType=JAVA[compression],
            batchingEnabled=batching,
            batchingMaxPublishDelayMicros=NEVER_MS * 1000,
        )
        ids = [MessageId.deserialize(place) for group in (SMALL, LARGE) for place in producer.send_all(group)]
        reader = client.create_reader(name, MessageId.earliest)
        messages = [reader.read_next(20_000) for _ in ids]
        assert [message.data() for message in messages] == SMALL + LARGE
        assert [message.message_id() for message in messages] == ids
        # The other half of the proof: Java did compress what we read.
        entries = java.raw(name, 2 if batching else len(ids))
        compressed = [entry.metadata.get("compression") for entry in entries]
        assert compressed[0] is None
        if compression is not CompressionType.NONE:
            assert JAVA[compression] in compressed


FIELDS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "text key": {"partition_key": "k\u00e9y \u4e2d\u6587 \U0001f600"},
    "empty key": {"partition_key": ""},
    "key of bytes": {"partition_key": b"\x00\xff\x80"},
    "empty key of bytes": {"partition_key": b""},
    "ordering key": {"ordering_key": "order \u4e2d"},
    "both keys": {"partition_key": "a", "ordering_key": "b"},
    "properties": {"properties": {"": "", "a": "\u00fc", "\u4e2d": "x" * 300}},
    "event time": {"event_timestamp": 1_700_000_000_123},
    "everything": {
        "partition_key": b"k", "ordering_key": "o", "properties": {"a": "1", "b": "2"}, "event_timestamp": 2**62,
    },
}  # fmt: skip
TO_JAVA = {"partition_key": "key", "event_timestamp": "event_time"}


def parts_for_java(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the same parts by the names of the Java peer."""
    parts = {TO_JAVA.get(name, name): part for name, part in fields.items()}
    if isinstance(parts.get("key"), bytes):
        parts["key_bytes"] = parts.pop("key")
    if "ordering_key" in parts:
        parts["ordering_key"] = parts["ordering_key"].encode()
    return parts


def shown_by_java(message: JavaMessage) -> tuple[Any, ...]:
    """Return what both sides can read of a message, by Java."""
    return (
        message.data or b"",
        message.data is None,
        message.properties,
        message.key or "",
        message.has_key,
        message.key_is_base64,
        message.key_bytes or b"",
        (message.ordering_key or b"").decode(),
        message.event_time,
        message.publish_time,
        message.sequence_id,
        message.producer_name,
        message.topic,
        message.redelivery_count,
        message.schema_version,
        message.broker_publish_time,
        message.index,
        message.id,
        message.size,
    )


def shown_by_us(message: Any) -> tuple[Any, ...]:
    """Return the same by our getters."""
    return (
        message.data(),
        message.has_null_value(),
        message.properties(),
        message.partition_key(),
        message.has_key(),
        message.has_base64_encoded_key(),
        message.key_bytes(),
        message.ordering_key(),
        message.event_timestamp(),
        message.publish_timestamp(),
        message.sequence_id(),
        message.producer_name(),
        message.topic_name(),
        message.redelivery_count(),
        message.schema_version_bytes(),
        message.broker_publish_time(),
        message.index(),
        message.message_id().serialize(),
        len(message),
    )


@pytest.mark.parametrize("batching", [True, False], ids=["batch", "single"])
@pytest.mark.proves("C81", "C82", "C170")
class TestEveryField:
    """What one side sets, both sides read alike, field by field."""

    def test_set_by_us(
        self, api: Api, client: Any, java: JavaClient, topic: NewTopic, read_all: Any, batching: bool
    ) -> None:
        name = topic()
        producer = client.create_producer(
            name, batching_enabled=batching, batching_max_publish_delay_ms=NEVER_MS, producer_name="ours"
        )
        sent = [api.enqueue(producer, what.encode(), **fields) for what, fields in FIELDS.items()]
        sent.append(api.enqueue(producer, None, partition_key="k", sequence_id=100))
        producer.flush()
        ids = [each.result(30)[1] for each in sent]
        theirs = java.consumer(name).receive(len(ids))
        assert ids_of(theirs) == ids
        assert [shown_by_java(message) for message in theirs] == [shown_by_us(message) for message in read_all(name)]
        for message, (what, fields) in zip(theirs, FIELDS.items(), strict=False):
            key = fields.get("partition_key")
            assert message.data == what.encode() and message.producer_name == "ours"
            assert message.has_key is (key is not None)
            assert message.key_is_base64 is isinstance(key, bytes)
            assert (message.key_bytes or b"") == (key if isinstance(key, bytes) else (key or "").encode())
            assert (message.ordering_key or b"").decode() == fields.get("ordering_key", "")
            assert message.properties == fields.get("properties", {})
            assert message.event_time == fields.get("event_timestamp", 0)
        assert [message.sequence_id for message in theirs] == [*range(len(FIELDS)), 100]
        assert (theirs[-1].data, theirs[-1].value) == (None, None)

    def test_set_by_java(self, client: Any, java: JavaClient, topic: NewTopic, batching: bool) -> None:
        name = topic()
        producer = java.producer(
            name, batchingEnabled=batching, batchingMaxPublishDelayMicros=NEVER_MS * 1000, producerName="theirs"
        )
        messages = [{"value": what.encode(), **parts_for_java(fields)} for what, fields in FIELDS.items()]
        messages.append({"value": None, "key": "k", "sequence_id": 100})
        ids = [MessageId.deserialize(place) for place in producer.send_messages(messages)]
        reader = client.create_reader(name, MessageId.earliest)
        ours = [reader.read_next(20_000) for _ in ids]
        assert [message.message_id() for message in ours] == ids
        theirs = java.consumer(name).receive(len(ids))
        assert [shown_by_us(message) for message in ours] == [shown_by_java(message) for message in theirs]
        for message, fields in zip(ours, FIELDS.values(), strict=False):
            key = fields.get("partition_key")
            assert message.has_key() is (key is not None)
            assert message.key_bytes() == (key if isinstance(key, bytes) else (key or "").encode())
            assert message.ordering_key() == fields.get("ordering_key", "")
            assert message.properties() == fields.get("properties", {})
            assert message.event_timestamp() == fields.get("event_timestamp", 0)
        assert ours[-1].has_null_value() and ours[-1].value() is None
        assert {message.producer_name() for message in ours} == {"theirs"}


@pytest.mark.proves("C72")
def test_an_entry_of_ours_carries_what_javas_does(api: Api, client: Any, java: JavaClient, topic: NewTopic) -> None:
    """Both publish the same; Java's raw reader finds the same fields in both entries, but for clocks and names."""
    name = topic()
    began = int(time.time() * 1000)
    at = began - 1000
    fields = {"partition_key": b"k", "ordering_key": "o", "properties": {"a": "1"}, "event_timestamp": 5}
    ours = client.create_producer(name, producer_name="ours", compression_type=CompressionType.ZSTD)
    theirs = java.producer(name, producerName="theirs", batchingEnabled=False, compressionType="ZSTD")
    cases: list[dict[str, Any]] = [fields, {}, {"deliver_at": at}, {"disable_replication": True}, {"partition_key": ""}]
    for case in cases:
        ours.send(b"b" * 5000, **case)
        theirs.send(b"b" * 5000, **parts_for_java(case))
    entries = java.raw(name, 2 * len(cases))
    ended = int(time.time() * 1000)
    for number, (our_entry, their_entry) in enumerate(zip(entries[::2], entries[1::2], strict=True)):
        mine, other = dict(our_entry.metadata), dict(their_entry.metadata)
        assert our_entry.checksum_right
        assert (mine.pop("producer_name"), other.pop("producer_name")) == ("ours", "theirs")
        assert began <= mine.pop("publish_time") <= ended and other.pop("publish_time")
        assert mine["sequence_id"] == number and mine["uncompressed_size"] == 5000 and mine["compression"] == "ZSTD"
        # Java writes the flag out when it is false; its absence says the same.
        assert {"key_is_base64": False, **mine} == {"key_is_base64": False, **other}
        assert our_entry.metadata.get("deliver_at_time") == cases[number].get("deliver_at")


@pytest.mark.proves("C73")
def test_a_batch_of_ours_is_laid_out_as_javas(api: Api, client: Any, java: JavaClient, topic: NewTopic) -> None:
    names = topic("ours"), topic("theirs")
    ours = client.create_producer(
        names[0], producer_name="p", batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS
    )
    theirs = java.producer(names[1], producerName="p", batchingMaxPublishDelayMicros=NEVER_MS * 1000)
    # No more than one property each: Java keeps them in the order of a hash map.
    cases = [fields for fields in FIELDS.values() if len(fields.get("properties", ())) < 2]
    assert len(cases) > 5
    sent = [api.enqueue(ours, b"%d" % number, **fields) for number, fields in enumerate(cases)]
    ours.flush()
    places = [each.result(30)[1] for each in sent]
    theirs.send_messages([{"value": b"%d" % number, **parts_for_java(case)} for number, case in enumerate(cases)])
    (mine,), (other,) = java.raw(names[0], 1), java.raw(names[1], 1)
    assert singles_of(mine.body) == singles_of(other.body)
    for name in ("producer_name", "sequence_id", "highest_sequence_id", "num_messages_in_batch", "partition_key"):
        assert mine.metadata.get(name) == other.metadata.get(name), name
    assert mine.metadata["num_messages_in_batch"] == len(cases) and mine.checksum_right
    assert [place and place.batch_index() for place in places] == list(range(len(cases)))


def singles_of(body: bytes) -> list[tuple[bytes, bytes]]:
    """Return a batch's messages, each as the bytes of its fields and its payload, by the protocol's definition."""
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        single = pb.SingleMessageMetadata.FromString(body[at + 4 : at + 4 + size])
        if not single.partition_key_b64_encoded:
            # Java writes the flag out when it is false; its absence says the same.
            single.ClearField("partition_key_b64_encoded")
        payload = body[at + 4 + size : at + 4 + size + single.payload_size]
        found.append((single.SerializeToString(), payload))
        at += 4 + size + single.payload_size
    return found


CLOSED_BY: dict[str, tuple[dict[str, Any], list[int], list[int | None]]] = {
    # What the producer is told, the sizes of the messages, and how many of them stand in each entry.
    "count": ({"batching_max_messages": 3}, [1] * 7, [3, 3, None]),
    "size": ({"batching_max_allowed_size_in_bytes": 1000}, [1200], [None]),
    "what does not fit": ({"batching_max_allowed_size_in_bytes": 1000}, [300, 300, 900, 50, 30], [2, 2, None]),
    "delay": ({"batching_max_publish_delay_ms": 50}, [5, 5], [2]),
    "flush": ({}, [5] * 4, [4]),
}


@pytest.mark.proves("C73")
@pytest.mark.parametrize("reason", list(CLOSED_BY))
def test_java_finds_batches_closed_by(api: Api, client: Any, java: JavaClient, topic: NewTopic, reason: str) -> None:
    name = topic()
    options, sizes, counts = CLOSED_BY[reason]
    producer = client.create_producer(
        name, batching_enabled=True, **{"batching_max_publish_delay_ms": NEVER_MS, **options}
    )
    contents = [bytes([number]) * size for number, size in enumerate(sizes)]
    sent = [api.enqueue(producer, content) for content in contents]
    if reason not in ("delay", "size"):
        producer.flush()
    places = [each.result(30)[1] for each in sent]
    messages = java.consumer(name).receive(len(contents))
    assert [message.data for message in messages] == contents and ids_of(messages) == places
    entries = java.raw(name, len({place.entry_id() for place in places if place}))
    assert [entry.metadata.get("num_messages_in_batch") for entry in entries] == counts
    assert [entry.metadata["sequence_id"] for entry in entries] == [
        sum(count or 1 for count in counts[:number]) for number in range(len(counts))
    ]


@pytest.mark.proves("C73")
def test_a_batch_of_one_is_a_plain_message_as_javas(client: Any, java: JavaClient, topic: NewTopic) -> None:
    name = topic()
    client.create_producer(name, producer_name="ours", batching_enabled=True).send(b"one", partition_key="k")
    java.producer(name, producerName="theirs").send(b"one", key="k")
    entries = java.raw(name, 2)
    assert [entry.body for entry in entries] == [b"one", b"one"]
    assert ["num_messages_in_batch" in entry.metadata for entry in entries] == [False, False]
    reader = client.create_reader(name, MessageId.earliest)
    assert [reader.read_next(20_000).data() for _ in entries] == [b"one", b"one"]


@pytest.mark.proves("C74")
def test_a_delayed_message_leaves_the_batch(api: Api, client: Any, java: JavaClient, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    at = int(time.time() * 1000) - 1000
    parts: list[dict[str, Any]] = [{}, {}, {"deliver_at": at}, {}, {}]
    sent = [api.enqueue(producer, b"%d" % number, **part) for number, part in enumerate(parts)]
    producer.flush()
    assert all(each.result(30) for each in sent)
    entries = java.raw(name, 3)
    counts = [entry.metadata.get("num_messages_in_batch") for entry in entries]
    assert (counts, entries[1].metadata["deliver_at_time"], entries[1].body) == ([2, None, 2], at, b"2")
    assert [message.data for message in java.consumer(name).receive(5)] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.proves("C65")
@pytest.mark.parametrize("batching", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("partitions", [0, 3])
def test_the_ids_of_receipts_are_those_java_consumes(
    api: Api, client: Any, java: JavaClient, topic: NewTopic, partitions: int, batching: bool
) -> None:
    name = topic(partitions=partitions)
    producer = client.create_producer(name, batching_enabled=batching, batching_max_publish_delay_ms=NEVER_MS)
    sent = [api.enqueue(producer, b"%d" % number, partition_key=f"{number % 5}") for number in range(15)]
    producer.flush()
    ours = {b"%d" % number: each.result(30)[1] for number, each in enumerate(sent)}
    theirs = {message.data: message for message in java.consumer(name).receive(15)}
    for content, place in ours.items():
        assert place is not None and MessageId.deserialize(theirs[content].id) == place
        assert place.topic_name() == theirs[content].topic
        read = java.peer.id(place.serialize())
        told = (read["ledger"], read["entry"], read["partition"], read["batch_index"])
        assert told == (place.ledger_id(), place.entry_id(), place.partition(), place.batch_index())
    everything = client.subscribe(name, "ours", initial_position=InitialPosition.Earliest)
    for _ in range(15):
        message = everything.receive(20_000)
        assert message.message_id().serialize() == theirs[message.data()].id


@pytest.mark.proves("C170")
def test_ids_go_both_ways_as_bytes(api: Api, client: Any, java: JavaClient, topic: NewTopic) -> None:
    for ours, theirs in ((MessageId.earliest, "earliest"), (MessageId.latest, "latest")):
        read = java.peer.id(theirs)
        assert ours.serialize() == read["id"] and MessageId.deserialize(read["id"]) == ours
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    ids = api.send_all(producer, [b"%d" % number for number in range(4)])
    ids += api.send_all(client.create_producer(name, batching_enabled=False), [b"4", b"5"])
    for number, place in enumerate(ids):
        # Java reads from our id, and its id of that message is ours again, bytes and all that compares.
        (message,) = java.reader(name, place.serialize(), inclusive=True).receive()
        back = MessageId.deserialize(message.id)
        assert message.data == b"%d" % number and back == place and hash(back) == hash(place)
        reader = client.create_reader(name, back, start_message_id_inclusive=True)
        assert reader.read_next(20_000).message_id().serialize() == message.id
    for one in ids:
        for other in ids:
            equal, order = java.peer.compare(one.serialize(), other.serialize())
            assert (one == other, (one > other) - (one < other)) == (equal, order)


@pytest.mark.proves("C81")
def test_java_gets_a_delayed_message_of_ours_in_time(client: Any, java: JavaClient, topic: NewTopic) -> None:
    name = topic()
    consumer = java.consumer(name, subscriptionType="Shared")
    ours = client.subscribe(name, "ours", ConsumerType.Shared)
    at = int(time.time() * 1000) + 2000
    client.create_producer(name, batching_enabled=False).send(b"late", deliver_at=at)
    java.producer(name).send(b"later", deliver_after_ms=2000)
    assert {message.data for message in consumer.receive(2)} == {b"late", b"later"}
    assert {ours.receive(20_000).data() for _ in range(2)} == {b"late", b"later"}
    # The broker looks every second, and hands out what falls due before the next look.
    assert time.time() * 1000 >= at - 1000
