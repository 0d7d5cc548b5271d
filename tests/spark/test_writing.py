"""Writes in a real Spark session against a real broker: batches, streams, repeated micro-batches, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from support.brokers import Broker, NewTopic
from support.publishing import Publish
from support.relay import Command, NewRelay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


def given(broker: Broker, topic: str | None, **options: str) -> dict[str, str]:
    """Return the options of a write; "_" in an option's name stands for "."."""
    found = {"service.url": broker.service_url, **{name.replace("_", "."): text for name, text in options.items()}}
    return found if topic is None else {**found, "topic": topic}


@pytest.fixture
def large(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Set whether Spark hands text and bytes over in Arrow's large types."""
    spark.conf.set(_LARGE, request.param)
    yield
    spark.conf.unset(_LARGE)


@pytest.mark.proves("S15")
@pytest.mark.parametrize("large", ["false", "true"], indirect=True)
def test_batch_write_is_read_back(
    spark: SparkSession, broker: Broker, read: Read, topic: NewTopic, large: None
) -> None:
    name = topic(partitions=3)
    frame = spark.range(3000).selectExpr(
        "cast(id as string) value",
        "concat('k', id % 10) key",
        "timestamp_millis(1700000000000 + id) eventTime",
        "map('id', cast(id as string)) properties",
    )
    rows = frame.selectExpr("*", f"'{name}' topic")
    rows.write.format("pulsar").options(**given(broker, None)).mode("append").save()
    back = read(name).selectExpr(
        "cast(value as string) value",
        "cast(__key as string) key",
        "__eventTime eventTime",
        "__messageProperties properties",
    )
    assert sorted(map(tuple, _texts(back))) == sorted(map(tuple, _texts(frame)))


def _texts(frame: DataFrame) -> list[Any]:
    return frame.selectExpr("value", "key", "cast(eventTime as string)", "properties['id']").collect()


def test_batch_write_refusals_reach_the_user(spark: SparkSession, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    frame = spark.range(3).selectExpr("cast(id as string) value", "'t' || id topic", "1 as nonsense")
    writer = frame.write.format("pulsar").options(**given(broker, name))
    with pytest.raises(PySparkException, match="Column nonsense is nothing of a message"):
        writer.mode("append").save()
    fine = frame.select("value")
    with pytest.raises(PySparkException, match="cannot be overwritten, only appended to"):
        fine.write.format("pulsar").options(**given(broker, name)).mode("overwrite").save()
    with pytest.raises(PySparkException, match="Name the topic with option topic"):
        fine.write.format("pulsar").options(**given(broker, None)).mode("append").save()


def test_write_copy_never_goes_to_the_source(
    spark: SparkSession, broker: Broker, read: Read, topic: NewTopic, publish: Publish, tmp_path: Path
) -> None:
    source, target = topic("source"), topic("target")
    publish(source, ["a", "b"])
    dropped = ["__messageId", "__publishTime"]
    advice = "drop the column __topic, or leave the option topic out"
    frame = read(source)
    with pytest.raises(PySparkException, match="drop it, and __topic with it where option topic names the topic"):
        frame.write.format("pulsar").options(**given(broker, target)).mode("append").save()
    with pytest.raises(PySparkException, match=advice):
        frame.drop(*dropped).write.format("pulsar").options(**given(broker, target)).mode("append").save()
    stream = spark.readStream.format("pulsar").options(**given(broker, source, startingOffsets="earliest")).load()
    writer = stream.drop(*dropped).writeStream.format("pulsar").options(**given(broker, target))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(PySparkException, match=advice):
        query = writer.start()
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
    assert read(source).count() == 2
    copy = frame.drop(*dropped, "__topic")
    copy.write.format("pulsar").options(**given(broker, target)).mode("append").save()
    assert (read(source).count(), read(target).count()) == (2, 2)


def test_batch_write_error_names_topic_and_row(spark: SparkSession, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    frame = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) value", "if(id = 7, null, 't') topic")
    with pytest.raises(PySparkException, match="Row 7 of this task has no topic"):
        frame.write.format("pulsar").options(**given(broker, None)).mode("append").save()
    large = spark.range(0, 3, 1, 1).selectExpr("if(id = 2, repeat('x', 6000000), 'y') value")
    with pytest.raises(PySparkException, match=rf"Row 2 of this task, .* {name}"):
        large.write.format("pulsar").options(**given(broker, name)).mode("append").save()


@pytest.mark.proves("S14")
def test_transactional_write_of_failed_task_is_not_seen(
    spark: SparkSession, broker: Broker, read: Read, topic: NewTopic
) -> None:
    name = topic()
    options = given(broker, name, deliveryGuarantee="transactional")
    rows = spark.range(0, 30_000, 1, 1)
    # The query fails, not the writer: it has received two batches of rows by then.
    failing = rows.selectExpr("if(id = 25000, raise_error('bad row'), cast(id as string)) value")
    with pytest.raises(PySparkException, match="bad row"):
        failing.write.format("pulsar").options(**options).mode("append").save()
    rows.limit(5).selectExpr("cast(id as string) value").write.format("pulsar").options(**options).mode("append").save()
    assert [bytes(row.value) for row in read(name).collect()] == [b"%d" % number for number in range(5)]


def test_tasks_of_a_worker_share_a_client(
    spark: SparkSession, broker: Broker, topic: NewTopic, relay: NewRelay, read: Read
) -> None:
    name, way = topic(), relay(broker.service_url)
    frame = spark.range(0, 80, 1, 16).selectExpr("cast(id as string) value")
    options = {**given(broker, name), "service.url": way.service_url}
    frame.write.format("pulsar").options(**options).mode("append").save()
    assert read(name, columns="value").count() == 80
    assert 1 <= way.count(Command.CONNECT) <= 2, "16 tasks ran in two workers"


@pytest.mark.proves("S15")
@pytest.mark.needs_spark("4.2")
def test_repeated_micro_batch_is_published_once(
    spark: SparkSession,
    broker: Broker,
    read: Read,
    topic: NewTopic,
    publish: Publish,
    deduplicating: str,
    tmp_path: Path,
) -> None:
    source = topic(partitions=2)
    numbers = [f"{number:03}" for number in range(60)]
    for partition in range(2):
        publish(f"{source}-partition-{partition}", numbers[partition * 30 : partition * 30 + 30])
    sinks = {"at-least-once": topic("sink"), "deduplicated": f"persistent://{deduplicating}/sink"}
    broker.admin("PUT", f"{sinks['deduplicated'].replace('://', '/')}/partitions", 2)
    options = {**given(broker, source), "startingOffsets": "earliest", "maxMessagesPerTrigger": "40"}
    frame = spark.readStream.format("pulsar").options(**options).load().select("value", "__key")
    found = {}
    for guarantee, sink in sinks.items():
        folder = tmp_path / guarantee
        to = given(broker, sink, deliveryGuarantee=guarantee)
        writer = frame.writeStream.format("pulsar").options(**to).option("checkpointLocation", str(folder))
        for _ in range(2):
            assert writer.trigger(availableNow=True).start().awaitTermination(60)
            # As if the driver had died after publishing the last batch and before noting it.
            (folder / "commits" / "1").unlink()
            (folder / "commits" / ".1.crc").unlink(missing_ok=True)
        found[guarantee] = sorted(bytes(row["value"]).decode() for row in read(sink, columns="value").collect())
    assert found["deduplicated"] == numbers
    assert len(found["at-least-once"]) == 80 and sorted(set(found["at-least-once"])) == numbers


@pytest.mark.proves("S15")
def test_repeated_job_with_the_same_batch_id_adds_nothing(
    spark: SparkSession, broker: Broker, read: Read, deduplicating: str
) -> None:
    name = f"persistent://{deduplicating}/jobs"
    options = {"deliveryGuarantee": "deduplicated", "pulsar_producer_producerName": "nightly"}
    for batch, first in ((1, 0), (1, 0), (2, 100)):
        frame = spark.range(first, first + 100, 1, 2).selectExpr("cast(id as string) value")
        to = given(broker, name, batchId=str(batch), **options)
        frame.write.format("pulsar").options(**to).mode("append").save()
    assert read(name, columns="value").count() == 200
