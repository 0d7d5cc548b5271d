"""Transaction of the sync API."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pulsar_native._loggers import get_logger
from pulsar_native._not_picklable import NotPicklable
from pulsar_native.engine.loop import Engine, check_generation, generation
from pulsar_native.engine.transaction import TransactionWork
from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import PulsarException
from pulsar_native.txn_id import TxnId

_log = get_logger("pulsar_native.transaction")


class Transaction(NotPicklable):
    """Transaction: its messages and acknowledgements take effect together or not at all (PIP-31). Thread-safe.

        with client.new_transaction() as transaction:
            producer.send(result, txn=transaction)
            consumer.acknowledge(message, txn=transaction)

    Created by `Client.new_transaction`. The block commits at its end and aborts on an exception. Consumers get messages
    sent in a transaction after its commit; messages acknowledged in an aborted one are redelivered.
    """

    def __init__(self, engine: Engine, work: TransactionWork) -> None:
        self._engine = engine
        self._work = work
        self._generation = generation()

    def _described(self) -> str:
        return f"{self._work.core.txn_id} {self._work.core.state.name}"

    def txn_id(self) -> TxnId:
        """Return the id assigned by the transaction coordinator. Does not block."""
        return self._work.core.txn_id

    def state(self) -> TransactionState:
        """Return the state known to this client. Does not block."""
        return self._work.core.state

    def commit(self) -> None:
        """Commit the transaction. Blocks until its operations have their answers and the coordinator has confirmed.

        If a message or an acknowledgement failed, the transaction is aborted and that error is raised. Raises
        `InvalidTxnStatusError` if the transaction is not open or has timed out; after `Timeout` (state ERROR) the
        outcome is unknown.
        """
        check_generation(self._generation)
        self._engine.run(self._work.end(commit=True))

    def abort(self) -> None:
        """Abort the transaction; acknowledged messages are redelivered. Blocks and raises as `commit` does."""
        check_generation(self._generation)
        self._engine.run(self._work.end(commit=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # The block may end the transaction itself; a time-out must be raised.
            if self.state() in (TransactionState.OPEN, TransactionState.TIME_OUT):
                self.commit()
        elif self.state() is TransactionState.OPEN:
            try:
                self.abort()
            except PulsarException as failed:
                # The block's exception has precedence; the broker aborts after the transaction's time-out.
                _log.warning("Transaction %s could not be aborted: %s", self.txn_id(), failed)
