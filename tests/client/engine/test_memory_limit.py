"""Memory limit of pending and received bytes."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsar_native.engine.memory_limit import MemoryLimit


class LimitModel(RuleBasedStateMachine):
    """The limit against a sum; who waits is woken when there is room, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryLimit(100)
        self.taken: list[int] = []
        self.waiting = 0
        self.woken = 0

    @rule(size=st.integers(0, 150))
    def reserve(self, size: int) -> None:
        room = sum(self.taken) < 100
        assert self.memory.try_reserve(size) is room
        if room:
            self.taken.append(size)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.memory.release(self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1))))
        if sum(self.taken) < 100:
            assert self.woken == self.waiting

    @rule()
    def wait(self) -> None:
        before = self.woken

        def wake() -> None:
            self.woken += 1

        self.waiting += 1
        self.memory.wait_for_room(wake)
        assert (self.woken > before) is (sum(self.taken) < 100)

    @invariant()
    def the_sum_never_drifts(self) -> None:
        assert self.memory.used == sum(self.taken)


TestMemoryLimit = pytest.mark.proves("C21")(LimitModel.TestCase)


def test_memory_limit_one_message_may_exceed() -> None:
    memory = MemoryLimit(100)
    assert memory.try_reserve(99) and memory.try_reserve(10**9) and not memory.try_reserve(0)


def test_memory_limit_zero_is_off() -> None:
    memory = MemoryLimit(0)
    woken = []
    for _ in range(3):
        assert memory.try_reserve(10**12)
    memory.wait_for_room(lambda: woken.append(1))
    memory.release(1)
    assert (memory.used, woken) == (0, [1])


def test_memory_limit_threads() -> None:
    memory = MemoryLimit(1000)
    stop = time.monotonic() + 0.3

    def work() -> None:
        while time.monotonic() < stop:
            while not memory.try_reserve(400):
                room = threading.Event()
                memory.wait_for_room(room.set)
                assert room.wait(10)
            memory.release(400)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert memory.used == 0


@pytest.mark.proves("N4")
def test_memory_limit_received_never_blocks_last_message() -> None:
    memory, woken = MemoryLimit(100), list[str]()
    memory.receive(70)
    assert memory.try_reserve(20) and memory.try_reserve(20) and not memory.try_reserve(1)
    assert memory.is_over(1) and memory.is_over(0.95) and not memory.has_room(1)
    memory.wait_for_room(lambda: woken.append("sender"))
    memory.release_received(5)
    assert not woken
    memory.release_received(25)
    assert woken == ["sender"] and (memory.used, memory.received) == (80, 40)
    # Over the limit by what was received alone: one message may be sent, and whoever waits to send is told.
    memory.receive(100)
    assert not memory.try_reserve(1)
    memory.wait_for_room(lambda: woken.append("again"))
    memory.release(40)
    assert woken == ["sender", "again"] and memory.try_reserve(10) and not memory.try_reserve(1)


def test_memory_limit_off_counts_nothing() -> None:
    memory = MemoryLimit(0)
    memory.receive(1 << 40)
    memory.release_received(1 << 40)
    assert memory.used == 0 and memory.has_room(1 << 50) and not memory.is_over(0)


def test_reserve_ahead_small_and_below_half() -> None:
    assert MemoryLimit(0).reserve_ahead(500) == 500
    memory = MemoryLimit(256_000)
    assert memory.reserve_ahead(500) == 500
    assert memory.reserve_ahead(5000) == 1000
    assert memory.used == 1500
    memory.reserve(128_000 - 1500 - 999)
    assert memory.reserve_ahead(5000) == 0
    assert memory.used == 128_000 - 999
