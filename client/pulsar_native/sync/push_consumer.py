"""The blocking push consumer: handlers run in worker threads, all else on the engine's thread."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from pulsar_native._not_picklable import NotPicklable
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
    message_listener,
)
from pulsar_native.push.consume_message_service import ConsumeMessageService, Work
from pulsar_native.push.core import PushConsumerCore, ServiceState
from pulsar_native.schema import BytesSchema, Schema
from pulsar_native.sync.client import Client

MessageListenerConcurrently = Callable[[list[Message], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None]
MessageListenerOrderly = Callable[[list[Message], ConsumeOrderlyContext], ConsumeOrderlyStatus | None]

# How long a thread above the smallest number waits for work before it ends.
_IDLE_SECONDS = 60.0


class PushConsumer(NotPicklable):
    """Consume topics as a member of a group: batches are pulled and pushed to a handler in worker threads.

    Thread-safe, after RocketMQ's DefaultMQPushConsumer. Name the topics, register one handler, then start; as a context
    manager it starts on entering and shuts down on leaving.

        push consumer = PushConsumer(client, PushConsumerConfig(consumer_group="billing"))
        push consumer.subscribe("orders", "paid || refunded")
        push consumer.register_message_listener(lambda messages, context: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
        with push consumer:
            ...
    """

    def __init__(self, client: Client, config: PushConsumerConfig) -> None:
        if not isinstance(client, Client):
            raise InvalidConfiguration(f"This push consumer needs a client of pulsar_native, not {client!r}")
        self._client = client
        self._core = PushConsumerCore(check_config(config))
        self._engine: Engine | None = None
        self._generation = generation()
        self._handler: Callable[..., Any] | None = None

    def _described(self) -> str:
        return f"of group {self.config.consumer_group}, {self.state.value}"

    @property
    def config(self) -> PushConsumerConfig:
        """The settings this push consumer was made with; picklable."""
        return self._core.config

    @property
    def state(self) -> ServiceState:
        """Where in its life the push consumer is."""
        return self._core.state

    def subscribe(self, topic: str, expression: str | None = "*", schema: Schema[Any] | None = None) -> None:
        """Consume a topic: all of it, or the messages whose property TAGS is one of `a || b`. Does not block.

        Again for the same topic replaces the expression. Raises `NotAllowedError` once the push consumer was started.
        """
        self._core.subscribe(topic, expression, schema or BytesSchema())

    def unsubscribe(self, topic: str) -> None:
        """Take a topic out again, before the start. Does not block."""
        self._core.unsubscribe(topic)

    def register_message_listener(
        self, concurrently: MessageListenerConcurrently | None = None, *, orderly: MessageListenerOrderly | None = None
    ) -> None:
        """Set the handler: a concurrent one, or an orderly one. Does not block.

        It is called with a list of messages and a context, and answers with a status; None and an exception are a
        failure. Raises `InvalidConfiguration` for both kinds, or for a coroutine function.
        """
        handler, in_order = message_listener(concurrently, orderly)
        if inspect.iscoroutinefunction(handler):
            raise InvalidConfiguration("A coroutine function needs the push consumer of pulsar_native.asyncio")
        self._core.register(orderly=in_order)
        self._handler = handler

    def register_filter_message_hook(self, hook: Callable[[Message], bool]) -> None:
        """Add a filter: messages it answers False for are acknowledged unseen. Called on the engine's thread."""
        self._core.check_not_started()
        self._core.filters.append(hook)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Add a hook that is told before and after each call of the handler; its failures are only logged."""
        self._core.check_not_started()
        self._core.hooks.append(hook)

    def start(self) -> None:
        """Subscribe and begin to call the handler. Blocks up to some operation time-outs.

        Raises `InvalidConfiguration` without handler or topic, `NotAllowedError` when it was started before or when the
        group is in this process already, and what subscribing raises. After a failure make a new push consumer.
        """
        check_generation(self._generation)
        # Refused before the client is made to start its thread.
        self._core.check_not_started()
        client = self._client._started()
        self._engine = client.engine
        client.engine.run(self._core.start(client, self._dispatcher))

    def _dispatcher(self, service: ConsumeMessageService) -> _ThreadDispatcher:
        config = self.config
        assert self._handler is not None
        return _ThreadDispatcher(service, self._handler, config.consume_thread_min, config.consume_thread_max)

    def suspend(self) -> None:
        """Take no more messages; what was taken is handled still. Does not block."""
        check_generation(self._generation)
        self._on_loop(self._core.suspend)

    def resume(self) -> None:
        """Take messages again. Does not block."""
        check_generation(self._generation)
        self._on_loop(self._core.resume)

    def _on_loop(self, function: Callable[[], None]) -> None:
        if self._engine is None:
            function()
        else:
            self._engine.call(function)

    def stats(self) -> PushConsumerStats:
        """Return what was done since the start, and what is held now. Does not block."""
        return self._core.stats()

    def shutdown(self, await_termination_millis: int | None = None) -> ShutdownReport:
        """Take no more, wait for what was taken, and leave. Blocks.

        The wait is bounded by `await_termination_millis` (None: the setting `await_termination_millis_when_shutdown`).
        What is not done then comes again, here or at another member; a handler that still runs is left alone, and what
        it answers is of no effect. A second call does nothing.
        """
        check_generation(self._generation)
        limit = drain_limit(await_termination_millis)
        nothing = ShutdownReport(0, 0, {})
        if self._engine is None or self.state is not ServiceState.RUNNING:
            self._core.never_started()
            return nothing
        try:
            return self._engine.run(self._core.shutdown(limit))
        except AlreadyClosed:
            # The client went first, and took everything along.
            return nothing

    def __enter__(self) -> Self:
        if self.state is ServiceState.CREATE_JUST:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


class _ThreadDispatcher:
    """The threads a push consumer's handler runs in: made when there is work for them, at most `most`."""

    def __init__(self, service: ConsumeMessageService, handler: Callable[..., Any], least: int, most: int) -> None:
        self._service = service
        self._handler = handler
        self._least = least
        self._most = most
        self._ready = threading.Condition()
        self._works: deque[Work] = deque()
        self._count = self._idle = self._made = 0
        self._stopped = False

    def submit(self, work: Work) -> None:
        """Have a thread call the handler."""
        with self._ready:
            self._works.append(work)
            if len(self._works) > self._idle and self._count < self._most:
                self._count += 1
                self._made += 1
                name = f"pulsar-native-push-consumer-{self._made}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
            else:
                self._ready.notify()

    def stop(self) -> None:
        """Forget what no handler has begun; threads end after their present call."""
        with self._ready:
            self._stopped = True
            self._works.clear()
            self._ready.notify_all()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            if not self._service.begin(work):
                continue
            answer: object
            try:
                answer = self._handler(work.messages, work.context)
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
