"""Which cluster is used, by what answers: failing over, further on, and back."""

from __future__ import annotations

from pulsar_native.protocol.failover import FailoverCore


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


def test_a_primary_that_answers_is_kept_and_nobody_else_asked() -> None:
    core = FailoverCore(3, failover_threshold=1, switch_back_threshold=1)
    for _ in range(3):
        assert check(core, {0, 1, 2}) == (False, [0])
    assert core.current == 0


def test_only_failures_in_a_row_count_and_the_first_that_answers_is_used() -> None:
    core = FailoverCore(4, failover_threshold=3, switch_back_threshold=1)
    for alive in ({1}, {1}, {0}, {1}, {1}):
        assert check(core, alive)[0] is False
    assert check(core, {2, 3}) == (True, [0, 1, 2])
    assert core.current == 2


def test_with_nobody_alive_it_stays_and_looks_again() -> None:
    core = FailoverCore(3, failover_threshold=1, switch_back_threshold=1)
    for _ in range(2):
        assert check(core, set()) == (False, [0, 1, 2])
    assert check(core, {2}) == (True, [0, 1, 2])


def test_the_primary_must_answer_so_often_in_a_row_before_it_is_used_again() -> None:
    core = FailoverCore(2, failover_threshold=1, switch_back_threshold=3)
    check(core, {1})
    for alive in ({0, 1}, {0, 1}, {1}, {0, 1}, {0, 1}):
        assert check(core, alive) == (False, [1, 0])
    assert check(core, {0, 1}) == (True, [1, 0])
    assert core.current == 0


def test_a_secondary_that_dies_is_left_at_once_for_any_other_the_primary_first() -> None:
    core = FailoverCore(3, failover_threshold=1, switch_back_threshold=9)
    check(core, {1, 2})
    assert core.current == 1
    assert check(core, {2}) == (True, [1, 0, 2])
    assert check(core, {0, 1}) == (True, [2, 0])
    assert core.current == 0
