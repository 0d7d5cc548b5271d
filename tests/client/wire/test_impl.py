"""Selection of the codec, each test in a process of its own, since it happens at import."""

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
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=240)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def test_impl_default_is_compiled_if_built() -> None:
    assert said(SHOW, None) == said(SHOW, "") == hot.available()[-1]
    assert said(SHOW, "python") == "python"


def test_impl_other_version_falls_back() -> None:
    older = "import sys, types; sys.modules['pulsar_native.wire._speedups'] = types.ModuleType('_speedups'); "
    assert said(older + SHOW, None) == "python"
    assert "no compiled codec" in said(older + SHOW, "compiled")


def test_impl_not_built_falls_back() -> None:
    assert said(HIDE + SHOW, None) == said(HIDE + SHOW, "python") == "python"


def test_impl_requested_but_missing_raises() -> None:
    error = said(HIDE + SHOW, "compiled")
    assert error.startswith("pulsar_native.exceptions.InvalidConfiguration") and "PULSAR_NATIVE_IMPL" in error
    assert "no compiled codec" in error and "unset the variable" in error


def test_impl_invalid_value_raises() -> None:
    error = said(SHOW, "Cython")
    assert error.startswith("pulsar_native.exceptions.InvalidConfiguration") and "'Cython'" in error
    with pytest.raises(InvalidConfiguration, match="python or compiled"):
        hot.select("fast")


@pytest.mark.usefixtures("implementation")
def test_impl_functions_of_one_implementation() -> None:
    homes = {getattr(hot, function).__module__.rpartition(".")[2] for function in hot.FUNCTIONS}
    assert homes == ({"_speedups"} if hot.name == "compiled" else {"codec", "_impl", "message_id"})
    assert Diagnosis(()).codec == hot.name
