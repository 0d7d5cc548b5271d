"""Payload processors on a real broker: acknowledgements, permits, failures, and consumers of each kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from pulsar_native import (
    CompressionType,
    ConsumerType,
    InitialPosition,
    Message,
    MessagePayloadContext,
    PayloadMessage,
    Timeout,
)
from support.apis import Api
from support.brokers import NewTopic

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest


class Lines:
    """A processor of entries that hold a message in each line."""

    def process(self, payload: bytes, context: MessagePayloadContext) -> Iterable[PayloadMessage]:
        if context.get_property("format") != "lines":
            return context.messages(payload)
        if payload == b"broken":
            raise ValueError("the entry cannot be read")
        return [PayloadMessage(line, partition_key=line.decode()[:1]) for line in payload.splitlines()]


def publish(api: Api, client: Any, name: str, *contents: bytes, **options: Any) -> None:
    """Publish entries in the format of lines, unless they are batches."""
    options = {"batching_enabled": False, **options}
    producer = client.create_producer(name, **options)
    properties = {} if options["batching_enabled"] else {"format": "lines"}
    api.send_all(producer, contents, properties=properties)
    producer.close()


def subscribe(client: Any, name: str, kind: ConsumerType = ConsumerType.Exclusive, **options: Any) -> Any:
    options = {"initial_position": EARLIEST, "message_payload_processor": Lines(), **options}
    return client.subscribe(name, "sub", kind, **options)


def take(consumer: Any, count: int) -> list[Message]:
    return [consumer.receive(20_000) for _ in range(count)]


def data_of(messages: Iterable[Message]) -> list[bytes]:
    return [message.data() for message in messages]


def nothing_comes(consumer: Any) -> None:
    with pytest.raises(Timeout):
        consumer.receive(200)


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_entry_is_acknowledged_with_its_last_message(
    api: Api, client: Any, topic: NewTopic, kind: ConsumerType, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, b"a1\nb1\nc1", b"a2\nb2")
    consumer = subscribe(client, name, kind)
    messages = take(consumer, 5)
    assert data_of(messages) == [b"a1", b"b1", b"c1", b"a2", b"b2"]
    assert [message.message_id().batch_index() for message in messages] == [0, 1, 2, 0, 1]
    for message in messages[:4]:
        consumer.acknowledge(message)
    eventually(lambda: backlog(name) == 1)
    consumer.close()
    # Acknowledgements of a part of an entry are not stored.
    again = subscribe(client, name, kind)
    assert data_of(take(again, 2)) == [b"a2", b"b2"]
    again.acknowledge(messages[3])
    again.acknowledge(messages[4])
    eventually(lambda: backlog(name) == 0)


def test_cumulative_acknowledgement_within_an_entry(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, b"a1\nb1", b"a2\nb2\nc2", b"a3")
    consumer = subscribe(client, name)
    messages = take(consumer, 6)
    consumer.acknowledge_cumulative(messages[3])
    eventually(lambda: backlog(name) == 2)
    consumer.acknowledge_cumulative(messages[5])
    eventually(lambda: backlog(name) == 0)


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
@pytest.mark.parametrize("count", [1, 7])
def test_queue_of_any_size_receives_everything(
    api: Api, client: Any, topic: NewTopic, stats: Stats, eventually: Eventually, size: int, count: int
) -> None:
    name = topic()
    entries = [[b"%d-%d" % (entry, line) for line in range(count)] for entry in range(40)]
    publish(api, client, name, *map(b"\n".join, entries))
    consumer = subscribe(client, name, receiver_queue_size=size)
    messages = take(consumer, 40 * count)
    assert data_of(messages) == list(chain.from_iterable(entries))
    consumer.acknowledge(messages)
    nothing_comes(consumer)
    if size:
        # The permits are counted by entries, as the broker counts them: no more are granted than the queue holds.
        granted = [0]
        eventually(lambda: granted.append(permits_of(stats, name)) or 0 < granted[-1] <= size)


def permits_of(stats: Stats, name: str) -> int:
    (consumer,) = stats(name)["subscriptions"]["sub"]["consumers"]
    return int(consumer["availablePermits"])


def test_pulsars_own_format_passes(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, b"1", b"2", batching_enabled=True, batching_max_publish_delay_ms=1000)
    publish(api, client, name, b"x\ny", compression_type=CompressionType.ZSTD)
    consumer = subscribe(client, name)
    messages = take(consumer, 4)
    assert data_of(messages) == [b"1", b"2", b"x", b"y"]
    assert [message.partition_key() for message in messages] == ["", "", "x", "y"]
    consumer.acknowledge(messages)
    eventually(lambda: backlog(name) == 0)


def test_entry_without_messages_is_acknowledged(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, b"", b"a", b"")
    consumer = subscribe(client, name, ConsumerType.Shared)
    assert data_of(take(consumer, 1)) == [b"a"]
    nothing_comes(consumer)
    eventually(lambda: backlog(name) == 1)


def test_failed_entry_stays_and_is_logged(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    publish(api, client, name, b"a", b"broken", b"b")
    consumer = subscribe(client, name, ack_receipt_enabled=True)
    with caplog.at_level(logging.ERROR):
        messages = take(consumer, 2)
    assert data_of(messages) == [b"a", b"b"]
    assert "is not delivered: message_payload_processor failed: ValueError: the entry cannot be read" in caplog.text
    assert consumer.stats().total_receive_failed == 1
    consumer.acknowledge(messages)
    assert backlog(name) == 1
    # A processor that can read it gets it.
    consumer.close()
    plain = subscribe(client, name, message_payload_processor=None)
    assert data_of(take(plain, 1)) == [b"broken"]


def test_redelivery_brings_the_open_messages(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, b"a\nb\nc")
    consumer = subscribe(client, name, ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    first, second, third = take(consumer, 3)
    consumer.acknowledge(first)
    consumer.negative_acknowledge(second)
    consumer.negative_acknowledge(third)
    again = take(consumer, 2)
    assert data_of(again) == [b"b", b"c"] and {each.redelivery_count() for each in again} == {1}


def test_message_in_chunks_stays_one(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    class Upper:
        def process(self, payload: bytes, context: MessagePayloadContext) -> Iterable[PayloadMessage]:
            return [replace(each, data=(each.data or b"").upper()) for each in context.messages(payload)]

    name = topic()
    publish(api, client, name, b"a" * 30_000, chunking_enabled=True, chunk_max_message_size=10_000)
    consumer = subscribe(client, name, message_payload_processor=Upper())
    (message,) = take(consumer, 1)
    assert message.data() == b"A" * 30_000 and message.properties() == {"format": "lines"}
    consumer.acknowledge(message)
    eventually(lambda: backlog(name) == 0)


def test_batch_receive_partitions_and_columns(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=2)
    publish(api, client, name, *(b"%d\n%d" % (number, number) for number in range(20)))
    consumer = subscribe(client, name)
    received: list[bytes] = []
    for _ in range(40):
        messages = consumer.batch_receive()
        received += data_of(messages)
        consumer.acknowledge(list(messages))
        if len(received) == 40:
            break
    assert sorted(received) == sorted(b"%d" % number for number in [*range(20)] * 2)
    other = client.subscribe(name, "columns", initial_position=EARLIEST, message_payload_processor=Lines())
    rows = other.receive_arrow(max_rows=40, timeout_millis=20_000)
    assert sorted(rows.record_batch["value"].to_pylist()) == sorted(received)
    other.acknowledge(rows)
