"""The asyncio producer: many tasks share an entry and wait for their own receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pulsar_native import arguments
from pulsar_native.asyncio.part import Part
from pulsar_native.engine.loop import check_generation, generation
from pulsar_native.engine.partitioned_producer import TopicProducer
from pulsar_native.engine.producer import Full
from pulsar_native.exceptions import PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.schema import Schema


class Producer(Part):
    """Publish messages to one topic; made by `Client.create_producer`."""

    def __init__(self, inner: TopicProducer, schema: Schema[Any]) -> None:
        self._inner = inner
        self._schema = schema
        self._loop = inner.client.engine.loop
        self._generation = generation()

    def topic(self) -> str:
        """Return the topic's full name."""
        return self._inner.topic.full

    def producer_name(self) -> str:
        """Return the producer's name, given or made by the broker."""
        return self._inner.name

    def last_sequence_id(self) -> int:
        """Return the highest sequence id the broker has confirmed, -1 initially."""
        return self._inner.last_sequence_id

    def is_connected(self) -> bool:
        """Return whether the producer is connected to the broker of every partition now."""
        return self._inner.is_connected

    async def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | int | None = None,
    ) -> MessageId:
        """Publish a message and return its id once the broker has stored it.

        With batching it waits up to the publish delay for company. Cancelling the task stops the waiting, not the
        message. Errors as in the blocking face.
        """
        return await await_receipt(
            await self.enqueue(
                content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
                disable_replication, event_timestamp, deliver_at, deliver_after,
            )
        )  # fmt: skip

    async def enqueue(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Take a message for publishing and return the future of its id; waits only while a full queue blocks.

        Messages of one task keep their order, without waiting for each receipt.
        """
        check_generation(self._generation)
        message = arguments.outgoing(
            None if content is None else self._schema.encode(content),
            properties=properties,
            partition_key=partition_key,
            ordering_key=ordering_key,
            sequence_id=sequence_id,
            replication_clusters=replication_clusters,
            disable_replication=disable_replication,
            event_timestamp=event_timestamp,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
        )
        fields = arguments.encoded_fields(message)
        child = self._inner.route(message.payload, message)
        future: asyncio.Future[MessageId] = self._loop.create_future()

        def done(error: PulsarException | None, message_id: MessageId | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(message_id)  # type: ignore[arg-type]

        while True:
            full = child.enqueue(message.payload, fields, message, done)
            if full is None:
                return future
            if not self._inner.config.block_if_queue_full:
                raise full.error
            await self._room(full)

    async def _room(self, full: Full) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        full.when_room(lambda: None if future.done() else future.set_result(None))
        await future

    async def flush(self) -> None:
        """Send the open batch and return when everything sent before is confirmed; raises the last one's error."""
        check_generation(self._generation)
        futures = []
        for child in self._inner.children:
            future: asyncio.Future[None] = self._loop.create_future()

            def done(error: PulsarException | None, future: asyncio.Future[None] = future) -> None:
                if not future.done():
                    if error is not None:
                        future.set_exception(error)
                    else:
                        future.set_result(None)

            child.flush_then(done)
            futures.append(future)
        await asyncio.gather(*futures)

    async def close(self) -> None:
        """Flush and close, bounded by the operation time-out. Idempotent."""
        check_generation(self._generation)
        if not self._inner.is_closed:
            await self._inner.close()


async def await_receipt(future: asyncio.Future[MessageId]) -> MessageId:
    """Wait for a receipt without tying the message's fate to the waiting task."""
    return await asyncio.shield(future)
