"""What live objects of the asyncio face have in common."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pulsar_native.live import Live


class Part(Live):
    async def close(self) -> None:
        """Close; see the classes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
