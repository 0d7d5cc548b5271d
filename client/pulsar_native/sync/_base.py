"""Common base of the sync API's producers, consumers, readers and table views."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from pulsar_native._not_picklable import NotPicklable
from pulsar_native.engine.loop import (
    Engine,
    generation,
)
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.stats import CloseReport


class Closeable(NotPicklable, ABC):
    """Context manager that closes on exit. Cannot be pickled."""

    def __init__(self, client: object, engine: Engine) -> None:
        # Kept, so that a client lives as long as what it created.
        self._client = client
        self._engine = engine
        self._generation = generation()

    @abstractmethod
    def close(self, timeout: float | None = None) -> CloseReport:
        """Close the object; see the subclasses."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(AlreadyClosed):
            self.close()
