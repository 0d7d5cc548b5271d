"""Lazy partition producer: created at the broker with the first message for its partition.

Rules: messages sent meanwhile wait here, not encoded, since name, schema version, sequence id and maximum size are set
by the broker. Order is kept: no message overtakes waiting ones. When the creation fails, the waiting messages fail with
it, and the next message tries again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from pulsar_native._callback_errors import CALLBACK_ERRORS, cancels_task
from pulsar_native.engine.handler import State
from pulsar_native.engine.producer import backpressure
from pulsar_native.engine.producer.backpressure import Backpressure
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.engine.waiter import SendWait
from pulsar_native.exceptions import AlreadyClosed, PulsarException, UnknownError
from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.send_op import Callback, SendCallback, SendOp, as_callback
from pulsar_native.protocol.transaction import TransactionCore
from pulsar_native.topic import TopicName


class _Waiting(NamedTuple):
    """A message, or a flush (then only `flushed` is set), in the order of the calls."""

    payload: bytes
    fields: bytes
    extras: OutgoingMessage | None
    callback: Callback | None
    flush: bool
    flushed: Callable[[PulsarException | None], None] | None = None


def _unforeseen(error: BaseException, topic: TopicName) -> UnknownError:
    unforeseen = UnknownError(f"The producer cannot be created: {type(error).__name__}", topic=topic.full)
    unforeseen.__cause__ = error
    return unforeseen


class LazyPartitionProducer(PartitionProducer):
    """Partition producer that may never be used."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: deque[_Waiting] = deque()
        self._opening: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._is_joined = False

    @property
    def is_started(self) -> bool:
        """True if it was created at the broker, or is being created."""
        return self._is_wanted

    async def open(self, deadline: float | None = None) -> None:
        """Create it at the broker now, until the deadline."""
        self._is_wanted = True
        await super().open(deadline)
        self._is_joined = True

    # --- sending (any thread) ---------------------------------------------------------------------------------------

    def enqueue_plain(self, payload: bytes, callback: SendCallback | None) -> Backpressure | None:
        """Add a message that has only a payload; return the backpressure when it was not accepted. Thread-safe, never
        blocks.
        """
        if self._is_joined:
            return super().enqueue_plain(payload, callback)
        return self.enqueue(payload, b"", None, callback)

    def enqueue_reading_inline(self, payload: bytes, wait: SendWait) -> Backpressure | None:
        """Add a message of a waiting sender."""
        if self._is_joined:
            return super().enqueue_reading_inline(payload, wait)
        return self.enqueue(payload, b"", None, wait, flush=True)

    def enqueue(
        self,
        payload: bytes,
        fields: bytes,
        extras: OutgoingMessage | None,
        callback: SendCallback | None,
        *,
        flush: bool = False,
        is_reserved: bool = False,
    ) -> Backpressure | None:
        """Add a message; return the backpressure when it was not accepted. Thread-safe, never blocks; starts the
        creation.
        """
        if not self._is_joined:
            with self._lock:
                # Checked again: the creation may have finished while this thread waited for the lock.
                waits = self._must_wait()
                item = _Waiting(payload, fields, extras, as_callback(callback), flush)
                full = self._put_aside(item) if waits else None
            if waits:
                return full
        return super().enqueue(payload, fields, extras, callback, flush=flush, is_reserved=is_reserved)

    def enqueue_entry(
        self,
        payloads: list[bytes],
        fields: list[bytes] | None,
        first: OutgoingMessage | None,
        callback: Callable[[int], Callback],
        transaction: TransactionCore | None = None,
    ) -> int | Backpressure:
        """Add messages as one entry; one by one, by `enqueue`, until the producer is created."""
        return super().enqueue_entry(payloads, fields, first, callback, transaction) if self._is_joined else 0

    def _must_wait(self) -> bool:
        return not self._is_joined

    def _put_aside(self, item: _Waiting) -> Backpressure | None:
        if self.state is not State.READY and self.state is not State.CONNECTING:
            raise self._refusal()
        if self._max_pending and len(self._waiting) >= self._max_pending:
            return Backpressure(backpressure.queue_full(self._max_pending, self.topic.full), self.wait_for_room)
        memory = self.client.memory
        if not memory.try_reserve(len(item.payload)):
            return Backpressure(backpressure.memory_full(memory.limit, self.topic.full), memory.wait_for_room)
        self._waiting.append(item)
        if not self._is_wanted:
            self._is_wanted = True
            self.engine.call(self._start)
        return None

    def wait_for_room(self, wake: Callable[[], None], needed: int = 1) -> None:
        """Call `wake` once there is capacity in the queue. Thread-safe."""
        with self._lock:
            if not self._is_joined and self._max_pending and len(self._waiting) >= self._max_pending:
                self._capacity_waiters.add(needed, wake)
                return
        super().wait_for_room(wake, needed)

    def flush_then(self, done: Callable[[PulsarException | None], None]) -> None:
        """Call `done` when everything sent before has its receipt. Thread-safe."""
        with self._lock:
            if not self._is_joined and self._waiting:
                self._waiting.append(_Waiting(b"", b"", None, None, False, done))
                return
        super().flush_then(done)

    # --- creation (loop) --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._opening = self.engine.spawn(self._open_for_messages())

    async def _open_for_messages(self) -> None:
        try:
            if self.state is State.CLOSED:
                raise AlreadyClosed("The producer was closed before it was created", topic=self.topic.full)
            await super().open()
        except CALLBACK_ERRORS as error:
            if cancels_task(error):
                raise
            if self.state is State.FAILED:
                # Not permanently: the next message tries again. Before the callbacks, which may send it.
                self.state, self.failure = State.CONNECTING, None
                self._attached.clear()
            # Any other error, too: the messages have no send time-out here.
            self._fail_waiting(error if isinstance(error, PulsarException) else _unforeseen(error, self.topic))
            return
        self._pass_on()

    def _pass_on(self) -> None:
        """Send the waiting messages, in order; messages that arrive meanwhile wait behind them."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_joined = True
                    break
                item = self._waiting[0]
            if item.flushed is not None:
                super().flush_then(item.flushed)
            elif not self._pass(item):
                return
            with self._lock:
                self._waiting.popleft()
        self._wake_for_room()

    def _pass(self, item: _Waiting) -> bool:
        """Send one waiting message; return False when it must wait for capacity again."""
        try:
            # Its bytes stay reserved: to reserve them again it could wait for memory that those behind it hold.
            full = super().enqueue(
                item.payload, item.fields, item.extras, item.callback, flush=item.flush, is_reserved=True
            )
        except PulsarException as error:
            self.client.memory.release(len(item.payload))
            self._tell(item, error)
            return True
        if full is not None:
            full.wait_for_room(self._pass_on_soon)
        return full is None

    def _pass_on_soon(self) -> None:
        # Not immediately: the caller may hold a lock.
        self.engine.loop.call_soon_threadsafe(self._pass_on)

    def _fail_waiting(self, error: PulsarException) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            self._is_wanted = False
        for item in waiting:
            self.client.memory.release(len(item.payload))
            if item.flushed is not None:
                item.flushed(error)
                continue
            self.failed_messages += 1
            self._tell(item, error)
        self._wake_for_room()

    def _tell(self, item: _Waiting, error: PulsarException) -> None:
        """Call the callback of a message that failed; the others are called whatever it raises."""
        SendOp(0, 0, (), [item.callback], len(item.payload), 0.0).complete(error, None, self.topic.full)

    # --- end --------------------------------------------------------------------------------------------------------

    async def opening_ended(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds for a creation that its first message began; None: it ends by itself within the
        operation time-out.
        """
        if self._opening is not None and not self._opening.done():
            await asyncio.wait([self._opening], timeout=timeout)

    def unconfirmed(self) -> int:
        """Return how many messages wait for their receipts, or for the producer. Thread-safe."""
        with self._lock:
            waiting = sum(item.flushed is None for item in self._waiting)
        return super().unconfirmed() + waiting

    def abandon(self) -> None:
        """Close without a message to the broker; everything pending fails."""
        self.state = State.CLOSED
        if self._opening is not None:
            self._opening.cancel()
        self._fail_waiting(AlreadyClosed("The producer was closed before it was created", topic=self.topic.full))
        super().abandon()
