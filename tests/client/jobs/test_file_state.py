"""State of jobs in a file and in memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_native.jobs.failures import JobFailed
from pulsar_native.jobs.file_state import FileState, MemoryState
from support.processes import child_process


def test_file_state_keeps_named_objects(tmp_path: Path) -> None:
    path = str(tmp_path / "a folder" / "state.json")
    one, two = FileState(path, "one"), FileState(path, "two")
    assert one.get() is None
    one.delete()
    one.set({"a": 1})
    two.set({"b": [2]})
    assert (FileState(path, "one").get(), two.get()) == ({"a": 1}, {"b": [2]})
    one.delete()
    assert (one.get(), two.get()) == (None, {"b": [2]})
    assert [each.name for each in Path(path).parent.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"[]", "holds no JSON object"), (b"", "is not JSON: Expecting value"), (b'"\xff', "is not JSON: .*utf-8")],
)
def test_file_state_of_other_content_raises(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} {words}"):
        FileState(str(path), "a").get()


HOLD = """
import sys
from pulsar_native.jobs.file_state import FileState
with FileState(sys.argv[1], "a").lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_file_state_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = str(tmp_path / "s" / "state.json")
    command = [sys.executable, "-c", HOLD, path]
    with child_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(JobFailed, match="another process is working with"), FileState(path, "b").lock():
            pass
        process.kill()
    with FileState(path, "b").lock():
        pass


def test_memory_state_keeps_one_object() -> None:
    state = MemoryState()
    assert state.get() is None
    state.set({"a": 1})
    assert state.get() == {"a": 1}
    state.delete()
    assert state.get() is None
