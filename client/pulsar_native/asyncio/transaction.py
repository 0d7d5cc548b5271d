"""The asyncio transaction."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from pulsar_native._not_picklable import NotPicklable
from pulsar_native.engine.loop import check_generation, generation
from pulsar_native.engine.transaction import TransactionWork
from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import PulsarException
from pulsar_native.txn_id import TxnId

_log = logging.getLogger("pulsar_native.transaction")


class Transaction(NotPicklable):
    """Messages and acknowledgements that count together or not at all; made by `Client.new_transaction`.

        async with await client.new_transaction() as transaction:
            await producer.send(result, txn=transaction)
            await consumer.acknowledge(message, txn=transaction)

    As in the sync API.
    """

    def __init__(self, work: TransactionWork, client: object = None) -> None:
        self._work = work
        # It ends when it is collected, which the application may allow before the transaction has ended.
        self._client = client
        self._generation = generation()

    def _described(self) -> str:
        return f"{self._work.core.txn_id} {self._work.core.state.name}"

    def txn_id(self) -> TxnId:
        """Return the id the coordinator gave it."""
        return self._work.core.txn_id

    def state(self) -> TransactionState:
        """Return where in its life it is, as far as this client knows."""
        return self._work.core.state

    async def commit(self) -> None:
        """Commit, when everything in it has its answer; returns when the coordinator has confirmed.

        When a message or an acknowledgement of it failed, it is aborted instead and that error is raised. Raises
        `InvalidTxnStatusError` when it is not open, or has timed out; after `Timeout` (state ERROR) the outcome is not
        known. A task that is cancelled meanwhile does not stop it.
        """
        check_generation(self._generation)
        await self._work.end(commit=True)

    async def abort(self) -> None:
        """Abort: nothing of it counts, and what was acknowledged comes again. Waits and raises as `commit` does."""
        check_generation(self._generation)
        await self._work.end(commit=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # Ended in the block by the application itself: fine. Timed out: it must hear of it.
            if self.state() in (TransactionState.OPEN, TransactionState.TIME_OUT):
                await self.commit()
        elif self.state() is TransactionState.OPEN:
            try:
                await self.abort()
            except PulsarException as failed:
                # What happened in the block matters more; the broker aborts when its time is over.
                _log.warning("Transaction %s could not be aborted: %s", self.txn_id(), failed)
