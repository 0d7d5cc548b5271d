"""Exceptions of an application's function that end its own work only, never that of the client.

Rule: a cancellation that a function raises is its own, such as that of a future whose result it asked for, and never
one of the task that calls it; where the task awaits a coroutine function, `cancels_task` says whose it is. Functions
whose result the client waits for are called by `result_of`, others under `except callback_errors()`.

The handler of a signal, a time limit for instance, may raise an exception between any two steps of the main thread:
`is_of_signal_handler` tells it from one that the step itself has raised.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import threading
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from pulsar_native.exceptions import PulsarException

# Of the main thread, and of the client's own coroutines, which a GeneratorExit closes.
CALLBACK_ERRORS = (Exception, SystemExit, asyncio.CancelledError)


def callback_errors() -> tuple[type[BaseException], ...]:
    """Return what an application's function may raise in the calling thread without ending more than its own work.

    It stands in an except clause, and so costs nothing until something is raised. Ctrl-C, and time-outs raised by a
    signal, interrupt the main thread only; in any other thread nothing but the client would be ended.
    """
    return CALLBACK_ERRORS if threading.current_thread() is threading.main_thread() else (BaseException,)


def cancels_task(error: BaseException) -> bool:
    """Return True if the running task is itself cancelled, or its coroutine closed: what an awaited function raised is
    to be raised then.
    """
    if isinstance(error, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def is_of_signal_handler(error: BaseException) -> bool:
    """Return True if the handler of a signal, or what it called, has raised the exception, of whatever class: it says
    nothing of the step that it has ended, and is to be raised.
    """
    if threading.current_thread() is not threading.main_thread():
        # Handlers are called in the main thread only.
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a function, of a method, or of an object that can be called; None of what has none."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for function in (handler, vars(type(handler)).get("__call__")):
        code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


def result_of(what: str, failure: type[PulsarException], function: Callable[..., Any], *args: object) -> Any:
    """Return the result of an application's function that may block: never called on the loop.

    What it raises, but for a PulsarException, becomes `failure` with its type only, as its text may contain a secret;
    so does a coroutine, which nothing would await. `what` names the function.
    """
    try:
        answer = function(*args)
    except PulsarException:
        raise
    except callback_errors() as error:
        # In a thread of the executor a StopIteration would never end the future of `asyncio.to_thread`, a cancellation
        # would end the task that waits for it, and an exit or interrupt the loop.
        raise failure(f"{what} failed with {type(error).__name__}") from error
    if inspect.iscoroutine(answer):
        answer.close()
        raise failure(f"{what} must be a plain function, not a coroutine function: it is not awaited")
    return answer
