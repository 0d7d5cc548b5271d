"""Transaction of the asyncio API."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pulsar_native._loggers import get_logger
from pulsar_native._not_picklable import NotPicklable
from pulsar_native.engine.loop import check_loop, generation
from pulsar_native.engine.transaction import TransactionWork
from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import PulsarException
from pulsar_native.txn_id import TxnId

_log = get_logger("pulsar_native.transaction")


class Transaction(NotPicklable):
    """Transaction: its messages and acknowledgements take effect together or not at all (PIP-31).

        async with await client.new_transaction() as transaction:
            await producer.send(result, txn=transaction)
            await consumer.acknowledge(message, txn=transaction)

    Created by `Client.new_transaction`; belongs to the client's loop. The block commits at its end and aborts on an
    exception. Consumers get messages sent in a transaction after its commit; messages acknowledged in an aborted one
    are redelivered.
    """

    def __init__(self, work: TransactionWork, client: object = None) -> None:
        self._work = work
        # It ends when it is collected, which the application may allow before the transaction has ended.
        self._client = client
        self._generation = generation()

    def _described(self) -> str:
        return f"{self._work.core.txn_id} {self._work.core.state.name}"

    def txn_id(self) -> TxnId:
        """Return the id assigned by the transaction coordinator."""
        return self._work.core.txn_id

    def state(self) -> TransactionState:
        """Return the state known to this client."""
        return self._work.core.state

    async def commit(self) -> None:
        """Commit the transaction. Waits until its operations have their answers and the coordinator has confirmed.

        If a message or an acknowledgement failed, the transaction is aborted and that error is raised. Raises
        `InvalidTxnStatusError` if the transaction is not open or has timed out; after `Timeout` (state ERROR) the
        outcome is unknown. Cancelling the task does not stop the commit.
        """
        check_loop(self._generation, self._work.engine.loop)
        await self._work.end(commit=True)

    async def abort(self) -> None:
        """Abort the transaction; acknowledged messages are redelivered. Waits and raises as `commit` does."""
        check_loop(self._generation, self._work.engine.loop)
        await self._work.end(commit=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # The block may end the transaction itself; a time-out must be raised.
            if self.state() in (TransactionState.OPEN, TransactionState.TIME_OUT):
                await self.commit()
        elif self.state() is TransactionState.OPEN:
            try:
                await self.abort()
            except PulsarException as failed:
                # The block's exception has precedence; the broker aborts after the transaction's time-out.
                _log.warning("Transaction %s could not be aborted: %s", self.txn_id(), failed)
