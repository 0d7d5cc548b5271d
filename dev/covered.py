"""Line and branch coverage of the tests: enabled for a run of dev/test.py, combined and printed after it.

Standard library only; coverage.py lives in the environments. Up to Python 3.13 branches are traced call by call, which
makes tests up to a third slower: `make test` measures the suites that the client is judged by, and of those the
processes of pytest and their forks; `make coverage` all suites, with the processes that tests start, such as those of
Spark and Airflow.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from environments import ROOT, python_of

RESULTS = ROOT / ".results"
DATA = RESULTS / "coverage"
COMMAND = ("-m", "coverage", "run", "-m", "pytest")
# In percent of lines and branches: the client as a whole fails below it, its modules are named.
WANTED = 95
CLIENT = "client/pulsar_native"
# Suites the client is judged by; without one of them, or with a part of one, its total says nothing.
SUITES = frozenset({"client", "integration"})
_SWITCH = "PULSAR_TEST_COVERAGE"


def begin() -> None:
    """Remove earlier measurements."""
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)


def measuring(env: Mapping[str, str], *, with_started: bool) -> dict[str, str]:
    """Return the environment with which pytest is measured, and, `with_started`, each process that tests start."""
    # Tests start processes in other folders.
    return {**env, _SWITCH: "all" if with_started else "pytest", "COVERAGE_FILE": str(DATA / "data")}


def is_on(env: Mapping[str, str]) -> bool:
    """Return True if a run with this environment is measured."""
    return _SWITCH in env


def report(suites: Iterable[str], *, whole: bool) -> int:
    """Combine the measurements, write .results/coverage.txt and .json, print the totals and what is below, and return
    the number of failures: 1 if the client is below `WANTED` in a run of all its suites, `whole` ones.
    """
    for command in (
        ("combine", "--keep", "--quiet", str(DATA)),
        ("json", "--quiet", "-o", str(RESULTS / "coverage.json")),
    ):
        _coverage(*command)
    (RESULTS / "coverage.txt").write_text(_coverage("report", "--show-missing"))
    found = json.loads((RESULTS / "coverage.json").read_text())
    failed, verdict = judge(found, complete=whole and set(suites) >= SUITES)
    for line in [*summary(found), verdict]:
        print(f"coverage: {line}", flush=True)
    return failed


def _coverage(*arguments: str) -> str:
    command = [str(python_of("dev")), "-m", "coverage", *arguments]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"coverage {arguments[0]} failed:\n{done.stdout}")
    return done.stdout


def judge(found: Mapping[str, Any], *, complete: bool) -> tuple[int, str]:
    """Return the number of failures, 0 or 1, and the verdict on the client's lines and branches together."""
    counted = _sum(found, CLIENT)
    of = counted["num_statements"] + counted["num_branches"]
    percent = 100 * (counted["covered_lines"] + counted["covered_branches"]) / of if of else 0.0
    verdict = f"{CLIENT}: {percent:.1f} % of lines and branches"
    if not complete:
        return 0, f"{verdict}, not judged: that takes the whole suites {', '.join(sorted(SUITES))}"
    if percent < WANTED:
        return 1, f"{verdict}: failed, {WANTED} % are wanted (.results/coverage.txt names the lines of each module)"
    return 0, f"{verdict}: passed, {WANTED} % are wanted"


def summary(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each package, and one for each module of the client below `WANTED`, the lowest first."""
    files: Mapping[str, Any] = found["files"]
    lines = []
    for package in (CLIENT, "spark/pyspark_pulsar", "provider"):
        counted = _sum(found, package)
        lines.append(
            f"{package}: {_share(counted, 'lines', 'statements'):.1f} % of {counted['num_statements']} lines, "
            f"{_share(counted, 'branches', 'branches'):.1f} % of {counted['num_branches']} branches"
        )
    low = [
        (each["summary"]["percent_covered"], name)
        for name, each in files.items()
        if Path(name).is_relative_to(CLIENT) and each["summary"]["percent_covered"] < WANTED
    ]
    lines += [f"below {WANTED} %: {percent:5.1f} % {name}" for percent, name in sorted(low)]
    return lines


def _sum(found: Mapping[str, Any], package: str) -> dict[str, int]:
    files: Mapping[str, Any] = found["files"]
    inside = [each["summary"] for name, each in files.items() if Path(name).is_relative_to(package)]
    return {key: sum(each[key] for each in inside) for key in _COUNTS}


_COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def _share(counted: Mapping[str, int], covered: str, of: str) -> float:
    return 100 * counted[f"covered_{covered}"] / counted[f"num_{of}"] if counted[f"num_{of}"] else 100.0
