"""Listener threads."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from pulsar_native.engine.consumer.listener import ListenerThreads, is_thread_of
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


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError])
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
