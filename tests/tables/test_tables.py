"""Loads into Delta Lake and Apache Iceberg tables: exactly the interval is replaced, or rows are merged by message."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pulsar_native
from environments import tables_folder
from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar import load
from pyspark_pulsar.request import LoadRequest
from pyspark_pulsar.tables import Table
from support.brokers import Broker, NewTopic
from support.publishing import publish_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)

FORMATS = ("delta", "iceberg")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a session with both formats, and an Iceberg catalog named lake."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folder = tmp_path_factory.mktemp("warehouse")
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    settings = {
        "spark.jars": ",".join(str(path) for path in sorted(tables_folder().glob("*.jar"))),
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"file://{folder}/lake",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("tables")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class Loads:
    """Loads of one topic into one table."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, topic: str | None, kind: str) -> None:
        self.spark, self.broker, self.folder, self.topic, self.kind = spark, broker, folder, topic, kind
        self.table = f"lake.db.t{time.time_ns()}" if kind == "iceberg" else None

    def run(self, source: dict[str, str], output: dict[str, Any] | None = None, **parts: Any) -> load.Outcome:
        """Run one load."""
        given = {"path": f"{self.folder}/orders", "format": self.kind, **({"table": self.table} if self.table else {})}
        of_topic = {} if self.topic is None else {"topic": self.topic}
        request = {
            "source": {"service.url": self.broker.service_url, **of_topic, "timeSlackMs": "0", **source},
            "value": {"format": "json", "schema": "number INT, day STRING"},
            "output": {**given, **(output or {})},
            **parts,
        }
        return load.Load(self.spark, LoadRequest.parse(json.dumps(request)), time.monotonic()).run()

    def publish(self, *numbers: int, day: str = "mon") -> tuple[dict[str, str], int]:
        """Publish orders; return the options of an interval with just these, and its end."""
        start = int(time.time() * 1000)
        assert self.topic is not None
        time.sleep(0.005)  # The publish times of intervals must differ.
        with pulsar_native.Client(self.broker.service_url) as client:
            publish_groups(client, self.topic, [json.dumps({"number": number, "day": day}) for number in numbers])
        time.sleep(0.005)
        end = int(time.time() * 1000)
        return {"startingTime": str(start), "endingTime": str(end)}, end

    def publish_each(self, *topics: str) -> dict[str, str]:
        """Publish one order to each topic, numbered; return the options of an interval with just these."""
        intervals = []
        for number, name in enumerate(topics):
            self.topic = name
            intervals.append(self.publish(number)[0])
        return {**intervals[-1], "startingTime": intervals[0]["startingTime"]}

    def frame(self) -> DataFrame:
        """Return the table."""
        if self.table:
            return self.spark.table(self.table)
        return self.spark.read.format("delta").load(f"{self.folder}/orders")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table, sorted by number."""
        found = (row.asDict() for row in self.frame().collect())
        return sorted(found, key=lambda row: (row["number"], row["__entryId"]))

    def numbers(self) -> list[int]:
        """Return the numbers in the table, sorted."""
        return [row["number"] for row in self.rows()]

    def staged(self) -> list[Path]:
        """Return the staging folders that are left."""
        return list(self.folder.glob(".*writing*"))


def partitions_of(topic: str, count: int) -> list[str]:
    """Return the names of a topic's partitions."""
    return [f"{topic}-partition-{index}" for index in range(count)]


@pytest.fixture(params=FORMATS)
def loads(
    spark: SparkSession, broker: Broker, topic: NewTopic, tmp_path: Path, request: pytest.FixtureRequest
) -> Loads:
    """Give loads of a fresh topic into a fresh table."""
    return Loads(spark, broker, tmp_path, topic(), request.param)


# What a load does is the same for both formats, and Delta takes several seconds for each.
delta_if_slow = pytest.mark.parametrize(
    "loads", [pytest.param("delta", marks=pytest.mark.slow), "iceberg"], indirect=True
)


def test_table_overwrite_replaces_its_interval(loads: Loads) -> None:
    first, _ = loads.publish(1, 2, 3)
    second, _ = loads.publish(4, 5)
    assert loads.run(first, {"partition_by": ["day"]}).rows == 3
    assert loads.run(second, {"partition_by": ["day"]}).rows == 2
    rows = loads.rows()
    assert [row["number"] for row in rows] == [1, 2, 3, 4, 5]
    again = loads.run(first, {"partition_by": ["day"]})
    assert (again.replayed, loads.rows()) == (True, rows)
    # Planned anew.
    assert not loads.run(first, {"partition_by": ["day"]}, replay="never").replayed
    assert loads.rows() == rows
    assert loads.staged() == []
    manifests = [json.loads(path.read_text()) for path in loads.folder.glob(".orders-*.manifest.json")]
    assert sorted(manifest["rows"] for manifest in manifests) == [2, 3]


def test_table_overwrite_by_condition(loads: Loads) -> None:
    first, _ = loads.publish(1, 2, day="mon")
    second, _ = loads.publish(3, day="tue")
    loads.run(first, {"replace_where": "day = 'mon'"})
    loads.run(second, {"replace_where": "day = 'tue'"})
    assert loads.numbers() == [1, 2, 3]
    loads.run(first, {"replace_where": "day = 'mon'"})
    assert loads.numbers() == [1, 2, 3]
    with pytest.raises(InvalidConfiguration, match="twice when the load is done again"):
        loads.run(second, {"replace_where": "day = 'mon'"})
    assert loads.numbers() == [1, 2, 3] and loads.staged() == []


def test_table_merge_adds_each_message_once(loads: Loads) -> None:
    first, _ = loads.publish(1, 2, 3)
    second, end = loads.publish(4, 5)
    merge = {"mode": "merge", "partition_by": ["day"]}
    loads.run(first, merge)
    rows = loads.rows()
    loads.run(first, merge)
    assert loads.rows() == rows
    # Intervals that overlap, as those of an event-time table with a slack do.
    both = {"startingTime": first["startingTime"], "endingTime": str(end)}
    assert loads.run(both, merge).rows == 5
    assert loads.numbers() == [1, 2, 3, 4, 5]
    loads.run(second, merge)
    assert loads.numbers() == [1, 2, 3, 4, 5] and loads.staged() == []


@delta_if_slow
def test_table_overwrite_keeps_other_topics(loads: Loads, topic: NewTopic) -> None:
    first, name = loads.topic, topic()
    start = {"startingTime": loads.publish(1, 2)[0]["startingTime"]}
    loads.topic = name
    interval = {**start, "endingTime": str(loads.publish(3)[1])}
    for each, rows in ((first, 2), (name, 1), (first, 2), (name, 1)):
        loads.topic = each
        assert loads.run(interval, replay="never").rows == rows
    assert loads.numbers() == [1, 2, 3]


@delta_if_slow
def test_table_overwrite_replaces_new_partitions(loads: Loads, topic: NewTopic) -> None:
    loads.topic = topic(partitions=2)
    interval, _ = loads.publish(*range(8))
    for _ in range(2):
        assert loads.run(interval, replay="never").rows == 8
    assert loads.numbers() == list(range(8))


@delta_if_slow
def test_table_overwrite_keeps_dead_letters(loads: Loads, topic: NewTopic) -> None:
    orders = topic(partitions=4)
    # The name of a dead-letter topic of one partition, by default.
    dead = f"{orders}-partition-0-billing-DLQ"
    interval = loads.publish_each(*partitions_of(orders, 4), dead)
    output = {"partition_by": ["__topic"]}
    for loads.topic, rows in ((dead, 1), (orders, 4), (dead, 1), (orders, 4)):
        assert loads.run(interval, output).rows == rows
    assert loads.numbers() == list(range(5)) and loads.staged() == []


@delta_if_slow
def test_table_overwrite_keeps_other_partitions(loads: Loads, topic: NewTopic) -> None:
    first, second = topic(partitions=4), topic(partitions=4)
    interval = loads.publish_each(*partitions_of(first, 4), *partitions_of(second, 4))
    for loads.topic in (first, second, first, second):
        assert loads.run(interval, replay="never").rows == 4
    assert loads.numbers() == list(range(8))


def test_iceberg_files_of_unknown_topics_are_replaced(
    spark: SparkSession, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    loads = Loads(spark, broker, tmp_path, topic(), "iceberg")
    first, second = loads.topic, topic()
    start = {"startingTime": loads.publish(1, 2)[0]["startingTime"]}
    loads.topic = second
    interval = {**start, "endingTime": str(loads.publish(3)[1])}
    both = {**interval, "topics": f"{first},{second}"}
    of_first = {**interval, "topic": str(first)}
    loads.topic = None
    loads.run(both)
    # As in a table that the load has not created: the statistics have the beginning of the names only.
    name = "write.metadata.metrics.column.__topic"
    spark.sql(f"ALTER TABLE {loads.table} SET TBLPROPERTIES ('{name}' = 'truncate(16)')")
    for _ in range(2):
        assert loads.run(both, replay="never").rows == 3
        assert loads.numbers() == [1, 2, 3]
    with pytest.raises(InvalidConfiguration, match="has rows of other topics in the interval"):
        loads.run(of_first)
    assert loads.numbers() == [1, 2, 3]


@delta_if_slow
@pytest.mark.parametrize("mode", ["overwrite", "merge"])
def test_table_of_values_staged_by_the_tasks(loads: Loads, mode: str) -> None:
    first, _ = loads.publish(1, 2)
    second, _ = loads.publish(3)
    output = {"writer": "pyarrow", "mode": mode, "partition_by": ["__topic"]}
    for interval, rows in ((first, 2), (second, 1), (first, 2)):
        assert loads.run(interval, output, value={"format": "raw"}).rows == rows
        assert loads.staged() == []
    found = loads.frame().orderBy("__publishTime", "__ledgerId", "__entryId", "__batchIndex").collect()
    assert [json.loads(row["value"])["number"] for row in found] == [1, 2, 3]
    assert {row["__topic"] for row in found} == {loads.topic}


def test_table_failed_load_leaves_it_unchanged(loads: Loads) -> None:
    first, _ = loads.publish(1, 2)
    loads.run(first)
    with pytest.raises(RuntimeError, match="fewer than min_rows=9"):
        loads.run(first, min_rows=9)
    assert loads.numbers() == [1, 2] and loads.staged() == []


@pytest.mark.parametrize("changed", ["derive", "replace_where"])
def test_table_of_other_columns_is_refused(loads: Loads, changed: str) -> None:
    first, _ = loads.publish(1, 2)
    second, _ = loads.publish(3)
    loads.run(first)
    output = {"replace_where": "hour = 1"} if changed == "replace_where" else {}
    with pytest.raises(InvalidConfiguration, match=r"written to the table|no condition of the output's columns"):
        loads.run(second, output, derive={"extra": "number + 1"})
    assert loads.numbers() == [1, 2] and loads.staged() == []


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({}, {"extra": "number + 1"}, "extra not in the table"),
        ({"extra": "number + 1"}, {}, "extra only in the table"),
    ],
    ids=["new", "absent"],
)
def test_table_merge_of_other_columns_is_refused(
    loads: Loads, first: dict[str, str], second: dict[str, str], reason: str
) -> None:
    """A merge by itself leaves a new column out, and says nothing."""
    merge = {"mode": "merge"}
    loads.run(loads.publish(1, 2)[0], merge, derive=first)
    late, _ = loads.publish(3)
    with pytest.raises(InvalidConfiguration, match=reason):
        loads.run(late, merge, derive=second)
    assert loads.numbers() == [1, 2] and loads.staged() == []
    # Names of columns have no case.
    loads.run(late, merge, derive={name.upper(): text for name, text in first.items()})
    assert loads.numbers() == [1, 2, 3]


def test_delta_merge_adds_columns_if_session_says(
    spark: SparkSession, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    loads = Loads(spark, broker, tmp_path, topic(), "delta")
    loads.run(loads.publish(1)[0], {"mode": "merge"})
    late, _ = loads.publish(2)
    spark.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")
    try:
        loads.run(late, {"mode": "merge"}, derive={"extra": "number + 1"})
    finally:
        spark.conf.unset("spark.databricks.delta.schema.autoMerge.enabled")
    assert [row["extra"] for row in loads.rows()] == [None, 3]


def test_table_created_meanwhile_may_be_retried(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import AnalysisException

    first, _ = loads.publish(1, 2)
    loads.run(first)
    second, _ = loads.publish(3)
    with monkeypatch.context() as patched:
        # As seen by a load that looked before the other one had created the table.
        patched.setattr(Table, "_exists", lambda _: False)
        with pytest.raises(AnalysisException) as raised:
            loads.run(second)
    assert load.judge(raised.value)[0] == load.FAILED and loads.staged() == []
    assert loads.run(second).rows == 1
    assert loads.numbers() == [1, 2, 3]


def test_delta_table_of_a_catalog_is_replaced(
    spark: SparkSession, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    loads = Loads(spark, broker, tmp_path, topic(), "delta")
    loads.table = f"orders_{time.time_ns()}"
    first, _ = loads.publish(1, 2)
    second, _ = loads.publish(3)
    loads.run(first)
    loads.run(second)
    loads.run(first)
    assert loads.numbers() == [1, 2, 3]
