"""A pytest plugin that writes what every test of a run did, and which feature rows it proves, to .results/SUITE.json.

May not import anything of ours but the row ids: it runs in every environment. Rules: the suite is named by the variable
PULSAR_TEST_SUITE, which only whole-suite runs set (dev/test.py), so that a run of one test replaces no suite's result;
a test that names an unknown row is an error at collection. Where several processes share a suite (pytest-xdist), they
collect and run, and the first one, which only gathers their reports, writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = ROOT / "docs" / "rows.toml"
FOLDER = ROOT / ".results"
_ROWS = "proves"
_KIND = "kind"
# Fixtures of a real peer: a broker, Airflow's processes, Spark, the Java client, a browser.
_REAL = frozenset(
    {
        "broker", "own_broker", "secure_broker", "default_broker", "java", "relay", "topic", "namespace", "spark",
        "airflow", "airflow_home", "airflow_db", "pulsar_conn", "client", "admin", "browser",
    }
)  # fmt: skip
_FAKE = ("support.fake_broker", "support.http_peer", "support.producer_cores")


def known_rows() -> set[str]:
    """Return the ids of all feature rows."""
    return set(tomllib.loads(ROWS.read_text())["rows"])


def kind_of(item: pytest.Item) -> str:
    """Return which peer a test talks to: real, fake (one of tests/support), or unit for none."""
    if _REAL & set(getattr(item, "fixturenames", ())):
        return "real"
    names = vars(item.module).values() if isinstance(item, pytest.Function) else ()
    modules = {getattr(each, "__module__", None) or getattr(each, "__name__", "") for each in names}
    return "fake" if any(module in _FAKE for module in modules) else "unit"


def commit() -> str:
    """Return the commit under test, with a + when the tree differs from it; "unknown" without git."""
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return asked.stdout.strip()


class Results:
    """Gather the outcome of each test from its set-up, call and tear-down."""

    def __init__(self, suite: str, *, writes: bool) -> None:
        self._suite = suite
        self._writes = writes
        self._started = time.time()
        self._tests: dict[str, dict[str, object]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which rows each selected test proves and refuse ids that do not exist."""
        known = known_rows()
        for item in session.items:
            rows = sorted({str(row) for mark in item.iter_markers("proves") for row in mark.args})
            if unknown := sorted(set(rows) - known):
                raise pytest.UsageError(f"{item.nodeid} proves unknown rows: {', '.join(unknown)} (see docs/rows.toml)")
            # Reports carry them, to another process too.
            item.user_properties.append((_ROWS, rows))
            item.user_properties.append((_KIND, kind_of(item)))
            self._note(item.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Note what the processes that share the suite are going to run."""
        for name in ids:
            self._note(name)

    def _note(self, name: str) -> None:
        self._tests.setdefault(name, {"outcome": "not run", "rows": [], "seconds": 0.0})

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one phase's report: a failed phase fails the test, a skipped one skips it, a passed call passes it."""
        test = self._tests[report.nodeid]
        test["rows"] = dict(report.user_properties).get(_ROWS, test["rows"])
        test["kind"] = dict(report.user_properties).get(_KIND, "unit")
        test["seconds"] = round(float(str(test["seconds"])) + report.duration, 3)
        if report.failed:
            test["outcome"] = "failed"
            test["message"] = report.longreprtext[-2000:]
        elif report.skipped and test["outcome"] != "failed":
            test["outcome"] = "skipped"
            test["message"] = _reason(report)
        elif report.when == "call":
            # A test marked xfail that passes anyway reports itself as passed; it is no pass.
            test["outcome"] = "failed" if hasattr(report, "wasxfail") else "passed"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the suite's file."""
        if not self._writes:
            return
        FOLDER.mkdir(exist_ok=True)
        seconds = round(time.time() - self._started, 1)
        content = {
            "suite": self._suite,
            "commit": commit(),
            "exit": int(exitstatus),
            "seconds": seconds,
            "tests": self._tests,
        }
        target = FOLDER / f"{self._suite}.json"
        fresh = target.with_suffix(f".{os.getpid()}.new")
        fresh.write_text(json.dumps(content, indent=1) + "\n")
        fresh.replace(target)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return str(getattr(report, "wasxfail", report.longreprtext))


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector for this run."""
    if not config.option.collectonly:
        suite = os.environ.get("PULSAR_TEST_SUITE", "last")
        config.pluginmanager.register(Results(suite, writes=not hasattr(config, "workerinput")), "pulsar-results")
