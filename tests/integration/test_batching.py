"""When a batch is closed, what is in it, and how round robin goes with it, on a real broker."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_native import BatchingType, Client, CompressionType, InvalidMessage, Result
from pulsar_native.protocol import producer as core
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import sent_entries
from support.relay import TO_CLIENT, Command, NewRelay, Relay
from support.signals import TimeLimit, time_limit

ReadAll = Callable[..., list[Any]]

# Long enough to never pass in a test: a batch is closed by something else.
NEVER_MS = 60_000


@pytest.fixture
def through(relay: NewRelay, broker: Broker) -> Relay:
    """Give a relay before the shared broker."""
    return relay(broker.service_url)


@pytest.fixture
def seen_client(api: Api, through: Relay) -> Any:
    """Give a client whose frames the relay sees."""
    return api.client(through.service_url)


def counts(through: Relay) -> list[int]:
    """Return the number of messages in each entry sent, 0 where it is not a batch."""
    return [
        entry.metadata.num_messages_in_batch if entry.metadata.HasField("num_messages_in_batch") else 0
        for entry in sent_entries(through)
    ]


@pytest.mark.proves("C52")
def test_batching_on_and_off(api: Api, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll) -> None:
    contents = [b"1", b"2", b"3"]
    name = topic()
    batching = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    ids = api.send_all(batching, contents)
    assert counts(through) == [3]
    single = seen_client.create_producer(name, batching_enabled=False)
    ids += api.send_all(single, contents)
    assert counts(through) == [3, 0, 0, 0]
    messages = read_all(name)
    assert [message.data() for message in messages] == contents * 2
    assert [message.message_id() for message in messages] == ids
    assert [message.message_id().batch_index() for message in messages] == [0, 1, 2, -1, -1, -1]


def test_defaults_are_the_official_ones(api: Api, seen_client: Any, through: Relay, topic: NewTopic) -> None:
    producer = seen_client.create_producer(topic())
    api.send_all(producer, [b"x"] * 5)
    assert counts(through) == ([5] if api.name == "asyncio" else [0] * 5)


@pytest.mark.proves("C53")
def test_a_message_waits_for_its_batch_as_long_as_told(api: Api, client: Any, topic: NewTopic) -> None:
    producer = client.create_producer(topic(), batching_enabled=True, batching_max_publish_delay_ms=300)
    for _ in range(2):
        started = time.monotonic()
        assert api.enqueue(producer, b"alone").result(10)[0] is Result.Ok
        assert 0.28 < time.monotonic() - started < 5


@pytest.mark.proves("C54")
def test_a_batch_is_closed_by_count(
    api: Api, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = seen_client.create_producer(
        name,
        batching_enabled=True,
        batching_max_publish_delay_ms=NEVER_MS,
        batching_max_messages=1000,
        max_pending_messages=0,
    )
    ids = api.send_all(producer, [b"%d" % number for number in range(2500)])
    assert counts(through) == [1000, 1000, 500]
    assert [(e.command.sequence_id, e.command.highest_sequence_id) for e in sent_entries(through)] == [
        (0, 999), (1000, 1999), (2000, 2499),
    ]  # fmt: skip
    messages = read_all(name)
    assert [message.data() for message in messages] == [b"%d" % number for number in range(2500)]
    assert [message.message_id() for message in messages] == ids


@pytest.mark.proves("C55")
def test_a_batch_is_closed_by_size(api: Api, seen_client: Any, through: Relay, topic: NewTopic) -> None:
    producer = seen_client.create_producer(topic(), batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    api.send_all(producer, [os.urandom(50 * 1024) for _ in range(10)])
    entries = sent_entries(through)
    assert len(entries) >= 5
    assert all(len(entry.body) <= 128 * 1024 for entry in entries)
    assert sum(max(count, 1) for count in counts(through)) == 10
    # A message larger than the limit goes alone, and what was before it goes before it.
    api.send_all(producer, [b"small", os.urandom(300 * 1024), b"small too"])
    assert counts(through)[len(entries) :] == [0, 0, 0]


def test_flush_and_close_close_the_batch(
    api: Api, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    for _ in range(4):
        api.enqueue(producer, b"x")
    producer.flush()
    producer.flush()
    last = [api.enqueue(producer, b"x") for _ in range(2)]
    producer.close()
    assert counts(through) == [4, 2] and [each.result(1)[0] for each in last] == [Result.Ok] * 2
    assert len(read_all(name)) == 6


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("compression", list(CompressionType))
def test_every_compression_comes_back(
    api: Api,
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
    api.send_all(producer, contents)
    # Nothing is left of an empty message to compress.
    assert {entry.metadata.compression for entry in sent_entries(through) if entry.body} == {int(compression)}
    assert [message.data() for message in read_all(name)] == contents


def test_delayed_messages_are_never_in_a_batch(
    api: Api, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    for number in range(6):
        api.enqueue(producer, b"%d" % number, **({"deliver_after": 1} if number in (2, 3) else {}))
    producer.flush()
    entries = sent_entries(through)
    assert counts(through) == [2, 0, 0, 2]
    assert [entry.metadata.HasField("deliver_at_time") for entry in entries] == [False, True, True, False]
    assert [message.data() for message in read_all(name)] == [b"%d" % number for number in range(6)]


@pytest.mark.proves("C75")
def test_possible_duplicates_never_share_a_batch_with_new_messages(
    api: Api,
    seen_client: Any,
    through: Relay,
    deduplicating: str,
    topic: NewTopic,
    read_all: ReadAll,
) -> None:
    name = topic(namespace=deduplicating)
    producer = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    outcomes = [
        api.enqueue(producer, b"%d.%d" % (number, at), sequence_id=number) for at, number in enumerate((5, 6, 5, 7, 8))
    ]
    producer.flush()
    assert [outcome.result(10)[0] for outcome in outcomes] == [Result.Ok] * 5
    # The broker may ask for the second 5 again while the first is being stored: resends change no boundary.
    commands = [entry.command for entry in sent_entries(through)]
    assert not any(each.sequence_id <= 5 and each.highest_sequence_id > 6 for each in commands)
    assert [message.data() for message in read_all(name)] == [b"5.0", b"6.1", b"7.3", b"8.4"]


@pytest.mark.proves("C50")
def test_round_robin_moves_on_per_batch_time(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=4)
    batching = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=20)
    sent: list[tuple[float, Any]] = []
    started = time.monotonic()
    while (now := time.monotonic() - started) < 1:
        sent.append((now, api.enqueue(batching, b"x")))
        time.sleep(0.005)
    batching.flush()
    partitions = [(at, outcome.result(10)[1].partition()) for at, outcome in sent]
    runs = [list(run) for _, run in itertools.groupby(partitions, key=lambda each: each[1])]
    # On a busy machine messages are missing where a slice begins or ends, or for the whole of it.
    pauses = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(partitions)]
    pause, missed = max(pauses), sum(1 + int(each / 0.2) for each in pauses if each > 0.1)
    assert 5 - missed <= len(runs) <= 7, "1 s in slices of 10 x 20 ms"
    assert 4 - missed <= len({partition for _, partition in partitions}) <= 4
    for run in runs[1:-1]:
        assert 0.19 - 2 * pause < run[-1][0] - run[0][0] < 0.21 + pause
    single = client.create_producer(name, batching_enabled=False)
    order = [each.partition() for each in api.send_all(single, [b"x"] * 8)]
    assert order == [(order[0] + number) % 4 for number in range(8)]


@pytest.mark.proves("C74")
def test_what_never_shares_an_entry(
    api: Api, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = seen_client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS)
    own: list[dict[str, Any]] = [
        {"deliver_at": int(time.time() * 1000) + 1},
        {"deliver_after": 1},
        {"replication_clusters": ["standalone"]},
        {"disable_replication": True},
    ]
    outcomes = []
    for number, parts in enumerate(own):
        outcomes += [api.enqueue(producer, b"a%d" % number), api.enqueue(producer, b"b%d" % number)]
        outcomes.append(api.enqueue(producer, b"own%d" % number, **parts))
    outcomes += [api.enqueue(producer, b"last"), api.enqueue(producer, b"of all")]
    producer.flush()
    assert {outcome.result(10)[0] for outcome in outcomes} == {Result.Ok}
    # What was sent before goes out before: the order stays.
    assert counts(through) == [2, 0] * 4 + [2]
    alone = [entry for entry in sent_entries(through) if not entry.metadata.HasField("num_messages_in_batch")]
    assert [entry.body for entry in alone] == [b"own0", b"own1", b"own2", b"own3"]
    assert [bool(entry.metadata.deliver_at_time) for entry in alone] == [True, True, False, False]
    assert [list(entry.metadata.replicate_to) for entry in alone[2:]] == [["standalone"], ["__local__"]]
    not_batching = seen_client.create_producer(name, batching_enabled=False)
    api.send_all(not_batching, [b"x"] * 3)
    assert counts(through)[-3:] == [0, 0, 0]


@pytest.mark.proves("C52", "C73")
def test_a_batch_for_each_key(
    api: Api, client: Any, seen_client: Any, through: Relay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = seen_client.create_producer(
        name,
        batching_enabled=True,
        batching_type=BatchingType.KeyBased,
        batching_max_publish_delay_ms=NEVER_MS,
        batching_max_messages=12,
    )
    keys = [None, "a", "b", "c"]
    outcomes = [
        api.enqueue(producer, b"%d" % number, partition_key=keys[number * number % 4 if number % 3 else 2])
        for number in range(24)
    ]
    ids = [outcome.result(10)[1] for outcome in outcomes]
    expected: list[list[bytes]] = []
    for start in (0, 12):
        groups: dict[str | None, list[int]] = {}
        for number in range(start, start + 12):
            groups.setdefault(keys[number * number % 4 if number % 3 else 2], []).append(number)
        expected += [[b"%d" % number for number in group] for group in sorted(groups.values(), key=max)]
    entries = sent_entries(through)
    assert [max(1, count) for count in counts(through)] == [len(group) for group in expected]
    # Ids that grow from entry to entry, or deduplication would take a later batch for one it has.
    assert [entry.command.sequence_id for entry in entries] == [int(group[-1]) for group in expected]
    messages = read_all(name)
    assert [message.data() for message in messages] == [value for group in expected for value in group]
    assert {int(m.data()): m.message_id() for m in messages} == dict(enumerate(ids))
    assert all(m.sequence_id() == int(m.data()) for m in messages)
    assert producer.last_sequence_id() == 23


@pytest.mark.proves("C66", "C73")
def test_batches_by_key_are_sent_again_as_they_were(
    api: Api, client: Any, through: Relay, seen_client: Any, topic: NewTopic,
    deduplicating: str, read_all: ReadAll,
) -> None:  # fmt: skip
    name = topic(namespace=deduplicating)
    producer = seen_client.create_producer(
        name, batching_enabled=True, batching_type=BatchingType.KeyBased, send_timeout_millis=0
    )
    for turn in range(5):
        through.let_pass(Command.SEND_RECEIPT, TO_CLIENT)
        through.drop(Command.SEND_RECEIPT, TO_CLIENT, times=None)
        before = through.count(Command.SEND_RECEIPT)
        outcomes = [api.enqueue(producer, b"%d" % n, partition_key=str(n % 3)) for n in range(9 * turn, 9 * turn + 9)]
        through.wait_for(Command.SEND_RECEIPT, before + 2)
        through.release()
        through.cut()
        assert {outcome.result(20)[0] for outcome in outcomes} == {Result.Ok}
    assert sorted(int(message.data()) for message in read_all(name)) == list(range(45))


@pytest.mark.parametrize("closed_by", ["flush", "count"])
def test_key_batches_survive_signal_handler(
    plain_client: Client, topic: NewTopic, deduplicating: str, read_all: ReadAll, closed_by: str
) -> None:
    name = topic(namespace=deduplicating)
    producer = plain_client.create_producer(
        name,
        batching_enabled=True,
        batching_type=BatchingType.KeyBased,
        batching_max_publish_delay_ms=NEVER_MS,
        batching_max_messages=6 if closed_by == "count" else 100,
    )
    results: list[tuple[int, Result]] = []

    def send(number: int) -> None:
        callback = partial(lambda number, result, _id: results.append((number, result)), number)
        producer.send_async(b"%d" % number, callback, partition_key=f"k{number % 3}")

    with pytest.MonkeyPatch.context() as patch, time_limit() as interrupted, pytest.raises(TimeLimit):
        real, calls = core.encode_batch, itertools.count(1)
        # The second entry of three.
        patch.setattr(core, "encode_batch", lambda *args: interrupted() if next(calls) == 2 else real(*args))
        for number in range(6):
            send(number)
        producer.flush()
    send(6)
    producer.flush(timeout=20)
    assert sorted(results) == [(number, Result.Ok) for number in range(7)]
    assert [message.data() for message in read_all(name)] == [b"0", b"3", b"1", b"4", b"2", b"5", b"6"]


@pytest.mark.proves("C71")
def test_what_was_sent_or_received_can_be_used_again(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    consumer = client.subscribe(name, "sub")
    properties, content = {"number": "?"}, bytearray()
    outcomes = []
    for number in range(3):
        properties["number"], content[:] = str(number), b"%d" % number
        outcomes.append(api.enqueue(producer, content, properties=properties))
        if number == 1:
            producer.flush()
    # All of them are still the caller's, and change before the open batch has left.
    properties.clear()
    content[:] = b"changed"
    producer.flush()
    assert {each.result(10)[0] for each in outcomes} == {Result.Ok}
    received = [consumer.receive(10_000) for _ in range(3)]
    assert [(each.data(), each.properties()) for each in received] == [
        (b"%d" % number, {"number": str(number)}) for number in range(3)
    ]
    # A received message has an id, a producer and a time of its own: it is not sent again, its content is.
    with pytest.raises(InvalidMessage, match="not Message"):
        producer.send(received[0])
    api.send_all(producer, [received[0].data()], properties=received[0].properties())
    assert consumer.receive(10_000).data() == b"0"
