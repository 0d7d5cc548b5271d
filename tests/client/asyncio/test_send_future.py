"""Futures of sent messages: what asyncio does with futures, and what it does with coroutines only."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from pulsar_native.asyncio.send_future import MessageIdFuture, SendFuture
from pulsar_native.exceptions import Timeout
from pulsar_native.message_id import MessageId

ID = MessageId(-1, 3, 4, 0)


@pytest.fixture
async def future() -> SendFuture:
    """Give a future without an outcome."""
    return SendFuture(loop=asyncio.get_running_loop())


def settle_soon(future: SendFuture, error: Timeout | None = None) -> None:
    """Give a future its outcome in the next step of the loop."""
    asyncio.get_running_loop().call_soon(lambda: future(error, None if error is not None else ID))


async def test_awaited_returns_message_id(future: SendFuture) -> None:
    settle_soon(future)
    assert await future is ID
    # A second time, as a future and unlike a coroutine.
    assert await future is ID


async def test_awaited_raises_error(future: SendFuture) -> None:
    settle_soon(future, Timeout("late"))
    with pytest.raises(Timeout, match="late"):
        await future


async def test_coroutine_until_looked_at_as_future(future: SendFuture) -> None:
    assert asyncio.iscoroutine(future) and isinstance(future, Coroutine)
    assert asyncio.ensure_future(future) is future
    assert asyncio.isfuture(future) and not asyncio.iscoroutine(future)
    settle_soon(future)
    assert await future is ID


async def test_ensured_future_may_be_waited_for(future: SendFuture) -> None:
    with pytest.raises(TypeError, match="coroutines is forbidden"):
        await asyncio.wait([future])
    settle_soon(future)
    done, pending = await asyncio.wait([asyncio.ensure_future(future)], timeout=10)
    assert done == {future} and not pending


async def test_future_of_enqueue_is_no_coroutine() -> None:
    future = MessageIdFuture(loop=asyncio.get_running_loop())
    assert asyncio.isfuture(future) and not asyncio.iscoroutine(future)


async def test_first_outcome_counts(future: SendFuture) -> None:
    future(None, ID)
    future(Timeout("late"), None)
    assert future.result() is ID


async def test_gather_makes_no_task() -> None:
    futures = [SendFuture(loop=asyncio.get_running_loop()) for _ in range(10)]
    gathered = asyncio.gather(*futures)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for each in futures:
        settle_soon(each)
    assert await gathered == [ID] * 10


async def test_cancelled_gather_cancels_futures() -> None:
    futures = [SendFuture(loop=asyncio.get_running_loop()) for _ in range(3)]
    gathered = asyncio.gather(*futures)
    gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(gathered, 10)
    assert all(each.cancelled() for each in futures)
    # The receipt that comes later.
    futures[0](None, ID)


async def test_task_of_future(future: SendFuture) -> None:
    task = asyncio.create_task(future)
    assert "send()" in repr(task)
    await asyncio.sleep(0)
    assert not task.done() and "send()" in repr(task)
    settle_soon(future)
    assert await asyncio.wait_for(task, 10) is ID
    assert "send()" in repr(task)


async def test_task_of_failing_future(future: SendFuture) -> None:
    task = asyncio.create_task(future)
    await asyncio.sleep(0)
    settle_soon(future, Timeout("late"))
    with pytest.raises(Timeout, match="late"):
        await asyncio.wait_for(task, 10)


async def test_task_of_done_future(future: SendFuture) -> None:
    future(None, ID)
    assert await asyncio.wait_for(asyncio.create_task(future), 10) is ID


async def test_task_group() -> None:
    futures = [SendFuture(loop=asyncio.get_running_loop()) for _ in range(3)]
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in futures]
        for each in futures:
            settle_soon(each)
    assert [task.result() for task in tasks] == [ID] * 3


async def test_cancelled_task_cancels_future(future: SendFuture) -> None:
    task = asyncio.create_task(future)
    await asyncio.sleep(0)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert future.cancelled()


async def test_task_cancelled_before_its_first_step(future: SendFuture) -> None:
    task = asyncio.create_task(future)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not future.done()


async def test_coroutine_of_another_thread(future: SendFuture) -> None:
    waiting = asyncio.run_coroutine_threadsafe(future, asyncio.get_running_loop())
    settle_soon(future)
    assert await asyncio.to_thread(waiting.result, 10) is ID
