"""Plan of a load: its frozen ranges, new, replayed from a manifest, or after the last committed load.

Blocks; for the driver. Rules: a repeated run keeps its ranges, but for a plan from before the end of its interval.
Nothing is skipped between successive loads, and a topic that ends before the end of the last load is data loss. A
partition that is empty at a load ends at the beginning of the broker's current ledger, where that is known (admin.url),
else at 0:0: the next load begins at its first message, and checks that none was removed before it. The rows of a
finished load are not replaced by another plan of its interval if messages that it had are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration, TopicNotFound
from pulsar_native.jobs.interval import LAST_SUCCESS
from pulsar_native.topic import TopicName
from pyspark_pulsar.broker import Broker, plan
from pyspark_pulsar.commits import Commit, CommitLog, carried, recover
from pyspark_pulsar.errors import DataLoss
from pyspark_pulsar.manifest import Delivered, Document, Manifest
from pyspark_pulsar.offsets import Probe, Range, bounds, check_unread
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Offsets, Position, format_offsets
from pyspark_pulsar.tables import MERGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_pulsar.request import LoadRequest

_log = logging.getLogger("pyspark_pulsar")

# End of a partition without messages whose ledger is not known.
_UNKNOWN = Position(0, 0)
# Options of the source that bound its interval.
_BOUNDS = ("startingtime", "startingoffsets", "endingtime", "endingoffsets")
_OPEN = ("earliest", "latest")
# Topics in the text of an error.
_MOST_NAMED = 3

GONE = (
    "the broker removes a topic without subscriptions after brokerDeleteInactiveTopicsMaxInactiveDurationSeconds (60 "
    "by default), with its messages: set a retention for the namespace, or let the load keep a subscription"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan: the manifest with its ranges, and the source's options for exactly these.

    `base` is the commit after which the ranges begin, `own` that of an earlier try of the same run. `emptied` are the
    ranges of partitions that had messages at the last load and hold none: whether some were lost is not known.
    """

    manifest: Manifest
    options: Mapping[str, str]
    replayed: bool = False
    base: Commit | None = None
    own: Commit | None = None
    emptied: Sequence[Range] = ()


def make_plan(
    spark: SparkSession, request: LoadRequest, source: Mapping[str, str], document: Document, *, recovers: bool = True
) -> Plan:
    """Return the plan of a load; raises `TopicNotFound` with the option to set.

    Writes nothing, except that rows of an earlier load that a crash left staged are moved to their place if `recovers`;
    raises `DataLoss` if they are gone, and `InvalidConfiguration` as `check_output` does.
    """
    options = ReadOptions.parse(source)
    check_output(request, document)
    try:
        if request.interval == LAST_SUCCESS:
            made = _behind_last(spark, request, source, options, recovers)
            return made if made.own is None else _with_schema(made, document)
        return _bounded(request, source, options, document)
    except TopicNotFound as error:
        raise TopicNotFound(f"{error.message}; if it was there, {GONE}") from error


def check_output(request: LoadRequest, document: Document) -> None:
    """Raise `InvalidConfiguration` if the output has rows of topics, or of a cluster, that the request does not read.

    Of a cluster that is so for the same run only: another one may find it under another URL.
    """
    # A table has rows of several loads.
    found = _finished(request, document) if request.table is None else None
    if found is None:
        return
    if others := _not_read(request, found):
        named = ", ".join(others[:_MOST_NAMED]) + (", …" if len(others) > _MOST_NAMED else "")
        raise InvalidConfiguration(
            f"{request.path} has the rows of a load of {named}, which this load does not read, and would be replaced "
            "as a whole: give each topic an output path of its own, or, if nobody needs those rows, remove the "
            f"manifest {request.manifest}"
        )
    if request.run is not None and found.request.get("run") == request.run and not _is_same_cluster(request, found):
        raise InvalidConfiguration(
            f"{request.path} has the rows that a load of the same run read from another service.url, and would be "
            "replaced as a whole: give each cluster an output path of its own, or, if this is the same cluster under "
            f"another URL, or nobody needs those rows, remove the manifest {request.manifest}"
        )


def topics_of(request: LoadRequest, ranges: Sequence[Range]) -> Sequence[str]:
    """Return the topics of a load, for a pattern those that were planned."""
    return request.read_options().topics or sorted({_base(item.topic) for item in ranges})


def _finished(request: LoadRequest, document: Document) -> Manifest | None:
    """Return the manifest of a finished load into the same path, None if there is none."""
    kept = document.read()
    if kept is None:
        return None
    try:
        found = Manifest.from_json(kept)
    except InvalidConfiguration:
        # Whoever needs its ranges raises.
        return None
    output = found.request.get("output")
    is_here = isinstance(output, Mapping) and output.get("path") == request.path
    return found if found.is_done and is_here else None


def _is_same_cluster(request: LoadRequest, found: Manifest) -> bool:
    return _source_of(request.canonical()).get("service.url") == _source_of(found.request).get("service.url")


def _is_same_interval(request: LoadRequest, found: Manifest) -> bool:
    """Return True if both have the same bounds, and at least one that is fixed: else all that is there is loaded."""
    wanted, had = (
        {name: text for name, text in source.items() if name in _BOUNDS and text.lower() not in _OPEN}
        for source in (_source_of(request.canonical()), _source_of(found.request))
    )
    return bool(wanted) and wanted == had


def _source_of(canonical: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a request's document by their names in lower case."""
    return {name.lower(): str(text).strip() for name, text in dict(canonical.get("source") or {}).items()}


def _not_read(request: LoadRequest, found: Manifest) -> list[str]:
    """Return the topics of a finished load that the request does not read."""
    options = request.read_options()
    pattern = options.topics_pattern

    def is_read(topic: str) -> bool:
        base = _base(topic)
        return topic in options.topics or base in options.topics or (pattern is not None and pattern.matches(base))

    return sorted({_base(item.topic) for item in found.ranges if not is_read(item.topic)})


def _with_schema(plan: Plan, document: Document) -> Plan:
    """Return the plan of a committed run with the columns and the definition that its manifest has."""
    kept = document.read()
    found = None if kept is None else Manifest.from_json(kept)
    if found is None or found.request != plan.manifest.request:
        return plan
    return replace(plan, manifest=replace(plan.manifest, columns=found.columns, definition=found.definition))


def _bounded(request: LoadRequest, source: Mapping[str, str], options: ReadOptions, document: Document) -> Plan:
    kept = document.read() if request.replay != "never" else None
    if kept is None and request.replay == "require":
        raise InvalidConfiguration(f"replay=require: there is no manifest at {request.manifest}")
    found = Manifest.from_json(kept) if kept is not None else None
    if found is not None and _replays(request, found):
        return Plan(replace(found, attempt=request.attempt), frozen(source, found.ranges), replayed=True)
    fresh = Manifest(request.canonical(), _planned_again(request, options, document), attempt=request.attempt)
    return Plan(fresh, frozen(source, fresh.ranges))


def _planned_again(request: LoadRequest, options: ReadOptions, document: Document) -> list[Range]:
    """Return the planned ranges; raises `DataLoss` if they lack messages of the finished load that they replace.

    With failOnDataLoss=false that is logged. Positions of another cluster are not compared.
    """
    found = None if request.table is not None and request.table.mode == MERGE else _finished(request, document)
    had: Mapping[str, Delivered] = {}
    if found is not None and _is_same_interval(request, found) and _is_same_cluster(request, found):
        had = found.delivered or {}

    def lose(topic: str, reason: str) -> None:
        lost = f"{request.path} has rows of a finished load of this interval that a new plan lacks: {reason}"
        if options.fail_on_data_loss:
            raise DataLoss(
                f"{lost}. The output stays as it was; failOnDataLoss=false replaces it with what is left", topic=topic
            )
        _log.warning("%s (failOnDataLoss=false)", lost)

    def checked(item: Range, probe: Probe) -> Range:
        # Compaction removes messages on purpose.
        if item.topic in had and not options.read_compacted:
            start, first = had[item.topic].first, probe.first()
            if first is None or first.position.entry_start > start.entry_start:
                there = "none is left" if first is None else f"the first one left is {first.position}"
                lose(item.topic, f"messages of {item.topic} from {start} on are gone, {there}")
        return item

    ranges = plan(options, narrowed=checked)
    for topic in sorted(had.keys() - {item.topic for item in ranges}):
        lose(topic, f"{topic} is no longer there")
    return ranges


def _replays(request: LoadRequest, found: Manifest) -> bool:
    """Return True if the ranges of a manifest are to be read.

    That is so for the same request if its end is fixed, and the plan was made after that. A plan from before endingTime
    and the slack lacks the messages that were published since: it is made again, also where its run had failed, since
    the rows replace those of that try. Of an end "up to now" the plan of a run that has not succeeded is repeated.
    """
    same = found.request == request.canonical()
    if request.replay == "require" and not same:
        raise InvalidConfiguration(f"replay=require: the manifest at {request.manifest} is of another request")
    if not same or request.replay == "require" or request.ended_before(found.time):
        return same
    return request.read_options().ending_time is None and not found.is_done


def _behind_last(
    spark: SparkSession, request: LoadRequest, source: Mapping[str, str], options: ReadOptions, recovers: bool
) -> Plan:
    assert request.commits is not None
    log = CommitLog(spark, request.commits)
    commits = log.commits()
    log.check(commits, _topics(options), request, is_pattern=options.topics_pattern is not None)
    own = next(
        (commit for commit in reversed(commits) if commit.run == request.run and commit.path == request.path), None
    )
    if commits and recovers:
        recover(spark, commits[-1], is_repeated=own is commits[-1])
    before = [commit for commit in commits if own is None or commit.number < own.number]
    base = before[-1] if before else None
    # Old documents may have been removed from the log.
    is_first = not commits if own is None else own.number == 1
    emptied: Sequence[Range] = ()
    if own is not None:
        ranges: Sequence[Range] = own.ranges
    elif base is None:
        _check_start(request, options)
        ranges = plan(options, narrowed=_noted)
    else:
        ranges, emptied = _ranges_behind(base, options)
    read = source if is_first else {name: text for name, text in source.items() if name.lower() != "startingtime"}
    manifest = Manifest(request.canonical(), ranges, attempt=request.attempt)
    return Plan(manifest, frozen(read, ranges), replayed=own is not None, base=base, own=own, emptied=emptied)


def _topics(options: ReadOptions) -> Sequence[str]:
    if options.topics_pattern is None:
        return options.topics
    with Broker(options) as broker:
        return broker.topics()


def _check_start(request: LoadRequest, options: ReadOptions) -> None:
    folded = {name.lower() for name in request.source}
    if options.starting_time is None and "startingoffsets" not in folded:
        raise InvalidConfiguration(
            f'"since": "last_success" has no successful load yet in {request.commits}: the first one needs a start, '
            'startingTime (interval_start of the operator) or startingOffsets="earliest"'
        )


def _ranges_behind(base: Commit, options: ReadOptions) -> tuple[list[Range], list[Range]]:
    """Return the ranges after the end of the last load, and those of them in partitions without messages any more.

    A new partition begins at its first message, and so does one that was empty.
    """
    known = base.ends()
    ends = {topic: end for topic, end in known.items() if not _is_unread(end)}
    for topic in _gone(ends, options):
        del ends[topic]
    bases = {_base(topic) for topic in known}
    start = Offsets("startingOffsets", "earliest", ends)

    def checked(item: Range, probe: Probe) -> Range:
        if item.topic in ends:
            return item
        # A topic that was added to the options may have been trimmed before; one of a pattern was created since.
        is_followed = options.topics_pattern is not None or _base(item.topic) in bases
        if is_followed and options.finds_loss:
            begin = known.get(item.topic, _UNKNOWN)
            check_unread(item.topic, begin if begin > _UNKNOWN else None, probe)
        return _noted(item, probe)

    found = plan(replace(options, starting_time=None, starting_offsets=start), narrowed=checked)
    ranges = carried(ends, found)
    moved = [item for item, was in zip(ranges, found, strict=True) if item != was]
    return ranges, moved if options.fail_on_data_loss else []


def _gone(ends: Mapping[str, Position], options: ReadOptions) -> list[str]:
    """Return the loaded topic partitions that are not there any more; raises `DataLoss` unless failOnDataLoss=false."""
    with Broker(options) as broker:
        there = {partition for topic in broker.topics() for partition in broker.partitions(topic)}
    gone = [topic for topic in ends if topic not in there]
    if gone and options.fail_on_data_loss:
        raise DataLoss(
            f"{', '.join(gone)} was read by the last load and is no longer there: the topic was deleted, or made again "
            "with another number of partitions, and messages that were published to it since that load may be gone. "
            "failOnDataLoss=false goes on without it, and reads new partitions from their first message on",
            topic=gone[0],
        )
    for topic in gone:
        _log.warning("%s was read by the last load and is no longer there: left out (failOnDataLoss=false)", topic)
    return gone


def _is_unread(end: Position) -> bool:
    """Return True for the end of a partition that held no message: nothing of its ledger was read."""
    return end.entry == 0 and end.batch < 0


def _base(topic: str) -> str:
    return TopicName.parse(topic).base.full


def _noted(item: Range, probe: Probe) -> Range:
    """Return the range of an empty partition at the beginning of its current ledger, where that is known."""
    begin = probe.empty_ledger() if item.end == _UNKNOWN else None
    return item if begin is None else Range(item.topic, begin, begin)


def frozen(source: Mapping[str, str], ranges: Sequence[Range]) -> dict[str, str]:
    """Return the options for exactly these ranges; the time bounds stay, since they filter rows."""
    chosen = ("topic", "topics", "topicspattern", "startingoffsets", "endingoffsets")
    kept = {name: value for name, value in source.items() if name.lower() not in chosen}
    starts, ends = bounds(ranges)
    # The option topic takes a name with a comma.
    separated = next((topic for topic in starts if "," in topic and len(starts) > 1), None)
    if separated is not None:
        raise InvalidConfiguration(
            f"{separated} has a comma, and cannot be loaded together with other topic partitions"
        )
    return {
        **kept,
        "topic" if len(starts) == 1 else "topics": ",".join(starts),
        "startingOffsets": format_offsets(starts),
        "endingOffsets": format_offsets(ends),
    }
