"""Futures of message ids: each is the callback of its message; that of `send` is a coroutine, too.

`asyncio.gather` makes a task of each coroutine, which costs more than everything else that the client does for a
message; a future it takes as it is. `create_task`, `TaskGroup` and `run_coroutine_threadsafe` in turn take coroutines
only, and `asyncio.wait` takes futures only, also those that `ensure_future` was given as coroutines. So the future of
`send` is both until it is used as the one or the other.
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


class SendCoroutine(MessageIdFuture, Coroutine[Any, Any, MessageId]):
    """The same as a coroutine that waits for it."""

    __slots__ = ()

    # For the texts of tasks, which name their coroutine.
    __name__ = "send"

    def send(self, value: Any) -> Any:
        """Take a step: return the future, for a task to wait for, while it is not done."""
        return next(self.__await__())

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise an error where the future is awaited: its own, or that of a cancelled task."""
        raise kind if value is None else value

    def close(self) -> None:
        """Do nothing: the message is still sent."""


class SendFuture(SendCoroutine):
    """Future that is looked at as one, and then no coroutine any more, or takes a step as a coroutine and remains one.

    A future is looked at by `gather`, `ensure_future`, and a task that waits for it.
    """

    __slots__ = ()

    def send(self, value: Any) -> Any:
        """Take the first step, and remain a coroutine."""
        self.__class__ = SendCoroutine  # type: ignore[assignment]
        return self.send(value)

    @property
    def _asyncio_future_blocking(self) -> bool:
        """By this attribute `asyncio.isfuture` knows a future, and a task what it is to wait for."""
        self.__class__ = MessageIdFuture  # type: ignore[assignment]
        return self._asyncio_future_blocking

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, value: bool) -> None:
        self.__class__ = MessageIdFuture  # type: ignore[assignment]
        self._asyncio_future_blocking = value
