"""Files written by a load's tasks: those of Spark's writer for the same rows, also after failed attempts."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_native.exceptions import InvalidConfiguration, OperationNotSupported
from pyspark_pulsar import load, parquet_writer
from pyspark_pulsar.parquet_writer import ParquetFormat, parquet_format, write_scan
from pyspark_pulsar.request import LoadRequest
from pyspark_pulsar.scan import Scan, columns_of, scan
from pyspark_pulsar.tables import IDENTITY
from support.brokers import Broker, NewTopic
from support.publishing import Publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "value,__key,__publishTime,__eventTime,__messageProperties," + ",".join(IDENTITY)
SETTINGS = (
    "spark.sql.parquet.compression.codec",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.parquet.writeLegacyFormat",
    "spark.sql.parquet.datetimeRebaseModeInWrite",
    "spark.sql.files.maxRecordsPerFile",
)


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    """Give the settings of the session, which are as before afterwards."""
    before = {name: spark.conf.get(name) for name in SETTINGS}
    yield spark.conf
    for name, value in before.items():
        spark.conf.set(name, str(value))


@pytest.fixture
def options(broker: Broker, topic: NewTopic, publish: Publish) -> dict[str, str]:
    """Give the options of a read of a topic with 30 messages in three partitions, one of them empty."""
    name = topic(partitions=3)
    given = {"partition_key": "k", "event_timestamp": 1_700_000_000_123, "properties": {"a": "1", "b": ""}}
    publish(f"{name}-partition-0", [f"a{number}" for number in range(12)], ["a12"], **given)
    publish(f"{name}-partition-2", [f"c{number}" for number in range(17)])
    return {"service.url": broker.service_url, "topic": name, "columns": COLUMNS, "startingOffsets": "earliest"}


def scanned(spark: SparkSession, options: dict[str, str]) -> Scan:
    """Return the scan with these options."""
    return scan(spark, options, columns_of(options))


def files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, by name, which begins with the number of the split."""
    return sorted(folder.glob("part-*.parquet"))


def described(file: Path) -> tuple[str, list[object], str]:
    """Return the Parquet schema, Spark's metadata and the codec of a file."""
    from pyarrow import parquet

    found = parquet.ParquetFile(file)
    columns = str(found.schema).partition("{\n")[2]  # Behind the name of the root.
    metadata = found.metadata.metadata or {}
    kept = [json.loads(metadata[b"org.apache.spark.sql.parquet.row.metadata"]), metadata[b"org.apache.spark.version"]]
    return columns, [*kept, len(metadata)], found.metadata.row_group(0).column(0).compression


def texts(frame: DataFrame) -> list[str]:
    """Return the rows as texts, in any order."""
    return sorted(map(str, frame.collect()))


@pytest.mark.parametrize("timestamps", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "uncompressed", "lz4_raw"])
def test_files_equal_those_of_spark(
    spark: SparkSession, options: dict[str, str], conf: Any, tmp_path: Path, codec: str, timestamps: str
) -> None:
    conf.set("spark.sql.parquet.compression.codec", codec)
    conf.set("spark.sql.parquet.outputTimestampType", timestamps)
    found = scanned(spark, options)
    found.frame.write.parquet(f"file://{tmp_path}/spark")
    counted, ours = found.delivered(), scanned(spark, options)
    write_scan(spark, ours, f"{tmp_path}/ours", parquet_format(spark, ours.columns))
    assert ours.delivered() == counted and sum(each.rows for each in counted.values()) == 30
    mine, theirs = (files(tmp_path / name) for name in ("ours", "spark"))
    assert [described(file) for file in mine] == [described(file) for file in theirs]
    ends = [[file.name[:11] + file.name[47:] for file in each] for each in (mine, theirs)]
    assert ends[0] == ends[1], "names differ in the unique part only"
    frames = [spark.read.parquet(f"file://{tmp_path}/{name}") for name in ("ours", "spark")]
    assert frames[0].schema == frames[1].schema
    assert texts(frames[0]) == texts(frames[1]) and frames[0].count() == 30
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ours", "spark"], "no folder of attempts is left"
    assert (tmp_path / "ours" / "_SUCCESS").read_bytes() == b""


def kinds(spark: SparkSession) -> DataFrame:
    """Return two rows, the second of nulls where there may be some, of every type that a decoded value may have."""
    ddl = (
        "flag BOOLEAN NOT NULL, tiny TINYINT, small SMALLINT, whole INT, big BIGINT, single FLOAT, double DOUBLE, "
        "text STRING, bytes BINARY, day DATE, time TIMESTAMP, low DECIMAL(9,2), middle DECIMAL(18,4), "
        "high DECIMAL(38,18), list ARRAY<STRING>, map MAP<STRING, INT>, "
        "inner STRUCT<a: INT NOT NULL, b: ARRAY<STRUCT<c: TIMESTAMP>>>, "
        "__topic STRING, __ledgerId BIGINT, __entryId BIGINT, __batchIndex INT"
    )
    moment = datetime.datetime(2026, 7, 1, 12, 30, 0, 123456)
    some = (
        True, 1, -2, 3, -(1 << 60), 0.5, -0.25, "ä\x00", b"\xff", datetime.date(1500, 2, 3), moment,
        decimal.Decimal("-1.25"), decimal.Decimal("99999999999999.9999"), decimal.Decimal("0.000000000000000001"),
        ["x", None], {"k": None, "l": 2}, (7, [(moment,), None]), "t", 1, 2, -1,
    )  # fmt: skip
    return spark.createDataFrame([some, (False, *[None] * 15, (8, None), "t", 1, 3, -1)], ddl)


def write(frame: DataFrame, file: Path, max_rows: int) -> None:
    """Write the rows of a frame to one file, in batches of so many rows."""
    written = parquet_writer._File(str(file), parquet_format(frame.sparkSession, frame.schema))
    for batch in frame.toArrow().combine_chunks().to_batches(max_rows):
        written.add(batch)
    written.close()


def test_every_type_is_written_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    frame = kinds(spark)
    frame.coalesce(1).write.parquet(f"file://{tmp_path}/spark")
    write(frame, tmp_path / "ours.parquet", 100)
    (theirs,) = files(tmp_path / "spark")
    assert described(tmp_path / "ours.parquet") == described(theirs)
    read = [spark.read.parquet(f"file://{place}") for place in (tmp_path / "ours.parquet", theirs)]
    assert read[0].schema == read[1].schema and texts(read[0]) == texts(read[1])
    assert read[0].count() == 2


def test_row_groups_are_bounded(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet

    monkeypatch.setattr(parquet_writer, "_ROW_GROUP_BYTES", 1000)
    write(spark.range(1000), tmp_path / "file", 50)
    found = parquet.read_metadata(tmp_path / "file")
    sizes = [found.row_group(index).num_rows for index in range(found.num_row_groups)]
    # Batches of 400 bytes: the third reaches the bound.
    assert sizes == [150] * 6 + [100]
    assert [row["id"] for row in spark.read.parquet(f"file://{tmp_path}/file").collect()] == list(range(1000))


def test_scan_of_nothing_writes_a_file_with_the_columns(
    spark: SparkSession, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    options = {"service.url": broker.service_url, "topic": topic(partitions=2), "columns": COLUMNS}
    found = scanned(spark, {**options, "startingOffsets": "earliest"})
    write_scan(spark, found, f"{tmp_path}/out", parquet_format(spark, found.columns))
    (file,) = files(tmp_path / "out")
    assert file.name.startswith("part-00000-")
    frame = spark.read.parquet(f"file://{tmp_path}/out")
    assert (frame.columns, frame.count()) == (found.columns.names, 0)
    assert found.delivered() == {}


def test_missing_file_names_the_shared_filesystem(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_splits = parquet_writer._write_splits

    def elsewhere(spark: SparkSession, scan: Scan, folder: str, form: ParquetFormat) -> list[str]:
        os.mkdir(f"{folder}.of-another-host")
        return write_splits(spark, scan, f"{folder}.of-another-host", form)

    monkeypatch.setattr(parquet_writer, "_write_splits", elsewhere)
    found = scanned(spark, options)
    with pytest.raises(OSError, match=r"must be on a filesystem that the driver and all executors share"):
        write_scan(spark, found, f"{tmp_path}/out", parquet_format(spark, found.columns))
    assert not (tmp_path / "out.attempts").exists() and not (tmp_path / "out" / "_SUCCESS").exists()
    form = parquet_format(spark, found.columns)
    with pytest.raises(OSError, match=r"has no folder .*/nowhere.*must be on a filesystem that"):
        parquet_writer._write_split(found.reader, form, f"{tmp_path}/nowhere", (0, found.splits[0]))


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("spark.sql.parquet.compression.codec", "lzo", "compression.codec is lzo"),
        ("spark.sql.parquet.compression.codec", "lz4", "compression.codec is lz4"),
        ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS", "outputTimestampType is TIMESTAMP_MILLIS"),
        ("spark.sql.parquet.writeLegacyFormat", "true", "writeLegacyFormat is true"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY", "datetimeRebaseModeInWrite is legacy"),
        ("spark.sql.files.maxRecordsPerFile", "100", "maxRecordsPerFile is 100"),
    ],
)
def test_settings_of_spark_alone_raise(spark: SparkSession, conf: Any, name: str, value: str, message: str) -> None:
    conf.set(name, value)
    with pytest.raises(OperationNotSupported, match=message):
        parquet_format(spark, kinds(spark).schema)


def test_options_of_the_java_library_raise(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    hadoop.set("parquet.bloom.filter.enabled#value", "true")
    try:
        with pytest.raises(OperationNotSupported, match=r"has parquet\.bloom\.filter\.enabled#value, for"):
            parquet_format(spark, kinds(spark).schema)
    finally:
        hadoop.unset("parquet.bloom.filter.enabled#value")


def test_times_without_zone_need_another_timestamp_type(spark: SparkSession, conf: Any) -> None:
    schema = spark.sql("SELECT array(TIMESTAMP_NTZ'2026-01-01 00:00:00') AS times").schema
    with pytest.raises(OperationNotSupported, match="is INT96, and a column has no time zone"):
        parquet_format(spark, schema)
    conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    assert not parquet_format(spark, schema).int96


# ---- the load --------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, broker: Broker, topic: str, folder: Path, **parts: Any) -> load.Outcome:
    """Run a load of everything; parts of the output are given as output."""
    output = {"path": f"file://{folder}/out", **parts.pop("output", {})}
    source = {"service.url": broker.service_url, "topic": topic}
    request = {"source": source, "output": output, "interval": "all", "replay": "never", **parts}
    return load.Load(spark, LoadRequest.parse(json.dumps(request)), time.monotonic()).run()


def creator(folder: Path) -> str:
    """Return the program that wrote the files of the output, as their footers say."""
    from pyarrow import parquet

    (found,) = {parquet.read_metadata(file).created_by.split()[0] for file in files(folder / "out")}
    return str(found)


PYARROW, JAVA = "parquet-cpp-arrow", "parquet-mr"


def test_load_of_plain_values_is_written_by_pyarrow(
    spark: SparkSession, broker: Broker, topic: NewTopic, publish: Publish, tmp_path: Path, conf: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name = topic()
    publish(name, ["a", "b", "c"])
    assert run(spark, broker, name, tmp_path).rows == 3
    assert creator(tmp_path) == PYARROW
    before = texts(spark.read.parquet(f"file://{tmp_path}/out"))
    assert len(before) == 3
    assert run(spark, broker, name, tmp_path, output={"writer": "spark"}).rows == 3
    assert (creator(tmp_path), texts(spark.read.parquet(f"file://{tmp_path}/out"))) == (JAVA, before)
    conf.set("spark.sql.files.maxRecordsPerFile", "2")
    assert run(spark, broker, name, tmp_path).rows == 3
    assert (
        "Spark writes the files, as pyarrow cannot: spark.sql.files.maxRecordsPerFile is 2" in capsys.readouterr().out
    )
    assert (creator(tmp_path), len(files(tmp_path / "out"))) == (JAVA, 2)
    with pytest.raises(OperationNotSupported, match=r"output\.writer is pyarrow, but spark\.sql\.files\.maxRec"):
        run(spark, broker, name, tmp_path, output={"writer": "pyarrow"})
    assert texts(spark.read.parquet(f"file://{tmp_path}/out")) == before
    assert sorted(each.name for each in tmp_path.iterdir() if "writing" in each.name) == []


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"value": {"format": "json", "schema": "a INT"}}, "value.format json is decoded by Spark"),
        ({"derive": {"day": "date(__publishTime)"}}, "derive has expressions of Spark"),
        ({"output": {"partition_by": ["__topic"]}}, r"output.partition_by has folders written by Spark"),
    ],
)
def test_load_that_needs_spark_cannot_ask_for_pyarrow(
    spark: SparkSession, broker: Broker, topic: NewTopic, publish: Publish, tmp_path: Path, parts: dict[str, Any],
    reason: str,
) -> None:  # fmt: skip
    name = topic()
    publish(name, ['{"a": 1}'])
    output = parts.get("output", {})
    with pytest.raises(InvalidConfiguration, match=rf"output\.writer is pyarrow, but {reason}"):
        run(spark, broker, name, tmp_path, **{**parts, "output": {**output, "writer": "pyarrow"}})
    assert run(spark, broker, name, tmp_path, **parts).rows == 1
    assert list((tmp_path / "out").rglob("*.snappy.parquet"))


def test_load_elsewhere_than_on_local_files_is_written_by_spark(
    spark: SparkSession, broker: Broker, topic: NewTopic, publish: Publish, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name = topic()
    publish(name, ["a", "b"])
    context: Any = spark.sparkContext
    # A filesystem of another scheme, as HDFS and object stores have one.
    context._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{tmp_path.name}.link./data", f"file://{tmp_path}")
    path = f"viewfs://{tmp_path.name}/data/out"
    assert run(spark, broker, name, tmp_path, output={"path": path}).rows == 2
    assert creator(tmp_path) == JAVA
    assert f"as pyarrow cannot: {path} is not on a local or shared filesystem" in capsys.readouterr().out
    with pytest.raises(OperationNotSupported, match="is pyarrow, but viewfs:"):
        run(spark, broker, name, tmp_path, output={"path": path, "writer": "pyarrow"})
    assert spark.read.parquet(path).count() == 2


_DRIVER = """
import json, os, sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark_pulsar import scan as scans
from pyspark_pulsar.parquet_writer import parquet_format, write_scan

options, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
spark = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false").getOrCreate()
found = scans.scan(spark, options, scans.columns_of(options))

class FailOnce:
    def __init__(self, reader):
        self.reader = reader

    def read(self, part):
        yield from self.reader.read(part)
        task = TaskContext.get()
        (folder / f"{task.partitionId()}-{task.attemptNumber()}").touch()
        if task.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails behind its rows")

found.reader = FailOnce(found.reader)
write_scan(spark, found, str(folder / "out"), parquet_format(spark, found.columns))
print(json.dumps({
    "rows": spark.read.parquet(f"file://{folder}/out").count(),
    "counted": sum(each.rows for each in found.delivered().values()),
}))
spark.stop()
"""


@pytest.mark.usefixtures("spark_environment")
def test_failed_attempts_leave_no_file(options: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, json.dumps(options), str(tmp_path)],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"rows": 30, "counted": 30}
    assert sorted(mark.name for mark in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1", "out"]
    assert [file.name[:10] for file in files(tmp_path / "out")] == ["part-00000", "part-00001"]
