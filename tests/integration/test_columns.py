"""Reading a range straight into Arrow: the same rows as messages, exact bounds, never short, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import CompressionType, InvalidConfiguration, MessageId, Timeout
from pulsar_native.arrow.columns import ALL_COLUMNS
from pulsar_native.message import KeyedMessage, Message
from pulsar_native.protocol import entry_decoder
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.relay import TO_CLIENT, Command, NewRelay

ReadAll = Callable[..., list[Any]]


def publish(api: Api, client: Any, name: str, *counts: int, **options: Any) -> list[MessageId]:
    """Publish numbered messages, each count as one batch."""
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000, **options)
    ids: list[MessageId] = []
    for count in counts:
        ids += api.send_all(producer, [b"%d" % (len(ids) + number) for number in range(count)])
    producer.close()
    return ids


def numbers(batches: Any) -> list[int]:
    """Return the numbers of all rows."""
    return [int(value) for batch in batches for value in batch["value"].to_pylist()]


@pytest.mark.proves("N12")
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_rows_are_the_messages(
    api: Api, client: Any, topic: NewTopic, read_all: ReadAll, compression: CompressionType
) -> None:
    name = topic()
    producer = client.create_producer(
        name, batching_enabled=True, batching_max_publish_delay_ms=60_000, compression_type=compression
    )
    api.send_all(producer, [b"plain", b"two"])
    api.send_all(producer, [b"full", b""], partition_key="key", properties={"a": "1", "b": "2"}, event_timestamp=1500)
    api.send_all(producer, [b"single"], partition_key="é")
    api.send_all(producer, [None], partition_key="gone")
    messages = read_all(name)
    reader = client.create_reader(name, MessageId.earliest)
    rows = [row for batch in reader.arrow_batches() for row in batch.to_pylist()]
    assert len(rows) == len(messages) == 6
    for row, message in zip(rows, messages, strict=True):
        place = message.message_id()
        assert row["value"] == (None if message.has_null_value() else message.data())
        assert (row["__topic"], row["__producerName"], row["__partition"]) == (name, message.producer_name(), -1)
        assert (row["__ledgerId"], row["__entryId"], row["__batchIndex"]) == (
            place.ledger_id(), place.entry_id(), place.batch_index(),
        )  # fmt: skip
        assert row["__sequenceId"] == message.sequence_id()
        assert MessageId.deserialize(row["__messageId"]) == place
        assert (row["__key"] or "") in (message.partition_key(), message.partition_key().encode() or "")
        assert dict(row["__messageProperties"] or ()) == message.properties()
        assert round(row["__publishTime"].timestamp() * 1000) == message.publish_timestamp()
        event = row["__eventTime"]
        assert (0 if event is None else round(event.timestamp() * 1000)) == message.event_timestamp()


def test_the_end_is_exact_down_to_the_index(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    ids = publish(api, client, name, 1, 5, 1, 3)
    for first in (0, 2, 6):
        for last in (first, 3, 5, 6, 7, 9):
            reader = client.create_reader(name, ids[first], start_message_id_inclusive=True)
            got = numbers(reader.arrow_batches(end=ids[last], timeout_millis=10_000))
            assert got == list(range(first, last)), (first, last)
            reader.close()


def test_an_end_that_does_not_exist_ends_by_order(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    ids = publish(api, client, name, 2, 2)
    beyond = MessageId(-1, ids[-1].ledger_id(), ids[-1].entry_id() + 1000, -1)
    reader = client.create_reader(name, MessageId.earliest)
    assert numbers(reader.arrow_batches(end=beyond, timeout_millis=10_000)) == [0, 1, 2, 3]


def test_without_an_end_what_came_later_is_not_waited_for(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, 3)
    reader = client.create_reader(name, MessageId.earliest)
    batches = reader.arrow_batches(max_rows=1)
    first = next(batches)
    publish(api, client, name, 3)
    assert numbers([first, *batches]) == [0, 1, 2]


def test_sizes_and_columns(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, *[10] * 20)
    for options, largest in (({"max_rows": 25}, 20), ({"max_bytes": 60}, 40), ({}, 200)):
        reader = client.create_reader(name, MessageId.earliest)
        batches = list(reader.arrow_batches(columns=["__entryId", "value"], **options))
        assert all(batch.schema.names == ["__entryId", "value"] for batch in batches)
        assert numbers(batches) == list(range(200))
        assert max(batch.num_rows for batch in batches) <= largest
    reader = client.create_reader(name, MessageId.earliest)
    with pytest.raises(InvalidConfiguration, match=ALL_COLUMNS[0]):
        list(reader.arrow_batches(columns=["valeu"]))


def test_a_range_of_publish_times(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    bounds = []
    for _ in range(4):
        bounds.append(time.time_ns() // 1_000_000)
        publish(api, client, name, 5)
        time.sleep(0.01)  # the next part has later publish times
    reader = client.create_reader(name, MessageId.earliest)
    got = numbers(reader.arrow_batches(publish_time=(bounds[1], bounds[3])))
    assert got == [0, 1, 2, 3, 4] * 2


def test_all_partitions_at_once(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic(partitions=3)
    producer = client.create_producer(name, batching_enabled=False)
    ids = api.send_all(producer, [b"%d" % number for number in range(30)])
    reader = client.create_reader(name, MessageId.earliest)
    batches = list(reader.arrow_batches())
    assert sorted(numbers(batches)) == list(range(30))
    # A batch of rows is of one partition.
    assert all(len(set(batch["__partition"].to_pylist())) == 1 for batch in batches)
    rows = [(row["__partition"], MessageId.deserialize(row["__messageId"])) for b in batches for row in b.to_pylist()]
    assert sorted(place for _, place in rows) == sorted(ids)


def test_a_stalled_range_is_an_error(api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, *[1] * 5)
    through = relay(broker.service_url)
    reader = api.client(through.service_url).create_reader(name, MessageId.earliest, receiver_queue_size=2)
    through.wait_for(Command.MESSAGE, 2)
    through.drop(Command.MESSAGE, TO_CLIENT, times=None)
    with pytest.raises(Timeout, match="not complete"):
        list(reader.arrow_batches(timeout_millis=800))


@pytest.mark.parametrize("counts", [(6, 2), (20,), (1,) * 8, (3, 12, 1, 1)])
@pytest.mark.parametrize("bounded", [False, True])
def test_messages_and_columns_from_one_reader(
    api: Api, client: Any, topic: NewTopic, counts: tuple[int, ...], bounded: bool
) -> None:
    name = topic()
    ids = publish(api, client, name, *counts)
    reader = client.create_reader(name, MessageId.earliest)
    # Small entries behind the first are decoded with it.
    assert [int(reader.read_next(10_000).data()) for _ in range(2)] == [0, 1]
    end = {"end": ids[-2]} if bounded else {}
    assert numbers(reader.arrow_batches(**end)) == list(range(2, len(ids) - (2 if bounded else 0)))
    if not bounded:
        publish(api, client, name, 1)
        assert int(reader.read_next(10_000).data()) == 0


@pytest.mark.proves("N12")
def test_a_bounded_read_makes_no_message_and_its_cursors_travel(
    api: Api, client: Any, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part is read here; where it ended goes on as bytes, and another client reads on from there, and to there."""
    name = topic()
    ids = publish(api, client, name, 7, 1, 12)

    def made(*_arguments: Any) -> None:
        pytest.fail("a message object was made")

    for kind in (Message, KeyedMessage):
        monkeypatch.setattr(kind, "__init__", made)
    for function in ("make_messages", "make_uniform_messages"):
        monkeypatch.setattr(entry_decoder, function, made)
    # Up to the middle of the last batch.
    reader = client.create_reader(name, MessageId.earliest)
    batches = list(reader.arrow_batches(end=ids[11], columns=("value", "__messageId", "__publishTime"), max_rows=8))
    assert numbers(batches) == list(range(11)) and [batch.num_rows for batch in batches] == [8, 3]
    assert {str(field.type) for batch in batches for field in batch.schema} == {"binary", "timestamp[us, tz=UTC]"}
    cursor = batches[-1]["__messageId"][-1].as_py()
    elsewhere = Api("blocking")
    try:
        there = elsewhere.client(broker.service_url).create_reader(name, MessageId.deserialize(cursor))
        assert numbers(there.arrow_batches()) == list(range(11, 20))
        before = elsewhere.client(broker.service_url).create_reader(name, MessageId.earliest)
        assert numbers(before.arrow_batches(end=MessageId.deserialize(cursor))) == list(range(10))
    finally:
        elsewhere.close()
