"""Topics for tests of the operators."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pulsar_native import AdminClient
from support.brokers import NewTopic


@pytest.fixture
def once(namespace: Callable[[], str], admin: AdminClient, topic: NewTopic) -> Callable[..., str]:
    """Give a factory of topics in a namespace with deduplication."""
    name = namespace()
    admin.set_deduplication(name, True)
    probe = f"persistent://{name}/probe"
    admin.create_topic(probe)
    deadline = time.monotonic() + 20
    # A broker that is busy may not know the policy yet when the first topic is loaded.
    while admin.stats(probe)["deduplicationStatus"] != "Enabled":
        assert time.monotonic() < deadline
        time.sleep(0.02)

    def create(partitions: int = 0) -> str:
        return topic(partitions=partitions, namespace=name)

    return create
