"""Limits of one batch receive."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native._message_fields import MessageQueue
from pulsar_native.config import BatchReceivePolicy
from pulsar_native.engine.consumer.batch_collector import BatchCollector, BatchFull
from pulsar_native.message import Message


class Entry:
    """As much of an entry as a message's id needs."""

    ledger_id, entry_id, partition, topic = 1, 2, 0, "persistent://public/default/t"
    redelivery_count, batch_size, is_batch, first_chunk = 0, 3, True, None


def message_of(index: int, size: int = 0) -> Message:
    return Message(Entry(), index, 0, 0, size)  # type: ignore[arg-type]


class Source:
    """Consumer with entries: it returns an entry's first message, and prefetches the others."""

    def __init__(self, entries: list[list[int]]) -> None:
        self.entries = deque(deque(message_of(0, size) for size in sizes) for sizes in entries if sizes)
        self.prefetched: MessageQueue[Message] = MessageQueue()

    def dequeue(self) -> Message | None:
        if self.prefetched:
            return self.prefetched.popleft()
        if not self.entries:
            return None
        entry = self.entries.popleft()
        self.prefetched.extend(list(entry)[1:])
        return entry[0]

    def dequeue_within(self, most: int) -> Message | Literal[False] | None:
        first = self.prefetched or (self.entries and self.entries[0])
        if first and len(first[0] if isinstance(first, deque) else message_of(0, first.first_size())) > most:
            return False
        return self.dequeue()


def batch_of(source: Source, policy: BatchReceivePolicy) -> list[int]:
    """Return the sizes of the next batch, collected as the APIs do; it ends when nothing is queued."""
    collector = BatchCollector(source, policy, 0.0, 1000)
    with contextlib.suppress(BatchFull):
        while (message := collector.dequeue()) is not None:
            if collector.add(message) or collector.add_all(source.prefetched):
                break
    return list(map(len, collector.messages))


def fitting(sizes: list[int], count: int, most: int) -> int:
    """Return how many messages the official client and Java's `Messages.canAdd` add to a batch."""
    added, size = 0, 0
    for length in sizes:
        if added and ((0 < count < added + 1) or 0 < most < size + length):
            break
        added, size = added + 1, size + length
    return added


@given(
    entries=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), max_size=12),
    count=st.integers(0, 40),
    most=st.integers(0, 100),
)
def test_batch_collector_takes_what_fits(entries: list[list[int]], count: int, most: int) -> None:
    policy = BatchReceivePolicy(max_num_messages=count or -1, max_num_bytes=most, timeout_ms=1)
    source, left = Source(entries), [length for sizes in entries for length in sizes]
    while left:
        expected = fitting(left, count, most)
        assert batch_of(source, policy) == left[:expected]
        del left[:expected]
    assert batch_of(source, policy) == []


def test_batch_collector_with_all_bytes_waits_for_nothing() -> None:
    collector = BatchCollector(Source([[6], [4]]), BatchReceivePolicy(max_num_bytes=10, timeout_ms=200), 10.0, 1000)
    for _ in range(2):
        assert collector.deadline == pytest.approx(10.2)
        message = collector.dequeue()
        assert message is not None and not collector.add(message)
    assert collector.deadline == 0
    with pytest.raises(BatchFull):
        collector.dequeue()
    assert list(map(len, collector.clear())) == [6, 4]
    assert collector.deadline == pytest.approx(10.2) and collector.dequeue() is None


def test_batch_collector_complete_at_deadline() -> None:
    source = Source([])
    assert BatchCollector(source, BatchReceivePolicy(timeout_ms=200), 10.0, 1000).deadline == pytest.approx(10.2)
    assert BatchCollector(source, BatchReceivePolicy(timeout_ms=0), 10.0, 1000).deadline is None


@pytest.mark.parametrize(("most", "size", "taken"), [(5, 3, 3), (3, 5, 3), (-1, 3, 6)])
def test_batch_collector_takes_what_the_queue_holds(most: int, size: int, taken: int) -> None:
    source = Source([[1]] * 6)
    collector = BatchCollector(source, BatchReceivePolicy(max_num_messages=most), 0.0, size)
    while (message := collector.dequeue()) is not None and not collector.add(message):
        pass
    assert len(collector.messages) == taken
