"""Table view of the sync API: filled in the thread that creates it, then updated by a listener thread."""

from __future__ import annotations

import time

from pulsar_native._type_vars import T_co
from pulsar_native.engine.consumer.listener import ListenerThreads
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.consumer.table_view import Table, TableMapping
from pulsar_native.engine.loop import check_generation
from pulsar_native.engine.waiter import Wait
from pulsar_native.exceptions import AlreadyClosed, NotAllowedError
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.stats import CloseReport
from pulsar_native.sync._base import Closeable
from pulsar_native.sync.consumer import Receiving

# Seconds without a message after which the broker is asked whether any are left.
_SETTLE_SECONDS = 0.2


class TableView(Closeable, TableMapping[T_co]):
    """Table view of a topic: read-only mapping of keys to their newest values, updated while it is open.

    Generic in the type of the values, which is the schema's.

    Created by `Client.create_table_view`. Thread-safe; reading it does not block and does no I/O. (PIP-87.)
    """

    def __init__(
        self,
        client: object,
        inner: MultiTopicsConsumer,
        decoder: VersionedDecoder,
        threads: ListenerThreads,
        kept: set[object],
        subscription: str | None,
    ) -> None:
        self._subscription = subscription
        super().__init__(client, inner.client.engine)
        self._inner = inner
        self._receiving = Receiving(client, inner, decoder, threads, kept)
        self._table = Table(decoder.info.type)

    def _start(self) -> None:
        """Read the messages present, then listen for further ones."""
        try:
            if self._has_history:
                self._fill()
        except BaseException:
            self.close()
            raise
        self._receiving._listen(self._table.apply)

    @property
    def _has_history(self) -> bool:
        return all(topic.is_persistent for topic in self._inner.topics)

    def _fill(self) -> None:
        ends = self._engine.run_eager(self._inner.last_message_ids())
        while self._table.is_behind(ends):
            message = self._receiving._take(time.monotonic() + _SETTLE_SECONDS)
            if message is not None:
                self._table.apply(message)
            elif not self._engine.run_eager(self._inner.has_entry_available()):
                # The last messages were compacted away.
                return

    def refresh(self) -> None:
        """Wait until all messages published before this call are in the table. Blocks; thread-safe.

        Those that cannot be decrypted or read are left out, with an ERROR in the log.

        Raises `AlreadyClosed`, `Timeout` if the broker does not answer, and `NotAllowedError` in the listener thread
        that updates the table: that of its listeners, and of those of other consumers on the same thread.
        """
        check_generation(self._generation)
        if self._receiving._on_listener_thread():
            raise NotAllowedError(
                "refresh() was called in the listener thread that updates the table, where it would wait for itself; "
                "call it in another thread",
                topic=self._inner.description,
            )
        if not self._has_history:
            return
        ends = self._engine.run_eager(self._inner.last_message_ids())
        while True:
            wait = Wait()
            self._table.waiters.append(wait.wake)
            try:
                if not self._table.is_behind(ends):
                    return
                if self._inner.is_closed:
                    raise AlreadyClosed("The table view was closed", topic=self._inner.description)
                applied = wait.wait(_SETTLE_SECONDS)
            finally:
                self._table.waiters.remove(wait.wake)
            if not applied and not self._engine.run_eager(self._inner.has_entry_available()):
                # The remaining messages are those the listener thread has dequeued.
                ends = self._inner.dequeued_ids()

    def __repr__(self) -> str:
        return self._shown(self._inner.description, self._subscription)

    def topic(self) -> str:
        """Return the topic's full name."""
        return self._inner.description

    def is_connected(self) -> bool:
        """Return whether every partition is connected, which none is in a forked child. Does not block."""
        return self._inner.is_connected

    def close(self, timeout: float | None = None) -> CloseReport:
        """Stop updating the table, which can still be read. Blocks; thread-safe; idempotent.

        :param timeout: limit in seconds. Default None: the operation time-out.
        """
        return self._receiving.close(timeout)
