"""Offset store of a broadcasting member: always one complete file, and a backup."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pulsar_native.exceptions import InvalidConfiguration
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


def test_offset_store_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = OffsetStore(None, "m", "g")
    store.save(FIRST)
    assert (tmp_path / ".pulsar_native_offsets" / "m" / "g" / "offsets.json").exists()
