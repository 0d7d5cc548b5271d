"""The order of hosts: random first, then in turn, bad ones left out for a while (virtual time)."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pulsar_native.protocol.hosts import HostRotation


def rotation(
    hosts: str = "abc", *, initial: float = 60, maximum: float = 86_400, first: float = 0.0
) -> HostRotation[str]:
    return HostRotation(hosts, lambda: first, quarantine_initial=initial, quarantine_maximum=maximum)


@pytest.mark.proves("C1")
def test_three_hundred_resolutions_visit_all_in_the_order_they_are_written() -> None:
    firsts = set()
    for _ in range(60):
        hosts = HostRotation("abc", random.random, quarantine_initial=60, quarantine_maximum=86_400)
        visited = [hosts.next(0.0) for _ in range(300)]
        firsts.add(visited[0])
        assert all("abc".index(after) == ("abc".index(before) + 1) % 3 for before, after in pairwise(visited))
    assert firsts == {"a", "b", "c"}


@pytest.mark.proves("C1")
def test_a_bad_host_is_left_out_for_a_time_that_doubles_up_to_the_maximum() -> None:
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
def test_with_all_hosts_bad_all_are_tried_in_turn() -> None:
    hosts = rotation(first=0.5)
    for host in "abc":
        hosts.failed(host, 0.0)
    assert [hosts.next(1.0) for _ in range(4)] == ["b", "c", "a", "b"]


def test_one_host_or_no_quarantine_means_none() -> None:
    alone = rotation("a")
    alone.failed("a", 0.0)
    assert not alone.is_quarantined("a", 0.0) and alone.next(0.0) == "a"
    off = rotation(initial=0)
    off.failed("a", 0.0)
    assert [off.next(0.0) for _ in range(3)] == ["a", "b", "c"]
    strange = rotation()
    strange.failed("nobody", 0.0)
    assert not strange.is_quarantined("nobody", 0.0)
