"""The client without native code: its own is optional, and it runs from a zip where no extension module can be had."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import pulsar_native
from support.brokers import Broker, NewTopic

PACKAGE = Path(pulsar_native.__file__).parent
PROJECT = PACKAGE.parent / "pyproject.toml"

PROGRAM = """
import importlib.abc, importlib.machinery, sys, warnings

class NoExtensions(importlib.abc.MetaPathFinder):
    # Extension modules beside the interpreter's own stand for what a zip, or a Python of tomorrow, does not have.
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("crc32c", "lz4", "zstandard", "cramjam", "pyarrow", "numpy", "fastavro"):
            raise ImportError(name)
        if name.startswith("google._upb"):
            raise ImportError(name)
        return None

sys.meta_path.insert(0, NoExtensions())
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore", RuntimeWarning)
import pulsar_native as pulsar
assert ".zip" in pulsar.__file__, pulsar.__file__
with pulsar.Client(sys.argv[2]) as client:
    producer = client.create_producer(sys.argv[3], batching_enabled=True, compression_type=pulsar.CompressionType.ZLib)
    reader = client.create_reader(sys.argv[3], pulsar.MessageId.earliest)
    producer.send_many([b"%d" % number for number in range(500)])
    assert [reader.read_next(20_000).data() for _ in range(500)] == [b"%d" % number for number in range(500)]
    assert producer.stats().total_acks_received == 500
ours = [name for name in sys.modules if name.startswith("pulsar_native")]
native = [name for name in ours if (getattr(sys.modules[name], "__file__", None) or "").endswith((".so", ".pyd"))]
assert len(ours) > 50 and not native, native
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == "python"
print("ran in pure Python")
"""


@pytest.mark.proves("N11")
def test_a_zip_without_any_extension_module_publishes_and_reads(
    broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    archive = tmp_path / "pulsar_native.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in PACKAGE.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                packed.write(path, path.relative_to(PACKAGE.parent))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(archive), broker.service_url, topic()],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stdout) == (0, "ran in pure Python\n"), done.stderr


@pytest.mark.proves("N11")
@pytest.mark.parametrize("why", ["wanted", "no compiler"])
def test_the_wheel_is_one_for_all_pythons_and_machines(why: str, tmp_path: Path) -> None:
    # The variable may be set for the tests themselves.
    env = {name: value for name, value in os.environ.items() if name != "PULSAR_NATIVE_IMPL"}
    env |= {"PULSAR_NATIVE_IMPL": "python"} if why == "wanted" else {"CC": "/nowhere/cc"}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=PROJECT.parent, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert ("built in plain Python" in done.stdout + done.stderr) == (why == "no compiler")
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        kinds = {Path(name).suffix for name in packed.namelist() if name.startswith("pulsar_native/")}
    # What the compiled module is made from is no native code yet.
    assert ".py" in kinds and kinds <= {".py", ".pyi", ".pyx", ".proto", ".typed"}, kinds
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert "<" not in project["requires-python"]
    assert not any("<" in each for each in project["dependencies"])
