"""Manifest of a load: the covered messages, written beside the output before reading, completed afterwards.

A JSON document on any filesystem of Spark. Rules: written to a temporary name and renamed, so that a reader sees a
whole document or none; `create` never replaces one. Positions and counts only, never a secret. A run with the same
request and a manifest replays its ranges.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.positions import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
_FRESH = ".new"
# Object stores: a rename is a copy and may replace a file, but a file is there only when it is closed.
_STORES = ("s3", "s3a", "s3n", "gs", "oss", "obs", "cosn", "wasb", "wasbs")


@dataclass(frozen=True, slots=True)
class Delivered:
    """Rows written of one topic partition: their number, first and last message."""

    rows: int
    first: Position
    last: Position


@dataclass(frozen=True, slots=True)
class Manifest:
    """Ranges of a load and, when it is done, the delivered rows by topic partition.

    `attempt` names the try that wrote it, as in the request; `was_empty` is True for a finished load without rows.
    `columns` is the schema of a read that decodes by the topic's registered schema, as Spark's JSON: a replay has the
    same columns when the topic has got a newer schema. None for other reads. `definition` is, for the same reason, the
    registered definition with which the load itself decodes JSON or Avro.
    """

    request: Mapping[str, Any]
    ranges: Sequence[Range]
    delivered: Mapping[str, Delivered] | None = None
    seconds: float | None = None
    is_done: bool = False
    attempt: str | None = None
    was_empty: bool = False
    columns: Mapping[str, Any] | None = None
    definition: str | None = None
    written_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    @property
    def rows(self) -> int | None:
        """Number of rows written, None before the load is done."""
        return None if self.delivered is None else sum(part.rows for part in self.delivered.values())

    @property
    def time(self) -> datetime:
        """Time at which the ranges were frozen, by the driver's clock."""
        return datetime.fromisoformat(self.written_at)

    def to_json(self) -> str:
        """Return the document."""
        document = {
            "version": VERSION,
            "status": "done" if self.is_done else "planned",
            "written_at": self.written_at,
            "rows": self.rows,
            "seconds": self.seconds,
            "attempt": self.attempt,
            **({} if self.columns is None else {"columns": self.columns}),
            **({} if self.definition is None else {"definition": self.definition}),
            "partitions": [self._partition(item) for item in self.ranges],
            "request": self.request,
        }
        return json.dumps(document, indent=2) + "\n"

    def _partition(self, item: Range) -> dict[str, Any]:
        found: dict[str, Any] = {"topic": item.topic, "start": str(item.start), "end": str(item.end)}
        if self.delivered is not None:
            part = self.delivered.get(item.topic)
            found["rows"] = part.rows if part else 0
            found["first"] = str(part.first) if part else None
            found["last"] = str(part.last) if part else None
        return found

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Return request, ranges and delivered rows of a document; raises `InvalidConfiguration` for another one."""
        try:
            document = json.loads(text)
            if document["version"] != VERSION:
                raise InvalidConfiguration(
                    f"The manifest has version {document['version']}; this program reads {VERSION}"
                )
            ranges = [
                Range(part["topic"], Position.parse(part["start"]), Position.parse(part["end"]))
                for part in document["partitions"]
            ]
            return Manifest(
                dict(document["request"]),
                ranges,
                {part["topic"]: _delivered(part) for part in document["partitions"] if part.get("rows")} or None,
                is_done=document["status"] == "done",
                was_empty=document["status"] == "done" and document["rows"] == 0,
                columns=document.get("columns"),
                definition=document.get("definition"),
                written_at=datetime.fromisoformat(document["written_at"]).isoformat(timespec="milliseconds"),
            )
        except PulsarException:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidConfiguration(
                f"This is not the manifest of a load ({type(error).__name__}: {error})"
            ) from error


def _delivered(part: Mapping[str, Any]) -> Delivered:
    return Delivered(part["rows"], Position.parse(str(part["first"])), Position.parse(str(part["last"])))


class Document:
    """Text file on a filesystem of Spark (Hadoop's FileSystem). Blocks; for the driver."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        # py4j creates these at run time: types cannot be checked.
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._path: Any = self._jvm.org.apache.hadoop.fs.Path(location)
        self._files: Any = self._path.getFileSystem(context._jsc.hadoopConfiguration())

    def read(self) -> str | None:
        """Return the text, None if there is no such file."""
        if self._files.exists(self._path):
            return self._text(self._path)
        # A crash between the two steps of `write`: the old text is gone, and the new one is complete.
        fresh = self._path.suffix(_FRESH)
        if not self._files.exists(fresh):
            return None
        text = self._text(fresh)
        return text if _is_whole(text) else None

    def _text(self, path: Any) -> str:
        stream = self._files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, text: str) -> None:
        """Write the text, replacing the file."""
        if self._is_local:
            self._write_local(text, os.replace)
            return
        fresh = self._path.suffix(_FRESH)
        self._put(fresh, text)
        self._files.delete(self._path, False)
        if not self._files.rename(fresh, self._path):
            raise OSError(f"{fresh.toString()} could not be renamed to {self._path.toString()}")

    def create(self, text: str) -> bool:
        """Write the text to a new file; return False, and leave the file as it is, if there is one."""
        if self._is_local:
            try:
                self._write_local(text, _link)
            except FileExistsError:
                return False
            return True
        if self._files.exists(self._path):
            return False
        if str(self._files.getUri().getScheme()) in _STORES:
            try:
                self._put(self._path, text, replaces=False)
            except Py4JJavaError:
                if not self._files.exists(self._path):
                    raise
                return False
            return True
        fresh = self._jvm.org.apache.hadoop.fs.Path(self._path.getParent(), self._temporary())
        self._put(fresh, text)
        if self._files.rename(fresh, self._path):
            return True
        self._files.delete(fresh, False)
        if not self._files.exists(self._path):
            raise OSError(f"{fresh.toString()} could not be renamed to {self._path.toString()}")
        return False

    @property
    def _is_local(self) -> bool:
        return str(self._files.getUri().getScheme()) == "file"

    def _write_local(self, text: str, move: Callable[[str, str], None]) -> None:
        """Write the text to a temporary name, and move it to the file's: Hadoop's rename of local files is not exact.

        It replaces a file, and moves a file's checksum in a step of its own.
        """
        place = str(self._files.makeQualified(self._path).toUri().getPath())
        folder, name = os.path.split(place)
        os.makedirs(folder, exist_ok=True)
        fresh = os.path.join(folder, self._temporary())
        try:
            with open(fresh, "x", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # Hadoop's checksum of an earlier file of this name; a file without one is read unchecked.
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, f".{name}.crc"))
            move(fresh, place)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(fresh)

    def _temporary(self) -> str:
        return f".{self._path.getName()}.{uuid.uuid4().hex}"

    def _put(self, path: Any, text: str, *, replaces: bool = True) -> None:
        """Write a file; after an error it is not closed, which would complete it."""
        stream = self._files.create(path, replaces)
        stream.write(bytearray(text.encode()))
        stream.close()


def _link(fresh: str, place: str) -> None:
    """Give a file another name; raises `FileExistsError` for one that is taken, also by another process at once."""
    try:
        os.link(fresh, place)
    except FileExistsError:
        raise
    except OSError:
        # A filesystem without hard links.
        with open(fresh, "rb") as source, open(place, "xb") as target:
            target.write(source.read())


def _is_whole(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def folder_of(spark: SparkSession, location: str) -> list[str]:
    """Return the names in a folder, none if it does not exist; without the suffix ".new"."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(location)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(path):
        return []
    names = {str(status.getPath().getName()).removesuffix(_FRESH) for status in files.listStatus(path)}
    return sorted(name for name in names if not name.startswith("."))
