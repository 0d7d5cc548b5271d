"""Fixed cost of a load, in pairs: the load application against the same job with Spark's own JSON source.

Usage: benchmarks/load_cost.py [--rows 27004] [--partitions 4] [--rounds 5] [--url URL --admin-url URL], by the Python
of Spark's environment; without a URL it starts a broker of its own. Both jobs are started by the same spark-submit with
the same settings and write the same rows with the same columns to Parquet: the load application from a topic, the other
one from a local JSON file that has the rows which the load delivered. They take turns, A B, B A, and both are run once
before, so that what the machine does besides meets both alike. The seconds are those of the whole process, from the
start of spark-submit to its end; CPU is user and system of it and all its children. The ratio is the median of the
pairs' ratios, ours ÷ Spark's.

The last line is one JSON object: the medians, the ratios, and the seconds of the stages of the load as it reports them;
`start` is what is left of the whole: the launcher, the JVM, the imports, and the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dev"))

import broker as brokers  # noqa: E402 - lives in dev/

_SECONDS = 300
_SCHEMA = "day INT, dep_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, distance INT"
_METADATA = (
    "__key STRING, __topic STRING, __ledgerId LONG, __entryId LONG, __batchIndex INT, __publishTime TIMESTAMP, "
    "__eventTime TIMESTAMP"
)
_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}

JSON_JOB = """
import sys
from pyspark.sql import SparkSession

source, target, schema = sys.argv[1:]
spark = SparkSession.builder.appName("json-load").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
frame = spark.read.schema(schema).option("mode", "FAILFAST").json(source)
frame.write.mode("overwrite").partitionBy("day").parquet(target)
spark.stop()
"""


@dataclass
class Side:
    """One of the two jobs: its name, the arguments of spark-submit, and the figures of its runs."""

    name: str
    arguments: list[str]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    stages: list[dict[str, float]] = field(default_factory=list)

    def run(self, command: Sequence[str], folder: Path, *, keep: bool) -> None:
        """Run the job once, and keep its figures if asked to."""
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [*command, *self.arguments], cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{self.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
        if not keep:
            return
        self.wall.append(wall)
        self.cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        for line in done.stdout.splitlines():
            if line.startswith('{"pulsar_load":'):
                result = json.loads(line)["pulsar_load"]
                stages = dict(result["stages"])
                self.stages.append({"start": wall - sum(stages.values()), **stages})

    def figures(self) -> dict[str, Any]:
        """Return the medians."""
        found: dict[str, Any] = {
            "seconds": round(statistics.median(self.wall), 2),
            "fastest": round(min(self.wall), 2),
            "cpu_seconds": round(statistics.median(self.cpu), 2),
        }
        if self.stages:
            names = self.stages[0]
            found["stages"] = {name: round(statistics.median(each[name] for each in self.stages), 2) for name in names}
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish, run both jobs in turns, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=27_004, help="messages of the topic (default 27,004)")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of the topic (default 4)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs (default 5)")
    parser.add_argument("--url", help="service URL of a running broker")
    parser.add_argument("--admin-url", help="admin URL of a running broker")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsar-load-cost-") as name, ExitStack() as held:
        folder = Path(name)
        url, admin_url = options.url, options.admin_url
        if url is None:
            standalone = brokers.Standalone(folder / "broker")
            standalone.start()
            held.callback(standalone.stop)
            standalone.wait_ready()
            url, admin_url = standalone.service_url, standalone.admin_url
        topic = f"persistent://public/default/load-cost-{uuid.uuid4().hex[:12]}"
        publish(url, admin_url, topic, options.rows, options.partitions)
        ours, sparks = sides(url, admin_url, topic, folder)
        print(json.dumps(measure(ours, sparks, folder, options.rounds, options.rows)))
    return 0


def publish(url: str, admin_url: str, topic: str, rows: int, partitions: int) -> None:
    """Publish the rows, in batches as a producer makes them, spread over the partitions."""
    import pulsar_native
    from pulsar_native.admin import AdminClient

    with AdminClient(admin_url) as admin:
        admin.create_partitioned_topic(topic, partitions)
    with pulsar_native.Client(url) as client:
        producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
        for number in range(rows):
            row = {
                "day": number * 4 // rows, "dep_delay": number % 97 - 9, "carrier": ("UA", "DL", "B6")[number % 3],
                "flight": number % 5000, "tailnum": f"N{number % 4000:05}", "origin": "EWR", "dest": "IAH",
                "distance": number % 2500,
            }  # fmt: skip
            producer.send_async(
                json.dumps(row).encode(), None, partition_key=row["tailnum"], event_timestamp=1_357_000_000_000 + number
            )
        producer.flush()


def sides(url: str, admin_url: str, topic: str, folder: Path) -> tuple[Side, Side]:
    """Return both jobs."""
    from pyspark_pulsar import load

    request = {
        "source": {"service.url": url, "admin.url": admin_url, "topic": topic},
        "value": {"format": "json", "schema": _SCHEMA},
        "output": {"path": f"file://{folder}/ours", "partition_by": ["day"]},
        "interval": "all",
        "replay": "never",
    }
    job = folder / "json_job.py"
    job.write_text(JSON_JOB)
    ours = Side("pulsar", [load.application(), "--request", json.dumps(request)])
    schema = f"{_SCHEMA}, {_METADATA}"
    sparks = Side("json", [str(job), f"file://{folder}/rows.json", f"file://{folder}/sparks", schema])
    return ours, sparks


def measure(ours: Side, sparks: Side, folder: Path, rounds: int, rows: int) -> dict[str, Any]:
    """Run both jobs in turns and return the figures."""
    bin_folder = Path(sys.executable).parent
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = [part for name, value in _CONF.items() for part in ("--conf", f"{name}={value}")]
    command = [str(bin_folder / "spark-submit"), "--master", "local[2]", *settings]
    ours.run(command, folder, keep=False)
    _write_json(folder, rows)
    sparks.run(command, folder, keep=False)
    _check_same(folder, rows)
    for number in range(rounds):
        for side in (ours, sparks) if number % 2 == 0 else (sparks, ours):
            side.run(command, folder, keep=True)
        print(f"pair {number + 1}: pulsar {ours.wall[-1]:.2f} s, json {sparks.wall[-1]:.2f} s", flush=True)
    return {
        "rows": rows,
        "rounds": rounds,
        "machine": f"Python {platform.python_version()}, {os.cpu_count()} CPUs",
        "pulsar": ours.figures(),
        "json": sparks.figures(),
        "ratio_seconds": round(statistics.median(a / b for a, b in zip(ours.wall, sparks.wall, strict=True)), 2),
        "ratio_cpu": round(statistics.median(a / b for a, b in zip(ours.cpu, sparks.cpu, strict=True)), 2),
    }


def _write_json(folder: Path, rows: int) -> None:
    """Write the rows which the load delivered as JSON, one a line."""
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "ours")
    if table.num_rows != rows:
        raise SystemExit(f"The load delivered {table.num_rows} of {rows} rows")
    with (folder / "rows.json").open("w", encoding="utf-8") as file:
        for row in table.to_pylist():
            row = {name: _plain(value) for name, value in row.items() if value is not None}
            file.write(json.dumps(row) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.isoformat() if hasattr(value, "isoformat") else value


def _check_same(folder: Path, rows: int) -> None:
    import pyarrow.parquet as pq

    ours, sparks = (pq.read_table(folder / name) for name in ("ours", "sparks"))
    columns = [name for name in sparks.column_names if name != "__key"]
    order = [(name, "ascending") for name in ("__topic", "__ledgerId", "__entryId", "__batchIndex")]
    same = ours.select(columns).sort_by(order).equals(sparks.select(columns).sort_by(order))
    if sparks.num_rows != rows or not same:
        raise SystemExit("The jobs did not write the same rows")


if __name__ == "__main__":
    sys.exit(main())
