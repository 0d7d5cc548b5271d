"""The runner of the tests: slow ones run only when they are asked for, and are no skips."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import covered
import environments
import test as runner
from environments import ROOT
from support.until import wait_until
from test import Suite

_TESTS = """
import pytest

def test_quick():
    pass

@pytest.mark.slow
def test_slow():
    assert False
"""
_MEETING = """
import pathlib, time

def test_meeting():
    place = pathlib.Path("{place}")
    (place / "{name}").touch()
    until = time.monotonic() + 60
    while not (place / "{other}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert "{name}" == "one"
"""
_WAITING = """
import os, pathlib, time

def test_waiting():
    (pathlib.Path("{place}") / "{name}.pid").write_text(str(os.getpid()))
    time.sleep(60)
"""
_STUCK = """
import time

def test_stuck():
    time.sleep(100)
"""
_LIMITED = """
import importlib.util

spec = importlib.util.spec_from_file_location("limits", "{root}/tests/conftest.py")
limits = importlib.util.module_from_spec(spec)
spec.loader.exec_module(limits)
limits._TEAR_DOWN_SECONDS = 1
pytest_configure, pytest_unconfigure = limits.pytest_configure, limits.pytest_unconfigure
pytest_runtest_protocol, pytest_runtest_teardown = limits.pytest_runtest_protocol, limits.pytest_runtest_teardown
"""
_STUCK_TEAR_DOWN = """
import threading, time
import pytest

@pytest.fixture
def peer():
    yield
    stuck_in_tear_down()

def stuck_in_tear_down():
    threading.Event().wait(60)

def test_failing(peer):
    assert False
"""
_STUCK_IN_C = """
def test_in_c():
    # It holds the interpreter for hours: no signal handler runs.
    sum(range(10**13))
"""
_INTERRUPTED = """
import pathlib, signal, sys

sys.path.insert(0, "{dev}")
import test as runner

place = pathlib.Path("{place}")
runner.ROOT, runner.RESULTS = place, place / ".results"
runner.python_of = lambda name: pathlib.Path(sys.executable)
runner.environments.make = lambda *names: None
runner.run_checks = lambda *, shown: runner.Count()
runner.covered.SUITES = frozenset()
runner.SUITES = tuple(runner.Suite(name, ("dev",)) for name in ("one", "two", "three"))
sys.exit(runner.main(["--jobs", "2"]))
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
    monkeypatch.setattr(environments, "make", lambda *names: None)
    return tmp_path


def outside_suites() -> dict[str, str]:
    """Return the environment without the suite these tests are of, whose results it names."""
    return {name: value for name, value in os.environ.items() if name != "PULSAR_TEST_SUITE"}


def test_slow_tests_run_only_in_the_long_run(project: Path) -> None:
    env = outside_suites()
    suite = Suite("both", ("dev",))
    assert str(runner.run_suite(suite, [], env)) == "1 passed, 0 failed, 0 skipped"
    ran = json.loads((project / ".results" / "both.json").read_text())["tests"]
    assert list(ran) == ["tests/both/test_both.py::test_quick"]
    assert str(runner.run_suite(suite, [], env, slow=True)) == "1 passed, 1 failed, 0 skipped"
    assert str(runner.run_suite(suite, ["-m", "slow"], env)) == "0 passed, 1 failed, 0 skipped"


def test_suite_with_own_brokers_stops_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others, stopped = project / "brokers", []
    for name in ("both-gw1", "both-gw2", "secure"):
        (others / name).mkdir(parents=True)
        (others / name / "broker.json").touch()

    class Stopped:
        def __init__(self, folder: Path) -> None:
            self._folder = folder

        def stop(self) -> None:
            stopped.append(self._folder.name)

    monkeypatch.setattr(runner, "Standalone", Stopped)
    env = outside_suites()
    env["PULSAR_TEST_BROKERS"] = str(others)
    runner.run_suite(Suite("both", ("dev",)), [], env)
    assert stopped == []
    runner.run_suite(Suite("both", ("dev",), has_own_brokers=True), [], env)
    assert stopped == ["both-gw1", "both-gw2"]


def test_suites_run_beside_each_other(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of two suites waits for the other to have begun; they and the checks show their output one by one."""
    for name, other in (("one", "two"), ("two", "one")):
        folder = project / "tests" / name
        folder.mkdir()
        (folder / "conftest.py").write_text(_CONFTEST)
        (folder / f"test_{name}.py").write_text(_MEETING.format(name=name, other=other, place=project))
    monkeypatch.setattr(runner, "SUITES", (Suite("one", ("dev",)), Suite("two", ("dev",))))
    monkeypatch.setenv("PULSAR_TEST_SERVICE_URL", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("PULSAR_TEST_ADMIN_URL", "http://127.0.0.1:1")
    # As checks that fail do.
    monkeypatch.setattr(runner, "__file__", str(project / "test.py"))
    (project / "checks.py").write_text("print('check: format: FAILED')\nraise SystemExit(2)\n")
    total = runner.run(runner.SUITES, [], with_checks=True, slow=False, jobs=2)
    assert str(total) == "1 passed, 2 failed, 0 skipped"
    shown = capfd.readouterr().out
    assert "1 passed" in shown and "1 failed" in shown
    # pytest itself takes some.
    assert all(float(used) > 0 for used in re.findall(r"([\d.]+) s of CPU", shown)) and shown.count("of CPU") == 2
    assert {"test: one: starts", "test: two: starts", "check: format: FAILED"} <= set(shown.splitlines())


def test_interrupt_ends_suites_beside_each_other(project: Path, tmp_path: Path) -> None:
    """Ctrl-C ends both suites and all they started, and nothing is started any more."""
    program = tmp_path / "program.py"
    for name in ("one", "two", "three"):
        folder = project / "tests" / name
        folder.mkdir()
        (folder / "conftest.py").write_text(_CONFTEST)
        (folder / f"test_{name}.py").write_text(_WAITING.format(name=name, place=project))
    program.write_text(_INTERRUPTED.format(dev=ROOT / "dev", place=project))
    env = outside_suites()
    env |= {"PULSAR_TEST_SERVICE_URL": "pulsar://127.0.0.1:1", "PULSAR_TEST_ADMIN_URL": "http://127.0.0.1:1"}
    process = subprocess.Popen([sys.executable, str(program)], env=env, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: (project / "one.pid").exists() and (project / "two.pid").exists())
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 130, output
    for name in ("one", "two"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((project / f"{name}.pid").read_text()), 0)
    assert not (project / "three.pid").exists()


def test_failed_environment_ends_other_suites(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each suite makes its own environments when it begins, while others run already."""
    for name in ("one", "two", "three"):
        folder = project / "tests" / name
        folder.mkdir()
        (folder / "conftest.py").write_text(_CONFTEST)
        (folder / f"test_{name}.py").write_text(_WAITING.format(name=name, place=project))

    def make(*names: str) -> None:
        if "no-environment" in names:
            wait_until((project / "one.pid").exists)
            raise environments.SetupError("no environment")

    monkeypatch.setattr(environments, "make", make)
    monkeypatch.setattr(runner, "_stopping", threading.Event())
    monkeypatch.setenv("PULSAR_TEST_SERVICE_URL", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("PULSAR_TEST_ADMIN_URL", "http://127.0.0.1:1")
    suites = [Suite(name, needs) for name, needs in (("one", ("dev",)), ("two", ("no-environment",)), ("three", ()))]
    with pytest.raises(environments.SetupError, match="no environment"):
        runner.run(suites, [], with_checks=False, slow=False, jobs=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((project / "one.pid").read_text()), 0)
    assert not (project / "three.pid").exists()


def test_suite_without_output_is_ended(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A suite that does not go on fails, with the stack of each of its processes, and the others still run."""
    for name, text in (("one", _STUCK), ("two", _TESTS)):
        folder = project / "tests" / name
        folder.mkdir()
        (folder / "conftest.py").write_text(_CONFTEST)
        (folder / f"test_{name}.py").write_text(text)
    monkeypatch.setattr(runner, "SUITES", tuple(Suite(name, ("dev",)) for name in ("one", "two")))
    monkeypatch.setattr(runner, "_PROGRESS_SECONDS", 0.2)
    monkeypatch.setattr(runner, "_IDLE_SECONDS", 25)
    monkeypatch.setattr(runner, "_failures", [])
    monkeypatch.setenv("PULSAR_TEST_SERVICE_URL", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("PULSAR_TEST_ADMIN_URL", "http://127.0.0.1:1")
    total = runner.run(runner.SUITES, [], with_checks=False, slow=False, jobs=2)
    assert str(total) == "1 passed, 1 failed, 0 skipped"
    shown = capfd.readouterr().out
    assert "test_one.py" in shown and "in test_stuck" in shown
    runner._show_failures()
    assert "FAILED one: printed nothing for 25 s" in capfd.readouterr().out


def test_failures_are_shown_at_the_end(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "_failures", [])
    env = outside_suites()
    runner.run_suite(Suite("both", ("dev",)), [], env, slow=True)
    capfd.readouterr()
    runner._show_failures()
    shown = capfd.readouterr().out
    assert shown.startswith("test: FAILED tests/both/test_both.py::test_slow\n") and "AssertionError" in shown


@pytest.mark.parametrize(
    ("text", "place"), [(_STUCK_TEAR_DOWN, "in stuck_in_tear_down"), (_STUCK_IN_C, "in test_in_c")], ids=["late", "c"]
)
def test_stuck_test_ends_its_process(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "conftest.py").write_text(_LIMITED.format(root=ROOT))
    (tmp_path / "test_stuck.py").write_text(text)
    settings = f"timeout = 2\ntimeout_method = signal\npythonpath = {ROOT / 'tests'} {ROOT / 'dev'}\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 1 and "1 failed" not in ended.stdout
    assert "Timeout (0:00:0" in ended.stderr and place in ended.stderr


def test_suite_again_runs_in_the_long_run_or_by_name() -> None:
    def names(*words: str, **options: bool) -> list[str]:
        return [suite.name for suite in runner.choose(words, False, **options)]

    assert "provider" in names() and not {"provider-oldest", "spark-oldest"} & set(names())
    assert {"provider", "provider-oldest", "spark-oldest"} <= set(names(slow=True))
    assert names("provider-oldest") == ["provider-oldest"]
    (again,) = runner.choose(["provider-oldest"], False)
    assert again.folder == "tests/provider"


@pytest.mark.parametrize(
    ("words", "measured", "judged"),
    [
        ([], {"client", "integration"}, True),
        (["--jobs", "1"], {"client", "integration"}, True),
        (["client", "compat"], set(), None),
        (["--coverage", "client"], {"client"}, True),
        (["--", "-k", "batch"], set(), None),
        (["--coverage", "--", "-k", "batch"], {suite.name for suite in runner.SUITES if not suite.again}, False),
    ],
)
def test_coverage_of_whole_runs_by_default(
    project: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], measured: set[str], judged: bool | None
) -> None:
    """The client's coverage is judged once, when all suites that are measured have ended."""
    seen: list[str] = []

    def run_suite(suite: Suite, more: Any, env: dict[str, str], **options: Any) -> runner.Count:
        if covered.is_on(env):
            seen.append(suite.name)
        return runner.Count(passed=1)

    def report(suites: Any, *, whole: bool) -> int:
        assert set(suites) == set(seen) == measured
        seen.append(f"judged: {whole}")
        return 1

    monkeypatch.setattr(runner, "run_suite", run_suite)
    monkeypatch.setattr(runner, "run_checks", lambda shown=True: runner.Count())
    monkeypatch.setattr(runner, "_make_broker", lambda *names: None)
    monkeypatch.setattr(runner, "choose", lambda names, *_, slow: choose_all(names))
    monkeypatch.setattr(covered, "begin", lambda: None)
    monkeypatch.setattr(covered, "report", report)
    monkeypatch.setenv("PULSAR_TEST_SERVICE_URL", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("PULSAR_TEST_ADMIN_URL", "http://127.0.0.1:1")
    # A client with too few lines covered fails the run.
    assert runner.main(words) == (0 if judged is None else 1)
    assert sorted(seen) == sorted([*measured, *([] if judged is None else [f"judged: {judged}"])])


def choose_all(names: Any) -> list[Suite]:
    """Return the suites named, or those of a whole run, whether their folders are here or not."""
    return [suite for suite in runner.SUITES if (suite.name in names if names else not suite.again)]
