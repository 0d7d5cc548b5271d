"""Commit log of successive loads: the ranges that each successful one covered, after which the next one begins.

A folder on any filesystem of Spark with one JSON document per load, numbered from 1. Order of a load: 1. rows are
staged and counted; 2. its document is created, whole, under a name that is free; 3. the staged rows are moved to the
output; 4. the manifest is completed. Rules: a document is never changed. Once 2 has begun, the staged rows are removed
only where the log holds another document of the number. So after a crash there is either no document, and the next load
covers those messages; or a document, and the next load moves the staged rows (`recover`) before it plans. A run in the
log loads the same ranges whenever it is repeated. Of two loads that began at the same document only one is committed,
also at once; an object store whose creation of files is not exclusive may commit both. Positions and counts only, never
a secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.topic import TopicName
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.manifest import Document, Manifest, folder_of
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.output import Output
from pyspark_pulsar.positions import Position
from pyspark_pulsar.request import LoadRequest, beside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1


class CommitConflict(PulsarException):
    """Raised when another load was committed since this one began. A retry plans again after that one."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One successful load: number, run, path and staging path of its rows, covered ranges, and place of its manifest.

    `map_index` is that of the load within the run. A log of an earlier version has neither it nor the manifest's place.
    """

    number: int
    run: str | None
    path: str
    staging: str
    ranges: Sequence[Range]
    rows: int
    manifest: str | None = None
    map_index: int | None = None

    def to_json(self) -> str:
        """Return the document."""
        document = {
            "version": VERSION,
            "number": self.number,
            "run": self.run,
            "map_index": self.map_index,
            "path": self.path,
            "staging": self.staging,
            "manifest": self.manifest,
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
            return Commit(
                found["number"], found["run"], found["path"], found["staging"], ranges, found["rows"],
                found.get("manifest"), found.get("map_index"),
            )  # fmt: skip
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

    def check(
        self, commits: Sequence[Commit], topics: Sequence[str], request: LoadRequest, *, is_pattern: bool = False
    ) -> None:
        """Raise for a log of other topics, for an output path of another run, and for two mapped loads of one run.

        Topics of a pattern come and go: one that is still there shows that the log is theirs.
        """
        if not commits:
            return
        known = {TopicName.parse(item.topic).base.full for item in commits[-1].ranges}
        wanted = {TopicName.parse(topic).base.full for topic in topics}
        if not (known & wanted if is_pattern else known <= wanted):
            raise InvalidConfiguration(
                f"The commit log {self.folder} is of {', '.join(sorted(known))}, not of {', '.join(sorted(wanted))}: "
                "name another folder with commits, whose first load needs a start (behind what was loaded already)"
            )
        run, path = request.run, request.path
        other = next((commit for commit in commits if commit.path == path and commit.run != run), None)
        if other is not None:
            raise InvalidConfiguration(
                f"output.path {path} holds the rows of the run {other.run}, and a load replaces its path as a whole: "
                "put something of the run into the path, such as {{ run_id | replace(':', '') }}"
            )
        twin = next((commit for commit in commits if commit.run == run and _is_beside(commit, request)), None)
        if twin is not None:
            raise InvalidConfiguration(
                f"The commit log {self.folder} has a load of the run {run} by another mapped task, into {twin.path}: "
                "each of the two would get a part of the messages. Give each task that loads these topics a commits "
                "of its own"
            )

    def add(self, commit: Commit) -> None:
        """Write the next commit; raises `CommitConflict` when its number is taken.

        After any other error the commit may be in the log.
        """
        document, text = self._document(f"{commit.number:012}.json"), commit.to_json()
        document.create(text)
        # An object store may have replaced it, and a repeated request of HDFS may have found its own file.
        found = document.read()
        if found is None:
            raise OSError(f"The commit {commit.number} was removed from {self.folder} while it was written")
        if found != text:
            raise CommitConflict(self._taken(commit))

    def _taken(self, commit: Commit) -> str:
        return (
            f"Another run was committed to {self.folder} while this one was loading (number {commit.number}); nothing "
            "was written, and a retry begins behind it. Let one run at a time load: max_active_runs=1"
        )

    def _document(self, name: str) -> Document:
        return Document(self._spark, f"{self.folder}/{name}")


def _is_beside(commit: Commit, request: LoadRequest) -> bool:
    """Return True for the load of another mapped task into another path. In one path it is that of a changed list."""
    indexes = (commit.map_index, request.map_index)
    return None not in indexes and indexes[0] != indexes[1] and commit.path != request.path


def carried(previous: Mapping[str, Position], ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges with none that ends before an earlier one: such a one is empty at that end."""
    reached = {item.topic: previous.get(item.topic, item.end) for item in ranges}
    return [
        item if item.end >= reached[item.topic] else Range(item.topic, reached[item.topic], reached[item.topic])
        for item in ranges
    ]


def recover(spark: SparkSession, commit: Commit, *, is_repeated: bool = False) -> bool:
    """Move the rows of a commit that a crash left staged to the output; return True if there were any.

    Raises `DataLoss` where some of the rows are gone and were never in place, unless the commit's run `is_repeated`,
    which writes them again. An output that was complete and removed later is none of that.
    """
    output = Output(spark, commit.path, staging=commit.staging)
    output.restore()
    if output.is_staged:
        found = output.count_rows()
        if found == commit.rows:
            output.publish(is_committed=True)
            return True
        missing = f"{commit.staging} has {found:,} of its {commit.rows:,} rows"
    else:
        missing = f"neither {commit.path} nor {commit.staging} exists, and its manifest does not say done"
    if is_repeated or (not output.is_staged and (output.is_published or _was_done(spark, commit))):
        return False
    run = "without a name" if commit.run is None else commit.run
    raise DataLoss(
        f"The last load in the commit log, run {run} into {commit.path}, was not finished, and {missing}: run it again "
        "(clear its task), which loads the same messages; to go on without its rows, remove the staging folder and "
        "create the output folder"
    )


def _was_done(spark: SparkSession, commit: Commit) -> bool:
    """Return True if the manifest shows that the rows of a commit were in place."""
    text = Document(spark, commit.manifest or beside(commit.path)).read()
    found = None if text is None else Manifest.from_json(text)
    return found is not None and found.is_done and found.ranges == commit.ranges
