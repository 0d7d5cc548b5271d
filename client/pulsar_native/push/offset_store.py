"""Offset store of a broadcasting push consumer: a local file, with the previous version as a backup.

Rules: a file is replaced, never overwritten, so that a crash at any moment leaves a complete one: the new text is
written beside it and synced to disk, then the old file becomes `.bak`, then the new one gets its name. Loading reads
the `.bak` where the file is missing or damaged. Blocks on the disk: not for the loop. Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from pulsar_native._loggers import get_logger
from pulsar_native.exceptions import InvalidConfiguration
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
        self._lock = threading.Lock()

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
        if damaged:
            raise InvalidConfiguration(
                f"The positions kept in {' and '.join(damaged)} cannot be read; remove the damaged files"
            )
        return {}

    def save(self, offsets: Mapping[str, MessageId]) -> None:
        """Replace the file, unless the offsets are unchanged since the last time; raises `OSError`."""
        text = encode_offsets(offsets)
        with self._lock:
            if text != self._written:
                self._replace(text)
                self._written = text

    def check_writable(self) -> None:
        """Raise `InvalidConfiguration` when the file could not be replaced."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fresh.touch()
            self._fresh.unlink()
        except OSError as error:
            raise InvalidConfiguration(
                f"The positions cannot be written to {self.path.parent}: {error}; set offset_store_folder to a "
                "folder that can be written to"
            ) from error

    def _replace(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            self.path.replace(self._backup)
        self._fresh.replace(self.path)
