"""Ids of messages sent together, made when they are asked for."""

from __future__ import annotations

import pickle

import pytest

from pulsar_native.message_id import MessageId
from pulsar_native.message_ids import MessageIds


def last(entry: int, size: int) -> MessageId:
    """The id of an entry's last message, as the receipt gives it."""
    if size == 1:
        return MessageId(2, 7, entry, -1, topic="t")
    return MessageId(2, 7, entry, size - 1, batch_size=size, topic="t")


def test_rows_of_runs_find_their_entry() -> None:
    """Entries of rows that follow each other: nothing is stored per message."""
    ids = MessageIds()
    ids._grow(3)
    first, alone = ids._entry(range(2)), ids._entry((2,))
    ids._grow(3)
    second = ids._entry(range(3, 5))
    for number, size in ((first, 2), (alone, 1), (second, 2)):
        assert ids.get(2 * number) is None
        ids._stored(number, last(number, size))
    places = [(each.entry_id(), each.batch_index()) for each in ids[:5]]
    assert places == [(0, 0), (0, 1), (1, -1), (2, 0), (2, 1)]
    assert ids._scattered is None and len(ids) == 6 and ids.get(5) is None
    for outside in (6, -7):
        with pytest.raises(IndexError):
            ids.get(outside)
    assert pickle.loads(pickle.dumps(ids))[4] == ids[4]


def test_rows_keep_their_entry_when_later_ones_are_scattered() -> None:
    ids = MessageIds()
    ids._grow(4)
    ids._stored(ids._entry(range(2)), last(0, 2))
    ids._grow(3)
    ids._stored(ids._entry([2, 4]), last(1, 2))
    ids._grow(1)
    ids._stored(ids._entry([3, 5, 7]), last(2, 3))
    places = [(each.entry_id(), each.batch_index()) for row in (0, 1, 2, 3, 4, 5, 7) for each in [ids[row]]]
    assert places == [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (2, 1), (2, 2)]
    assert ids.get(6) is None and len(ids) == 8


def test_rows_find_their_entry_and_their_place_in_it() -> None:
    ids = MessageIds()
    ids._grow(5)
    scattered = ids._entry([0, 3])
    run = ids._entry(range(1, 3))
    alone = ids._entry((4,))
    ids._stored(scattered, last(1, 2))
    ids._stored(run, last(2, 2))
    assert ids.get(4) is None and ids.get(0) == MessageId(2, 7, 1, 0)
    with pytest.raises(LookupError, match="4"):
        ids[4]
    ids._stored(alone, last(3, 1))
    places = [(each.entry_id(), each.batch_index(), each.batch_size()) for each in ids]
    assert places == [(1, 0, 2), (2, 0, 2), (2, 1, 2), (1, 1, 2), (3, -1, 0)]
    assert ids[-1] == last(3, 1) and ids[1:3] == [ids[1], ids[2]]
    assert ids == list(ids) and ids != list(ids)[:4] and {each.topic_name() for each in ids} == {"t"}
    assert list(pickle.loads(pickle.dumps(ids))) == list(ids)
    assert repr(ids) == "<MessageIds of 5 messages in 3 entries>"
    with pytest.raises(IndexError):
        ids[5]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=["in_order", "scattered"])
def test_rows_of_the_open_batch_keep_their_ids(order: list[int]) -> None:
    """Rows that went one by one into a batch of five, which begins and ends with other messages or with them."""
    given = [MessageId(2, 7, 1, index, batch_size=5, topic="t") for index in (1, 3, 4)]
    ids = MessageIds()
    ids._grow(3)
    for row in order:
        ids._stored(ids._entry((row,)), given[row])
    assert [each.batch_index() for each in ids] == [1, 3, 4] and ids == given


@pytest.mark.parametrize("before", [0, 1], ids=["in_order", "scattered"])
def test_rows_count_back_from_their_last_one(before: int) -> None:
    """Rows that follow each other behind two other messages of their entry."""
    ids = MessageIds()
    ids._grow(3 + before)
    ids._stored(ids._entry(range(before, 3 + before)), last(1, 5))
    assert [each.batch_index() for each in ids[before:]] == [2, 3, 4]


def test_rows_of_no_entry_have_no_id() -> None:
    ids = MessageIds()
    ids._grow(2)
    assert [ids.get(row) for row in range(2)] == [None, None] and len(ids) == 2
