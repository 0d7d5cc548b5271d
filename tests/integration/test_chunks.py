"""Messages too large for one entry, cut into chunks and put together again, on a real broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import (
    CompressionType,
    ConsumerType,
    CryptoKeyReader,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
    ProducerQueueIsFull,
    Result,
    Timeout,
)
from pulsar_native.protocol.producer import ProducerCore
from support.apis import Api
from support.brokers import Broker, NewTopic, admin
from support.key_files import key_pair
from support.raw import sent_entries
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay, Relay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest
MIB = 1024 * 1024


@pytest.fixture
def through(relay: NewRelay, broker: Broker) -> Relay:
    """Give a relay before the shared broker."""
    return relay(broker.service_url)


def chunking(client: Any, name: str, **options: Any) -> Any:
    """Return a producer that makes chunks of at most 1000 bytes, unless told otherwise."""
    options = {"chunk_max_message_size": 1000, "send_timeout_millis": 0, **options}
    return client.create_producer(name, chunking_enabled=True, batching_enabled=False, **options)


def noise(size: int, seed: int = 0) -> bytes:
    """Return bytes that do not compress."""
    return random.Random(seed).randbytes(size)


def key(place: MessageId) -> tuple[int, int]:
    """Return ledger and entry."""
    return place.ledger_id(), place.entry_id()


@pytest.mark.proves("C61", "C80")
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_twelve_mebibytes(client: Any, topic: NewTopic, compression: CompressionType) -> None:
    name = topic()
    payload = noise(12 * MIB)
    consumer = client.subscribe(name, "sub")
    producer = chunking(client, name, chunk_max_message_size=-1, compression_type=compression)
    place = producer.send(payload, partition_key="k", properties={"a": "b"})
    first = place.first_chunk_message_id()
    assert first is not None and place.entry_id() - first.entry_id() == 2, "three chunks of at most 5 MiB"
    message = consumer.receive(30_000)
    assert message.data() == payload and (message.partition_key(), message.properties()) == ("k", {"a": "b"})
    assert message.message_id() == place and message.message_id().first_chunk_message_id() == first
    assert MessageId.deserialize(place.serialize()).first_chunk_message_id() == first
    assert producer.last_sequence_id() == message.sequence_id() == 0


@pytest.mark.proves("C61", "C74", "C80")
def test_what_goes_over_the_wire(api: Api, through: Relay, topic: NewTopic) -> None:
    client = api.client(through.service_url)
    with pytest.raises(InvalidConfiguration, match="batching_enabled=False"):
        client.create_producer(topic(), chunking_enabled=True, batching_enabled=True)
    with pytest.raises(InvalidConfiguration, match="persistent"):
        chunking(client, topic().replace("persistent", "non-persistent"))
    assert not through.frames(Command.PRODUCER, TO_BROKER)
    producer = chunking(client, topic(), compression_type=CompressionType.LZ4)
    payload = noise(5000)
    api.send_all(producer, [payload, b"small"])
    *chunks, small = sent_entries(through)
    uuid = f"{producer.producer_name()}-0"
    total = sum(len(chunk.body) for chunk in chunks)
    assert total > 5000, "compressed before it is cut"
    for number, chunk in enumerate(chunks):
        assert chunk.command.is_chunk and chunk.command.sequence_id == 0
        # A broker that loads the topic takes each for a whole message: only the last one counts as this one.
        assert chunk.metadata.sequence_id == (0 if number == 5 else (1 << 64) - 1)
        assert (chunk.metadata.uuid, chunk.metadata.num_chunks_from_msg) == (uuid, 6)
        assert (chunk.metadata.chunk_id, chunk.metadata.total_chunk_msg_size) == (number, total)
        assert chunk.metadata.uncompressed_size == 5000 and len(chunk.body) <= 1000
        assert not chunk.metadata.HasField("num_messages_in_batch")
    assert not small.command.is_chunk and not small.metadata.HasField("uuid")


@pytest.mark.proves("C44", "C79", "C80")
def test_each_chunk_takes_a_permit(api: Api, through: Relay, topic: NewTopic) -> None:
    client = api.client(through.service_url)
    name = topic()
    raising = chunking(client, name, max_pending_messages=5)
    blocking = chunking(client, name, max_pending_messages=5, block_if_queue_full=True)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    held = [api.enqueue(producer, noise(3000)) for producer in (raising, blocking)]
    with pytest.raises(ProducerQueueIsFull):
        api.enqueue_refused(raising, noise(3000))
    fits = api.enqueue(raising, noise(2000))
    through.release()
    # Blocks until the receipts of the first one have made room.
    held.append(api.enqueue(blocking, noise(5000)))
    assert {outcome.result(10)[0] for outcome in [*held, fits]} == {Result.Ok}
    reader = client.create_reader(name, MessageId.earliest)
    sizes = sorted(len(reader.read_next(10_000).data()) for _ in range(4))
    assert sizes == [2000, 3000, 3000, 5000]


@pytest.mark.proves("C80")
def test_interleaved_producers_and_a_queue_of_one(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", receiver_queue_size=1)
    producers = [chunking(client, name) for _ in range(4)]
    outcomes = [
        api.enqueue(producer, noise(4500, seed=10 * number + turn))
        for turn in range(5)
        for number, producer in enumerate(producers)
    ]
    sent = {key(outcome.result(20)[1]) for outcome in outcomes}
    got = []
    for _ in outcomes:
        got.append(consumer.receive(10_000))
        consumer.acknowledge(got[-1])
    assert {message.data() for message in got} == {noise(4500, seed=10 * n + t) for n in range(4) for t in range(5)}
    assert {key(message.message_id()) for message in got} == sent
    with pytest.raises(Timeout):
        consumer.receive(300)


@pytest.mark.proves("C80", "C134")
@pytest.mark.parametrize("by_id", [False, True])
def test_acknowledging_covers_every_chunk(
    api: Api, client: Any, topic: NewTopic, stats: Stats, eventually: Eventually, by_id: bool
) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", ConsumerType.Shared)
    producer = chunking(client, name)
    api.send_all(producer, [noise(3500, seed=number) for number in range(3)])
    messages = [consumer.receive(10_000) for _ in range(3)]
    for message in messages[:2]:
        consumer.acknowledge(MessageId.deserialize(message.message_id().serialize()) if by_id else message)
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 4)
    consumer.close()
    again = client.subscribe(name, "sub", ConsumerType.Shared)
    left = again.receive(10_000)
    assert left.data() == noise(3500, seed=2)
    again.acknowledge(left)
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.mark.proves("C80")
def test_refused_and_late_messages_come_again_whole(client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = chunking(client, name)
    nacking = client.subscribe(name, "nack", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    slow = client.subscribe(name, "slow", ConsumerType.Shared, unacked_messages_timeout_ms=1000)
    producer.send(noise(3500))
    nacking.negative_acknowledge(nacking.receive(10_000))
    slow.receive(10_000)
    for consumer in (nacking, slow):
        message = consumer.receive(20_000)
        assert message.data() == noise(3500) and message.redelivery_count() >= 1
        consumer.acknowledge(message)


@pytest.mark.proves("C80", "C138")
def test_cumulative_acknowledgement_keeps_the_chunks_of_a_later_message(
    api: Api, client: Any, through: Relay, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    slow = chunking(api.client(through.service_url), name)
    quick = chunking(client, name)
    consumer = client.subscribe(name, "sub", acknowledgment_group_time_ms=0)
    # Of the second chunk of three, the broker hears later: the other producer's message lies in between.
    through.let_pass(Command.SEND, TO_BROKER)
    through.hold(Command.SEND, TO_BROKER)
    waiting = api.enqueue(slow, noise(2500, seed=1))
    eventually(lambda: stats(name)["msgInCounter"] == 1)
    quick.send(noise(2500, seed=2))
    consumer.acknowledge_cumulative(consumer.receive(10_000))
    through.release()
    assert waiting.result(10)[0] is Result.Ok
    consumer.close()
    again = client.subscribe(name, "sub")
    got = []
    while not got or got[-1].data() != noise(2500, seed=1):
        got.append(again.receive(10_000))
    again.acknowledge_cumulative(got[-1])
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.mark.proves("C66", "C80")
def test_a_connection_lost_between_chunks(
    api: Api,
    client: Any,
    through: Relay,
    topic: NewTopic,
    deduplicating: str,
    stats: Stats,
    eventually: Eventually,
) -> None:
    name = topic(namespace=deduplicating)
    # Not Shared: there the broker of 4.2.4 keeps chunks whose first one it delivered before, and stops delivering.
    consumer = client.subscribe(name, "sub", expire_time_of_incomplete_chunked_message_ms=3000)
    reader = client.create_reader(name, MessageId.earliest)
    producer = chunking(api.client(through.service_url), name)
    expected = [noise(3500, seed=number) for number in range(8)]
    ids: list[tuple[int, int] | None] = []
    for number, payload in enumerate(expected):
        # Some chunks get through and are confirmed. Of the others either the chunk or its receipt is lost: the broker
        # has the whole message, or a part of it, when the rest is sent again.
        lost, way = ((Command.SEND, TO_BROKER), (Command.SEND_RECEIPT, TO_CLIENT))[number % 2]
        if number // 2:
            through.let_pass(lost, way, times=number // 2)
        through.drop(lost, way, times=None)
        before = through.count(lost, way)
        outcome = api.enqueue(producer, payload)
        through.wait_for(lost, before + 4)
        through.release()
        through.cut()
        result, place = outcome.result(30)
        # Stored as a whole before: then only the broker knows where.
        assert result is Result.Ok and place is not None
        ids.append(key(place) if place.first_chunk_message_id() else None)
    assert [reader.read_next(10_000).data() for _ in expected] == expected
    for number, payload in enumerate(expected):
        message = consumer.receive(10_000)
        assert message.data() == payload
        assert ids[number] == (None if number % 2 else key(message.message_id()))
        consumer.acknowledge(message)
    with pytest.raises(Timeout):
        consumer.receive(300)
    # What was stored twice is acknowledged, too.
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.mark.proves("C66", "C80")
@pytest.mark.parametrize("before", [0, 1], ids=["first message", "later message"])
@pytest.mark.parametrize("stored", [1, 3])
def test_a_topic_unloaded_between_chunks_gets_the_message(
    api: Api, broker: Broker, client: Any, through: Relay, topic: NewTopic, deduplicating: str, before: int, stored: int
) -> None:
    name = topic(namespace=deduplicating)
    producer = chunking(api.client(through.service_url), name)
    expected = [noise(3500, seed=number) for number in range(before + 2)]
    api.send_all(producer, expected[:before])
    # The topic is loaded again with a part of the message: the broker must not take it for the whole.
    sent = through.count(Command.SEND, TO_BROKER)
    through.let_pass(Command.SEND, TO_BROKER, times=stored)
    through.drop(Command.SEND, TO_BROKER, times=None)
    outcomes = [api.enqueue(producer, payload) for payload in expected[before:]]
    through.wait_for(Command.SEND_RECEIPT, 4 * before + stored)
    through.wait_for(Command.SEND, sent + 8)
    through.release()
    admin(broker.admin_url, "PUT", f"{name.replace('://', '/')}/unload")
    for outcome in outcomes:
        result, place = outcome.result(30)
        assert result is Result.Ok and place is not None and place.first_chunk_message_id() is not None
    reader = client.create_reader(name, MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(10_000).data())
    assert read == expected


@pytest.mark.proves("C66", "C80")
def test_stored_chunks_without_receipts_are_not_stored_again(
    api: Api, client: Any, through: Relay, topic: NewTopic, deduplicating: str
) -> None:
    name = topic(namespace=deduplicating)
    producer = chunking(api.client(through.service_url), name)
    expected = [noise(3500, seed=number) for number in range(5)]
    through.drop(Command.SEND_RECEIPT, TO_CLIENT, times=None)
    outcomes = [api.enqueue(producer, payload) for payload in expected]
    through.wait_for(Command.SEND_RECEIPT, 20)
    through.release()
    through.cut()
    # Of duplicates the broker drops the last chunk at once: the receipt would overtake those of the others.
    for outcome in outcomes:
        result, place = outcome.result(30)
        assert result is Result.Ok and place is not None and place.entry_id() == -1
    api.send_all(producer, [b"next"])
    assert through.accepted == 2 and through.count(Command.SEND, TO_BROKER) == 20 + 5 + 1
    reader = client.create_reader(name, MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(6)] == [*expected, b"next"]


@pytest.mark.proves("C80", "C113")
def test_chunks_kept_of_a_dropped_duplicate_are_no_message(
    api: Api, broker: Broker, client: Any, topic: NewTopic, deduplicating: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = ProducerCore.connected

    def without_id(core: ProducerCore, name: str, _: int, *more: Any) -> None:
        connected(core, name, -1, *more)

    name = topic(namespace=deduplicating)
    ids = []
    for _ in range(2):
        producer = chunking(client, name, producer_name="one")
        for size in (10, 2500, 2600):
            ids.append(api.enqueue(producer, noise(size, seed=size), sequence_id=size).result(30)[1])
        producer.close()
        # As other clients do, the second one sends all chunks of what the broker has.
        monkeypatch.setattr(ProducerCore, "connected", without_id)
    # The broker drops a repeated message by its last chunk, and stores the others again.
    found: Any = admin(broker.admin_url, "GET", f"{name.replace('://', '/')}/internalStats")
    assert found["currentLedgerEntries"] == 1 + 3 + 3 + 2 + 2
    reader = client.create_reader(name, ids[2])
    assert not reader.has_message_available()
    whole = client.create_reader(name, MessageId.earliest)
    read = []
    while whole.has_message_available() and len(read) < 4:
        read.append(len(whole.read_next(10_000).data()))
    assert read == [10, 2500, 2600]


@pytest.mark.proves("C80", "C113", "C140")
@pytest.mark.parametrize("inclusive", [True, False])
def test_a_reader_starts_at_and_seeks_to_a_message_in_chunks(
    api: Api, client: Any, topic: NewTopic, inclusive: bool
) -> None:
    name = topic()
    producer = chunking(client, name)
    ids = api.send_all(producer, [b"%d" % number * 2500 for number in range(4)])
    expected = [b"%d" % number for number in range(1 if inclusive else 2, 4)]
    start = MessageId.deserialize(ids[1].serialize())
    reader = client.create_reader(name, start, start_message_id_inclusive=inclusive)
    assert reader.has_message_available()
    assert [reader.read_next(10_000).data()[:1] for _ in expected] == expected
    assert not reader.has_message_available()
    reader.seek(ids[1])
    assert [reader.read_next(10_000).data()[:1] for _ in expected] == expected


@pytest.mark.proves("C80", "C113")
@pytest.mark.parametrize("queue", [1000, 1, 0])
def test_latest_inclusive_is_last_message_in_chunks(api: Api, client: Any, topic: NewTopic, queue: int) -> None:
    name = topic()
    producer = chunking(client, name)
    api.send_all(producer, [b"0" * 2500, b"1" * 4500])
    reader = client.create_reader(name, MessageId.latest, start_message_id_inclusive=True, receiver_queue_size=queue)
    for number in (1, 2, 3):
        assert reader.has_message_available()
        assert reader.read_next(10_000).data() == b"%d" % number * (4500 if number == 1 else 10)
        assert not reader.has_message_available()
        api.send_all(producer, [b"%d" % (number + 1) * 10])
    api.send_all(producer, [b"5" * 1500])
    reader.seek(MessageId.latest)
    assert reader.has_message_available() and reader.read_next(10_000).data() == b"5" * 1500
    assert not reader.has_message_available()


@pytest.mark.proves("C80", "C113")
def test_latest_inclusive_in_chunks_amid_others(
    api: Api, client: Any, through: Relay, topic: NewTopic, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    slow, quick = chunking(api.client(through.service_url), name), chunking(client, name)
    through.let_pass(Command.SEND, TO_BROKER, times=1)
    through.hold(Command.SEND, TO_BROKER)
    waiting = api.enqueue(slow, b"s" * 2500)
    eventually(lambda: stats(name)["msgInCounter"] == 1)
    api.send_all(quick, [b"q" * 2500, b"between"])
    through.release()
    waiting.result(10)
    reader = client.create_reader(name, MessageId.latest, start_message_id_inclusive=True)
    assert reader.read_next(10_000).data() == b"s" * 2500 and not reader.has_message_available()
    # A range that begins while the reader moves back.
    reader.seek(MessageId.latest)
    assert reader.has_message_available()
    assert [row["value"] for batch in reader.arrow_batches() for row in batch.to_pylist()] == [b"s" * 2500]


@pytest.mark.proves("C80")
def test_a_subscription_seeks_to_a_message_in_chunks(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    ids = api.send_all(chunking(client, name), [b"%d" % number * 2500 for number in range(3)])
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    assert [consumer.receive(10_000).data()[:1] for _ in range(2)] == [b"0", b"1"]
    # Behind all chunks of the message, unless the consumer is to have it again.
    for _ in range(2):
        consumer.seek(ids[0])
        assert [consumer.receive(10_000).data()[:1] for _ in range(2)] == [b"1", b"2"]
    consumer.close()
    again = client.subscribe(name, "again", initial_position=EARLIEST, start_message_id_inclusive=True)
    for start in (0, 2, 1):
        again.seek(ids[start])
        assert [again.receive(10_000).data()[:1] for _ in range(start, 3)] == [b"%d" % n for n in range(start, 3)]


@pytest.mark.proves("C66", "C80", "C119")
def test_a_reader_keeps_its_chunks_over_a_lost_connection(
    api: Api, client: Any, through: Relay, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    other = relay(broker.service_url)
    slow = chunking(api.client(through.service_url), name)
    reader = api.client(other.service_url).create_reader(name, MessageId.earliest)
    through.let_pass(Command.SEND, TO_BROKER, times=2)
    through.hold(Command.SEND, TO_BROKER)
    waiting = api.enqueue(slow, noise(2500, seed=1))
    other.wait_for(Command.MESSAGE, 2)
    # The reader goes on behind this one; what it needs of the other message lies before it.
    chunking(client, name).send(noise(2500, seed=2))
    assert reader.read_next(10_000).data() == noise(2500, seed=2)
    other.cut()
    through.release()
    assert reader.read_next(10_000).data() == noise(2500, seed=1)
    assert waiting.result(10)[0] is Result.Ok


@pytest.mark.proves("C66", "C80", "C116", "C119")
@pytest.mark.parametrize("kind", [None, ConsumerType.Exclusive, ConsumerType.Shared], ids=["reader", "excl", "shared"])
def test_chunks_outlive_an_outage_beyond_their_expiry(
    api: Api, client: Any, through: Relay, topic: NewTopic, eventually: Eventually, kind: ConsumerType | None
) -> None:
    name = topic()
    receiving = api.client(through.service_url, starting_backoff_interval_ms=50, max_backoff_interval_ms=100)
    expiry = {"expire_time_of_incomplete_chunked_message_ms": 1000}
    if kind is None:
        receive = receiving.create_reader(name, MessageId.earliest, **expiry).read_next
    else:
        receive = receiving.subscribe(name, "sub", kind, **expiry).receive
    through.let_pass(Command.MESSAGE, TO_CLIENT, times=2)
    through.hold(Command.MESSAGE, TO_CLIENT)
    chunking(client, name).send(noise(3500))
    eventually(lambda: through.held == 2)
    with pytest.raises(Timeout):
        receive(300)
    began = time.monotonic()
    through.refuse()
    through.cut()
    eventually(lambda: time.monotonic() > began + 1.5)
    through.release()
    through.accept()
    assert receive(10_000).data() == noise(3500)


@pytest.mark.proves("C80", "C114", "C115", "C116")
def test_messages_that_stay_incomplete(
    api: Api, client: Any, through: Relay, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    acking = client.subscribe(
        name, "acking", max_pending_chunked_message=1, auto_ack_oldest_chunked_message_on_queue_full=True
    )
    keeping = client.subscribe(name, "keeping", max_pending_chunked_message=1)
    expiring = client.subscribe(name, "expiring", expire_time_of_incomplete_chunked_message_ms=500)
    sending = api.client(through.service_url)
    for number in range(2):
        # Each time the connection ends for good behind the second of four chunks.
        producer = chunking(sending, name)
        through.let_pass(Command.SEND, TO_BROKER, times=2)
        through.drop(Command.SEND, TO_BROKER, times=None)
        api.enqueue(producer, noise(3500, seed=number))
        eventually(lambda number=number: stats(name)["msgInCounter"] == 2 * (number + 1))
        through.release()
    for start in (MessageId.latest, MessageId.earliest):
        # Behind the last message, or before four chunks that are none.
        assert not client.create_reader(name, start).has_message_available()
    for consumer in (acking, keeping, expiring):
        with pytest.raises(Timeout):
            consumer.receive(300)
    backlog = lambda name_of: stats(name)["subscriptions"][name_of]["msgBacklog"]  # noqa: E731
    eventually(lambda: (backlog("acking"), backlog("expiring"), backlog("keeping")) == (2, 0, 4))
    chunking(client, name).send(noise(3500, seed=9))
    for consumer in (acking, keeping, expiring):
        assert consumer.receive(10_000).data() == noise(3500, seed=9)


@pytest.mark.proves("C80")
def test_columns_of_ranges_that_cut_messages_in_two(
    api: Api, client: Any, through: Relay, topic: NewTopic, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    quick = chunking(client, name)
    slow = chunking(api.client(through.service_url), name, compression_type=CompressionType.ZLib)
    ids = api.send_all(quick, [b"first", noise(1500, seed=1)], partition_key="k", properties={"a": "b"})
    through.let_pass(Command.SEND, TO_BROKER, times=2)
    through.hold(Command.SEND, TO_BROKER)
    waiting = api.enqueue(slow, noise(2500, seed=2))
    eventually(lambda: stats(name)["msgInCounter"] == 5)
    ids += api.send_all(quick, [b"between", noise(1500, seed=3)])
    through.release()
    ids.append(waiting.result(10)[1])
    # A message that is never completed.
    through.let_pass(Command.SEND, TO_BROKER)
    through.drop(Command.SEND, TO_BROKER, times=None)
    api.enqueue(slow, noise(2500, seed=4))
    eventually(lambda: stats(name)["msgInCounter"] == 10)
    ids += api.send_all(quick, [b"last"])
    expected = [
        (ids[index].entry_id(), value)
        for index, value in enumerate(
            [b"first", noise(1500, seed=1), b"between", noise(1500, seed=3), noise(2500, seed=2), b"last"]
        )
    ]
    assert [place.entry_id() for place in ids] == [0, 2, 5, 7, 8, 10], "entries 3 and 4 are chunks of what ends with 8"

    def rows(start: MessageId, end: MessageId | None) -> list[Any]:
        reader = client.create_reader(name, start, start_message_id_inclusive=True)
        found = [row for batch in reader.arrow_batches(end=end) for row in batch.to_pylist()]
        reader.close()
        return found

    whole = rows(MessageId.earliest, None)
    assert [(row["__entryId"], row["value"]) for row in whole] == expected
    for row, place in zip(whole, ids, strict=True):
        read = MessageId.deserialize(row["__messageId"])
        assert (read, read.first_chunk_message_id()) == (place, place.first_chunk_message_id())
    for entry in range(1, 11):
        cut = MessageId(-1, ids[0].ledger_id(), entry)
        before, behind = rows(MessageId.earliest, cut), rows(cut, None)
        assert all(row["__entryId"] < entry for row in before) and all(row["__entryId"] >= entry for row in behind)
        parts = [(row["__entryId"], row["value"]) for row in [*before, *behind]]
        assert parts == expected, entry


@pytest.mark.proves("C60", "C80")
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZLib])
def test_chunks_are_encrypted_one_by_one(
    api: Api, client: Any, through: Relay, topic: NewTopic, tmp_path: Path, compression: CompressionType
) -> None:
    name = topic()
    keys = CryptoKeyReader(*key_pair(tmp_path))
    producer = chunking(
        api.client(through.service_url),
        name,
        encryption_key="k",
        crypto_key_reader=keys,
        compression_type=compression,
    )
    consumer = client.subscribe(name, "sub", crypto_key_reader=keys)
    payload = noise(3500)
    place = producer.send(payload)
    chunks = sent_entries(through)
    assert [len(chunk.metadata.encryption_keys) for chunk in chunks] == [1] * 4
    assert len({chunk.metadata.encryption_param for chunk in chunks}) == 4
    assert not any(payload[:16] in chunk.body for chunk in chunks)
    # The size the chunks tell is that before encryption.
    plain = sum(len(chunk.body) - 16 for chunk in chunks)
    assert {chunk.metadata.total_chunk_msg_size for chunk in chunks} == {plain}
    message = consumer.receive(10_000)
    assert message.data() == payload and message.message_id() == place
