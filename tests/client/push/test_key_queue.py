"""Key queues: order kept through failures, one worker at a time, no queue starves."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.push.key_queue import KeyQueue, KeyQueues


@pytest.mark.proves("C216")
def test_key_queue_one_worker() -> None:
    key_queues: KeyQueues[str] = KeyQueues()
    key_queues.add("a", ["1", "2"])
    key_queue = key_queues.claim(0)
    assert key_queue is not None and key_queue.key == "a" and key_queues.claim(0) is None
    key_queues.add("a", ["3"])
    assert key_queues.claim(0) is None
    assert key_queues.dequeue(key_queue, 2) == ["1", "2"]
    key_queues.release(key_queue, 0)
    again = key_queues.claim(0)
    assert again is key_queue and key_queues.dequeue(key_queue, 5) == ["3"]
    key_queues.release(key_queue, 0)
    assert len(key_queues) == 0 and key_queues.claim(0) is None


def test_key_queues_take_turns() -> None:
    key_queues: KeyQueues[int] = KeyQueues()
    for key in "abc":
        key_queues.add(key, [1, 2])
    order = []
    while (key_queue := key_queues.claim(0)) is not None:
        key_queues.dequeue(key_queue, 1)
        order.append(key_queue.key)
        key_queues.release(key_queue, 0)
    assert order == list("abcabc")


@pytest.mark.proves("C217")
@pytest.mark.parametrize(("asked", "rest"), [(1.0, 1.0), (0.0, 0.010), (0.009, 0.010), (31.0, 30.0), (1e9, 30.0)])
def test_key_queue_suspend_bounded_and_first(asked: float, rest: float) -> None:
    key_queues: KeyQueues[str] = KeyQueues()
    key_queues.add("a", ["1", "2", "3"])
    key_queue = key_queues.claim(100)
    assert key_queue is not None
    key_queues.suspend(key_queue, key_queues.dequeue(key_queue, 2), asked, 100)
    assert key_queues.next_wake() == 100 + rest
    key_queues.add("a", ["4"])
    assert key_queues.claim(100 + rest - 0.001) is None
    assert key_queues.claim(100 + rest) is key_queue and key_queues.next_wake() is None
    assert key_queues.dequeue(key_queue, 9) == ["1", "2", "3", "4"]


@pytest.mark.proves("C217")
def test_key_queue_break_after_a_minute() -> None:
    key_queues: KeyQueues[str] = KeyQueues()
    key_queues.add("a", ["1", "2"])
    key_queue = key_queues.claim(0)
    assert key_queue is not None
    key_queues.dequeue(key_queue, 1)
    assert not key_queues.must_pause(key_queue, 60) and key_queues.must_pause(key_queue, 60.1)
    key_queues.release(key_queue, 60.1)
    assert key_queues.claim(60.1) is None and key_queues.next_wake() == pytest.approx(60.11)
    assert key_queues.claim(60.2) is key_queue


def test_key_queue_empty_after_break_is_removed() -> None:
    key_queues: KeyQueues[str] = KeyQueues()
    for key in "abc":
        key_queues.add(key, ["1"])
    done, uncommitted, followed = (key_queues.claim(0) for _ in range(3))
    assert done is not None and uncommitted is not None and followed is not None
    for key_queue in (done, uncommitted, followed):
        taken = key_queues.dequeue(key_queue, 1)
        if key_queue is uncommitted:
            key_queues.note(key_queue, taken)
        key_queues.release(key_queue, 61)
    key_queues.add("c", ["2"])
    assert key_queues.claim(62) is followed and len(key_queues) == 2
    key_queues.add("a", ["2"])
    again = key_queues.claim(62)
    assert again is not None and again.key == "a" and key_queues.dequeue(again, 9) == ["2"]


@pytest.mark.proves("C217")
def test_key_queue_uncommitted_until_commit() -> None:
    key_queues: KeyQueues[str] = KeyQueues()
    key_queues.add("a", ["1", "2", "3"])
    for expected in ("1", "2"):
        key_queue = key_queues.claim(0)
        assert key_queue is not None
        taken = key_queues.dequeue(key_queue, 1)
        assert taken == [expected]
        key_queues.note(key_queue, taken)
        key_queues.release(key_queue, 0)
    key_queue = key_queues.claim(0)
    assert key_queue is not None and key_queues.dequeue(key_queue, 1) == ["3"]
    # The queue is empty, and stays for what is noted.
    key_queues.suspend(key_queue, [*key_queues.roll_back(key_queue), "3"], 0, 0)
    assert key_queues.claim(1) is key_queue and key_queues.dequeue(key_queue, 9) == ["1", "2", "3"]
    key_queues.note(key_queue, ["1", "2", "3"])
    key_queues.release(key_queue, 1)
    assert len(key_queues) == 1
    assert key_queues.commit(key_queue) == ["1", "2", "3"] and key_queues.commit(key_queue) == []


@pytest.mark.proves("C216", "C217")
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=25), st.integers(0, 2**16))
def test_key_queue_order_through_failures(arrivals: list[tuple[str, int]], seed: int) -> None:
    chance = random.Random(seed)
    key_queues: KeyQueues[tuple[str, int]] = KeyQueues()
    given_in: defaultdict[str, list[int]] = defaultdict(list)
    done: defaultdict[str, list[int]] = defaultdict(list)
    running: dict[str, tuple[KeyQueue[tuple[str, int]], list[tuple[str, int]]]] = {}
    now, serial = 0.0, 0
    for _ in range(2000):
        now += chance.random() * 0.05
        if arrivals:
            key, count = arrivals.pop()
            key_queues.add(key, [(key, serial + index) for index in range(count)])
            given_in[key] += range(serial, serial + count)
            serial += count
        if (key_queue := key_queues.claim(now)) is not None:
            key = str(key_queue.key)
            assert key not in running
            running[key] = (key_queue, key_queues.dequeue(key_queue, chance.randint(1, 3)))
        if running and chance.random() < 0.7:
            key = chance.choice(sorted(running))
            key_queue, taken = running.pop(key)
            if chance.random() < 0.3:
                key_queues.suspend(key_queue, taken, 0.02, now)
            else:
                done[key] += [number for _, number in taken]
                key_queues.release(key_queue, now)
        if not arrivals and not running and not len(key_queues):
            break
    assert done == {key: numbers for key, numbers in given_in.items() if numbers} and len(key_queues) == 0
