"""When a batch is closed, what is in it, and how round robin goes with it, on a real broker."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import CompressionType, Result
from support.brokers import Broker, NewTopic
from support.faces import Face
from support.raw import sent_entries
from support.relay import NewRelay, Relay

ReadAll = Callable[..., list[Any]]

# Long enough to never pass in a test: a batch is closed by something else.
NEVER_MS = 60_000


@pytest.fixture
def through(relay: NewRelay, broker: Broker) -> Relay:
    """Give a relay before the shared broker."""
    return relay(broker.service_url)


@pytest.fixture
def seen_client(face: Face, through: Relay) -> Any:
    """Give a client whose frames the relay sees."""
    return face.client(through.service_url)


def counts(through: Relay) -> list[int]:
    """Return the number of messages in each entry sent, 0 where it is not a batch."""
    return [
        entry.metadata.num_messages_in_batch if entry.metadata.HasField("num_messages_in_batch") else 0
        for entry in sent_entries(through)
    ]


@pytest.mark.proves("C52")
def test_batching_on_and_off(face: Face, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll) -> None:
    contents = [b"1", b"2", b"3"]
    name = topic()
    batching = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    ids = face.send_all(batching, contents)
    assert counts(through) == [3]
    single = seen_client.create_producer(name, batching_enabled=False)
    ids += face.send_all(single, contents)
    assert counts(through) == [3, 0, 0, 0]
    messages = read_all(name)
    assert [message.data() for message in messages] == contents * 2
    assert [message.message_id() for message in messages] == ids
    assert [message.message_id().batch_index() for message in messages] == [0, 1, 2, -1, -1, -1]


def test_defaults_are_the_official_ones(face: Face, seen_client: Any, through: Relay, topic: NewTopic) -> None:
    producer = seen_client.create_producer(topic())
    face.send_all(producer, [b"x"] * 5)
    assert counts(through) == ([5] if face.name == "asyncio" else [0] * 5)


@pytest.mark.proves("C53")
def test_a_message_waits_for_its_batch_as_long_as_told(face: Face, client: Any, topic: NewTopic) -> None:
    producer = client.create_producer(topic(), batching_enabled=True, batching_max_publish_delay_ms=300)
    for _ in range(2):
        started = time.monotonic()
        assert face.enqueue(producer, b"alone").result(10)[0] is Result.Ok
        assert 0.28 < time.monotonic() - started < 1


@pytest.mark.proves("C54")
def test_a_batch_is_closed_by_count(
    face: Face, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = seen_client.create_producer(
        name,
        batching_enabled=True,
        batching_max_publish_delay_ms=NEVER_MS,
        batching_max_messages=1000,
        max_pending_messages=0,
    )
    ids = face.send_all(producer, [b"%d" % number for number in range(2500)])
    assert counts(through) == [1000, 1000, 500]
    assert [(e.command.sequence_id, e.command.highest_sequence_id) for e in sent_entries(through)] == [
        (0, 999), (1000, 1999), (2000, 2499),
    ]  # fmt: skip
    messages = read_all(name)
    assert [message.data() for message in messages] == [b"%d" % number for number in range(2500)]
    assert [message.message_id() for message in messages] == ids


@pytest.mark.proves("C55")
def test_a_batch_is_closed_by_size(face: Face, seen_client: Any, through: Relay, topic: NewTopic) -> None:
    producer = seen_client.create_producer(topic(), batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    face.send_all(producer, [os.urandom(50 * 1024) for _ in range(10)])
    entries = sent_entries(through)
    assert len(entries) >= 5
    assert all(len(entry.body) <= 128 * 1024 for entry in entries)
    assert sum(max(count, 1) for count in counts(through)) == 10
    # A message larger than the limit goes alone, and what was before it goes before it.
    face.send_all(producer, [b"small", os.urandom(300 * 1024), b"small too"])
    assert counts(through)[len(entries) :] == [0, 0, 0]


def test_flush_and_close_close_the_batch(
    face: Face, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    for _ in range(4):
        face.enqueue(producer, b"x")
    producer.flush()
    producer.flush()
    last = [face.enqueue(producer, b"x") for _ in range(2)]
    producer.close()
    assert counts(through) == [4, 2] and [each.result(1)[0] for each in last] == [Result.Ok] * 2
    assert len(read_all(name)) == 6


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("compression", list(CompressionType))
def test_every_compression_comes_back(
    face: Face,
    seen_client: Any,
    through: Relay,
    topic: NewTopic,
    read_all: ReadAll,
    compression: CompressionType,
    batching: bool,
) -> None:
    name = topic()
    producer = seen_client.create_producer(
        name, compression_type=compression, batching_enabled=batching, batching_max_publish_delay_ms=NEVER_MS
    )
    contents = [b"", b"a" * 10_000, os.urandom(5000), b"z"]
    face.send_all(producer, contents)
    # Nothing is left of an empty message to compress.
    assert {entry.metadata.compression for entry in sent_entries(through) if entry.body} == {int(compression)}
    assert [message.data() for message in read_all(name)] == contents


def test_delayed_messages_are_never_in_a_batch(
    face: Face, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    for number in range(6):
        face.enqueue(producer, b"%d" % number, **({"deliver_after": 1} if number in (2, 3) else {}))
    producer.flush()
    entries = sent_entries(through)
    assert counts(through) == [2, 0, 0, 2]
    assert [entry.metadata.HasField("deliver_at_time") for entry in entries] == [False, True, True, False]
    assert [message.data() for message in read_all(name)] == [b"%d" % number for number in range(6)]


@pytest.mark.proves("C75")
def test_possible_duplicates_never_share_a_batch_with_new_messages(
    face: Face,
    seen_client: Any,
    through: Relay,
    broker: Broker,
    namespace: Callable[[], str],
    topic: NewTopic,
    read_all: ReadAll,
) -> None:
    space = namespace()
    broker.admin("POST", f"namespaces/{space}/deduplication", True)
    name = topic(namespace=space)
    producer = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    outcomes = [
        face.enqueue(producer, b"%d.%d" % (number, at), sequence_id=number) for at, number in enumerate((5, 6, 5, 7, 8))
    ]
    producer.flush()
    assert [outcome.result(10)[0] for outcome in outcomes] == [Result.Ok] * 5
    # The broker may ask for the second 5 again while the first is being stored: resends change no boundary.
    commands = [entry.command for entry in sent_entries(through)]
    assert not any(each.sequence_id <= 5 and each.highest_sequence_id > 6 for each in commands)
    assert [message.data() for message in read_all(name)] == [b"5.0", b"6.1", b"7.3", b"8.4"]


@pytest.mark.proves("C50")
def test_round_robin_moves_on_per_batch_time(face: Face, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=4)
    batching = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=20)
    sent: list[tuple[float, Any]] = []
    started = time.monotonic()
    while (now := time.monotonic() - started) < 1:
        sent.append((now, face.enqueue(batching, b"x")))
        time.sleep(0.005)
    batching.flush()
    partitions = [(at, outcome.result(10)[1].partition()) for at, outcome in sent]
    runs = [list(run) for _, run in itertools.groupby(partitions, key=lambda each: each[1])]
    assert 5 <= len(runs) <= 7, "1 s in slices of 10 x 20 ms"
    assert len({partition for _, partition in partitions}) == 4
    for run in runs[1:-1]:
        assert 0.15 < run[-1][0] - run[0][0] < 0.25
    single = client.create_producer(name, batching_enabled=False)
    order = [each.partition() for each in face.send_all(single, [b"x"] * 8)]
    assert order == [(order[0] + number) % 4 for number in range(8)]
