"""Pieces of ranges: they cover the range whatever the ledgers are said to hold, and are about equal."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from pulsar_native import MessageId
from pulsar_native.exceptions import ConnectError
from pyspark_pulsar import splitting
from pyspark_pulsar.batch_reader import PulsarBatchReader
from pyspark_pulsar.broker import Ledger
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position
from pyspark_pulsar.splitting import cut, entries_within, joined, runs_of
from support.brokers import Broker, NewTopic
from support.publishing import Publish

LEDGERS = [Ledger(5, 10, 1_000), Ledger(9, 0, 0), Ledger(12, 100, 50_000), Ledger(13, 7, 70)]


@pytest.mark.parametrize(
    ("start", "end", "runs"),
    [
        (Position(5, 0), Position(13, 7), [(5, 0, 10), (12, 0, 100), (13, 0, 7)]),
        (Position(5, 4), Position(12, 50), [(5, 4, 6), (12, 0, 50)]),
        (Position(12, 3, 2), Position(12, 5, 1), [(12, 3, 3)]),
        (Position(5, 10), Position(12, 0), []),
        (Position(1, 3), Position(5, 2), [(5, 0, 2)]),
    ],
)
def test_entries_of_a_range_are_counted(start: Position, end: Position, runs: list[tuple[int, int, int]]) -> None:
    assert runs_of(Range("t", start, end), LEDGERS) == runs


@pytest.mark.parametrize("size", [1, 7, 10, 50, 117, 1000])
@pytest.mark.parametrize("ledgers", [LEDGERS, [], [Ledger(7, 3, 9)], [Ledger(12, 1000, 9)], [Ledger(5, 10, 9)]])
def test_splits_cover_the_range(size: int, ledgers: list[Ledger]) -> None:
    whole = Range("t", Position(5, 2, 3), Position(13, 6, 1))
    runs = runs_of(whole, ledgers)
    pieces = cut(whole, runs, size)
    assert (pieces[0].start, pieces[-1].end) == (whole.start, whole.end)
    assert all(one.end == two.start and not one.is_empty for one, two in pairwise(pieces))
    assert all(sum(count for *_, count in runs_of(piece, ledgers)) <= size + 1 for piece in pieces)


def few_of_each(*counts: int) -> list[Range]:
    """Return ranges of topics with these numbers of entries."""
    return [Range(f"t-{n}", Position(7, 10), Position(7, 10 + count)) for n, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "tasks"),
    [
        ([1] * 31, [1] * 31),
        ([1] * 64, [2] * 32),
        ([1] * 256, [8] * 32),
        ([8] * 256, [8] * 32),
        ([1] * 6400, [102] * 62 + [76]),
        ([10] * 24, [1] * 24),
        ([60] * 100, [3] * 33 + [1]),
        ([100] * 256, [4] * 64),
        ([600] * 100, [1] * 100),
        ([1, 500, 1, 1, *[1] * 60], [1, 1, *[5] * 12, 2]),
        ([1, 0, 1], [1, 1]),
        ([], []),
    ],
)
def test_joined_tasks_are_neither_small_nor_few(counts: list[int], tasks: list[int]) -> None:
    ranges = few_of_each(*counts)
    found = joined(ranges)
    assert [len(each) for each in found] == tasks
    assert [item for each in found for item in each] == [item for item in ranges if not item.is_empty]


@pytest.mark.parametrize(
    ("counts", "slots", "tasks"),
    [
        ([27, 28, 26, 27], 2, [2, 2]),
        ([27, 28, 26, 27], 3, [1, 1, 2]),
        ([27, 28, 26, 27], 4, [1] * 4),
        ([27, 28, 26, 27], 9, [1] * 4),
        ([1] * 66, 4, [17, 17, 17, 15]),
        # A large cluster does not have a task for each of them.
        ([1] * 66, 1000, [3] * 22),
        # A large range has a task of its own, and the others share the rest.
        ([500, *[60] * 5], 4, [1, 2, 2, 1]),
        ([5, 0, 5], 1, [2]),
        # No task is larger than 512 entries, each range counted with 4 more.
        ([100] * 8, 1, [4, 4]),
        ([600, 1, 600], 2, [1, 1, 1]),
        ([], 2, []),
    ],
)
def test_joined_for_known_slots_fills_each_once(counts: list[int], slots: int, tasks: list[int]) -> None:
    ranges = few_of_each(*counts)
    found = joined(ranges, slots)
    assert [len(each) for each in found] == tasks
    assert [item for each in found for item in each] == [item for item in ranges if not item.is_empty]


@pytest.mark.parametrize(("slots", "tasks"), [(None, [1, 1, 3]), (33, [1, 1, 5])])
def test_joined_leaves_ranges_of_unknown_size_alone(slots: int | None, tasks: list[int]) -> None:
    ranges = few_of_each(*[1] * 128)
    ranges[1] = Range("t-1", Position(7, 10), Position(8, 2))
    assert [len(each) for each in joined(ranges, slots)][:3] == tasks


def test_joined_keeps_pieces_of_one_range_apart() -> None:
    pieces = [Range("t", Position(7, n), Position(7, n + 1)) for n in range(100)]
    assert joined(pieces) == joined(pieces, 2) == [(piece,) for piece in pieces]


@pytest.mark.parametrize(
    ("start", "end", "size", "entries"),
    [
        (Position(5, 0), Position(13, 7), 100_000, 117),
        (Position(5, 0), Position(13, 7), 51_070, 117),
        (Position(5, 0), Position(13, 7), 51_069, 59),
        (Position(5, 4), Position(12, 50), 10_000, 19),
        (Position(12, 0), Position(12, 100), 1, 1),
        (Position(9, 0), Position(9, 0), 100, 1),
    ],
)
def test_entries_within_bytes(start: Position, end: Position, size: int, entries: int) -> None:
    assert entries_within(size, runs_of(Range("t", start, end), LEDGERS), LEDGERS) == entries


@pytest.mark.proves("S6")
def test_splits_of_a_partition_read_everything_once(
    broker: Broker, topic: NewTopic, publish: Publish, client: object
) -> None:
    name = topic(partitions=2)
    path = f"{name}-partition-0".replace("://", "/")
    groups = [[f"{entry:02}-{index}" for index in range(3)] for entry in range(20)]
    ids: list[MessageId] = publish(f"{name}-partition-0", *groups[:12])
    broker.admin("PUT", f"{path}/unload")
    publish(f"{name}-partition-0", *groups[12:])
    publish(f"{name}-partition-1", ["other"])
    wanted = [text for group in groups for text in group]

    def pieces(**options: str) -> list[list[str]]:
        given = {"service.url": broker.service_url, "admin.url": broker.admin_url, "topic": name, "columns": "value"}
        reader = PulsarBatchReader(ReadOptions.parse({**given, **options}))
        return [
            [value.decode() for batch in reader.read(split) for value in batch["value"].to_pylist()]
            for split in reader.partitions()
        ]

    whole = pieces()
    assert whole == [wanted, ["other"]]
    five = pieces(maxEntriesPerPartition="5")
    assert [len(piece) for piece in five] == [15, 15, 15, 15, 1]
    assert [value for piece in five[:-1] for value in piece] == wanted
    many = pieces(minPartitions="8")
    assert len(many) >= 8 and [value for piece in many[:-1] for value in piece] == wanted
    inside = f'{{"{name}-partition-0": "{ids[4].ledger_id()}:1:1", "{name}-partition-1": "earliest"}}'
    part = pieces(maxEntriesPerPartition="4", startingOffsets=inside)
    assert [value for piece in part[:-1] for value in piece] == wanted[4:]
    halves = pieces(maxBytesPerPartition=str(_stored(broker, path) // 2 + 1))
    assert [len(piece) for piece in halves] == [30, 30, 1]
    assert [value for piece in halves[:-1] for value in piece] == wanted


def _stored(broker: Broker, path: str) -> int:
    stats: Any = broker.admin("GET", f"{path}/internalStats")
    return int(stats["totalSize"])


def test_splits_by_default_size(
    broker: Broker, topic: NewTopic, publish: Publish, client: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    groups = [[f"{entry:02}-{index}" for index in range(3)] for entry in range(20)]
    publish(name, *groups)
    size = _stored(broker, name.replace("://", "/")) // 4 + 1

    def pieces(**options: str) -> list[list[str]]:
        given = {"service.url": broker.service_url, "topic": name, "columns": "value"}
        reader = PulsarBatchReader(ReadOptions.parse({**given, **options}))
        return [
            [value.decode() for batch in reader.read(split) for value in batch["value"].to_pylist()]
            for split in reader.partitions()
        ]

    wanted = [text for group in groups for text in group]
    monkeypatch.setattr(splitting, "DEFAULT_BYTES", size)
    admin = {"admin.url": broker.admin_url}
    assert pieces(**admin) == [wanted]  # Too few entries to be worth a request.
    monkeypatch.setattr(splitting, "_FEW_ENTRIES", 10)
    found = pieces(**admin)
    assert [len(piece) for piece in found] == [15, 15, 15, 15]
    assert [value for piece in found for value in piece] == wanted
    assert pieces() == [wanted]
    assert len(pieces(**admin, minPartitions="2")) == 2
    # A default makes no read fail; an option does.
    nowhere = {"admin.url": "http://127.0.0.1:1", "pulsar.client.operationTimeoutMs": "1000"}
    assert pieces(**nowhere) == [wanted]
    with pytest.raises(ConnectError):
        pieces(**nowhere, maxBytesPerPartition="1000")
