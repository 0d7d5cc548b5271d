"""Give every test the shared fixtures (support/brokers.py, relay.py, java_peer.py) and record the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator

import pytest

pytest_plugins = ["support.results", "support.brokers", "support.relay", "support.java_peer"]

# Marks that a test has because of what it uses, directly or through another fixture: mark -> fixtures.
NEEDS = {
    "broker": {"broker", "default_broker", "secure_broker", "own_broker", "java"},
    "spark": {"spark"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures they use, so that `-m "not broker"` needs no mark by hand."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for mark, fixtures in NEEDS.items():
            if used & fixtures:
                item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Leave property tests out of a measurement of coverage: tracing doubles their time, for lines that others run."""
    coverage = sys.modules.get("coverage")
    # A state machine's test is a method of unittest.
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False) or item.name == "runTest"
    measured = coverage.Coverage.current() if coverage is not None and is_property else None
    if measured is None:
        return (yield)
    measured.stop()
    try:
        return (yield)
    finally:
        measured.start()


try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the environments of Spark, Airflow and the browser have no property tests
    pass
else:
    # Two busy cores say nothing about the code: no test fails because an example took long.
    settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    # For `make test-quick`: the same properties, tried with a tenth of the examples.
    settings.register_profile("quick", parent=settings.get_profile("house"), max_examples=10)
    settings.load_profile(os.environ.get("PULSAR_TEST_PROFILE", "house"))
