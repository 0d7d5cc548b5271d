"""Table view of the asyncio API: filled before it is returned, then updated by a task on the loop."""

from __future__ import annotations

import asyncio

from pulsar_native._loggers import get_logger
from pulsar_native._type_vars import T_co
from pulsar_native.asyncio._base import Closeable
from pulsar_native.asyncio.consumer import Receiving
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.consumer.table_view import Table, TableMapping
from pulsar_native.engine.loop import check_generation, generation
from pulsar_native.exceptions import AlreadyClosed, PulsarException, log_text
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.stats import CloseReport

_log = get_logger("pulsar_native.table_view")

# Seconds without a message after which the broker is asked whether any are left.
_SETTLE_SECONDS = 0.2
# Pause before the next attempt to fetch a writer's schema, in seconds.
_RETRY_SECONDS = 1.0
# Number of messages applied before other tasks on the loop run.
_TURN = 200


class _Intake:
    """Loop that applies messages to a table, without the view and the client: both may be dropped while it waits."""

    def __init__(self, receiving: Receiving, table: Table) -> None:
        self._receiving = receiving
        self._table = table
        self.progress = asyncio.Event()
        self._turn = 0

    async def follow(self) -> None:
        """Apply messages until the consumer is closed."""
        while True:
            try:
                await self.next(None)
            except AlreadyClosed:
                return
            except PulsarException as error:
                # The writer's schema could not be fetched; the message was queued again.
                _log.warning(
                    "Cannot fetch the writer's schema of a message for the table view of %s, next try in %g s: %s",
                    self._receiving.topic(), _RETRY_SECONDS, log_text(error),
                )  # fmt: skip
                await asyncio.sleep(_RETRY_SECONDS)

    async def next(self, deadline: float | None) -> bool:
        """Apply the next message; False when none came in time."""
        message = await self._receiving._take(deadline)
        if message is None:
            return False
        self._table.apply(message)
        self.progress.set()
        self._turn += 1
        if self._turn % _TURN == 0:
            await asyncio.sleep(0)
        return True


class TableView(Closeable, TableMapping[T_co]):
    """Table view of a topic: read-only mapping of keys to their newest values, updated while it is open.

    Generic in the type of the values, which is the schema's.

    Created by `Client.create_table_view`. Belongs to the client's loop; reading it needs no `await` and does no I/O.
    (PIP-87.)
    """

    def __init__(self, inner: MultiTopicsConsumer, decoder: VersionedDecoder, subscription: str | None) -> None:
        self._subscription = subscription
        self._inner = inner
        self._receiving = Receiving(inner, decoder)
        self._loop = inner.client.engine.loop
        self._generation = generation()
        self._table = Table(decoder.info.type)
        self._intake = _Intake(self._receiving, self._table)

    async def _start(self) -> None:
        """Read the messages present, then start the task that reads further ones."""
        try:
            if self._has_history:
                await self._fill()
        except BaseException:
            await self.close()
            raise
        self._inner.add_task(self._inner.client.engine.spawn(self._intake.follow()))

    @property
    def _has_history(self) -> bool:
        return all(topic.is_persistent for topic in self._inner.topics)

    async def _fill(self) -> None:
        ends = await self._inner.last_message_ids()
        while self._table.is_behind(ends):
            taken = await self._intake.next(self._loop.time() + _SETTLE_SECONDS)
            if not taken and not await self._inner.has_entry_available():
                # The last messages were compacted away.
                return

    async def refresh(self) -> None:
        """Wait until all messages published before this call are in the table.

        Those that cannot be decrypted or read are left out, with an ERROR in the log.

        Raises `AlreadyClosed`, and `Timeout` if the broker does not answer.
        """
        check_generation(self._generation)
        if not self._has_history:
            return
        ends = await self._inner.last_message_ids()
        while self._table.is_behind(ends):
            if self._inner.is_closed:
                raise AlreadyClosed("The table view was closed", topic=self._inner.description)
            self._intake.progress.clear()
            try:
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await self._intake.progress.wait()
            except TimeoutError:
                if not await self._inner.has_entry_available():
                    # The remaining messages are those the task has dequeued.
                    ends = self._inner.dequeued_ids()

    def __repr__(self) -> str:
        return self._shown(self._inner.description, self._subscription)

    def topic(self) -> str:
        """Return the topic's full name."""
        return self._inner.description

    def is_connected(self) -> bool:
        """Return whether every partition is connected, which none is in a forked child."""
        return self._inner.is_connected

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Stop updating the table, which can still be read. Idempotent.

        :param timeout: limit in seconds. Default None: the operation time-out.
        """
        return await self._receiving.close(timeout)
