"""Topics for tests of the operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_native import AdminClient
from support.brokers import NewTopic


@pytest.fixture
def once(namespace: Callable[[], str], admin: AdminClient, topic: NewTopic) -> Callable[..., str]:
    """Give a factory of topics in a namespace with deduplication."""
    name = namespace()
    admin.set_deduplication(name, True)

    def create(partitions: int = 0) -> str:
        return topic(partitions=partitions, namespace=name)

    return create
