"""Host rotation with quarantine, and cluster failover, in virtual time."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pulsar_native.protocol.service_resolver import FailoverCore, HostRotation


def rotation(
    hosts: str = "abc", *, initial: float = 60, maximum: float = 86_400, first: float = 0.0
) -> HostRotation[str]:
    return HostRotation(hosts, lambda: first, quarantine_initial=initial, quarantine_maximum=maximum)


@pytest.mark.proves("C1")
def test_hosts_in_turn_300_times() -> None:
    firsts = set()
    for _ in range(60):
        hosts = HostRotation("abc", random.random, quarantine_initial=60, quarantine_maximum=86_400)
        visited = [hosts.next(0.0) for _ in range(300)]
        firsts.add(visited[0])
        assert all("abc".index(after) == ("abc".index(before) + 1) % 3 for before, after in pairwise(visited))
    assert firsts == {"a", "b", "c"}


@pytest.mark.proves("C1")
def test_host_quarantine_doubles_to_maximum() -> None:
    hosts = rotation(initial=60, maximum=200)
    now = 0.0
    for lasts in (60, 120, 200, 200):
        hosts.failed("b", now)
        hosts.failed("b", now + 1)  # several attempts share one outage
        assert {hosts.next(now + lasts - 0.1) for _ in range(9)} == {"a", "c"}
        now += lasts
        assert {hosts.next(now) for _ in range(3)} == {"a", "b", "c"}
    hosts.failed("b", now)
    hosts.succeeded("b")
    assert {hosts.next(now) for _ in range(3)} == {"a", "b", "c"}
    hosts.failed("b", now)
    assert "b" not in {hosts.next(now + 59) for _ in range(9)} and "b" in {hosts.next(now + 60) for _ in range(3)}


@pytest.mark.proves("C1")
def test_hosts_all_quarantined_tried_in_turn() -> None:
    hosts = rotation(first=0.5)
    for host in "abc":
        hosts.failed(host, 0.0)
    assert [hosts.next(1.0) for _ in range(4)] == ["b", "c", "a", "b"]


def test_hosts_in_order_quarantined_last() -> None:
    hosts = rotation()
    hosts.failed("a", 0.0)
    assert hosts.in_order(59.9) == ["b", "c", "a"] and hosts.in_order(60.0) == ["a", "b", "c"]
    for host in "bac":
        hosts.failed(host, 60.0)
    assert hosts.in_order(61.0) == ["a", "b", "c"]


def test_host_quarantine_off_or_single() -> None:
    alone = rotation("a")
    alone.failed("a", 0.0)
    assert not alone.is_quarantined("a", 0.0) and alone.next(0.0) == "a"
    off = rotation(initial=0)
    off.failed("a", 0.0)
    assert [off.next(0.0) for _ in range(3)] == ["a", "b", "c"]
    strange = rotation()
    strange.failed("nobody", 0.0)
    assert not strange.is_quarantined("nobody", 0.0)


def check(core: FailoverCore, alive: set[int]) -> tuple[bool, list[int]]:
    """Go through one check and return whether the cluster changed, and who was probed."""
    asked: list[int] = []
    step = core.check()
    try:
        target = next(step)
        while True:
            asked.append(target)
            target = step.send(target in alive)
    except StopIteration as done:
        return done.value, asked


def test_failover_healthy_primary_kept() -> None:
    core = FailoverCore(3, failover_threshold=1, switch_back_threshold=1)
    for _ in range(3):
        assert check(core, {0, 1, 2}) == (False, [0])
    assert core.current == 0


def test_failover_after_consecutive_failures() -> None:
    core = FailoverCore(4, failover_threshold=3, switch_back_threshold=1)
    for alive in ({1}, {1}, {0}, {1}, {1}):
        assert check(core, alive)[0] is False
    assert check(core, {2, 3}) == (True, [0, 1, 2])
    assert core.current == 2


def test_failover_all_dead_stays() -> None:
    core = FailoverCore(3, failover_threshold=1, switch_back_threshold=1)
    for _ in range(2):
        assert check(core, set()) == (False, [0, 1, 2])
    assert check(core, {2}) == (True, [0, 1, 2])


def test_failover_back_after_consecutive_successes() -> None:
    core = FailoverCore(2, failover_threshold=1, switch_back_threshold=3)
    check(core, {1})
    for alive in ({0, 1}, {0, 1}, {1}, {0, 1}, {0, 1}):
        assert check(core, alive) == (False, [1, 0])
    assert check(core, {0, 1}) == (True, [1, 0])
    assert core.current == 0


def test_failover_dead_secondary_primary_first() -> None:
    core = FailoverCore(3, failover_threshold=1, switch_back_threshold=9)
    check(core, {1, 2})
    assert core.current == 1
    assert check(core, {2}) == (True, [1, 0, 2])
    assert check(core, {0, 1}) == (True, [2, 0])
    assert core.current == 0
