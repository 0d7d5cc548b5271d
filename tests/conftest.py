"""Give every test the shared fixtures (support/brokers.py, relay.py, java_peer.py) and record the results."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext

import pytest

import support.covered_forks  # noqa: F401 - before anything of ours
from environments import ROOT, alone

if os.environ.get("PULSAR_TEST_COVERAGE") == "pytest" and "PYTEST_XDIST_WORKER" in os.environ:
    # The processes that tests start run what others run too, and to load and save coverage in each takes as long as
    # their work does.
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

pytest_plugins = ["support.results", "support.brokers", "support.relay", "support.java_peer"]

# Marks that a test has because of what it uses, directly or through another fixture: mark -> fixtures.
NEEDS = {
    "broker": {"broker", "default_broker", "secure_broker", "own_broker", "java"},
    "spark": {"spark"},
}


# Files that take minutes though they have few tests: run last, one would keep the other processes of its suite waiting.
LONG_FILES = (
    "client/jobs/test_matching_stream.py",
    "client/test_hatch_build.py",
    "client/test_init.py",
    "client/test_typing.py",
    "client/wire/test_impl.py",
    "integration/test_benchmark_peers.py",
    "integration/test_clusters.py",
    "integration/test_faults_consuming.py",
    "integration/test_transaction_faults.py",
    "spark/test_auto_values.py",
    "spark/test_benchmark.py",
    "spark/test_cluster.py",
    "spark/test_encryption.py",
    "spark/test_scan.py",
    "spark/test_secrets.py",
    "spark/test_streaming.py",
    "spark/test_writing.py",
)


def _alone_in_run() -> AbstractContextManager[None]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return nullcontext()
    return alone(ROOT / ".results", os.environ["PYTEST_XDIST_TESTRUNUID"], work="collection")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests in one process of a suite after another, and without looking for garbage, of which there is none.

    The first one compiles the test files, with their assertions rewritten, and the others read what it has stored.
    What is there afterwards lives as long as the process: later looks for garbage leave it out.
    """
    gc.disable()
    try:
        with _alone_in_run():
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures they use, and put the long files first, then those with the most tests."""
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (not item.path.as_posix().endswith(LONG_FILES), -sizes[item.path]))
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for mark, fixtures in NEEDS.items():
            if used & fixtures:
                item.add_marker(mark)


# Beyond a test's own time-out, for its tear-down.
_TEAR_DOWN_SECONDS = 180
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error stream that pytest captures during tests, and the order of files among processes."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close it."""
    os.close(config.stash[_STDERR])


def _end_process_later(item: pytest.Item) -> None:
    """Have every stack printed and the process ended, unless this is cancelled in time."""
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark is not None and mark.args else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + _TEAR_DOWN_SECONDS, exit=True, file=item.config.stash[_STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Bound what pytest-timeout does not: a call into C that never returns, and the tear-down of a test that failed.

    Its timer is raised once, in the main thread as soon as that runs Python, and is cancelled when the test fails.
    """
    _end_process_later(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Start the bound again, which pytest cancels with its own when a test fails."""
    _end_process_later(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Leave property tests out of a measurement of coverage: tracing doubles their time, for lines that others run."""
    coverage = sys.modules.get("coverage")
    # A state machine's test is a method of unittest.
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False) or item.name == "runTest"
    measured = coverage.Coverage.current() if coverage is not None and is_property else None
    if measured is None:
        return (yield)
    exit_at_once = os._exit
    measured.stop()
    try:
        return (yield)
    finally:
        measured.start()
        # Each start wraps it once more: a process that ends by it would save its measurement as many times.
        setattr(os, "_exit", exit_at_once)  # noqa: B010 - an assignment is an error to mypy


try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the environments of Spark, Airflow and the browser have no property tests
    pass
else:
    # Two busy cores say nothing about the code: no test fails because an example took long.
    settings.register_profile("long", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
    # Examples are drawn at random: what one run does not try, another one does.
    for _profile, _examples in (("ordinary", 30), ("quick", 10)):
        settings.register_profile(_profile, parent=settings.get_profile("long"), max_examples=_examples)
    settings.load_profile(os.environ.get("PULSAR_TEST_PROFILE", "ordinary"))
