"""Streaming reader: determines the end of each micro-batch in the planner's process, and reads it in the tasks.

The planner's process lives as long as the query. It holds one small non-durable reader per topic partition, which finds
both ends and leaves nothing at the broker. The object is pickled into every task, with checked options only. Rules: the
two offsets alone determine the messages of a micro-batch, so that a repeated one reads the same. A partition that the
start offset has no position of begins at its first message, which the end offset holds. No reader is opened on a topic
that is gone, since that would create it. Under AvailableNow no message published, and no partition added, after the
start of the query is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pulsar_native.exceptions import InvalidConfiguration, PulsarException, TopicNotFound
from pyspark_pulsar.admission import admit
from pyspark_pulsar.batch_reader import Split, check_keys, make_splits, read_split
from pyspark_pulsar.broker import PARALLEL, Broker
from pyspark_pulsar.cursor import DurableCursor
from pyspark_pulsar.errors import ADVICE, DataLoss
from pyspark_pulsar.offsets import Probe, Range, check_emptied, check_reached, check_retained
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position
from pyspark_pulsar.stream_offsets import Offset, Positions, from_document, to_document

if TYPE_CHECKING:
    import pyarrow

    from pyspark_pulsar.value_schema import ValueSchema

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    _HAS_LIMITS = True
except ImportError:  # Spark before 4.2
    _HAS_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replacement of a class that older versions of Spark lack."""


_log = logging.getLogger("pyspark_pulsar")

# A query without new messages plans again at once; the broker is queried no more often than this.
_POLL_SECONDS = 0.1
# How often the admin interface is asked about a partition that holds no message any more.
_EMPTIED_SECONDS = 60.0


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of topic partitions in micro-batches from one offset to the next."""

    def __init__(self, options: ReadOptions, values: ValueSchema | None = None) -> None:
        limits = (options.max_messages_per_trigger, options.max_bytes_per_trigger)
        if not _HAS_LIMITS and limits != (None, None):
            raise InvalidConfiguration("maxMessagesPerTrigger and maxBytesPerTrigger need Spark 4.2 or newer")
        self._options = options
        self._values = values
        self._planner: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a query without a checkpoint, by startingOffsets or startingTime. Blocks."""
        return to_document(self._planning().initial())

    # Spark before 4.2 passes no arguments, and later versions inspect the signature.
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Return the end of the next micro-batch: the last message at present, or the limits. Blocks.

        Raises `DataLoss` if a topic partition of `start` is gone.
        """
        known = from_document(start) if start is not None else None
        unlimited = not _HAS_LIMITS or isinstance(limit, ReadAllAvailable)
        return to_document(self._planning().latest(known, unlimited=unlimited))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options; if both are given, both apply."""
        if self._options.max_messages_per_trigger is not None:
            return ReadMaxRows(self._options.max_messages_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end of the query at the present last messages and partitions. Blocks."""
        self._planning().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known ends of the partitions, for the query's progress. Does not block."""
        ends = self._planning().ends
        return to_document(Offset(ends)) if ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one split per topic partition with messages between the offsets, small ones joined. Blocks.

        Raises `DataLoss` if some of them are gone: checked here for the first micro-batch with messages of a partition
        after a start, whose offset may be old, and in the task for all of them.
        """
        begin, planner = from_document(start), self._planning()
        splits = make_splits(planner.ranges(begin, from_document(end)))
        for split in splits:
            split.starting_time = planner.starting_time(begin)
        return splits

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Return the record batches of a split, as `PulsarBatchReader.read` does. Blocks while iterated."""
        options = self._options
        if isinstance(partition, Split):
            options = replace(options, starting_time=partition.starting_time)
        return read_split(options, partition, self._values)

    def commit(self, end: dict[str, Any]) -> None:
        """Advance the predefined subscription, if any, to the finished offset. Blocks; never fails the query."""
        self._planning().commit(from_document(end))

    def stop(self) -> None:
        """Close the planner's readers."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _planning(self) -> StreamPlanner:
        if self._planner is None:
            check_keys(self._options)
            self._planner = StreamPlanner(self._options)
        return self._planner


class StreamPlanner:
    """Ends of all topic partitions of one query. Blocks; for one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._held = ExitStack()
        self._broker = self._held.enter_context(Broker(options))
        self._pool = self._held.enter_context(ThreadPoolExecutor(PARALLEL, thread_name_prefix="pulsar-plan"))
        self._probes: dict[str, tuple[Probe, ExitStack]] = {}
        # Partitions whose start is known to have been retained when this query started.
        self._retained: set[str] = set()
        # When partitions without messages were looked at last.
        self._emptied_at: dict[str, float] = {}
        self._cursor: DurableCursor | None = None
        if options.predefined_subscription is not None:
            cursor = DurableCursor(self._broker.client, options.predefined_subscription)
            self._cursor = self._held.enter_context(cursor)
        self._topics: list[str] = []
        # Error of a topic of the options that is not there: an offset shows whether messages of it are gone.
        self._missing: TopicNotFound | None = None
        self._looked_at = float("-inf")
        self._polled_at = float("-inf")
        self._is_idle = False
        self._turn = 0
        # Ends under AvailableNow, None for an unbounded query.
        self._frozen: Positions | None = None
        self.ends: Positions = {}

    def initial(self) -> Offset:
        """Return the start of a query without a checkpoint."""
        topics = self._current_topics() if self._frozen is None else list(self._frozen)
        if self._missing is not None:
            raise self._missing
        self._options.starting_offsets.check_names(topics)
        found = dict(zip(topics, self._pool.map(self._begin, topics), strict=True))
        if self._cursor is not None:
            self._cursor.hold(topics)
            self._cursor.advance(found)
        return Offset(found, starting_time=self._options.starting_time)

    def starting_time(self, start: Offset | None) -> int | None:
        """Return the publish time before which messages are left out, as the query began, whatever the options say now.

        Spark before 4.2 does not tell where a micro-batch starts, so that its offsets cannot hold the time: the options
        tell it.
        """
        return start.starting_time if _HAS_LIMITS and start is not None else self._options.starting_time

    def latest(self, start: Offset | None, *, unlimited: bool) -> Offset:
        """Return the end of the next micro-batch, `start` itself if there is nothing new.

        Without `start` (Spark before 4.2) it has no beginnings: which partitions get their first messages is not known.
        """
        if self._is_idle and self._frozen is None:
            time.sleep(max(0.0, self._polled_at + _POLL_SECONDS - time.monotonic()))
        ends = self._frozen if self._frozen is not None else self._ask()
        known = start.positions if start is not None else {}
        self._check_gone(known, ends)
        if self._missing is not None and self._options.fail_on_data_loss:
            raise self._missing
        self._check_reached(known, ends)
        reached = {topic: _later(known.get(topic), end) for topic, end in ends.items()}
        if self._frozen is not None:
            reached = {**known, **reached}
        begins = self._begins(known, reached) if start is not None else {}
        limits = (self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger)
        if not unlimited and limits != (None, None) and reached != known:
            self._turn += 1
            options = replace(self._options, starting_time=self.starting_time(start))
            reached = admit(self._broker, options, {**known, **begins}, reached, self._turn)
        end = Offset(reached, begins, self.starting_time(start))
        if start is not None and reached == known:
            end = start
        self._is_idle = end is start
        return end

    def freeze(self) -> None:
        """End the query at the present last messages."""
        self._frozen = self._ask()

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """Return the ranges between two offsets by topic partition."""
        known = start.positions
        wanted = {topic: at for topic, at in end.positions.items() if at is not None and at != known.get(topic)}
        starts = [known.get(topic) or end.begins.get(topic) for topic in wanted]
        found = self._pool.map(self._range, wanted, starts, wanted.values())
        return [item for item in found if item is not None]

    def commit(self, end: Offset) -> None:
        """Advance the durable cursor."""
        if self._cursor is not None:
            self._cursor.advance(end.positions)

    def close(self) -> None:
        """Close readers, cursor and client."""
        for _, held in self._probes.values():
            held.close()
        self._probes.clear()
        self._held.close()

    def _ask(self) -> Positions:
        topics = self._current_topics()
        if self._cursor is not None:
            self._cursor.hold(topics)
        self.ends = dict(zip(topics, self._pool.map(self._end, topics), strict=True))
        self._polled_at = time.monotonic()
        return self.ends

    def _current_topics(self) -> list[str]:
        """Return the topic partitions, looked up again from time to time."""
        interval = self._options.auto_update_partitions_interval_seconds
        if self._topics and time.monotonic() < self._looked_at + interval:
            return self._topics
        found: list[str] = []
        self._missing = None
        for topic in self._broker.topics():
            try:
                found += self._broker.partitions(topic)
            except TopicNotFound as error:
                self._missing = error
        if self._missing is not None and not found and not self._options.fail_on_data_loss:
            raise self._missing
        self._topics = list(dict.fromkeys(found))
        self._looked_at = time.monotonic()
        for gone in self._probes.keys() - set(self._topics):
            self._probes.pop(gone)[1].close()
        return self._topics

    def _probe(self, topic: str) -> Probe:
        if topic not in self._probes:
            held = ExitStack()
            self._probes[topic] = (held.enter_context(self._broker.probe(topic)), held)
        return self._probes[topic][0]

    def _end(self, topic: str) -> Position | None:
        last = self._probe(topic).last()
        return None if last is None else last.after_entry

    def _begin(self, topic: str) -> Position | None:
        options, probe = self._options, self._probe(topic)
        bound = options.starting_offsets.of(topic)
        if isinstance(bound, Position):
            return bound
        # Any other start is a message the topic holds now.
        self._retained.add(topic)
        end = self._end(topic)
        if options.starting_time is not None:
            found = probe.first_at(options.starting_time - options.time_slack_ms)
            return end if found is None else found.position.entry_start
        if bound == "latest" or end is None:
            return end
        found = probe.first()
        return end if found is None else found.position.entry_start

    def _begins(self, known: Positions, reached: Positions) -> dict[str, Position]:
        """Return the first messages of the partitions that have no known position and reach one."""
        new = {topic: at for topic, at in reached.items() if at is not None and known.get(topic) is None}
        found = dict(zip(new, self._pool.map(self._first, new, new.values()), strict=True))
        self._retained.update(found)
        return found

    def _first(self, topic: str, end: Position) -> Position:
        found = self._probe(topic).first()
        return end if found is None else min(found.position.entry_start, end)

    def _range(self, topic: str, start: Position | None, end: Position) -> Range | None:
        """Return the range between two positions, None for a topic that is gone if that does not fail the query."""
        is_checked = self._options.finds_loss and topic not in self._retained
        if start is not None and (start >= end or not is_checked):
            return Range(topic, min(start, end), end)
        # The checkpoint may name topics that are not those of the options.
        if topic not in self._probes and not self._broker.still_has(topic):
            return None
        if start is None:
            return Range(topic, self._first(topic, end), end)
        check_retained(topic, start, self._probe(topic).first())
        # The next starts are at most one micro-batch old. A request more per partition and micro-batch would cost more
        # than it finds: the task compares before and after it reads.
        self._retained.add(topic)
        return Range(topic, start, end)

    def _check_reached(self, start: Positions, ends: Positions) -> None:
        if not self._options.finds_loss:
            return
        for topic, known_end in ends.items():
            at = start.get(topic)
            if at is None or (known_end is not None and at <= known_end):
                continue
            if known_end is None and not self._is_due(topic):
                continue
            # A frozen end may be older than the start of a new query.
            end = self._end(topic)
            if end is not None:
                check_reached(topic, at, end, self._probe(topic))
            else:
                self._check_emptied(topic, at)

    def _is_due(self, topic: str) -> bool:
        """Return True, and begin the next interval, if a partition without messages is to be looked at again."""
        now = time.monotonic()
        if now < self._emptied_at.get(topic, float("-inf")) + _EMPTIED_SECONDS:
            return False
        self._emptied_at[topic] = now
        return True

    def _check_emptied(self, topic: str, start: Position) -> None:
        try:
            check_emptied(topic, start, self._probe(topic))
        except DataLoss:
            raise
        except PulsarException as error:
            # The next message shows it.
            _log.warning("Whether messages of %s were removed is not known (%s)", topic, type(error).__name__)

    def _check_gone(self, start: Positions, ends: Mapping[str, Position | None]) -> None:
        gone = [topic for topic, at in start.items() if topic not in ends and at is not None]
        if gone and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{', '.join(gone)} was read and is no longer there, or the options do not name it any more: begin a "
                f"new checkpoint then. {ADVICE}",
                topic=gone[0],
            )


def _later(one: Position | None, other: Position | None) -> Position | None:
    if one is None or other is None:
        return one or other
    return max(one, other)
