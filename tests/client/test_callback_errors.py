"""Exceptions of an application's function that the client survives: in the main thread all but those that end it."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native._callback_errors import callback_errors, cancels_task, is_of_signal_handler, result_of
from pulsar_native.exceptions import CryptoError, Timeout
from support.other_thread import OWN_ERRORS, in_other_thread


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
def test_callback_errors_hold_what_is_the_functions_own(error: type[BaseException]) -> None:
    assert issubclass(error, callback_errors()) and issubclass(error, in_other_thread(callback_errors))


@pytest.mark.parametrize("error", OWN_ERRORS)
def test_callback_errors_leave_what_ends_the_caller(error: type[BaseException]) -> None:
    # In the main thread, the only one whose caller is the program.
    assert not issubclass(error, callback_errors()) and issubclass(error, in_other_thread(callback_errors))


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


async def test_cancels_task_where_its_coroutine_closes() -> None:
    found: list[bool] = []

    async def waiting() -> None:
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            found.append(cancels_task(error))
            raise

    coroutine = waiting()
    coroutine.send(None)
    # As the garbage collector does it, also where no loop runs.
    await asyncio.to_thread(coroutine.close)
    assert found == [True]


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, asyncio.CancelledError, *OWN_ERRORS])
async def test_result_of_error_becomes_failure(error: type[BaseException]) -> None:
    def fails(*args: object) -> None:
        raise error(*args)

    with pytest.raises(CryptoError, match=f"get of the vault failed with {error.__name__}") as caught:
        async with asyncio.timeout(10):
            await asyncio.to_thread(result_of, "get of the vault", CryptoError, fails, "very-secret")
    assert isinstance(caught.value.__cause__, error) and "very-secret" not in str(caught.value)


def test_result_of_keeps_pulsar_errors() -> None:
    def fails() -> None:
        raise Timeout("mine")

    with pytest.raises(Timeout, match="mine"):
        result_of("get of the vault", CryptoError, fails)
    assert result_of("get of the vault", CryptoError, lambda number: number + 1, 1) == 2


def test_result_of_coroutine_refused() -> None:
    async def get() -> bytes:
        return b""

    with pytest.raises(CryptoError, match="get of the vault must be a plain function"):
        result_of("get of the vault", CryptoError, get)


@pytest.mark.parametrize("error", OWN_ERRORS)
def test_result_of_in_main_thread_leaves_interrupts(error: type[BaseException]) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(error):
        result_of("get of the vault", CryptoError, fails)


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
def test_result_of_in_main_thread_error_becomes_failure(error: type[BaseException]) -> None:
    def fails() -> None:
        raise error("very-secret")

    with pytest.raises(CryptoError, match=f"get of the vault failed with {error.__name__}") as caught:
        result_of("get of the vault", CryptoError, fails)
    assert "very-secret" not in str(caught.value)


def _raise(_number: int, _frame: Any) -> None:
    raise ValueError


class Handler:
    def __call__(self, number: int, frame: Any) -> None:
        self.handle(number, frame)

    def handle(self, number: int, frame: Any) -> None:
        _raise(number, frame)


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(_raise, id="function"),
        pytest.param(Handler().handle, id="method"),
        pytest.param(Handler(), id="object"),
        pytest.param(functools.partial(Handler().handle), id="partial"),
    ],
)
def test_error_of_signal_handler_is_told_apart(handler: Callable[..., None]) -> None:
    def step(value: str | None) -> bool:
        try:
            if value is None:
                signal.raise_signal(signal.SIGUSR1)
            int(value or "")
        except ValueError as error:
            return is_of_signal_handler(error)
        raise AssertionError("nothing was raised")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert step(None)
        assert not step("x") and not in_other_thread(step, "x")
    finally:
        signal.signal(signal.SIGUSR1, before)
