"""Simulation of large topics: what a Spark driver and its Python workers ask brokers for as partitions grow.

    .envs/spark/bin/python benchmarks/scale.py [--most PARTITIONS] [--tasks TASKS] [--workers WORKERS]

The real planner, splits and tasks of `pyspark_pulsar` run against a broker that counts commands and connections, in a
process of its own; each partition holds ten messages. Spark itself is not started: its scheduler's share is not in the
numbers. Prints one Markdown row per size: requests and CPU of the driver for a batch read, for the first and for an
idle micro-batch of a stream; size of the pickled splits and of a checkpoint's offsets; commands of one task;
connections of all workers together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_pulsar.batch_reader import Split, make_splits, read_split
from pyspark_pulsar.broker import plan
from pyspark_pulsar.clients import close_clients
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.stream_offsets import to_document
from pyspark_pulsar.stream_reader import StreamPlanner

TESTS = Path(__file__).resolve().parent.parent / "tests"
SIZES = ((1, 1), (1, 10), (1, 100), (1, 1_000), (100, 10), (1_000, 10), (1, 10_000))
ENTRIES = 10
COLUMNS = (
    "topics × partitions",
    "batch plan: requests, CPU s",
    "splits, KB",
    "first micro-batch: requests, CPU s",
    "idle micro-batch: requests, CPU s",
    "offsets, KB",
    "ranges and commands of a task",
    "connections",
)


class Counted:
    """Counting broker in a process of its own."""

    def __init__(self, topics: int, partitions: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.counting_broker", str(topics), str(partitions), str(ENTRIES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS,
        )  # fmt: skip
        self.url = self._line()
        self.connections = 0

    def requests(self) -> int:
        """Return the number of commands since the last call, without the keep-alive."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        counts: dict[str, int] = json.loads(self._line())
        self.connections = counts.pop("connections")
        return sum(count for name, count in counts.items() if name not in ("PING", "PONG", "CONNECT"))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def counted(topics: int, partitions: int) -> Iterator[Counted]:
    """Start a counting broker, and end it."""
    broker = Counted(topics, partitions)
    try:
        yield broker
    finally:
        broker.close()


@dataclass(frozen=True)
class Cost:
    """Requests and CPU seconds of one step of the driver."""

    requests: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.requests:,}, {self.seconds:.2f}"


def measured(broker: Counted, step: Callable[[], Any]) -> tuple[Any, Cost]:
    """Run a step of the driver and return its result and its cost."""
    broker.requests()
    before = time.process_time()
    result = step()
    return result, Cost(broker.requests(), time.process_time() - before)


def run_task(work: tuple[ReadOptions, Split]) -> int:
    """Read a split as a task does; return the worker's process id."""
    options, split = work
    rows = sum(batch.num_rows for batch in read_split(options, split))
    assert rows == ENTRIES * len(split.ranges), rows
    return os.getpid()


def row(topics: int, partitions: int, tasks: int, workers: int) -> list[str]:
    """Measure one size."""
    with counted(topics, partitions) as broker:
        names = ",".join(f"persistent://public/default/scale-{number}" for number in range(topics))
        options = ReadOptions.parse({"service.url": broker.url, "topics": names})
        ranges, batch = measured(broker, lambda: plan(options))
        splits = make_splits(ranges)
        planner = StreamPlanner(options)
        start, begin = measured(broker, planner.initial)
        end, _ = measured(broker, lambda: planner.latest(start, unlimited=True))
        planner.ranges(start, end)
        end, idle = measured(broker, lambda: planner.latest(end, unlimited=True))
        planner.close()
        close_clients()
        own = broker.connections
        broker.requests()
        sample = [(options, split) for split in splits[:: max(1, len(splits) // tasks)]][:tasks]
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            used = len(set(pool.map(run_task, sample, chunksize=1)))
        per_task = (
            f"{statistics.mean(len(split.ranges) for _, split in sample):.0f}, {broker.requests() / len(sample):.1f}"
        )
        connections = f"{own} driver, {broker.connections - own} of {used} workers"
    return [
        f"{topics:,} × {partitions:,}", str(batch), f"{len(splits):,}, {len(pickle.dumps(splits)) // 1024:,}",
        str(begin), str(idle), f"{len(json.dumps(to_document(end))) // 1024:,}", per_task, connections,
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--most", type=int, default=10_000, metavar="PARTITIONS", help="largest size (10000)")
    parser.add_argument("--tasks", type=int, default=64, help="tasks to run of each size (64)")
    parser.add_argument("--workers", type=int, default=4, help="Python worker processes (4)")
    given = parser.parse_args(arguments)
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    for topics, partitions in SIZES:
        if topics * partitions <= given.most:
            print(f"| {' | '.join(row(topics, partitions, given.tasks, given.workers))} |", flush=True)


if __name__ == "__main__":
    main()
