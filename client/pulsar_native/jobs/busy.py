"""Wait for a subscription or a producer's name that an earlier try may still hold.

The broker drops the connection of a process that was killed, or whose machine is gone, only after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Limit of the wait.
BUSY_SECONDS = 30.0
_PAUSE_SECONDS = 0.5


def when_free(
    create: Callable[[], T],
    waiting: Callable[[float], object] = lambda _: None,
    goes_on: Callable[[], bool] = lambda: True,
) -> T:
    """Return what `create` returns, called again while it raises `ConsumerBusy` or `ProducerBusy`, for up to 30 s.

    Blocks. `waiting` is called once, with the limit in seconds, before the first pause; `goes_on` before each one, and
    ends the wait where it returns False. Raises the error of the last call, and those of the functions.
    """
    from pulsar_native.exceptions import ConsumerBusy, ProducerBusy

    deadline = time.monotonic() + BUSY_SECONDS
    is_first = True
    while True:
        try:
            return create()
        except (ConsumerBusy, ProducerBusy):
            if not goes_on() or time.monotonic() > deadline:
                raise
        if is_first:
            is_first = False
            waiting(BUSY_SECONDS)
        time.sleep(_PAUSE_SECONDS)
