"""The scan of a load: the rows of the source's own read, counted by the tasks, planned without a process more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_native.diagnostics import codec
from pyspark_pulsar.manifest import Delivered
from pyspark_pulsar.positions import Position
from pyspark_pulsar.scan import Scan, columns_of, scan
from pyspark_pulsar.tables import IDENTITY
from support.brokers import Broker, NewTopic
from support.publishing import Publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "value,__publishTime,__messageProperties," + ",".join(IDENTITY)


def scanned(spark: SparkSession, options: dict[str, str]) -> Scan:
    """Return the scan with these options."""
    return scan(spark, options, columns_of(options))


@pytest.fixture
def options(broker: Broker, topic: NewTopic, publish: Publish) -> dict[str, str]:
    """Give the options of a read of a topic with 30 messages in three partitions, one of them empty."""
    name = topic(partitions=3)
    publish(f"{name}-partition-0", [f"a{number}" for number in range(12)], ["a12"], properties={"k": "v"})
    publish(f"{name}-partition-2", [f"c{number}" for number in range(17)])
    return {"service.url": broker.service_url, "topic": name, "columns": COLUMNS, "startingOffsets": "earliest"}


def test_scan_rows_equal_the_sources(spark: SparkSession, options: dict[str, str]) -> None:
    frame = spark.read.format("pulsar").options(**options).load()
    found = scanned(spark, options).frame
    assert found.schema == frame.schema
    assert sorted(map(str, found.collect())) == sorted(map(str, frame.collect()))
    assert found.count() == 30


def test_scan_counts_by_topic_partition(spark: SparkSession, options: dict[str, str]) -> None:
    found = scanned(spark, options)
    assert (found.delivered(), found.codec()) == ({}, None), "nothing has run"
    rows = found.frame.collect()
    assert found.codec() == codec()
    places = {
        name: [Position(*(row[column] for column in IDENTITY[1:])) for row in rows if row["__topic"] == name]
        for name in {row["__topic"] for row in rows}
    }
    assert {name: len(each) for name, each in places.items()} == {
        f"{options['topic']}-partition-0": 13,
        f"{options['topic']}-partition-2": 17,
    }
    assert found.delivered() == {name: Delivered(len(each), min(each), max(each)) for name, each in places.items()}


def test_scan_counts_ranges_that_share_a_task(
    spark: SparkSession, broker: Broker, topic: NewTopic, publish: Publish
) -> None:
    name = topic(partitions=66)
    for index in range(66):
        publish(f"{name}-partition-{index}", [f"{index}a", f"{index}b"])
    options = {"service.url": broker.service_url, "topic": name, "columns": COLUMNS, "startingOffsets": "earliest"}
    found = scanned(spark, options)
    slots = spark.sparkContext.defaultParallelism
    assert found.frame.rdd.getNumPartitions() == slots < 33
    rows = found.frame.select("value").collect()
    assert sorted(row["value"] for row in rows) == sorted(f"{n}{each}".encode() for n in range(66) for each in "ab")
    delivered = found.delivered()
    assert {topic: each.rows for topic, each in delivered.items()} == {f"{name}-partition-{n}": 2 for n in range(66)}
    assert all(each.first < each.last for each in delivered.values())


def test_scan_of_nothing_has_no_rows(spark: SparkSession, broker: Broker, topic: NewTopic) -> None:
    options = {"service.url": broker.service_url, "topic": topic(partitions=2), "columns": COLUMNS}
    found = scanned(spark, {**options, "startingOffsets": "earliest"})
    assert (found.frame.collect(), found.delivered(), found.codec()) == ([], {}, None)


_DRIVER = """
import json, os, sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark_pulsar.scan import columns_of, scan

options, marks = json.loads(sys.argv[1]), Path(sys.argv[2])
spark = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false").getOrCreate()
found = scan(spark, options, columns_of(options))

def fail_once(rows):
    count = sum(1 for _ in rows)
    task = TaskContext.get()
    (marks / f"{task.partitionId()}-{task.attemptNumber()}").touch()
    if task.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails behind its rows")
    yield count

rows = sum(found.frame.rdd.mapPartitions(fail_once).collect())
print(json.dumps({"rows": rows, "counted": sum(each.rows for each in found.delivered().values())}))
spark.stop()
"""


@pytest.mark.usefixtures("spark_environment")
def test_scan_counts_repeated_tasks_once(options: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, json.dumps(options), str(tmp_path)],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"rows": 30, "counted": 30}
    assert sorted(mark.name for mark in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
