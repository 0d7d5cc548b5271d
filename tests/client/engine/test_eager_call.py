"""Eager start of a coroutine: in the calling thread up to its first wait, then on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_native.engine.eager_call import EagerCall
from pulsar_native.engine.loop import Engine, acquire_thread_engine, generation, release_thread_engine
from pulsar_native.exceptions import AlreadyClosed, Interrupted, OperationNotSupported


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Give an engine with a thread of its own."""
    yield acquire_thread_engine()
    release_thread_engine(generation(), 10)


def test_eager_without_wait_stays_in_thread(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop(*_: object) -> None:
        raise AssertionError("the loop was asked")

    async def work() -> int:
        return threading.get_ident()

    monkeypatch.setattr(Engine, "run", no_loop)
    assert engine.run_eager(work()) == threading.get_ident()


def test_eager_wait_continues_on_loop(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    waits: asyncio.Future[str] = engine.loop.create_future()
    run = engine.run

    async def work() -> str:
        threads.append(threading.get_ident())
        found = await waits
        threads.append(threading.get_ident())
        await asyncio.sleep(0)
        return found

    def answered(call: Any, **more: Any) -> Any:
        # Not before it waits.
        engine.call(waits.set_result, "answer")
        return run(call, **more)

    monkeypatch.setattr(engine, "run", answered)
    assert engine.run_eager(work()) == "answer"
    assert threads == [threading.get_ident(), engine.thread]


def test_enter_loop_switches_once(engine: Engine) -> None:
    async def work() -> list[bool]:
        where = [engine.on_loop()]
        await engine.enter_loop()
        where.append(engine.on_loop())
        await engine.enter_loop()
        return where

    assert engine.run_eager(work()) == [False, True]


def test_eager_errors_are_raised(engine: Engine) -> None:
    async def early() -> None:
        raise ValueError("early")

    async def late() -> None:
        await engine.enter_loop()
        raise ValueError("late")

    with pytest.raises(ValueError, match="early"):
        engine.run_eager(early())
    with pytest.raises(ValueError, match="late"):
        engine.run_eager(late())


def test_eager_interrupted_in_thread_cleans_up(engine: Engine) -> None:
    seen: list[type[BaseException]] = []

    async def work() -> None:
        try:
            raise KeyboardInterrupt
        except BaseException as error:
            seen.append(type(error))
            raise

    with pytest.raises(Interrupted):
        engine.run_eager(work())
    assert seen == [KeyboardInterrupt]


def test_eager_interrupted_on_loop_is_cancelled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    async def begin() -> None:
        try:
            await engine.enter_loop()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    def interrupted(*_: Any) -> bool:
        raise Interrupted("Ctrl-C")

    monkeypatch.setattr("pulsar_native.engine.loop._Call.wait", interrupted)
    with pytest.raises(Interrupted):
        engine.run_eager(begin())
    # Before its first step on the loop, or as it waits.
    assert ended.wait(10)


async def test_eager_cancelled_task_reaches_coroutine() -> None:
    seen: list[str] = []
    waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ends: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await waits
        except asyncio.CancelledError:
            seen.append("cancelled")
        # It may wait again while it ends.
        return await ends

    async def rest() -> str:
        return await call

    call = EagerCall(work())
    assert not call.is_done
    task = asyncio.create_task(rest())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    ends.set_result("clean")
    assert await task == "clean" and seen == ["cancelled"]


async def test_eager_close_ends_as_cancelled() -> None:
    seen: list[type[BaseException]] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except BaseException as error:
            seen.append(type(error))
            raise

    EagerCall(work()).close()
    assert seen == [asyncio.CancelledError]


async def test_eager_call_done_is_awaitable() -> None:
    async def work(error: Exception | None) -> str:
        if error is not None:
            raise error
        return "result"

    fine, failed = EagerCall(work(None)), EagerCall(work(ValueError("no")))
    assert fine.is_done and not fine.has_raised(Exception)
    assert failed.is_done and failed.has_raised(ValueError) and not failed.has_raised(TypeError)
    assert await fine == "result"
    with pytest.raises(ValueError, match="no"):
        await failed


def test_eager_on_loop_or_after_end_raises(engine: Engine) -> None:
    async def work() -> None: ...

    async def on_loop() -> None:
        with pytest.raises(OperationNotSupported):
            engine.run_eager(work())

    engine.run(on_loop())
    engine.end()
    with pytest.raises(AlreadyClosed):
        engine.run_eager(work())
