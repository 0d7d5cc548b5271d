"""Permits: returned at half the queue, one at a time without a queue, and scaled within the memory limit."""

from __future__ import annotations

import pytest

from pulsar_native.engine.memory_limit import MemoryLimit
from pulsar_native.protocol.entry_decoder import Delivery
from pulsar_native.protocol.permits import AutoScaledPermits, Permits
from support.consumer_cores import command


def permits(size: int) -> tuple[Permits, list[int]]:
    granted: list[int] = []
    made = Permits(size, granted.append)
    made.begin()
    return made, granted


@pytest.mark.parametrize(("size", "first"), [(1, 1), (2, 1), (3, 1), (10, 5), (11, 5)])
def test_permits_returned_at_half_queue_never_zero(size: int, first: int) -> None:
    made, granted = permits(size)
    for _ in range(first - 1):
        made.count(1)
    assert granted == [size] and made.outstanding() == size - first + 1
    made.count(1)
    assert granted == [size, first] and made.outstanding() == size


def test_permits_wait_for_connection_pause_and_rewind() -> None:
    made, granted = permits(2)
    for reason, end in (("is_paused", made.resume), ("is_withheld", made.resume_rewound)):
        setattr(made, reason, True)
        made.count(3)
        assert granted == [2]
        made.to_return = 1
        end()
        assert granted.pop() == 1 and made.to_return == 0
    made.is_attached = False
    made.count(5)
    assert granted == [2] and made.to_return == 5
    # The next attachment begins anew.
    made.begin()
    assert granted == [2, 2] and made.to_return == 0


def test_permits_on_demand_granted_to_waiting_receiver() -> None:
    made, granted = permits(0)
    assert granted == []
    made.on_receive_wait(is_empty=False)
    assert granted == []
    made.on_receive_wait(is_empty=True)
    made.on_receive_wait(is_empty=True)
    assert granted == [1]
    # A batch of three cost three.
    made.count(3)
    made.is_paused = True
    made.on_receive_wait(is_empty=True)
    assert granted == [1]
    made.is_paused = False
    made.on_receive_wait(is_empty=True)
    assert granted == [1, 3]


def scaled(limit: int, most: int = 8) -> tuple[AutoScaledPermits, MemoryLimit, list[int]]:
    granted: list[int] = []
    memory = MemoryLimit(limit)
    made = AutoScaledPermits(most, granted.append, memory, lambda: not memory.received)
    made.begin()
    return made, memory, granted


def passed(made: AutoScaledPermits, count: int, size: int = 10) -> None:
    delivery = Delivery(command(0), bytes(size), 1)
    for _ in range(count):
        made.on_queued(delivery)
    for _ in range(count):
        made.on_removed(delivery)
        made.on_decoded(1)
        made.count(1)


def sizes_when_emptied(made: AutoScaledPermits, times: int) -> list[int]:
    """Empty the queue and find it empty some times; return its size before each."""
    sizes = []
    for _ in range(times):
        sizes.append(made.size)
        passed(made, made.size)
        made.on_receive_wait(is_empty=True)
    return sizes


def test_scaled_grows_eightfold_when_emptied_and_room() -> None:
    made, memory, granted = scaled(10_000, most=100)
    sizes = sizes_when_emptied(made, 5)
    assert sizes == [1, 2, 16, 100, 100] and memory.used == 0
    assert sum(granted) + made.to_return == 1 + sum(sizes) + 99
    # Not emptied at once: no reason to grow.
    slow, _, _ = scaled(1000)
    passed(slow, 1)
    slow.on_receive_wait(is_empty=False)
    assert slow.size == 1


def pass_entry(made: AutoScaledPermits, messages: int, size: int) -> None:
    delivery = Delivery(command(0), bytes(size), 1)
    made.on_queued(delivery)
    made.on_removed(delivery)
    made.on_decoded(messages)
    made.count(messages)


def test_scaled_doubles_where_eight_times_has_no_room() -> None:
    # As many as 70 messages of 10 bytes fit.
    made, memory, _ = scaled(700, most=100)
    assert sizes_when_emptied(made, 7) == [1, 2, 16, 32, 64, 64, 64] and memory.used == 0


@pytest.mark.parametrize(("limit", "first", "second"), [(100_000, 80, 640), (700, 20, 40)])
def test_scaled_grows_by_entries_at_once(limit: int, first: int, second: int) -> None:
    made, _, granted = scaled(limit, most=1000)
    pass_entry(made, 10, 100)
    made.on_receive_wait(is_empty=True)
    # The broker has sent 10 for one permit, and may send eight or two such entries now.
    assert made.size == first and sum(granted) == 1 + 10 + first - 1
    for _ in range(first // 10):
        pass_entry(made, 10, 100)
    made.on_receive_wait(is_empty=True)
    assert made.size == second


def test_scaled_doubles_when_two_entries_have_no_room() -> None:
    made, _, _ = scaled(1000, most=64)
    # Two such entries are 1,200 bytes.
    pass_entry(made, 10, 600)
    made.on_receive_wait(is_empty=True)
    assert made.size == 2
    pass_entry(made, 1, 600)
    pass_entry(made, 1, 600)
    made.on_receive_wait(is_empty=True)
    assert made.size == 2


def test_scaled_halves_when_memory_is_tight() -> None:
    made, memory, granted = scaled(1000)
    sizes_when_emptied(made, 3)
    assert made.size == 8
    memory.reserve(960)
    made.count(4)
    # Half as many are wanted now, which is what is out: nothing to grant.
    assert made.size == 4 and made.outstanding() == 4
    memory.reserve(100)
    before = len(granted)
    made.count(3)
    assert len(granted) == before
    made.count(1)
    assert granted[before:] == [1] and made.size == 1
