"""A Spark standalone cluster with nothing of ours installed: the packages come as a zip with the job."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import py_files
from pyspark_pulsar import load
from support.brokers import Broker, NewTopic
from support.publishing import Publish
from support.spark_cluster import SparkCluster

pytestmark = pytest.mark.timeout(600)

_JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

def origin(_):
    try:
        import pulsar_native, pyspark_pulsar
        yield pulsar_native.__file__
    except ImportError as error:
        yield "none: " + str(error)

print("origins:", sorted(set(spark.sparkContext.range(0, 4, 1, 4).mapPartitions(origin).collect())))
if len(sys.argv) > 1:
    import pyspark_pulsar
    from pulsar_native.diagnostics import codec
    pyspark_pulsar.register(spark)
    frame = (
        spark.read.format("pulsar").option("service.url", sys.argv[1]).option("topic", sys.argv[2])
        .option("startingOffsets", "earliest").load()
    )
    print("rows:", frame.selectExpr("cast(value as string) v").distinct().count(), "codec:", codec())
spark.stop()
"""


_STREAM = """
import sys
from pyspark.sql import SparkSession
import pyspark_pulsar

url, topic, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
pyspark_pulsar.register(spark)
frame = (
    spark.readStream.format("pulsar").option("service.url", url).option("topic", topic)
    .option("startingOffsets", "earliest").load()
)
writer = frame.selectExpr("cast(value as string) v").writeStream.format("parquet")
writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
writer.start(f"{folder}/rows").awaitTermination()
copy = frame.select("value").writeStream.format("pulsar").option("service.url", url).option("topic", f"{topic}-copy")
copy = copy.option("checkpointLocation", f"{folder}/checkpoint-copy").trigger(availableNow=True)
copy.start().awaitTermination()
print("rows:", spark.read.parquet(f"{folder}/rows").distinct().count())
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Give a cluster of a master and two workers."""
    made = SparkCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    """Give the zip as the command builds it."""
    return py_files.build(tmp_path / "py-files" / "pulsar.zip")


def output_of(done: subprocess.CompletedProcess[str], word: str) -> str:
    """Return what a job printed behind a word."""
    found = [line for line in done.stdout.splitlines() if line.startswith(word)]
    assert done.returncode == 0 and found, done.stdout + done.stderr[-3000:]
    return found[0].removeprefix(word).strip()


def filled(topic: NewTopic, publish: Publish) -> str:
    """Return a topic of two partitions with fifty messages each."""
    name = topic(partitions=2)
    for partition in range(2):
        publish(f"{name}-partition-{partition}", [f"{partition}-{number}" for number in range(50)])
    return name


def test_py_files_same_sources_give_same_bytes(zipped: Path, tmp_path: Path) -> None:
    assert py_files.build(tmp_path / "again.zip").read_bytes() == zipped.read_bytes()
    names = zipfile.ZipFile(zipped).namelist()
    assert {"pulsar_native/__init__.py", "pyspark_pulsar/source.py"} <= set(names)
    assert not [name for name in names if not name.endswith(".py")]


def test_cluster_without_the_zip_has_nothing_of_ours(cluster: SparkCluster, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    assert "No module named 'pulsar_native'" in output_of(cluster.submit(str(job)), "origins:")


@pytest.mark.proves("S2")
def test_cluster_reads_with_the_zip(
    cluster: SparkCluster, zipped: Path, broker: Broker, topic: NewTopic, publish: Publish, tmp_path: Path
) -> None:
    name = filled(topic, publish)
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    done = cluster.submit("--py-files", str(zipped), str(job), broker.service_url, name)
    assert all("pulsar.zip" in origin for origin in output_of(done, "origins:").strip("[]").split(", "))
    assert output_of(done, "rows:").startswith("100 codec: python")


@pytest.mark.slow
@pytest.mark.proves("S2")
def test_cluster_streams_with_the_zip(
    cluster: SparkCluster, zipped: Path, broker: Broker, topic: NewTopic, publish: Publish, tmp_path: Path
) -> None:
    name = filled(topic, publish)
    job = tmp_path / "job.py"
    job.write_text(_STREAM)
    env = {"PYTHONPATH": str(zipped)}
    done = cluster.submit("--py-files", str(zipped), str(job), broker.service_url, name, str(tmp_path), env=env)
    assert output_of(done, "rows:") == "100"


@pytest.mark.proves("S2")
def test_cluster_loads_with_the_zip(
    cluster: SparkCluster, zipped: Path, broker: Broker, topic: NewTopic, publish: Publish, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        publish(f"{name}-partition-{partition}", [json.dumps({"n": 50 * partition + each}) for each in range(50)])
    request = {
        "source": {"service.url": broker.service_url, "topic": name},
        "value": {"format": "json", "schema": "n INT"},
        "output": {"path": f"file://{tmp_path}/out"},
        "interval": "all",
    }
    done = cluster.submit("--py-files", str(zipped), load.application(), "--request", json.dumps(request))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["pulsar_load"]["rows"] == 100
    assert sorted(pq.read_table(tmp_path / "out", columns=["n"])["n"].to_pylist()) == list(range(100))
