"""Import cost of the provider's modules, in pairs: every process that parses DAGs or runs a task pays for it.

Usage: benchmarks/import_cost.py [--pairs 15] [--json PATH], by the Python of Airflow's environment. Each module is
compared with what a DAG file imports anyway: operators and sensors with `airflow.sdk`, the Spark operator with Spark's
own. Both are imported by fresh interpreters that take turns, so that what the machine does besides meets both alike;
each is run once before, which compiles what is not compiled. CPU is user and system of the process, wall is its time.
A ratio is the median of the pairs' ratios, ours ÷ theirs. Ends with 1 when a ratio of CPU is over its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_SDK = "airflow.sdk"
_SPARK = "airflow.providers.apache.spark.operators.spark_submit"
_SECONDS = 300


class Case(NamedTuple):
    """A module of ours, the one it is compared with, and the highest ratio allowed."""

    ours: str
    theirs: str
    bound: float


CASES = (
    Case("airflow_provider_pulsar.operators.publish", _SDK, 1.15),
    Case("airflow_provider_pulsar.operators.consume", _SDK, 1.15),
    Case("airflow_provider_pulsar.operators.admin", _SDK, 1.15),
    Case("airflow_provider_pulsar.sensors.topic", _SDK, 1.15),
    Case("airflow_provider_pulsar.sensors.message", _SDK, 1.15),
    Case("airflow_provider_pulsar.sensors.subscription", _SDK, 1.15),
    Case("airflow_provider_pulsar.operators.spark", _SPARK, 1.1),
)


class Cost(NamedTuple):
    """Seconds of one process."""

    cpu: float
    wall: float


def cost(module: str, home: Path) -> Cost:
    """Import a module in a fresh interpreter and return what the process took."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        env={**os.environ, "AIRFLOW_HOME": str(home)}, check=True, timeout=_SECONDS,
    )  # fmt: skip
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def measure(case: Case, pairs: int, home: Path) -> dict[str, float]:
    """Return the medians of a case: ratios of CPU and wall, and the seconds of CPU of both."""
    for module in (case.theirs, case.ours):
        cost(module, home)
    taken = [(cost(case.theirs, home), cost(case.ours, home)) for _ in range(pairs)]
    return {
        "cpu_ratio": statistics.median(ours.cpu / theirs.cpu for theirs, ours in taken),
        "wall_ratio": statistics.median(ours.wall / theirs.wall for theirs, ours in taken),
        "cpu_theirs": statistics.median(theirs.cpu for theirs, _ in taken),
        "cpu_ours": statistics.median(ours.cpu for _, ours in taken),
        "bound": case.bound,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all cases, print a line for each, and return 1 when one is over its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="pairs of processes of each case (default 15)")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    found = {}
    with tempfile.TemporaryDirectory(prefix="import-cost-") as home:
        for case in CASES:
            result = found[case.ours] = measure(case, options.pairs, Path(home))
            print(
                f"{result['cpu_ratio']:.3f} CPU, {result['wall_ratio']:.3f} wall (at most {case.bound}): {case.ours} "
                f"{result['cpu_ours'] * 1e3:.0f} ms, {case.theirs} {result['cpu_theirs'] * 1e3:.0f} ms",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return int(any(result["cpu_ratio"] > result["bound"] for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
