"""Results of coroutine functions and async generators, for a caller without asyncio.

Rules: one event loop per result, run by the caller's thread while it waits for the next item. The loop is closed at the
end, and when the iterator is closed or an exception leaves it. Not inside a running loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterator
from typing import Any

from pulsar_native.jobs.failures import JobRefused

# Time for tasks of the callable to end after the iteration.
_END_SECONDS = 0.5


def is_asynchronous(given: object) -> bool:
    """Return True if the result must be awaited or iterated by `async for`."""
    return inspect.isawaitable(given) or hasattr(given, "__aiter__")


def resolved(given: Any) -> Any:
    """Return the result of an awaitable, or an iterator of an async iterator; blocks for the first item.

    An awaitable may return an async iterator, which continues in the same loop.
    """
    loop: asyncio.AbstractEventLoop | None = None
    if inspect.isawaitable(given):
        loop = asyncio.new_event_loop()
        try:
            given = loop.run_until_complete(_awaited(given))
        except BaseException:
            _close(loop)
            raise
    if hasattr(given, "__aiter__"):
        return _iterate(loop, given)
    if loop is not None:
        _close(loop)
    return given


def completed(given: Any, name: str) -> Any:
    """Return what the function `name` returned, or the result of its coroutine; blocks until that has ended.

    Raises `JobRefused` for a generator: nothing of the function has run.
    """
    if inspect.isawaitable(given):
        given = asyncio.run(_awaited(given))
    if is_generator(given):
        raise JobRefused(f"{name} is a generator function, of which nothing has run: return instead of yield")
    return given


def is_generator(given: object) -> bool:
    """Return True for what a generator function returns."""
    return inspect.isgenerator(given) or inspect.isasyncgen(given)


async def _awaited(given: Awaitable[Any]) -> Any:
    return await given


def _iterate(loop: asyncio.AbstractEventLoop | None, given: AsyncIterable[Any]) -> Iterator[Any]:
    loop = loop or asyncio.new_event_loop()
    items = aiter(given)
    try:
        while True:
            try:
                item = loop.run_until_complete(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        _close(loop, items)


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items)


def _close(loop: asyncio.AbstractEventLoop, items: AsyncIterator[Any] | None = None) -> None:
    async def end() -> None:
        this = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not this]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_END_SECONDS)
        close = getattr(items, "aclose", None)
        if close is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(close(), _END_SECONDS)

    try:
        loop.run_until_complete(end())
    finally:
        loop.close()
