"""Transaction coordinator client: connections to the coordinators, and the client's open transactions.

Rules: there are as many coordinators as the assign topic has partitions; each is located by the lookup of its
partition, which also makes its broker load it, and connected by one TC_CLIENT_CONNECT per connection. New transactions
use them in turn. At most 1000 requests per coordinator are unanswered; a lost connection reconnects with back-off, and
a request whose response was lost is sent again until its deadline, since the coordinator identifies transactions by
their ids. Nothing is connected before the first transaction. On the loop only, except `join`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.handler import Handler, State
from pulsar_native.engine.transaction import TransactionWork
from pulsar_native.exceptions import (
    ConnectError,
    NotConnected,
    OperationNotSupported,
    PulsarException,
    Timeout,
    TopicNotFound,
    TransactionCoordinatorNotFoundError,
)
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.protocol.transaction import TransactionCore
from pulsar_native.topic import TopicName
from pulsar_native.txn_id import TxnId
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.client import ClientCore
    from pulsar_native.engine.producer.producer import PartitionProducer

_log = logging.getLogger("pulsar_native.transaction")

_ASSIGN = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
_MAX_REQUESTS = 1000

T = TypeVar("T")


class Coordinator(Handler):
    """One coordinator; reconnects by itself when its connection is lost."""

    def __init__(self, client: ClientCore, number: int) -> None:
        super().__init__(client, _ASSIGN.with_partition(number))
        self.number = number
        # A caller gives up after one operation time-out: the next attempt is made well before that.
        config = client.config
        longest = min(config.max_backoff_interval_ms / 1000, config.operation_timeout_seconds / 10)
        self._backoff = Backoff(config.starting_backoff_interval_ms / 1000, longest, random.random)
        self._room = asyncio.Semaphore(_MAX_REQUESTS)

    def describe(self) -> str:
        """Return a short name for logs."""
        return f"Transaction coordinator {self.number}"

    async def attach(self, connection: Connection) -> None:
        """Connect this client to the coordinator."""
        request_id = self.client.next_request_id()
        connection.add_coordinator(self.number, self)
        try:
            await self.ask(
                request_id,
                commands.connect_coordinator(self.number, request_id),
                connection,
                pb.CommandTcClientConnectResponse,
            )
            if not connection.is_open or self.state not in (State.CONNECTING, State.READY):
                raise NotConnected("The coordinator's connection was lost, or the client closed, meanwhile")
        except BaseException:
            connection.remove_coordinator(self.number)
            raise
        self.connection = connection

    def gave_up(self, error: PulsarException) -> None:
        """Called when the coordinator will not be reconnected."""
        self.state = State.FAILED
        self.leave()

    def abandon(self) -> None:
        """Release it."""
        self.state = State.CLOSED
        if self.connection is not None:
            self.connection.remove_coordinator(self.number)
        self.leave()

    async def request(
        self,
        frame: Callable[[int], bytes],
        expected: type[T],
        deadline: float,
        *,
        unseen: Callable[[], None] = lambda: None,
    ) -> T:
        """Send a request, `frame(request_id)`, until it has a response; raises the broker's error, or `Timeout`.

        `unseen` is called when a response was lost: from then on the request may have been executed already.
        """
        backoff = Backoff(
            self.client.config.starting_backoff_interval_ms / 1000,
            self.client.config.max_backoff_interval_ms / 1000,
            random.random,
        )
        loop = self.engine.loop
        last: PulsarException | None = None
        try:
            async with asyncio.timeout_at(deadline), self._room:
                while True:
                    connection = await self.ready(max(0.0, deadline - loop.time()))
                    request_id = self.client.next_request_id()
                    try:
                        return await self.ask(request_id, frame(request_id), connection, expected)
                    except PulsarException as error:
                        if not self._may_pass(error, connection):
                            raise
                        if isinstance(error, ConnectError | NotConnected):
                            unseen()
                        last = error
                    await asyncio.sleep(backoff.next(loop.time()))
        except TimeoutError as error:
            if isinstance(error, PulsarException):
                raise
            raise last or Timeout(f"{self.describe()} did not answer in time", topic=self.topic.full) from error
        except NotConnected:
            raise last or Timeout(f"{self.describe()} is not connected", topic=self.topic.full) from None

    def _may_pass(self, error: PulsarException, connection: Connection) -> bool:
        if not error.retryable or isinstance(error, Timeout):
            return False
        if connection is not self.connection:
            return True
        moved = isinstance(error, TransactionCoordinatorNotFoundError)
        if moved or (isinstance(error, ConnectError | NotConnected) and not connection.is_open):
            # It has moved to another broker, or is being loaded: the lookup locates it.
            connection.remove_coordinator(self.number)
            self.detached()
            self.reconnect()
        return True


class Transactions:
    """Coordinators and open transactions of one client."""

    def __init__(self, client: ClientCore) -> None:
        self._client = client
        self._coordinators: dict[int, asyncio.Task[Coordinator]] = {}
        self._count = 0
        self._turn = -1
        self._open: dict[TxnId, TransactionWork] = {}

    async def begin(self, timeout: float) -> TransactionWork:
        """Begin a transaction that the broker aborts after `timeout` seconds."""
        limit = self._client.deadline()
        coordinator = await self._next_coordinator(limit)
        # The clock starts before the request: so the time-out ends here before it does at the broker.
        began = time.monotonic()

        def frame(request_id: int) -> bytes:
            nonlocal began
            began = time.monotonic()
            return commands.new_transaction(coordinator.number, request_id, int(timeout * 1000))

        answer = await coordinator.request(frame, pb.CommandNewTxnResponse, limit)
        txn_id = TxnId(answer.txnid_most_bits, answer.txnid_least_bits)
        work = TransactionWork(self._client, coordinator, TransactionCore(txn_id, timeout, began), self._open.pop)
        self._open[txn_id] = work
        return work

    async def _next_coordinator(self, deadline: float) -> Coordinator:
        if not self._count:
            self._count = await self._count_coordinators(deadline)
            self._turn = random.randrange(self._count)
        self._turn = (self._turn + 1) % self._count
        number = self._turn
        task = self._coordinators.get(number)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._client.engine.spawn(_opened(Coordinator(self._client, number)))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._coordinators[number] = task
        # Another caller may wait for it, too.
        return await asyncio.shield(task)

    async def _count_coordinators(self, deadline: float) -> int:
        try:
            count = await self._client.lookup.partitions(_ASSIGN, deadline, auto_create=False)
        except TopicNotFound:
            count = 0
        if not count:
            raise OperationNotSupported(
                "The cluster has no transaction coordinators: set transactionCoordinatorEnabled=true at its brokers "
                "(and initialize-transaction-coordinator-metadata in a cluster that was made without)",
                topic=_ASSIGN.full,
            )
        return count

    def join(self, transaction: TransactionCore, producer: PartitionProducer, wake: Callable[[], None]) -> None:
        """Register a producer's partition, and call `wake` when that has succeeded or failed. Thread-safe."""
        self._client.engine.call(self._join, transaction, producer, wake)

    def _join(self, transaction: TransactionCore, producer: PartitionProducer, wake: Callable[[], None]) -> None:
        work = self._open.get(transaction.txn_id)
        if work is None:
            wake()
            return
        self._client.engine.spawn(work.join(producer)).add_done_callback(lambda _: wake())

    @property
    def is_used(self) -> bool:
        """True while any transaction is open."""
        return bool(self._open)

    async def close(self, seconds: float) -> None:
        """Abort open transactions, as far as that is possible in time."""
        tasks = [self._client.engine.spawn(work.abort_if_open()) for work in list(self._open.values())]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()

    def abandon(self) -> None:
        """Release everything; the brokers abort open transactions at their time-out."""
        for work in list(self._open.values()):
            work.give_up()
        self._open.clear()
        for task in self._coordinators.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().abandon()
            task.cancel()


async def _opened(coordinator: Coordinator) -> Coordinator:
    try:
        await coordinator.open()
    except PulsarException as error:
        if isinstance(error, TransactionCoordinatorNotFoundError):
            error.message = (
                f"{coordinator.describe()} is on no broker: {error.message or 'it is not loaded'} (is "
                "transactionCoordinatorEnabled=true at every broker?)"
            )
        raise
    return coordinator
