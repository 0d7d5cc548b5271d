"""Splitting of frozen ranges for more tasks than topic partitions (minPartitions, maxEntriesPerPartition).

Rules: a split begins at an entry, never inside one. The splits of a range cover it without gap or overlap whatever the
ledger sizes are, so that wrong or outdated numbers only make them uneven. Entries are counted, not messages: a batch is
one entry, and transaction markers count. Pure but for `split_ranges`, which queries the admin interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pyspark_pulsar.broker import Broker, map_partitions
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position

Ledgers = Sequence[tuple[int, int]]
"""Ledger ids in order, each with its number of entries."""


def split_ranges(options: ReadOptions, ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges split by the options, in the same order. Blocks if there is something to split."""
    filled = [item for item in ranges if not item.is_empty]
    if not filled or (options.min_partitions is None and options.max_entries_per_partition is None):
        return filled
    with Broker(options) as broker:
        held = map_partitions(lambda item: broker.ledgers(item.topic), filled)
    runs = [runs_of(item, ledgers) for item, ledgers in zip(filled, held, strict=True)]
    size = options.max_entries_per_partition or (1 << 62)
    if options.min_partitions is not None:
        total = sum(count for found in runs for _, _, count in found)
        size = min(size, max(1, total // options.min_partitions))
    return [piece for item, found in zip(filled, runs, strict=True) for piece in cut(item, found, size)]


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


def runs_of(item: Range, ledgers: Ledgers) -> list[tuple[int, int, int]]:
    """Return the entries of a range by ledger: id, first entry and number."""
    found = []
    for ledger, entries in ledgers:
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
