"""Handler execution in both APIs: no work is missed, and concurrency stays within its limit."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from pulsar_native.asyncio.push_consumer import _TaskDispatcher
from pulsar_native.sync.push_consumer import _ThreadDispatcher
from support.until import until, wait_until


class Calls:
    """Stands for the consuming: takes every work, and counts what is handled and how many at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = self.most = 0
        self.ended: list[Any] = []

    def begin(self, work: Any) -> bool:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        return True

    def end(self, work: Any, answer: object) -> None:
        with self._lock:
            self.running -= 1
            self.ended.append(answer)


class Something:
    """A work."""

    messages = context = None


@pytest.mark.asyncio
async def test_tasks_run_all_submitted_work() -> None:
    calls = Calls()

    async def handle(_messages: Any, _context: Any) -> str:
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        return "done"

    chance = random.Random(1)
    tasks = _TaskDispatcher(calls, handle, 3)  # type: ignore[arg-type]
    submitted = 0
    for _ in range(500):
        for _ in range(chance.randrange(4)):
            tasks.submit(Something())  # type: ignore[arg-type]
            submitted += 1
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert calls.ended == ["done"] * submitted and calls.most == 3 and calls.running == 0


@pytest.mark.asyncio
async def test_tasks_run_work_submitted_at_end() -> None:
    calls = Calls()
    tasks = _TaskDispatcher(calls, lambda _messages, _context: "done", 1)  # type: ignore[arg-type]
    tasks.submit(Something())  # type: ignore[arg-type]
    # Order of events: the task takes the first and ends, this comes, and only then the task's callbacks.
    asyncio.get_running_loop().call_soon(tasks.submit, Something())
    for _ in range(10):
        await asyncio.sleep(0)
    assert calls.ended == ["done", "done"]


@pytest.mark.asyncio
async def test_tasks_cancelled_handler_failed_stopped_not() -> None:
    calls = Calls()
    started = asyncio.Event()

    async def handle(_messages: Any, _context: Any) -> None:
        if not started.is_set():
            started.set()
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    tasks = _TaskDispatcher(calls, handle, 1)  # type: ignore[arg-type]
    tasks.submit(Something())  # type: ignore[arg-type]
    tasks.submit(Something())  # type: ignore[arg-type]
    await started.wait()
    await until(lambda: calls.running == 1 and calls.ended)
    assert [type(answer) for answer in calls.ended] == [asyncio.CancelledError] and calls.running == 1
    running = list(tasks._tasks)
    tasks.stop()
    await asyncio.wait(running, timeout=10)
    assert len(calls.ended) == 1


def test_threads_run_all_submitted_work() -> None:
    calls = Calls()

    def handle(_messages: Any, _context: Any) -> str:
        assert steps.acquire(timeout=20)
        if chance.random() < 0.2:
            raise SystemExit
        return "done"

    # Handlers end when the test lets one go on, so that between none and all of the threads are busy.
    chance, steps = random.Random(2), threading.Semaphore(0)
    threads = _ThreadDispatcher(calls, handle, 1, 3)  # type: ignore[arg-type]
    for submitted in range(1, 301):
        threads.submit(Something())  # type: ignore[arg-type]
        if submitted % 10 == 0:
            steps.release(10)
            if chance.random() < 0.5:
                wait_until(lambda submitted=submitted: len(calls.ended) == submitted, 20)  # type: ignore[misc]
    wait_until(lambda: len(calls.ended) == 300)
    assert calls.most <= 3 and {type(answer) for answer in calls.ended} == {str, SystemExit}
    threads.stop()
    wait_until(lambda: not threads._count)


def test_threads_idle_above_minimum_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_native.sync.push_consumer._IDLE_SECONDS", 0.05)
    calls, gate = Calls(), threading.Event()
    threads = _ThreadDispatcher(calls, lambda _messages, _context: gate.wait(20), 1, 4)  # type: ignore[arg-type]
    for _ in range(4):
        threads.submit(Something())  # type: ignore[arg-type]
    wait_until(lambda: calls.running == 4)
    gate.set()
    alive: list[threading.Thread] = []

    def one_is_left() -> bool:
        # A thread that is no longer counted still has to end.
        alive[:] = [each for each in threading.enumerate() if each.name.startswith("pulsar-native-push-consumer-")]
        return len(alive) == threads._count == 1

    wait_until(one_is_left)
    # The last one has waited as long as the others, and again.
    (last,) = alive
    last.join(0.2)
    assert last.is_alive() and threads._count == 1
    threads.submit(Something())  # type: ignore[arg-type]
    wait_until(lambda: len(calls.ended) == 5)
    threads.stop()


@pytest.mark.asyncio
async def test_tasks_handler_cancels_its_task_goes_on() -> None:
    calls = Calls()

    async def handle(_messages: Any, _context: Any) -> str:
        if not calls.ended:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)
        return "done"

    tasks = _TaskDispatcher(calls, handle, 1)  # type: ignore[arg-type]
    for _ in range(3):
        tasks.submit(Something())  # type: ignore[arg-type]
    await until(lambda: len(calls.ended) == 3)
    assert isinstance(calls.ended[0], asyncio.CancelledError) and calls.ended[1:] == ["done", "done"]


@pytest.mark.asyncio
@pytest.mark.parametrize("running", [0, 1])
async def test_threads_that_cannot_start_leave_no_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, running: int
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("pulsar_native.sync.push_consumer._THREAD_RETRY_SECONDS", 0.01)
    calls, gate = Calls(), threading.Event()
    threads = _ThreadDispatcher(calls, lambda _messages, _context: gate.wait(20), 1, 3)  # type: ignore[arg-type]
    if running:
        threads.submit(Something())  # type: ignore[arg-type]
        await until(lambda: calls.running == 1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for _ in range(5):
            threads.submit(Something())  # type: ignore[arg-type]
        assert threads._count == running
    gate.set()
    await until(lambda: len(calls.ended) == running + 5)
    assert caplog.text.count("can't start new thread") == 1
    threads.stop()


def test_tasks_interrupted_successor_takes_the_rest() -> None:
    calls = Calls()

    async def handle(_messages: Any, _context: Any) -> str:
        if not calls.ended:
            raise KeyboardInterrupt
        return "done"

    def submit() -> None:
        for _ in range(3):
            tasks.submit(Something())  # type: ignore[arg-type]
        failed.extend(tasks._tasks)

    async def rest() -> None:
        await until(lambda: len(calls.ended) == 3)

    tasks, failed = _TaskDispatcher(calls, handle, 1), list[asyncio.Task[None]]()  # type: ignore[arg-type]
    loop = asyncio.new_event_loop()
    try:
        loop.call_soon(submit)
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        # An application that goes on with its loop.
        loop.run_until_complete(rest())
    finally:
        loop.close()
    assert isinstance(failed[0].exception(), KeyboardInterrupt) and isinstance(calls.ended[0], KeyboardInterrupt)
    assert calls.ended[1:] == ["done", "done"]


def test_threads_work_that_breaks_costs_no_thread() -> None:
    class Breaking(Calls):
        def end(self, work: Any, answer: object) -> None:
            super().end(work, answer)
            raise KeyError("in the processing")

    calls = Breaking()
    threads = _ThreadDispatcher(calls, lambda _messages, _context: "done", 1, 1)  # type: ignore[arg-type]
    for _ in range(3):
        threads.submit(Something())  # type: ignore[arg-type]
    wait_until(lambda: len(calls.ended) == 3)
    threads.stop()
