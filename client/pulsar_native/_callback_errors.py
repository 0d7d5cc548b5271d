"""Exceptions of an application's function that end its own work only, never that of the client.

Rule: a cancellation that a function raises is its own, such as that of a future whose result it asked for, and never
one of the task that calls it; where the task awaits a coroutine function, `cancels_task` says whose it is. Functions
whose result the client waits for are called by `result_of`, others under `except callback_errors()`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
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
