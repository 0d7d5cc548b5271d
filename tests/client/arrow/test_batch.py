"""Received Arrow batches: the ids of ranges, merging, and rows by range."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.arrow.batch import ArrowBatch, EntryRange

TOPIC = "persistent://public/default/t"
WHOLE = EntryRange(TOPIC, 2, 7, 3, 5, 4)


@st.composite
def ranges(draw: st.DrawFn) -> EntryRange:
    """Make a range: entries as a whole, or a part of one."""
    size, first = draw(st.integers(0, 5)), draw(st.integers(0, 9))
    if size and draw(st.booleans()):
        return EntryRange(TOPIC, 2, 7, first, first, size, draw(st.integers(1, (1 << size) - 1)))
    return EntryRange(TOPIC, 2, 7, first, first + draw(st.integers(0, 3)), size)


def places(each: EntryRange) -> list[tuple[int, int]]:
    """Return entry and batch index of each row."""
    if not each.batch_size:
        return [(entry, -1) for entry in each.entries]
    return [
        (entry, index)
        for entry in each.entries
        for index in range(each.batch_size)
        if each.indexes is None or each.indexes >> index & 1
    ]


@given(ranges())
def test_range_ids_are_of_first_and_last_row(each: EntryRange) -> None:
    rows = places(each)
    assert len(each) == len(rows)
    for message_id, place in ((each.first_message_id(), rows[0]), (each.last_message_id(), rows[-1])):
        assert (message_id.entry_id(), message_id.batch_index()) == place
        assert (message_id.ledger_id(), message_id.partition(), message_id.topic_name()) == (7, 2, TOPIC)
        assert message_id.batch_size() == each.batch_size


@given(ranges(), ranges())
def test_range_continued_has_the_rows_of_both(one: EntryRange, other: EntryRange) -> None:
    merged = one.continued(other)
    if merged is not None:
        assert places(merged) == places(one) + places(other)
    else:
        adjacent = one.last_entry + 1 == other.first_entry and one.batch_size == other.batch_size
        assert not adjacent or one.indexes is not None or other.indexes is not None


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "persistent://public/default/u"},
        {"ledger_id": 8},
        {"first_entry": 7, "last_entry": 7},
        {"first_entry": 5, "last_entry": 6},
        {"batch_size": 5},
        {"redelivery_count": 1},
        {"indexes": 1},
    ],
)
def test_range_continued_only_by_equal_neighbours(change: dict[str, Any]) -> None:
    following = replace(WHOLE, first_entry=6, last_entry=6)
    assert WHOLE.continued(following) == replace(WHOLE, last_entry=6)
    assert WHOLE.continued(replace(following, **change)) is None


def test_parts_are_views_of_their_rows() -> None:
    rows = pa.RecordBatch.from_pydict({"value": list(range(7))})
    own = [EntryRange(TOPIC, 2, 7, 0, 1, 2), EntryRange(TOPIC, 2, 7, 2, 2), EntryRange(TOPIC, 2, 7, 5, 5, 4, 0b1010)]
    batch = ArrowBatch(rows, own)
    found = list(batch.parts())
    assert [each for each, _ in found] == own
    assert [part["value"].to_pylist() for _, part in found] == [[0, 1, 2, 3], [4], [5, 6]]
    start = rows["value"].buffers()[1].address
    assert [part["value"].buffers()[1].address for _, part in found] == [start] * 3
    assert len(batch) == 7 and repr(batch) == "<ArrowBatch: 7 rows of 3 ranges of entries>"
    assert len({batch, ArrowBatch(rows, own)}) == 2
