"""Interface of a partition's consumer for its parts: lock, loop, connection, identity.

`PartitionConsumer` has all of it. Parts that need more extend this interface beside their class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.client_context import ClientContext
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.loop import Engine
from pulsar_native.topic import TopicName


class ConsumerContext(Protocol):
    """Lock, loop, connection and identity of a partition's consumer."""

    engine: Engine
    config: ConsumerConfig
    topic: TopicName
    consumer_id: int
    lock: contextlib.AbstractContextManager[bool]
    connection: Connection | None

    @property
    def client(self) -> ClientContext: ...
    @property
    def is_alive(self) -> bool: ...
    def describe(self) -> str: ...
    def check_usable(self) -> None: ...
    def note(self, name: str, number: int = 1) -> None: ...
    def call_later(self, seconds: float, function: Callable[[], None]) -> None: ...
    def look_again(self) -> None: ...
