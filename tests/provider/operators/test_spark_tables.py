"""PulsarSparkLoadOperator into Delta Lake and Apache Iceberg tables, by real Spark with the formats' packages."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import pulsar_native
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from class_archive import JVM_OPTIONS
from environments import ENVS, tables_folder
from support.brokers import Broker, NewTopic
from support.publishing import publish_groups

pytestmark = [pytest.mark.timeout(1200), pytest.mark.usefixtures("spark_local", "pulsar_conn")]

ENVIRONMENT = ENVS / "tables"
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
# Prints the rows of every version of a table as one JSON object, oldest first.
READ_VERSIONS = """
import json
import sys
from pyspark.sql import SparkSession

kind, table = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
if kind == "delta":
    versions = [row["version"] for row in spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()]
    frames = [spark.read.format("delta").option("versionAsOf", each).load(table) for each in sorted(versions)]
else:
    kept = spark.table(f"{table}.snapshots").orderBy("committed_at").collect()
    frames = [spark.read.option("versionAsOf", row["snapshot_id"]).table(table) for row in kept]
found = [sorted(json.dumps(row.asDict(), default=str, sort_keys=True) for row in frame.collect()) for frame in frames]
print("VERSIONS " + json.dumps(found))
"""


@pytest.fixture
def spark_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Define spark_default as this machine, with drivers that start quickly."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    # Without the suite's class archive: it is of another Spark, whose classes these drivers do not have.
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", JVM_OPTIONS)


def conf_of(kind: str, folder: Path) -> dict[str, str]:
    """Return Spark's settings for a format, as the documentation of the format has them."""
    conf = {
        "spark.sql.extensions": EXTENSIONS[kind],
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if kind == "delta":
        return conf | {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
    return conf | {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"file://{folder}/lake",
    }


def jars_of(kind: str) -> str:
    """Return the jars of a format's package, as a list for spark-submit."""
    return ",".join(str(path) for path in sorted(tables_folder().glob("*.jar")) if kind in path.name)


def versions(kind: str, table: str, folder: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of each version of the table, by a Spark job of its own."""
    job = folder / "read_versions.py"
    job.write_text(READ_VERSIONS)
    settings = [part for name, value in conf_of(kind, folder).items() for part in ("--conf", f"{name}={value}")]
    submit = [str(ENVIRONMENT / "bin" / "spark-submit"), "--master", "local[1]", "--jars", jars_of(kind)]
    env = os.environ | {"PYSPARK_PYTHON": str(ENVIRONMENT / "bin" / "python")}
    done = subprocess.run(
        [*submit, *settings, str(job), kind, table], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("VERSIONS ")]
    assert done.returncode == 0 and lines, done.stdout[-1000:] + done.stderr[-3000:]
    return [[json.loads(row) for row in rows] for rows in json.loads(lines[0].removeprefix("VERSIONS "))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.proves("A22")
def test_load_into_table_again_leaves_same_rows(kind: str, broker: Broker, topic: NewTopic, tmp_path: Path) -> None:
    name, table = topic(partitions=2), "lake.sales.orders"

    def load(start: int, end: int) -> dict[str, Any]:
        return PulsarSparkLoadOperator(
            task_id="load",
            topic=name,
            interval_start=start,
            interval_end=end,
            output_path=str(tmp_path / "orders"),
            output_format=kind,
            table=table if kind == "iceberg" else None,
            value_schema="number INT",
            partition_by=["day"],
            derive={"day": "number % 2"},
            source_options={"timeSlackMs": "0"},
            conf=conf_of(kind, tmp_path),
            jars=jars_of(kind),
            spark_environment=str(ENVIRONMENT),
        ).execute({"run_id": f"scheduled__{start}"})

    # Three bounds with messages between each two of them.
    bounds = [now()]
    with pulsar_native.Client(broker.service_url) as client:
        for numbers in (range(4), range(4, 7)):
            publish_groups(client, name, [json.dumps({"number": number}) for number in numbers])
            bounds.append(now())
    first, second = load(*bounds[:2]), load(*bounds[1:])
    again = load(*bounds[:2])
    assert [done["rows"] for done in (first, second, again)] == [4, 3, 4]
    assert [done["replayed"] for done in (first, second, again)] == [False, False, True]
    one, both, *_, last = versions(kind, str(tmp_path / "orders") if kind == "delta" else table, tmp_path)
    assert sorted(row["number"] for row in one) == [0, 1, 2, 3]
    assert sorted(row["number"] for row in both) == list(range(7))
    assert last == both
    assert not list(tmp_path.glob(".*writing*")), "no staged rows are left"


def now() -> int:
    """Return a time, in ms, between the publish times before the call and those after it."""
    time.sleep(0.02)
    found = int(time.time() * 1000)
    time.sleep(0.02)
    return found
