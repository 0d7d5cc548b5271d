"""Splitting of frozen ranges for more tasks than topic partitions, and joining of small ones for fewer.

By minPartitions, maxEntriesPerPartition or maxBytesPerPartition, and without these by a default size in bytes if there
is an admin interface. Rules: a split begins at an entry, never inside one. The splits of a range cover it without gap
or overlap whatever the ledger sizes are, so that wrong or outdated numbers only make them uneven. Entries are counted,
not messages: a batch is one entry, and transaction markers count. Which ranges share a task depends on the ranges
alone, so that a repeated micro-batch has the same tasks. Pure but for `split_ranges`, which queries the admin
interface.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from pulsar_native.exceptions import PulsarException
from pyspark_pulsar.broker import Broker, Ledger, map_partitions
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position

# Bytes at the broker that one task reads by default: at most two seconds of Spark's work with messages of 100 B.
DEFAULT_BYTES = 64 * 1024 * 1024
# Entries of one ledger for which the broker is not asked by default: batches of the usual size make half of that.
_FEW_ENTRIES = 256
# Ranges share a task up to this number of entries, while there are at least this number of tasks, or as many as run at
# a time if that is less. Each range has an open cost, in entries, as each file has in Spark's file sources
# (openCostInBytes).
_JOINED_ENTRIES = 512
_LEAST_TASKS = 32
_OPEN_COST_IN_ENTRIES = 4

_log = logging.getLogger("pyspark_pulsar")


def split_ranges(options: ReadOptions, ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges split by the options, in the same order. Blocks if there is something to split.

    The default size only makes the read faster: ranges whose ledgers cannot be had then stay whole.
    """
    filled = [item for item in ranges if not item.is_empty]
    if not filled or options.admin_url is None:
        return filled
    by_default = not options.has_split_limits
    with Broker(options) as broker:

        def of_range(item: Range) -> Sequence[Ledger]:
            if by_default and _is_small(item):
                return ()
            try:
                return broker.ledgers(item.topic)
            except PulsarException as error:
                if not by_default:
                    raise
                _log.info("%s is read in one task, its ledgers are not known: %s", item.topic, error.message)
                return ()

        held = map_partitions(of_range, filled)
    runs = [runs_of(item, ledgers) for item, ledgers in zip(filled, held, strict=True)]
    most = options.max_entries_per_partition or (1 << 62)
    if options.min_partitions is not None:
        total = sum(count for found in runs for _, _, count in found)
        most = min(most, max(1, total // options.min_partitions))
    size = DEFAULT_BYTES if by_default else options.max_bytes_per_partition
    pieces = []
    for item, found, ledgers in zip(filled, runs, held, strict=True):
        limit = most if size is None else min(most, entries_within(size, found, ledgers))
        pieces += cut(item, found, limit)
    return pieces


def _is_small(item: Range) -> bool:
    entries = _known_entries(item)
    return entries is not None and entries < _FEW_ENTRIES


def _known_entries(item: Range) -> int | None:
    """Return the number of entries of a range in one ledger, None for several: only the broker knows their sizes."""
    return item.end.entry - item.start.entry if item.start.ledger == item.end.ledger else None


def joined(ranges: Sequence[Range], slots: int | None = None) -> list[tuple[Range, ...]]:
    """Return the ranges that are not empty by task, in the same order: small neighbours share one.

    `slots` is how many tasks run at a time, if that is known: there are no more tasks then, unless one would be too
    large, and the largest is as small as that allows. A task costs about as much as the reading of 50,000 messages of
    100 B. A range over several ledgers, whose number of entries is not known, has a task of its own, and so have the
    pieces of one topic partition, which were cut for that.
    """
    filled = [item for item in ranges if not item.is_empty]
    known = [_known_entries(item) for item in filled]
    weights = [None if entries is None else entries + _OPEN_COST_IN_ENTRIES for entries in known]
    if slots is None:
        limit = min(_JOINED_ENTRIES, sum(weight for weight in weights if weight is not None) // _LEAST_TASKS)
    else:
        most = min(slots, _LEAST_TASKS)
        # The smallest limit that is enough.
        limit = bisect_left(range(_JOINED_ENTRIES), True, key=lambda size: len(_within(filled, weights, size)) <= most)
    return [tuple(each) for each in _within(filled, weights, limit)]


def _within(ranges: Sequence[Range], weights: Sequence[int | None], limit: int) -> list[list[Range]]:
    """Return the ranges by task, of at most `limit` entries if a task has several ranges."""
    found: list[list[Range]] = []
    left = 0
    for item, weight in zip(ranges, weights, strict=True):
        if weight is not None and weight <= left and found[-1][-1].topic != item.topic:
            found[-1].append(item)
            left -= weight
        else:
            found.append([item])
            left = 0 if weight is None else limit - weight
    return found


def entries_within(size: int, runs: Sequence[tuple[int, int, int]], ledgers: Sequence[Ledger]) -> int:
    """Return how many entries of a range a split may have, for splits of at most about `size` bytes each."""
    average = {ledger.id: ledger.size / ledger.entries for ledger in ledgers if ledger.entries}
    entries = sum(count for _, _, count in runs)
    stored = sum(count * average[ledger] for ledger, _, count in runs)
    pieces = max(1, math.ceil(stored / size))
    return max(1, math.ceil(entries / pieces))


def count_entries(options: ReadOptions, ranges: Sequence[Range]) -> list[int | None]:
    """Return the number of entries of each range, 0 for an empty one, None without admin.url. Blocks."""
    if options.admin_url is None:
        return [0 if item.is_empty else None for item in ranges]
    with Broker(options) as broker:

        def of_range(item: Range) -> int:
            if item.is_empty:
                return 0
            return sum(count for _, _, count in runs_of(item, broker.ledgers(item.topic)))

        return map_partitions(of_range, ranges)


def runs_of(item: Range, ledgers: Sequence[Ledger]) -> list[tuple[int, int, int]]:
    """Return the entries of a range by ledger: id, first entry and number."""
    found = []
    for ledger, entries, _ in ledgers:
        first = item.start.entry if ledger == item.start.ledger else 0
        behind = entries
        if ledger == item.end.ledger:
            behind = min(entries, item.end.entry + (1 if item.end.batch > 0 else 0))
        if item.start.ledger <= ledger <= item.end.ledger and behind > first:
            found.append((ledger, first, behind - first))
    return found


def cut(item: Range, runs: Sequence[tuple[int, int, int]], size: int) -> list[Range]:
    """Return the range as splits of about equal numbers of entries, at most `size` each."""
    total = sum(count for _, _, count in runs)
    pieces = -(-total // size) if total else 1
    cuts = [_nth(runs, total * number // pieces) for number in range(1, pieces)]
    places = [item.start, *(place for place in cuts if item.start < place < item.end), item.end]
    return [Range(item.topic, start, end) for start, end in pairwise(places)]


def _nth(runs: Sequence[tuple[int, int, int]], number: int) -> Position:
    for ledger, first, count in runs:
        if number < count:
            return Position(ledger, first + number)
        number -= count
    raise AssertionError("there are not that many entries")
