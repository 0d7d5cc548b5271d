"""Close and unsubscribe of a consumer. On the loop.

Rules: pending acknowledgements and dead letters are sent first, within the time limit; then CONSUMER_STATS and the
close are sent without a pause in between. If any of that fails, the consumer is closed afterwards, except for a
rejected unsubscribe.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.handler import State
from pulsar_native.exceptions import PulsarException
from pulsar_native.stats import ConsumerClose
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.consumer import PartitionConsumer


async def unsubscribe(consumer: PartitionConsumer, *, force: bool) -> None:
    """Delete the subscription at the broker and close; on failure the consumer goes on."""
    limit = consumer.client.config.operation_timeout_seconds
    connection = await consumer.ready(limit)
    await _close_dead_letter_router(consumer, limit)
    consumer.state = State.CLOSING
    # Order of events: first the fast path is closed, then everything acknowledged before is sent.
    consumer.acks.close_fast_path()
    consumer.acks.flush()
    request_id = consumer.client.next_request_id()
    try:
        frame = commands.unsubscribe(consumer.consumer_id, request_id, force=force)
        await consumer.ask(request_id, frame, connection, pb.CommandSuccess)
    except PulsarException:
        consumer.state = State.CONNECTING if consumer.connection is None else State.READY
        if consumer.connection is None:
            # Connection lost meanwhile: a consumer that is about to close was not reconnected.
            consumer.reconnect()
        raise
    connection.remove_consumer(consumer.consumer_id)
    consumer.abandon()


async def close(consumer: PartitionConsumer, timeout: float | None) -> ConsumerClose:
    """Send acknowledgements and close the consumer; the subscription stays at the broker.

    Limited to `timeout` seconds, else the operation time-out; with `timeout` a lost connection is waited for as long as
    acknowledgements are to be sent.
    """
    if consumer.state not in (State.CONNECTING, State.READY):
        consumer.state = State.CLOSED
        return _report(consumer, 0, None)
    loop = consumer.engine.loop
    deadline = loop.time() + (consumer.client.config.operation_timeout_seconds if timeout is None else timeout)
    # Counted from here: reconnecting sends acknowledgements, too.
    before = consumer.acks_sent
    if timeout is not None and consumer.connection is None and consumer.acks.unsent():
        with contextlib.suppress(PulsarException):
            await consumer.ready(timeout)
    await _close_dead_letter_router(consumer, max(0.0, deadline - loop.time()))
    consumer.state = State.CLOSING
    # Order of events: first the fast path is closed, then everything acknowledged before is sent.
    consumer.acks.close_fast_path()
    consumer.acks.flush()
    connection = consumer.connection
    counts = None
    if connection is not None and connection.is_open:
        counts = await _say_goodbye(consumer, connection, deadline)
        connection.remove_consumer(consumer.consumer_id)
    report = _report(consumer, consumer.acks_sent - before, counts)
    consumer.abandon()
    return report


async def _say_goodbye(
    consumer: PartitionConsumer, connection: Connection, deadline: float
) -> pb.CommandConsumerStatsResponse | None:
    """Send CONSUMER_STATS and CLOSE_CONSUMER together; return the broker's statistics."""
    request_id = consumer.client.next_request_id()
    frame = commands.consumer_stats(consumer.consumer_id, request_id)
    asked = consumer.engine.spawn(connection.request(request_id, frame, pb.CommandConsumerStatsResponse))
    # The request is written when its task starts, so ahead of the close; its response arrives first, too.
    await asyncio.sleep(0)
    request_id = consumer.client.next_request_id()
    counts: pb.CommandConsumerStatsResponse | None = None
    try:
        # If that fails, the broker drops the consumer with the connection.
        with contextlib.suppress(PulsarException):
            frame = commands.close_consumer(consumer.consumer_id, request_id)
            left = max(0.0, deadline - consumer.engine.loop.time())
            await connection.request(request_id, frame, pb.CommandSuccess, timeout=left)
        if asked.done() and asked.exception() is None:
            counts = asked.result()
    finally:
        asked.cancel()
    return counts


def _report(
    consumer: PartitionConsumer, acks_sent: int, counts: pb.CommandConsumerStatsResponse | None
) -> ConsumerClose:
    return ConsumerClose(
        topic=consumer.topic.full,
        subscription_name=consumer.config.subscription_name,
        consumer_name=consumer.name,
        queued=consumer.queued_messages(),
        acks_sent=acks_sent,
        acks_left=consumer.acks.unsent(),
        unacked=counts.unackedMessages if counts is not None else None,
        backlog=counts.msgBacklog if counts is not None else None,
    )


async def _close_dead_letter_router(consumer: PartitionConsumer, seconds: float) -> None:
    """Wait for dead letters in transit: the originals of stored ones are acknowledged, and not redelivered."""
    if consumer.dead_letter_router is not None:
        await consumer.dead_letter_router.close(seconds)
