"""The summary of a coverage measurement."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import covered


def _file(percent: float, lines: int, statements: int, branches: int = 0, of: int = 0) -> dict[str, Any]:
    return {
        "summary": {
            "percent_covered": percent,
            "covered_lines": lines,
            "num_statements": statements,
            "covered_branches": branches,
            "num_branches": of,
        }
    }


def test_summary_lists_low_modules_lowest_first() -> None:
    found = {
        "files": {
            "client/pulsar_native/a.py": _file(94.9, 9, 10, 3, 4),
            "client/pulsar_native/b.py": _file(50.0, 5, 10),
            "client/pulsar_native/c.py": _file(95.0, 10, 10),
            "spark/pyspark_pulsar/d.py": _file(10.0, 1, 10),
        }
    }
    assert covered.summary(found) == [
        "client/pulsar_native: 80.0 % of 30 lines, 75.0 % of 4 branches",
        "spark/pyspark_pulsar: 10.0 % of 10 lines, 100.0 % of 0 branches",
        "provider: 100.0 % of 0 lines, 100.0 % of 0 branches",
        "below 95 %:  50.0 % client/pulsar_native/b.py",
        "below 95 %:  94.9 % client/pulsar_native/a.py",
    ]


@pytest.mark.parametrize(
    ("covered_lines", "complete", "failed", "told"),
    [
        (36, True, 1, "93.3 % of lines and branches: failed, 95 % are wanted"),
        (37, True, 0, "95.0 % of lines and branches: passed, 95 % are wanted"),
        (36, False, 0, "93.3 % of lines and branches, not judged: that takes the whole suites client, integration"),
        (0, True, 1, "33.3 % of lines and branches: failed"),
    ],
)
def test_judge_fails_client_below_wanted(covered_lines: int, complete: bool, failed: int, told: str) -> None:
    found = {
        "files": {
            "client/pulsar_native/a.py": _file(99.0, covered_lines, 38, 20, 22),
            "client/tests_of_another/b.py": _file(0.0, 0, 1000),
            "spark/pyspark_pulsar/d.py": _file(10.0, 1, 1000),
        }
    }
    failures, verdict = covered.judge(found, complete=complete)
    assert failures == failed and verdict.startswith(f"client/pulsar_native: {told}")


def test_judge_of_nothing_measured_fails() -> None:
    assert covered.judge({"files": {}}, complete=True)[0] == 1


@pytest.mark.parametrize(
    ("suites", "whole", "failed"),
    [
        (["client", "integration", "spark"], True, 1),
        (["client", "integration"], False, 0),
        (["client", "compat"], True, 0),
    ],
)
def test_report_judges_whole_suites_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    suites: list[str],
    whole: bool,
    failed: int,
) -> None:
    def coverage(*arguments: str) -> str:
        if arguments[0] == "json":
            found = {"files": {"client/pulsar_native/a.py": _file(50.0, 1, 2)}}
            (tmp_path / "coverage.json").write_text(json.dumps(found))
        return arguments[0]

    monkeypatch.setattr(covered, "RESULTS", tmp_path)
    monkeypatch.setattr(covered, "_coverage", coverage)
    assert covered.report(suites, whole=whole) == failed
    assert (tmp_path / "coverage.txt").read_text() == "report"
    assert ("failed" in capsys.readouterr().out) is bool(failed)


@pytest.mark.parametrize(
    ("with_started", "worker", "measures"),
    [(False, "gw0", False), (True, "gw0", True), (False, None, True)],
    ids=["make_test", "make_coverage", "controller"],
)
def test_started_processes_are_measured_if_wanted(
    monkeypatch: pytest.MonkeyPatch, with_started: bool, worker: str | None, measures: bool
) -> None:
    for name, value in covered.measuring({}, with_started=with_started).items():
        monkeypatch.setenv(name, value)
    # As coverage.py and pytest-xdist set them.
    monkeypatch.setenv("COVERAGE_PROCESS_CONFIG", "{}")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker is not None:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))
    assert ("COVERAGE_PROCESS_CONFIG" in os.environ) is measures


_FORKS = """
import os, sys, threading, time

sys.path.insert(0, {tests!r})
import support.covered_forks
import measured

def busy():
    while True:
        measured.outer()

threading.Thread(target=busy, daemon=True).start()
for number in range(60):
    child = os.fork()
    if not child:
        measured.outer()
        os._exit(0)
    deadline = time.monotonic() + 20
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            print(f"child {{number}} hangs", flush=True)
            os._exit(1)
        time.sleep(0.001)
os._exit(0)
"""


def test_forks_of_measured_processes_end(tmp_path: Path) -> None:
    """A child of a process whose other threads are measured goes on and saves what it has measured."""
    (tmp_path / "measured.py").write_text("def outer():\n    return inner()\n\ndef inner():\n    return 1\n")
    (tmp_path / "program.py").write_text(_FORKS.format(tests=str(Path(__file__).parents[1])))
    settings = "[run]\nbranch = true\nparallel = true\npatch = _exit\nsource = .\n"
    (tmp_path / ".coveragerc").write_text(settings)
    command = [sys.executable, "-m", "coverage", "run", "--rcfile", ".coveragerc", "program.py"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(list(tmp_path.glob(".coverage.*"))) == 61
