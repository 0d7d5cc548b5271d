"""Writing in this process, as tasks do, against a real broker: columns, routing, repeated tasks, errors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import pulsar_native
from pulsar_native import BulkSendError, Message, MessageId, Result
from pulsar_native.exceptions import InvalidMessage, OperationNotSupported, TopicTerminated
from pulsar_native.schema import AvroSchema, JsonSchema
from pyspark_pulsar import publisher
from pyspark_pulsar.arrow_types import arrow_schema
from pyspark_pulsar.errors import WriteFailed
from pyspark_pulsar.publisher import BLOCK_ROWS, Identity
from pyspark_pulsar.write_options import WriteOptions
from pyspark_pulsar.writer import PublishedRows, PulsarBatchWriter, check_columns, publish, summary
from support.brokers import Broker, NewTopic

Write = Callable[..., PublishedRows]


@pytest.fixture
def write(broker: Broker) -> Write:
    """Give what publishes rows as one task; "_" in an option's name stands for "."."""

    def run(
        schema: str, rows: Sequence[tuple[Any, ...]], identity: Identity | None = None, size: int = 0, **options: str
    ) -> PublishedRows:
        given = {"service.url": broker.service_url, **{name.replace("_", "."): v for name, v in options.items()}}
        parsed = WriteOptions.parse(given, streaming=True)
        spark_schema = struct(schema)
        columns = check_columns(parsed, spark_schema)
        return publish(parsed, columns, identity, 0, batches(spark_schema, rows, size or len(rows) or 1))

    return run


def struct(text: str) -> StructType:
    """Return a schema from a few words: names and JSON types, without a Spark session."""
    return StructType.fromJson({"type": "struct", "fields": [field(*part.split(" ", 1)) for part in text.split("; ")]})


def field(name: str, kind: str) -> dict[str, Any]:
    """Return one column of a schema."""
    types: dict[str, Any] = {"map": {"type": "map", "keyType": "string", "valueType": "string"}}
    types["map"]["valueContainsNull"] = True
    found: Any = types.get(kind, kind)
    if kind.startswith("struct<"):
        inner = [field(*part.split(":")) for part in kind[7:-1].split(",")]
        found = {"type": "struct", "fields": inner}
    return {"name": name, "type": found, "nullable": True, "metadata": {}}


def batches(schema: StructType, rows: Sequence[tuple[Any, ...]], size: int) -> Iterator[pyarrow.RecordBatch]:
    """Return rows as Spark would hand them to a task."""
    arrow = arrow_schema(schema)
    for start in range(0, len(rows), size):
        columns = list(zip(*rows[start : start + size], strict=True))
        arrays = [pyarrow.array(values, kind.type) for values, kind in zip(columns, arrow, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=arrow)


@pytest.fixture
def stored(client: pulsar_native.Client) -> Callable[..., list[Message]]:
    """Give what returns the messages a topic or partition holds now."""

    def read(topic: str, **more: Any) -> list[Message]:
        found = []
        with client.create_reader(topic, MessageId.earliest, **more) as reader:
            while reader.has_message_available():
                found.append(reader.read_next(10_000))
        return found

    return read


ALL = "value string; key string; eventTime timestamp; properties map; topic string"


@pytest.mark.proves("S15", "D9")
def test_write_columns_become_parts_of_messages(write: Write, topic: NewTopic, stored: Any) -> None:
    one, two = topic("one"), topic("two")
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC)
    told = write(
        ALL,
        [
            ("a", "k", moment, [("x", "1"), ("y", "é")], one),
            ("b", None, None, None, two),
            (None, "k", None, [], one),
        ],
        topic="persistent://public/default/unused",
    )
    first, tombstone = stored(one)
    assert (first.data(), first.partition_key(), first.properties()) == (b"a", "k", {"x": "1", "y": "é"})
    assert first.event_timestamp() == int(moment.timestamp() * 1000)
    assert tombstone.data() == b"" and tombstone.has_null_value() and tombstone.partition_key() == "k"
    (bare,) = stored(two)
    assert (bare.data(), bare.properties(), bare.event_timestamp()) == (b"b", {}, 0)
    assert {name: part.rows for name, part in told.topics.items()} == {one: 2, two: 1}
    assert told.topics[one].first == str(first.message_id())
    assert f"2 rows to {one}, ids {first.message_id()} to {tombstone.message_id()}" in summary([told, None])


def test_write_takes_the_columns_of_a_read(write: Write, topic: NewTopic, stored: Any) -> None:
    name = topic()
    schema = "value binary; __key binary; __topic string; __eventTime long; __messageProperties map"
    write(schema, [(b"\x00\xff", b"\x01", name, 1234, [("a", "b")])])
    (message,) = stored(name)
    assert (message.data(), message.event_timestamp(), message.properties()) == (b"\x00\xff", 1234, {"a": "b"})
    assert message.key_bytes() == b"\x01"


@pytest.mark.proves("S15")
@pytest.mark.parametrize("form", ["json", "avro"])
def test_write_records_register_their_schema(write: Write, topic: NewTopic, stored: Any, form: str) -> None:
    name = topic()
    rows = [(1, "x", datetime(2026, 1, 2, tzinfo=UTC)), (None, None, None)]
    write("id long; name string; at timestamp", rows, topic=name, valueFormat=form)
    kind: Any = {"json": JsonSchema, "avro": AvroSchema}[form]
    at = 1_767_312_000_000 if form == "json" else datetime(2026, 1, 2, tzinfo=UTC)
    unit = "millis" if form == "json" else "micros"
    names = {"id": "long", "name": "string", "at": {"type": "long", "logicalType": f"timestamp-{unit}"}}
    fields = [{"name": key, "type": ["null", each], "default": None} for key, each in names.items()]
    schema = kind(schema_definition={"type": "record", "name": "value", "fields": fields})
    found = stored(name, schema=schema)
    assert [message.value() for message in found] == [
        {"id": 1, "name": "x", "at": at},
        {"id": None, "name": None, "at": None},
    ]


@pytest.mark.parametrize(
    ("schema", "row", "form", "message"),
    [
        ("value string; properties map", ("a", [("x", None)]), "raw",
         "has no value for the property 'x' in column properties: leave it out of the map"),
        ("d double", (math.nan,), "json", r"value\.d is nan, which JSON does not have"),
        ("s struct<f:float>", ({"f": -math.inf},), "json", r"value\.s\.f is -inf, which JSON does not have"),
        ("at timestamp", (1 << 60,), "json", "years 1 to 9999"),
        ("value struct<day:date>", ({"day": 3_000_000},), "avro", "years 1 to 9999"),
    ],
)  # fmt: skip
def test_write_value_without_a_form_names_the_row(
    write: Write, topic: NewTopic, stored: Any, schema: str, row: tuple[Any, ...], form: str, message: str
) -> None:
    name = topic()
    good = (None,) * len(row)
    with pytest.raises(WriteFailed, match=f"[Rr]ow 3 of this task .*{message}"):
        write(schema, [good, good, good, row, row], size=2, topic=name, valueFormat=form)
    assert len(stored(name)) == 2, "the batch before"


@pytest.mark.parametrize("zone", ["GMT+9", "UTC+03:00", "Z", "PST"])
def test_write_records_by_session_time_zone(broker: Broker, topic: NewTopic, stored: Any, zone: str) -> None:
    at = pyarrow.timestamp("us", zone)
    kind = pyarrow.struct([("at", at), ("many", pyarrow.list_(at)), ("named", pyarrow.map_(pyarrow.string(), at))])
    record = {"at": 1_500_000, "many": [1_500_000, None], "named": [("a", 1_500_000)]}
    array = pyarrow.array([record], kind)
    for batch in (pyarrow.RecordBatch.from_struct_array(array), pyarrow.RecordBatch.from_arrays([array], ["value"])):
        name = topic()
        options = WriteOptions.parse(
            {"service.url": broker.service_url, "topic": name, "valueFormat": "json"}, streaming=True
        )
        columns = check_columns(options, from_arrow_schema(batch.schema))
        publish(options, columns, None, 0, [batch])
        (message,) = stored(name)
        assert json.loads(message.data()) == {"at": 1500, "many": [1500, None], "named": {"a": 1500}}


def test_write_avro_of_nan_is_kept(write: Write, topic: NewTopic, stored: Any) -> None:
    name = topic()
    write("d double", [(math.nan,)], topic=name, valueFormat="avro")
    assert len(stored(name)) == 1


def test_write_struct_value_null_is_a_tombstone(write: Write, topic: NewTopic, stored: Any) -> None:
    name = topic()
    write("key string; value struct<a:integer,b:string>", [("k", {"a": 1, "b": None}), ("k", None)], topic=name,
          valueFormat="json")  # fmt: skip
    first, second = stored(name)
    assert json.loads(first.data()) == {"a": 1, "b": None}
    assert second.has_null_value() and second.partition_key() == "k"


@pytest.mark.proves("S15")
def test_write_routes_keys_as_the_client_does(
    write: Write, topic: NewTopic, stored: Any, client: pulsar_native.Client, deduplicating: str, broker: Broker
) -> None:
    plain, dedup, theirs = topic(partitions=3), f"persistent://{deduplicating}/routed", topic(partitions=3)
    broker.admin("PUT", f"{dedup.replace('://', '/')}/partitions", 3)
    keys = [f"key-{number}" for number in range(30)]
    with client.create_producer(theirs) as producer:
        for key in keys:
            producer.send(key.encode(), partition_key=key)
    rows = [(key, key) for key in keys]
    write("value string; key string", rows, topic=plain)
    write("value string; key string", rows, Identity("q", 0, 0), topic=dedup, deliveryGuarantee="deduplicated")
    for partition in range(3):
        wanted = [message.data() for message in stored(f"{theirs}-partition-{partition}")]
        assert wanted
        for other in (plain, dedup):
            assert [message.data() for message in stored(f"{other}-partition-{partition}")] == wanted


def test_write_single_partition_of_the_task(write: Write, stored: Any, broker: Broker, deduplicating: str) -> None:
    name = f"persistent://{deduplicating}/single"
    broker.admin("PUT", f"{name.replace('://', '/')}/partitions", 3)
    rows = [(f"{number:05}",) for number in range(2 * BLOCK_ROWS + 1)]
    mode = {"pulsar_producer_messageRoutingMode": "SinglePartition", "deliveryGuarantee": "deduplicated"}
    for task, part in ((4, rows[:700]), (4, rows), (2, rows[:1])):
        write("value string", part, Identity("query", task, 0), 900, topic=name, **mode)
    found = [[message.data().decode() for message in stored(f"{name}-partition-{index}")] for index in range(3)]
    assert found == [[], [value for (value,) in rows], ["00000"]]


@pytest.mark.proves("S15")
@pytest.mark.parametrize("partitions", [0, 2])
def test_write_repeated_task_is_published_once(
    write: Write, stored: Any, broker: Broker, deduplicating: str, partitions: int
) -> None:
    name = f"persistent://{deduplicating}/repeated-{partitions}"
    if partitions:
        broker.admin("PUT", f"{name.replace('://', '/')}/partitions", partitions)
    names = [f"{name}-partition-{index}" for index in range(partitions)] or [name]
    rows = [(f"{number:05}", f"k{number % 7}" if number % 2 else None) for number in range(3 * BLOCK_ROWS)]
    options = {"topic": name, "deliveryGuarantee": "deduplicated"}

    def run(part: Sequence[Any], batch_id: int, task: int = 0, size: int = 0) -> PublishedRows:
        return write("value string; key string", part, Identity("query", task, batch_id), size, **options)

    def found() -> list[str]:
        return sorted(message.data().decode() for each in names for message in stored(each))

    run(rows[:1234], 0)  # an attempt that ended early
    told = run(rows, 0, size=700)
    assert found() == [value for value, _ in rows]
    assert (told.topics[name].duplicates, told.topics[name].rows) == (1234, len(rows) - 1234)
    again = run(rows, 0)
    assert again.topics[name].duplicates == len(rows)
    assert found() == [value for value, _ in rows]
    run([("next", None)], 1)
    run([("other task", None)], 1, task=1)
    assert found() == [*(value for value, _ in rows), "next", "other task"]
    with pytest.raises(OperationNotSupported, match="already written batch 1"):
        run([("older", None)], 0)


def test_write_deduplicated_needs_deduplication(write: Write, topic: NewTopic, stored: Any) -> None:
    name = topic()
    with pytest.raises(OperationNotSupported, match="set-deduplication --enable"):
        write("value string", [("a",), ("b",)], Identity("q", 0, 0), topic=name, deliveryGuarantee="deduplicated")
    assert [message.data() for message in stored(name)] == [b"a"]


@pytest.mark.proves("S15")
def test_write_transaction_shows_all_rows_or_none(write: Write, topic: NewTopic, stored: Any) -> None:
    one, two = topic("one"), topic("two", partitions=2)
    schema, options = "value string; topic string", {"deliveryGuarantee": "transactional"}
    write(schema, [("a", one), ("b", two), ("c", one)], **options)
    assert [message.data() for message in stored(one)] == [b"a", b"c"]
    with pytest.raises(WriteFailed, match="Row 2 of this task has no topic"):
        write(schema, [("d", one), ("e", two), ("f", None)], size=2, **options)
    assert [message.data() for message in stored(one)] == [b"a", b"c"]


NOT_UTF_8 = pyarrow.array([b"ok", None, b"a\xff"], pyarrow.binary()).view(pyarrow.string())
NUMBERS = pyarrow.array([1, 2, 3])
NAMES = pyarrow.array(["a", "b", "c"])
# Of a time zone that Python does not know.
TIMES = pyarrow.array([1, 2, 3], pyarrow.timestamp("us", "GMT+1"))


@pytest.mark.parametrize(
    ("columns", "form", "name", "advice"),
    [
        ({"value": NAMES, "key": NOT_UTF_8}, "raw", "key", ", or cast the column to BINARY, for a key of bytes"),
        ({"value": NAMES, "properties": pyarrow.MapArray.from_arrays([0, 1, 2, 3], NAMES, NOT_UTF_8.fill_null(""))},
         "raw", "properties", ""),
        ({"n": NUMBERS, "b": NOT_UTF_8}, "json", "b", ""),
        ({"n": NUMBERS, "b": NOT_UTF_8}, "avro", "b", ""),
        ({"value": pyarrow.StructArray.from_arrays([NOT_UTF_8, TIMES], ["a", "at"])}, "avro", "value", ""),
    ],
    ids=["key", "properties", "json", "avro", "struct"],
)  # fmt: skip
def test_write_text_not_utf8_names_row_and_column(
    broker: Broker, topic: NewTopic, stored: Any, columns: dict[str, pyarrow.Array], form: str, name: str, advice: str
) -> None:
    there = topic()
    good, bad = (pyarrow.RecordBatch.from_pydict(columns).slice(start, 2) for start in (0, 1))
    options = WriteOptions.parse(
        {"service.url": broker.service_url, "topic": there, "valueFormat": form}, streaming=True
    )
    roles = check_columns(options, from_arrow_schema(good.schema))
    with pytest.raises(WriteFailed) as failed:
        publish(options, roles, None, 0, iter([good, bad]))
    assert failed.value.message == (
        f"Row 3 of this task, to {there}, has text that is not UTF-8 in column {name}: replace such bytes, as with "
        f"make_valid_utf8{advice}"
    )
    assert len(stored(there)) == 2, "the batch before"


def test_write_topic_not_utf8_names_the_row(broker: Broker, topic: NewTopic, stored: Any) -> None:
    first, second = topic(), topic()
    options = WriteOptions.parse({"service.url": broker.service_url, "topic": first}, streaming=True)

    def write(topics: pyarrow.Array, **more: pyarrow.Array) -> None:
        rows = pyarrow.RecordBatch.from_pydict({"value": NOT_UTF_8, "topic": topics, **more})
        publish(options, check_columns(options, from_arrow_schema(rows.schema)), None, 0, iter([rows]))

    with pytest.raises(WriteFailed, match=r"^Row 2 of this task has text that is not UTF-8 in column topic: "):
        write(NOT_UTF_8)
    # The topic of the row is that of its column, else that of the option.
    for name in (first, second):
        topics = pyarrow.array([first, None, None if name == first else second])
        with pytest.raises(WriteFailed, match=rf"^Row 2 of this task, to {name}, has text .* in column key: "):
            write(topics, key=NOT_UTF_8)
    assert stored(first) == stored(second) == []
    write(pyarrow.array([None, None, second]))
    assert [message.data() for message in stored(second)] == [b"a\xff"], "a value is bytes"


def test_write_error_names_topic_and_row(
    write: Write, topic: NewTopic, stored: Any, broker: Broker, client: pulsar_native.Client
) -> None:
    good, closed = topic("good"), topic("closed")
    with client.create_producer(closed) as producer:
        producer.send(b"last")
    broker.admin("POST", f"{closed.replace('://', '/')}/terminate")
    with pytest.raises(WriteFailed, match=rf"Row 3 of this task, .* to {closed}: ") as failed:
        write("value string; topic string", [("a", good)] * 3 + [("b", closed)], topic=good)
    assert isinstance(failed.value.__cause__, TopicTerminated) or failed.value.result != Result.Ok
    assert len(stored(good)) == 3
    with pytest.raises(WriteFailed, match=r"Row 1 of this task has no topic: give it one in column __topic$"):
        write("value string; __topic string", [("a", good), ("b", None)])
    with pytest.raises(WriteFailed, match=r"Row 1 of this task names a topic that cannot be"):
        write("value string; topic string", [("a", good), ("b", "a/b")])
    with pytest.raises(WriteFailed, match=rf"Row 5 of this task, .* to {good}: .*"):
        write("value string", [("a",)] * 5 + [("x" * 6_000_000,)], topic=good)


@pytest.mark.parametrize(
    ("kind", "before"),
    [("long", -5), ("timestamp", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC))],
    ids=["milliseconds", "timestamp"],
)
def test_write_event_time_before_1970_names_the_row(
    write: Write, topic: NewTopic, stored: Any, kind: str, before: Any
) -> None:
    first, second = topic(), topic()
    rows = [("a", None, None)] * 4 + [("b", before, None), ("c", before, second)]
    text = "Row {} of this task, to {}, has an event time before 1970 in column eventTime: give it one from 1970 on, "
    for part, row, there in ((rows, 4, first), ([*rows[:4], rows[5]], 4, second)):
        with pytest.raises(WriteFailed, match="^" + re.escape(text.format(row, there))) as failed:
            write(f"value string; eventTime {kind}; topic string", part, size=3, topic=first)
        assert failed.value.topic == there
    assert len(stored(first)) == 6, "the batches before"
    assert stored(second) == []


@pytest.mark.parametrize(("sent", "row"), [(2, 2), (0, 0), (9, 5)], ids=["some", "none", "all"])
def test_write_error_names_first_row_not_sent(
    write: Write, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, sent: int, row: int
) -> None:
    def send(*_: Any) -> None:
        raise BulkSendError(stored=(range(sent),), message_ids=range(sent)) from InvalidMessage("wrong")

    monkeypatch.setattr(publisher, "_send", send)
    with pytest.raises(WriteFailed, match=rf"^Row {row} of this task, and rows after it, .*: wrong "):
        write("value string", [("a",)] * 6, topic=topic())


def test_write_too_large_value_names_the_options(write: Write, topic: NewTopic, stored: Any) -> None:
    name, large = topic(), [("x" * 6_000_000,)]
    with pytest.raises(WriteFailed, match=r"pulsar\.producer\.chunkingEnabled=true and .*batchingEnabled=false"):
        write("value string", large, topic=name)
    chunks = {"pulsar_producer_chunkingEnabled": "true", "pulsar_producer_batchingEnabled": "false"}
    write("value string", large, topic=name, **chunks)
    assert [len(message.data()) for message in stored(name)] == [6_000_000]


def test_write_rows_of_spark_4_0(broker: Broker, topic: NewTopic, stored: Any) -> None:
    from pyspark.sql import Row

    import pyspark_pulsar.writer as module

    name = topic()
    options = WriteOptions.parse({"service.url": broker.service_url, "topic": name}, streaming=False)
    schema = struct("value string; properties map")
    rows = [Row(value="a", properties={"x": "1"}), Row(value=None, properties=None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_HAS_ARROW", False)
        PulsarBatchWriter(options, schema).write(iter(rows))
    assert [(message.data(), message.properties()) for message in stored(name)] == [(b"a", {"x": "1"}), (b"", {})]


def test_initial_sequence_ids_are_above_zero() -> None:
    # 0 would mean none to the client.
    assert [Identity("q", 0, batch).first_sequence_id - 1 for batch in (0, 1)] == [1, (1 << 32) + 1]
