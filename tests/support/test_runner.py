"""The runner of the tests: slow ones run only when they are asked for, and are no skips."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import covered
import test as runner
from environments import ROOT
from test import Suite

_TESTS = """
import pytest

def test_quick():
    pass

@pytest.mark.slow
def test_slow():
    assert False
"""
_CONFTEST = """
import pathlib
import support.results

support.results.FOLDER = pathlib.Path(__file__).parents[2] / ".results"
pytest_plugins = ["support.results"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project with one suite, "both", of a quick test and a slow one that fails."""
    (tmp_path / "tests" / "both").mkdir(parents=True)
    (tmp_path / ".results").mkdir()
    (tmp_path / "tests" / "both" / "test_both.py").write_text(_TESTS)
    (tmp_path / "tests" / "both" / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = slow\npythonpath = {ROOT / 'tests'}\n")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "RESULTS", tmp_path / ".results")
    monkeypatch.setattr(runner, "python_of", lambda name: Path(sys.executable))
    return tmp_path


def test_slow_tests_run_only_in_the_long_run(project: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PULSAR_TEST_SUITE"}
    suite = Suite("both", ("dev",))
    assert str(runner.run_suite(suite, [], env)) == "1 passed, 0 failed, 0 skipped"
    ran = json.loads((project / ".results" / "both.json").read_text())["tests"]
    assert list(ran) == ["tests/both/test_both.py::test_quick"]
    assert str(runner.run_suite(suite, [], env, slow=True)) == "1 passed, 1 failed, 0 skipped"
    assert str(runner.run_suite(suite, ["-m", "slow"], env)) == "0 passed, 1 failed, 0 skipped"


def test_suite_again_runs_in_the_long_run_or_by_name() -> None:
    def names(*words: str, **options: bool) -> list[str]:
        return [suite.name for suite in runner.choose(words, False, **options)]

    assert "provider" in names() and "provider-oldest" not in names()
    assert {"provider", "provider-oldest"} <= set(names(slow=True))
    assert names("provider-oldest") == ["provider-oldest"]
    (again,) = runner.choose(["provider-oldest"], False)
    assert again.folder == "tests/provider"


@pytest.mark.parametrize(
    ("words", "measured", "judged"),
    [
        ([], {"client", "integration", "compat"}, True),
        (["client", "compat"], set(), None),
        (["--coverage", "client"], {"client"}, True),
        (["--", "-k", "batch"], set(), None),
        (["--coverage", "--", "-k", "batch"], {suite.name for suite in runner.SUITES if not suite.again}, False),
    ],
)
def test_coverage_of_whole_runs_by_default(
    monkeypatch: pytest.MonkeyPatch, words: list[str], measured: set[str], judged: bool | None
) -> None:
    seen: dict[str, Any] = {}

    def run(suites: Any, more: Any, **options: Any) -> runner.Count:
        seen["measured"] = set(options["measured"])
        return runner.Count(passed=1)

    def report(suites: Any, *, whole: bool) -> int:
        seen["judged"] = whole
        return 1

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(covered, "begin", lambda: None)
    monkeypatch.setattr(covered, "report", report)
    # A client with too few lines covered fails the run.
    assert runner.main(words) == (0 if judged is None else 1)
    assert seen == {"measured": measured, **({} if judged is None else {"judged": judged})}
