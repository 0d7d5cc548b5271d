"""Connection handler, the base of producers and consumers: attachment to a broker, and reconnection.

Rules: creation has a deadline of one operation time-out, during which transient errors are retried; after the first
success the handler reconnects without limit, with back-off, until it is closed. Permanent errors end the creation
immediately. All state changes happen on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar

from pulsar_native._callback_errors import CALLBACK_ERRORS, cancels_task
from pulsar_native._loggers import get_logger
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.lookup import BrokerOfTopic
from pulsar_native.exceptions import AlreadyClosed, ConnectError, NotConnected, PulsarException, Timeout, log_text
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.service_url import Address, ServiceUrl
from pulsar_native.topic import TopicName

if TYPE_CHECKING:
    from pulsar_native.engine.client_context import ClientContext

_log = get_logger("pulsar_native.handler")

_Answer = TypeVar("_Answer")


class State(Enum):
    """Life-cycle state of a producer or consumer."""

    CONNECTING = auto()
    READY = auto()
    CLOSING = auto()
    CLOSED = auto()
    TERMINATED = auto()
    FAILED = auto()


# States in which a lost connection is re-established.
_ALIVE = (State.CONNECTING, State.READY)


def is_unanswered(error: BaseException) -> bool:
    """Return True if the broker may still do what a request was for: after a time-out, a cancellation, Ctrl-C, or what
    the handler of another signal raised, of whatever class.
    """
    return isinstance(error, Timeout) or not isinstance(error, PulsarException)


class Handler(ABC):
    """Base of `PartitionProducer` and `PartitionConsumer`."""

    def __init__(self, client: ClientContext, topic: TopicName, *, mandatory_stop: float = 0.0) -> None:
        self.client = client
        self.engine = client.engine
        self.topic = topic
        self.state = State.CONNECTING
        self.connection: Connection | None = None
        self.failure: PulsarException | None = None
        # Why it was disconnected last: for the errors of what was pending.
        self.disconnect_reason = ""
        # Why the last attempt to reconnect failed; empty before the first one, and while it is connected.
        self._reconnect_failure = ""
        # When that was, in ms since 1970; 0 before the first time.
        self.last_disconnected_timestamp = 0
        self._backoff = Backoff(
            client.config.starting_backoff_interval_ms / 1000,
            client.config.max_backoff_interval_ms / 1000,
            random.random,
            mandatory_stop=mandatory_stop,
        )
        self._assigned: Address | None = None
        # Result of a lookup for the first attempt, if it was made before.
        self._found: BrokerOfTopic | None = None
        self._through: Address | None = None
        self._migrated: tuple[ServiceUrl | None, int] = (None, 0)
        self._reconnecting: asyncio.Task[None] | None = None
        self._attached = asyncio.Event()
        # A handle holds what it calls until it is due, which may be a minute: cancelled when the handler leaves.
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._has_left = False

    @abstractmethod
    def describe(self) -> str:
        """Return a short name for logs."""

    @abstractmethod
    async def attach(self, connection: Connection) -> None:
        """Create the handler at the broker; raises the broker's error."""

    @abstractmethod
    def is_registered(self, connection: Connection) -> bool:
        """Return True if the connection passes the broker's frames to this handler."""

    @abstractmethod
    def gave_up(self, error: PulsarException) -> None:
        """Called when the handler will not be reconnected."""

    def attach_at_once(self) -> Connection | None:
        """Attach for the first time without waiting, which takes a fraction of the steps of `attach`, and return the
        connection; None, without effect, unless the broker is known to have created the handler already.
        """
        return None

    @property
    def waits_for_its_turn(self) -> bool:
        """True if the broker's response to the first attachment has no time limit."""
        return False

    @property
    def is_connected(self) -> bool:
        """True while the broker has the handler; False in a forked child. Thread-safe."""
        is_open = self.state is State.READY and self.connection is not None and self.connection.is_open
        return is_open and not self.client.engine.is_inherited

    def assign(self, broker: BrokerOfTopic | None) -> None:
        """Attach to this broker at the next attempt, without a lookup."""
        self._found = broker

    async def open(self, deadline: float | None = None) -> None:
        """Attach for the first time until the deadline, by default within one operation time-out; again after a
        failure.
        """
        self._has_left = False
        if deadline is None:
            deadline = self.client.deadline()
        try:
            confirmed = self.attach_at_once()
            if confirmed is None:
                await self.client.lookup.retry(self._attach_once, self.topic, deadline, patient=self.waits_for_its_turn)
            else:
                if self._found is not None:
                    self._use(self._found)
                self._note_attached(confirmed)
        except BaseException as error:
            self.state = State.FAILED
            self.failure = error if isinstance(error, PulsarException) else None
            self.leave()
            raise
        self._backoff.reset()
        connection = self.connection
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s is connected to %s", self.describe(), connection.broker if connection else "no broker")

    async def _attach_once(self) -> None:
        self._check_alive()
        connection = await self.client.pool.get(*await self._find_broker())
        try:
            await self.attach(connection)
        except PulsarException as error:
            error.topic = self.topic.full
            raise
        self._note_attached(connection)

    def _note_attached(self, connection: Connection) -> None:
        if self.state is State.CONNECTING:
            self.state = State.READY
        self._reconnect_failure = ""
        self._attached.set()
        if not self.engine.on_loop() and not (self.connection is connection and self.is_registered(connection)):
            self.engine.call(self._check_attachment, connection)

    def _check_attachment(self, connection: Connection) -> None:
        """Reconnect if the attachment ended while the calling thread made it: the loop did not know of it yet."""
        if (self.connection is connection and not self.is_registered(connection)) or (
            self.connection is None and self.state is State.READY
        ):
            self.disconnected(connection, "the connection was lost, or closed by the broker, during the creation")
            self.reconnect()

    async def _find_broker(self) -> BrokerOfTopic:
        """Return the broker to attach to: the one assigned by the broker, once, else the lookup's."""
        assigned, self._assigned = self._assigned, None
        if assigned is not None:
            return BrokerOfTopic(assigned, self._through or assigned)
        found = self._found
        if found is None:
            migrated, generation = self._migrated
            # When the whole client has moved since, its cluster takes precedence.
            at = migrated if generation == self.client.service.generation else None
            found = await self.client.lookup.broker_of(self.topic, at=at)
        self._use(found)
        return found

    def _use(self, found: BrokerOfTopic) -> None:
        self._found = None
        self._through = found.physical if found.physical != found.logical else None

    def _check_alive(self) -> None:
        if self.state not in _ALIVE:
            raise self.failure or AlreadyClosed(f"{self.describe()} is closed", topic=self.topic.full)

    # --- disconnection and reconnection -----------------------------------------------------------------------------

    def on_connection_lost(self, connection: Connection, reason: str) -> None:
        """Called when the connection is lost."""
        if connection is self.connection:
            self.disconnected(connection, f"the connection was lost: {reason}")
            self.reconnect()

    def on_closed_by_broker(self, connection: Connection, assigned: Address | None) -> None:
        """Called when the broker closed the handler but not the connection (unload, seek, termination).

        If it assigns a broker, that one is tried immediately, without a lookup.
        """
        if connection is self.connection:
            self.disconnected(connection, "the broker closed it, but not the connection")
            self._assigned = assigned
            self.reconnect(None if assigned is None else 0.0)

    def disconnected(self, connection: Connection, reason: str) -> None:
        """Note why the broker has the handler no longer, and forget the connection."""
        self.disconnect_reason = reason
        self.last_disconnected_timestamp = time.time_ns() // 1_000_000
        self.detached()
        _log.info("%s is disconnected from %s: %s", self.describe(), connection.broker, reason)

    def on_migrated(self, service: ServiceUrl) -> None:
        """Called when the topic has migrated to another cluster; the broker closes the handler next."""
        _log.info("%s moves to the cluster at %s", self.describe(), service)
        self._migrated = (service, self.client.service.generation)

    def detached(self) -> None:
        """Forget the connection; messages sent meanwhile are queued."""
        self.connection = None
        self._attached.clear()
        if self.state is State.READY:
            self.state = State.CONNECTING

    def reconnect(self, delay: float | None = None) -> None:
        """Reconnect, after the back-off's delay or the given one, unless that is in progress."""
        if self.state not in _ALIVE or (self._reconnecting is not None and not self._reconnecting.done()):
            return
        self._reconnecting = self.engine.spawn(self._reconnect(delay))

    async def _reconnect(self, delay: float | None) -> None:
        loop, service = self.engine.loop, self.client.service
        generation = service.generation
        while self.state in _ALIVE and self.connection is None:
            await service.pause(self._backoff.next(loop.time()) if delay is None else delay)
            delay = None
            if generation != service.generation:
                generation = service.generation
                self._backoff.reset()
            if self.state not in _ALIVE:
                return
            try:
                async with asyncio.timeout(self.client.config.operation_timeout_seconds):
                    await self._attach_once()
            except PulsarException as error:
                if self.is_final(error):
                    self.failure = error
                    self.gave_up(error)
                    return
                self.not_back_yet(error)
                self._note_failure(_described(error))
                _log.warning("%s is not connected yet: %s", self.describe(), log_text(error))
            except TimeoutError:
                self._note_failure("no answer in time")
                _log.warning("%s is not connected yet: no answer in time", self.describe())
            except CALLBACK_ERRORS as error:
                if cancels_task(error):
                    raise
                # Without its text, which may be the application's.
                self._note_failure(type(error).__name__)
                _log.warning("%s is not connected yet: %s", self.describe(), type(error).__name__)
            else:
                self._backoff.reset()
                _log.info("%s is connected again", self.describe())

    def _note_failure(self, reason: str) -> None:
        self._reconnect_failure = f"the last attempt to reconnect failed: {reason}"

    @property
    def why_not_connected(self) -> str:
        """Why the handler is not connected, for errors. Thread-safe."""
        return self._reconnect_failure or self.disconnect_reason or "no attempt to connect has ended yet"

    def not_back_yet(self, error: PulsarException) -> None:
        """Called when an attempt to reconnect failed."""
        return

    def is_final(self, error: PulsarException) -> bool:
        """Return True if an error at reconnecting ends the handler; most do not, as the cluster may be starting."""
        return False

    async def ready(self, timeout: float) -> Connection:
        """Return the connection, waiting up to `timeout` seconds for a reconnect in progress.

        By the calling thread (`Engine.run_eager`) if there is one.
        """
        connection = self.connection
        if connection is not None and self.state is State.READY:
            return connection
        await self.engine.enter_loop()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._check_alive()
                    if self.connection is not None and self.state is State.READY:
                        return self.connection
                    await self._attached.wait()
        except TimeoutError as error:
            raise NotConnected(
                f"{self.describe()} is not connected to a broker: {self.why_not_connected}", topic=self.topic.full
            ) from error

    async def ask(self, request_id: int, frame: bytes, connection: Connection, expected: type[_Answer]) -> _Answer:
        """Send a request on the connection and return its response; an error contains the topic."""
        return await self.answered(connection.request(request_id, frame, expected))

    async def answered(self, answer: Awaitable[_Answer]) -> _Answer:
        """Return the response to a request of this handler; an error contains the topic."""
        try:
            return await answer
        except Timeout as error:
            error.topic = self.topic.full
            seconds = self.client.config.operation_timeout_seconds
            error.message = (
                f"{self.describe()}: the broker did not answer within operation_timeout_seconds ({seconds:g})"
            )
            raise
        except PulsarException as error:
            error.topic = self.topic.full
            if isinstance(error, ConnectError | NotConnected) and (self._has_left or self.client.closed):
                # Its own end, or the client's, has closed the connection: another try would not help.
                raise AlreadyClosed(f"{self.describe()} is closed", topic=self.topic.full) from error
            raise

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function later, on the loop, unless the handler has left by then; a call of the same function that
        waits is replaced. Thread-safe.
        """
        if not self.engine.on_loop():
            self.engine.call(self.call_later, seconds, function)
        elif not self._has_left:
            waiting = self._timers.get(function)
            if waiting is not None:
                waiting.cancel()
            self._timers[function] = self.engine.loop.call_later(seconds, function)

    @property
    def uses_loop(self) -> bool:
        """True if a timer or a task of the loop belongs to it, so that only the loop may call `leave`. Thread-safe."""
        return bool(self._timers) or self._reconnecting is not None

    def leave(self) -> None:
        """Stop reconnecting and the timers, and wake those who wait for the connection."""
        self._has_left = True
        for handle in list(self._timers.values()):
            handle.cancel()
        self._timers.clear()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        self.connection = None
        self._attached.set()


def _described(error: PulsarException) -> str:
    """Return type, text and broker of an error of an attempt to connect; the topic is the handler's."""
    broker = f" (broker {error.broker})" if error.broker else ""
    return f"{type(error).__name__}: {error.message}{broker}"
