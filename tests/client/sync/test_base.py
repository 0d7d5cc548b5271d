"""Common base of the sync API's objects: closed by their block, keep their client, cannot be pickled."""

from __future__ import annotations

import pickle

import pytest

from pulsar_native.engine.loop import acquire_thread_engine, release_thread_engine
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.stats import CloseReport
from pulsar_native.sync._base import Closeable


class Part(Closeable):
    """Part of a client that counts its closings."""

    closed = 0

    def close(self, timeout: float | None = None) -> CloseReport:
        self.closed += 1
        if self.closed > 1:
            raise AlreadyClosed("twice")
        return CloseReport()

    def _described(self) -> str:
        return "the part"


@pytest.fixture
def part() -> Part:
    """Give a part of a client that is a string."""
    engine = acquire_thread_engine()
    release_thread_engine(engine.generation, 10)
    return Part("the client", engine)


def test_block_closes_at_its_end(part: Part) -> None:
    with part as entered:
        assert entered is part and not part.closed
    assert part.closed == 1


def test_block_may_close_by_itself(part: Part) -> None:
    with part:
        part.close()
    assert part.closed == 2


def test_block_error_is_raised_after_closing(part: Part) -> None:
    with pytest.raises(KeyError), part:
        raise KeyError("of the block")
    assert part.closed == 1


def test_part_keeps_its_client_and_is_not_picklable(part: Part) -> None:
    assert part._client == "the client"
    with pytest.raises(TypeError, match="A live Part cannot be pickled"):
        pickle.dumps(part)
