"""Flow control of a push consumer: exact limits, reasons, and log lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.push.flow_control import FlowControl, Limits, Reason
from pulsar_native.push.process_queue import ProcessQueue

MIB = 1024 * 1024


def queue_of(*sizes: int) -> ProcessQueue[int]:
    queue: ProcessQueue[int] = ProcessQueue()
    for number, size in enumerate(sizes):
        queue.put(number, size)
    return queue


def flow(count: int = 1000, mebibytes: int = 100, span: int | None = 2000) -> FlowControl:
    return FlowControl(Limits(count, mebibytes, span))


@pytest.mark.proves("C201")
def test_flow_control_message_count() -> None:
    control = flow(count=3)
    assert control.check(queue_of(1, 1, 1)) is None
    stopped = control.check(queue_of(1, 1, 1, 1))
    assert stopped is not None and (stopped.reason, stopped.times) == (Reason.COUNT, 1)


@pytest.mark.proves("C203")
def test_flow_control_size_in_whole_mib() -> None:
    control = flow(mebibytes=2)
    assert control.check(queue_of(3 * MIB - 1)) is None
    stopped = control.check(queue_of(3 * MIB))
    assert stopped is not None and stopped.reason is Reason.SIZE and stopped.text is not None
    assert "3 MiB are over 2 MiB" in stopped.text


@pytest.mark.proves("C204")
def test_flow_control_span_concurrent_only() -> None:
    queue = queue_of(*[1] * 2002)
    done = [item for number in range(1, 2002) if (item := queue._items[number])]
    queue.finish(done)
    stopped = flow().check(queue)
    assert len(queue) == 1 and stopped is not None and stopped.reason is Reason.SPAN
    assert flow(span=None).check(queue) is None and flow(span=2001).check(queue) is None


@pytest.mark.proves("C201", "C202")
def test_flow_control_logs_first_and_every_1000th() -> None:
    control, full, large = flow(count=1, mebibytes=1), queue_of(1, 1), queue_of(2 * MIB)
    texts = [stopped.text for _ in range(2001) if (stopped := control.check(full))]
    assert [number for number, text in enumerate(texts) if text] == [0, 1000, 2000]
    other = control.check(large)
    assert other is not None and other.text is not None and other.times == 1
    assert control.times == {Reason.COUNT: 2001, Reason.SIZE: 1, Reason.SPAN: 0, Reason.MEMORY: 0}


@pytest.mark.proves("N4")
def test_flow_control_memory_keeps_one_message() -> None:
    control = flow(count=3)
    assert control.check(queue_of(), memory_is_full=True) is None
    stopped = control.check(queue_of(1), memory_is_full=True)
    assert stopped is not None and stopped.reason is Reason.MEMORY and "memory_limit_bytes" in (stopped.text or "")
    # Each limit holds for itself, under that one.
    over = control.check(queue_of(1, 1, 1, 1), memory_is_full=True)
    assert over is not None and over.reason is Reason.COUNT


@pytest.mark.proves("C202")
def test_flow_control_text_has_numbers() -> None:
    queue = queue_of(*[MIB // 2] * 5)
    queue.finish([queue._items[0]])
    stopped = flow(count=2).check(queue)
    assert stopped is not None
    assert stopped.text == (
        "poller stops: 4 unfinished messages are over 2 (unfinished 4, 2.0 MiB, numbers 1 to 4, span 3, time 1)"
    )


@pytest.mark.proves("C205")
@given(st.integers(1, 5000), st.integers(1, 64))
def test_limits_of_topic_divided_by_partitions(topic: int, partitions: int) -> None:
    limits = Limits.of(queue=7, queue_size=8, topic=topic, topic_size=topic, span=5, partitions=partitions)
    assert limits.count == limits.mebibytes == max(1, topic // partitions) and limits.span == 5
    assert Limits.of(queue=7, queue_size=8, topic=-1, topic_size=-1, span=5, partitions=partitions) == Limits(7, 8, 5)


@pytest.mark.proves("C205")
def test_limits_shrink_with_more_partitions() -> None:
    def of(partitions: int) -> Limits:
        return Limits.of(queue=1, queue_size=1, topic=100, topic_size=10, span=None, partitions=partitions)

    assert (of(2).count, of(2).mebibytes) == (50, 5) and (of(4).count, of(4).mebibytes) == (25, 2)
