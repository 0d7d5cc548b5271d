"""Push consumer of the sync API: listeners run in worker threads, everything else in the engine's thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self

from pulsar_native._loggers import get_logger
from pulsar_native._not_picklable import NotPicklable
from pulsar_native._type_vars import T
from pulsar_native._validation import checked_schema
from pulsar_native.config.base import is_coroutine_function
from pulsar_native.engine.loop import Engine, check_generation, generation
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration
from pulsar_native.message import Message
from pulsar_native.push.config import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeMessageHook,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    PushConsumerConfig,
    PushConsumerStats,
    ShutdownReport,
    check_config,
    drain_limit,
    is_unawaited,
    message_listener,
)
from pulsar_native.push.consume_message_service import ConsumeMessageService, Work
from pulsar_native.push.core import PushConsumerCore, ServiceState
from pulsar_native.schema import Schema
from pulsar_native.sync.client import Client

MessageListenerConcurrently = Callable[[list[Message[T]], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None]
MessageListenerOrderly = Callable[[list[Message[T]], ConsumeOrderlyContext], ConsumeOrderlyStatus | None]

_log = get_logger("pulsar_native.push_consumer")

# How long a thread above the smallest number waits for work before it ends.
_IDLE_SECONDS = 60.0
# Pause before the next attempt where no thread could be started.
_THREAD_RETRY_SECONDS = 1.0


class PushConsumer(NotPicklable, Generic[T]):
    """Push consumer of a consumer group, after RocketMQ's DefaultMQPushConsumer. Thread-safe.

    It pulls batches and passes them to a message listener in worker threads. Subscribe to topics, register one
    listener, then start; as a context manager it starts on entering and shuts down on leaving.

        consumer = PushConsumer(client, PushConsumerConfig(consumer_group="billing"))
        consumer.subscribe("orders", "paid || refunded")
        consumer.register_message_listener(lambda messages, context: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
        with consumer:
            ...

    :param client: a `pulsar_native.Client`; another one raises `InvalidConfiguration`.
    :param config: the configuration.
    """

    def __init__(self, client: Client, config: PushConsumerConfig) -> None:
        if not isinstance(client, Client):
            raise InvalidConfiguration(f"This push consumer needs a client of pulsar_native, not {client!r}")
        self._client = client
        self._core = PushConsumerCore(check_config(config))
        self._engine: Engine | None = None
        self._generation = generation()
        self._handler: Callable[..., Any] | None = None
        self._workers: _ThreadDispatcher | None = None

    def _described(self) -> str:
        return f"of group {self.config.consumer_group}, {self.state.value}"

    @property
    def config(self) -> PushConsumerConfig:
        """Configuration of this push consumer; picklable."""
        return self._core.config

    @property
    def state(self) -> ServiceState:
        """State of the push consumer."""
        return self._core.state

    def subscribe(self, topic: str, expression: str | None = "*", schema: Schema[T] | None = None) -> None:
        """Add a topic, or replace its expression. Does not block; takes effect at `start`.

        Raises `NotAllowedError` after the start, and `InvalidConfiguration` for a malformed expression or a schema
        that is none.

        :param topic: the topic.
        :param expression: tags separated by `||`: only messages with one of them in the property TAGS. Default "*": all
            messages.
        :param schema: the schema that decodes the values. Default None: bytes.
        """
        self._core.subscribe(topic, expression, checked_schema(schema))

    def unsubscribe(self, topic: str) -> None:
        """Remove a topic. Does not block; raises `NotAllowedError` after the start.

        :param topic: the topic.
        """
        self._core.unsubscribe(topic)

    def register_message_listener(
        self,
        concurrently: MessageListenerConcurrently[T] | None = None,
        *,
        orderly: MessageListenerOrderly[T] | None = None,
    ) -> None:
        """Set the message listener: a concurrent or an orderly one. Does not block.

        A listener is a function of a list of messages and a context that returns a status; None and an exception count
        as failure. Raises `InvalidConfiguration` for two listeners, none, or a coroutine function, and
        `NotAllowedError` after the start.

        :param concurrently: listener called by several threads at a time, in no order. Default None.
        :param orderly: listener called with the messages of a key or partition in order. Default None.
        """
        handler, in_order = message_listener(concurrently, orderly)
        if is_coroutine_function(handler):
            raise InvalidConfiguration("A coroutine function needs the push consumer of pulsar_native.asyncio")
        self._core.register(orderly=in_order)
        self._handler = handler

    def register_filter_message_hook(self, hook: Callable[[Message[T]], bool]) -> None:
        """Add a filter, called in the engine's thread; it must not block. Raises `NotAllowedError` after the start.

        :param hook: function of a message; those it returns False for are acknowledged without calling the listener.
            None counts as an error of the filter: the listener gets the message. Raises `InvalidConfiguration` for a
            coroutine function.
        """
        self._core.add_filter(hook)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Add a hook, called before and after each call of the listener. Raises `NotAllowedError` after the start.

        :param hook: the hook; its exceptions are logged. Raises `InvalidConfiguration` for one that lacks a method or
            has a coroutine function as one.
        """
        self._core.add_hook(hook)

    def start(self) -> None:
        """Subscribe to the topics and start calling the listener. Blocks up to several operation time-outs.

        Raises `InvalidConfiguration` without a listener or topic, or where the offsets of a broadcasting member cannot
        be read or written, `NotAllowedError` if it was started before, the group already has a push consumer in this
        process, or another one has the offsets of a broadcasting member, `AlreadyClosed` if it is shut down meanwhile,
        and what `Client.subscribe` raises. A push consumer that failed to start cannot be started again.
        """
        check_generation(self._generation)
        # Checked before the client starts the engine's thread.
        self._core.check_not_started()
        client = self._client._started()
        self._engine = client.engine
        client.engine.run(self._core.start(client, self._dispatcher))

    def _dispatcher(self, service: ConsumeMessageService) -> _ThreadDispatcher:
        config = self.config
        assert self._handler is not None
        self._workers = _ThreadDispatcher(service, self._handler, config.consume_thread_min, config.consume_thread_max)
        return self._workers

    def suspend(self) -> None:
        """Stop pulling messages; those already pulled are still passed to the listener. Does not block."""
        check_generation(self._generation)
        self._on_loop(self._core.suspend)

    def resume(self) -> None:
        """Pull messages again after `suspend`. Does not block."""
        check_generation(self._generation)
        self._on_loop(self._core.resume)

    def _on_loop(self, function: Callable[[], None]) -> None:
        if self._engine is None:
            function()
        else:
            self._engine.call(function)

    def stats(self) -> PushConsumerStats:
        """Return statistics since the start. Does not block."""
        check_generation(self._generation)
        return self._core.stats()

    def shutdown(self, await_termination_millis: int | None = None) -> ShutdownReport:
        """Stop pulling, wait for messages already pulled, and close. Blocks; thread-safe; idempotent.

        Messages not handled within the limit are redelivered, here or at another member of the group; the status of a
        listener that is still running is ignored. A start that is under way ends with `AlreadyClosed`. A second call
        waits for the first and returns its report; within the listener it does not wait.

        :param await_termination_millis: limit in milliseconds. Default None: the configuration's
            `await_termination_millis_when_shutdown`.
        """
        check_generation(self._generation)
        limit = drain_limit(await_termination_millis)
        if self._engine is None:
            self._core.never_started()
            return self._core.report
        in_handler = self._workers is not None and self._workers.is_in_handler()
        try:
            return self._engine.run(self._core.shutdown(limit, in_handler=in_handler))
        except AlreadyClosed:
            # The client was closed before, and its consumers with it.
            return self._core.report

    def __enter__(self) -> Self:
        if self.state is not ServiceState.RUNNING:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A forked child has nothing to shut down, and its own exception or exit goes on.
        if self._generation == generation():
            self.shutdown()


class _ThreadDispatcher:
    """Worker threads of a push consumer: started on demand, at most `most`."""

    def __init__(self, service: ConsumeMessageService, handler: Callable[..., Any], least: int, most: int) -> None:
        self._service = service
        self._handler = handler
        self._least = least
        self._most = most
        self._ready = threading.Condition()
        self._works: deque[Work] = deque()
        self._count = self._idle = self._made = 0
        self._is_short = self._stopped = False
        self._here = threading.local()

    def submit(self, work: Work) -> None:
        """Queue a call of the listener. On the loop."""
        with self._ready:
            self._works.append(work)
            self._serve()

    def is_in_handler(self) -> bool:
        """Return True if the caller is one of the threads."""
        return getattr(self._here, "is_worker", False)

    def _serve(self) -> None:
        """Start a thread for the queued calls, or wake one; with the lock."""
        if len(self._works) <= self._idle or self._count >= self._most:
            self._ready.notify()
            return
        name = f"pulsar-native-push-consumer-{self._made + 1}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError as error:
            # The process or the machine has too many threads. Those that run take the queued calls, too.
            if not self._is_short:
                _log.warning("%d of %d worker threads run, no more can be started: %s", self._count, self._most, error)
            self._is_short = True
            if not self._count:
                asyncio.get_running_loop().call_later(_THREAD_RETRY_SECONDS, self._serve_again)
            return
        self._is_short = False
        self._count += 1
        self._made += 1

    def _serve_again(self) -> None:
        with self._ready:
            if self._works and not self._count:
                self._serve()

    def stop(self, *, cancel_running: bool = True) -> None:
        """Drop queued calls; threads end after their running call, which cannot be cancelled."""
        with self._ready:
            self._stopped = True
            self._works.clear()
            self._ready.notify_all()

    def _run(self) -> None:
        self._here.is_worker = True
        while (work := self._next()) is not None:
            try:
                self._call(work)
            except BaseException:
                # The thread is counted, and nothing would start another for the works left.
                _log.exception("A call of the listener could not be processed")

    def _call(self, work: Work) -> None:
        if not self._service.begin(work):
            return
        answer: object
        try:
            answer = self._handler(work.messages, work.context)
            if is_unawaited(answer):
                raise TypeError(
                    "The listener returned an awaitable, which only the push consumer of pulsar_native.asyncio "
                    "awaits; use that one, or a listener that returns a status"
                )
        except BaseException as error:
            # SystemExit, too, is an answer here: nobody waits for this thread.
            answer = error
        self._service.end(work, answer)

    def _next(self) -> Work | None:
        """Wait for work; None when the thread is to end."""
        with self._ready:
            self._idle += 1
            try:
                while not self._works and not self._stopped:
                    woken = self._ready.wait(_IDLE_SECONDS)
                    if not woken and not self._works and self._count > self._least:
                        break
                if self._stopped or not self._works:
                    self._count -= 1
                    return None
                return self._works.popleft()
            finally:
                self._idle -= 1
