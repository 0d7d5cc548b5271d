"""Commit log of successive loads: the ranges that each successful one covered, after which the next one begins.

A folder on any filesystem of Spark with one JSON document per load, numbered from 1. Rules: a document is written
before its rows are moved to the output and never changed. So after a crash there is either no document, and the next
load covers those messages; or a document, and the next load moves the staged rows (`recover`). A run in the log loads
the same ranges whenever it is repeated. Of two loads that began at the same document only one is committed. Positions
and counts only, never a secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.topic import TopicName
from pyspark_pulsar.manifest import Document, folder_of
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.positions import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1


class CommitConflict(PulsarException):
    """Raised when another load was committed since this one began. A retry plans again after that one."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One successful load: number, run, path and staging path of its rows, and covered ranges."""

    number: int
    run: str | None
    path: str
    staging: str
    ranges: Sequence[Range]
    rows: int

    def to_json(self) -> str:
        """Return the document."""
        document = {
            "version": VERSION,
            "number": self.number,
            "run": self.run,
            "path": self.path,
            "staging": self.staging,
            "rows": self.rows,
            "committed_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "partitions": [
                {"topic": item.topic, "start": str(item.start), "end": str(item.end)} for item in self.ranges
            ],
        }
        return json.dumps(document, indent=2) + "\n"

    @staticmethod
    def from_json(text: str, where: str) -> Commit:
        """Return the commit of a document; raises `InvalidConfiguration` for another document."""
        try:
            found = json.loads(text)
            if found["version"] != VERSION:
                raise InvalidConfiguration(f"{where} has version {found['version']}; this program reads {VERSION}")
            ranges = [
                Range(part["topic"], Position.parse(part["start"]), Position.parse(part["end"]))
                for part in found["partitions"]
            ]
            return Commit(found["number"], found["run"], found["path"], found["staging"], ranges, found["rows"])
        except PulsarException:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidConfiguration(f"{where} is not the commit of a load ({type(error).__name__})") from error

    def ends(self) -> dict[str, Position]:
        """Return the start of the next load, by topic partition."""
        return {item.topic: item.end for item in self.ranges}


class CommitLog:
    """Commits of one folder. Blocks; for the driver."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self.folder = folder

    def commits(self) -> list[Commit]:
        """Return all commits, oldest first."""
        names = sorted(name for name in folder_of(self._spark, self.folder) if name.endswith(".json"))
        found = []
        for name in names:
            text = self._document(name).read()
            if text is not None:
                found.append(Commit.from_json(text, f"{self.folder}/{name}"))
        return found

    def check(self, commits: Sequence[Commit], topics: Sequence[str], run: str | None, path: str) -> None:
        """Raise for a log of other topics, and for an output path with the rows of another run."""
        if not commits:
            return
        known = {TopicName.parse(item.topic).base.full for item in commits[-1].ranges}
        wanted = {TopicName.parse(topic).base.full for topic in topics}
        if not known <= wanted:
            raise InvalidConfiguration(
                f"The commit log {self.folder} is of {', '.join(sorted(known))}, not of {', '.join(sorted(wanted))}: "
                "name another folder with commits"
            )
        other = next((commit for commit in commits if commit.path == path and commit.run != run), None)
        if other is not None:
            raise InvalidConfiguration(
                f"output.path {path} holds the rows of the run {other.run}, and a load replaces its path as a whole: "
                "put something of the run into the path, such as {{ run_id }}"
            )

    def add(self, commit: Commit) -> None:
        """Write the next commit; raises `CommitConflict` when its number is taken."""
        name = f"{commit.number:012}.json"
        document = self._document(name)
        if document.read() is not None:
            raise CommitConflict(self._taken(commit))
        text = commit.to_json()
        document.write(text)
        if document.read() != text:
            raise CommitConflict(self._taken(commit))

    def _taken(self, commit: Commit) -> str:
        return (
            f"Another run was committed to {self.folder} while this one was loading (number {commit.number}); nothing "
            "was written, and a retry begins behind it. Let one run at a time load: max_active_runs=1"
        )

    def _document(self, name: str) -> Document:
        return Document(self._spark, f"{self.folder}/{name}")


def carried(previous: Mapping[str, Position], ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges with no end before an earlier one: an empty topic has no end."""
    return [
        Range(item.topic, item.start, max(item.end, previous.get(item.topic, item.end))) for item in ranges
    ]  # fmt: skip


def recover(spark: SparkSession, commit: Commit) -> bool:
    """Move the rows of a commit that a crash left staged; return True if there were any."""
    context: Any = spark.sparkContext
    paths = context._jvm.org.apache.hadoop.fs.Path
    staging, place = paths(commit.staging), paths(commit.path)
    files = staging.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(staging) or files.exists(place):
        return False
    return bool(files.rename(staging, place))
