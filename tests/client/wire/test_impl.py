"""Which codec is in use, and who decides: each program of its own, since it is decided when the client is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pulsar_native.diagnostics import Diagnosis
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.wire import _impl as hot

SHOW = "from pulsar_native.diagnostics import codec; print(codec())"
# As it is where nothing was built: what is None in sys.modules cannot be imported.
HIDE = "import sys; sys.modules['pulsar_native.wire._speedups'] = None; "


def said(program: str, chosen: str | None) -> str:
    """Return the last line of what a program says."""
    env = {name: value for name, value in os.environ.items() if name != hot.VARIABLE}
    if chosen is not None:
        env[hot.VARIABLE] = chosen
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def test_the_fastest_there_is_unless_told_otherwise() -> None:
    assert said(SHOW, None) == said(SHOW, "") == hot.available()[-1]
    assert said(SHOW, "python") == "python"


def test_what_was_built_from_another_version_is_done_without() -> None:
    older = "import sys, types; sys.modules['pulsar_native.wire._speedups'] = types.ModuleType('_speedups'); "
    assert said(older + SHOW, None) == "python"
    assert "no compiled codec" in said(older + SHOW, "compiled")


def test_what_was_not_built_is_done_without() -> None:
    assert said(HIDE + SHOW, None) == said(HIDE + SHOW, "python") == "python"


def test_what_was_asked_for_and_is_not_there_is_an_error_that_tells_the_fix() -> None:
    error = said(HIDE + SHOW, "compiled")
    assert error.startswith("pulsar_native.exceptions.InvalidConfiguration") and "PULSAR_NATIVE_IMPL" in error
    assert "no compiled codec" in error and "unset the variable" in error


def test_other_values_are_an_error() -> None:
    error = said(SHOW, "Cython")
    assert error.startswith("pulsar_native.exceptions.InvalidConfiguration") and "'Cython'" in error
    with pytest.raises(InvalidConfiguration, match="python or compiled"):
        hot.select("fast")


@pytest.mark.usefixtures("implementation")
def test_all_functions_are_of_one_implementation() -> None:
    homes = {getattr(hot, function).__module__.rpartition(".")[2] for function in hot.FUNCTIONS}
    assert homes == ({"_speedups"} if hot.name == "compiled" else {"codec", "_impl"})
    assert Diagnosis(()).codec == hot.name
