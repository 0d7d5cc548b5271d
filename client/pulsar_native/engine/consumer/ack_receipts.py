"""Ack receipts: the broker's responses to acknowledgements, and the callbacks that wait for them.

Rules: every group that is sent is a request; everyone who acknowledged a part of it receives its outcome. A group whose
connection is lost, or whose topic is unloaded, before the response is sent again with the next attachment, and its
waiters stay: the broker accepts a repeated acknowledgement. For a batch of which nothing is sent yet (no batch-index
acknowledgement) there is no receipt. Called under the consumer's lock unless said otherwise; requests and responses are
on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.engine.loop import Engine
from pulsar_native.exceptions import NotConnected, PulsarException
from pulsar_native.protocol.ack_grouping import AckGroup
from pulsar_native.wire import commands
from pulsar_native.wire.commands import AckItem

Done = Callable[[PulsarException | None], None]
"""Callback for the broker's response, with its error or None; on the loop, or immediately in the caller's thread."""

# Older brokers ignore the request id and send no response.
_FIRST_VERSION_WITH_RECEIPTS = 17


class _Sent:
    """A group that was sent: its items, and the callbacks that wait for it."""

    __slots__ = ("cumulative", "error", "futures", "items", "waiters")

    def __init__(self, items: Sequence[AckItem], cumulative: AckItem | None, waiters: list[Done]) -> None:
        self.items = items
        self.cumulative = cumulative
        self.waiters = waiters
        self.futures: list[asyncio.Future[Any]] = []
        self.error: PulsarException | None = None


class AckReceipts:
    """Pending receipts of one `PartitionConsumer`."""

    def __init__(self, context: ConsumerContext, group: AckGroup, next_request_id: Callable[[], int]) -> None:
        self._context = context
        self._next_request_id = next_request_id
        self._group = group
        self._open: list[Done] = []
        self._sent: list[_Sent] = []

    def wait(self, done: Done) -> bool:
        """Call `done` when everything acknowledged so far has its response; return False when nothing is pending."""
        if len(self._group):
            self._open.append(done)
        elif self._sent:
            self._sent[-1].waiters.append(done)
        else:
            return False
        return True

    def send(self, connection: Connection) -> None:
        """Send the gathered group. On the loop."""
        items, cumulative = self._group.drain()
        sent = _Sent(items, cumulative, self._open)
        self._open = []
        self._sent.append(sent)
        try:
            if cumulative is not None:
                self._request(connection, sent, [cumulative], cumulative=True)
            if items:
                self._request(connection, sent, items, cumulative=False)
        except NotConnected:
            # The connection has just been lost; everything is sent again with the next attachment.
            self._regroup(sent)
            return
        if not sent.futures:
            self._sent.remove(sent)
            _notify(self._context.engine, sent.waiters, None)

    def _request(self, connection: Connection, sent: _Sent, items: Sequence[AckItem], *, cumulative: bool) -> None:
        consumer_id = self._context.consumer_id
        if connection.core.protocol_version < _FIRST_VERSION_WITH_RECEIPTS:
            connection.write([commands.ack(consumer_id, items, cumulative=cumulative)])
            return
        request_id = self._next_request_id()
        frame = commands.ack(consumer_id, items, cumulative=cumulative, request_id=request_id)
        future = connection.begin_request(request_id, frame)
        sent.futures.append(future)
        future.add_done_callback(lambda answered: self._answered(sent, answered))

    def _answered(self, sent: _Sent, future: asyncio.Future[Any]) -> None:
        """Process a response, or a time-out. On the loop, without the lock."""
        error = None if future.cancelled() else future.exception()
        with self._context.lock:
            if sent not in self._sent:
                # The attachment has ended meanwhile: the group waits to be sent again.
                return
            if isinstance(error, PulsarException):
                error.topic = self._context.topic.full
                sent.error = error
            if not all(each.done() for each in sent.futures):
                return
            self._sent.remove(sent)
        for done in sent.waiters:
            done(sent.error)

    def detached(self) -> None:
        """Put back what was sent without a response: it is sent again with the next attachment."""
        for sent in list(self._sent):
            self._regroup(sent)

    def _regroup(self, sent: _Sent) -> None:
        self._sent.remove(sent)
        for future in sent.futures:
            future.cancel()
        self._group.put_back(sent.items, sent.cumulative)
        self._open = sent.waiters + self._open

    def fail(self, error: PulsarException) -> None:
        """Call all waiting callbacks with an error."""
        waiters = [done for sent in self._sent for done in sent.waiters] + self._open
        self._sent, self._open = [], []
        _notify(self._context.engine, waiters, error)


def _notify(engine: Engine, waiters: list[Done], error: PulsarException | None) -> None:
    # Not under the lock held by the caller: the application may act on the outcome immediately.
    if waiters:
        engine.call(engine.loop.call_soon, _notify_all, waiters, error)


def _notify_all(waiters: list[Done], error: PulsarException | None) -> None:
    for done in waiters:
        done(error)


def completing(future: asyncio.Future[None]) -> Done:
    """Return a `Done` that completes a future. On the loop."""

    def done(error: PulsarException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)

    return done


class AllDone:
    """Counter of several responses: calls `done` after the last, with the first error. Thread-safe."""

    def __init__(self, count: int, done: Done) -> None:
        self._left = count
        self._done = done
        self._error: PulsarException | None = None
        self._lock = threading.Lock()

    def __call__(self, error: PulsarException | None) -> None:
        """Count one response."""
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            last = not self._left
        if last:
            self._done(self._error)
