"""Transaction ids."""

from __future__ import annotations

from typing import NamedTuple


class TxnId(NamedTuple):
    """Id of a transaction: the coordinator's number and the coordinator's sequence number."""

    most_bits: int
    least_bits: int

    def __str__(self) -> str:
        return f"({self.most_bits},{self.least_bits})"
