"""Class archives for the JVMs of the tests, brokers and Spark's drivers: classes as a JVM has them, mapped, not loaded.

They start in half the time and CPU with one. It is made once, for the broker by a start of it, for each environment
with PySpark by a small job, and kept in an environment's folder. Standard library only. Rules: an archive that is
missing, damaged or of another Java, Pulsar or Spark means a slower start and nothing else. The JVM ignores one that
does not fit, and prints nothing; but one that is cut off ends it with SIGABRT, so the digest is compared before each
use. What was tried in vain is not tried again until one of these changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from broker import BrokerError, Standalone
from environments import ENVS, alone, jars_folder, java_path, say

# The tests' JVMs live for seconds, or do little: the optimizing compiler and the concurrent collector cost them half
# their time.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SECONDS = 300

# Classes that a test is likely to use: a session, SQL, JSON, a data source in Python, and Parquet both ways.
_JOB = """
import sys
import pyarrow
from pyspark.sql import SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class Rows(DataSource):
    def schema(self):
        return "id LONG, text STRING"

    def reader(self, schema):
        return Reader()


class Reader(DataSourceReader):
    def partitions(self):
        return [InputPartition(0), InputPartition(4)]

    def read(self, partition):
        ids = list(range(partition.value, partition.value + 4))
        texts = ['{"n": %d}' % number for number in ids]
        yield pyarrow.RecordBatch.from_pydict({"id": ids, "text": texts})


spark = SparkSession.builder.appName("class-archive").getOrCreate()
spark.dataSource.register(Rows)
frame = spark.read.format("Rows").load().withColumn("value", functions.from_json("text", "n INT"))
frame = frame.selectExpr("id", "id % 2 AS part", "value.*")
frame.write.mode("overwrite").partitionBy("part").parquet(sys.argv[1])
read = spark.read.parquet(sys.argv[1])
assert read.groupBy("part").agg(functions.sum("n")).orderBy("part").collect()
assert read.where("id > 3").count() == 4
spark.stop()
"""


def driver_options(env: str, make: Callable[[Path], None] | None = None) -> str:
    """Return the JVM's options for the drivers of an environment, after making its archive where there is none.

    `make` writes the archive to a path; by default by a Spark job, which takes about half a minute.
    """
    jars = ENVS.joinpath(env).glob("lib/python*/site-packages/pyspark/jars/*.jar")
    home = os.environ.get("JAVA_HOME")
    # That which spark-submit starts.
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    return _options(
        env,
        ENVS / env / "class-archive" / "spark.jsa",
        java,
        jars,
        _JOB,
        make or (lambda archive: _run_job(env, archive)),
    )


def broker_options(make: Callable[[Path], None] | None = None) -> str:
    """Return the JVM's options for the brokers of the tests, after making their archive where there is none.

    `make` writes the archive to a path; by default by starting a broker, which takes about 20 seconds.
    """
    archive = ENVS / "broker" / "class-archive" / "broker.jsa"
    return _options("broker", archive, java_path() or "java", jars_folder().glob("*.jar"), "", make or _run_broker)


def _options(name: str, archive: Path, java: str, jars: Iterable[Path], job: str, make: Callable[[Path], None]) -> str:
    stamp = archive.with_name("stamp.json")
    try:
        key = _key(java, jars, job)
        with alone(archive.parent):
            kept = _read(stamp)
            if kept.get("key") != key or not _is_whole(archive, kept.get("sha256")):
                stamp.write_text(json.dumps({"key": key, "sha256": _make(name, archive, make)}))
            usable = archive.is_file()
    except OSError as error:
        say(f"{name}: no class archive ({error})")
        usable = False
    return f"{JVM_OPTIONS} {archive_options(archive)}" if usable else JVM_OPTIONS


def archive_options(archive: Path) -> str:
    """Return the JVM's options for an archive: it is used if it fits, and nothing is printed if it does not."""
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto -Xlog:cds*=off'


def _key(java: str, jars: Iterable[Path], job: str) -> str:
    """Return what an archive depends on: Java, the jars, and the job."""
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    return hashlib.sha256(json.dumps([java, version, sorted(map(str, jars)), job]).encode()).hexdigest()


def _read(stamp: Path) -> dict[str, str | None]:
    try:
        found = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_whole(archive: Path, digest: str | None) -> bool:
    """Return True if the archive is as it was made, or could not be made and is not there."""
    return (_digest(archive) if archive.exists() else None) == digest


def _digest(archive: Path) -> str:
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(name: str, archive: Path, make: Callable[[Path], None]) -> str | None:
    """Make the archive and return its digest; None, with the reason printed, if it cannot be made."""
    archive.unlink(missing_ok=True)
    fresh = archive.with_name(f"{archive.stem}-{os.getpid()}.jsa")
    say(f"{name}: class archive …")
    started = time.monotonic()
    try:
        make(fresh)
        os.replace(fresh, archive)
    except (OSError, subprocess.SubprocessError, BrokerError) as error:
        reason = f"the job returned {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error
        say(f"{name}: no class archive, JVMs start without one ({reason}; see {archive.with_name('job.log')})")
        return None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    say(f"{name}: class archive: done in {time.monotonic() - started:.0f} s")
    return _digest(archive)


def _run_job(env: str, archive: Path) -> None:
    """Run the job; its output stays beside the archive."""
    folder = ENVS / env / "bin"
    python = str(folder / "python")
    settings = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1")
    command = [str(folder / "spark-submit"), "--master", "local[1]"]
    for setting in settings:
        command += ["--conf", setting]
    with tempfile.TemporaryDirectory(prefix="class-archive-") as name, archive.with_name("job.log").open("w") as log:
        job = Path(name) / "job.py"
        job.write_text(_JOB)
        given = {
            "SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={archive}" {JVM_OPTIONS}',
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command += [str(job), f"{name}/rows"]
        subprocess.run(
            command, cwd=name, env=os.environ | given, stdout=log, stderr=log, timeout=_SECONDS, check=True
        )  # fmt: skip


def _run_broker(archive: Path) -> None:
    """Start a broker, whose check of health publishes and consumes a message, and end it, which writes the archive."""
    with tempfile.TemporaryDirectory(prefix="class-archive-") as name:
        options = f'"-XX:ArchiveClassesAtExit={archive}" {JVM_OPTIONS}'
        broker = Standalone(Path(name) / "broker", jvm_options=options)
        try:
            broker.start().wait_ready(_SECONDS)
        finally:
            broker.stop()
            shutil.copy(broker.log, archive.with_name("job.log"))
