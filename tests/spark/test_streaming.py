"""Streaming reads in a real Spark session against a real broker, from one checkpoint to the next, killed and not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import pulsar_native
from pulsar_native import MessageId
from support.brokers import Broker, NewTopic
from support.publishing import Publish
from support.until import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NewStream = Callable[..., "DataFrame"]
COLUMNS = "value,__ledgerId,__entryId,__batchIndex,__partition"


@pytest.fixture
def stream(spark: SparkSession, broker: Broker) -> NewStream:
    """Give what makes a streaming frame over a topic; "_" in an option's name stands for "."."""

    def make(topic: str, **options: str) -> DataFrame:
        given = {"service.url": broker.service_url, "topic": topic, "startingOffsets": "earliest", "columns": COLUMNS}
        given.update({name.replace("_", "."): value for name, value in options.items()})
        return spark.readStream.format("pulsar").options(**given).load()

    return make


def run_available(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Run a query over what is there now into Parquet below a folder, and return it ended."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "rows"))
    assert query.awaitTermination(100)
    return query


def written(spark: SparkSession, folder: Path) -> list[str]:
    """Return the values written, in order of their places."""
    rows = spark.read.parquet(str(folder / "rows")).collect()
    rows.sort(key=lambda row: (row["__partition"], row["__ledgerId"], row["__entryId"], row["__batchIndex"]))
    return [bytes(row["value"]).decode() for row in rows]


def logged_offsets(folder: Path) -> list[dict[str, Any]]:
    """Return the source's offsets of the checkpoint, batch by batch."""
    files = sorted((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [json.loads(file.read_text().splitlines()[2]) for file in files]


@pytest.mark.proves("S8", "S13")
def test_stream_available_now_reads_on_where_it_ended(
    spark: SparkSession, broker: Broker, stream: NewStream, topic: NewTopic, publish: Publish, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    first = [str(number) for number in range(25)]
    publish(f"{name}-partition-0", first[:10], first[10:])
    query = run_available(stream(name, maxMessagesPerTrigger="10"), tmp_path)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [10, 10, 5]
    assert written(spark, tmp_path) == first
    publish(f"{name}-partition-1", ["x", "y"])
    run_available(stream(name), tmp_path)
    assert written(spark, tmp_path) == [*first, "x", "y"]
    ends = logged_offsets(tmp_path)
    assert [set(end) for end in ends] == [{"version", "positions"}] * 4
    assert ends[0]["positions"][f"{name}-partition-0"].endswith(":0:10") or len(ends) == 4
    for partition in range(2):
        path = f"{name}-partition-{partition}".replace("://", "/")
        wait_until(lambda path=path: broker.admin("GET", f"{path}/subscriptions") == [], 20)


def test_stream_option_errors_reach_the_user(stream: NewStream, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    with pytest.raises(PySparkException, match="did you mean maxMessagesPerTrigger"):
        stream(name, maxMessagePerTrigger="5")
    with pytest.raises(PySparkException, match="a stream has no end"):
        run_available(stream(name, endingTime="5"), tmp_path)


@pytest.mark.proves("S9")
def test_stream_fails_when_messages_were_trimmed(
    stream: NewStream, publish: Publish, trimmable: str, trim: Callable[[str], MessageId], tmp_path: Path
) -> None:
    name = f"persistent://{trimmable}/trimmed-stream"
    publish(name, ["a"])
    run_available(stream(name), tmp_path)
    publish(name, ["lost"])
    trim(name)
    with pytest.raises(PySparkException, match="DataLoss"):
        run_available(stream(name), tmp_path)


_DRIVER = """
import sys
from pyspark.sql import SparkSession

url, topic, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
options = {"service.url": url, "topic": topic, "startingOffsets": "earliest", "maxMessagesPerTrigger": "40"}
frame = spark.readStream.format("pulsar").options(**options).option("columns", sys.stdin.readline().strip()).load()
writer = frame.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
writer.start(folder + "/rows").awaitTermination()
"""


@pytest.mark.timeout(280)
def test_stream_restarts_where_a_killed_driver_was(
    spark: SparkSession,
    broker: Broker,
    stream: NewStream,
    topic: NewTopic,
    client: pulsar_native.Client,
    tmp_path: Path,
) -> None:
    name = topic(partitions=2)
    expected: list[list[str]] = [[], []]
    producers = [client.create_producer(f"{name}-partition-{index}", batching_enabled=True) for index in range(2)]

    def produce(count: int) -> None:
        for index, producer in enumerate(producers):
            texts = [f"{index}-{len(expected[index]) + number:05}" for number in range(count)]
            producer.send_many([text.encode() for text in texts])
            expected[index] += texts

    produce(200)
    command = [sys.executable, "-c", _DRIVER, broker.service_url, name, str(tmp_path)]
    with open(tmp_path / "driver.log", "wb") as log:
        driver = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env=dict(os.environ)
        )
        try:
            assert driver.stdin is not None
            driver.stdin.write(f"{COLUMNS}\n".encode())
            driver.stdin.close()
            commits = tmp_path / "checkpoint" / "commits"
            deadline = time.monotonic() + 200
            while not (commits / "2").exists():
                assert time.monotonic() < deadline and driver.poll() is None, (tmp_path / "driver.log").read_text()
                time.sleep(0.2)
            produce(100)
            while not (commits / "4").exists():
                assert time.monotonic() < deadline and driver.poll() is None, (tmp_path / "driver.log").read_text()
                produce(1)
                time.sleep(0.05)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(10)
    produce(50)
    run_available(stream(name, maxMessagesPerTrigger="400"), tmp_path)
    assert written(spark, tmp_path) == expected[0] + expected[1]
    for producer in producers:
        producer.close()
