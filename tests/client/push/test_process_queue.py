"""Process queue: counts, span, and an offset that never passes an unfinished message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.push.process_queue import Ascending, ProcessQueue, Taken


def filled(count: int, size: int = 10) -> tuple[ProcessQueue[int], list[Taken[int]]]:
    queue: ProcessQueue[int] = ProcessQueue()
    return queue, [queue.put(100 + number, size) for number in range(count)]


@pytest.mark.proves("C215")
def test_done_up_to_before_oldest_unfinished() -> None:
    queue, items = filled(5)
    assert queue.done_up_to is None and queue.oldest() is items[0]
    queue.finish(items[1:3])
    assert queue.done_up_to is None
    queue.finish([items[0]])
    assert queue.done_up_to == 102 and queue.oldest() is items[3]
    queue.finish(items[3:])
    assert queue.done_up_to == 104 and queue.oldest() is None and (len(queue), queue.bytes, queue.span) == (0, 0, 0)


@pytest.mark.proves("C212", "C215")
def test_skip_advances_offset_in_order() -> None:
    queue: ProcessQueue[int] = ProcessQueue()
    queue.begin_at(7)
    assert queue.done_up_to == 7
    item = queue.put(8, 1)
    queue.skip(9)
    queue.skip(10)
    assert queue.done_up_to == 7
    queue.finish([item])
    assert queue.done_up_to == 10


@pytest.mark.proves("C215")
def test_kept_offset_passes_nothing_added_later() -> None:
    queue, items = filled(2)
    assert queue.keep_offset()
    later = queue.put(102, 10)
    queue.skip(103)
    assert queue.done_up_to is None
    queue.finish(items[1:])
    assert queue.done_up_to is None
    queue.finish([items[0]])
    # Before the later one is done, and after it.
    assert queue.done_up_to == 101
    # The first time counts.
    assert not queue.keep_offset()
    queue.finish([later])
    assert queue.done_up_to == 101 and queue.oldest() is None
    queue.begin_at(104)
    assert queue.done_up_to == 104


def test_offset_kept_before_any_message() -> None:
    queue, _ = filled(0)
    assert queue.keep_offset()
    queue.finish([queue.put(1, 10)])
    assert queue.done_up_to is None


@pytest.mark.proves("C204")
def test_span_oldest_unfinished_to_newest() -> None:
    queue, items = filled(4)
    assert queue.span == 3 and queue.newest == 3
    queue.finish(items[1:])
    assert queue.span == 3
    queue.put(5, 1)
    assert queue.span == 4
    queue.finish([items[0]])
    assert queue.span == 0


def test_finish_twice_counts_once() -> None:
    queue, items = filled(2)
    assert queue.finish(items) == items and queue.finish(items) == [] and not queue.holds(items[0])


@pytest.mark.proves("C222")
def test_stuck_oldest_limited() -> None:
    queue, items = filled(6)
    for number, item in enumerate(items[:5]):
        item.started = float(number)
    assert queue.stuck(3.0, 16) == items[:3]
    assert queue.stuck(3.0, 2) == items[:2]
    items[0].is_going_back = True
    queue.finish([items[1]])
    assert queue.stuck(3.0, 16) == [items[2]] and queue.stuck(100.0, 16) == items[2:5]


def test_drop_waiting_not_started() -> None:
    queue, items = filled(4)
    items[1].started = 1.0
    assert queue.drop_waiting() == [items[0], items[2], items[3]]
    assert len(queue) == 1 and queue.holds(items[1]) and queue.bytes == 10
    assert queue.put(9, 5).number == 4
    assert len(queue.clear()) == 2 and (len(queue), queue.bytes) == (0, 0)


@pytest.mark.proves("C215")
@given(st.lists(st.tuples(st.sampled_from(["put", "skip", "finish"]), st.integers(0, 50)), max_size=80))
def test_process_queue_against_model(steps: list[tuple[str, int]]) -> None:
    queue: ProcessQueue[int] = ProcessQueue()
    # Every position seen, whether it is done, and the items that are not.
    seen: list[bool] = []
    open_items: dict[int, Taken[int]] = {}
    for what, number in steps:
        if what == "put":
            open_items[len(seen)] = queue.put(len(seen), number)
            seen.append(False)
        elif what == "skip":
            queue.skip(len(seen))
            seen.append(True)
        elif open_items:
            position = sorted(open_items)[number % len(open_items)]
            queue.finish([open_items.pop(position)])
            seen[position] = True
        first_open = min(open_items, default=len(seen))
        assert queue.done_up_to == (first_open - 1 if first_open else None)
        assert len(queue) == len(open_items)
        assert queue.bytes == sum(item.size for item in open_items.values())
        oldest = queue.oldest()
        assert (None if oldest is None else oldest.position) == min(open_items, default=None)


@pytest.mark.proves("C211")
def test_ascending_reports_backward_position() -> None:
    watch = Ascending()
    assert watch.goes_back((1, 5, -1)) is None
    assert watch.goes_back((1, 5, -1)) is None
    assert watch.goes_back((2, 0, -1)) is None
    assert watch.goes_back((1, 9, -1)) == (2, 0, -1)
    assert watch.goes_back((1, 10, -1)) is None


def test_renew_former_try_not_held() -> None:
    queue, items = filled(3)
    items[1].started, items[1].is_going_back, items[1].tries = 1.0, True, 2
    again = queue.renew(items[1])
    assert (again.started, again.is_going_back, again.tries, again.before) == (None, False, 2, 100)
    assert queue.holds(again) and not queue.holds(items[1]) and queue.finish([items[1]]) == []
    # In its place: the oldest first.
    again.started = items[2].started = 1.0
    assert queue.stuck(2.0, 1) == [again] and queue.finish([again]) == [again] and queue.bytes == 20
