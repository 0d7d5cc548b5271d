"""Batch budget of rows and bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.arrow.entry_slice import BatchBudget


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=8), st.integers(1, 12), st.integers(1, 30)
)
def test_batch_budget_never_exceeded_nor_wasted(entries: list[list[int]], rows: int, size: int) -> None:
    budget = BatchBudget(rows, size)
    taken: list[int] = []
    left: list[int] = []
    for number, sizes in enumerate(entries):
        count = budget.spend(sizes)
        taken += sizes[:count]
        if budget.full:
            left = [*sizes[count:], *(each for entry in entries[number + 1 :] for each in entry)]
            break
    assert len(taken) <= rows
    assert sum(taken) <= size or len(taken) == 1
    if left:
        assert len(taken) == rows or sum(taken) + left[0] > size or sum(taken) == size
    if entries:
        # The first always fits, however large.
        assert taken
