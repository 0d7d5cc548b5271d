"""A fake broker, and both implementations of the hot codecs, for the tests of what goes through them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

import environments
from pulsar_native.wire import _impl as hot
from support.fake_broker import FakeBroker

# Where it could be built it must be there: a compiled codec that is missing by mistake makes its tests fail.
NAMES = ("python",) if environments.no_speedups() and "compiled" not in hot.available() else ("python", "compiled")
collect_ignore = [] if "compiled" in NAMES else ["wire/test_speedups.py"]


@pytest.fixture(scope="module", params=NAMES)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a module's tests with each implementation."""
    if request.param not in hot.available():
        pytest.fail("The compiled codec is not built: dev/setup dev, or .envs/dev/bin/python client/hatch_build.py")
    hot.select(request.param)
    yield request.param
    hot.select(os.environ.get(hot.VARIABLE) or None)


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    """Give a broker that says what the test wants."""
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def west_of_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test on a machine whose local time is five hours behind UTC."""
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
