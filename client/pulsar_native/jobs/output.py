"""Atomic file output: a file is complete or does not exist.

Rules: content goes to a temporary name beside the target. `commit` makes it durable and renames it over the target, in
one step on a local disk and as the store allows elsewhere; until then the target is unchanged. Without a path, lines
are digested and discarded. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.json_values import json_safe

# Returns the path object of a text: with `open`, `parent`, `name`, `iterdir`, `mkdir`, `stat`, `unlink` and `replace`
# as in pathlib.
PathFactory = Callable[[str], Any]
_BLOCK = 1024 * 1024
# A suffix, which begins with a letter, and that of a packed file after it. A hidden file's first dot begins its name.
_SUFFIX = re.compile(r"(?<=.)(?:\.[a-z]\w*)?\.(?:gz|bz2|xz|zip|zst|lz4)$|(?<=.)\.[a-z]\w*$", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Content:
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


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


def numbered_path(path: str, number: str) -> str:
    """Return a path with a number before its suffix; other dots, as those of a time, belong to the name."""
    folder, slash, name = path.rpartition("/")
    match = _SUFFIX.search(name)
    end = len(name) if match is None else match.start()
    return f"{folder}{slash}{name[:end]}{number}{name[end:]}"


def temporary_of(path: Any, tag: str) -> Any:
    """Return the temporary path of a file."""
    return path.parent / (f".{path.name}.{tag}.part" if tag else f".{path.name}.part")


class _Digesting(io.BufferedIOBase):
    """Sequential file that digests its content."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """Return True: it is for writing."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def write(self, data: Any) -> int:
        """Write bytes."""
        self._digest.update(data)
        self._file.write(data)
        size = memoryview(data).nbytes
        self._size += size
        return size

    def flush(self) -> None:
        """Flush buffers."""
        if not self._file.closed:
            self._file.flush()

    @property
    def content(self) -> Content:
        """Size and digest of the content so far."""
        return Content(self._size, self._digest.hexdigest())


class AtomicFile:
    """File being written. `open` may raise OSError, as may all methods but `discard`."""

    def __init__(self, path: str | None, open_path: PathFactory = local_path, tag: str = "") -> None:
        """Set the path; concurrent writers differ in their `tag`, a part of the temporary name."""
        self._path = None if path is None else open_path(path)
        self._temporary: Any = None if self._path is None else temporary_of(self._path, tag)
        self._file: IO[bytes] | None = None
        self._digesting: _Digesting | None = None
        self._left_over = False

    def open(self) -> None:
        """Open the file, overwriting an earlier try's under the temporary name."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("wb")
            assert self._file is not None
            self._digesting = _Digesting(self._file)
            self._left_over = True

    @property
    def file(self) -> io.BufferedIOBase:
        """The open file, for sequential writers, which must not close it."""
        assert self._digesting is not None
        return self._digesting

    @property
    def room(self) -> int | None:
        """Number of messages that the file still takes: None, no limit."""
        return None

    def add(self, count: int) -> bool:
        """Count messages written; return False, as the file is never full."""
        return False

    def roll(self) -> None:
        """Raise: there is one file."""
        raise NotImplementedError

    def write(self, line: bytes) -> None:
        """Add a line."""
        if self._digesting is not None:
            self._digesting.write(line)

    def finish(self) -> Content:
        """Make the content durable under the temporary name and return size and digest."""
        if self._file is None or self._path is None or self._digesting is None:
            return Content(0, "")
        self._file.flush()
        if _is_local(self._path):
            os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        return self._digesting.content

    def commit(self) -> None:
        """Rename the file to its target, after `finish`."""
        if self._path is None:
            return
        if _is_local(self._path):
            os.replace(_local_name(self._temporary), _local_name(self._path))
            _sync_folder(os.path.dirname(_local_name(self._path)))
        else:
            self._temporary.replace(self._path)
        self._left_over = False

    def discard(self) -> None:
        """Remove the temporary file; no effect after a commit."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        if self._left_over:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            self._left_over = False


def content_of(path: str, open_path: PathFactory = local_path) -> Content | None:
    """Return size and digest of a file by reading it, None if there is none."""
    digest, size = hashlib.sha256(), 0
    try:
        with open_path(path).open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                size += len(block)
    except FileNotFoundError:
        return None
    return Content(size, digest.hexdigest())


def is_there(path: str, open_path: PathFactory = local_path) -> bool:
    """Return True if a path exists."""
    try:
        open_path(path).stat()
    except FileNotFoundError:
        return False
    return True


class NotJson(validation.InvalidValue):
    """Raised when a file holds something else than a JSON object."""


def read_json(path: str, open_path: PathFactory = local_path) -> dict[str, Any] | None:
    """Return the JSON object of a file, None if there is none; raises `NotJson` for other content."""
    try:
        with open_path(path).open("rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
    except ValueError as error:
        raise NotJson(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise NotJson(f"{path} holds no JSON object")
    return found


def write_json(path: str, value: Mapping[str, Any], open_path: PathFactory = local_path) -> None:
    """Write a JSON object, durably and atomically."""
    file = AtomicFile(path, open_path)
    try:
        file.open()
        file.write(json.dumps(value, separators=(",", ":")).encode())
        file.finish()
        file.commit()
    finally:
        file.discard()


def create_json(path: str, value: Mapping[str, Any], open_path: PathFactory = local_path) -> bool:
    """Write a JSON object unless the file exists; return True if written.

    One of several concurrent writers succeeds, on a local disk and in stores with exclusive creation.
    """
    target = open_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(value, separators=(",", ":")).encode()
    if not _is_local(target):
        return _create_remote(target, data)
    temporary = f"{_local_name(target.parent)}/.{target.name}.{uuid.uuid4().hex}"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link never replaces a file.
        os.link(temporary, _local_name(target))
        _sync_folder(_local_name(target.parent))
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return True


def _create_remote(target: Any, data: bytes) -> bool:
    if target.exists():
        return False
    try:
        with target.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    except (ValueError, NotImplementedError):
        # The store has no exclusive creation.
        with target.open("wb") as file:
            file.write(data)
    return True


def remove(path: str, open_path: PathFactory = local_path) -> None:
    """Remove a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        open_path(path).unlink()


def _is_local(path: Any) -> bool:
    return getattr(path, "protocol", "") in ("", "file", "local")


def _local_name(path: Any) -> str:
    # An fsspec path has the local file name as `path`; a pathlib path is it.
    return str(getattr(path, "path", path))


def _sync_folder(folder: str) -> None:
    # The rename must survive a power loss, since the messages will be acknowledged.
    descriptor = os.open(folder or os.curdir, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
