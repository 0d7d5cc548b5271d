"""The broker's answers to acknowledgements, and who waits for them.

Rules: every group that is sent is a request; whoever acknowledged something of it is told its
outcome. A group whose connection is lost, or whose topic is unloaded, before the answer goes out again with the next
attachment, and its waiters stay: the broker takes an acknowledgement twice without harm. Of a batch of which nothing
is sent yet (no batch-index acknowledgement) there is nothing to wait for. Called under the consumer's lock unless said
otherwise; requests are made and answered on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import NotConnected, PulsarException
from pulsar_native.protocol.ack_grouping import AckGroup
from pulsar_native.wire import commands
from pulsar_native.wire.commands import AckItem

if TYPE_CHECKING:
    from pulsar_native.engine.connection import Connection
    from pulsar_native.engine.consumer.consumer import PartitionConsumer

Done = Callable[[PulsarException | None], None]
"""Is told that the broker has answered, with its error or None; on the loop, or at once in the caller's thread."""

# Older brokers take no notice of the request's id and answer nothing.
_FIRST_VERSION_WITH_RECEIPTS = 17


class _Sent:
    """A group on its way: what it holds, and who waits for it."""

    __slots__ = ("cumulative", "error", "futures", "items", "waiters")

    def __init__(self, items: Sequence[AckItem], cumulative: AckItem | None, waiters: list[Done]) -> None:
        self.items = items
        self.cumulative = cumulative
        self.waiters = waiters
        self.futures: list[asyncio.Future[Any]] = []
        self.error: PulsarException | None = None


class AckReceipts:
    """The receipts of one `PartitionConsumer`."""

    def __init__(self, consumer: PartitionConsumer, group: AckGroup) -> None:
        self._consumer = consumer
        self._group = group
        self._open: list[Done] = []
        self._sent: list[_Sent] = []

    def wait(self, done: Done) -> bool:
        """Tell `done` when everything noted so far was answered; False when there is nothing to wait for."""
        if len(self._group):
            self._open.append(done)
        elif self._sent:
            self._sent[-1].waiters.append(done)
        else:
            return False
        return True

    def send(self, connection: Connection) -> None:
        """Send what is gathered. On the loop."""
        items, cumulative = self._group.take()
        sent = _Sent(items, cumulative, self._open)
        self._open = []
        self._sent.append(sent)
        try:
            if cumulative is not None:
                self._request(connection, sent, [cumulative], cumulative=True)
            if items:
                self._request(connection, sent, items, cumulative=False)
        except NotConnected:
            # It has just been lost; with the next attachment all of it goes out again.
            self._take_back(sent)
            return
        if not sent.futures:
            self._sent.remove(sent)
            _tell(self._consumer, sent.waiters, None)

    def _request(self, connection: Connection, sent: _Sent, items: Sequence[AckItem], *, cumulative: bool) -> None:
        consumer_id = self._consumer.consumer_id
        if connection.core.protocol_version < _FIRST_VERSION_WITH_RECEIPTS:
            connection.write([commands.ack(consumer_id, items, cumulative=cumulative)])
            return
        request_id = self._consumer.client.next_request_id()
        frame = commands.ack(consumer_id, items, cumulative=cumulative, request_id=request_id)
        future = connection.begin_request(request_id, frame)
        sent.futures.append(future)
        future.add_done_callback(lambda answered: self._answered(sent, answered))

    def _answered(self, sent: _Sent, future: asyncio.Future[Any]) -> None:
        """Take an answer, or a time-out. On the loop, without the lock."""
        error = None if future.cancelled() else future.exception()
        with self._consumer.lock:
            if sent not in self._sent:
                # The attachment has ended meanwhile: the group is waiting to be sent again.
                return
            if isinstance(error, PulsarException):
                error.topic = self._consumer.topic.full
                sent.error = error
            if not all(each.done() for each in sent.futures):
                return
            self._sent.remove(sent)
        for done in sent.waiters:
            done(sent.error)

    def detached(self) -> None:
        """Take back what was sent and not answered: it goes out again with the next attachment."""
        for sent in list(self._sent):
            self._take_back(sent)

    def _take_back(self, sent: _Sent) -> None:
        self._sent.remove(sent)
        for future in sent.futures:
            future.cancel()
        self._group.put_back(sent.items, sent.cumulative)
        self._open = sent.waiters + self._open

    def fail(self, error: PulsarException) -> None:
        """Tell everyone who waits that no answer will come."""
        waiters = [done for sent in self._sent for done in sent.waiters] + self._open
        self._sent, self._open = [], []
        _tell(self._consumer, waiters, error)


def _tell(consumer: PartitionConsumer, waiters: list[Done], error: PulsarException | None) -> None:
    # Not under the lock we are called with: the application may act on the answer at once.
    if waiters:
        consumer.engine.call(consumer.engine.loop.call_soon, _tell_all, waiters, error)


def _tell_all(waiters: list[Done], error: PulsarException | None) -> None:
    for done in waiters:
        done(error)


def settle(future: asyncio.Future[None]) -> Done:
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
    """Wait for several answers: tells `done` after the last, with the first error. Thread-safe."""

    def __init__(self, count: int, done: Done) -> None:
        self._left = count
        self._done = done
        self._error: PulsarException | None = None
        self._lock = threading.Lock()

    def __call__(self, error: PulsarException | None) -> None:
        """Take one answer."""
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            last = not self._left
        if last:
            self._done(self._error)
