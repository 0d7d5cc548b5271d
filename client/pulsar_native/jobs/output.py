"""A file that is either there as a whole or not at all.

Rules: what is written goes to a temporary name beside the target; `commit` makes it durable and moves it over the
target, in one step on a local disk and as the store can on others; until then the target stays as it was. Without a
path it takes lines and keeps nothing. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.codecs import json_safe

# Makes the path object of a text: with `open`, `parent`, `name`, `mkdir`, `stat`, `unlink` and `replace` as pathlib's.
PathFactory = Callable[[str], Any]


def local_path(text: str) -> Path:
    """Return the path of a local file; raises ValueError for a URL."""
    if "://" in text and not text.startswith("file://"):
        validation.refuse(f"{text!r} is a URL: only local files can be opened here")
    return Path(text.removeprefix("file://"))


def json_line(record: object) -> bytes:
    """Return a record as one line of compact JSON in UTF-8; lone surrogates are escaped."""
    safe = json_safe(record)
    try:
        return json.dumps(safe, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(safe, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class AtomicFile:
    """The file being written. `open` may raise OSError, as may all methods but `discard`."""

    def __init__(self, path: str | None, open_path: PathFactory = local_path) -> None:
        self._path = None if path is None else open_path(path)
        self._temporary: Any = None if self._path is None else self._path.parent / f".{self._path.name}.part"
        self._file: IO[bytes] | None = None
        self._left_over = False

    def open(self) -> None:
        """Begin, overwriting what an earlier try left under the temporary name."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("wb")
            self._left_over = True

    @property
    def file(self) -> IO[bytes]:
        """The open file, for those who write it themselves; they must not close it."""
        assert self._file is not None
        return self._file

    def write(self, line: bytes) -> None:
        """Add a line."""
        if self._file is not None:
            self._file.write(line)

    def commit(self) -> int:
        """Make the file durable under its name and return its size in bytes."""
        if self._file is None or self._path is None:
            return 0
        self._file.flush()
        if _is_local(self._path):
            os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        if _is_local(self._path):
            os.replace(_local_name(self._temporary), _local_name(self._path))
            _sync_folder(os.path.dirname(_local_name(self._path)))
        else:
            self._temporary.replace(self._path)
        self._left_over = False
        return int(self._path.stat().st_size)

    def discard(self) -> None:
        """Remove what is under the temporary name; nothing after a commit."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        if self._left_over:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            self._left_over = False


def size_of(path: str, open_path: PathFactory = local_path) -> int | None:
    """Return the size of a file in bytes, None when there is none."""
    try:
        return int(open_path(path).stat().st_size)
    except FileNotFoundError:
        return None


def _is_local(path: Any) -> bool:
    return getattr(path, "protocol", "") in ("", "file", "local")


def _local_name(path: Any) -> str:
    # A path of fsspec has the plain name of a local file as `path`; one of pathlib is it.
    return str(getattr(path, "path", path))


def _sync_folder(folder: str) -> None:
    # The rename itself must survive a power cut, since the messages will be gone from the subscription.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
