"""Going along with the official Python client: each reads what the other wrote, and its programs run on ours."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar as official
import pytest

import pulsar_native
from pulsar_native import CompressionType, ConsumerType, InitialPosition, MessageId
from support.apis import Api
from support.brokers import Broker, NewTopic

PROGRAM = Path(__file__).parent / "official_program.py"
CONTENTS = [b"", b"a" * 10_000, bytes(range(256)) * 20, b"z"]


@pytest.fixture(scope="module")
def peer(broker: Broker) -> Iterator[Any]:
    """Give a client of the official package."""
    made = official.Client(broker.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    yield made
    made.close()


@pytest.mark.proves("C80")
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD], ids=lambda kind: kind.name)
def test_our_chunks_are_read(client: Any, peer: Any, topic: NewTopic, compression: CompressionType) -> None:
    # Not theirs by us: their chunks are of exactly the broker's maximum, more than a standalone's storage takes, which
    # then rolls ledgers without end. They have no option for smaller ones.
    name = topic()
    content = random.Random(1).randbytes(12 << 20)
    producer = client.create_producer(name, chunking_enabled=True, batching_enabled=False, compression_type=compression)
    ours = producer.send(content, properties={"by": "us"})
    reader = peer.create_reader(name, official.MessageId.earliest)
    read = reader.read_next(20_000)
    assert read.data() == content and read.properties() == {"by": "us"}
    found = MessageId.deserialize(read.message_id().serialize())
    assert found == ours and found.first_chunk_message_id() == ours.first_chunk_message_id()
    reader.close()


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("compression", list(CompressionType), ids=lambda kind: kind.name)
class TestEveryCompression:
    """Both ways, in batches and single."""

    def test_ours_is_read(
        self, api: Api, client: Any, peer: Any, topic: NewTopic, compression: CompressionType, batching: bool
    ) -> None:
        name = topic()
        producer = client.create_producer(
            name, compression_type=compression, batching_enabled=batching, batching_max_publish_delay_ms=60_000
        )
        ids = api.send_all(producer, CONTENTS, properties={"a": "1"}, partition_key="key", event_timestamp=5)
        reader = peer.create_reader(name, official.MessageId.earliest)
        messages = [reader.read_next(10_000) for _ in CONTENTS]
        assert [message.data() for message in messages] == CONTENTS
        for message, place in zip(messages, ids, strict=True):
            assert MessageId.deserialize(message.message_id().serialize()) == place
            assert (message.properties(), message.partition_key(), message.event_timestamp()) == ({"a": "1"}, "key", 5)
        reader.close()

    def test_theirs_is_read(
        self, client: Any, peer: Any, topic: NewTopic, compression: CompressionType, batching: bool
    ) -> None:
        name = topic()
        producer = peer.create_producer(
            name,
            compression_type=official.CompressionType(int(compression)),
            batching_enabled=batching,
            batching_max_publish_delay_ms=1000,
        )
        places: list[bytes] = []
        for content in CONTENTS:
            producer.send_async(
                content,
                lambda result, place: places.append(place.serialize()),
                properties={"a": "1"},
                partition_key="key",
                event_timestamp=5,
            )
        producer.flush()
        reader = client.create_reader(name, MessageId.earliest)
        messages = [reader.read_next(10_000) for _ in CONTENTS]
        assert [message.data() for message in messages] == CONTENTS
        for message in messages:
            assert (message.properties(), message.partition_key(), message.event_timestamp()) == ({"a": "1"}, "key", 5)
            assert message.producer_name() == producer.producer_name()
        producer.close()


def test_ids_go_both_ways_as_bytes(api: Api, client: Any, peer: Any, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    ids = api.send_all(producer, [b"%d" % number for number in range(5)])
    for number, place in enumerate(ids):
        theirs = official.MessageId.deserialize(place.serialize())
        assert (theirs.ledger_id(), theirs.entry_id(), theirs.batch_index(), theirs.partition()) == (
            place.ledger_id(), place.entry_id(), place.batch_index(), place.partition(),
        )  # fmt: skip
        reader = peer.create_reader(name, theirs, start_message_id_inclusive=True)
        message = reader.read_next(10_000)
        assert message.data() == b"%d" % number
        back = MessageId.deserialize(message.message_id().serialize())
        assert back == place and hash(back) == hash(place)
        reader.close()
    for ours, theirs in (
        (MessageId.earliest, official.MessageId.earliest),
        (MessageId.latest, official.MessageId.latest),
    ):
        wrapped = official.MessageId.wrap(theirs)
        assert MessageId.deserialize(wrapped.serialize()) == ours


def test_one_subscription_is_continued_by_the_other(client: Any, peer: Any, api: Api, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    api.send_all(producer, [b"%d" % number for number in range(9)])
    ours = client.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    for _ in range(3):
        ours.acknowledge(ours.receive(10_000))
    ours.close()
    theirs = peer.subscribe(name, "sub")
    for expected in (b"3", b"4", b"5"):
        message = theirs.receive(10_000)
        assert message.data() == expected
        theirs.acknowledge(message)
    theirs.close()
    again = client.subscribe(name, "sub")
    assert [again.receive(10_000).data() for _ in range(3)] == [b"6", b"7", b"8"]


def test_a_shared_subscription_with_members_of_both(client: Any, peer: Any, api: Api, topic: NewTopic) -> None:
    name = topic()
    ours = client.subscribe(name, "sub", ConsumerType.Shared, receiver_queue_size=5)
    theirs = peer.subscribe(name, "sub", official.ConsumerType.Shared, receiver_queue_size=5)
    api.send_all(client.create_producer(name, batching_enabled=False), [b"%d" % number for number in range(20)])

    def take(consumer: Any, timeout: type[Exception]) -> list[int]:
        taken = []
        try:
            while True:
                message = consumer.receive(500)
                taken.append(int(message.data()))
                consumer.acknowledge(message)
        except timeout:
            return taken

    shares = [take(ours, pulsar_native.Timeout), take(theirs, official.Timeout)]
    assert all(shares) and sorted(shares[0] + shares[1]) == list(range(20))
    theirs.close()


def test_a_program_for_the_official_client_runs_on_ours(broker: Broker) -> None:
    printed = []
    for package in ("pulsar", "pulsar_native"):
        done = subprocess.run(
            [sys.executable, str(PROGRAM), package, broker.service_url],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        # The official package sometimes aborts at the interpreter's end, when all is said.
        assert done.returncode == 0 or package == "pulsar", done.stderr[-3000:]
        printed.append([json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")])
    theirs, ours = printed
    assert len(theirs) > 30 and ours == theirs


def test_the_names_programs_use_are_there() -> None:
    classes = {name for name in dir(official) if isinstance(getattr(official, name), type) and name[0].isupper()}
    own = {name for name in classes if getattr(official, name).__module__.split(".")[0] in ("pulsar", "_pulsar")}
    assert {name for name in own if not hasattr(pulsar_native, name)} == set()
