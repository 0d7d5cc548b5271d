"""Transaction ids: Java's text, comparable, hashable."""

from __future__ import annotations

import pickle

from pulsar_native.txn_id import TxnId


def test_txn_id_text_is_javas() -> None:
    assert str(TxnId(3, 17)) == f"{TxnId(3, 17)}" == "(3,17)"


def test_txn_id_compares_by_both_numbers() -> None:
    assert TxnId(1, 2) == TxnId(1, 2) != TxnId(2, 1)
    assert len({TxnId(1, 2), TxnId(1, 2), TxnId(2, 1)}) == 2
    assert sorted([TxnId(2, 0), TxnId(1, 9)]) == [TxnId(1, 9), TxnId(2, 0)]
    assert pickle.loads(pickle.dumps(TxnId(1, 2))) == TxnId(1, 2)
