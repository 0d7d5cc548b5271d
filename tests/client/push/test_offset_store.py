"""Offset store of a broadcasting member: always one complete file, and a backup."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_native.exceptions import InvalidConfiguration, NotAllowedError
from pulsar_native.message_id import MessageId
from pulsar_native.push.offset_store import OffsetStore

FIRST = {"t": MessageId(0, 1, 1)}
SECOND = {"t": MessageId(0, 1, 2)}


@pytest.mark.proves("C214")
def test_offset_store_file_and_backup(tmp_path: Path) -> None:
    store = OffsetStore(str(tmp_path), "host@one", "group")
    assert store.load() == {}
    store.save(FIRST)
    store.save(SECOND)
    folder = tmp_path / "host@one" / "group"
    assert sorted(path.name for path in folder.iterdir()) == ["offsets.json", "offsets.json.bak"]
    assert OffsetStore(str(tmp_path), "host@one", "group").load() == SECOND
    # Two crashes: between the two renames, and while the disk was written.
    store.path.unlink()
    assert store.load() == FIRST
    store.path.write_text('{"offsetTab')
    assert store.load() == FIRST


def test_offset_store_unchanged_not_written(tmp_path: Path) -> None:
    store = OffsetStore(str(tmp_path), "m", "g")
    store.save(FIRST)
    store.path.unlink()
    store.save(dict(FIRST))
    assert not store.path.exists()


@pytest.mark.proves("C214")
def test_offset_store_damaged_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = OffsetStore(str(tmp_path), "m", "g")
    store.save(FIRST)
    store.path.write_text("x")
    with caplog.at_level(logging.WARNING), pytest.raises(InvalidConfiguration, match="remove the damaged files"):
        store.load()
    assert str(store.path) in caplog.text


@pytest.mark.proves("C214")
def test_offset_store_damaged_file_is_no_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = OffsetStore(str(tmp_path), "m", "g")
    store.save(FIRST)
    store.save(SECOND)
    store.path.write_text("x")
    store = OffsetStore(str(tmp_path), "m", "g")
    assert store.load() == FIRST
    third = {"t": MessageId(0, 1, 3)}
    rename, found = Path.replace, list[object]()

    def then_crash(path: Path, target: Path) -> None:
        rename(path, target)
        # What a start would find after a crash at this moment.
        found.append(OffsetStore(str(tmp_path), "m", "g").load())

    monkeypatch.setattr(Path, "replace", then_crash)
    store.save(third)
    assert found == [third]
    # The file is a complete one again, and becomes the backup as ever.
    store.save(SECOND)
    store.path.unlink()
    assert store.load() == third


def test_offset_store_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = OffsetStore(None, "m", "g")
    store.save(FIRST)
    assert (tmp_path / ".pulsar_native_offsets" / "m" / "g" / "offsets.json").exists()


CLAIM = """
import sys
from pulsar_native.push.offset_store import OffsetStore
store = OffsetStore(sys.argv[1], "m", "g")
store.claim()
print("claimed", flush=True)
sys.stdin.read()
"""


def claimed(folder: Path, member: str) -> OffsetStore:
    """Return a store that has its folder."""
    store = OffsetStore(str(folder), member, "g")
    store.claim()
    return store


def test_offset_store_claimed_by_one_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "claimed\n"
        with pytest.raises(NotAllowedError, match="instance_name"):
            OffsetStore(str(tmp_path), "m", "g").claim()
        claimed(tmp_path, "another").release()
        # Killed: the lock ends with the process.
        other.kill()
        other.wait(20)
        claimed(tmp_path, "m").release()


def test_offset_store_released_saves_nothing(tmp_path: Path) -> None:
    store = OffsetStore(str(tmp_path), "m", "g")
    store.claim()
    store.save(FIRST)
    store.release()
    store.save(SECOND)
    assert OffsetStore(str(tmp_path), "m", "g").load() == FIRST
    # A start that was cancelled while a thread took the lock.
    store.claim()
    claimed(tmp_path, "m").release()


def test_offset_store_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    store = OffsetStore(str(tmp_path), "m", "g")
    store.claim()
    assert store._lock_file is not None
    descriptor = store._lock_file.fileno()
    child = os.fork()
    if child == 0:
        try:
            os.fstat(descriptor)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # The child's closing has not released the parent's lock.
    with pytest.raises(NotAllowedError):
        OffsetStore(str(tmp_path), "m", "g").claim()
    store.release()
