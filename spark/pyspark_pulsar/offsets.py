"""Plan of a read: both ends of every topic partition, resolved once and frozen before any task starts.

Rules: a range is `[start, end)` in order of positions. `latest` is the last message that can be delivered at planning,
so that later ones are excluded. Times narrow the range by the broker's search, widened by the slack, and the task
filters rows exactly. Messages of the range that the topic does not hold any more are data loss: checked here, and again
by the task (`check_retained`). Messages from before an ending time that an open transaction holds back are awaited, if
admin.url tells of them. A range of positions is read unchanged, so that a stored plan replays exactly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pulsar_native.exceptions import InvalidConfiguration, Timeout
from pulsar_native.topic import TopicName
from pyspark_pulsar.errors import ADVICE, DataLoss
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Bound, Position

# Both ends of a range in an empty topic.
_NOWHERE = Position(0, 0)
# How often an open transaction is looked at.
_TRANSACTION_POLL_SECONDS = 0.5
# Search for an end by time: the least slack of the second request, which each further one doubles, up to 12 days.
_LEAST_SLACK_MS = 1000
_END_REQUESTS = 22


class Found(NamedTuple):
    """Message at the broker: its position and publish time (ms).

    `number` is its index in the topic, from 0, if the broker has message indexes, else None. `last_chunk` is the
    position of its last chunk if it is chunked; a chunked message has that one's index.
    """

    position: Position
    publish_time: int
    number: int | None = None
    last_chunk: Position | None = None


class Probe(Protocol):
    """Interface for requests about a topic partition; positions are those of messages that can be read."""

    def last(self) -> Position | None:
        """Return the last message, None if there is none."""

    def last_stored(self) -> Position | None:
        """Return the last message, also one that compaction left out; None when there is none."""

    def first(self) -> Found | None:
        """Return the first retained message, None if there is none."""

    def first_at(self, time_ms: int) -> Found | None:
        """Return the first message of the first entry found by the broker's search at or after a time, or None."""

    def is_trimmed(self) -> bool:
        """Return True if messages were removed since the broker loaded the topic."""

    def entries_before(self, ledger: int) -> int:
        """Return the number of retained entries in earlier ledgers, 0 if unknown."""

    def last_entry(self) -> Position | None:
        """Return the last entry, also one that cannot be delivered (yet); None if unknown or if there is none."""

    def empty_ledger(self) -> Position | None:
        """Return the beginning of the current ledger if no entry is stored; None if one is, or if that is unknown."""

    def is_held_back(self, last: Position | None, until_ms: int) -> bool:
        """Return True if an open transaction may hold back messages behind `last` that were published before a time.

        False also if that is unknown.
        """


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one topic partition from `start` up to `end`, exclusive; empty if both are equal."""

    topic: str
    start: Position
    end: Position

    @property
    def is_empty(self) -> bool:
        """True if the range is empty."""
        return self.start >= self.end

    @property
    def partition(self) -> int:
        """Number of the partition, -1 for a topic without partitions."""
        return TopicName.parse(self.topic).partition


def resolve(topic: str, options: ReadOptions, probe: Probe) -> Range:
    """Return the frozen range of one topic partition. Blocks like the probe."""
    start_bound, end_bound = options.starting_offsets.of(topic), options.ending_offsets.of(topic)
    if isinstance(start_bound, Position) and isinstance(end_bound, Position):
        if end_bound < start_bound:
            raise InvalidConfiguration(
                f"endingOffsets of {topic} ({end_bound}) is before startingOffsets ({start_bound})"
            )
        if end_bound == start_bound:
            return Range(topic, start_bound, end_bound)
    last = probe.last()  # First: later messages are not part of the plan.
    end = _end(topic, end_bound, last, options, probe)
    start = _start(topic, start_bound, end, last, options, probe)
    return Range(topic, min(start, end), end)


def _end(topic: str, bound: Bound, last: Position | None, options: ReadOptions, probe: Probe) -> Position:
    behind_last = last.after_entry if last is not None else _NOWHERE
    if isinstance(bound, Position):
        # Compaction removes messages on purpose, the last ones too: an end behind these was reached.
        stored = probe.last_stored() if options.read_compacted and bound > behind_last else last
        is_reached = stored is not None and bound <= stored.after_entry
        if not is_reached and bound > behind_last and options.fail_on_data_loss:
            there = f"its last message is {last}" if last is not None else "it holds no message"
            raise DataLoss(
                f"endingOffsets asks for messages up to {bound}, but {there}: they are gone, not there yet, or held "
                f"back by an open transaction. {ADVICE}",
                topic=topic,
            )
        return min(bound, behind_last)
    if options.ending_time is None:
        return behind_last
    found = end_at(options.ending_time, options.time_slack_ms, probe)
    if found is not None:
        # All before it can be delivered, also where a transaction that held some back has ended since `last`.
        return found.position.entry_start
    last = _last_before(topic, options.ending_time + options.time_slack_ms, last, options, probe)
    return last.after_entry if last is not None else _NOWHERE


def end_at(until: int, slack: int, probe: Probe) -> Found | None:
    """Return the message at which a range of publish times before `until` (ms) ends, None for the end of the topic.

    A broker that stamps entries searches by their arrival: one that took longer than the slack is found by the search,
    although it was published before `until`. So the search goes on from such a message with a growing slack; rows that
    are read in excess are left out by the task. Blocks for a few requests at the most.
    """
    for _ in range(_END_REQUESTS):
        found = probe.first_at(until + slack)
        if found is None or found.publish_time >= until:
            return found
        slack = max(2 * slack, _LEAST_SLACK_MS)
    return None


def _last_before(topic: str, until: int, last: Position | None, options: ReadOptions, probe: Probe) -> Position | None:
    """Return the last message when no open transaction holds back messages from before a time (ms).

    Blocks for up to pollTimeoutMs, and raises `Timeout` then: no later read of another interval would have them.
    """
    if not options.fail_on_data_loss:
        return last
    deadline = time.monotonic() + options.poll_timeout_ms / 1000
    while probe.is_held_back(last, until):
        if time.monotonic() >= deadline:
            raise Timeout(
                f"An open transaction holds back messages of {topic} behind its last message, {last}, which may be "
                f"from before endingTime: waited {options.poll_timeout_ms} ms (pollTimeoutMs). Read again when it has "
                "ended, as a retry does; failOnDataLoss=false reads without them",
                topic=topic,
            )
        time.sleep(_TRANSACTION_POLL_SECONDS)
    # One that has ended since has made its messages visible, and those behind it.
    return probe.last()


def _start(
    topic: str, bound: Bound, end: Position, last: Position | None, options: ReadOptions, probe: Probe
) -> Position:
    if isinstance(bound, Position):
        if options.finds_loss:
            if bound < end:
                check_retained(topic, bound, probe.first())
            elif last is not None:
                check_reached(topic, bound, last.after_entry, probe)
        return bound
    if options.starting_time is None:
        found = probe.first()
    else:
        found = probe.first_at(options.starting_time - options.time_slack_ms)
        if options.finds_loss:
            _check_beginning(topic, options.starting_time, probe)
    return end if found is None else found.position.entry_start


def _check_beginning(topic: str, starting_time: int, probe: Probe) -> None:
    """Raise `DataLoss` if messages were trimmed and none from before the starting time is left.

    The trimmed ones may have been in the interval. Trimming is known from the first message's index or from the admin
    interface; without both it stays unknown.
    """
    first = probe.first()
    if first is not None and first.publish_time <= starting_time:
        return
    if _is_later(first, probe) or probe.is_trimmed():
        left = "no message is left" if first is None else f"the first message left is of {first.publish_time} ms"
        raise DataLoss(
            f"The topic was trimmed and {left}, startingTime is {starting_time} ms: messages of the interval may be "
            f"gone. {ADVICE}",
            topic=topic,
        )


def _is_later(first: Found | None, probe: Probe) -> bool:
    """Return True if the first message's index shows that messages before it were removed."""
    if first is None or first.number is None:
        return False
    # What is still there before it has one index per entry: chunks, aborted transactions and their markers.
    at = first.last_chunk or first.position
    # The entries of one ledger are numbered from 0. Those before a message that spans two ledgers are not known.
    # A broker counts a batch of a transaction as one message, so that the first ones have indexes below 0.
    if first.number <= at.entry or at.ledger != first.position.ledger:
        return False
    return first.number > at.entry + probe.entries_before(at.ledger)


def check_unread(topic: str, begin: Position | None, probe: Probe) -> None:
    """Raise `DataLoss` if messages of a partition that the last load found empty may have been removed since.

    `begin` is the beginning of the ledger that was empty then, None if that is not known, as for a new partition.
    """
    first = probe.first()
    if first is None:
        is_lost = _is_emptied(begin, probe)
        left = "no message is left"
    else:
        is_kept = begin is not None and first.position.entry_start <= begin
        is_lost = not is_kept and (_is_later(first, probe) or probe.is_trimmed())
        left = f"the first message left is {first.position}"
    if is_lost:
        raise DataLoss(
            f"The last load found no message in {topic}; the topic was trimmed and {left}: messages since then may be "
            f"gone. {ADVICE}",
            topic=topic,
        )


def _is_emptied(begin: Position | None, probe: Probe) -> bool:
    """Return True if an entry from a position on is known, None for any position, and none is stored any more."""
    last = probe.last_entry()
    return last is not None and (begin is None or last >= begin) and not probe.entries_before(last.ledger + 1)


def check_emptied(topic: str, start: Position, probe: Probe) -> None:
    """Raise `DataLoss` if a topic without messages is known to have had some from `start` on.

    Not known without admin.url, nor if the broker has loaded the topic again since: the next message shows it then.
    """
    if _is_emptied(start.entry_start, probe):
        raise _emptied(topic, start)


def _emptied(topic: str, start: Position) -> DataLoss:
    return DataLoss(f"The messages from {start} on are gone: the topic holds none. {ADVICE}", topic=topic)


def check_reached(topic: str, start: Position, end: Position, probe: Probe) -> None:
    """Raise `DataLoss` for a start behind the end of the topic, which is that behind its last message.

    Such a topic would be read only from some later message on. Not raised if the start is known to be in an open
    transaction, or behind a transaction marker.
    """
    if start <= end:
        return
    last_entry = probe.last_entry()
    if last_entry is None or start > last_entry.after_entry:
        raise DataLoss(
            f"The read begins at {start}, but the topic ends at {end}: it was made again, the offsets are of another "
            "cluster, or an open transaction holds messages back. Begin at an offset of this topic, a stream with a "
            "new checkpoint, successive loads with a new commits folder; failOnDataLoss=false leaves out all messages "
            "before that position",
            topic=topic,
        )


def check_retained(topic: str, start: Position, first: Found | None) -> None:
    """Raise `DataLoss` if messages from `start` on are gone: the first retained one is after it.

    Compares entries, since whole ledgers are trimmed from the front.
    """
    if first is None:
        raise _emptied(topic, start)
    if first.position.entry_start > start.entry_start:
        raise DataLoss(
            f"Messages from {start} on are gone: the first one still there is {first.position}. {ADVICE}", topic=topic
        )


def bounds(ranges: Sequence[Range]) -> tuple[dict[str, Position], dict[str, Position]]:
    """Return starts and ends by topic for `format_offsets`."""
    return {item.topic: item.start for item in ranges}, {item.topic: item.end for item in ranges}
