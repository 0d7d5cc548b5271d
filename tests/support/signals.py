"""Signals whose handler raises an exception, as the time limit of an application does, at a place that a test names."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class TimeLimit(Exception):
    """Error of an application's own."""


@contextmanager
def time_limit() -> Iterator[Callable[..., Any]]:
    """Give a function of any arguments during whose call a signal comes, whose handler raises `TimeLimit`. In the main
    thread.
    """

    def handle(_number: int, _frame: object) -> None:
        raise TimeLimit

    def interrupted(*_arguments: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGUSR1, before)
