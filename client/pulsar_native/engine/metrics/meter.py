"""What measures a client's connections and lookups, as far as the network knows of it; None stands for nobody."""

from __future__ import annotations

from typing import Protocol


class Attempt(Protocol):
    """Be told of one connection, from its first packet to its end."""

    def opened(self) -> None: ...
    def failed(self, error: Exception) -> None: ...
    def closed(self) -> None: ...


class NetworkMeter(Protocol):
    """Measure connections and lookups. Called on the loop."""

    def attempt(self) -> Attempt: ...
    def looked_up(self, kind: str, transport: str, seconds: float, *, failed: bool) -> None: ...
