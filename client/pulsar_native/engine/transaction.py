"""Transactions of the client: `protocol.transaction` with coordinators, clock, producers and consumers.

Rules: a partition, and a subscription, is registered once, with a response before the first message or acknowledgement
of it is written. The end first waits for pending operations, then seals the transaction, then sends END_TXN; a failed
operation turns a commit into an abort. After an abort the broker redelivers the acknowledged messages by itself where
it can do so entry by entry; elsewhere (Exclusive, Failover) the consumer requests everything unacknowledged, so that
the order is kept. New transactions use the coordinators in turn; nothing is connected before the first one. Counting
and `Transactions.join` are thread-safe; everything else is on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pulsar_native._loggers import get_logger
from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.loop import wait_for_shared
from pulsar_native.engine.transaction_coordinator import ASSIGN_TOPIC, Coordinator
from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import (
    ConnectError,
    InvalidTxnStatusError,
    NotConnected,
    OperationNotSupported,
    PulsarException,
    TopicNotFound,
    TransactionConflict,
    TransactionCoordinatorNotFoundError,
    TransactionNotFound,
    UnknownError,
)
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.send_op import Callback
from pulsar_native.protocol.transaction import AckPosition, TransactionCore
from pulsar_native.topic import TopicName
from pulsar_native.txn_id import TxnId
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import TransactionalAckItem
from pulsar_native.wire.entry import EntryKey

if TYPE_CHECKING:
    from pulsar_native.engine.client_context import ClientContext

_log = get_logger("pulsar_native.transaction")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0
# Maximum number of entries in an ACK.
_BLOCK = 1000


class TransactionProducer(Protocol):
    """Producer of one partition whose messages may be sent in transactions."""

    topic: TopicName

    def joined(self, transaction: TransactionCore) -> None: ...
    def leave_transaction(self, transaction: TransactionCore) -> None: ...
    def flush_then(self, done: Callable[[PulsarException | None], None]) -> None: ...


class TransactionAcks(Protocol):
    """Acknowledgements of one partition's consumer in transactions."""

    def places_of(self, ids: Iterable[MessageId]) -> list[AckPosition]: ...
    def up_to_in_transaction(self, message_id: MessageId) -> list[TransactionalAckItem]: ...
    def done_in_transaction(
        self, acked: Mapping[EntryKey, int], items: Iterable[TransactionalAckItem], messages: int
    ) -> None: ...
    async def answered(self, connection: Connection, request_id: int, frame: bytes) -> bool: ...
    def transaction_ended(self, acked: Mapping[EntryKey, int], *, committed: bool) -> None: ...


class TransactionConsumer(Protocol):
    """Consumer of one partition whose messages may be acknowledged in transactions."""

    topic: TopicName
    config: ConsumerConfig
    consumer_id: int

    @property
    def acks(self) -> TransactionAcks: ...
    def before_abort(self, acked: Collection[EntryKey]) -> None: ...
    async def ready_to_acknowledge(self, timeout: float) -> Connection: ...


class TransactionBulkSend(Protocol):
    """Bulk send that counts as one operation."""

    def flush_then(self, done: Callable[[], None]) -> None: ...


C = TypeVar("C", bound=TransactionConsumer)
B = TypeVar("B", bound=TransactionBulkSend)


class Operation:
    """Operation in a transaction, whose end waits for its outcome. Thread-safe."""

    __slots__ = ("_is_open", "_work")

    def __init__(self, work: TransactionWork) -> None:
        self._work = work
        self._is_open = True

    def finish(self, error: BaseException | None) -> None:
        """Record the outcome, once; an error fails the transaction."""
        if self._is_open:
            self._is_open = False
            if error is not None and not isinstance(error, PulsarException):
                error = UnknownError(f"Something in the transaction failed with {type(error).__name__}")
            self._work.finish(error)

    def withdraw(self) -> None:
        """Undo the start: nothing was accepted, and the caller received the error."""
        self.finish(None)


class SendOperation(Operation):
    """Sending of one message: used as its callback."""

    __slots__ = ("_callback",)

    def __init__(self, work: TransactionWork, callback: Callback | None) -> None:
        super().__init__(work)
        self._callback = callback

    def __call__(self, error: PulsarException | None, message_id: MessageId | None) -> None:
        """Record the receipt, or the failure."""
        try:
            if self._callback is not None:
                self._callback(error, message_id)
        finally:
            self.finish(error)


class TransactionWork:
    """Engine side of a transaction."""

    def __init__(
        self,
        client: ClientContext,
        coordinator: Coordinator,
        core: TransactionCore,
        forget: Callable[[TxnId, None], object],
    ) -> None:
        self.client = client
        self.core = core
        self.engine = client.engine
        self._coordinator = coordinator
        self._forget = forget
        self._lock = threading.Lock()
        self._settled = asyncio.Event()
        self._settled.set()
        self._partitions: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._producers: set[TransactionProducer] = set()
        self._consumers: dict[TransactionConsumer, None] = {}
        self._timer = self.engine.loop.call_later(self._seconds_left(), self._expire)

    def _seconds_left(self) -> float:
        return max(0.0, self.core.deadline - time.monotonic())

    # --- operations (thread-safe) -----------------------------------------------------------------------------------

    def begin(self) -> Operation:
        """Count a new operation; raises when the transaction accepts none."""
        self._begin()
        return Operation(self)

    def sending(self, callback: Callback | None) -> SendOperation:
        """Count a message to send, and return its callback."""
        self._begin()
        return SendOperation(self, callback)

    @contextlib.contextmanager
    def bulk(self, work: B) -> Iterator[B]:
        """Count a bulk send as one operation, which has its outcome when all its messages have theirs."""
        operation = self.begin()
        failed: BaseException | None = None
        try:
            yield work
        except BaseException as error:
            failed = error
            raise
        finally:
            work.flush_then(lambda: operation.finish(failed))

    def _begin(self) -> None:
        with self._lock:
            self.core.begin(time.monotonic())

    def finish(self, error: PulsarException | None) -> None:
        """Record the outcome of an operation."""
        with self._lock:
            last = self.core.finish(error)
            waits = last and self.core.state is not TransactionState.OPEN
        if waits:
            self.engine.call(self._look)

    def _look(self) -> None:
        """Notify the waiting end when no operation is pending. On the loop."""
        if not self.core.pending:
            self._settled.set()

    # --- registration (loop) ----------------------------------------------------------------------------------------

    async def join(self, producer: TransactionProducer) -> None:
        """Register a producer's partition; the next attempt to send raises if it failed."""
        topic = producer.topic.full
        try:
            await self._once(self._partitions, topic, lambda: self._register_partition(topic))
        except PulsarException as error:
            with self._lock:
                self.core.refused[topic] = error
                self.core.failure = self.core.failure or error
            return
        # Order of events: sealed first, then all registered producers are notified; one that registers later sees the
        # seal.
        if not self.core.is_sealed:
            self._producers.add(producer)
            producer.joined(self.core)

    async def _register_partition(self, topic: str) -> None:
        txn_id = self.core.txn_id
        await self._request(
            lambda request_id: commands.add_partition_to_transaction(txn_id, topic, request_id),
            pb.CommandAddPartitionToTxnResponse,
        )

    async def _register_subscription(self, topic: str, subscription: str) -> None:
        txn_id = self.core.txn_id
        await self._request(
            lambda request_id: commands.add_subscription_to_transaction(txn_id, topic, subscription, request_id),
            pb.CommandAddSubscriptionToTxnResponse,
        )

    async def _request(self, frame: Callable[[int], bytes], expected: type[Any]) -> None:
        until = self.engine.loop.time() + self._seconds_left()
        await self._coordinator.request(frame, expected, min(self.client.deadline(), until))

    async def _once(self, known: dict[Any, asyncio.Task[None]], key: Any, register: Callable[[], Any]) -> None:
        task = known.get(key)
        if task is None:
            task = known[key] = self.engine.spawn(register())
            task.add_done_callback(_retrieved)
        await asyncio.shield(task)

    async def acknowledge(self, parts: dict[C, list[MessageId]], operation: Operation, *, cumulative: bool) -> None:
        """Acknowledge messages of consumers; returns when the brokers have responded to all of it."""
        error: BaseException | None = None
        try:
            for consumer in parts:
                self._consumers[consumer] = None
            results = await asyncio.gather(
                *(self._acknowledge(consumer, ids, cumulative) for consumer, ids in parts.items()),
                return_exceptions=True,
            )
            error = next((each for each in results if isinstance(each, BaseException)), None)
        except BaseException as cancelled:
            error = cancelled
            raise
        finally:
            operation.finish(error)
        if error is not None:
            raise error

    async def _acknowledge(self, consumer: TransactionConsumer, ids: list[MessageId], cumulative: bool) -> None:
        topic, subscription = consumer.topic.full, consumer.config.subscription_name
        key = (topic, subscription)
        if cumulative:
            items = consumer.acks.up_to_in_transaction(ids[0])
        else:
            places = consumer.acks.places_of(ids)
            with self._lock:
                items = self.core.acknowledge(key, places)
        await self._once(self._subscriptions, key, lambda: self._register_subscription(topic, subscription))
        for start in range(0, len(items), _BLOCK):
            await self._send_acks(consumer, items[start : start + _BLOCK], cumulative)
        consumer.acks.done_in_transaction(self.core.acknowledged(key), () if cumulative else items, len(ids))

    async def _send_acks(
        self, consumer: TransactionConsumer, items: Sequence[TransactionalAckItem], cumulative: bool
    ) -> None:
        """Send acknowledgements until they have responses; after a lost connection, or an unload, they are sent
        again.
        """
        is_again = False
        while True:
            limit = min(self._seconds_left(), self.client.config.operation_timeout_seconds)
            connection = await consumer.ready_to_acknowledge(limit)
            if self.core.is_sealed or not self._seconds_left():
                raise self.core.refusal()
            request_id = self.client.next_request_id()
            frame = commands.ack_in_transaction(
                consumer.consumer_id, items, self.core.txn_id, request_id, cumulative=cumulative
            )
            try:
                if await consumer.acks.answered(connection, request_id, frame):
                    return
            except PulsarException as error:
                if isinstance(error, ConnectError | NotConnected) and not connection.is_open:
                    is_again = True
                    # The consumer is notified of the loss in the same round of the loop; then it reconnects.
                    await asyncio.sleep(0)
                    continue
                error.topic = consumer.topic.full
                if is_again and isinstance(error, TransactionConflict):
                    # The acknowledgement of this transaction may be the one that succeeded, which cannot be determined:
                    # start a new one.
                    error.message += " (sent again after its answer was lost: it may be this transaction's own)"
                raise
            is_again = True

    # --- the end (loop) ---------------------------------------------------------------------------------------------

    async def end(self, *, commit: bool) -> None:
        """Commit or abort. A commit of a transaction with a failure aborts, and raises the failure."""
        with self._lock:
            self.core.begin_end(commit=commit)
            pending = self.core.pending
        # Cancelling the call must not leave the end half done: it continues.
        await self.engine.shield(self._end(pending))

    async def _end(self, pending: int) -> None:
        if pending:
            self._settled.clear()
            # Messages in open batches are sent now.
            for producer in self._producers:
                producer.flush_then(_ignore)
            self._look()
            await self._settled.wait()
        if self.core.state is TransactionState.TIME_OUT:
            raise self.core.refusal()
        asked = self.core.state
        with self._lock:
            commit = self.core.seal()
        self._timer.cancel()
        if not commit:
            self._make_way()
        failure = self.core.failure if asked is TransactionState.COMMITTING and not commit else None
        try:
            await self._send_end(commit=commit)
        except PulsarException as error:
            self._ended(error)
            if failure is None:
                raise
            _log.warning("Transaction %s could not be aborted, the broker will do it: %s", self.core.txn_id, error)
        else:
            self._ended(None)
        if failure is not None:
            raise failure

    async def _send_end(self, *, commit: bool) -> None:
        """Send END_TXN to the coordinator, until it has responded."""
        is_again = False

        def again() -> None:
            nonlocal is_again
            is_again = True

        try:
            await self._coordinator.request(
                lambda request_id: commands.end_transaction(self.core.txn_id, request_id, commit=commit),
                pb.CommandEndTxnResponse,
                self.client.deadline(),
                unseen=again,
            )
        except TransactionNotFound:
            # Sent again before the transaction's time-out, the coordinator can have dropped it for one reason only: the
            # first request succeeded, and its response was lost.
            if not is_again or not self._seconds_left():
                raise

    def _make_way(self) -> None:
        for consumer in self._consumers:
            consumer.before_abort(self.core.acknowledged((consumer.topic.full, consumer.config.subscription_name)))

    def _ended(self, error: PulsarException | None) -> None:
        """Remove the transaction from its producers and consumers."""
        with self._lock:
            self.core.ended(error)
        self._timer.cancel()
        self._forget(self.core.txn_id, None)
        for producer in self._producers:
            producer.leave_transaction(self.core)
        if error is None:
            self._notify_consumers(committed=self.core.state is TransactionState.COMMITTED)
        else:
            self.engine.spawn(self._abort_expired())

    def _notify_consumers(self, *, committed: bool) -> None:
        for consumer in self._consumers:
            # A consumer that was closed meanwhile has nothing to redeliver.
            with contextlib.suppress(PulsarException):
                key = (consumer.topic.full, consumer.config.subscription_name)
                consumer.acks.transaction_ended(self.core.acknowledged(key), committed=committed)

    def _expire(self) -> None:
        """Give up at the time-out: the broker aborts it about now, too. On the loop."""
        with self._lock:
            if not self.core.expire():
                return
        _log.warning("Transaction %s was not ended within %g s", self.core.txn_id, self.core.timeout)
        self._forget(self.core.txn_id, None)
        for producer in self._producers:
            producer.leave_transaction(self.core)
        self._settled.set()
        self._make_way()
        self.engine.spawn(self._abort_expired())

    async def _abort_expired(self) -> None:
        """Abort the transaction, and have the consumers request redelivery of its acknowledged messages only then.

        As long as the broker is about to abort it by itself, it redelivers nothing of that; and on Exclusive and
        Failover subscriptions it does not do so afterwards, unless requested.
        """
        loop = self.engine.loop
        until, pause = self.client.deadline(), _FIRST_PAUSE_SECONDS
        while loop.time() < until:
            try:
                await self._send_end(commit=False)
                break
            except InvalidTxnStatusError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            except PulsarException:
                # Not found: it has ended. Every other error was retried long enough.
                break
        self._notify_consumers(committed=False)

    async def abort_if_open(self) -> None:
        """Abort a transaction that is still open."""
        if self.core.state is TransactionState.OPEN:
            await self.end(commit=False)

    def give_up(self) -> None:
        """Release it: the client is closed."""
        self._timer.cancel()
        with self._lock:
            self.core.give_up()
        self._settled.set()


def _retrieved(done: asyncio.Future[Any]) -> None:
    """Retrieve an outcome that may have no waiter any more, so that it is not logged as a warning."""
    if not done.cancelled():
        done.exception()


async def _abort(beginning: asyncio.Task[TransactionWork]) -> None:
    """Abort a transaction that nobody has, once it has begun."""
    with contextlib.suppress(PulsarException):
        await (await beginning).abort_if_open()


def _ignore(_error: PulsarException | None) -> None:
    """Ignore the outcome: each message has its own."""


class Transactions:
    """Coordinators and open transactions of one client."""

    def __init__(self, client: ClientContext) -> None:
        self._client = client
        self._coordinators: dict[int, asyncio.Task[Coordinator]] = {}
        self._count = 0
        self._turn = -1
        self._open: dict[TxnId, TransactionWork] = {}

    async def begin(self, timeout: float) -> TransactionWork:
        """Begin a transaction that the broker aborts after `timeout` seconds; cancelled, it is aborted at once."""
        beginning = self._client.engine.spawn(self._begin(timeout))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            self._client.engine.spawn(_abort(beginning))
            raise

    async def _begin(self, timeout: float) -> TransactionWork:
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
        return await wait_for_shared(task)

    async def _count_coordinators(self, deadline: float) -> int:
        try:
            count = await self._client.lookup.partitions(ASSIGN_TOPIC, deadline, auto_create=False)
        except TopicNotFound:
            count = 0
        if not count:
            raise OperationNotSupported(
                "The cluster has no transaction coordinators: set transactionCoordinatorEnabled=true at its brokers "
                "(and initialize-transaction-coordinator-metadata in a cluster that was made without)",
                topic=ASSIGN_TOPIC.full,
            )
        return count

    def join(self, transaction: TransactionCore, producer: TransactionProducer, wake: Callable[[], None]) -> None:
        """Register a producer's partition, and call `wake` when that has succeeded or failed. Thread-safe."""
        self._client.engine.call(self._join, transaction, producer, wake)

    def _join(self, transaction: TransactionCore, producer: TransactionProducer, wake: Callable[[], None]) -> None:
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
        if not tasks:
            # The last one ended after the caller had seen it.
            return
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
