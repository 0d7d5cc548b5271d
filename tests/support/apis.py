"""Blocking adapter of the asyncio API, on a loop in its own thread, so that one test body serves both APIs.

Rules: the asyncio API's objects are only ever touched on their loop, as an application would; every wait is bounded;
what a test leaves open is closed after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

import pulsar_native
import pulsar_native.asyncio
from pulsar_native import MessageId, PulsarException, PushConsumerConfig, Result

T = TypeVar("T")

# Longer than any call of a test may take: a hang then fails with its stack instead of stopping the run.
_LIMIT_SECONDS = 240


class LoopThread:
    """An event loop in a thread; `run` waits for a coroutine on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it and return its result, or raise its error."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_LIMIT_SECONDS)

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function on the loop, awaiting what it returns if that can be awaited."""

        async def body() -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return self.run(body())

    def stop(self) -> None:
        """End the loop and its thread; tasks still there are cancelled."""

        async def finish() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(finish())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


_LIVE = tuple(
    getattr(pulsar_native.asyncio, name)
    for name in ("Client", "Producer", "Consumer", "Reader", "TableView", "Transaction")
)  # what a call may return that must stay on its loop


class Blocked:
    """An object of the asyncio API whose methods are called from another thread and waited for."""

    def __init__(self, thread: LoopThread, target: Any) -> None:
        self.thread = thread
        self.target = target

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.target, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **options: Any) -> Any:
            options = unwrapped(options)
            if inspect.isasyncgenfunction(attribute):
                return self._iterate(attribute(*args, **options))
            result = self.thread.call(attribute, *args, **options)
            return Blocked(self.thread, result) if isinstance(result, _LIVE) else result

        return call

    def __enter__(self) -> Any:
        self.thread.call(self.target.__aenter__)
        return self

    def __exit__(self, *failure: object) -> None:
        self.thread.call(self.target.__aexit__, *failure)

    def _iterate(self, generator: Any) -> Iterator[Any]:
        while True:
            try:
                yield self.thread.call(generator.__anext__)
            except StopAsyncIteration:
                return


def unwrapped(options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with the asyncio API's own objects."""
    return {name: value.target if isinstance(value, Blocked) else value for name, value in options.items()}


class Api:
    """One of the two APIs; makes clients that look alike and closes them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = LoopThread() if name == "asyncio" else None
        self._clients: list[Any] = []

    def client(self, service_url: str, **options: Any) -> Any:
        """Return a client of this API; its methods block whatever the API."""
        made: Any
        if self._thread is None:
            made = pulsar_native.Client(service_url, **options)
        else:
            made = Blocked(self._thread, pulsar_native.asyncio.Client(service_url, **options))
        self._clients.append(made)
        return made

    def push_consumer(self, client: Any, config: PushConsumerConfig) -> Any:
        """Return a push consumer of this API; its methods block whatever the API."""
        if self._thread is None:
            return pulsar_native.PushConsumer(client, config)
        return Blocked(self._thread, pulsar_native.asyncio.PushConsumer(client.target, config))

    def handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a push consumer's handler of this API that calls a function, which may block."""
        if self._thread is None:
            return function

        async def handle(*args: Any) -> Any:
            return await asyncio.to_thread(function, *args)

        return handle

    def enqueue(self, producer: Any, content: Any, **message: Any) -> Future[tuple[Result, MessageId | None]]:
        """Publish without waiting for the receipt; the outcome of a failure has no id.

        A refusal is the blocking API's outcome too, asyncio's raises it.
        """
        outcome: Future[tuple[Result, MessageId | None]] = Future()
        if self._thread is None:

            def told(result: Result, place: MessageId) -> None:
                if not isinstance(place, MessageId) or (result is not Result.Ok and place != MessageId()):
                    outcome.set_exception(AssertionError(f"{result!r} comes with {place!r} as id"))
                else:
                    outcome.set_result((result, place if result is Result.Ok else None))

            producer.send_async(content, told, **message)
            return outcome

        def done(receipt: asyncio.Future[MessageId]) -> None:
            error = receipt.exception()
            if error is None:
                outcome.set_result((Result.Ok, receipt.result()))
            elif isinstance(error, PulsarException):
                outcome.set_result((error.result, None))
            else:
                outcome.set_exception(error)

        async def body() -> None:
            (await producer.target.enqueue(content, **unwrapped(message))).add_done_callback(done)

        self._thread.run(body())
        return outcome

    def enqueue_refused(self, producer: Any, content: Any, **message: Any) -> None:
        """Publish a message that is refused at once and raise its refusal; a message that is taken fails the test.

        The blocking API raises only where there is no callback; with one, the same refusal must come through that.
        """
        if self._thread is not None:
            self.enqueue(producer, content, **message)
            pytest.fail("the message is not refused")
        try:
            producer.send_async(content, None, **message)
        except PulsarException as error:
            told = self.enqueue(producer, content, **message)
            assert told.done() and told.result() == (error.error(), None), "the callback is told something else"
            raise
        pytest.fail("the message is not refused")

    def send_all(self, producer: Any, contents: Sequence[Any], **message: Any) -> list[MessageId]:
        """Publish in order without waiting in between, and return the ids; the first failure is raised."""
        if self._thread is not None:

            async def body() -> list[MessageId]:
                receipts = [await producer.target.enqueue(content, **unwrapped(message)) for content in contents]
                await producer.target.flush()
                ids: list[MessageId] = await asyncio.gather(*receipts)
                return ids

            return self._thread.run(body())
        outcomes = [self.enqueue(producer, content, **message) for content in contents]
        producer.flush()
        return [_id_of(each.result(_LIMIT_SECONDS)) for each in outcomes]

    def close(self) -> None:
        """Close what the test left open."""
        for client in self._clients:
            # Closed by the test, or its broker is gone: both are fine here.
            with contextlib.suppress(PulsarException):
                client.close()
        if self._thread is not None:
            self._thread.stop()


def _id_of(outcome: tuple[Result, MessageId | None]) -> MessageId:
    result, place = outcome
    assert result is Result.Ok and place is not None, result
    return place


def inner(wrapped: Any) -> Any:
    """Return the engine's object behind an API's."""
    return (wrapped.target if hasattr(wrapped, "target") else wrapped)._inner


def publish_batches(api: Api, client: Any, name: str, *counts: int) -> list[MessageId]:
    """Publish numbered messages, each count as one batch."""
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    ids: list[MessageId] = []
    for count in counts:
        ids += api.send_all(producer, [b"%d" % (len(ids) + number) for number in range(count)])
    producer.close()
    return ids
