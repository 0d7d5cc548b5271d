"""Manifest of a load: the covered messages, written beside the output before reading, completed afterwards.

A JSON document on any filesystem of Spark. Rules: written to a temporary name and renamed, so that a reader sees a
whole document or none. Positions and counts only, never a secret. A run with the same request and a manifest replays
its ranges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.positions import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
_FRESH = ".new"


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
    same columns when the topic has got a newer schema. None for other reads.
    """

    request: Mapping[str, Any]
    ranges: Sequence[Range]
    delivered: Mapping[str, Delivered] | None = None
    seconds: float | None = None
    is_done: bool = False
    attempt: str | None = None
    was_empty: bool = False
    columns: Mapping[str, Any] | None = None
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
        """Return request and ranges of a document; raises `InvalidConfiguration` for another document."""
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
                is_done=document["status"] == "done",
                was_empty=document["status"] == "done" and document["rows"] == 0,
                columns=document.get("columns"),
                written_at=datetime.fromisoformat(document["written_at"]).isoformat(timespec="milliseconds"),
            )
        except PulsarException:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidConfiguration(
                f"This is not the manifest of a load ({type(error).__name__}: {error})"
            ) from error


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
        fresh = self._path.suffix(_FRESH)
        stream = self._files.create(fresh, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._files.delete(self._path, False)
        if not self._files.rename(fresh, self._path):
            raise OSError(f"{fresh.toString()} could not be renamed to {self._path.toString()}")


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
