"""Lanes: their messages stay in order whatever fails, one worker at a time, and nobody waits for ever."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.push.key_queue import Lane, Lanes


@pytest.mark.proves("C216")
def test_a_lane_has_one_worker_at_a_time() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("a", ["1", "2"])
    lane = lanes.claim(0)
    assert lane is not None and lane.key == "a" and lanes.claim(0) is None
    lanes.add("a", ["3"])
    assert lanes.claim(0) is None
    assert lanes.take(lane, 2) == ["1", "2"]
    lanes.release(lane, 0)
    again = lanes.claim(0)
    assert again is lane and lanes.take(lane, 5) == ["3"]
    lanes.release(lane, 0)
    assert len(lanes) == 0 and lanes.claim(0) is None


def test_lanes_take_turns() -> None:
    lanes: Lanes[int] = Lanes()
    for key in "abc":
        lanes.add(key, [1, 2])
    order = []
    while (lane := lanes.claim(0)) is not None:
        lanes.take(lane, 1)
        order.append(lane.key)
        lanes.release(lane, 0)
    assert order == list("abcabc")


@pytest.mark.proves("C217")
@pytest.mark.parametrize(("asked", "rest"), [(1.0, 1.0), (0.0, 0.010), (0.009, 0.010), (31.0, 30.0), (1e9, 30.0)])
def test_a_suspended_lane_rests_within_bounds_with_its_messages_first(asked: float, rest: float) -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("a", ["1", "2", "3"])
    lane = lanes.claim(100)
    assert lane is not None
    lanes.suspend(lane, lanes.take(lane, 2), asked, 100)
    assert lane.attempts == 1 and lanes.next_wake() == 100 + rest
    lanes.add("a", ["4"])
    assert lanes.claim(100 + rest - 0.001) is None
    assert lanes.claim(100 + rest) is lane and lanes.next_wake() is None
    assert lanes.take(lane, 9) == ["1", "2", "3", "4"]


@pytest.mark.proves("C217")
def test_after_a_minute_in_a_row_a_lane_has_a_break() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("a", ["1", "2"])
    lane = lanes.claim(0)
    assert lane is not None
    lanes.take(lane, 1)
    assert not lanes.must_pause(lane, 60) and lanes.must_pause(lane, 60.1)
    lanes.release(lane, 60.1)
    assert lanes.claim(60.1) is None and lanes.next_wake() == pytest.approx(60.11)
    assert lanes.claim(60.2) is lane


@pytest.mark.proves("C217")
def test_what_is_noted_waits_for_its_commit() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("a", ["1", "2", "3"])
    for expected in ("1", "2"):
        lane = lanes.claim(0)
        assert lane is not None
        taken = lanes.take(lane, 1)
        assert taken == [expected]
        lanes.note(lane, taken)
        lanes.release(lane, 0)
    lane = lanes.claim(0)
    assert lane is not None and lanes.take(lane, 1) == ["3"]
    # The lane is empty, and stays for what is noted.
    lanes.suspend(lane, [*lanes.roll_back(lane), "3"], 0, 0)
    assert lanes.claim(1) is lane and lanes.take(lane, 9) == ["1", "2", "3"]
    lanes.note(lane, ["1", "2", "3"])
    lanes.release(lane, 1)
    assert len(lanes) == 1
    assert lanes.commit(lane) == ["1", "2", "3"] and lanes.commit(lane) == []


@pytest.mark.proves("C216", "C217")
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=25), st.integers(0, 2**16))
def test_order_is_kept_through_failures_and_nothing_is_lost(arrivals: list[tuple[str, int]], seed: int) -> None:
    chance = random.Random(seed)
    lanes: Lanes[tuple[str, int]] = Lanes()
    given_in: defaultdict[str, list[int]] = defaultdict(list)
    done: defaultdict[str, list[int]] = defaultdict(list)
    running: dict[str, tuple[Lane[tuple[str, int]], list[tuple[str, int]]]] = {}
    now, serial = 0.0, 0
    for _ in range(2000):
        now += chance.random() * 0.05
        if arrivals:
            key, count = arrivals.pop()
            lanes.add(key, [(key, serial + index) for index in range(count)])
            given_in[key] += range(serial, serial + count)
            serial += count
        if (lane := lanes.claim(now)) is not None:
            key = str(lane.key)
            assert key not in running
            running[key] = (lane, lanes.take(lane, chance.randint(1, 3)))
        if running and chance.random() < 0.7:
            key = chance.choice(sorted(running))
            lane, taken = running.pop(key)
            if chance.random() < 0.3:
                lanes.suspend(lane, taken, 0.02, now)
            else:
                done[key] += [number for _, number in taken]
                lane.attempts = 0
                lanes.release(lane, now)
        if not arrivals and not running and not len(lanes):
            break
    assert done == {key: numbers for key, numbers in given_in.items() if numbers} and len(lanes) == 0
