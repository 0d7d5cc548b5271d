#!/usr/bin/env python3
"""Run the checks that need no broker: format, lint, types, the directions of imports, and that the
documentation builds without a warning.

Standard library only; the tools live in the environments. Rule: every check runs even when one before it failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import environments
from environments import ENVS, ROOT, python_of


@dataclass(frozen=True)
class Check:
    """One command and its name in the progress lines."""

    name: str
    command: tuple[str, ...]


def _tool(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(ENVS / "dev" / "bin" / name), *arguments)


def _types(what: str, env: str, *targets: str) -> Check:
    """Check types with the packages of the environment the code runs in."""
    return Check(f"types of {what}", _tool("mypy", "--python-executable", str(python_of(env)), *targets))


_ELSEWHERE = r"/(consuming|publish_tasks|waiting|stream_driver|secret_driver|spark_cluster|screenshots_browser)\.py$"

CHECKS = (
    Check("format", _tool("ruff", "format", "--check", "--output-format", "concise", ".")),
    Check("lint", _tool("ruff", "check", "--quiet", "--output-format", "concise", ".")),
    _types("client", "dev", "-p", "pulsar_native"),
    _types("spark", "spark", "-p", "pyspark_pulsar"),
    _types("provider", "airflow", "-p", "airflow_provider_pulsar"),
    # What imports Airflow or Spark is read with their packages.
    _types("dev and test support", "dev", "--exclude", _ELSEWHERE, "dev", "tests/support", "tests/conftest.py"),
    _types("compatibility programs", "dev", "tests/compat"),
    _types(
        "test support of Airflow",
        "airflow",
        "tests/support/consuming.py",
        "tests/support/publish_tasks.py",
        "tests/support/waiting.py",
    ),
    _types(
        "test support of Spark",
        "spark",
        "tests/support/stream_driver.py",
        "tests/support/secret_driver.py",
        "tests/support/spark_cluster.py",
    ),
    Check("imports", _tool("lint-imports", "--no-logo")),
    # Half a minute the first time; later only pages that changed are read.
    Check("docs", (sys.executable, str(ROOT / "dev" / "docs.py"))),
)


def link_provider() -> None:
    """Create the link by which type checkers find provider/ under its import name."""
    link = ROOT / ".typing" / "airflow_provider_pulsar"
    if not link.is_symlink():
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to("../provider", target_is_directory=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks (or those whose names begin with a word given) and return how many failed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    environments.make("dev", "spark", "airflow")
    link_provider()
    paths = os.pathsep.join(str(ROOT / part) for part in ("client", "spark", ".typing"))
    failed = 0
    for check in CHECKS:
        if words and not any(check.name.startswith(word) for word in words):
            continue
        started = time.monotonic()
        # PYTHONPATH is for the import linter, which looks for the packages as an importer would.
        env = {**os.environ, "PYTHONPATH": paths} if check.name == "imports" else None
        done = subprocess.run(
            check.command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        passed = done.returncode == 0
        failed += not passed
        print(f"check: {check.name}: {'ok' if passed else 'FAILED'} ({time.monotonic() - started:.1f} s)", flush=True)
        if not passed:
            print(done.stdout.rstrip(), flush=True)
    return failed


if __name__ == "__main__":
    try:
        sys.exit(1 if main() else 0)
    except environments.SetupError as error:
        sys.exit(f"check: {error}")
