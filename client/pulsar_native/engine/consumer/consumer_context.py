"""Context of a partition's consumer for its helpers: identity, lock, loop, and what they may ask or have done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.loop import Engine
from pulsar_native.topic import TopicName


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """Identity, lock, loop and state of a partition's consumer. The functions are thread-safe and never block."""

    topic: TopicName
    config: ConsumerConfig
    consumer_id: int
    name: str
    engine: Engine
    lock: contextlib.AbstractContextManager[bool]
    connection: Callable[[], Connection | None]
    """Returns the connection, None while there is none."""
    is_alive: Callable[[], bool]
    """Returns True unless the consumer is closed or failed."""
    check_usable: Callable[[], None]
    """Raises when the consumer is closed or has failed."""
    call_later: Callable[[float, Callable[[], None]], None]
    """Calls a function on the loop after so many seconds, unless the consumer was closed by then."""
    note: Callable[[str, int], None]
    """Counts a rare event, when recording is on."""

    def describe(self) -> str:
        """Return a short name for logs."""
        return f"Consumer {self.name} of {self.topic} ({self.config.subscription_name})"
