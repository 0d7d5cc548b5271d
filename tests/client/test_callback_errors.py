"""Exceptions of an application's function that the client survives: all but those that end the process."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_native._callback_errors import CALLBACK_ERRORS, cancels_task


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
def test_callback_errors_hold_what_is_the_functions_own(error: type[BaseException]) -> None:
    assert issubclass(error, CALLBACK_ERRORS)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_callback_errors_leave_what_ends_the_caller(error: type[BaseException]) -> None:
    assert not issubclass(error, CALLBACK_ERRORS)


async def test_cancels_task_for_its_own_cancellation_only() -> None:
    found: list[bool] = []

    async def waiting(future: asyncio.Future[None]) -> None:
        try:
            await future
        except asyncio.CancelledError as error:
            found.append(cancels_task(error))

    for cancels_the_task in (True, False):
        future = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(waiting(future))
        await asyncio.sleep(0)
        (task if cancels_the_task else future).cancel()
        await task
    assert found == [True, False] and not cancels_task(ValueError())
