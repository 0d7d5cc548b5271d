"""The identity of a transaction."""

from __future__ import annotations

from typing import NamedTuple


class TxnId(NamedTuple):
    """A transaction's id: its coordinator's number, and the coordinator's count of transactions."""

    most_bits: int
    least_bits: int

    def __str__(self) -> str:
        return f"({self.most_bits},{self.least_bits})"
