"""Types of the public API as mypy and pyright see them in a program (basedpyright: pyright with its runtime)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("typed_programs")
Findings = dict[str, dict[int, list[str]]]


def by_mypy() -> Findings:
    """Return mypy's errors in the programs, by file and line."""
    command = [sys.executable, "-m", "mypy", "--strict", "--output", "json", str(PROGRAMS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Findings = {}
    for line in done.stdout.splitlines():
        if line.startswith("{") and (error := json.loads(line))["severity"] == "error":
            found.setdefault(Path(error["file"]).name, {}).setdefault(error["line"], []).append(error["message"])
    return found


def by_pyright() -> Findings:
    """Return pyright's errors in the programs, by file and line."""
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "-p",
        str(PROGRAMS),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(PROGRAMS.glob("*.py")))
    found: Findings = {}
    for error in report["generalDiagnostics"]:
        line = error["range"]["start"]["line"] + 1
        found.setdefault(Path(error["file"]).name, {}).setdefault(line, []).append(error["message"])
    return found


@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_typed_programs_have_marked_errors_only(checker: Callable[[], Findings]) -> None:
    found = checker()
    lines = (PROGRAMS / "wrong_program.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# wrong: " in line}
    assert found.pop("wrong_program.py").keys() == marked and len(marked) >= 15
    assert found == {}
