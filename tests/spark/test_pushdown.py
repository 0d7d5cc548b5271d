"""Filters of a query that the source applies: the same rows, and less is read, by plan, rows and broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_native import Client, MessageId
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import Int32Schema
from pyspark_pulsar.batch_reader import PulsarBatchReader, PulsarPushdownReader
from pyspark_pulsar.clients import close_clients
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position
from pyspark_pulsar.pushdown import Pushed, push, pushes_filters
from support.brokers import Broker, NewTopic
from support.publishing import Publish
from support.raw import commands_of
from support.relay import Command, NewRelay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.needs_spark("4.1")

Read = Callable[..., "DataFrame"]
Texts = Callable[["DataFrame"], list[str]]
_SETTING = "spark.sql.python.filterPushdown.enabled"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """Switch on Spark's pushdown of filters."""
    spark.conf.set(_SETTING, "true")
    yield
    spark.conf.unset(_SETTING)


@pytest.fixture
def read_pushing(pushing: None, read: Read) -> Read:
    """Give what reads a topic with the filters of the query."""
    return partial(read, pushDownPredicate="true")


def scanned(frame: DataFrame) -> int:
    """Return the number of rows that the source gave Spark when the frame was collected."""
    plan: Any = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    assert leaves.size() == 1, plan.toString()
    return int(leaves.apply(0).metrics().apply("numOutputRows").value())


def filters(frame: DataFrame) -> str:
    """Return the condition that Spark applies itself, "" for none."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    found = [line for line in plan.splitlines() if "Filter" in line and "BatchScan" not in line]
    return "".join(found)


def sent(broker: Broker, topic: str) -> int:
    """Return the number of messages that the broker has sent to consumers of the topic."""
    stats = broker.admin("GET", f"{topic.replace('://', '/')}/stats")
    assert isinstance(stats, dict)
    return int(stats["msgOutCounter"])


def moment(millis: int, micros: int = 0) -> str:
    """Return a time as an SQL literal."""
    return f"TIMESTAMP '{(_EPOCH + timedelta(milliseconds=millis, microseconds=micros)).isoformat(sep=' ')}'"


@pytest.fixture
def timed(publish: Publish, client: Client, topic: NewTopic) -> tuple[str, list[int]]:
    """Give a topic with five batches of two messages, 600 ms apart, and the publish time of each batch.

    The broker finds a time by its own clock, and a busy machine may take longer to get a message there than a small
    slack.
    """
    name = topic("timed")
    for number in range(5):
        publish(name, [f"{number}a", f"{number}b"])
        time.sleep(0.6)  # More than the slack of the tests.
    reader = client.create_reader(name, MessageId.earliest)
    times = [reader.read_next(10_000).publish_timestamp() for _ in range(10)][::2]
    reader.close()
    assert sorted(set(times)) == times
    return name, times


@pytest.mark.proves("S12")
def test_pushdown_publish_time_reads_less(read_pushing: Read, broker: Broker, timed: tuple[str, list[int]]) -> None:
    name, times = timed
    everything = [f"{number}{letter}" for number in range(5) for letter in "ab"]
    cases: list[tuple[str, Callable[[int], bool]]] = [
        (f"__publishTime >= {moment(times[3])}", lambda at: at >= times[3]),
        (f"__publishTime > {moment(times[3])}", lambda at: at > times[3]),
        (f"__publishTime >= {moment(times[3], 1)}", lambda at: at > times[3]),
        (f"__publishTime < {moment(times[1])}", lambda at: at < times[1]),
        (f"__publishTime < {moment(times[1], 1)}", lambda at: at <= times[1]),
        (f"__publishTime <= {moment(times[1])}", lambda at: at <= times[1]),
        (f"__publishTime = {moment(times[2])}", lambda at: at == times[2]),
        (f"__publishTime = {moment(times[2], 1)}", lambda at: False),
        (f"__publishTime BETWEEN {moment(times[1])} AND {moment(times[2])}", lambda at: times[1] <= at <= times[2]),
    ]
    for condition, wanted in cases:
        frame = read_pushing(name, timeSlackMs="500").where(condition)
        found = [bytes(row["value"]).decode() for row in frame.collect()]
        assert found == [text for text in everything if wanted(times[int(text[0])])], condition
        assert scanned(frame) == len(found), condition
        assert filters(frame) == "", condition
    # The broker did not send what is before the range.
    before = sent(broker, name)
    assert read_pushing(name, timeSlackMs="500").where(f"__publishTime >= {moment(times[4])}").count() == 2
    narrow = sent(broker, name) - before
    before = sent(broker, name)
    assert read_pushing(name).count() == 10
    assert narrow < sent(broker, name) - before


@pytest.mark.proves("S12")
def test_pushdown_topics_leave_out_partitions(
    read_pushing: Read, texts: Texts, publish: Publish, broker: Broker, topic: NewTopic
) -> None:
    name = topic("parts", partitions=3)
    parts = [f"{name}-partition-{number}" for number in range(3)]
    for number, part in enumerate(parts):
        publish(part, [f"{number}"])
    for condition, wanted in (
        (f"__topic = '{parts[1]}'", ["1"]),
        (f"__topic IN ('{parts[0]}', '{parts[2]}')", ["0", "2"]),
        ("__topic LIKE '%-2'", ["2"]),
        (f"NOT __topic = '{parts[1]}'", ["0", "2"]),
        ("__partition >= 1 AND __partition < 2", ["1"]),
        ("__topic = 'none'", []),
    ):
        frame = read_pushing(name, columns="value,__topic,__partition").where(condition)
        assert frame.rdd.getNumPartitions() <= max(1, len(wanted)), condition
        assert sorted(bytes(row["value"]).decode() for row in frame.collect()) == wanted, condition
        assert scanned(frame) == len(wanted) and filters(frame) == "", condition
    before = [sent(broker, part) for part in parts]
    assert texts(read_pushing(name).where(f"__topic = '{parts[1]}'")) == ["1"]
    after = [sent(broker, part) for part in parts]
    assert (after[0], after[2]) == (before[0], before[2]) and after[1] > before[1]


@pytest.mark.proves("S12")
def test_pushdown_keys_are_left_out_in_the_task(
    read_pushing: Read, texts: Texts, publish: Publish, topic: NewTopic
) -> None:
    name = topic("keys")
    for key in ("a", "b", "a"):
        publish(name, [f"{key}1", f"{key}2"], partition_key=key)
    publish(name, ["none"])
    for condition, wanted in (
        ("__key = X'61'", ["a1", "a2", "a1", "a2"]),
        ("__key IN (X'62', X'63')", ["b1", "b2"]),
        ("__key IS NULL", ["none"]),
        ("__key = X'61' AND __key = X'62'", []),
    ):
        frame = read_pushing(name).where(condition)
        assert [bytes(row["value"]).decode() for row in frame.collect()] == wanted, condition
        assert scanned(frame) == len(wanted), condition
    # Handed back: Spark has its own rules for null and for order.
    frame = read_pushing(name).where("NOT __key = X'61'")
    assert [bytes(row["value"]).decode() for row in frame.collect()] == ["b1", "b2"]
    assert scanned(frame) == 7 and "__key" in filters(frame)


@pytest.mark.proves("S12")
def test_pushdown_message_id_reads_one_message(
    read_pushing: Read, publish: Publish, broker: Broker, topic: NewTopic
) -> None:
    name = topic("ids", partitions=2)
    publish(f"{name}-partition-0", ["other"])
    publish(f"{name}-partition-1", ["0"], ["1a", "1b", "1c"], ["2"])
    ids = {bytes(row["value"]): bytes(row["__messageId"]) for row in read_pushing(name).collect()}
    for texts_wanted, rows_scanned in ((["1b"], 1), (["1a", "1c"], 3), (["0", "2"], 5), (["other", "2"], 2)):
        literals = ", ".join(f"X'{ids[text.encode()].hex()}'" for text in texts_wanted)
        frame = read_pushing(name).where(f"__messageId IN ({literals})")
        assert sorted(bytes(row["value"]).decode() for row in frame.collect()) == sorted(texts_wanted)
        assert scanned(frame) == rows_scanned
    wrong = read_pushing(name).where("__messageId = X'00'")
    assert wrong.collect() == []


@pytest.mark.proves("S12")
def test_pushdown_other_filters_stay_with_spark(read_pushing: Read, publish: Publish, topic: NewTopic) -> None:
    name = topic("others")
    publish(name, ["a", "b"], ["c"])
    for condition in (
        "value = X'63'",
        "__entryId = 1",
        "__publishTime > TIMESTAMP '2000-01-01 00:00:00Z' AND value = X'63'",
        "(__key = X'61' OR value = X'63')",
    ):
        frame = read_pushing(name, includeMetadata="all").where(condition)
        assert [bytes(row["value"]) for row in frame.collect()] == [b"c"], condition
        assert scanned(frame) == 3 and filters(frame), condition


@pytest.mark.proves("S12")
def test_pushdown_off_gives_the_same_rows(
    read: Read, spark: SparkSession, timed: tuple[str, list[int]], texts: Texts
) -> None:
    name, times = timed
    assert spark.conf.get(_SETTING) == "false"
    frame = read(name, pushDownPredicate="true").where(f"__publishTime >= {moment(times[3])}")
    assert texts(frame) == ["3a", "3b", "4a", "4b"]
    assert not pushes_filters()


@pytest.mark.proves("S12")
@pytest.mark.parametrize("options", [{}, {"pushDownPredicate": "false"}])
def test_pushdown_not_chosen_shared_frame_has_all_rows(
    pushing: None, read: Read, texts: Texts, publish: Publish, topic: NewTopic, options: dict[str, str]
) -> None:
    name = topic("shared")
    for key in "ab":
        publish(name, [key], partition_key=key)
    frame = read(name, **options)
    a, b = frame.where("__key = X'61'"), frame.where("__key = X'62'")
    assert (texts(a), texts(b), texts(frame)) == (["a"], ["b"], ["a", "b"])
    assert sorted(texts(a.union(b))) == ["a", "b"]
    frame.createOrReplaceTempView("shared_frame")
    of_a, both = a.sparkSession.sql(
        "SELECT (SELECT count(*) FROM shared_frame WHERE __key = X'61'), (SELECT count(*) FROM shared_frame)"
    ).collect()[0]
    assert (of_a, both) == (1, 2)


def test_pushdown_applies_before_decoding(read_pushing: Read, client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic("decode")
    producer = client.create_producer(name)
    producer.send(Int32Schema().encode(7), partition_key="good")
    producer.send(b"wrong", partition_key="bad")
    producer.close()
    client.create_producer(name, schema=Int32Schema()).close()
    frame = read_pushing(name, admin_url=broker.admin_url, valueFormat="auto").where("__key = X'676f6f64'")
    assert [row["value"] for row in frame.collect()] == [7]


@pytest.mark.proves("S12")
def test_pushdown_of_trimmed_topic_is_no_data_loss(
    read_pushing: Read, texts: Texts, publish: Publish, trimmable: str, trim: Callable[[str], MessageId]
) -> None:
    name = f"persistent://{trimmable}/trimmed"
    publish(name, ["gone"])
    trim(name)
    assert texts(read_pushing(name).where("__publishTime > TIMESTAMP '2000-01-01 00:00:00Z'")) == ["kept"]


@pytest.mark.proves("S12")
def test_pushdown_plans_with_one_reader_a_partition(
    relay: NewRelay, broker: Broker, topic: NewTopic, publish: Publish
) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan

    name = topic("once", partitions=2)
    (id_,) = publish(f"{name}-partition-1", ["a"])
    between = relay(broker.service_url)
    options = ReadOptions.parse({"service.url": between.service_url, "topic": name})
    reader = PulsarPushdownReader(options)
    reader.pushFilters([GreaterThan(("__publishTime",), _EPOCH), EqualTo(("__messageId",), id_.serialize())])
    (split,) = reader.partitions()
    (item,) = split.ranges
    assert (item.topic, item.start.entry) == (f"{name}-partition-1", id_.entry_id())
    # A reader attaches again after a seek, under its number.
    subscribed = [command.subscribe for command in commands_of(between, Command.SUBSCRIBE)]
    assert {each.topic for each in subscribed} == {f"{name}-partition-1"}, "the other partition is not wanted"
    assert len({each.consumer_id for each in subscribed}) == 1
    close_clients()


# ---- columns -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S12")
def test_columns_chosen_are_the_only_ones_scanned(read: Read, publish: Publish, topic: NewTopic) -> None:
    name = topic("columns")
    publish(name, ["a" * 100_000])
    frame = read(name, columns="__entryId")
    assert [row["__entryId"] for row in frame.collect()] == [0]
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan" in plan and "value" not in plan and "__key" not in plan


# ---- the filters themselves ----------------------------------------------------------------------------------------


def test_pushed_filters_are_all_of_them() -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThan, Not

    at = _EPOCH + timedelta(milliseconds=5)
    taken = [
        GreaterThan(("__publishTime",), at),
        LessThan(("__publishTime",), at + timedelta(milliseconds=9)),
        IsNotNull(("__publishTime",)),
        EqualTo(("__key",), b"a"),
        In(("__key",), (b"a", b"b")),
        Not(EqualTo(("__partition",), 3)),
    ]
    rest = [
        EqualTo(("__messageId",), MessageId(1, 2, 3, 4).serialize()),
        EqualTo(("__messageId",), b"\xff"),
        EqualTo(("__topic",), None),
        EqualTo(("__key",), None),
        EqualTo(("value",), b"x"),
        EqualTo(("__messageProperties", "key"), "x"),
        GreaterThan(("__publishTime",), at.replace(tzinfo=None)),
    ]
    pushed, back = push([*taken, *rest])
    assert [id(each) for each in back] == [id(each) for each in rest]
    assert (pushed.publish_from, pushed.publish_until) == (6, 14)
    assert pushed.keys == {b"a"}
    assert pushed.ids == {1: (Position(2, 3, 4), Position(2, 3, 5))}
    assert pushed.wants("persistent://public/default/t-partition-1")
    assert not pushed.wants("persistent://public/default/t-partition-3")
    assert push([])[0].is_empty and not pushed.is_empty
    options = ReadOptions.parse({"service.url": "pulsar://h:1", "topic": "t", "startingTime": "9", "endingTime": "99"})
    assert pushed.within(options) == (9, 14) and Pushed().within(options) == (9, 99)


def test_reader_takes_filters_only_where_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import BinaryType, StructType

    from pyspark_pulsar.source import DefaultSource

    given = {"service.url": "pulsar://h:1", "topic": "t", "columns": "value"}
    source = DefaultSource({**given, "pushDownPredicate": "true"})
    schema = StructType().add("value", BinaryType())
    plain = source.reader(schema=schema)
    assert type(plain) is PulsarBatchReader
    # Spark refuses a reader with a method of its own while the setting is off.
    assert plain.pushFilters.__func__ is DataSourceReader.pushFilters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", sys)
    assert type(source.reader(schema=schema)) is PulsarPushdownReader
    assert type(DefaultSource(given).reader(schema=schema)) is PulsarBatchReader
    with pytest.raises(InvalidConfiguration, match="The schema of this read is"):
        source.reader(schema=StructType())
