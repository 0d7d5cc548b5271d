"""Subscription of a consumer that stays: `initial_position` is that of its first connection to a cluster.

A consumer subscribes again by itself, also to a topic that was deleted and made again, to a partition that was added
and to a new topic of its pattern. At `latest` it would miss what these got before.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pulsar_native import InitialPosition
    from pulsar_native.asyncio import Client, Consumer


class Subscribe(Protocol):
    """Function that subscribes, always to the same subscription."""

    def __call__(
        self, client: Client, position: InitialPosition, /, *, start_paused: bool
    ) -> Awaitable[Consumer[Any]]: ...


class FirstSubscription:
    """Begins a subscription at `initial_position` (latest or earliest) once in each cluster. For one task at a time."""

    def __init__(self, initial_position: str) -> None:
        self._is_latest = initial_position == "latest"
        # Service URL of the cluster that the subscription was made in, or found.
        self._cluster: str | None = None

    async def consumer(self, client: Client, subscribe: Subscribe) -> Consumer[Any]:
        """Return a consumer by which the subscription begins at the first message where it is missing from now on.

        Raises what subscribing raises.
        """
        from pulsar_native import InitialPosition

        cluster = (await client.get_service_info()).service_url
        if self._is_latest and self._cluster != cluster:
            # Makes the subscription where there is none; that which is there stays as it is.
            first = await subscribe(client, InitialPosition.Latest, start_paused=True)
            await first.close()
        self._cluster = cluster
        return await subscribe(client, InitialPosition.Earliest, start_paused=False)
