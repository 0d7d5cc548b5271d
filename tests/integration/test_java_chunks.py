"""Messages in chunks, and batches by key, to and from the Java client."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pulsar_native import BatchingType, CompressionType, ConsumerType, InitialPosition, MessageId
from support.apis import Api
from support.brokers import NewTopic
from support.java_peer import JavaClient

MIB = 1024 * 1024
CHUNK = 1000
# Java's names of the codecs.
JAVA = {kind: kind.name.upper() for kind in CompressionType}


def noise(size: int) -> bytes:
    """Return bytes no codec makes smaller."""
    return random.Random(size).randbytes(size)


def all_of(place: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return the entries of the first and the last chunk of an id as Java reads it."""
    first = place["first_chunk"]
    return first["ledger"], first["entry"], place["ledger"], place["entry"]


def ours_of(place: MessageId) -> tuple[int, int, int, int]:
    """Return the same of an id of ours."""
    first = place.first_chunk_message_id()
    assert first is not None
    return first.ledger_id(), first.entry_id(), place.ledger_id(), place.entry_id()


@pytest.mark.proves("C61", "C74", "C80", "C170")
@pytest.mark.parametrize("compression", list(CompressionType), ids=lambda kind: kind.name)
class TestChunks:
    """Cut after compression; put together by the other."""

    def test_java_puts_ours_together(
        self, api: Api, client: Any, java: JavaClient, topic: NewTopic, compression: CompressionType
    ) -> None:
        name = topic()
        producer = client.create_producer(
            name,
            batching_enabled=False,
            chunking_enabled=True,
            chunk_max_message_size=CHUNK,
            compression_type=compression,
        )
        contents = [noise(5000), b"small", noise(2 * CHUNK), b"z" * 50_000, noise(CHUNK + 1)]
        ids = api.send_all(producer, contents, partition_key="k", properties={"a": "1"}, event_timestamp=7)
        messages = java.consumer(name).receive(len(contents))
        assert [message.data for message in messages] == contents
        assert {(m.key, m.properties["a"], m.event_time) for m in messages} == {("k", "1", 7)}
        assert [message.sequence_id for message in messages] == list(range(len(contents)))
        for place, message in zip(ids, messages, strict=True):
            assert MessageId.deserialize(message.id) == place
            there = java.peer.id(message.id)
            assert ("first_chunk" in there) == (place.first_chunk_message_id() is not None)
            if "first_chunk" in there:
                assert all_of(there) == all_of(java.peer.id(place.serialize())) == ours_of(place)
        chunks = [entry for entry in java.raw(name, 6) if "uuid" in entry.metadata]
        assert [entry.metadata["chunk_id"] for entry in chunks][:5] == [0, 1, 2, 3, 4]
        assert len({entry.metadata["total_chunk_size"] for entry in chunks}) == 1
        assert all(entry.checksum_right and "num_messages_in_batch" not in entry.metadata for entry in chunks)

    def test_we_put_javas_together(
        self, client: Any, java: JavaClient, topic: NewTopic, compression: CompressionType
    ) -> None:
        name = topic()
        producer = java.producer(
            name,
            batchingEnabled=False,
            chunkingEnabled=True,
            chunkMaxMessageSize=CHUNK,
            compressionType=JAVA[compression],
        )
        contents = [noise(5000), b"small", noise(2 * CHUNK), b"z" * 50_000, noise(CHUNK + 1)]
        places = producer.send_all(contents, key="k", properties={"a": "1"}, event_time=7)
        consumer = client.subscribe(name, "ours", initial_position=InitialPosition.Earliest)
        messages = [consumer.receive(20_000) for _ in contents]
        assert [message.data() for message in messages] == contents
        assert {(m.partition_key(), m.properties()["a"], m.event_timestamp()) for m in messages} == {("k", "1", 7)}
        for place, message in zip(places, messages, strict=True):
            assert message.message_id().serialize() == place
        # From the id of a chunked message each starts with it, or behind it.
        place = MessageId.deserialize(places[2])
        for inclusive in (True, False):
            reader = client.create_reader(name, place, start_message_id_inclusive=inclusive)
            (read,) = java.reader(name, places[2], inclusive=inclusive).receive()
            assert reader.read_next(20_000).data() == read.data == contents[2 if inclusive else 3]
        for inclusive in (True, False):
            mine = client.subscribe(name, f"ours {inclusive}", start_message_id_inclusive=inclusive)
            mine.seek(place)
            theirs = java.consumer(name, f"theirs {inclusive}", inclusive=inclusive)
            theirs.seek(messages[2].message_id().serialize())
            wanted = contents[2 if inclusive else 3]
            assert mine.receive(20_000).data() == theirs.receive()[0].data == wanted


@pytest.mark.proves("C80")
def test_twelve_mebibytes_both_ways(plain_client: Any, java: JavaClient, topic: NewTopic) -> None:
    ours, theirs = topic("ours"), topic("theirs")
    payload = noise(12 * MIB)
    producer = plain_client.create_producer(ours, chunking_enabled=True)
    place = producer.send(payload)
    (read,) = java.consumer(ours, receiverQueueSize=10).receive(timeout_ms=45_000)
    assert read.data == payload and MessageId.deserialize(read.id) == place
    java.producer(theirs, batchingEnabled=False, chunkingEnabled=True).send(payload)
    reader = plain_client.create_reader(theirs, MessageId.earliest)
    assert reader.read_next(45_000).data() == payload


@pytest.mark.proves("C135", "C80")
def test_acknowledging_a_chunked_message_covers_its_chunks_for_the_other(
    api: Api, client: Any, java: JavaClient, topic: NewTopic
) -> None:
    name = topic()
    options = {"batching_enabled": False, "chunking_enabled": True, "chunk_max_message_size": CHUNK}
    contents = [noise(3000 + number) for number in range(4)]
    api.send_all(client.create_producer(name, **options), contents)
    ours = client.subscribe(name, "sub", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
    messages = [ours.receive(20_000) for _ in contents]
    ours.acknowledge(messages[1])
    ours.close()
    theirs = java.consumer(name, "sub", subscriptionType="Shared")
    left = theirs.receive(3)
    assert [message.data for message in left] == [contents[0], contents[2], contents[3]]
    theirs.acknowledge([left[0], left[2]])
    theirs.close()
    again = client.subscribe(name, "sub", ConsumerType.Shared)
    assert again.receive(20_000).data() == contents[2]


@pytest.mark.proves("C73", "C90")
def test_batches_by_key_are_found_by_the_other(api: Api, client: Any, java: JavaClient, topic: NewTopic) -> None:
    """An entry holds one key only, with whichever producer: on Key_Shared no message meets a stranger."""
    name = topic()
    keys = [f"key-{number % 4}" for number in range(20)]
    ours = client.create_producer(
        name, batching_enabled=True, batching_type=BatchingType.KeyBased, batching_max_publish_delay_ms=60_000
    )
    sent = [api.enqueue(ours, b"%d" % number, partition_key=key) for number, key in enumerate(keys)]
    ours.flush()
    assert all(each.result(30)[1] for each in sent)
    theirs = java.producer(name, key_based=True, batchingMaxPublishDelayMicros=60_000_000)
    theirs.send_messages([{"value": b"%d" % (20 + number), "key": key} for number, key in enumerate(keys)])
    entries = java.raw(name, 8)
    assert [entry.metadata["num_messages_in_batch"] for entry in entries] == [5] * 8
    assert sorted(entry.metadata["partition_key"] for entry in entries) == sorted([*keys[:4], *keys[:4]])
    messages = java.consumer(name).receive(40)
    reader = client.create_reader(name, MessageId.earliest)
    read = [reader.read_next(20_000) for _ in range(40)]
    assert [(m.data, m.key, m.id) for m in messages] == [
        (m.data(), m.partition_key(), m.message_id().serialize()) for m in read
    ]
    for key in set(keys):
        own = [int(message.data()) for message in read if message.partition_key() == key]
        assert own == sorted(own) and len(own) == 10
