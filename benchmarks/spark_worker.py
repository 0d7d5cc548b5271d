"""One Spark session of benchmarks/spark_run.py: reads topics into Parquet files one after another, and measures each.

Runs by the Python of the peer's environment, so it imports the standard library and PySpark, and a client in the
functions of its peer only. A read is from the first message to the one that is the last when it is planned, all seven
columns of the JVM connector (and three more for `load`). CPU is user and system of all processes of the session: this
one, the JVM, the Python workers, and those that have ended. Orphans are given to this process, and the JVM is waited
for, so that who started it finds their CPU in the usage of its children. But Spark's Python daemon ignores SIGCHLD, so
that the CPU of its ended workers is in nobody's usage: what they had when last seen is the field `lost`. Linux only.
The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PEERS = ("jvm", "official", "ours", "load", "floor")
COLUMNS = {
    "value": "BINARY",
    "__key": "BINARY",
    "__topic": "STRING",
    "__messageId": "BINARY",
    "__publishTime": "TIMESTAMP",
    "__eventTime": "TIMESTAMP",
    "__messageProperties": "MAP<STRING, STRING>",
}
_END_SECONDS = 60
# Spark keeps idle Python workers for a minute.
_WATCH_SECONDS = 1.0
_READ_MS = 60_000
_ROWS = 10_000
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")
_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.sql.session.timeZone": "UTC",
    # The versions differ in this default.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
Frame = Callable[[Any, argparse.Namespace, str], Any]


# ---- the process tree ------------------------------------------------------------------------------------------------


def parse_stat(text: str) -> tuple[int, float]:
    """Return the parent's process id, and the CPU seconds of the process and its waited-for children.

    `text` is the content of /proc/PID/stat, whose second field, the name, may hold spaces and parentheses.
    """
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:15])) / _TICKS


def descendants(parents: Mapping[int, int], root: int) -> list[int]:
    """Return the processes below `root`, in no order; `parents` maps each process to its parent."""
    children: dict[int, list[int]] = {}
    for process, parent in parents.items():
        children.setdefault(parent, []).append(process)
    found, ahead = [], [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def below() -> dict[int, tuple[int, float]]:
    """Return parent and CPU seconds of each process below this one."""
    stats: dict[int, tuple[int, float]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            # A process may end at any moment; its parent has its CPU then.
            with contextlib.suppress(OSError):
                stats[int(entry.name)] = parse_stat(Path(entry.path, "stat").read_text())
    found = descendants({process: parent for process, (parent, _) in stats.items()}, os.getpid())
    return {process: stats[process] for process in found}


def ignores_children(process: int) -> bool:
    """Return True if a process ignores SIGCHLD: the kernel then forgets the CPU of its children when they end."""
    try:
        status = parse_status(Path(f"/proc/{process}/status").read_text())
    except OSError:
        return False
    return bool(int(status["SigIgn"], 16) >> (signal.SIGCHLD - 1) & 1)


class Usage:
    """CPU seconds of this process and all below it, those that have ended too; watches from `with` to its end.

    `lost` is the CPU of processes that nobody waited for.
    """

    def __init__(self) -> None:
        self.lost = 0.0
        # CPU seconds of the processes whose parents ignore SIGCHLD, as they were last seen.
        self._seen: dict[int, float] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="usage", daemon=True)

    def __enter__(self) -> Usage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def seconds(self) -> float:
        """Return the CPU seconds up to now. Thread-safe."""
        with self._lock:
            found = below()
            self.lost += sum(self._seen.pop(process) for process in self._seen.keys() - found.keys())
            parents = {parent for parent, _ in found.values()}
            ignoring = {parent for parent in parents if ignores_children(parent)}
            self._seen = {process: cpu for process, (parent, cpu) in found.items() if parent in ignoring}
            own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
            return own + self.lost + sum(cpu for _, cpu in found.values())

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all children have ended; kill what is left after that time and raise `SystemExit`."""
        deadline = time.monotonic() + seconds
        while self._reap():
            if time.monotonic() > deadline:
                for process in below():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                raise SystemExit(f"Processes of the session were still there after {seconds:g} s")
            time.sleep(0.01)

    def _reap(self) -> bool:
        """Wait for the children that have ended; return whether there are others."""
        with self._lock:
            try:
                while process := os.waitpid(-1, os.WNOHANG)[0]:
                    # An orphan: its CPU is among that of this process's children now.
                    self._seen.pop(process, None)
            except ChildProcessError:
                return False
            return True

    def _watch(self) -> None:
        while not self._over.wait(_WATCH_SECONDS):
            self.seconds()


def peaks() -> dict[str, int]:
    """Return the peak resident bytes of the JVM and of the largest Python process of Spark."""
    found = {"jvm_peak": 0, "python_peak": 0}
    for process in below():
        with contextlib.suppress(OSError, KeyError):
            status = parse_status(Path(f"/proc/{process}/status").read_text())
            name = "jvm_peak" if status["Name"].startswith("java") else "python_peak"
            found[name] = max(found[name], int(status["VmHWM"].split()[0]) * 1024)
    return found


def parse_status(text: str) -> dict[str, str]:
    """Return the fields of /proc/PID/status; a process that has ended has no VmHWM."""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def adopt_orphans() -> None:
    """Become the parent of processes below whose own parent ends: Spark leaves its Python daemon behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


# ---- the peers -------------------------------------------------------------------------------------------------------


def source(spark: Any, options: argparse.Namespace, topic: str) -> Any:
    """Return the frame of a source called pulsar: the JVM connector's, or ours."""
    reader = spark.read.format("pulsar").option("service.url", options.url).option("topic", topic)
    if options.peer == "jvm":
        # It looks up topics and schemas by the admin interface.
        reader = reader.option("admin.url", options.admin_url)
    if options.min_partitions:
        # The ledgers of a topic partition, by which it is split, come from the admin interface.
        reader = reader.option("admin.url", options.admin_url).option("minPartitions", options.min_partitions)
    return reader.option("startingOffsets", "earliest").option("endingOffsets", "latest").load()


def load(spark: Any, options: argparse.Namespace, topic: str, target: str) -> None:
    """Write as our load application does: planned in this process, with the columns that identify a message, too."""
    from pyspark_pulsar.parquet_writer import parquet_format, write_scan
    from pyspark_pulsar.scan import columns_of, scan
    from pyspark_pulsar.tables import IDENTITY

    names = dict.fromkeys([*COLUMNS, *IDENTITY])
    given = {"service.url": options.url, "topic": topic, "columns": ",".join(names)}
    found = scan(spark, given, columns_of(given))
    write_scan(spark, found, target, parquet_format(spark, found.columns))


def official(spark: Any, options: argparse.Namespace, topic: str) -> Any:
    """Return the frame of the official client: a task for each topic partition, which makes Arrow record batches."""
    url = options.url
    ends = official_ends(url, topic)

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from official_batches(url, *ends[number])

    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return spark.range(0, len(ends), 1, numPartitions=len(ends)).mapInArrow(read, schema)


def official_ends(url: str, topic: str) -> list[tuple[str, tuple[int, int, int]]]:
    """Return each topic partition and the place of its last message: readers of this client cannot tell it."""
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    found = []
    for name in client.get_topic_partitions(topic):
        consumer = client.subscribe(name, f"bench-{os.getpid()}")
        found.append((name, _place(consumer.get_last_message_id())))
        consumer.unsubscribe()
    client.close()
    return found


def _place(message_id: Any) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def official_batches(url: str, topic: str, end: tuple[int, int, int]) -> Iterator[Any]:
    """Read a topic partition with the official client up to the message at `end`, inclusive."""
    import pulsar
    import pyarrow as pa

    moment = pa.timestamp("us", "UTC")
    kinds = [pa.binary(), pa.binary(), pa.string(), pa.binary(), moment, moment, pa.map_(pa.string(), pa.string())]
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    at_end = False
    while not at_end:
        rows: list[tuple[Any, ...]] = []
        while len(rows) < _ROWS and not at_end:
            message = reader.read_next(_READ_MS)
            rows.append(_row(message, topic))
            at_end = _place(message.message_id()) >= end
        columns = zip(*rows, strict=True)
        arrays = [pa.array(each, kind) for each, kind in zip(columns, kinds, strict=True)]
        yield pa.record_batch(arrays, names=list(COLUMNS))
    client.close()


def _row(message: Any, topic: str) -> tuple[Any, ...]:
    key, event_time = message.partition_key(), message.event_timestamp()
    return (
        message.data(),
        key.encode() if key else None,
        topic,
        message.message_id().serialize(),
        message.publish_timestamp() * 1000,
        event_time * 1000 if event_time else None,
        list(message.properties().items()),
    )


def floor(spark: Any, options: argparse.Namespace, topic: str) -> Any:
    """Return the frame of a data source that gives the record batches of Arrow files; `topic` is their folder."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class FloorReader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(str(path)) for path in sorted(Path(topic).iterdir())]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            with pa.memory_map(partition.value) as mapped:
                file = pa.ipc.open_file(mapped)
                for number in range(file.num_record_batches):
                    yield file.get_batch(number)

    class FloorSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "floor"

        def schema(self) -> str:
            return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

        def reader(self, schema: Any) -> DataSourceReader:
            return FloorReader()

    spark.dataSource.register(FloorSource)
    return spark.read.format("floor").load()


FRAMES: dict[str, Frame] = {"jvm": source, "official": official, "ours": source, "floor": floor}


# ---- the session -----------------------------------------------------------------------------------------------------


def session(options: argparse.Namespace) -> Any:
    """Start the session."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bench").master(f"local[{options.cores}]")
    for name, value in {**_CONF, **({"spark.jars": options.jar} if options.jar else {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def end(spark: Any, usage: Usage) -> None:
    """End the session and its JVM, and wait for all processes."""
    gateway = spark.sparkContext._gateway
    # Stopping ends the Python workers.
    usage.seconds()
    spark.stop()
    gateway.shutdown()
    # The JVM ends when its input does.
    gateway.proc.stdin.close()
    usage.wait_for_all(_END_SECONDS)


def read(spark: Any, options: argparse.Namespace, usage: Usage, number: int) -> dict[str, float]:
    """Read a topic of the command line into Parquet files and return the wall and CPU seconds."""
    target, topic = f"{options.output}/read-{number}", options.topic[number]
    cpu, wall = usage.seconds(), time.perf_counter()
    if options.peer == "load":
        load(spark, options, topic, target)
    else:
        FRAMES[options.peer](spark, options, topic).write.parquet(f"file://{target}")
    wall = time.perf_counter() - wall
    return {"wall": wall, "cpu": usage.seconds() - cpu}


def codec(peer: str) -> str:
    """Return the codec of our client, "" of another peer."""
    if peer not in ("ours", "load"):
        return ""
    from pulsar_native.diagnostics import codec as ours

    return ours()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the checked options of the command line; exits with status 2 for wrong ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", choices=PEERS, required=True, help="who reads")
    parser.add_argument("--url", required=True, help="service URL of the broker")
    parser.add_argument("--admin-url", help="admin URL of the broker (needed with --peer jvm and for splits)")
    parser.add_argument("--topic", action="append", required=True, help="full name of a topic; one read for each")
    parser.add_argument("--output", type=Path, required=True, help="folder for the Parquet files, read-0 and so on")
    parser.add_argument("--cores", type=int, default=2, help="tasks at a time (default 2)")
    parser.add_argument(
        "--min-partitions", type=int, help="splits of a topic (only with --peer ours; needs --admin-url)"
    )
    parser.add_argument("--jar", help="jar of the JVM connector (needed with --peer jvm)")
    options = parser.parse_args(arguments)
    if options.peer == "jvm" and not (options.admin_url and options.jar):
        parser.error("--peer jvm needs --admin-url and --jar")
    if options.peer != "jvm" and options.jar:
        parser.error("--jar is of --peer jvm: a session with it has two sources of the name pulsar")
    if options.min_partitions is not None and (options.peer != "ours" or not options.admin_url):
        parser.error("--min-partitions is of --peer ours and needs --admin-url")
    if options.cores < 1:
        parser.error("--cores must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the session and print its figures."""
    options = parse(arguments)
    adopt_orphans()
    with Usage() as usage:
        began = time.perf_counter()
        spark = session(options)
        start = time.perf_counter() - began
        reads = [read(spark, options, usage, number) for number in range(len(options.topic))]
        result: dict[str, Any] = {"start": start, "reads": reads, "codec": codec(options.peer), **peaks()}
        began = time.perf_counter()
        end(spark, usage)
    usage.seconds()
    print(json.dumps({**result, "end": time.perf_counter() - began, "lost": usage.lost}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
