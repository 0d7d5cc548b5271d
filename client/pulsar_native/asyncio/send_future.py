"""Futures of message ids: each is the callback of its message; that of `send` is a coroutine, too.

`asyncio.gather` makes a task of each coroutine, which costs more than everything else that the client does for a
message; a future it takes as it is. `create_task`, `TaskGroup` and `run_coroutine_threadsafe` in turn take coroutines
only, and `asyncio.wait` takes futures only: that of `enqueue` is nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pulsar_native.exceptions import PulsarException
from pulsar_native.message_id import MessageId


class MessageIdFuture(asyncio.Future[MessageId]):
    """Id of a message that was queued. Cancelled, the message is still sent."""

    __slots__ = ()

    def __call__(self, error: PulsarException | None, message_id: MessageId | None) -> None:
        """Set the outcome; without effect on a future that is done, since its task was cancelled."""
        if not self.done():
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(message_id)  # type: ignore[arg-type]


class SendFuture(MessageIdFuture, Coroutine[Any, Any, MessageId]):
    """Such a future as a coroutine that waits for it."""

    __slots__ = ()

    # For the texts of tasks, which name their coroutine.
    __name__ = "send"

    def send(self, _value: Any) -> Any:
        """Take a step: return the future, for a task to wait for, while it is not done."""
        return next(self.__await__())

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise an error where the future is awaited: its own, or that of a cancelled task."""
        raise kind if value is None else value

    def close(self) -> None:
        """Do nothing: the message is still sent."""
