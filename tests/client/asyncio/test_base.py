"""Common base of the asyncio API's objects: closed by their block, cannot be pickled."""

from __future__ import annotations

import pickle

import pytest

from pulsar_native.asyncio._base import Closeable
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.stats import CloseReport


class Part(Closeable):
    """Part of a client that counts its closings."""

    closed = 0

    async def close(self, timeout: float | None = None) -> CloseReport:
        self.closed += 1
        if self.closed > 1:
            raise AlreadyClosed("twice")
        return CloseReport()


async def test_block_closes_at_its_end() -> None:
    async with Part() as part:
        assert not part.closed
    assert part.closed == 1


async def test_block_may_close_by_itself() -> None:
    async with Part() as part:
        await part.close()
    assert part.closed == 2


async def test_block_error_is_raised_after_closing() -> None:
    part = Part()
    with pytest.raises(KeyError):
        async with part:
            raise KeyError("of the block")
    assert part.closed == 1


def test_part_is_not_picklable() -> None:
    with pytest.raises(TypeError, match="A live Part cannot be pickled"):
        pickle.dumps(Part())
