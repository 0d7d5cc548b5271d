"""Receiving rows of Arrow through a subscription: exact bounds, no message objects, acknowledged as a whole."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pulsar_native.asyncio
from pulsar_native import (
    ALL_COLUMNS,
    AlreadyClosed,
    ArrowBatch,
    Client,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerInterceptor,
    ConsumerType,
    CryptoError,
    CryptoKeyReader,
    InitialPosition,
    InvalidConfiguration,
    InvalidMessage,
    MessageId,
    Timeout,
)
from pulsar_native.message import KeyedMessage, Message
from pulsar_native.protocol import entry_decoder
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.key_files import key_pair
from support.relay import TO_CLIENT, Command, NewRelay

EARLIEST = InitialPosition.Earliest
SHARED = ConsumerType.Shared
Eventually = Callable[..., Any]
Stats = Callable[[str], Any]
LONG = 20_000


def publish(client: Client, name: str, *counts: int, start: int = 0, **options: Any) -> list[MessageId]:
    """Publish numbered messages, each count as one batch; a count of 1 is no batch."""
    ids: list[MessageId] = []
    for count in counts:
        with client.create_producer(
            name, batching_enabled=count > 1, batching_max_publish_delay_ms=60_000, **options
        ) as producer:
            ids += producer.send_many([b"%d" % (start + len(ids) + number) for number in range(count)])
    return ids


def subscribed(client: Any, name: str | list[str], **options: Any) -> Any:
    """Return a consumer of the subscription "sub" that acknowledges single messages of a batch."""
    options = {"batch_index_ack_enabled": True, "acknowledgment_group_time_ms": 20, **options}
    return client.subscribe(name, "sub", initial_position=EARLIEST, **options)


def numbers(received: ArrowBatch) -> list[int]:
    """Return the numbers of the rows."""
    return [int(value) for value in received.record_batch["value"].to_pylist()]


@contextmanager
def no_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let making a message fail."""

    def made(*_arguments: Any) -> None:
        pytest.fail("a message object was made")

    with monkeypatch.context() as patch:
        for kind in (Message, KeyedMessage):
            patch.setattr(kind, "__init__", made)
        for function in ("make_messages", "make_uniform_messages"):
            patch.setattr(entry_decoder, function, made)
        yield


@pytest.mark.proves("N12")
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_rows_are_the_messages_and_are_made_without_them(
    client: Any,
    plain_client: Client,
    topic: NewTopic,
    read_all: Callable[..., list[Any]],
    compression: CompressionType,
    monkeypatch: pytest.MonkeyPatch,
    stats: Stats,
    eventually: Eventually,
) -> None:
    name = topic()
    producer = plain_client.create_producer(
        name, batching_enabled=True, batching_max_publish_delay_ms=60_000, compression_type=compression
    )
    groups: list[list[dict[str, Any]]] = [
        [{"content": b"plain"}, {"content": b""}],
        [
            {"content": b"full", "partition_key": "k", "properties": {"a": "1"}, "event_timestamp": 1500},
            {"content": None},
        ],
        [{"content": b"single", "partition_key": b"\xff"}],
    ]
    for group in groups:
        for each in group:
            producer.send_async(each.pop("content"), None, **each)
        producer.flush()
    messages = read_all(name)
    consumer = subscribed(client, name)
    with no_messages(monkeypatch):
        received = consumer.receive_arrow(max_rows=len(messages), timeout_millis=LONG)
        assert received.record_batch.schema.names == list(ALL_COLUMNS)
        consumer.acknowledge(received)
    rows = received.record_batch.to_pylist()
    assert len(rows) == len(messages) == 5
    for row, message in zip(rows, messages, strict=True):
        assert row["value"] == (None if message.has_null_value() else message.data())
        assert MessageId.deserialize(row["__messageId"]) == message.message_id()
        assert row["__key"] == (message.key_bytes() if message.has_key() else None)
        assert dict(row["__messageProperties"] or ()) == message.properties()
        assert (row["__sequenceId"], row["__topic"]) == (message.sequence_id(), name)
        assert round(row["__publishTime"].timestamp() * 1000) == message.publish_timestamp()
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.mark.proves("N12")
def test_rows_and_bytes_are_exact_and_an_entry_is_cut(
    client: Any, plain_client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    ids = publish(plain_client, name, 10, 1, 1, 10)
    consumer = subscribed(client, name)
    with no_messages(monkeypatch):
        first = consumer.receive_arrow(max_rows=4, timeout_millis=LONG)
        second = consumer.receive_arrow(max_rows=7, timeout_millis=LONG, columns=["value"])
        # Two digits each: of 5 bytes two messages fit.
        third = consumer.receive_arrow(max_bytes=5, timeout_millis=LONG)
        # The first alone is larger than the bound.
        fourth = consumer.receive_arrow(max_bytes=1, timeout_millis=LONG)
    assert [numbers(each) for each in (first, second, third, fourth)] == [
        list(range(4)), list(range(4, 11)), [11, 12], [13],
    ]  # fmt: skip
    assert second.record_batch.schema.names == ["value"]
    # Each is told compactly: a part of a batch, and neighbours together.
    assert [len(each.ranges) for each in (first, second, third, fourth)] == [1, 2, 2, 1]
    assert [each.first_message_id() for each in second.ranges] == [ids[4], ids[10]]
    assert [each.last_message_id() for each in second.ranges] == [ids[9], ids[10]]
    # Both kinds of receiving go on where the other stopped.
    assert int(consumer.receive(LONG).data()) == 14
    assert numbers(consumer.receive_arrow(max_rows=3, timeout_millis=LONG)) == [15, 16, 17]
    assert int(consumer.receive(LONG).data()) == 18
    rest = consumer.receive_arrow(timeout_millis=300)
    assert numbers(rest) == [19, 20, 21]
    # What is over is over: no rows, the same columns.
    nothing = consumer.receive_arrow(timeout_millis=1)
    assert (len(nothing), nothing.ranges) == (0, ()) and nothing.record_batch.schema == rest.record_batch.schema
    consumer.acknowledge(nothing)


@pytest.mark.proves("N12")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, SHARED])
def test_what_is_acknowledged_does_not_come_again_and_the_rest_of_a_cut_entry_does(
    client: Any, plain_client: Client, topic: NewTopic, kind: ConsumerType, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    publish(plain_client, name, 10, 5, 1)
    consumer = subscribed(client, name, consumer_type=kind)
    received = consumer.receive_arrow(max_rows=12, timeout_millis=LONG)
    consumer.acknowledge(received)
    consumer.close()
    consumer = subscribed(client, name, consumer_type=kind)
    # A batch acknowledged in part: only the rest are rows.
    again = consumer.receive_arrow(max_rows=4, timeout_millis=LONG)
    assert numbers(again) == [12, 13, 14, 15]
    consumer.acknowledge(again)
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)
    consumer.close()


def test_holes_in_a_batch_are_left_out(
    client: Any, plain_client: Client, topic: NewTopic, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    ids = publish(plain_client, name, 6)
    consumer = subscribed(client, name)
    consumer.receive(LONG)
    consumer.acknowledge([ids[1], ids[4]])
    consumer.close()
    consumer = subscribed(client, name)
    parts = [consumer.receive_arrow(max_rows=2, timeout_millis=LONG) for _ in range(2)]
    assert [numbers(part) for part in parts] == [[0, 2], [3, 5]]
    assert [part.ranges[0].indexes for part in parts] == [0b101, 0b101000]
    for part in parts:
        consumer.acknowledge(part)
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


def test_negative_acknowledgements_bring_rows_again(client: Any, plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(plain_client, name, 3, 1)
    consumer = subscribed(client, name, consumer_type=SHARED, negative_ack_redelivery_delay_ms=100)
    received = consumer.receive_arrow(max_rows=4, timeout_millis=LONG)
    consumer.negative_acknowledge(received)
    again = consumer.receive_arrow(max_rows=4, timeout_millis=LONG)
    assert sorted(numbers(again)) == [0, 1, 2, 3]
    assert {each.redelivery_count for each in again.ranges} == {1}
    consumer.close()


def test_rows_not_acknowledged_in_time_come_again(plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(plain_client, name, 3, 1)
    late = subscribed(plain_client, name, consumer_type=SHARED, unacked_messages_timeout_ms=10_000)
    assert len(late.receive_arrow(max_rows=4, timeout_millis=LONG)) == 4
    assert len(late.receive_arrow(max_rows=4, timeout_millis=60_000)) == 4
    late.close()


def test_all_partitions_and_topics_at_once(
    client: Any, plain_client: Client, topic: NewTopic, eventually: Eventually, stats: Stats
) -> None:
    parts, other = topic(partitions=3), topic()
    with plain_client.create_producer(parts, batching_enabled=False) as producer:
        producer.send_many([b"%d" % number for number in range(60)])
    publish(plain_client, other, 40, start=60)
    consumer = subscribed(client, [parts, other])
    received = consumer.receive_arrow(max_rows=100, timeout_millis=LONG)
    assert sorted(numbers(received)) == list(range(100))
    names = received.record_batch["__topic"].to_pylist()
    # Those of a partition are together, and in order; neighbouring entries are one range.
    assert len({*names}) == 4 and sum(a != b for a, b in pairwise(names)) == 3
    for name in {*names}:
        own = [number for number, each in zip(numbers(received), names, strict=True) if each == name]
        assert own == sorted(own)
    assert len(received.ranges) == 4
    assert [len(rows) for _, rows in received.parts()] == [len(each) for each in received.ranges]
    assert all({*rows["__topic"].to_pylist()} == {each.topic} for each, rows in received.parts())
    consumer.acknowledge(received)
    for index in range(3):
        name = f"{parts}-partition-{index}"
        eventually(lambda name=name: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)
    eventually(lambda: stats(other)["subscriptions"]["sub"]["msgBacklog"] == 0)


def test_it_waits_for_the_bound_or_the_time(client: Any, plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    consumer = subscribed(client, name)
    began = time.monotonic()
    assert len(consumer.receive_arrow(timeout_millis=300)) == 0
    assert time.monotonic() - began >= 0.29
    publish(plain_client, name, 3)
    later = threading.Timer(0.3, lambda: publish(plain_client, name, 4, start=3))
    later.start()
    assert numbers(consumer.receive_arrow(max_rows=7, timeout_millis=LONG)) == list(range(7))
    later.join()


def test_receive_arrow_drops_rows_from_before_seek(
    client: Any, plain_client: Client, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    publish(plain_client, name, 1, 4)
    consumer = subscribed(client, name)
    received: list[ArrowBatch] = []
    waiting = threading.Thread(target=lambda: received.append(consumer.receive_arrow(max_rows=6, timeout_millis=LONG)))
    waiting.start()
    eventually(lambda: consumer.stats().total_msgs_received == 5)
    consumer.seek(MessageId.latest)
    publish(plain_client, name, 6, start=10)
    waiting.join(60)
    assert [numbers(each) for each in received] == [[10, 11, 12, 13, 14, 15]]
    # Those dropped are not counted as received.
    assert consumer.stats().total_msgs_received == 6


def test_a_strict_pause_and_a_close(api: Api, client: Any, plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(plain_client, name, 6, 2)
    consumer = subscribed(client, name)
    assert numbers(consumer.receive_arrow(max_rows=2, timeout_millis=LONG)) == [0, 1]
    consumer.pause(strict=True)
    assert len(consumer.receive_arrow(timeout_millis=100)) == 0
    consumer.resume()
    assert numbers(consumer.receive_arrow(max_rows=3, timeout_millis=LONG)) == [2, 3, 4]
    # It begins while somebody waits for more than there is: what was collected is for later.
    got: list[int] = []
    waiting = threading.Thread(
        target=lambda: got.extend(numbers(consumer.receive_arrow(max_rows=100, timeout_millis=1500)))
    )
    waiting.start()
    time.sleep(0.3)  # the other thread is to wait by then; if it does not yet, it gets nothing all the same
    consumer.pause(strict=True)
    waiting.join(30)
    assert got == []
    consumer.resume()
    assert numbers(consumer.receive_arrow(max_rows=3, timeout_millis=LONG)) == [5, 6, 7]
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.receive_arrow(timeout_millis=LONG)


def test_features_without_pyarrow_name_the_extra(
    client: Any, plain_client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    publish(plain_client, name, 3)
    consumer, producer = subscribed(client, name), client.create_producer(name)
    reader = client.create_reader(name, MessageId.earliest)
    features: dict[str, Callable[[], Any]] = {
        "send_table": lambda: producer.send_table(object()),
        "receive_arrow": lambda: consumer.receive_arrow(max_rows=3, timeout_millis=LONG),
        "arrow_batches": lambda: list(reader.arrow_batches()),
    }
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "pyarrow", None)
        for feature, use in features.items():
            with pytest.raises(InvalidConfiguration, match=rf"^{feature} needs .*'pulsar-native\[arrow\]'"):
                use()
    # No message was lost to the error.
    assert numbers(consumer.receive_arrow(max_rows=3, timeout_millis=LONG)) == [0, 1, 2]


def test_messages_in_chunks(
    client: Any, plain_client: Client, topic: NewTopic, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    large = bytes(range(256)) * 20
    with plain_client.create_producer(
        name, chunking_enabled=True, batching_enabled=False, chunk_max_message_size=1000
    ) as producer:
        producer.send(b"before")
        place = producer.send(large)
    consumer = subscribed(client, name)
    received = consumer.receive_arrow(max_rows=2, timeout_millis=LONG)
    assert received.record_batch["value"].to_pylist() == [b"before", large]
    ids = [MessageId.deserialize(each) for each in received.record_batch["__messageId"].to_pylist()]
    assert ids[1] == place and ids[1].first_chunk_message_id() is not None
    consumer.acknowledge(received)
    # All chunks are.
    eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)


@pytest.fixture
def keys(tmp_path: Path) -> CryptoKeyReader:
    """Give a key pair."""
    return CryptoKeyReader(*key_pair(tmp_path))


def test_encrypted_entries_are_rows_only_when_they_can_be_read(
    client: Any, plain_client: Client, topic: NewTopic, keys: CryptoKeyReader
) -> None:
    name = topic()
    publish(plain_client, name, 2)
    publish(plain_client, name, 3, 1, start=2, encryption_key="k", crypto_key_reader=keys)
    publish(plain_client, name, 1, start=6)
    reads = subscribed(client, name, crypto_key_reader=keys)
    assert numbers(reads.receive_arrow(max_rows=7, timeout_millis=LONG)) == list(range(7))
    reads.close()
    consumer = subscribed(client, name, crypto_failure_action=ConsumerCryptoFailureAction.CONSUME)
    # What comes before is given; then the entry is in the way until it is taken as what it is.
    assert numbers(consumer.receive_arrow(max_rows=7, timeout_millis=LONG)) == [0, 1]
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(CryptoError, match=r"receive\(\)"):
                consumer.receive_arrow(timeout_millis=LONG)
        message = consumer.receive(LONG)
        assert message.encryption_context().is_decryption_failed()
        consumer.acknowledge(message)
    assert numbers(consumer.receive_arrow(max_rows=1, timeout_millis=LONG)) == [6]


def test_receipts(
    api: Api, broker: Broker, plain_client: Client, topic: NewTopic, stats: Stats, relay: NewRelay
) -> None:
    names = [topic(), topic()]
    for name in names:
        publish(plain_client, name, 3, 1, 1)
    through = relay(broker.service_url)
    client = api.client(through.service_url, operation_timeout_seconds=3)
    consumer = subscribed(client, names, ack_receipt_enabled=True)
    first = consumer.receive_arrow(max_rows=10, timeout_millis=LONG)
    consumer.acknowledge(first)
    # The broker has answered.
    assert [stats(name)["subscriptions"]["sub"]["msgBacklog"] for name in names] == [0, 0]
    for name in names:
        publish(plain_client, name, 2)
    second = consumer.receive_arrow(max_rows=4, timeout_millis=LONG)
    # The answer for one of the topics does not come.
    through.drop(Command.ACK_RESPONSE, TO_CLIENT, times=1)
    with pytest.raises(Timeout):
        consumer.acknowledge(second)


def test_what_cannot_be_is_refused(api: Api, client: Any, plain_client: Client, topic: NewTopic) -> None:
    name, other = topic(), topic()
    publish(plain_client, name, 2)
    consumer = subscribed(client, name)
    for options, words in (
        ({"columns": ["valeu"]}, "'valeu'"),
        ({"columns": "value"}, "columns"),
        ({"columns": []}, "columns"),
        ({"max_rows": 0}, "max_rows"),
        ({"max_bytes": 1.5}, "max_bytes"),
        ({"timeout_millis": "1"}, "timeout_millis"),
    ):
        with pytest.raises(InvalidConfiguration, match=words):
            consumer.receive_arrow(**options)
    received = consumer.receive_arrow(max_rows=2, timeout_millis=LONG)
    assert numbers(received) == [0, 1]
    with pytest.raises(InvalidMessage, match="message id"):
        consumer.acknowledge([received.ranges])
    for use, wrong in (
        (consumer.acknowledge, [received]),
        (consumer.acknowledge_cumulative, received),
    ):
        with pytest.raises(InvalidMessage, match=r"as a whole, by acknowledge\(batch\)"):
            use(wrong)
    stranger = client.subscribe(other, "sub")
    with pytest.raises(InvalidConfiguration, match="does not read"):
        stranger.acknowledge(received)
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.acknowledge(received)
    with pytest.raises(InvalidConfiguration, match="receiver_queue_size"):
        subscribed(client, name, receiver_queue_size=0).receive_arrow()
    seen = client.subscribe(other, "seen", interceptors=[ConsumerInterceptor()])
    with pytest.raises(InvalidConfiguration, match="interceptors"):
        seen.receive_arrow()
    if api.name == "blocking":
        listening = client.subscribe(other, "heard", message_listener=lambda *_: None)
        with pytest.raises(InvalidConfiguration, match="message_listener"):
            listening.receive_arrow()


@pytest.mark.proves("N8")
def test_who_is_cancelled_leaves_what_was_collected(broker: Broker, plain_client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(plain_client, name, 3, 2)

    async def body() -> list[int]:
        async with pulsar_native.asyncio.Client(broker.service_url) as client:
            consumer = await subscribed(client, name)
            waiting = asyncio.create_task(consumer.receive_arrow(max_rows=100, timeout_millis=60_000))
            # It has the rows, and waits for more.
            async with asyncio.timeout(30):
                while not consumer._inner.dequeued_ids() or consumer._inner.dequeued_ids()[0].entry_id() < 1:
                    await asyncio.sleep(0.02)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return numbers(await consumer.receive_arrow(max_rows=5, timeout_millis=LONG))

    assert asyncio.run(body()) == [0, 1, 2, 3, 4]
