"""Wheels with the compiled modules: what is in them, what they are called, and when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import environments

CLIENT = Path(__file__).resolve().parents[2] / "client"
# Compiling takes a minute where other work takes most of the processors.
pytestmark = pytest.mark.timeout(360)


def build(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel, little optimized, as that takes most of the time, and unmeasured: coverage would trace Cython."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "PULSAR_NATIVE_IMPL" and not name.startswith("COVERAGE_")
    }
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    env = {**kept, "CFLAGS": "-O1", **env}
    return subprocess.run(command, cwd=CLIENT, env=env, capture_output=True, text=True, timeout=300)


def test_a_wheel_has_the_compiled_module_where_there_is_a_compiler(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        native = [each for each in packed.infolist() if each.filename.endswith((".so", ".pyd", ".c", ".o"))]
    if environments.no_speedups():
        assert wheel.name.endswith("-py3-none-any.whl") and not native
        return
    assert not wheel.name.endswith("-none-any.whl")
    assert sorted(module.filename.partition(".")[0] for module in native) == [
        "pulsar_native/_message_speedups",
        "pulsar_native/wire/_speedups",
    ]
    # Without debugging symbols; with them it is over a megabyte.
    assert all(module.file_size < 500_000 for module in native)


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"])
def test_a_compiled_wheel_that_was_asked_for_is_made_or_it_is_an_error(compiler: str, tmp_path: Path) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    done = build(tmp_path / "dist", CC=compiler, PULSAR_NATIVE_IMPL="compiled", TMPDIR=str(temporary))
    assert done.returncode != 0 and not list(tmp_path.glob("dist/*")) and not list(temporary.iterdir())


def test_building_in_place_tells_why_it_cannot() -> None:
    script = [sys.executable, str(CLIENT / "hatch_build.py")]
    done = subprocess.run(script, env={**os.environ, "CC": "/nowhere/cc"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "/nowhere/cc" in done.stderr.splitlines()[-1]
