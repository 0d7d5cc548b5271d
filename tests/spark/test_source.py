"""The data source in a real Spark session against a real broker: exact rows, every bound, every refusal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import pulsar_native
from pulsar_native import MessageId
from support.brokers import Broker, NewTopic, admin
from support.publishing import Publish, publish_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from broker import Standalone

Read = Callable[..., "DataFrame"]
Texts = Callable[["DataFrame"], list[str]]
TEN = [str(number) for number in range(10)]


def offsets(topic: str, text: str) -> str:
    """Return the JSON of an offsets option for one topic."""
    return f'{{"{topic}": "{text}"}}'


def text_of(message_id: MessageId) -> str:
    """Return the position of a message as a user writes it."""
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.batch_index()}"


def milliseconds(local_time: datetime) -> int:
    """Return a time as collected from Spark (without a zone, in this process's) as milliseconds since 1970."""
    return (local_time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def publish_times(client: pulsar_native.Client, topic: str, count: int) -> list[int]:
    """Return the publish times of the first messages, read one by one."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [reader.read_next(10_000).publish_timestamp() for _ in range(count)]


# ---- finding it ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1")
def test_source_is_discovered_by_spark(read: Read, texts: Texts, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, TEN)
    assert texts(read(name)) == TEN


def test_source_in_sql_is_a_view_and_no_table(
    spark: SparkSession, broker: Broker, texts: Texts, topic: NewTopic, publish: Publish
) -> None:
    name = topic()
    publish(name, TEN)
    options = f"USING pulsar OPTIONS (`service.url` '{broker.service_url}', topic '{name}')"
    spark.sql(f"CREATE TEMPORARY VIEW orders {options}")
    assert texts(spark.sql("SELECT value FROM orders")) == TEN
    with pytest.raises(PySparkException, match="tables are not supported; use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE stored_orders {options}")
    with pytest.raises(PySparkException, match=r"credentialsRef must be .* revoke it"):
        spark.sql(f"CREATE TABLE stored_orders {options[:-1]}, credentialsRef 's3cret')")


def test_source_registers_at_a_session(
    spark: SparkSession, broker: Broker, texts: Texts, topic: NewTopic, publish: Publish
) -> None:
    from pyspark_pulsar import register

    name = topic()
    publish(name, TEN)
    other = spark.newSession()
    register(other)
    frame = other.read.format("PULSAR").option("service.url", broker.service_url).option("topic", name).load()
    assert texts(frame) == TEN


def test_source_timestamp_ntz_session_reads_timestamps(
    spark: SparkSession, broker: Broker, texts: Texts, topic: NewTopic, publish: Publish
) -> None:
    name = topic()
    publish(name, TEN)
    other = spark.newSession()
    other.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    frame = other.read.format("pulsar").options(**{"service.url": broker.service_url, "topic": name}).load()
    assert frame.schema["__publishTime"].dataType.simpleString() == "timestamp"
    assert texts(frame.filter("__publishTime >= '2020-01-01 00:00:00'")) == TEN
    other.sql(
        f"CREATE TEMPORARY VIEW orders USING pulsar OPTIONS (`service.url` '{broker.service_url}', topic '{name}')"
    )
    assert texts(other.sql("SELECT value FROM orders WHERE __eventTime IS NULL")) == TEN


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S11")
def test_source_columns_hold_published_values(
    spark: SparkSession, read: Read, topic: NewTopic, publish: Publish, client: pulsar_native.Client
) -> None:
    name = topic(partitions=2)
    first = publish(
        f"{name}-partition-1",
        ["a", "b"],
        partition_key="key é",
        properties={"x": "1", "y": ""},
        event_timestamp=1_357_000_000_123,
    )
    bare = publish(f"{name}-partition-1", ["c"])
    times = publish_times(client, f"{name}-partition-1", 3)
    rows = [row.asDict() for row in read(name, includeMetadata="all").collect()]
    assert [bytes(row["value"]) for row in rows] == [b"a", b"b", b"c"]
    assert [row["__topic"] for row in rows] == [f"{name}-partition-1"] * 3
    assert [row["__partition"] for row in rows] == [1, 1, 1]
    ids = [MessageId.deserialize(bytes(row["__messageId"])) for row in rows]
    assert ids == [*first, *bare]
    found = [(row["__ledgerId"], row["__entryId"], row["__batchIndex"]) for row in rows]
    assert found == [(one.ledger_id(), one.entry_id(), one.batch_index()) for one in (*first, *bare)]
    assert [milliseconds(row["__publishTime"]) for row in rows] == times
    assert [bytes(row["__key"] or b"none").decode() for row in rows] == ["key é", "key é", "none"]
    assert [row["__messageProperties"] for row in rows] == [{"x": "1", "y": ""}] * 2 + [{}]
    assert [milliseconds(row["__eventTime"]) for row in rows[:2]] == [1_357_000_000_123] * 2
    assert rows[2]["__eventTime"] is None
    assert [row["__sequenceId"] for row in rows] == [0, 1, 0]
    assert rows[0]["__producerName"] and rows[0]["__producerName"] == rows[1]["__producerName"]


@pytest.mark.proves("S11")
def test_source_metadata_columns_by_option(read: Read, topic: NewTopic) -> None:
    name = topic()
    jvm = ["value", "__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties"]
    assert read(name).columns == jvm
    assert read(name, includeMetadata="false").columns == ["value"]
    assert read(name, columns="__batchIndex,value").columns == ["__batchIndex", "value"]


def test_source_reads_rows_of_partitions_once(read: Read, topic: NewTopic, publish: Publish) -> None:
    name = topic(partitions=4)
    groups = [[f"{batch}-{index}" for index in range(500)] for batch in range(40)]
    for partition in range(4):
        publish(f"{name}-partition-{partition}", *groups[partition * 10 : partition * 10 + 10])
    frame = read(name, columns="value")
    assert frame.rdd.getNumPartitions() == 4
    found = sorted(bytes(row["value"]).decode() for row in frame.collect())
    assert found == sorted(text for group in groups for text in group)


# ---- bounds by id ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("S4", "D3")
def test_source_id_bounds_inside_batches(read: Read, texts: Texts, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    ids = publish(name, TEN[:4], TEN[4:7], TEN[7:])
    for start, end in ((0, 10), (0, 2), (2, 4), (1, 6), (4, 7), (5, 9), (9, 10), (3, 4)):
        bounds = {"startingOffsets": offsets(name, text_of(ids[start]))}
        if end < 10:
            bounds["endingOffsets"] = offsets(name, text_of(ids[end]))
        assert texts(read(name, **bounds)) == TEN[start:end], (start, end)
    same = offsets(name, text_of(ids[5]))
    assert texts(read(name, startingOffsets=same, endingOffsets=same)) == []


@pytest.mark.proves("S4", "D3")
def test_source_id_bounds_of_the_jvm_connector(read: Read, texts: Texts, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    ids = publish(name, TEN[:4], TEN[4:7], TEN[7:])
    entry = f"{ids[4].ledger_id()}:{ids[4].entry_id()}"
    following = f"{ids[4].ledger_id()}:{ids[4].entry_id() + 1}"
    one = {"startingOffsets": offsets(name, entry), "endingOffsets": offsets(name, following)}
    assert texts(read(name, **one)) == TEN[4:7]
    arrays = {
        option: f'{{"{name}": {list(message_id.serialize())}}}'
        for option, message_id in (("startingOffsets", ids[2]), ("endingOffsets", ids[8]))
    }
    assert texts(read(name, **arrays)) == TEN[2:8]


def test_source_end_is_fixed_while_publishing(
    read: Read, texts: Texts, topic: NewTopic, publish: Publish, client: pulsar_native.Client
) -> None:
    name = topic()
    publish(name, [f"{number:06d}" for number in range(1000)])
    over = threading.Event()
    sent = [1000]

    def go_on() -> None:
        producer = client.create_producer(name, batching_enabled=True, block_if_queue_full=True)
        while not over.is_set():
            for _ in range(50):
                producer.send_async(f"{sent[0]:06d}".encode(), lambda result, message_id: None)
                sent[0] += 1
            time.sleep(0.005)
        producer.close()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        started = time.monotonic()
        found = [texts(read(name)) for _ in range(3)]
        assert time.monotonic() - started < 60
    finally:
        over.set()
        thread.join()
    for texts_found in found:
        assert len(texts_found) >= 1000
        assert texts_found == [f"{number:06d}" for number in range(len(texts_found))], "no gap, nothing twice"
    assert len(found[0]) <= len(found[1]) <= len(found[2]) <= sent[0]


# ---- bounds by time --------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(topic: NewTopic, publish: Publish, client: pulsar_native.Client) -> tuple[str, Sequence[int]]:
    """Give a topic with five batches of two messages, some milliseconds apart, and the publish time of each batch."""
    name = topic()
    for number in range(5):
        publish(name, [f"{number}a", f"{number}b"])
        time.sleep(0.02)
    times = publish_times(client, name, 10)[::2]
    assert sorted(set(times)) == times
    return name, times


@pytest.mark.proves("S5", "D1")
def test_source_time_bounds_are_exact(read: Read, texts: Texts, timed: tuple[str, Sequence[int]]) -> None:
    name, times = timed
    everything = [f"{number}{letter}" for number in range(5) for letter in "ab"]
    for start, end in ((times[1], times[3]), (times[1] + 1, times[3] + 1), (times[0], times[0] + 1), (0, times[4])):
        expected = [text for text in everything if start <= times[int(text[0])] < end]
        assert texts(read(name, startingTime=str(start), endingTime=str(end))) == expected
        iso = [datetime.fromtimestamp(bound / 1000, UTC).isoformat() for bound in (start, end)]
        assert texts(read(name, startingTime=iso[0], endingTime=iso[1], timeSlackMs="10000")) == expected


@pytest.mark.proves("S5", "D2")
def test_source_end_in_the_future_does_not_wait(read: Read, texts: Texts, timed: tuple[str, Sequence[int]]) -> None:
    name, times = timed
    started = time.monotonic()
    assert texts(read(name, startingTime=str(times[4]), endingTime=str(times[4] + 10**9))) == ["4a", "4b"]
    assert texts(read(name, startingTime=str(times[4] + 10**9))) == []
    assert texts(read(name, endingTime=str(times[0]))) == []
    assert time.monotonic() - started < 50, "a wait for a message would take 60 s"


# ---- nothing there, nothing left behind ------------------------------------------------------------------------------


def test_source_empty_topic_is_empty_frame(read: Read, texts: Texts, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    broker.admin("PUT", name.replace("://", "/"))
    assert texts(read(name)) == []
    assert texts(read(topic(partitions=3))) == []
    assert texts(read(name, startingTime="5", endingTime="10")) == []


@pytest.mark.proves("D6")
def test_source_leaves_no_subscription(
    read: Read, texts: Texts, topic: NewTopic, publish: Publish, broker: Broker
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        publish(f"{name}-partition-{partition}", TEN)
    assert len(texts(read(name))) == 20
    assert len(texts(read(name, startingTime="5"))) == 20
    assert read(name).limit(3).count() == 3
    for partition in range(2):
        broker.wait_unsubscribed(f"{name}-partition-{partition}")


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_source_unknown_topic_raises_without_creating(read: Read, topic: NewTopic, broker: Broker) -> None:
    name = topic("absent")
    with pytest.raises(PySparkException, match="TopicNotFound"):
        read(name).collect()
    assert name not in str(broker.admin("GET", "persistent/public/default"))


def test_source_closed_port_raises_in_time(spark: SparkSession) -> None:
    from broker import free_port

    reader = spark.read.format("pulsar").option("service.url", f"pulsar://127.0.0.1:{free_port()}").option("topic", "t")
    started = time.monotonic()
    with pytest.raises(PySparkException, match=r"ConnectError|Timeout"):
        reader.option("pulsar.client.operationTimeoutMs", "2000").load().collect()
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({"predefinedSubscription": "mine"}, "leaves no subscription behind; leave it out"),
        ({"pulsar_client_authParams": "token:s3cret-value"}, "credentialsRef=env:VARIABLE"),
        ({"startingOffsets": "latest"}, "cannot be 'latest' in a batch read"),
        ({"endingOffsets": '{"persistent://public/default/other": "1:2"}'}, "which is not read"),
    ],
)
def test_source_wrong_option_raises_with_fix(
    read: Read, topic: NewTopic, publish: Publish, options: dict[str, str], message: str
) -> None:
    name = topic()
    publish(name, ["1"])
    with pytest.raises(PySparkException, match=message) as refused:
        read(name, **options).collect()
    assert "s3cret" not in str(refused.value)


def test_source_other_schema_raises(spark: SparkSession, broker: Broker, topic: NewTopic, publish: Publish) -> None:
    name = topic()
    publish(name, ["1"])
    reader = spark.read.format("pulsar").options(**{"service.url": broker.service_url, "topic": name})
    with pytest.raises(PySparkException, match="choose columns with option columns"):
        reader.schema("value STRING").load().collect()
    assert [
        bytes(row["value"]) for row in reader.option("columns", "value").schema("value BINARY").load().collect()
    ] == [b"1"]


# ---- credentials -----------------------------------------------------------------------------------------------------


@pytest.fixture
def secured(secure_broker: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give the options of a topic with ten messages on a broker that demands tokens, and a file with a token."""
    token = secure_broker.token()
    name = f"persistent://public/default/secured-{time.time_ns()}"
    with pulsar_native.Client(secure_broker.service_url, pulsar_native.AuthenticationToken(token)) as client:
        publish_groups(client, name, TEN)
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(token)
    return {"service.url": secure_broker.service_url, "topic": name, "credentialsRef": f"file:{file}"}


def test_source_token_by_reference_is_not_in_plan(
    spark: SparkSession, texts: Texts, secured: dict[str, str], secure_broker: Standalone
) -> None:
    frame = spark.read.format("pulsar").options(**secured).load()
    assert texts(frame) == TEN
    frame.createOrReplaceTempView("secured")
    plans = spark.sql("EXPLAIN EXTENDED SELECT * FROM secured").collect()[0][0]
    assert secure_broker.token()[:20] not in plans


def test_source_refused_token_error_hides_it(
    spark: SparkSession, secured: dict[str, str], secure_broker: Standalone, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("expired") / "token"
    file.write_text(expired := secure_broker.token(lifetime_seconds=-60))
    for change in ({"credentialsRef": f"file:{file}"}, {}):
        options = {name: value for name, value in secured.items() if name != "credentialsRef"} | change
        with pytest.raises(PySparkException, match=r"AuthenticationError|AuthorizationError") as refused:
            spark.read.format("pulsar").options(**options).load().collect()
        assert expired[:20] not in str(refused.value)


def test_source_secret_reaches_tasks_by_private_file(
    spark: SparkSession, texts: Texts, secured: dict[str, str], secure_broker: Standalone
) -> None:
    from pyspark_pulsar import share_credentials

    spark.sparkContext._conf.set("spark.pulsar.test.token", secure_broker.token())
    direct = {**secured, "credentialsRef": "conf:spark.pulsar.test.token"}
    with pytest.raises(
        PySparkException, match=r"can be read in the driver only: call pyspark_pulsar.share_credentials"
    ):
        spark.read.format("pulsar").options(**direct).load().collect()
    shared = share_credentials(spark, "conf:spark.pulsar.test.token")
    assert shared.startswith("file:") and "/" not in shared
    assert texts(spark.read.format("pulsar").options(**{**secured, "credentialsRef": shared}).load()) == TEN
    assert admin(secure_broker.admin_url, "GET", "clusters", token=secure_broker.token()) == ["standalone"]
