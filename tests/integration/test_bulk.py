"""Many messages in one call: `send_many` and `send_table` on a real broker."""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pulsar_native import (
    BatchingType,
    BulkSendError,
    CompressionType,
    InitialPosition,
    InvalidConfiguration,
    InvalidMessage,
    MessageId,
    MessageTooBig,
    NewMessage,
    OperationNotSupported,
    PartitionsRoutingMode,
    ProducerInterceptor,
    TopicTerminated,
)
from pulsar_native.schema import (
    AvroSchema,
    InvalidRecord,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    StringSchema,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.relay import TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]
ReadAll = Callable[..., list[Any]]
Stats = Callable[[str], Any]

BATCHES = {"batching_enabled": True, "max_pending_messages": 5000}


@pytest.mark.parametrize("batching", [True, False])
def test_what_is_sent_together_is_read_in_order_under_its_ids(
    client: Any, topic: NewTopic, read_all: ReadAll, batching: bool, stats: Stats
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=batching, batching_max_messages=300)
    contents = [b"%d" % number + b"x" * (number % 200) for number in range(2500)]
    seen: list[int] = []
    ids = producer.send_many(iter(contents), progress=seen.append)
    assert producer.send(b"after") > ids[-1]
    messages = read_all(name)
    assert [message.data() for message in messages] == [*contents, b"after"]
    assert ids == [message.message_id() for message in messages[:-1]]
    assert seen == sorted(seen) and seen[-1] == 2500
    entries = {(each.ledger_id(), each.entry_id()) for each in ids}
    assert len(entries) == 2500 if not batching else 9 <= len(entries) < 30
    assert producer.last_sequence_id() == 2500
    assert pickle.loads(pickle.dumps(ids))[17] == ids[17] and len(ids[3:5]) == 2


def test_messages_of_all_kinds_keep_order_and_fields(client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name, schema=StringSchema(), **BATCHES)
    items = ["plain", NewMessage(content="keyed", partition_key="k", properties={"a": "1"}, event_timestamp=5)]
    items += [NewMessage(content=None, partition_key=b"\x00"), NewMessage(content="late", deliver_at=1), "last"]
    items += [NewMessage(content="ordered", ordering_key="o"), NewMessage(content="numbered", sequence_id=70)]
    ids = producer.send_many(items)
    messages = read_all(name)
    assert ids == [message.message_id() for message in messages]
    assert [each.data() for each in messages] == [b"plain", b"keyed", b"", b"late", b"last", b"ordered", b"numbered"]
    assert (messages[1].partition_key(), messages[1].properties(), messages[1].event_timestamp()) == (
        "k",
        {"a": "1"},
        5,
    )
    assert messages[2].has_null_value() and messages[2].key_bytes() == b"\x00"
    assert (messages[5].ordering_key(), messages[6].sequence_id()) == ("o", 70)
    assert producer.send_many([]) == []


def test_rows_that_join_a_batch_get_their_ids(api: Api, client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name, batching_max_publish_delay_ms=60_000, **BATCHES)
    before = [api.enqueue(producer, b"%d" % number) for number in range(4)]
    ids = [*producer.send_many([b"4"]), *producer.send_many([b"5"])]
    messages = read_all(name)
    assert [each.message_id() for each in messages] == [*(each.result(30)[1] for each in before), *ids]
    assert [each.batch_index() for each in ids] == [4, -1]
    reader = client.create_reader(name, ids[0], start_message_id_inclusive=True)
    assert reader.read_next(10_000).data() == b"4"


@pytest.mark.parametrize("way", ["send_many", "send_table", "interceptors"])
def test_rows_of_batches_by_key_get_their_ids(client: Any, topic: NewTopic, read_all: ReadAll, way: str) -> None:
    name = topic()
    options: dict[str, Any] = {"batching_type": BatchingType.KeyBased}
    if way == "interceptors":
        options = {"interceptors": [ProducerInterceptor()]}
    producer = client.create_producer(name, **BATCHES, **options)
    contents, keys = [b"%d" % number for number in range(60)], [f"{number % 7}" for number in range(60)]
    if way == "send_table":
        ids = producer.send_table(pa.table({"value": contents, "key": keys}), key="key")
    else:
        items = zip(contents, keys, strict=True)
        ids = producer.send_many(NewMessage(content=content, partition_key=key) for content, key in items)
    by_id = {each.message_id(): each.data() for each in read_all(name)}
    assert [by_id[each] for each in ids] == contents and len(by_id) == 60


@pytest.mark.parametrize("mode", ["round robin", "single", "router"])
def test_partitions_get_what_single_sends_would_give_them(
    api: Api, client: Any, topic: NewTopic, read_all: ReadAll, mode: str
) -> None:
    name = topic(partitions=3)
    options: dict[str, Any] = dict(BATCHES)
    if mode == "router":
        options["message_router"] = lambda message, _count: len(message.data()) % 3
        options["message_routing_mode"] = PartitionsRoutingMode.CustomPartition
    elif mode == "single":
        options["message_routing_mode"] = PartitionsRoutingMode.UseSinglePartition
    producer = client.create_producer(name, **options)
    items = [NewMessage(content=b"x" * number, partition_key=f"key {number % 7}") for number in range(200)]
    items += [NewMessage(content=b"x" * number) for number in range(200, 260)]
    ids = producer.send_many(items)
    one_by_one = [
        api.enqueue(producer, item.content, partition_key=item.partition_key).result(30)[1] for item in items[:200:29]
    ]
    assert [each.partition() for each in one_by_one if each] == [each.partition() for each in ids[:200:29]]
    by_id = {(each.message_id().partition(), each.message_id()): each.data() for each in read_all(name)}
    assert [by_id[each.partition(), each] for each in ids] == [item.content for item in items]
    assert {each.partition() for each in ids} == {0, 1, 2}


def test_no_more_than_the_queue_holds_is_on_its_way(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(topic(), batching_enabled=True, max_pending_messages=100)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    taken: list[int] = []

    def rows() -> Iterator[bytes]:
        for number in range(20_000):
            taken.append(number)
            yield b"x" * 10

    outcome: list[Any] = []
    sending = threading.Thread(target=lambda: outcome.append(producer.send_many(rows())))
    sending.start()
    eventually(lambda: producer.stats().pending_queue_size == 100)
    # A slice was taken from the source, and no more while the broker says nothing.
    assert len(taken) <= 1000
    through.release()
    sending.join(60)
    assert len(outcome[0]) == 20_000 and producer.stats().pending_queue_size == 0


def test_a_bad_row_tells_what_is_stored_before_it(client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_messages=10)
    contents: list[Any] = [b"%d" % number for number in range(25)]
    contents += [NewMessage(content=b"x", properties={"a": 1}), b"never"]  # type: ignore[dict-item]
    with pytest.raises(BulkSendError, match="20 messages are stored") as caught:
        producer.send_many(contents)
    error = caught.value
    assert isinstance(error.__cause__, InvalidMessage) and error.topic == name and not error.retryable
    assert (error.stored, error.unconfirmed, error.not_stored) == ((range(20),), (), ())
    messages = read_all(name)
    assert [each.message_id() for each in messages] == [error.message_ids.get(row) for row in range(20)]
    # Nothing was sent: the error itself.
    with pytest.raises(InvalidMessage):
        producer.send_many(contents[25:])
    with pytest.raises(ZeroDivisionError):
        producer.send_many(1 // 0 for _ in range(3))


def test_a_row_too_big_is_the_one_not_stored(client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name, **BATCHES)
    with pytest.raises(BulkSendError) as caught:
        producer.send_many([b"a", b"b", b"x" * 6_000_000, b"c"])
    error = caught.value
    assert isinstance(error.__cause__, MessageTooBig)
    assert (error.stored, error.unconfirmed, error.not_stored) == ((range(2),), (), (range(2, 4),))
    assert error.message_ids.get(2) is None and error.message_ids[1].entry_id() >= 0
    with pytest.raises(LookupError):
        error.message_ids[2]
    assert [each.data() for each in read_all(name)] == [b"a", b"b"]
    assert pickle.loads(pickle.dumps(error)).stored == (range(2),)


def test_rows_without_receipt_are_told_apart(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(topic(), batching_enabled=True, batching_max_messages=5, send_timeout_millis=1000)
    producer.send(b"first")

    def rows() -> Iterator[bytes]:
        for number in range(20):
            if number == 10:
                through.hold(Command.SEND_RECEIPT, TO_CLIENT)
            if number == 15:
                through.wait_for(Command.SEND_RECEIPT)
            yield b"%d" % number

    with pytest.raises(BulkSendError) as caught:
        producer.send_many(rows())
    error = caught.value
    assert error.retryable and not error.not_stored
    stored = sum(map(len, error.stored))
    assert stored <= 10 and error.unconfirmed == (range(stored, 20),)


def test_a_terminated_topic(client: Any, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, **BATCHES)
    producer.send_many([b"x"] * 3)
    broker.admin("POST", name.replace("://", "/") + "/terminate")
    with pytest.raises(BulkSendError) as caught:
        producer.send_many([b"x"] * 3)
    error = caught.value
    # The broker closes the producer: what is on its way then is left without a receipt, and not known to be refused.
    assert isinstance(error.__cause__, TopicTerminated) and (error.not_stored or error.unconfirmed) == (range(3),)


def test_deduplication_drops_a_second_run(
    api: Api, broker: Broker, deduplicating: str, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic(namespace=deduplicating)
    contents = [b"%d" % number for number in range(1000)]
    for _ in range(2):
        client = api.client(broker.service_url)
        producer = client.create_producer(name, producer_name="load", initial_sequence_id=-1, **BATCHES)
        numbered = [NewMessage(content=content, sequence_id=number) for number, content in enumerate(contents)]
        ids = producer.send_many(numbered)
        client.close()
    assert all(each.entry_id() == -1 for each in ids)
    assert [each.data() for each in read_all(name)] == contents


def test_a_callback_of_the_engine_cannot_wait_for_a_load(broker: Broker, topic: NewTopic) -> None:
    api = Api("blocking")
    producer = api.client(broker.service_url).create_producer(topic())
    caught: list[Any] = []
    told = threading.Event()

    def callback(_result: object, _id: object) -> None:
        try:
            producer.send_many([b"x"])
        except OperationNotSupported as error:
            caught.append(error)
        told.set()

    producer.send_async(b"x", callback)
    assert told.wait(20) and caught
    api.close()


def test_an_asynchronous_source(broker: Broker, topic: NewTopic, read_all: ReadAll) -> None:
    api = Api("asyncio")
    name = topic()
    producer = api.client(broker.service_url).create_producer(name, batching_max_messages=7)

    async def rows() -> AsyncIterator[bytes]:
        for number in range(30):
            yield b"%d" % number

    async def broken() -> AsyncIterator[bytes]:
        yield b"only"
        raise ZeroDivisionError

    assert len(producer.send_many(rows())) == 30
    with pytest.raises(ZeroDivisionError):
        producer.send_many(broken())
    assert [each.data() for each in read_all(name)] == [b"%d" % number for number in range(30)]
    api.close()


# --- tables -----------------------------------------------------------------------------------------------------------


def table(rows: int = 2500) -> pa.Table:
    """A table with every kind of column, in several chunks."""
    whole = pa.table(
        {
            "value": [None if number % 50 == 7 else b"%d" % number for number in range(rows)],
            "key": [None if number % 5 == 0 else f"key {number % 11}" for number in range(rows)],
            "city": pa.array(
                [None if number % 3 == 0 else f"city {number % 4}" for number in range(rows)]
            ).dictionary_encode(),
            "count": [number % 9 for number in range(rows)],
            "at": pa.array([1_700_000_000_000 + number for number in range(rows)], pa.timestamp("ms", "UTC")),
        }
    )
    return pa.concat_tables([whole.slice(0, 700), whole.slice(700, 1), whole.slice(701)])


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("partitions", [0, 3])
def test_a_tables_rows_arrive_with_their_columns(
    client: Any, topic: NewTopic, read_all: ReadAll, partitions: int, batching: bool
) -> None:
    name = topic(partitions=partitions)
    producer = client.create_producer(
        name, batching_enabled=batching, compression_type=CompressionType.LZ4, max_pending_messages=5000
    )
    rows = table(2500 if batching else 300)
    ids = producer.send_table(
        rows, value="value", key="key", properties={"where": "city", "count": "count"}, event_time="at"
    )
    by_id = {(each.message_id().partition(), each.message_id()): each for each in read_all(name)}
    assert len(ids) == len(by_id) == rows.num_rows
    for place, row in zip(ids, rows.to_pylist(), strict=True):
        message = by_id[place.partition(), place]
        assert message.data() == (row["value"] or b"")
        assert message.has_null_value() == (row["value"] is None)
        assert (message.partition_key() if message.has_key() else None) == row["key"]
        wanted = {} if row["city"] is None else {"where": row["city"]}
        assert message.properties() == {**wanted, "count": str(row["count"])}
        assert message.event_timestamp() == int(row["at"].timestamp() * 1000)
    if partitions:
        keyed = [
            (row["key"], place.partition()) for place, row in zip(ids, rows.to_pylist(), strict=True) if row["key"]
        ]
        assert len(set(keyed)) == 11


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"one", b"", b"three"], pa.large_binary()),
        pa.array(["eins", "zwölf", ""], pa.large_string()),
        pa.array([b"abc", b"def", b"ghi"], pa.binary(3)),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([b"gone", b"x", None, b"zz", b"gone"]).slice(1, 3),
    ],
    ids=["large_binary", "large_string", "fixed", "dictionary", "sliced"],
)
def test_every_kind_of_bytes_and_text(client: Any, topic: NewTopic, read_all: ReadAll, column: pa.Array) -> None:
    name = topic()
    client.create_producer(name, **BATCHES).send_table(pa.record_batch({"value": column}))
    wanted = [item.encode() if isinstance(item, str) else (item or b"") for item in column.to_pylist()]
    assert [each.data() for each in read_all(name)] == wanted


def test_what_a_reader_gave_can_be_sent_again(client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    first, second = topic(), topic()
    items = [
        NewMessage(content=b"%d" % n, partition_key=b"\xff%d" % n, properties={"n": str(n)}, event_timestamp=n + 1)
        for n in range(20)
    ]
    client.create_producer(first, **BATCHES).send_many(items)
    reader = client.create_reader(first, MessageId.earliest)
    copy = pa.Table.from_batches(list(reader.arrow_batches()))
    client.create_producer(second, **BATCHES).send_table(
        copy, key="__key", properties="__messageProperties", event_time="__eventTime"
    )
    ours, theirs = read_all(second), read_all(first)
    assert [(each.data(), each.properties(), each.event_timestamp()) for each in ours] == [
        (each.data(), each.properties(), each.event_timestamp()) for each in theirs
    ]
    assert [base64.b64decode(each.partition_key()) for each in ours] == [item.partition_key for item in items]


FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "origin", "type": "string"}, {"name": "miles", "type": ["null", "long"]}],
}


@pytest.mark.parametrize("schema_class", [AvroSchema, JsonSchema])
def test_columns_become_records_of_the_schema(client: Any, topic: NewTopic, schema_class: Any) -> None:
    name = topic()
    schema = schema_class(None, schema_definition=FLIGHT)
    producer = client.create_producer(name, schema=schema, **BATCHES)
    rows = [{"origin": "JFK", "miles": 100}, {"origin": "LHR", "miles": None}]
    flights = pa.table({"origin": ["JFK", "LHR"], "miles": [100, None], "at": [1, 2], "whole": rows})
    producer.send_table(flights, value=["origin", "miles"], key="origin")
    producer.send_table(flights, value="whole")
    consumer = client.subscribe(name, "sub", schema=schema, initial_position=InitialPosition.Earliest)
    assert [consumer.receive(10_000).value() for _ in range(4)] == rows * 2
    with pytest.raises(InvalidRecord):
        producer.send_table(flights.set_column(0, "origin", pa.array([1, 2])), value=["origin", "miles"])


def test_columns_that_do_not_fit_are_refused_before_anything_is_sent(client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, **BATCHES)
    rows = pa.table({"value": [b"x"], "number": [1], "when": [datetime.now(UTC)], "list": [[1]]})
    for options, words in (
        ({"value": "none"}, "no single column 'none'; it has value, number"),
        ({"value": "number"}, "int64"),
        ({"value": ["value", "number"]}, "schema"),
        ({"key": "number"}, "cannot be the key"),
        ({"properties": ["list"]}, "cannot be a property"),
        ({"properties": "value"}, "map of text"),
        ({"event_time": "value"}, "event time"),
    ):
        with pytest.raises(InvalidConfiguration, match=words):
            producer.send_table(rows, **options)
    with pytest.raises(InvalidConfiguration, match="list"):
        producer.send_table([1])
    assert producer.stats().total_msgs_sent == 0


def test_a_schema_that_separates_the_key(client: Any, topic: NewTopic) -> None:
    name = topic()
    schema = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    producer = client.create_producer(name, schema=schema, **BATCHES)
    pairs = [KeyValue(f"key {number}", f"value {number}") for number in range(5)]
    producer.send_many(pairs)
    consumer = client.subscribe(name, "sub", schema=schema, initial_position=InitialPosition.Earliest)
    messages = [consumer.receive(10_000) for _ in range(5)]
    assert [each.value() for each in messages] == pairs and messages[3].key_bytes() == b"key 3"
    with pytest.raises(InvalidConfiguration, match="send_many"):
        producer.send_table(pa.table({"value": ["x"]}))
