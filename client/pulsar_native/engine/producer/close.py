"""Close a partition producer: flush until the deadline, send CLOSE_PRODUCER, fail what is still pending.

On the loop; a connected producer with nothing to send also in the calling thread (`close_inline`), which saves two
switches of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.handler import State
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.exceptions import PulsarException
from pulsar_native.stats import ProducerClose
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb


async def close(producer: PartitionProducer, timeout: float | None = None) -> ProducerClose:
    """Flush pending messages within the time limit, send CLOSE_PRODUCER, and fail the rest.

    Limited to `timeout` seconds, else the operation time-out; with `timeout` a lost connection is waited for. A lazy
    creation that is on its way ends first.
    """
    started = producer.engine.loop.time()
    await producer.opening_ended(timeout)
    if timeout is not None:
        timeout = max(0.0, timeout - (producer.engine.loop.time() - started))
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
        try:
            # If that fails, the broker drops the producer with the connection.
            with contextlib.suppress(PulsarException):
                left = max(0.0, deadline - producer.engine.loop.time())
                await connection.request(request_id, frame, pb.CommandSuccess, timeout=left)
        finally:
            connection.remove_producer(producer.core.producer_id)
            producer.abandon()
    else:
        producer.abandon()
    return report


def close_inline(producer: PartitionProducer, timeout: float | None, then: Callable[[], None]) -> ProducerClose | None:
    """Close a connected producer with nothing to send, in the calling thread; None, without effect, for another one.

    Order of events: 1. no message is accepted any more; 2. CLOSE_PRODUCER is sent; 3. while the broker works on it, the
    producer is released and `then` called, by the loop where it has timers or when the caller is interrupted (Ctrl-C)
    after 1; 4. the response.
    """
    connection = producer.connection
    if connection is None or not connection.begin_inline_read():
        return None
    limit = producer.client.config.operation_timeout_seconds if timeout is None else timeout
    request_id = producer.client.next_request_id()
    waiting: list[asyncio.Future[Any]] = []
    reports: list[ProducerClose] = []

    def release() -> None:
        reports.append(_report(producer, producer.confirmed_messages, producer.failed_messages))
        if producer.uses_loop:
            producer.state = State.CLOSED
            producer.engine.call(_end, producer, connection, then)
        else:
            _end(producer, connection, then)

    try:
        if not producer.begin_to_close_idle(connection):
            return None
        # If that fails, the broker drops the producer with the connection.
        with contextlib.suppress(PulsarException):
            frame = commands.close_producer(producer.core.producer_id, request_id)
            waiting = connection.request_inline([request_id], frame, limit, release)
    except BaseException:
        producer.engine.call(_end_interrupted, producer, connection, then)
        raise
    finally:
        connection.end_inline_read()
    if not waiting:
        release()
    elif not waiting[0].done():
        producer.engine.run(_answered_on_loop(connection, request_id, waiting[0]))
    return reports[0]


async def _answered_on_loop(connection: Connection, request_id: int, future: asyncio.Future[Any]) -> None:
    connection.watch_requests()
    with contextlib.suppress(PulsarException):
        await connection.answer(request_id, future, pb.CommandSuccess)


def _end_interrupted(producer: PartitionProducer, connection: Connection, then: Callable[[], None]) -> None:
    # Perhaps a second time: the broker confirms that, too.
    connection.write([commands.close_producer(producer.core.producer_id, producer.client.next_request_id())])
    _end(producer, connection, then)


def _end(producer: PartitionProducer, connection: Connection, then: Callable[[], None]) -> None:
    connection.remove_producer(producer.core.producer_id)
    producer.abandon()
    then()


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
    if done.done():
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await done
