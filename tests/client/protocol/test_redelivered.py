"""Entries asked for again: the newest are kept, those that came are no longer counted."""

from __future__ import annotations

from pulsar_native.protocol.redelivered import KEPT, RedeliveredEntries


def test_add_beyond_the_limit_returns_the_oldest() -> None:
    entries = RedeliveredEntries()
    assert entries.add((1, entry) for entry in range(KEPT)) == []
    assert entries.add([(1, 0), (2, 0)]) == [(1, 1)]
    assert entries.add([(2, 1), (2, 2)]) == [(1, 2), (1, 3)]


def test_discarded_entries_make_place_for_others() -> None:
    entries = RedeliveredEntries()
    entries.add((1, entry) for entry in range(KEPT))
    entries.discard((1, 0))
    entries.discard((5, 0))
    assert entries.add([(2, 0)]) == []
    entries.clear()
    assert entries.add((3, entry) for entry in range(KEPT)) == []
