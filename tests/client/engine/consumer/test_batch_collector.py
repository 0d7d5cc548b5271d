"""Limits of one batch receive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native._message_fields import MessageQueue
from pulsar_native.config import BatchReceivePolicy
from pulsar_native.engine.consumer.batch_collector import BatchCollector
from pulsar_native.message import Message


class Entry:
    """As much of an entry as a message's id needs."""

    ledger_id, entry_id, partition, topic = 1, 2, 0, "persistent://public/default/t"
    redelivery_count, batch_size, is_batch, first_chunk = 0, 3, True, None


def message_of(index: int, size: int = 0) -> Message:
    return Message(Entry(), index, 0, 0, size)  # type: ignore[arg-type]


def sizes(policy: BatchReceivePolicy, lengths: list[int]) -> int:
    """Return how many messages of these lengths make a batch complete, 0 when they do not."""
    collector = BatchCollector(policy, 0.0)
    for count, length in enumerate(lengths, 1):
        if collector.add(message_of(0, length)):
            assert len(collector.messages) == count
            return count
    return 0


def test_batch_collector_complete_by_count_or_bytes() -> None:
    assert sizes(BatchReceivePolicy(max_num_messages=3), [1] * 9) == 3
    assert sizes(BatchReceivePolicy(max_num_messages=3, max_num_bytes=100), [60, 40, 1]) == 2
    assert sizes(BatchReceivePolicy(max_num_messages=3, max_num_bytes=100), [99, 0, 0]) == 3
    assert sizes(BatchReceivePolicy(max_num_messages=-1, max_num_bytes=0), [10**9] * 9) == 0


@given(
    runs=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), max_size=12),
    count=st.integers(0, 40),
    size=st.integers(0, 300),
)
def test_batch_collector_add_all_equals_add(runs: list[list[int]], count: int, size: int) -> None:
    policy = BatchReceivePolicy(max_num_messages=count or -1, max_num_bytes=size, timeout_ms=1)
    each = [length for run in runs for length in run]
    collector, complete = BatchCollector(policy, 0.0), False
    for run in runs:
        entry: Any = Entry()
        entry.body = bytes(sum(run) + 5 * len(run))
        ready = MessageQueue([Message(entry, index, 0, 0, length) for index, length in enumerate(run)])
        # As the APIs do: the first comes from the consumer, those that follow it from the prefetch buffer.
        complete = collector.add(ready.popleft()) or collector.add_all(ready)
        if complete:
            break
    assert complete is (sizes(policy, each) > 0)
    assert list(map(len, collector.messages)) == each[: sizes(policy, each) or len(each)]


def test_batch_collector_complete_at_deadline() -> None:
    assert BatchCollector(BatchReceivePolicy(timeout_ms=200), 10.0).deadline == pytest.approx(10.2)
    assert BatchCollector(BatchReceivePolicy(timeout_ms=0), 10.0).deadline is None
