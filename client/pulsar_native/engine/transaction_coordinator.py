"""Transaction coordinator client: the connection to one coordinator.

Rules: there are as many coordinators as the assign topic has partitions; each is located by the lookup of its
partition, which also makes its broker load it, and connected by one TC_CLIENT_CONNECT per connection. At most 1000
requests per coordinator are unanswered; a lost connection reconnects with back-off, and a request whose response was
lost is sent again until its deadline, since the coordinator identifies transactions by their ids. On the loop only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pulsar_native._loggers import get_logger
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.handler import Handler, State
from pulsar_native.exceptions import (
    ConnectError,
    NotConnected,
    PulsarException,
    Timeout,
    TransactionCoordinatorNotFoundError,
)
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.client_context import ClientContext

_log = get_logger("pulsar_native.transaction")

ASSIGN_TOPIC = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
_MAX_REQUESTS = 1000

T = TypeVar("T")


class Coordinator(Handler):
    """One coordinator; reconnects by itself when its connection is lost."""

    def __init__(self, client: ClientContext, number: int) -> None:
        super().__init__(client, ASSIGN_TOPIC.with_partition(number))
        self.number = number
        # A caller gives up after one operation time-out: the next attempt is made well before that.
        config = client.config
        longest = min(config.max_backoff_interval_ms / 1000, config.operation_timeout_seconds / 10)
        self._backoff = Backoff(config.starting_backoff_interval_ms / 1000, longest, random.random)
        self._room = asyncio.Semaphore(_MAX_REQUESTS)

    def describe(self) -> str:
        """Return a short name for logs."""
        return f"Transaction coordinator {self.number}"

    def is_registered(self, connection: Connection) -> bool:
        """Return True if the connection notifies this coordinator when it is lost."""
        return connection.is_open and connection.has_coordinator(self.number)

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
            self.disconnected(connection, str(error))
            self.reconnect()
        return True
