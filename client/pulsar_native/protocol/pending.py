"""Pending queue of a producer: entries that wait for their receipts, in the order in which they are written.

Rules: receipts arrive in that order. A lower sequence id belongs to an entry that was given up; a higher one means that
client and broker are out of step. Entries of a transaction are removed when they must not be written, or written again.

Not thread-safe: the engine holds the producer's lock around every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from pulsar_native.protocol.send_op import ChunkOp, SendOp
from pulsar_native.protocol.transaction import TransactionCore


class SendReceipt(Enum):
    """Classification of a receipt."""

    COMPLETED = auto()
    IGNORED = auto()
    OUT_OF_STEP = auto()


class PendingEntries:
    """Pending queue of a `ProducerCore`, which inherits it."""

    def __init__(self, last_published: int) -> None:
        self.pending: deque[SendOp] = deque()
        self.last_published = last_published
        # Highest sequence id known to be stored; the broker's deduplication drops everything up to it.
        self._stored = -1
        self._queued_messages = 0
        self._queued_bytes = 0
        # Transactions in which the broker has registered this partition, until they end.
        self.transactions: set[TransactionCore] = set()

    def disconnected(self) -> None:
        """Record the loss of the connection: it is unknown which of the pending entries the broker has stored."""
        if self.transactions:
            for op in self.pending:
                op.may_be_stored = True

    def receipt(self, sequence_id: int) -> tuple[SendReceipt, SendOp | None]:
        """Match a receipt with the oldest entry: a lower id was given up before, a higher one means out of step."""
        if not self.pending or sequence_id < self.pending[0].sequence_id:
            return SendReceipt.IGNORED, None
        op = self.pending[0]
        if sequence_id > op.sequence_id:
            return SendReceipt.OUT_OF_STEP, None
        self.pending.popleft()
        self._release(op)
        self.last_published = max(self.last_published, op.highest_sequence_id)
        self._stored = max(self._stored, op.highest_sequence_id)
        return SendReceipt.COMPLETED, op

    def damaged(self, sequence_id: int) -> None:
        """Record that the broker rejected an entry with ChecksumError; it is to be sent again."""
        for op in self.pending:
            if op.sequence_id == sequence_id:
                op.was_damaged = True

    def fail(self, sequence_id: int) -> SendOp | None:
        """Remove and return the oldest entry if it has this id: the broker rejected it permanently.

        The other chunks of a chunked message are removed with it; the last one, which has the callback, is returned.
        """
        if not self.pending or self.pending[0].sequence_id != sequence_id:
            return None
        op = self.pending.popleft()
        self._release(op)
        while isinstance(op, ChunkOp) and not op.is_last:
            op = self.pending.popleft()
            self._release(op)
        return op

    def remove_doubtful(self, last_sequence_id: int) -> list[SendOp]:
        """Remove and return entries that may be stored already and would be duplicated in their transaction by a
        resend.

        `last_sequence_id` is the one of PRODUCER_SUCCESS: a broker with deduplication that has messages of this
        producer returns its highest id, and drops what is resent. A broker that returns none would store it a second
        time.
        """
        if last_sequence_id >= 0 or not self.transactions:
            return []
        return self._remove(lambda op: op.may_be_stored and op.transaction is not None)

    def _remove(self, is_wanted: Callable[[SendOp], bool]) -> list[SendOp]:
        taken = [op for op in self.pending if is_wanted(op)]
        if taken:
            gone = set(taken)
            self.pending = deque(op for op in self.pending if op not in gone)
        for op in taken:
            self._release(op)
        return taken

    def _release(self, op: SendOp) -> None:
        self._queued_messages -= op.count
        self._queued_bytes -= op.size
