"""Close a partition producer: flush until the deadline, send CLOSE_PRODUCER, fail what is still pending."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pulsar_native.engine.handler import State
from pulsar_native.exceptions import PulsarException
from pulsar_native.stats import ProducerClose
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.producer.producer import PartitionProducer


async def close(producer: PartitionProducer, timeout: float | None = None) -> ProducerClose:
    """Flush pending messages within the time limit, send CLOSE_PRODUCER, and fail the rest.

    Limited to `timeout` seconds, else the operation time-out; with `timeout` a lost connection is waited for.
    """
    confirmed, failed = producer.confirmed_messages, producer.failed_messages
    if producer.state not in (State.CONNECTING, State.READY):
        producer.state = State.CLOSED
        return _report(producer, confirmed, failed)
    # One limit for both: CLOSE_PRODUCER gets the time that flushing has left.
    limit = producer.client.config.operation_timeout_seconds if timeout is None else timeout
    deadline = producer.engine.loop.time() + limit
    if producer.connection is not None or timeout is not None:
        await _drain(producer, deadline)
    report = _report(producer, confirmed, failed)
    producer.begin_to_close()
    connection = producer.connection
    if connection is not None and connection.is_open:
        request_id = producer.client.next_request_id()
        frame = commands.close_producer(producer.core.producer_id, request_id)
        # If that fails, the broker drops the producer with the connection.
        with contextlib.suppress(PulsarException):
            left = max(0.0, deadline - producer.engine.loop.time())
            await connection.request(request_id, frame, pb.CommandSuccess, timeout=left)
        connection.remove_producer(producer.core.producer_id)
    producer.abandon()
    return report


def _report(producer: PartitionProducer, confirmed: int, failed: int) -> ProducerClose:
    return ProducerClose(
        topic=producer.topic.full,
        producer_name=producer.core.name,
        sent=producer.confirmed_messages - confirmed,
        failed=producer.failed_messages - failed,
        left=producer.unconfirmed(),
    )


async def _drain(producer: PartitionProducer, deadline: float) -> None:
    done: asyncio.Future[None] = producer.engine.loop.create_future()

    def finish(_error: PulsarException | None) -> None:
        if not done.done():
            done.set_result(None)

    producer.flush_then(lambda error: producer.engine.call(finish, error))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await done
