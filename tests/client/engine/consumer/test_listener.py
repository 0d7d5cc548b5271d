"""Listener threads."""

from __future__ import annotations

import random
import threading
import time

import pytest

from pulsar_native.engine.consumer.listener import ListenerThreads


def listener_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("pulsar-native-listener")]


@pytest.mark.proves("C7")
@pytest.mark.parametrize("count", [1, 4])
def test_listener_threads_keep_order_per_consumer(count: int) -> None:
    threads = ListenerThreads(count)
    consumers = [threads.assign() for _ in range(3)]
    done: list[list[int]] = [[], [], []]
    busy = [threading.Lock() for _ in consumers]
    overlaps = []
    homes: list[set[int]] = [set(), set(), set()]
    dice = random.Random(0)

    def work(consumer: int, number: int, pause: float) -> None:
        if not busy[consumer].acquire(blocking=False):
            overlaps.append(consumer)
        time.sleep(pause)
        done[consumer].append(number)
        homes[consumer].add(threading.get_ident())
        busy[consumer].release()

    for number in range(30):
        for consumer, submit in enumerate(consumers):
            pause = dice.random() / 1000
            submit(lambda consumer=consumer, number=number, pause=pause: work(consumer, number, pause))  # type: ignore[misc]
    deadline = time.monotonic() + 20
    while sum(map(len, done)) < 90:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    threads.stop()
    assert done == [list(range(30))] * 3
    assert not overlaps
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
    finished = threading.Event()
    submit(lambda: time.sleep(0.05))
    submit(finished.set)
    threads.stop()
    # What was queued before is still done.
    assert finished.wait(10)
    deadline = time.monotonic() + 10
    while ours():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    threads.stop()


def test_listener_threads_survive_exception() -> None:
    threads = ListenerThreads(1)
    submit = threads.assign()
    reached = threading.Event()

    def bad() -> None:
        raise ValueError("mine")

    submit(bad)
    submit(reached.set)
    assert reached.wait(10)
    threads.stop()


def test_listener_threads_do_not_start_after_stop() -> None:
    before = set(listener_threads())
    threads = ListenerThreads(2)
    threads.stop()
    threads.assign()(lambda: pytest.fail("called after stop"))
    assert set(listener_threads()) <= before
