"""Entries of a producer that wait for their receipts, in the order in which they are written.

Rules: receipts come in that order. A lower id was given up before, a higher one means that we lost
step. What belongs to a transaction leaves the queue when it must not be written any more, or not again.

Not thread-safe: the engine holds the producer's lock around every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from pulsar_native.protocol.send_op import ChunkOp, SendOp
from pulsar_native.protocol.transaction import TransactionCore


class SendReceipt(Enum):
    """What a receipt turned out to be."""

    COMPLETED = auto()
    IGNORED = auto()
    OUT_OF_STEP = auto()


class PendingEntries:
    """The queue of a `ProducerCore`, which is one itself."""

    def __init__(self, last_published: int) -> None:
        self.pending: deque[SendOp] = deque()
        self.last_published = last_published
        # The broker's deduplication drops everything up to this id, as far as we were told.
        self._stored = -1
        self._queued_messages = 0
        self._queued_bytes = 0
        # Transactions whose broker knows that they have messages here, until they end.
        self.transactions: set[TransactionCore] = set()

    def disconnected(self) -> None:
        """Note that the connection is gone: whether the broker has what waits for its receipt, nobody knows."""
        if self.transactions:
            for op in self.pending:
                op.may_be_stored = True

    def receipt(self, sequence_id: int) -> tuple[SendReceipt, SendOp | None]:
        """Match a receipt with the oldest entry: a lower id was given up before, a higher one means we lost step."""
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
        """Note that the broker refused an entry because it was damaged on its way; it is to be sent again."""
        for op in self.pending:
            if op.sequence_id == sequence_id:
                op.was_damaged = True

    def fail(self, sequence_id: int) -> SendOp | None:
        """Take the oldest entry out of the queue when it has this id: the broker refuses it for good.

        Of a message in chunks the others go with it; the one that answers for the message is returned.
        """
        if not self.pending or self.pending[0].sequence_id != sequence_id:
            return None
        op = self.pending.popleft()
        self._release(op)
        while isinstance(op, ChunkOp) and not op.is_last:
            op = self.pending.popleft()
            self._release(op)
        return op

    def take_doubtful(self, last_sequence_id: int) -> list[SendOp]:
        """Take what may be stored already, and would be twice in its transaction if it was written again.

        `last_sequence_id` is what PRODUCER_SUCCESS told: a broker that deduplicates and has something of this producer
        tells its highest id, and drops what comes again. One that tells none would store it a second time.
        """
        if last_sequence_id >= 0 or not self.transactions:
            return []
        return self._take(lambda op: op.may_be_stored and op.transaction is not None)

    def _take(self, is_wanted: Callable[[SendOp], bool]) -> list[SendOp]:
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
