"""The asyncio push consumer: handlers are coroutines, so many at a time as the sync API has threads."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from pulsar_native._not_picklable import NotPicklable
from pulsar_native.asyncio.client import Client
from pulsar_native.engine.loop import check_generation, generation
from pulsar_native.exceptions import InvalidConfiguration
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

MessageListenerConcurrently = Callable[
    [list[Message], ConsumeConcurrentlyContext],
    Awaitable[ConsumeConcurrentlyStatus | None] | ConsumeConcurrentlyStatus | None,
]
MessageListenerOrderly = Callable[
    [list[Message], ConsumeOrderlyContext], Awaitable[ConsumeOrderlyStatus | None] | ConsumeOrderlyStatus | None
]


class PushConsumer(NotPicklable):
    """Consume topics as a member of a group: batches are pulled and pushed to a coroutine function.

    Not thread-safe: belongs to the client's loop. As `pulsar_native.PushConsumer`; `consume_thread_max` is how
    many calls of the handler run at a time.

        push consumer = PushConsumer(client, PushConsumerConfig(consumer_group="billing"))
        push consumer.subscribe("orders", "paid || refunded")
        push consumer.register_message_listener(handle)
        async with push consumer:
            ...
    """

    def __init__(self, client: Client, config: PushConsumerConfig) -> None:
        if not isinstance(client, Client):
            raise InvalidConfiguration(f"This push consumer needs a client of pulsar_native.asyncio, not {client!r}")
        self._client = client
        self._core = PushConsumerCore(check_config(config))
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
        """Consume a topic: all of it, or the messages whose property TAGS is one of `a || b`.

        Again for the same topic replaces the expression. Raises `NotAllowedError` once the push consumer was started.
        """
        self._core.subscribe(topic, expression, schema or BytesSchema())

    def unsubscribe(self, topic: str) -> None:
        """Take a topic out again, before the start."""
        self._core.unsubscribe(topic)

    def register_message_listener(
        self, concurrently: MessageListenerConcurrently | None = None, *, orderly: MessageListenerOrderly | None = None
    ) -> None:
        """Set the handler: a concurrent one, or an orderly one.

        It is called with a list of messages and a context, and answers with a status; None and an exception are a
        failure. A plain function will do when it does not block. Raises `InvalidConfiguration` for both kinds.
        """
        handler, in_order = message_listener(concurrently, orderly)
        self._core.register(orderly=in_order)
        self._handler = handler

    def register_filter_message_hook(self, hook: Callable[[Message], bool]) -> None:
        """Add a filter: messages it answers False for are acknowledged unseen. It must not block."""
        self._core.check_not_started()
        self._core.filters.append(hook)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Add a hook that is told before and after each call of the handler; its failures are only logged."""
        self._core.check_not_started()
        self._core.hooks.append(hook)

    async def start(self) -> None:
        """Subscribe and begin to call the handler; raises as the sync API does."""
        check_generation(self._generation)
        self._core.check_not_started()
        await self._core.start(self._client._started(), self._dispatcher)

    def _dispatcher(self, service: ConsumeMessageService) -> _TaskDispatcher:
        assert self._handler is not None
        return _TaskDispatcher(service, self._handler, self.config.consume_thread_max)

    def suspend(self) -> None:
        """Take no more messages; what was taken is handled still."""
        check_generation(self._generation)
        self._core.suspend()

    def resume(self) -> None:
        """Take messages again."""
        check_generation(self._generation)
        self._core.resume()

    def stats(self) -> PushConsumerStats:
        """Return what was done since the start, and what is held now."""
        return self._core.stats()

    async def shutdown(self, await_termination_millis: int | None = None) -> ShutdownReport:
        """Take no more, wait for what was taken, and leave.

        The wait is bounded by `await_termination_millis` (None: the setting `await_termination_millis_when_shutdown`).
        What is not done then comes again, here or at another member; handlers that still run are cancelled. A second
        call does nothing.
        """
        check_generation(self._generation)
        limit = drain_limit(await_termination_millis)
        if self.state is not ServiceState.RUNNING:
            self._core.never_started()
            return ShutdownReport(0, 0, {})
        return await self._core.shutdown(limit)

    async def __aenter__(self) -> Self:
        if self.state is ServiceState.CREATE_JUST:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()


class _TaskDispatcher:
    """The tasks a push consumer's handler runs in: made when there is work for them, at most `most`."""

    def __init__(self, service: ConsumeMessageService, handler: Callable[..., Any], most: int) -> None:
        self._service = service
        self._handler = handler
        self._most = most
        self._works: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        # Counted apart: a task that has found nothing more stays in the set until its callbacks run.
        self._working = 0

    def submit(self, work: Work) -> None:
        """Have a task call the handler."""
        self._works.append(work)
        if self._working < self._most:
            self._working += 1
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Drop the queued works, and cancel the running tasks, except one that shuts the push consumer down."""
        self._works.clear()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    async def _run(self) -> None:
        try:
            while self._works:
                await self._call(self._works.popleft())
        finally:
            # In the same step as the last look for work, so that none is queued in between.
            self._working -= 1

    async def _call(self, work: Work) -> None:
        if not self._service.begin(work):
            return
        answer: object
        try:
            answer = self._handler(work.messages, work.context)
            if inspect.isawaitable(answer):
                answer = await answer
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The handler's own doing, and so a failure.
            answer = error
        except Exception as error:
            answer = error
        self._service.end(work, answer)
