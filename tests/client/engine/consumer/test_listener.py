"""Listener threads."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_native.engine.consumer import listener
from pulsar_native.engine.consumer.listener import ExecutedCalls, ListenerThreads, is_thread_of
from support.other_thread import OWN_ERRORS
from support.until import wait_until


def listener_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("pulsar-native-listener")]


@pytest.mark.proves("C7")
@pytest.mark.parametrize("count", [1, 4])
def test_listener_threads_keep_order_per_consumer(count: int) -> None:
    threads = ListenerThreads(count)
    consumers = [threads.assign() for _ in range(3)]
    done: list[list[int]] = [[], [], []]
    homes: list[set[int]] = [set(), set(), set()]
    gates = [threading.Event() for _ in consumers]

    def work(consumer: int, number: int) -> None:
        # The first work of a consumer takes until the test lets it end.
        assert gates[consumer].wait(20)
        done[consumer].append(number)
        homes[consumer].add(threading.get_ident())

    for number in range(30):
        for consumer, submit in enumerate(consumers):
            submit(partial(work, consumer, number))
    # Held up by one consumer: those on its thread, no other.
    for consumer in (2, 1):
        gates[consumer].set()
        if count > 1:
            wait_until(lambda consumer=consumer: len(done[consumer]) == 30)
    assert done[0] == [] and all(len(own) == (30 if count > 1 else 0) for own in done[1:])
    gates[0].set()
    wait_until(lambda: sum(map(len, done)) == 90)
    threads.stop()
    assert done == [list(range(30))] * 3
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) == min(count, 3)


def test_listener_threads_start_lazily_and_stop() -> None:
    # Those of an earlier test may be ending still.
    before = set(listener_threads())

    def ours() -> set[threading.Thread]:
        return set(listener_threads()) - before

    threads = ListenerThreads(3)
    assert not ours()
    submit = threads.assign()
    assert len(ours()) == 3
    gate, finished = threading.Event(), threading.Event()
    submit(lambda: gate.wait(20))
    submit(finished.set)
    threads.stop()
    assert not finished.is_set()
    gate.set()
    # What was queued before is still done.
    assert finished.wait(10)
    wait_until(lambda: not ours())
    threads.stop()


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError, *OWN_ERRORS])
def test_listener_threads_survive_exception(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    threads = ListenerThreads(1)
    submit = threads.assign()
    reached = threading.Event()

    def bad() -> None:
        raise kind("mine")

    submit(bad)
    submit(reached.set)
    assert reached.wait(10)
    threads.stop()
    assert "cannot deliver a consumer's messages" in caplog.text


def test_is_thread_of_own_submit_only() -> None:
    threads = ListenerThreads(2)
    first, second = threads.assign(), threads.assign()
    found: list[bool] = []
    done = threading.Event()

    def ask() -> None:
        found.extend((is_thread_of(first), is_thread_of(second)))
        done.set()

    first(ask)
    assert done.wait(10) and found == [True, False] and not is_thread_of(first)
    threads.stop()


def test_listener_threads_do_not_start_after_stop() -> None:
    before = set(listener_threads())
    threads = ListenerThreads(2)
    threads.stop()
    threads.assign()(lambda: pytest.fail("called after stop"))
    assert set(listener_threads()) <= before


class Kept:
    """An executor that keeps what it is to run."""

    def __init__(self) -> None:
        self.runnables: list[Callable[[], None]] = []

    def execute(self, _message: object, runnable: Callable[[], None]) -> None:
        self.runnables.append(runnable)


MESSAGE: Any = object()


def test_executed_calls_are_limited_and_run_once() -> None:
    kept, log = Kept(), list[str]()
    calls = ExecutedCalls(kept, 2, lambda: True, lambda: log.append("wake"))
    for name in ("one", "two"):
        assert not calls.is_full
        calls.start(MESSAGE, partial(log.append, name), partial(log.append, "back"))
    assert calls.is_full and log == []
    kept.runnables[1]()
    assert not calls.is_full and log == ["two", "wake"]
    kept.runnables[1]()
    kept.runnables[0]()
    assert log == ["two", "wake", "one"]


def test_executed_call_that_may_not_begin_goes_back() -> None:
    kept, log = Kept(), list[str]()
    may = [False]
    calls = ExecutedCalls(kept, 1, lambda: may[0], lambda: log.append("wake"))
    calls.start(MESSAGE, partial(log.append, "call"), partial(log.append, "back"))
    kept.runnables[0]()
    # What was paused may be resumed already: somebody has to look.
    assert log == ["back", "wake"] and not calls.is_full


@pytest.mark.parametrize("runs", [False, True])
def test_executor_that_rejects_leaves_its_place(runs: bool) -> None:
    class Rejects(Kept):
        def execute(self, message: object, runnable: Callable[[], None]) -> None:
            super().execute(message, runnable)
            if runs:
                runnable()
            raise RuntimeError("full")

    rejects, log = Rejects(), list[str]()
    calls = ExecutedCalls(rejects, 1, lambda: True, lambda: log.append("wake"))
    with pytest.raises(RuntimeError):
        calls.start(MESSAGE, partial(log.append, "call"), partial(log.append, "back"))
    rejects.runnables[0]()
    assert not calls.is_full and log == (["call", "wake"] if runs else [])


def test_executed_calls_are_waited_for_unless_one_of_them_waits() -> None:
    kept = Kept()
    threads = ListenerThreads(1)
    calls = threads.executed_calls(kept, 5, lambda: True, lambda: None)
    began, gate, inside = threading.Event(), threading.Event(), threading.Event()

    def waits_itself() -> None:
        calls.wait_ended(20)
        inside.set()

    def waits() -> None:
        began.set()
        gate.wait(20)

    for call in (waits, waits_itself):
        calls.start(MESSAGE, call, lambda: None)
    workers = [threading.Thread(target=runnable) for runnable in kept.runnables]
    workers[0].start()
    assert began.wait(10)
    workers[1].start()
    assert inside.wait(10)
    threads.join(0.01)
    joining = threading.Thread(target=threads.join, args=(20,))
    joining.start()
    joining.join(0.05)
    assert joining.is_alive()
    gate.set()
    joining.join(10)
    assert not joining.is_alive()
    for worker in workers:
        worker.join(10)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_exit_of_child_waits_for_no_lock() -> None:
    threads = ListenerThreads(1)
    threads.assign()
    # As by another thread at the fork.
    threads._lock.acquire()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        listener._stop_at_exit()
        os._exit(0)
    threads._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    threads.stop()
