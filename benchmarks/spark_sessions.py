"""Sessions of the Spark benchmarks: the topics they read, the processes that read, and the check of what was read.

Each session is a process of spark_worker.py, run by the Python of its side's environment (dev/environments.py makes
them). Rules: every read has the same rows, or the run ends; files of a read are removed when they are checked.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dev"))

from run import create_partitions  # noqa: E402 - beside this file
from spark_worker import COLUMNS  # noqa: E402 - likewise

from environments import python_of, spark_jvm_folder  # noqa: E402 - lives in dev/

_SECONDS = 1800
_ROWS = 20_000
_EVENT_TIME = 1_700_000_000_000
# What would change the Spark or the Python that a session uses, or how the JVM starts.
_FOREIGN = (
    "JDK_JAVA_OPTIONS", "PULSAR_NATIVE_IMPL", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS", "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME", "PYTHONPATH", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_SUBMIT_OPTS", "VIRTUAL_ENV",
)  # fmt: skip


@dataclass(frozen=True)
class Side:
    """Side of a measurement: name in the table, the worker's peer, environment, of ours the codec and the splits."""

    name: str
    peer: str
    env: str
    codec: str = ""
    min_partitions: int | None = None


JVM = Side("jvm", "jvm", "spark-jvm")
OFFICIAL = Side("official", "official", "spark-official")
COMPILED = Side("compiled", "ours", "spark", "compiled")
PYTHON = Side("python", "ours", "spark", "python")
# What the load application does with raw values: its own scan, and files that the tasks write with pyarrow.
LOAD = Side("load", "load", "spark", "compiled")
LOAD_PYTHON = Side("load-python", "load", "spark", "python")
# The option minPartitions, which the JVM connector does not have: a task for each core, whatever the topic has.
SPLIT = Side("split", "ours", "spark", "compiled", min_partitions=2)
# A data source whose tasks have the record batches already: what a client that costs nothing would reach.
FLOOR = Side("floor", "floor", "spark")
SIDES = (JVM, OFFICIAL, COMPILED, PYTHON, SPLIT, LOAD, LOAD_PYTHON, FLOOR)


@dataclass(frozen=True)
class Content:
    """Content of a topic: messages of random bytes with an event time, and with a key and two properties if described.

    `partitions` 0 is a topic without partitions. With `one_by_one` the partitions are published to one after the other,
    so that their entries are as large as those of a topic without partitions; else rows are dealt out over them, and
    the producer's limit of pending messages over all partitions makes entries of less than 200 rows for 256 of them.
    """

    rows: int
    size: int
    partitions: int = 0
    described: bool = False
    one_by_one: bool = False


@dataclass(frozen=True)
class Broker:
    """URLs of the broker."""

    url: str
    admin_url: str


@dataclass(frozen=True)
class Session:
    """Figures of one session: seconds of the whole process, of its start and end, of each read; peak bytes."""

    wall: float
    cpu: float
    start: float
    end: float
    reads: list[dict[str, float]]
    jvm_peak: int
    python_peak: int


def fill(broker: Broker, content: Content) -> str:
    """Publish what a topic is to hold, in batches, and return its name. Blocks."""
    import pulsar_native as pulsar

    topic = f"persistent://public/default/spark-{uuid.uuid4().hex}"
    if content.partitions:
        create_partitions(broker.admin_url, topic, content.partitions)
    step = max(1, min(_ROWS, (32 << 20) // content.size))
    targets = [f"{topic}-partition-{number}" for number in range(content.partitions)] if content.one_by_one else [topic]
    described: dict[str, Any] = {"key": "key", "properties": ["source", "trace"]} if content.described else {}
    with pulsar.Client(broker.url) as client:
        for number, target in enumerate(targets):
            begin, end = (content.rows * each // len(targets) for each in (number, number + 1))
            with client.create_producer(target, batching_enabled=True, block_if_queue_full=True) as producer:
                for first in range(begin, end, step):
                    table = messages(content, first, min(step, end - first))
                    producer.send_table(table, event_time="event_time", **described)
    return topic


def store(broker: Broker, topic: str, folder: Path) -> str:
    """Write the record batches of a topic into Arrow files below `folder`, once; return the path of the files. Blocks.

    There is a file for each topic partition, since side `floor` has a task for each.
    """
    import pyarrow as pa

    import pulsar_native as pulsar
    from pulsar_native.arrow.columns import arrow_schema

    stored = folder / "arrow" / topic.rpartition("/")[2]
    if stored.exists():
        return str(stored)
    stored.mkdir(parents=True)
    with pulsar.Client(broker.url) as client:
        for number, name in enumerate(client.get_topic_partitions(topic)):
            reader = client.create_reader(name, pulsar.MessageId.earliest)
            with pa.ipc.new_file(str(stored / f"{number:05}.arrow"), arrow_schema(tuple(COLUMNS))) as file:
                for batch in reader.arrow_batches(columns=tuple(COLUMNS)):
                    file.write_batch(batch)
    return str(stored)


def messages(content: Content, first: int, count: int) -> Any:
    """Return messages as an Arrow table: `count` of them, numbered from `first`."""
    import pyarrow as pa

    kind = pa.binary(content.size)
    values = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(os.urandom(content.size * count))])
    numbers = range(first, first + count)
    columns = {"value": values.cast(pa.binary()), "event_time": pa.array([_EVENT_TIME + each for each in numbers])}
    if content.described:
        columns["key"] = pa.array([f"customer-{each % 9973}" for each in numbers])
        columns["source"] = pa.array([f"shop-{each % 17}" for each in numbers])
        columns["trace"] = pa.array([f"{each:016x}" for each in numbers])
    return pa.table(columns)


def environment(side: Side, folder: Path) -> dict[str, str]:
    """Return the environment variables of a session; Spark's temporary files are below `folder`."""
    python = python_of(side.env)
    env = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    env |= {"PYSPARK_PYTHON": str(python), "PATH": f"{python.parent}{os.pathsep}{env.get('PATH', os.defpath)}"}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder / "spark")}
    return {**env, **({"PULSAR_NATIVE_IMPL": side.codec} if side.codec else {})}


def command(side: Side, broker: Broker, topics: Sequence[str], output: Path) -> list[str]:
    """Return the command line of a session that reads the topics in turn."""
    words = [str(python_of(side.env)), str(HERE / "spark_worker.py"), "--peer", side.peer, "--url", broker.url]
    words += ["--output", str(output), *(word for topic in topics for word in ("--topic", topic))]
    if side is JVM:
        (jar,) = spark_jvm_folder().glob("*.jar")
        words += ["--admin-url", broker.admin_url, "--jar", str(jar)]
    if side.min_partitions is not None:
        words += ["--admin-url", broker.admin_url, "--min-partitions", str(side.min_partitions)]
    return words


def run(side: Side, broker: Broker, topics: Sequence[str], contents: Sequence[Content], folder: Path) -> Session:
    """Run a session that reads the topics in turn, check what it read, and return its figures. Blocks."""
    output = folder / "output"
    if side is FLOOR:
        topics = [store(broker, topic, folder) for topic in topics]
    before, began = _children_cpu(), time.perf_counter()
    done = subprocess.run(
        command(side, broker, topics, output), cwd=folder, env=environment(side, folder),
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    wall, cpu = time.perf_counter() - began, _children_cpu() - before
    if done.returncode:
        raise SystemExit(f"{side.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    if result.pop("codec") != side.codec:
        raise SystemExit(f"The {side.codec} codec is not there; make it with dev/setup dev")
    for number, content in enumerate(contents):
        check(side, content, summary(output / f"read-{number}"))
    shutil.rmtree(output)
    return Session(wall=wall, cpu=cpu + result.pop("lost"), **result)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def summary(folder: Path) -> dict[str, Any]:
    """Return what the Parquet files of a read hold: columns, rows, and sums over each column."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found: dict[str, Any] = {"columns": [], "rows": 0, "value": 0, "key": 0, "event_time": 0, "properties": 0, "ids": 0}
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            found["columns"] = file.schema_arrow.names
            for batch in file.iter_batches(batch_size=_ROWS):
                found["rows"] += batch.num_rows
                found["value"] += pc.sum(pc.binary_length(batch["value"])).as_py() or 0
                found["key"] += pc.sum(pc.binary_length(batch["__key"])).as_py() or 0
                found["event_time"] += _event_times(batch["__eventTime"])
                offsets = batch["__messageProperties"].offsets
                found["properties"] += offsets[-1].as_py() - offsets[0].as_py()
                found["ids"] += batch.num_rows - batch["__messageId"].null_count
    return found


def _event_times(column: Any) -> int:
    """Return the sum of the milliseconds since the first event time, which are the numbers of the messages."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.subtract(pc.divide(column.cast(pa.timestamp("us")).cast(pa.int64()), 1000), _EVENT_TIME)
    return int(pc.sum(numbers).as_py() or 0)


def expected(side: Side, content: Content) -> dict[str, Any]:
    """Return the summary of a read of everything."""
    rows, columns = content.rows, list(COLUMNS)
    if side.peer == LOAD.peer:
        columns += ["__ledgerId", "__entryId", "__batchIndex"]
    keys = sum(len(f"customer-{number % 9973}") for number in range(rows)) if content.described else 0
    return {
        "columns": columns, "rows": rows, "value": rows * content.size, "key": keys,
        "event_time": rows * (rows - 1) // 2, "properties": 2 * rows if content.described else 0, "ids": rows,
    }  # fmt: skip


def check(side: Side, content: Content, found: dict[str, Any]) -> None:
    """End the run unless a read has all rows in all columns."""
    wanted = expected(side, content)
    differing = [name for name in wanted if found[name] != wanted[name]]
    if differing:
        texts = ", ".join(f"{name} is {found[name]} instead of {wanted[name]}" for name in differing)
        raise SystemExit(f"{side.name} did not read what was published: {texts}")
