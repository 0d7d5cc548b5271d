"""Exceptions of an application's function that end its own work only, never that of the client.

Rule: a cancellation that a function raises is its own, such as that of a future whose result it asked for, and never
one of the task that calls it; where the task awaits a coroutine function, `cancels_task` says whose it is. What runs in
a thread of the executor is called by `called_in_thread` of the engine.
"""

from __future__ import annotations

import asyncio

CALLBACK_ERRORS = (Exception, SystemExit, asyncio.CancelledError)


def cancels_task(error: BaseException) -> bool:
    """Return True if the running task is itself cancelled: what an awaited function raised is to be raised then."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
