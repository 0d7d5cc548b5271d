"""Streaming reads in a real Spark session against a real broker, from one checkpoint to the next, killed and not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import pulsar_native
from pulsar_native import MessageId
from support import stream_driver
from support.brokers import Broker, NewTopic, OwnBroker, admin
from support.publishing import Publish, publish_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from broker import Standalone

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
@pytest.mark.needs_spark("4.2")
def test_stream_available_now_continues_at_its_end(
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
    assert [set(end) for end in ends[:3]] == [{"version", "positions"}] * 3
    assert set(ends[3]["begins"]) == {f"{name}-partition-1"}, "the first messages of a partition"
    assert ends[0]["positions"][f"{name}-partition-0"].endswith(":0:10") or len(ends) == 4
    for partition in range(2):
        broker.wait_unsubscribed(f"{name}-partition-{partition}", 20)


def test_stream_option_errors_reach_the_user(stream: NewStream, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    with pytest.raises(PySparkException, match="did you mean maxMessagesPerTrigger"):
        stream(name, maxMessagePerTrigger="5")
    with pytest.raises(PySparkException, match="a stream has no end"):
        run_available(stream(name, endingTime="5"), tmp_path)


def test_stream_keeps_the_token_out_of_its_checkpoint(
    spark: SparkSession, secure_broker: Standalone, stream: NewStream, tmp_path: Path
) -> None:
    token = secure_broker.token()
    name = f"persistent://public/default/secured-stream-{time.time_ns()}"
    with pulsar_native.Client(secure_broker.service_url, pulsar_native.AuthenticationToken(token)) as client:
        publish_groups(client, name, ["a", "b"])
    (file := tmp_path / "token").write_text(token)
    secured = {"service_url": secure_broker.service_url, "credentialsRef": f"file:{file}"}
    query = run_available(stream(name, **secured), tmp_path)
    assert written(spark, tmp_path) == ["a", "b"]
    held = [found for found in (tmp_path / "checkpoint").rglob("*") if found.is_file()]
    assert held and not any(token[:20].encode() in found.read_bytes() for found in held)
    assert token[:20] not in str(query.recentProgress)


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


class Driver:
    """A query in a process of its own, which can be killed and started again."""

    def __init__(self, service_url: str, topic: str, folder: Path, limit: int) -> None:
        self._command = [sys.executable, stream_driver.__file__, service_url, topic, str(folder), COLUMNS, str(limit)]
        self._commits = folder / "checkpoint" / "commits"
        self._log = folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, which leads a group of its own."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def wait(self, batch: int, seconds: float, *, restart: bool = False) -> None:
        """Wait until a micro-batch is committed; with `restart` a query that failed is started again."""
        deadline = time.monotonic() + seconds
        while not (self._commits / str(batch)).exists():
            assert time.monotonic() < deadline, self._log.read_text()[-5000:]
            if self._process is None or self._process.poll() is not None:
                assert restart, self._log.read_text()[-5000:]
                self.start()
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill it with SIGKILL, as a lost node would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
            self._process = None


@pytest.mark.needs_spark("4.2")
def test_stream_restart_continues_after_killed_driver(
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
    driver = Driver(broker.service_url, name, tmp_path, 40)
    try:
        driver.start()
        driver.wait(2, 200)
        produce(100)
        driver.wait(4, 60)
    finally:
        driver.kill()
    produce(50)
    run_available(stream(name, maxMessagesPerTrigger="400"), tmp_path)
    assert written(spark, tmp_path) == expected[0] + expected[1]
    for producer in producers:
        producer.close()


class Numbers:
    """Publish numbered texts to the partitions of a topic, all the time, in a thread."""

    def __init__(self, service_url: str, topic: str, partitions: int) -> None:
        self.sent = [0] * partitions
        self._over = threading.Event()
        self._url, self._topic = service_url, topic
        self._thread = threading.Thread(target=self._run, name="numbers")

    def __enter__(self) -> Numbers:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join(120)

    def _run(self) -> None:
        with pulsar_native.Client(self._url, operation_timeout_seconds=120) as client:
            producers = [
                client.create_producer(f"{self._topic}-partition-{index}", send_timeout_millis=0, batching_enabled=True)
                for index in range(len(self.sent))
            ]
            while not self._over.wait(0.1):
                for index, producer in enumerate(producers):
                    texts = [f"{index}-{self.sent[index] + number:06}".encode() for number in range(20)]
                    producer.send_many(texts)
                    self.sent[index] += len(texts)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.needs_spark("4.2")
def test_stream_survives_killed_drivers_and_brokers(
    spark: SparkSession, own_broker: OwnBroker, stream: NewStream, tmp_path: Path
) -> None:
    broker = own_broker(deduplication=True)
    admin(broker.admin_url, "POST", "namespaces/public/default/retention", {"retentionTimeInMinutes": -1,
          "retentionSizeInMB": -1})  # fmt: skip
    name = "persistent://public/default/soak"
    admin(broker.admin_url, "PUT", "persistent/public/default/soak/partitions", 2)
    driver = Driver(broker.service_url, name, tmp_path, 200)
    try:
        with Numbers(broker.service_url, name, 2) as numbers:
            driver.start()
            for batch, event in ((12, broker.restart), (24, driver.kill), (36, broker.restart), (48, driver.kill)):
                driver.wait(batch, 300, restart=True)
                event()
            driver.wait(60, 300, restart=True)
        driver.kill()
        run_available(stream(name, service_url=broker.service_url), tmp_path)
    finally:
        driver.kill()
    wanted = [f"{index}-{number:06}" for index, sent in enumerate(numbers.sent) for number in range(sent)]
    assert written(spark, tmp_path) == wanted
