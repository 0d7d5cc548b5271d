"""Push consumer of the asyncio API: listeners are coroutines, as many at a time as the sync API has threads."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self

from pulsar_native._not_picklable import NotPicklable
from pulsar_native._type_vars import T
from pulsar_native._validation import checked_schema
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
from pulsar_native.push.handler_errors import interrupts_program
from pulsar_native.schema import Schema

MessageListenerConcurrently = Callable[
    [list[Message[T]], ConsumeConcurrentlyContext],
    Awaitable[ConsumeConcurrentlyStatus | None] | ConsumeConcurrentlyStatus | None,
]
MessageListenerOrderly = Callable[
    [list[Message[T]], ConsumeOrderlyContext], Awaitable[ConsumeOrderlyStatus | None] | ConsumeOrderlyStatus | None
]


class PushConsumer(NotPicklable, Generic[T]):
    """Push consumer of a consumer group, after RocketMQ's DefaultMQPushConsumer. Belongs to the client's loop.

    It pulls batches and passes them to a message listener, a coroutine function; `consume_thread_max` of the
    configuration limits the number of concurrent calls. Subscribe to topics, register one listener, then start; as an
    async context manager it starts on entering and shuts down on leaving.

        consumer = PushConsumer(client, PushConsumerConfig(consumer_group="billing"))
        consumer.subscribe("orders", "paid || refunded")
        consumer.register_message_listener(handle)
        async with consumer:
            ...

    :param client: a `pulsar_native.asyncio.Client`; another one raises `InvalidConfiguration`.
    :param config: the configuration.
    """

    def __init__(self, client: Client, config: PushConsumerConfig) -> None:
        if not isinstance(client, Client):
            raise InvalidConfiguration(f"This push consumer needs a client of pulsar_native.asyncio, not {client!r}")
        self._client = client
        self._core = PushConsumerCore(check_config(config))
        self._generation = generation()
        self._handler: Callable[..., Any] | None = None
        self._workers: _TaskDispatcher | None = None

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
        """Add a topic, or replace its expression; takes effect at `start`.

        Raises `NotAllowedError` after the start, and `InvalidConfiguration` for a malformed expression or a schema
        that is none.

        :param topic: the topic.
        :param expression: tags separated by `||`: only messages with one of them in the property TAGS. Default "*": all
            messages.
        :param schema: the schema that decodes the values. Default None: bytes.
        """
        self._core.subscribe(topic, expression, checked_schema(schema))

    def unsubscribe(self, topic: str) -> None:
        """Remove a topic; raises `NotAllowedError` after the start.

        :param topic: the topic.
        """
        self._core.unsubscribe(topic)

    def register_message_listener(
        self,
        concurrently: MessageListenerConcurrently[T] | None = None,
        *,
        orderly: MessageListenerOrderly[T] | None = None,
    ) -> None:
        """Set the message listener: a concurrent or an orderly one.

        A listener is a coroutine function, or a function that does not block, of a list of messages and a context that
        returns a status; None and an exception count as failure. Raises `InvalidConfiguration` for two listeners or
        none, and `NotAllowedError` after the start.

        :param concurrently: listener with several calls at a time, in no order. Default None.
        :param orderly: listener called with the messages of a key or partition in order. Default None.
        """
        handler, in_order = message_listener(concurrently, orderly)
        self._core.register(orderly=in_order)
        self._handler = handler

    def register_filter_message_hook(self, hook: Callable[[Message[T]], bool]) -> None:
        """Add a filter, called on the loop; it must not block. Raises `NotAllowedError` after the start.

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

    async def start(self) -> None:
        """Subscribe to the topics and start calling the listener. Waits up to several operation time-outs.

        Raises `InvalidConfiguration` without a listener or topic, or where the offsets of a broadcasting member cannot
        be read or written, `NotAllowedError` if it was started before, the group already has a push consumer in this
        process, or another one has the offsets of a broadcasting member, `AlreadyClosed` if it is shut down meanwhile,
        and what `Client.subscribe` raises. A push consumer that failed to start cannot be started again.
        """
        check_generation(self._generation)
        self._core.check_not_started()
        await self._core.start(self._client._started(), self._dispatcher)

    def _dispatcher(self, service: ConsumeMessageService) -> _TaskDispatcher:
        assert self._handler is not None
        self._workers = _TaskDispatcher(service, self._handler, self.config.consume_thread_max)
        return self._workers

    def suspend(self) -> None:
        """Stop pulling messages; those already pulled are still passed to the listener."""
        check_generation(self._generation)
        self._core.suspend()

    def resume(self) -> None:
        """Pull messages again after `suspend`."""
        check_generation(self._generation)
        self._core.resume()

    def stats(self) -> PushConsumerStats:
        """Return statistics since the start."""
        check_generation(self._generation)
        return self._core.stats()

    async def shutdown(self, await_termination_millis: int | None = None) -> ShutdownReport:
        """Stop pulling, wait for messages already pulled, and close. Idempotent.

        Messages not handled within the limit are redelivered, here or at another member of the group; running calls of
        the listener are cancelled. A start that is under way ends with `AlreadyClosed`. A second call waits for the
        first and returns its report; within the listener it does not wait.

        :param await_termination_millis: limit in milliseconds. Default None: the configuration's
            `await_termination_millis_when_shutdown`.
        """
        check_generation(self._generation)
        limit = drain_limit(await_termination_millis)
        in_handler = self._workers is not None and self._workers.is_in_handler()
        return await self._core.shutdown(limit, in_handler=in_handler)

    async def __aenter__(self) -> Self:
        if self.state is not ServiceState.RUNNING:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A forked child has nothing to shut down, and its own exception or exit goes on.
        if self._generation == generation():
            await self.shutdown()


class _TaskDispatcher:
    """Tasks of a push consumer: started on demand, at most `most`."""

    def __init__(self, service: ConsumeMessageService, handler: Callable[..., Any], most: int) -> None:
        self._service = service
        self._handler = handler
        self._most = most
        self._works: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        # Counted separately: a finished task stays in the set until its callbacks run.
        self._working = 0
        self._cancelled = False

    def submit(self, work: Work) -> None:
        """Queue a call of the listener."""
        self._works.append(work)
        self._serve()

    def _serve(self) -> None:
        if self._works and self._working < self._most:
            self._working += 1
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # One that ended early, by an interrupt, leaves its works to a successor.
        self._serve()

    def is_in_handler(self) -> bool:
        """Return True if a call of the listener is the caller."""
        return asyncio.current_task() in self._tasks

    def stop(self, *, cancel_running: bool = True) -> None:
        """Drop queued calls and cancel running tasks, except the one that shuts the push consumer down."""
        self._works.clear()
        if not cancel_running:
            return
        self._cancelled = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    async def _run(self) -> None:
        try:
            while self._works:
                await self._call(self._works.popleft())
        finally:
            # No await after the last check of the queue, so that no work is queued in between.
            self._working -= 1

    async def _call(self, work: Work) -> None:
        if not self._service.begin(work):
            return
        answer: object
        task = asyncio.current_task()
        try:
            answer = self._handler(work.messages, work.context)
            if inspect.isawaitable(answer):
                answer = await answer
        except asyncio.CancelledError as error:
            if self._cancelled:
                raise
            # The handler's own doing, and so a failure, also where it cancelled its task.
            while task is not None and task.cancelling():
                task.uncancel()
            answer = error
        except GeneratorExit as error:
            # The listener's own, unless the task is collected after its loop has ended.
            if not _is_running(task):
                raise
            answer = error
        except BaseException as error:
            answer = error
            if interrupts_program(error, also_exit=True):
                self._service.end(work, answer)
                raise
        self._service.end(work, answer)


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False
