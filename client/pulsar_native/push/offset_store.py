"""Offset store of a broadcasting push consumer: a local file, with the previous version as a backup.

Rules: a file is replaced, never overwritten, so that a crash at any moment leaves a complete one: the new text is
written beside it and synced to disk, then the old file becomes `.bak`, then the new one gets its name. Loading reads
the `.bak` where the file is missing or damaged, which never becomes the `.bak`. One process at a time has the folder,
by a lock that ends with it. Blocks on the disk: not for the loop. Thread-safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from pulsar_native._loggers import get_logger
from pulsar_native.engine.loop import track_fork
from pulsar_native.exceptions import InvalidConfiguration, NotAllowedError
from pulsar_native.message_id import MessageId
from pulsar_native.push.offset_file import decode_offsets, encode_offsets

_log = get_logger("pulsar_native.push_consumer")

_FOLDER = ".pulsar_native_offsets"


class OffsetStore:
    """Offsets of one member of one group."""

    def __init__(self, folder: str | None, member: str, group: str) -> None:
        root = Path.home() / _FOLDER if folder is None else Path(folder)
        self.path = root / member / group / "offsets.json"
        self._backup = self.path.with_name("offsets.json.bak")
        self._fresh = self.path.with_name("offsets.json.tmp")
        self._written: str | None = None
        # The file could not be read, and is not to replace the backup.
        self._is_damaged = False
        self._lock = threading.Lock()
        self._lock_file: BinaryIO | None = None
        self._is_released = False

    def load(self) -> dict[str, MessageId]:
        """Return the offsets, none when there is no file; raises `InvalidConfiguration` when both files are damaged."""
        damaged = []
        for path in (self.path, self._backup):
            try:
                return decode_offsets(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                _log.warning("The positions in %s cannot be read: %s", path, error)
                damaged.append(str(path))
                self._is_damaged |= path is self.path
        if damaged:
            raise InvalidConfiguration(
                f"The positions kept in {' and '.join(damaged)} cannot be read; remove the damaged files"
            )
        return {}

    def save(self, offsets: Mapping[str, MessageId]) -> None:
        """Replace the file, unless the offsets are unchanged since the last time; raises `OSError`."""
        text = encode_offsets(offsets)
        with self._lock:
            # A save in a thread may come after the release.
            if text != self._written and not self._is_released:
                self._replace(text)
                self._written = text

    def claim(self) -> None:
        """Take the folder until `release`; raises `NotAllowedError` when another push consumer has it, of whatever
        process, and `InvalidConfiguration` when the file could not be replaced.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._fresh.touch()
            self._fresh.unlink()
        except OSError as error:
            raise self._unwritable(error) from error

    def save_first(self, offsets: Mapping[str, MessageId]) -> None:
        """Save the offsets of a start; raises `InvalidConfiguration` when they cannot be written.

        Without a file the next start would find no position, and miss what was published meanwhile. On a full disk
        `claim` passes.
        """
        try:
            self.save(offsets)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"The positions cannot be written to {self.path.parent}: {error}; set offset_store_folder to a folder that "
            "can be written to"
        )

    def _take_lock(self) -> None:
        file = self.path.with_name("offsets.lock").open("ab", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise NotAllowedError(
                f"The positions in {self.path.parent} are in use by another push consumer of the group on this host; "
                "set another instance_name for each"
            ) from None
        except OSError as error:
            # Some network file systems have no locks, and may have one process only.
            _log.warning("The positions in %s cannot be locked against a second process: %s", self.path.parent, error)
        # Order of events: the file is noted before the flag is read, and `release` sets the flag before it looks for
        # the file, so that one of them closes it where a start is cancelled meanwhile.
        self._lock_file = file
        track_fork(self)
        if self._is_released:
            self.release()

    def release(self) -> None:
        """Give the folder up; nothing is saved afterwards."""
        self._is_released = True
        file, self._lock_file = self._lock_file, None
        if file is None:
            return
        try:
            # Not by closing alone: a child forked without Python's knowledge has a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)
        except (OSError, ValueError) as error:
            _log.debug("The lock of %s was not released, closing does it: %s", self.path.parent, error)
        file.close()

    def clear_after_fork(self) -> None:
        """Close the child's copy of the lock, which would outlast the parent. Called in a forked child."""
        file, self._lock_file = self._lock_file, None
        if file is not None:
            file.close()

    def _replace(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._fresh.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # A part of it would take space that a full disk needs.
            with contextlib.suppress(OSError):
                self._fresh.unlink()
            raise
        if self.path.exists() and not self._is_damaged:
            self.path.replace(self._backup)
        self._fresh.replace(self.path)
        self._is_damaged = False
