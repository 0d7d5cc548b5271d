"""Line and branch coverage of the tests: enabled for a run of dev/test.py, combined and printed after it.

Standard library only; coverage.py lives in the environments. It costs more than the tests may get slower by, at least
up to Python 3.13, where branches are traced call by call; so it is a run of its own (`make coverage`). All processes
are measured: those of pytest-xdist, of Spark and Airflow, and forks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environments import ROOT, python_of

RESULTS = ROOT / ".results"
DATA = RESULTS / "coverage"
COMMAND = ("-m", "coverage", "run", "-m", "pytest")
# In percent of lines and branches, for each module of the client.
WANTED = 95
_SWITCH = "PULSAR_TEST_COVERAGE"


def begin() -> None:
    """Remove earlier measurements, and measure all processes started from now on."""
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    os.environ[_SWITCH] = "1"
    # Tests start processes in other folders.
    os.environ["COVERAGE_FILE"] = str(DATA / "data")


def is_on(env: Mapping[str, str]) -> bool:
    """Return True if a run with this environment is measured."""
    return _SWITCH in env


def report() -> None:
    """Combine the measurements, write .results/coverage.txt and .json, and print the total and what is below."""
    for command in (
        ("combine", "--keep", "--quiet", str(DATA)),
        ("json", "--quiet", "-o", str(RESULTS / "coverage.json")),
    ):
        _coverage(*command)
    (RESULTS / "coverage.txt").write_text(_coverage("report"))
    for line in summary(json.loads((RESULTS / "coverage.json").read_text())):
        print(f"coverage: {line}", flush=True)


def _coverage(*arguments: str) -> str:
    command = [str(python_of("dev")), "-m", "coverage", *arguments]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"coverage {arguments[0]} failed:\n{done.stdout}")
    return done.stdout


def summary(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each package, and one for each module of the client below `WANTED`, the lowest first."""
    files: Mapping[str, Any] = found["files"]
    lines = []
    for package in ("client/pulsar_native", "spark/pyspark_pulsar", "provider"):
        inside = [each["summary"] for name, each in files.items() if Path(name).is_relative_to(package)]
        counted = {key: sum(each[key] for each in inside) for key in _COUNTS}
        lines.append(
            f"{package}: {_share(counted, 'lines', 'statements'):.1f} % of {counted['num_statements']} lines, "
            f"{_share(counted, 'branches', 'branches'):.1f} % of {counted['num_branches']} branches"
        )
    low = [
        (each["summary"]["percent_covered"], name)
        for name, each in files.items()
        if Path(name).is_relative_to("client") and each["summary"]["percent_covered"] < WANTED
    ]
    lines += [f"below {WANTED} %: {percent:5.1f} % {name}" for percent, name in sorted(low)]
    return lines


_COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def _share(counted: Mapping[str, int], covered: str, of: str) -> float:
    return 100 * counted[f"covered_{covered}"] / counted[f"num_{of}"] if counted[f"num_{of}"] else 100.0
