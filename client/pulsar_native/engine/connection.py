"""Connection to a broker: `protocol.connection` on a transport, with its handlers and timers.

Rules: producers and consumers register under their id and receive every frame for them, and one call when the
connection is lost. Everything here runs on the loop, except `write` and the inline reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pulsar_native import _version
from pulsar_native._callback_errors import CALLBACK_ERRORS, cancels_task, result_of
from pulsar_native._loggers import get_logger
from pulsar_native.auth.answers import on_refused
from pulsar_native.config import ClientConfig
from pulsar_native.engine.loop import Engine, to_plugin_thread
from pulsar_native.engine.metrics.meter import Attempt
from pulsar_native.engine.proxies import dial_broker
from pulsar_native.engine.transport import Buffer, Transport
from pulsar_native.exceptions import (
    AuthenticationError,
    ConnectError,
    ConnectTimeout,
    ErrorGettingAuthenticationData,
    Interrupted,
    InvalidUrl,
    NotConnected,
    ProtocolViolation,
    PulsarException,
    TooManyLookupRequestException,
    log_text,
)
from pulsar_native.protocol.connection import (
    Answered,
    AuthChallenged,
    Connected,
    ConnectionCore,
    Event,
    Messages,
    Phase,
    connection_lost,
)
from pulsar_native.service_info import Credentials
from pulsar_native.service_url import Address, ServiceUrl
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.frames import Frame

_log = get_logger("pulsar_native.connection")

_Answer = TypeVar("_Answer")

# Cached: each attribute access on the enumeration is a search by name.
_MESSAGE = Kind.MESSAGE
_SEND_RECEIPT = Kind.SEND_RECEIPT
_SEND = Kind.SEND
# Time an inline read waits before the caller waits for the loop instead. Long enough for a broker's disk.
_INLINE_READ_SECONDS = 0.02

CLIENT_VERSION = f"Pulsar-Native-Python-v{_version.__version__}"
NO_CREDENTIALS = "; no credentials were given: set authentication"
"""End of the error of a broker that refuses a client without any."""


class ProducerHandler(Protocol):
    """Callbacks of a producer, called by a connection on the loop."""

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None: ...
    def complete_inline(self, receipt: pb.CommandSendReceipt, callback: object) -> bool: ...
    def on_send_error(self, error: pb.CommandSendError) -> None: ...
    def on_closed_by_broker(self, connection: Connection, assigned: Address | None) -> None: ...
    def on_migrated(self, service: ServiceUrl) -> None: ...
    def on_connection_lost(self, connection: Connection, reason: str) -> None: ...


class ConsumerHandler(Protocol):
    """Callbacks of a consumer, called by a connection on the loop."""

    def on_message(self, message: pb.CommandMessage, payload: bytes, connection: Connection) -> None: ...
    def on_messages(self, frames: list[Frame], connection: Connection) -> None: ...
    def on_closed_by_broker(self, connection: Connection, assigned: Address | None) -> None: ...
    def on_migrated(self, service: ServiceUrl) -> None: ...
    def on_connection_lost(self, connection: Connection, reason: str) -> None: ...
    def on_active_change(self, is_active: bool) -> None: ...
    def on_end_of_topic(self) -> None: ...


class TopicListHandler(Protocol):
    """Callbacks of a topic list watcher, called by a connection on the loop."""

    def on_topics_update(self, update: pb.CommandWatchTopicUpdate) -> None: ...
    def on_connection_lost(self, connection: Connection, reason: str) -> None: ...


class CoordinatorHandler(Protocol):
    """Callbacks of a transaction coordinator client, called by a connection on the loop."""

    def on_connection_lost(self, connection: Connection, reason: str) -> None: ...


async def credentials_of(authentication: Credentials | None) -> tuple[str, bytes]:
    """Return method and data for CONNECT. Reading them may block, so it happens off the loop."""
    if authentication is None:
        return "none", b""
    return await to_plugin_thread(_credentials_of, authentication)


def _credentials_of(authentication: Credentials) -> tuple[str, bytes]:
    failure, plugin = ErrorGettingAuthenticationData, "of the authentication plug-in"
    method = result_of(f"method_name {plugin}", failure, lambda: authentication.method_name)
    if not isinstance(method, str):
        raise failure(f"method_name {plugin} is {type(method).__name__}, not str")
    if method == "none":
        return method, b""
    data = result_of(f"auth_data {plugin}", failure, authentication.auth_data)
    if data is not None and not isinstance(data, bytes):
        raise failure(f"auth_data {plugin} returned {type(data).__name__}, not bytes")
    return method, data or b""


async def report_refused(authentication: Credentials | None) -> None:
    """Report to the plug-in that the broker does not accept its last credentials; what it raises is logged."""
    if authentication is not None:
        await to_plugin_thread(on_refused, authentication)


class Connection:
    """One connection after its handshake. On the loop only, except `write` and the inline reads."""

    def __init__(
        self,
        engine: Engine,
        config: ClientConfig,
        address: Address,
        authentication: Credentials | None = None,
        is_tls: bool = False,
    ) -> None:
        self.engine = engine
        self._authentication = authentication
        # The last credentials sent.
        self._auth_data = b""
        self._is_tls = is_tls
        self._used_at = engine.loop.time()
        self.config = config
        self.address = address
        self.broker = str(address)
        self.core = ConnectionCore(
            self.broker,
            keep_alive=config.keep_alive_interval_seconds,
            request_timeout=config.operation_timeout_seconds,
            max_rejected=config.max_number_of_rejected_request_per_connection,
        )
        self._transport: Transport | None = None
        self._producers: dict[int, ProducerHandler] = {}
        self._consumers: dict[int, ConsumerHandler] = {}
        self._watchers: dict[int, TopicListHandler] = {}
        self._coordinators: dict[int, CoordinatorHandler] = {}
        self._ready: asyncio.Future[None] = engine.loop.create_future()
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self.on_gone: Any = None
        # Recorder of the connection's metrics, if any.
        self._attempt: Attempt | None = None

    @staticmethod
    async def open(
        engine: Engine,
        config: ClientConfig,
        *,
        physical: Address,
        logical: Address,
        tls: ssl.SSLContext | None,
        authentication: Credentials | None,
        attempt: Attempt | None = None,
    ) -> Connection:
        """Connect to `physical` and perform the handshake with the broker `logical` behind it."""
        sock = await dial_broker(engine, config, physical, timeout=config.connection_timeout_ms / 1000, tls=tls)
        connection = Connection(engine, config, logical, authentication, tls is not None)
        transport = Transport(engine, sock, connection._on_data, connection._on_lost)
        connection._transport = transport
        connection._attempt = attempt
        try:
            if attempt is not None:
                attempt.opened()
            method, data = await credentials_of(authentication)
            connection._auth_data = data
            transport.start()
            proxy_to = str(logical) if physical != logical else None
            transport.write(
                [commands.connect(client_version=CLIENT_VERSION, method=method, auth_data=data, proxy_to=proxy_to)]
            )
            await connection._handshake_done(physical)
        except BaseException:
            connection.close()
            raise
        connection._start_keep_alive()
        _log.debug("Connected to %s (%s)", connection.broker, connection.core.server_version)
        return connection

    async def _handshake_done(self, physical: Address) -> None:
        # A peer that accepts the connection and sends nothing is treated like one that does not accept it.
        limit = min(self.config.connection_timeout_ms / 1000, self.config.operation_timeout_seconds)
        try:
            async with asyncio.timeout(limit):
                await self._ready
        except AuthenticationError:
            await report_refused(self._authentication)
            raise
        except TimeoutError as error:
            raise ConnectTimeout(
                f"The broker accepted the connection but did not answer the handshake within {limit:g} s; is this its "
                "binary port, and does TLS match the URL's scheme?",
                broker=str(physical),
            ) from error

    # --- use ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True while the connection can be used."""
        return self.core.phase is Phase.READY

    def touch(self) -> None:
        """Record a use of the connection."""
        self._used_at = self.engine.loop.time()

    def idle_seconds(self, now: float) -> float:
        """Return how long the connection has been unused, as far as calls of this method observed it."""
        handlers = self._producers or self._consumers or self._watchers or self._coordinators
        if handlers or self.core.has_requests:
            self._used_at = now
        return now - self._used_at

    @property
    def max_message_size(self) -> int:
        """Maximum message size in bytes, from the broker's CONNECTED."""
        return self.core.max_message_size

    @property
    def local_port(self) -> int:
        """Local port."""
        return self._transport.local_port if self._transport else -1

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send one frame. Thread-safe, never blocks; a lost connection drops it, and the handlers are notified."""
        transport = self._transport
        if transport is not None:
            transport.write(buffers)

    async def request(
        self, request_id: int, frame: bytes, expected: type[_Answer], *, timeout: float | None = None
    ) -> _Answer:
        """Send a request and return its response; raises the broker's error, or `Timeout`.

        In a coroutine begun by the calling thread (`Engine.run_eager`) this thread reads the response, if it can.
        """
        if self.engine.on_loop():
            future = self.begin_request(request_id, frame, timeout=timeout)
        elif (begun := self.begin_inline_requests([request_id], frame, timeout=timeout)) is not None:
            (future,) = begun
        else:
            await self.engine.enter_loop()
            future = self.begin_request(request_id, frame, timeout=timeout)
        return await self.answer(request_id, future, expected)

    def begin_inline_requests(
        self,
        request_ids: Sequence[int],
        frames: bytes,
        *,
        timeout: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[asyncio.Future[Any]] | None:
        """Send requests in one write and read their responses in the calling thread; None if the loop has to read.

        What does not arrive soon is left to the loop: await `answer` of each. `meanwhile` is called in between.
        """
        if not self.begin_inline_read():
            return None
        try:
            futures = self.request_inline(request_ids, frames, timeout, meanwhile)
        except BaseException:
            for request_id in request_ids:
                self.core.forget(request_id)
            raise
        finally:
            self.end_inline_read()
        for future in futures:
            if not future.done():
                self.engine.call(self.watch_requests)
                break
        return futures

    async def answer(self, request_id: int, future: asyncio.Future[Any], expected: type[_Answer]) -> _Answer:
        """Return the response to a request that was sent; raises the broker's error, or `Timeout`."""
        try:
            answer = await future
        finally:
            self.core.forget(request_id)
        if not isinstance(answer, expected):
            raise ProtocolViolation(
                f"The broker answered with {type(answer).__name__} instead of {expected.__name__}", broker=self.broker
            )
        return answer

    def forget(self, request_id: int, future: asyncio.Future[Any]) -> None:
        """Ignore the response to a request: nobody waits for it any more. Thread-safe."""
        self.core.forget(request_id)
        if not future.done():
            self.engine.call(future.cancel)
        elif not future.cancelled():
            # Retrieved: an error that nobody wants is not worth a warning.
            future.exception()

    def on_late_answer(self, request_id: int, function: Callable[[], None]) -> None:
        """Call a function if a request that was given up succeeds within another time-out. Thread-safe."""

        def answered(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                function()

        loop = self.engine.loop
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(answered)
        # A connection that was lost has no late answers.
        with contextlib.suppress(NotConnected):
            self.core.register(request_id, future, loop.time())
            self.engine.call(self.watch_requests)

    def begin_request(self, request_id: int, frame: bytes, *, timeout: float | None = None) -> asyncio.Future[Any]:
        """Send a request immediately and return the future of its response. On the loop."""
        future = self.register(request_id, timeout=timeout)
        self.write([frame])
        return future

    def register(self, request_id: int, *, timeout: float | None = None) -> asyncio.Future[Any]:
        """Return the future of the response to a request that is written next; see `forget`. On the loop."""
        loop = self.engine.loop
        future: asyncio.Future[Any] = loop.create_future()
        self._arm_deadline(self.core.register(request_id, future, loop.time(), timeout))
        return future

    def add_producer(self, producer_id: int, handler: ProducerHandler) -> None:
        """Register the handler of this producer's frames."""
        self._producers[producer_id] = handler

    def add_consumer(self, consumer_id: int, handler: ConsumerHandler) -> None:
        """Register the handler of this consumer's frames."""
        self._consumers[consumer_id] = handler

    def add_watcher(self, watcher_id: int, handler: TopicListHandler) -> None:
        """Register the handler of this watcher's updates."""
        self._watchers[watcher_id] = handler

    def remove_watcher(self, watcher_id: int) -> None:
        """Remove the watcher's handler."""
        self._watchers.pop(watcher_id, None)

    def add_coordinator(self, number: int, handler: CoordinatorHandler) -> None:
        """Register the handler of this transaction coordinator; it is notified when the connection is lost."""
        self._coordinators[number] = handler

    def has_coordinator(self, number: int) -> bool:
        """Return True while the coordinator is registered."""
        return number in self._coordinators

    def remove_coordinator(self, number: int) -> None:
        """Remove the coordinator's handler."""
        self._coordinators.pop(number, None)

    def has_producer(self, producer_id: int) -> bool:
        """Return True while the producer is registered: not after the broker has closed it."""
        return producer_id in self._producers

    def has_consumer(self, consumer_id: int) -> bool:
        """Return True while the consumer is registered: not after the broker has closed it."""
        return consumer_id in self._consumers

    def remove_producer(self, producer_id: int) -> None:
        """Remove the producer's handler."""
        self._producers.pop(producer_id, None)

    def remove_consumer(self, consumer_id: int) -> None:
        """Remove the consumer's handler."""
        self._consumers.pop(consumer_id, None)

    def close(self, reason: str = "the client closed it") -> None:
        """Close immediately; unanswered requests fail and handlers are notified."""
        if self._transport is not None:
            self._transport.close()
        self._on_lost(reason)

    # --- inline reads: a caller that waits for a receipt or a response reads it itself ------------------------------

    def begin_inline_read(self) -> bool:
        """Let the calling thread read instead of the loop until `end_inline_read`; False if busy. Thread-safe."""
        transport = self._transport
        return transport is not None and transport.begin_inline_read()

    def read_inline(self, callback: object) -> None:
        """Read the receipt of the message with this callback, if it is the next frame and arrives soon.

        Otherwise the loop reads it. By the thread that called `begin_inline_read`.
        """
        transport = self._transport
        assert transport is not None
        data = transport.peek(_INLINE_READ_SECONDS, _SEND)
        receipt = self.core.only_receipt(data) if data else None
        producer = None if receipt is None else self._producers.get(receipt.producer_id)
        if receipt is not None and producer is not None and producer.complete_inline(receipt, callback):
            transport.discard(len(data))
        else:
            transport.pause_inline_reads()

    def request_inline(
        self,
        request_ids: Sequence[int],
        frames: bytes,
        timeout: float | None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[asyncio.Future[Any]]:
        """Send requests in one write, and read their responses if they are the next frames and arrive soon.

        Otherwise the loop reads them: await `answer` there, after `watch_requests`. By the thread that called
        `begin_inline_read`. `meanwhile` is called while the broker works on them. Ctrl-C raises `Interrupted`; the loop
        reads a response again then, and ignores it.
        """
        loop = self.engine.loop
        try:
            self.write([frames])
            # Registered while the broker works on them: nobody else can read a response yet.
            now = loop.time()
            futures: list[asyncio.Future[Any]] = [loop.create_future() for _ in request_ids]
            for request_id, future in zip(request_ids, futures, strict=True):
                self.core.register(request_id, future, now, timeout)
            if meanwhile is not None:
                meanwhile()
            self._read_answers(request_ids, commands.kind_of(frames))
        except KeyboardInterrupt as error:
            raise Interrupted("The call was interrupted") from error
        return futures

    def _read_answers(self, request_ids: Sequence[int], kind: int) -> None:
        transport = self._transport
        assert transport is not None
        missing = len(request_ids)
        # Made before the response is here, while there is nothing else to do.
        usual = commands.success(request_ids[-1])
        while missing:
            data, read = transport.peek(_INLINE_READ_SECONDS, kind), 0
            while missing and (first := self.core.first_answer(data[read:], request_ids, usual)) is not None:
                answered, size = first
                answered.sink.set_result(answered.answer)
                missing -= 1
                read += size
            if not read:
                if data:
                    transport.pause_inline_reads()
                break
            transport.discard(read)

    def end_inline_read(self) -> None:
        """Let the loop read again."""
        transport = self._transport
        assert transport is not None
        transport.end_inline_read()

    # --- events ---------------------------------------------------------------------------------------------------

    def _on_data(self, data: memoryview) -> None:
        try:
            events = self.core.receive(data)
        except PulsarException as error:
            error.broker = error.broker or self.broker
            self._fail_handshake(error)
            _log.warning("Closing the connection to %s: %s", self.broker, error)
            self.close(str(error))
            return
        self._flush()
        for event in events:
            self._dispatch(event)

    def _flush(self) -> None:
        if self.core.outgoing:
            frames, self.core.outgoing = self.core.outgoing, []
            self.write(frames)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Frame):
            self._dispatch_frame(event)
        elif isinstance(event, Messages):
            consumer = self._consumers.get(event.frames[0].command.message.consumer_id)
            if consumer is not None:
                consumer.on_messages(event.frames, self)
        elif isinstance(event, Answered):
            future: asyncio.Future[Any] = event.sink
            if future.done():
                return
            if event.error is None:
                future.set_result(event.answer)
                return
            future.set_exception(event.error)
            if isinstance(event.error, TooManyLookupRequestException) and self.core.rejected(self.engine.loop.time()):
                _log.warning("The broker %s rejects too many requests; closing the connection", self.broker)
                self.close("the broker rejected too many requests")
        elif isinstance(event, Connected):
            if not self._ready.done():
                self._ready.set_result(None)
        else:
            self._answer_challenge(event)

    def _dispatch_frame(self, frame: Frame) -> None:
        command = frame.command
        kind = command.type
        if kind == _MESSAGE:
            consumer = self._consumers.get(command.message.consumer_id)
            if consumer is not None:
                consumer.on_message(command.message, frame.payload, self)
        elif kind == _SEND_RECEIPT:
            producer = self._producers.get(command.send_receipt.producer_id)
            if producer is not None:
                producer.on_receipt(command.send_receipt)
        elif kind == Kind.SEND_ERROR:
            producer = self._producers.get(command.send_error.producer_id)
            if producer is not None:
                producer.on_send_error(command.send_error)
        elif kind == Kind.CLOSE_PRODUCER:
            producer = self._producers.pop(command.close_producer.producer_id, None)
            if producer is not None:
                producer.on_closed_by_broker(self, self._assigned(command.close_producer))
        else:
            self._dispatch_to_consumer(command)

    def _dispatch_to_consumer(self, command: pb.BaseCommand) -> None:
        kind = command.type
        if kind == Kind.CLOSE_CONSUMER:
            consumer = self._consumers.pop(command.close_consumer.consumer_id, None)
            if consumer is not None:
                consumer.on_closed_by_broker(self, self._assigned(command.close_consumer))
        elif kind == Kind.ACTIVE_CONSUMER_CHANGE:
            consumer = self._consumers.get(command.active_consumer_change.consumer_id)
            if consumer is not None:
                consumer.on_active_change(command.active_consumer_change.is_active)
        elif kind == Kind.REACHED_END_OF_TOPIC:
            consumer = self._consumers.get(command.reachedEndOfTopic.consumer_id)
            if consumer is not None:
                consumer.on_end_of_topic()
        elif kind == Kind.WATCH_TOPIC_UPDATE:
            watcher = self._watchers.get(command.watchTopicUpdate.watcher_id)
            if watcher is not None:
                watcher.on_topics_update(command.watchTopicUpdate)
        elif kind == Kind.TOPIC_MIGRATED:
            self._migrated(command.topicMigrated)
        else:
            _log.debug("Ignoring a command of type %d from %s", kind, self.broker)

    def _migrated(self, told: pb.CommandTopicMigrated) -> None:
        is_producer = told.resource_type == pb.CommandTopicMigrated.Producer
        handlers: Mapping[int, ProducerHandler | ConsumerHandler] = self._producers if is_producer else self._consumers
        handler = handlers.get(told.resource_id)
        service = self._url_of(told.brokerServiceUrlTls if self._is_tls else told.brokerServiceUrl)
        if handler is not None and service is not None:
            handler.on_migrated(service)

    def _assigned(self, told: pb.CommandCloseProducer | pb.CommandCloseConsumer) -> Address | None:
        url = self._url_of(told.assignedBrokerServiceUrlTls if self._is_tls else told.assignedBrokerServiceUrl)
        return None if url is None else url.addresses[0]

    def _url_of(self, text: str) -> ServiceUrl | None:
        """Return the URL of the broker's command, None for an absent or invalid one: the ordinary lookup is used
        then.
        """
        try:
            return ServiceUrl.parse(text) if text else None
        except InvalidUrl as error:
            _log.warning("The broker %s names an address that cannot be used: %s", self.broker, error)
            return None

    def _answer_challenge(self, _event: AuthChallenged) -> None:
        async def answer() -> None:
            try:
                method, data = await credentials_of(self._authentication)
                if self.is_open and data == self._auth_data:
                    # The broker asks again when they have ended for it, whatever lifetime the plug-in assumes.
                    await report_refused(self._authentication)
                    method, data = await credentials_of(self._authentication)
                self._auth_data = data
                frame = commands.auth_response(client_version=CLIENT_VERSION, method=method, auth_data=data)
            except CALLBACK_ERRORS as error:
                if cancels_task(error):
                    raise
                reason = log_text(error) if isinstance(error, PulsarException) else type(error).__name__
                _log.warning("Cannot refresh the credentials for %s: %s", self.broker, reason)
                self.close("the credentials could not be refreshed")
                return
            self.write([frame])

        self.engine.spawn(answer())

    def _on_lost(self, reason: str) -> None:
        if self.core.phase is Phase.CLOSED:
            return
        was_handshake = self.core.phase is Phase.HANDSHAKE
        answered = self.core.close(connection_lost(self.broker, reason))
        for timer in (self._keep_alive_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        if was_handshake:
            # With TLS 1.3 a client learns that its certificate was refused after its own part of the handshake.
            hint = (
                "does the broker accept the client's certificate, or ask for one, and is this its TLS port?"
                if self._is_tls
                else "is this the broker's binary port, and does TLS match the URL's scheme?"
            )
            self._fail_handshake(ConnectError(f"The handshake failed: {reason} ({hint})", broker=self.broker))
        for event in answered:
            self._dispatch(event)
        handlers: list[ProducerHandler | ConsumerHandler | TopicListHandler | CoordinatorHandler] = [
            *self._producers.values(),
            *self._consumers.values(),
            *self._watchers.values(),
            *self._coordinators.values(),
        ]
        self._producers.clear()
        self._consumers.clear()
        self._watchers.clear()
        self._coordinators.clear()
        if self.on_gone is not None:
            self.on_gone(self)
        for handler in handlers:
            handler.on_connection_lost(self, reason)
        if self._attempt is not None:
            self._attempt.closed()

    def _fail_handshake(self, error: PulsarException) -> None:
        if not self._ready.done():
            if isinstance(error, AuthenticationError):
                missing = NO_CREDENTIALS if self._authentication is None else ""
                error.message = f"The broker refused the credentials: {error.message}{missing}"
            self._ready.set_exception(error)
            # The waiter may have gone (time-out): an exception nobody retrieves would be logged as a warning.
            self._ready.exception()

    # --- timers ---------------------------------------------------------------------------------------------------

    def _start_keep_alive(self) -> None:
        interval = self.config.keep_alive_interval_seconds
        if interval > 0:
            self._keep_alive_timer = self.engine.loop.call_later(interval, self._keep_alive)

    def _keep_alive(self) -> None:
        if self.core.keep_alive_due():
            self._flush()
            self._start_keep_alive()
        else:
            _log.warning("The broker %s did not answer a keep-alive; closing the connection", self.broker)
            self.close("no answer to the keep-alive")

    def watch_requests(self) -> None:
        """Have requests of `request_inline` time out, or fail if the connection was lost before. On the loop."""
        if self.core.phase is Phase.CLOSED:
            for event in self.core.close(connection_lost(self.broker, "it was closed")):
                self._dispatch(event)
        self._arm_deadline(self.core.next_deadline())

    def _arm_deadline(self, deadline: float | None) -> None:
        timer = self._deadline_timer
        if deadline is not None and (timer is None or timer.cancelled() or timer.when() > deadline):
            if timer is not None:
                timer.cancel()
            self._deadline_timer = self.engine.loop.call_at(deadline, self._deadline)

    def _deadline(self) -> None:
        self._deadline_timer = None
        # The loop may wake a timer a clock tick early.
        for event in self.core.expire(self.engine.loop.time() + 0.001):
            self._dispatch(event)
        self._arm_deadline(self.core.next_deadline())
