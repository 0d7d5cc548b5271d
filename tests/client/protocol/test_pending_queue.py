"""Pending queue of a producer: receipts in order, rejected entries, doubtful entries of transactions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.exceptions import NotAllowedError
from pulsar_native.protocol.send_op import ChunkOp, PendingQueue, SendOp, SendReceipt
from pulsar_native.protocol.transaction import TransactionCore
from pulsar_native.txn_id import TxnId
from support.producer_cores import core


def load(made: PendingQueue) -> tuple[int, int]:
    """Messages and bytes that are counted."""
    return made.messages, made.bytes


def entry(first: int, count: int = 1, transaction: TransactionCore | None = None) -> SendOp:
    """Return an entry of messages of 10 bytes."""
    op = SendOp(first, first + count - 1, [], [None] * count, 10 * count, 0.0)
    op.transaction = transaction
    return op


def queue(*ops: SendOp, last_published: int = -1) -> PendingQueue:
    """Return a queue of entries."""
    made = PendingQueue(last_published)
    for op in ops:
        made.append(op)
    return made


def chunks(sequence_id: int, count: int = 3) -> list[SendOp]:
    """Return the chunks of a message of 30 bytes."""
    return [
        ChunkOp(sequence_id, [], None, 30 if n == count - 1 else 0, 0.0, is_last=n == count - 1, places=[])
        for n in range(count)
    ]


def test_receipt_of_oldest_entry_completes_it() -> None:
    first, second = entry(0, 3), entry(3, 2)
    made = queue(first, second)
    assert load(made) == (5, 50)
    assert made.receipt(0) == (SendReceipt.COMPLETED, first) and (made.last_published, load(made)) == (2, (2, 20))
    assert made.receipt(3) == (SendReceipt.COMPLETED, second) and (made.last_published, load(made)) == (4, (0, 0))
    assert made.receipt(3) == (SendReceipt.IGNORED, None)


@pytest.mark.parametrize(("sequence_id", "outcome"), [(4, SendReceipt.IGNORED), (6, SendReceipt.OUT_OF_STEP)])
def test_receipt_of_another_entry_changes_nothing(sequence_id: int, outcome: SendReceipt) -> None:
    made = queue(entry(5), last_published=4)
    assert made.receipt(sequence_id) == (outcome, None)
    assert (len(made.ops), made.last_published, load(made)) == (1, 4, (1, 10))


def test_receipt_never_lowers_last_published() -> None:
    """Messages whose ids are lower than the last one: they are duplicates that are sent again."""
    made = queue(entry(2), last_published=9)
    assert made.receipt(2)[0] is SendReceipt.COMPLETED and made.last_published == 9


# ---- rejected entries ------------------------------------------------------------------------------------------------

NO = NotAllowedError("no")


def test_refused_entry_waits_for_earlier_ones() -> None:
    first, second, third = entry(0, 2), entry(2, 2), entry(4)
    made = queue(first, second, third)
    # The broker names a batch by its last message.
    made.refuse(3, NO)
    assert not made.take_refused() and len(made.ops) == 3
    made.receipt(0)
    assert made.take_refused() == [(second, NO)] and load(made) == (1, 10)
    assert made.receipt(4) == (SendReceipt.COMPLETED, third) and not made.refused


def test_refused_entries_in_a_row_are_taken_together() -> None:
    made = queue(entry(0), entry(1), entry(2))
    for number in (1, 0):
        made.refuse(number, NO)
    assert [op.sequence_id for op, _ in made.take_refused()] == [0, 1] and len(made.ops) == 1


@pytest.mark.parametrize("sequence_id", [0, 2, 9])
def test_refused_entry_that_is_unknown_changes_nothing(sequence_id: int) -> None:
    """Neither a batch's first id nor one between names it, nor an entry that was given up."""
    made = queue(entry(0, 2), entry(2, 2))
    made.refuse(sequence_id, NO)
    assert not made.refused and not made.take_refused() and load(made) == (4, 40)


@pytest.mark.parametrize("way", ["receipt", "remove", "drain"])
def test_refused_entry_that_is_gone_is_forgotten(way: str) -> None:
    made = queue(entry(0))
    made.refuse(0, NO)
    if way == "receipt":
        made.receipt(0)
    elif way == "remove":
        made.remove(lambda op: True)
    else:
        made.drain()
    assert not made.refused


@pytest.mark.parametrize("confirmed", [0, 1, 2])
def test_refused_chunk_takes_all_chunks_left(confirmed: int) -> None:
    parts = chunks(0)
    made = queue(*parts, entry(1))
    for _ in range(confirmed):
        made.receipt(0)
    assert made.last_published == -1
    made.refuse(0, NO)
    assert made.take_refused() == [(parts[-1], NO)] and [op.sequence_id for op in made.ops] == [1]
    assert load(made) == (1, 10) and not made.refused


def test_damaged_entry_is_marked_alone() -> None:
    made = queue(entry(0), entry(1, 3), entry(4))
    made.damaged(3)
    made.damaged(9)
    assert [op.was_damaged for op in made.ops] == [False, True, False]


# ---- transactions ----------------------------------------------------------------------------------------------------


def transaction(number: int = 0) -> TransactionCore:
    """Return an open transaction."""
    return TransactionCore(TxnId(0, number), 10.0, 0.0)


def test_receipt_of_plain_entry_overtakes_transactions() -> None:
    own, other = transaction(), transaction(1)
    kinds = [own, other, None, own, None]
    ops = [entry(2 * number, 2, kind) for number, kind in enumerate(kinds)]
    made = queue(*ops)
    for number in (2, 4, 0, 1, 3):
        assert made.receipt(2 * number) == (SendReceipt.COMPLETED, ops[number])
        ops[number].transaction = None
    assert (made.last_published, load(made)) == (9, (0, 0))


@pytest.mark.parametrize(
    ("kinds", "number"),
    [((False, True), 1), ((False, True, False), 2), ((True, False, False), 2), ((True, True), 1)],
    ids=["transaction-behind-plain", "plain-behind-plain", "second-plain", "second-of-transaction"],
)
def test_receipt_behind_another_entry_out_of_step(kinds: Sequence[bool], number: int) -> None:
    own = transaction()
    made = queue(*(entry(at, 1, own if kind else None) for at, kind in enumerate(kinds)))
    assert made.receipt(number) == (SendReceipt.OUT_OF_STEP, None) and load(made) == (len(kinds), 10 * len(kinds))


def test_receipt_overtaking_chunks_in_order() -> None:
    parts = chunks(1)
    made = queue(entry(0, 1, transaction()), *parts)
    assert [made.receipt(1)[1] for _ in parts] == parts and load(made) == (1, 10)


@given(
    kinds=st.lists(st.booleans(), max_size=8),
    later=st.lists(st.booleans(), max_size=4),
    last=st.sampled_from([-1, 5]),
    registered=st.booleans(),
)
def test_doubtful_entries_are_those_sent_in_transactions(
    kinds: Sequence[bool], later: Sequence[bool], last: int, registered: bool
) -> None:
    own = transaction()
    before = [entry(number, 1, own if kind else None) for number, kind in enumerate(kinds)]
    made = core()
    for op in before:
        made.queue.append(op)
    if registered:
        made.transactions.add(own)
    made.disconnected()
    after = [entry(len(before) + number, 1, own if kind else None) for number, kind in enumerate(later)]
    for op in after:
        made.queue.append(op)
    found = made.remove_doubtful(last)
    wanted = [op for op in before if op.transaction] if registered and last < 0 else []
    assert found == wanted
    assert list(made.queue.ops) == [op for op in before + after if op not in wanted]
    assert load(made.queue) == (len(made.queue.ops), 10 * len(made.queue.ops))


def test_drain_returns_all_oldest_first() -> None:
    ops = [entry(0, 2), *chunks(2), entry(3)]
    made = queue(*ops)
    assert load(made) == (6, 60)
    assert made.drain() == ops
    assert (list(made.ops), load(made)) == ([], (0, 0))
    assert made.receipt(0) == (SendReceipt.IGNORED, None)
