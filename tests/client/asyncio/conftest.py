"""A client of the asyncio API on the test's own loop, connected to the fake broker and closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from pulsar_native.asyncio import Client
from support.fake_broker import FakeBroker


@pytest_asyncio.fixture
async def client(fake: FakeBroker) -> AsyncIterator[Client]:
    """Give a client of the fake broker."""
    async with Client(fake.url, operation_timeout_seconds=5) as made:
        yield made
