"""Transaction state machine of the client: state, pending operations, and which writes are still allowed.

Rules: a message sent in a transaction the broker does not have, or no longer has, blocks its topic permanently. So
nothing may be written for a partition before the broker has confirmed that it belongs to the transaction, nothing once
the end has begun (`is_sealed`), and nothing past the time-out, which starts here before the broker's own clock. The end
waits for every pending operation; a failure of one fails the transaction: it can only be aborted then. No clock, no
I/O.

Not thread-safe but for `check_writable`, which only reads: the engine holds the transaction's lock. `now` is monotonic
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import InvalidTxnStatusError, PulsarException, TransactionConflict
from pulsar_native.protocol.ack_grouping import words_of
from pulsar_native.txn_id import TxnId
from pulsar_native.wire.commands import TransactionalAckItem
from pulsar_native.wire.entry import EntryKey

# Entry, batch index and batch size; index -1 is the whole entry.
AckPosition = tuple[EntryKey, int, int]

_ENDS = {
    TransactionState.COMMITTING: TransactionState.COMMITTED,
    TransactionState.ABORTING: TransactionState.ABORTED,
}


class NotRegistered(Exception):
    """Raised when the partition is not registered in the transaction yet; no message was accepted."""

    def __init__(self, transaction: TransactionCore) -> None:
        super().__init__(transaction)
        self.transaction = transaction


class TransactionCore:
    """State machine of one transaction."""

    def __init__(self, txn_id: TxnId, timeout: float, began: float) -> None:
        self.txn_id = txn_id
        self.timeout = timeout
        self.deadline = began + timeout
        self.state = TransactionState.OPEN
        # First failure of an operation in the transaction; with one it cannot be committed.
        self.failure: PulsarException | None = None
        # Messages and acknowledgements without an outcome yet.
        self.pending = 0
        # No more writes are allowed.
        self.is_sealed = False
        # Partitions whose registration the broker rejected.
        self.refused: dict[str, PulsarException] = {}
        self._acked: dict[tuple[str, str], dict[EntryKey, int]] = {}

    # --- operations in the transaction ------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Count a new operation; raises when the transaction accepts none."""
        if self.state is not TransactionState.OPEN or now >= self.deadline:
            raise self.refusal()
        self.pending += 1

    def finish(self, error: PulsarException | None) -> bool:
        """Record the outcome of an operation; return True if it was the last pending one."""
        self.pending -= 1
        if self.failure is None:
            self.failure = error
        return not self.pending

    def check_writable(self, topic: str, now: float) -> None:
        """Raise when no more messages may be written to a partition."""
        if self.is_sealed or now >= self.deadline:
            raise self.refusal()
        refused = self.refused.get(topic)
        if refused is not None:
            raise refused

    def acknowledge(self, subscription: tuple[str, str], places: Iterable[AckPosition]) -> list[TransactionalAckItem]:
        """Record messages as acknowledged in the transaction, and return the items to send.

        Raises `TransactionConflict`, and records nothing, when one was acknowledged in it before: it was delivered
        twice, so the results derived from it are in the transaction twice.
        """
        known = self._acked.get(subscription, {})
        asked: dict[EntryKey, tuple[int, int]] = {}
        for key, index, size in places:
            bits = (1 << size) - 1 if index < 0 and size else 1 << max(index, 0)
            before, size = asked.get(key, (0, size))
            if (before | known.get(key, 0)) & bits:
                place = f"{key[0]}:{key[1]}" + (f":{index}" if index >= 0 else "")
                raise TransactionConflict(
                    f"Message {place} is acknowledged in transaction {self.txn_id} already: it was redelivered "
                    "meanwhile. Abort, and begin a new transaction",
                    topic=subscription[0],
                )
            asked[key] = (before | bits, size)
        known = self._acked.setdefault(subscription, known)
        items: list[TransactionalAckItem] = []
        for key, (bits, size) in asked.items():
            known[key] = known.get(key, 0) | bits
            left = ((1 << size) - 1) & ~bits
            items.append((*key, words_of(left, size) if left else None, size))
        return items

    def acknowledged(self, subscription: tuple[str, str]) -> dict[EntryKey, int]:
        """Return the entries of a subscription acknowledged in the transaction, with the bit sets of their messages."""
        return self._acked.get(subscription, {})

    # --- commit and abort -------------------------------------------------------------------------------------------

    def begin_end(self, *, commit: bool) -> None:
        """Accept no more operations; pending ones are waited for. Raises when the transaction is not open."""
        if self.state is not TransactionState.OPEN:
            raise self.refusal()
        self.state = TransactionState.COMMITTING if commit else TransactionState.ABORTING

    def seal(self) -> bool:
        """Forbid further writes; return True to commit, False to abort."""
        self.is_sealed = True
        if self.failure is not None and self.state is TransactionState.COMMITTING:
            self.state = TransactionState.ABORTING
        return self.state is TransactionState.COMMITTING

    def ended(self, error: PulsarException | None) -> None:
        """Record the broker's response to the end."""
        self.state = TransactionState.ERROR if error is not None else _ENDS.get(self.state, self.state)

    def expire(self) -> bool:
        """Record the time-out; return False when the end has been decided already."""
        if self.is_sealed:
            return False
        self.is_sealed = True
        self.state = TransactionState.TIME_OUT
        return True

    def give_up(self) -> None:
        """Record that the client was closed before the end."""
        self.is_sealed = True
        if self.state in (TransactionState.OPEN, *_ENDS):
            self.state = TransactionState.ERROR

    def refusal(self) -> PulsarException:
        """Return the error for an operation after the end."""
        state = self.state
        if state is TransactionState.TIME_OUT or state is TransactionState.OPEN:
            return InvalidTxnStatusError(
                f"Transaction {self.txn_id} has timed out after {self.timeout:g} s, and nothing of it counts; do it "
                "again in a new transaction, with a larger timeout_seconds if it needs more time"
            )
        return InvalidTxnStatusError(
            f"Transaction {self.txn_id} is {state.name}: only an open one takes messages and acknowledgements, or can "
            "be ended; begin another with new_transaction()"
        )
