"""Exceptions of an application's function that the client survives: all but those that end the process."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_native._callback_errors import CALLBACK_ERRORS


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
def test_callback_errors_hold_what_is_the_functions_own(error: type[BaseException]) -> None:
    assert issubclass(error, CALLBACK_ERRORS)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_callback_errors_leave_what_ends_the_caller(error: type[BaseException]) -> None:
    assert not issubclass(error, CALLBACK_ERRORS)
