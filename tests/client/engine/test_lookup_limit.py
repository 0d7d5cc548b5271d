"""Limit of concurrent lookups: slots for any thread, waiting on the loop, in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_native.engine.lookup_limit import LookupLimit, LookupQueueIsFull
from pulsar_native.engine.loop import Engine, acquire_thread_engine, generation, release_thread_engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Give an engine with a thread of its own."""
    yield acquire_thread_engine()
    release_thread_engine(generation(), 10)


async def test_limit_waiters_are_served_in_order() -> None:
    limit = LookupLimit(Engine(asyncio.get_running_loop(), threading.get_ident()), 1, 5)
    served: list[int] = []

    async def wait(number: int) -> None:
        await limit.acquire()
        served.append(number)

    assert limit.try_acquire() and not limit.try_acquire()
    tasks = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    for expected in range(1, 4):
        limit.release()
        # Handed over: it is not free in between.
        assert not limit.try_acquire()
        await asyncio.sleep(0)
        assert served == list(range(expected))
    limit.release()
    await asyncio.gather(*tasks)
    assert limit.try_acquire() and not limit.try_acquire()


async def test_limit_without_room_raises() -> None:
    limit = LookupLimit(Engine(asyncio.get_running_loop(), threading.get_ident()), 2, 0)
    assert limit.try_acquire() and limit.try_acquire()
    with pytest.raises(LookupQueueIsFull, match="2 lookups are on their way and 0 wait; raise max_lookup_requests"):
        await limit.acquire()


@pytest.mark.parametrize("handed_over", [False, True])
async def test_limit_cancelled_waiter_loses_no_slot(handed_over: bool) -> None:
    limit = LookupLimit(Engine(asyncio.get_running_loop(), threading.get_ident()), 1, 5)
    assert limit.try_acquire()
    first, second = asyncio.create_task(limit.acquire()), asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    if handed_over:
        limit.release()
    first.cancel()
    await asyncio.sleep(0)
    if not handed_over:
        limit.release()
    await asyncio.wait_for(second, 5)
    assert first.cancelled()
    limit.release()
    assert limit.try_acquire()


def test_limit_holds_among_threads(engine: Engine) -> None:
    limit, lock = LookupLimit(engine, 3, 1000), threading.Lock()
    running = most = 0

    async def work() -> None:
        nonlocal running, most
        if not limit.try_acquire():
            await engine.enter_loop()
            await limit.acquire()
        with lock:
            running += 1
            most = max(most, running)
        if engine.on_loop():
            await asyncio.sleep(0)
        with lock:
            running -= 1
        limit.release()

    def some(_: int) -> None:
        for _ in range(100):
            engine.run_eager(work())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(some, range(8)))
    assert running == 0 and 1 <= most <= 3
    assert all(limit.try_acquire() for _ in range(3)) and not limit.try_acquire()


async def test_limit_free_slot_needs_no_wait() -> None:
    limit = LookupLimit(Engine(asyncio.get_running_loop(), threading.get_ident()), 2, 0)
    await limit.acquire()
    await limit.acquire()
    assert not limit.try_acquire()
    limit.release()
    assert limit.try_acquire()


async def test_limit_cancelled_before_its_turn_passes_it_on() -> None:
    limit = LookupLimit(Engine(asyncio.get_running_loop(), threading.get_ident()), 1, 5)
    assert limit.try_acquire()
    first, second = asyncio.create_task(limit.acquire()), asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    # Order of events: the slot is on its way to the first waiter when that one is cancelled.
    limit._engine.call(first.cancel)
    limit.release()
    await asyncio.wait_for(second, 5)
    assert first.cancelled() and not limit.try_acquire()
    limit.release()
    assert limit.try_acquire()
