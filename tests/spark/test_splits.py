"""Splits: one per topic partition that holds something, and small enough to travel."""

from __future__ import annotations

import pickle

from pyspark_pulsar.offsets import Range
from pyspark_pulsar.positions import Position
from pyspark_pulsar.splits import make_splits

T = "persistent://public/default/t-partition-"


def test_there_is_one_split_per_range_that_is_not_empty_and_it_pickles() -> None:
    ranges = [Range(f"{T}{i}", Position(1, 0), Position(1, end)) for i, end in enumerate((5, 0, 7))]
    splits = make_splits(ranges)
    assert [split.range for split in splits] == [ranges[0], ranges[2]]
    assert [split.value for split in splits] == [f"{T}0", f"{T}2"]
    assert [pickle.loads(pickle.dumps(split)).range for split in splits] == [ranges[0], ranges[2]]
    assert repr(splits[0]) == f"Split({T}0 [1:0, 1:5))"


def test_an_empty_plan_has_no_splits() -> None:
    assert make_splits([]) == []
