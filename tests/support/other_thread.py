"""Calls in a thread that is not the main one, where an exception of any class ends an application's function only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Own(BaseException):
    """Exception of an application's own that is no Exception."""


# What the main thread lets pass.
OWN_ERRORS = (Own, GeneratorExit, KeyboardInterrupt)


def in_other_thread(function: Callable[..., Any], *args: object) -> Any:
    """Return a function's result in another thread, or raise its exception."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()
