"""One transaction, as its client sees it: its state, what is on its way in it, and what may still be written.

Rules: a message sent in a transaction the broker does not have, or has no longer, blocks its topic for
good. So nothing may be written for a partition before the broker has confirmed that it belongs to the transaction,
nothing once the end has begun (`is_sealed`), and nothing past the time-out, which runs here from before the broker's
own clock began. The end waits for everything that was begun; whatever of it fails dooms the transaction: it can only
be aborted then. No clock, no I/O.

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

EntryKey = tuple[int, int]
# Index and size of messages in a batch; index -1 is the whole entry.
Place = tuple[EntryKey, int, int]

_ENDS = {
    TransactionState.COMMITTING: TransactionState.COMMITTED,
    TransactionState.ABORTING: TransactionState.ABORTED,
}


class NotRegistered(Exception):
    """The partition is not known to be in the transaction yet; nothing was taken."""

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
        # Why it cannot be committed: the first failure of what was done in it.
        self.failure: PulsarException | None = None
        # Messages and acknowledgements that have no outcome yet.
        self.pending = 0
        # Nothing is written any more.
        self.is_sealed = False
        # Partitions the broker would not take.
        self.refused: dict[str, PulsarException] = {}
        self._acked: dict[tuple[str, str], dict[EntryKey, int]] = {}

    # --- what is done in it -----------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Count something that is to be done in it; raises when it takes nothing any more."""
        if self.state is not TransactionState.OPEN or now >= self.deadline:
            raise self.refusal()
        self.pending += 1

    def finish(self, error: PulsarException | None) -> bool:
        """Note the outcome of something begun; return whether it was the last one."""
        self.pending -= 1
        if self.failure is None:
            self.failure = error
        return not self.pending

    def check_writable(self, topic: str, now: float) -> None:
        """Raise when nothing more may be written to a partition."""
        if self.is_sealed or now >= self.deadline:
            raise self.refusal()
        refused = self.refused.get(topic)
        if refused is not None:
            raise refused

    def acknowledge(self, subscription: tuple[str, str], places: Iterable[Place]) -> list[TransactionalAckItem]:
        """Note messages as acknowledged in it, and return what is to be sent.

        Raises `TransactionConflict`, having noted nothing, when one was acknowledged in it before: it was delivered
        twice, so what was made of it is in the transaction twice.
        """
        known = self._acked.get(subscription, {})
        asked: dict[EntryKey, tuple[int, int]] = {}
        for key, index, size in places:
            bits = (1 << size) - 1 if index < 0 and size else 1 << max(index, 0)
            before, size = asked.get(key, (0, size))
            if (before | known.get(key, 0)) & bits:
                place = f"{key[0]}:{key[1]}" + (f":{index}" if index >= 0 else "")
                raise TransactionConflict(
                    f"Message {place} is acknowledged in transaction {self.txn_id} already: it was delivered again "
                    "meanwhile. Abort, and begin anew",
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
        """Return which entries of a subscription were acknowledged in it, with the bit sets of their messages."""
        return self._acked.get(subscription, {})

    # --- the end ----------------------------------------------------------------------------------------------------

    def begin_end(self, *, commit: bool) -> None:
        """Take nothing more: from now on what is on its way is waited for. Raises when it is not open."""
        if self.state is not TransactionState.OPEN:
            raise self.refusal()
        self.state = TransactionState.COMMITTING if commit else TransactionState.ABORTING

    def seal(self) -> bool:
        """Let nothing be written any more; return whether it is to be committed, False for an abort."""
        self.is_sealed = True
        if self.failure is not None and self.state is TransactionState.COMMITTING:
            self.state = TransactionState.ABORTING
        return self.state is TransactionState.COMMITTING

    def ended(self, error: PulsarException | None) -> None:
        """Note the broker's answer to the end."""
        self.state = TransactionState.ERROR if error is not None else _ENDS.get(self.state, self.state)

    def expire(self) -> bool:
        """Note that its time is over; False when that comes too late to matter."""
        if self.is_sealed:
            return False
        self.is_sealed = True
        self.state = TransactionState.TIME_OUT
        return True

    def give_up(self) -> None:
        """Note that nobody will end it: the client is closed."""
        self.is_sealed = True
        if self.state in (TransactionState.OPEN, *_ENDS):
            self.state = TransactionState.ERROR

    def refusal(self) -> PulsarException:
        """Return the error for what comes too late."""
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
