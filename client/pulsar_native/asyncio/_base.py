"""Common base of the asyncio API's producers, consumers, readers and table views."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from pulsar_native._not_picklable import NotPicklable
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.stats import CloseReport

F = TypeVar("F", bound=Callable[..., Any])


def returns_coroutine(method: F) -> F:
    """Mark a method as a coroutine function for those who ask: mocks, and decorators such as those of retries."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(method)
    method._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return method


class Closeable(NotPicklable, ABC):
    """Async context manager that closes on exit. Cannot be pickled."""

    # The client, where the application may drop it before this part: it ends when it is collected.
    _client: object = None

    @abstractmethod
    async def close(self, timeout: float | None = None) -> CloseReport:
        """Close the object; see the subclasses."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(AlreadyClosed):
            await self.close()
