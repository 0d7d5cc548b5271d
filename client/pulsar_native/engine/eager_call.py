"""Eager start of a coroutine: its first steps in the calling thread, the others on the loop.

A coroutine that never has to wait, since every response it asks for is read by the calling thread itself, costs no
switch of threads this way. Rules: what runs before the first wait must be thread-safe; the loop takes the other steps,
by awaiting the `EagerCall`. The coroutine itself asks for the loop with `Engine.enter_loop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@types.coroutine
def leave_thread() -> Generator[None, None, None]:
    """Suspend a coroutine: who drives it in the calling thread passes it to the loop."""
    yield


class EagerCall(Generic[T]):
    """Coroutine that has been started by the calling thread. Awaited at most once."""

    __slots__ = ("_coroutine", "_error", "_result", "_waits_for", "is_done")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Run the coroutine up to its first wait. Ctrl-C is raised at once, other errors by `result`."""
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._result: T
        self._error: Exception | None = None
        self.is_done = True
        try:
            self._waits_for = coroutine.send(None)
            self.is_done = False
        except StopIteration as end:
            self._result = end.value
        except Exception as error:
            self._error = error

    def has_raised(self, kind: type[Exception]) -> bool:
        """Return True if the coroutine is done and has raised such an error, which `result` has not raised yet."""
        return isinstance(self._error, kind)

    def result(self) -> T:
        """Return the result of a coroutine that is done, or raise its error."""
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            # The error refers to this frame, which would refer to it.
            del error

    def close(self) -> None:
        """End a coroutine that is not done, as a cancelled task ends."""
        with contextlib.suppress(StopIteration, asyncio.CancelledError, Exception):
            self._coroutine.throw(asyncio.CancelledError())
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        """Take the other steps, as part of a task of the loop."""
        if self.is_done:
            return self.result()
        waits_for = self._waits_for
        while waits_for is not None:
            try:
                yield waits_for
                break
            except BaseException as error:
                try:
                    waits_for = self._coroutine.throw(error)
                except StopIteration as end:
                    result: T = end.value
                    return result
        return (yield from self._coroutine.__await__())
