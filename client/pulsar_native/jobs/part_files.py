"""Output of one batch in several files, each of a limited number of messages or bytes.

The files of `folder/name.ext` are `folder/name.part-00000.ext`, `…part-00001.ext` and so on. Rules: all are complete
under temporary names before the first one is renamed, and parts of an earlier try beyond the last are removed. Where a
file ends depends on the messages alone, so that writing them again gives the same files. Not thread-safe.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_native.jobs.output import (
    AtomicFile,
    Content,
    PathFactory,
    content_of,
    is_there,
    local_path,
    numbered_path,
    remove,
    temporary_of,
)


@dataclass(frozen=True)
class PartLimits:
    """Limits of one file; None is no limit. `size` is checked after each message, or row group in Parquet."""

    messages: int | None = None
    size: int | None = None


def part_path(path: str, number: int) -> str:
    """Return the path of a part."""
    return numbered_path(path, f".part-{number:05}")


class PartFiles:
    """Files being written, with the methods of `AtomicFile`. They may raise OSError, but for `discard`."""

    def __init__(self, path: str, limits: PartLimits, open_path: PathFactory = local_path, tag: str = "") -> None:
        """Set the path; concurrent writers differ in their `tag`, a part of the temporary names."""
        self._path, self._limits, self._open_path, self._tag = path, limits, open_path, tag
        self._files: list[AtomicFile] = []
        self._contents: list[Content] = []
        self._counts: list[int] = []

    def open(self) -> None:
        """Open the first file."""
        self._next()

    def _next(self) -> None:
        file = AtomicFile(part_path(self._path, len(self._files)), self._open_path, self._tag)
        self._files.append(file)
        self._counts.append(0)
        file.open()

    @property
    def file(self) -> io.BufferedIOBase:
        """The open file, for sequential writers, which must not close it."""
        return self._files[-1].file

    @property
    def room(self) -> int | None:
        """Number of messages that the open file still takes, None without limit."""
        return None if self._limits.messages is None else self._limits.messages - self._counts[-1]

    def add(self, count: int) -> bool:
        """Count messages written to the open file; return True if it is full."""
        self._counts[-1] += count
        full_size = self._limits.size is not None and self.file.tell() >= self._limits.size
        return full_size or self.room == 0

    def roll(self) -> None:
        """Complete the open file and open the next one."""
        self._contents.append(self._files[-1].finish())
        self._next()

    def write(self, line: bytes) -> None:
        """Add a line, to the next file if the open one is full."""
        if self._counts[-1] and self.add(0):
            self.roll()
        self._files[-1].write(line)
        self._counts[-1] += 1

    def finish(self) -> Content:
        """Make the content durable under the temporary names and return its size and digest."""
        self._contents.append(self._files[-1].finish())
        return _combined(self._contents)

    def commit(self) -> None:
        """Rename the files to their targets, after `finish`, and remove parts that an earlier try wrote beyond them."""
        for file in self._files:
            file.commit()
        remove_parts(self._path, self._open_path, first=len(self._files))

    def discard(self) -> None:
        """Remove the temporary files; no effect after a commit."""
        for file in self._files:
            file.discard()

    def described(self) -> list[dict[str, Any]]:
        """Return path, number of messages and size of each file, after `finish`."""
        return [
            {"path": part_path(self._path, number), "count": count, "size": content.size}
            for number, (count, content) in enumerate(zip(self._counts, self._contents, strict=True))
        ]


def content_of_parts(paths: Sequence[str], open_path: PathFactory = local_path) -> Content | None:
    """Return size and digest of parts by reading them, None if one is missing."""
    found = []
    for path in paths:
        content = content_of(path, open_path)
        if content is None:
            return None
        found.append(content)
    return _combined(found)


def _combined(contents: Sequence[Content]) -> Content:
    digests = "".join(each.sha256 for each in contents)
    return Content(sum(each.size for each in contents), hashlib.sha256(digests.encode()).hexdigest())


def remove_parts(path: str, open_path: PathFactory = local_path, *, first: int = 0, tag: str | None = None) -> None:
    """Remove parts from a number on, and their temporary files of a tag, up to the first number that has neither."""
    number = first
    while True:
        part = part_path(path, number)
        temporary = None if tag is None else str(temporary_of(open_path(part), tag))
        there = [each for each in (part, temporary) if each is not None and is_there(each, open_path)]
        if not there:
            return
        for each in there:
            remove(each, open_path)
        number += 1
