"""First subscription: at the latest message once in each cluster, at the first one where it is missing later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_native import InitialPosition
from pulsar_native.jobs.first_subscription import FirstSubscription

EARLIEST, LATEST = InitialPosition.Earliest, InitialPosition.Latest


class Cluster:
    """Client of a cluster that records how it was subscribed to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[tuple[InitialPosition, bool] | str] = []

    async def get_service_info(self) -> Any:
        return SimpleNamespace(service_url=self.url)

    async def close(self) -> None:
        self.seen.append("closed")


async def subscribe(client: Any, position: InitialPosition, *, start_paused: bool) -> Any:
    client.seen.append((position, start_paused))
    return client


@pytest.mark.parametrize("position", ["latest", "earliest"])
async def test_first_subscription_begins_once_in_each_cluster(position: str) -> None:
    one, other = Cluster("pulsar://one"), Cluster("pulsar://other")
    first = FirstSubscription(position)
    clients: list[Any] = [one, one, other, one]
    for client in clients:
        assert await first.consumer(client, subscribe) is client
    begins: list[Any] = [(LATEST, True), "closed"] if position == "latest" else []
    stays: list[Any] = [(EARLIEST, False)]
    assert one.seen == [*begins, *stays, *stays, *begins, *stays]
    assert other.seen == [*begins, *stays]


async def test_first_subscription_that_fails_begins_again() -> None:
    cluster: Any = Cluster("pulsar://one")
    first = FirstSubscription("latest")

    async def refused(_client: Any, _position: InitialPosition, *, start_paused: bool) -> Any:
        raise ConnectionError(f"refused, {start_paused=}")

    with pytest.raises(ConnectionError, match="start_paused=True"):
        await first.consumer(cluster, refused)
    await first.consumer(cluster, subscribe)
    assert cluster.seen == [(LATEST, True), "closed", (EARLIEST, False)]
