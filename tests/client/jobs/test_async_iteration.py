"""Asynchronous results for a caller without asyncio: values, errors, and loops that are closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pulsar_native.jobs.async_iteration import completed, is_asynchronous, resolved
from pulsar_native.jobs.failures import JobRefused


class Loops:
    """Loops that coroutines ran on."""

    def __init__(self) -> None:
        self.seen: list[asyncio.AbstractEventLoop] = []

    async def numbers(self, count: int, ended: list[int] | None = None) -> AsyncIterator[int]:
        try:
            for number in range(count):
                self.seen.append(asyncio.get_running_loop())
                await asyncio.sleep(0)
                yield number
        finally:
            if ended is not None:
                ended.append(count)


@pytest.fixture
def loops() -> Loops:
    return Loops()


def test_is_asynchronous_by_interface(loops: Loops) -> None:
    async def one() -> int:
        return 1

    made = one()
    assert is_asynchronous(made) and is_asynchronous(loops.numbers(1))
    made.close()
    assert not any(map(is_asynchronous, ([1], iter([1]), "text", None, one)))


def test_resolved_value_closes_its_loop(loops: Loops) -> None:
    async def one() -> int:
        loops.seen.append(asyncio.get_running_loop())
        return 1

    assert resolved(one()) == 1
    assert loops.seen[0].is_closed()
    assert resolved([1]) == [1]


def test_completed_refuses_what_has_not_run(loops: Loops) -> None:
    ran_on: list[asyncio.AbstractEventLoop] = []

    async def later(result: object) -> object:
        ran_on.append(asyncio.get_running_loop())
        return result

    assert [completed(1, "f"), completed(later(2), "f"), completed([3], "f")] == [1, 2, [3]]
    for unrun in ((number for number in [1]), loops.numbers(1), later(loops.numbers(1))):
        with pytest.raises(JobRefused, match=r"f is a generator function, .*: return instead of yield"):
            completed(unrun, "f")
    assert loops.seen == []
    assert len(ran_on) == 2 and all(loop.is_closed() for loop in ran_on)


def test_resolved_iterator_uses_one_loop(loops: Loops) -> None:
    assert list(resolved(loops.numbers(5))) == [0, 1, 2, 3, 4]
    assert len(loops.seen) == 5 and len(set(loops.seen)) == 1 and loops.seen[0].is_closed()


def test_resolved_awaitable_of_iterator_keeps_loop(loops: Loops) -> None:
    async def made() -> AsyncIterator[int]:
        loops.seen.append(asyncio.get_running_loop())
        return loops.numbers(2)

    assert list(resolved(made())) == [0, 1]
    assert len(set(loops.seen)) == 1 and loops.seen[0].is_closed()


def test_resolved_iterator_closed_early_ends_generator(loops: Loops) -> None:
    ended: list[int] = []
    items = resolved(loops.numbers(3, ended))
    assert next(items) == 0 and ended == []
    items.close()
    assert ended == [3] and loops.seen[0].is_closed()


def test_resolved_error_closes_the_loop(loops: Loops) -> None:
    async def failing() -> int:
        loops.seen.append(asyncio.get_running_loop())
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        resolved(failing())
    assert loops.seen[0].is_closed()


def test_resolved_cancels_tasks_left_behind(loops: Loops) -> None:
    tasks: list[asyncio.Task[object]] = []

    async def leaving() -> int:
        tasks.append(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)
        return 1

    assert resolved(leaving()) == 1
    assert tasks[0].cancelled()


def test_resolved_iterator_without_aclose_ends(loops: Loops) -> None:
    class Plain:
        def __init__(self) -> None:
            self.left = [2, 1]

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> int:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    assert list(resolved(Plain())) == [1, 2]
