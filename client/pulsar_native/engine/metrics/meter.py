"""Protocols of the recorder of connections and lookups, as the network layer sees it; None means no recorder."""

from __future__ import annotations

from typing import Protocol


class Attempt(Protocol):
    """Recorder of one connection, from its first packet to its end."""

    def opened(self) -> None: ...
    def failed(self, error: Exception) -> None: ...
    def closed(self) -> None: ...


class NetworkMeter(Protocol):
    """Recorder of connections and lookups. Called on the loop."""

    def attempt(self) -> Attempt: ...
    def looked_up(self, kind: str, transport: str, seconds: float, *, failed: bool) -> None: ...
