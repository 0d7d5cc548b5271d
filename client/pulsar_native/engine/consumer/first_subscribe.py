"""First SUBSCRIBE of a consumer, which is made while the broker works on it.

Only where the calling thread creates the consumer of one topic without partitions and reads the responses itself. Order
of events there: 1. while the lookup is under way, the request is built, with the consumer's id and name; 2. it is sent;
3. the consumer is made of these and registered at the connection, before the next frame is read; 4. the consumer awaits
the response when it attaches, as if it had sent the request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Protocol

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb


class Numbering(Protocol):
    """Source of ids: the client."""

    def next_consumer_id(self) -> int: ...
    def next_request_id(self) -> int: ...


def consumer_name(config: ConsumerConfig) -> str:
    """Return the configured name of a consumer, or a random one."""
    return config.consumer_name or f"{random.getrandbits(20):05x}"


class FirstSubscribe:
    """Request of a consumer's first attachment. Of the thread that creates the consumer."""

    __slots__ = ("_client", "answer", "connection", "consumer_id", "frame", "name", "request_id")

    def __init__(
        self, client: Numbering, config: ConsumerConfig, topic: TopicName, wire_schema: pb.Schema | None
    ) -> None:
        self._client = client
        self.consumer_id = client.next_consumer_id()
        self.request_id = client.next_request_id()
        self.name = consumer_name(config)
        self.frame = commands.subscribe(
            config,
            topic=topic.full,
            consumer_id=self.consumer_id,
            request_id=self.request_id,
            consumer_name=self.name,
            start=config.start,
            schema=wire_schema,
            epoch=0,
        )
        # None until it is sent.
        self.connection: Connection | None = None
        self.answer: asyncio.Future[Any] | None = None

    def send(self, connection: Connection, meanwhile: Callable[[], None]) -> None:
        """Send it, and call `meanwhile` while the broker works on it; do neither where the loop has to read.

        Raises what `meanwhile` raises, and `Interrupted`.
        """
        try:
            begun = connection.begin_inline_requests([self.request_id], self.frame, meanwhile=meanwhile)
        except BaseException:
            # The broker may create the consumer: it must not keep one that nobody has.
            connection.remove_consumer(self.consumer_id)
            connection.write([commands.close_consumer(self.consumer_id, self._client.next_request_id())])
            raise
        if begun is not None:
            self.connection, (self.answer,) = connection, begun

    def confirmed(self) -> Connection | None:
        """Return the connection it was sent on, if the broker has confirmed it."""
        answer = self.answer
        if answer is None or not answer.done() or answer.cancelled() or answer.exception() is not None:
            return None
        return self.connection if isinstance(answer.result(), pb.CommandSuccess) else None
