"""Close and unsubscribe of a consumer. On the loop; a plain consumer is also closed in the calling thread
(`close_inline`), which saves two switches of threads.

Rules: pending acknowledgements and dead letters are sent first, within the time limit; then the close, after
CONSUMER_STATS without a pause in between where the broker's counts are wanted. If any of that fails, the consumer is
closed afterwards, except for a rejected unsubscribe.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.handler import State
from pulsar_native.enums import SubscriptionMode
from pulsar_native.exceptions import PulsarException, Timeout
from pulsar_native.stats import ConsumerClose
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

_Counts = pb.CommandConsumerStatsResponse


async def unsubscribe(consumer: PartitionConsumer, *, force: bool) -> None:
    """Delete the subscription at the broker and close; on failure, or when cancelled, the consumer goes on.

    Without an answer the broker may have deleted it: the consumer subscribes again then.
    """
    limit = consumer.client.config.operation_timeout_seconds
    router = consumer.dead_letter_router
    connection = await consumer.ready(limit)
    if router is not None:
        # Closed only when the subscription is deleted: a rejected consumer goes on to use it.
        await router.drain(limit)
    _stop_acknowledging(consumer)
    request_id = consumer.client.next_request_id()
    try:
        frame = commands.unsubscribe(consumer.consumer_id, request_id, force=force)
        await consumer.ask(request_id, frame, connection, pb.CommandSuccess)
    except BaseException as error:
        _undo_closing(consumer, connection)
        if not isinstance(error, PulsarException) or isinstance(error, Timeout):
            consumer.engine.spawn(_attach_again(consumer, connection))
        raise
    connection.remove_consumer(consumer.consumer_id)
    if router is not None:
        await router.close(limit)
    consumer.abandon()


def _undo_closing(consumer: PartitionConsumer, connection: Connection) -> None:
    if consumer.state is not State.CLOSING:
        # Closed meanwhile: `close` leaves a consumer to the request it finds in progress.
        _write_close(consumer, connection)
        connection.remove_consumer(consumer.consumer_id)
        consumer.abandon()
        return
    consumer.state = State.CONNECTING if consumer.connection is None else State.READY
    if consumer.connection is None:
        # Connection lost meanwhile: a consumer that is about to close was not reconnected.
        consumer.reconnect()


def _write_close(consumer: PartitionConsumer, connection: Connection) -> None:
    """Write CLOSE_CONSUMER, whose response nobody waits for."""
    connection.write([commands.close_consumer(consumer.consumer_id, consumer.client.next_request_id())])


async def _attach_again(consumer: PartitionConsumer, connection: Connection) -> None:
    if consumer.state is State.READY and connection is consumer.connection:
        with contextlib.suppress(PulsarException):
            await consumer.reattach(connection)


async def close(consumer: PartitionConsumer, timeout: float | None = None, *, counted: bool = False) -> ConsumerClose:
    """Send acknowledgements and close the consumer; the subscription stays at the broker.

    Limited to `timeout` seconds, else the operation time-out; with `timeout` a lost connection is waited for as long as
    acknowledgements are to be sent. `counted` asks for the broker's counts.
    """
    if consumer.state not in (State.CONNECTING, State.READY):
        consumer.state = State.CLOSED
        return _report(consumer, 0)
    loop = consumer.engine.loop
    deadline = loop.time() + (consumer.client.config.operation_timeout_seconds if timeout is None else timeout)
    # Counted from here: reconnecting sends acknowledgements, too.
    before = consumer.acks.sent
    try:
        if timeout is not None and consumer.connection is None and consumer.acks.unsent():
            with contextlib.suppress(PulsarException):
                await consumer.ready(timeout)
        await _close_dead_letter_router(consumer, max(0.0, deadline - loop.time()))
        _stop_acknowledging(consumer)
        connection = consumer.connection
        counts = None
        if connection is not None and connection.is_open:
            counts = await _say_goodbye(consumer, connection, deadline, counted)
        return _with_counts(_report(consumer, consumer.acks.sent - before), counts)
    finally:
        # When it is cancelled, too: of several partitions, others may be closed already.
        connection = consumer.connection
        if consumer.state in (State.CONNECTING, State.READY):
            _stop_acknowledging(consumer)
            if connection is not None:
                _write_close(consumer, connection)
        if connection is not None:
            connection.remove_consumer(consumer.consumer_id)
        consumer.abandon()


async def _say_goodbye(
    consumer: PartitionConsumer, connection: Connection, deadline: float, counted: bool
) -> _Counts | None:
    """Send CONSUMER_STATS, if wanted, and CLOSE_CONSUMER together; return the broker's statistics."""
    ids, frames = _goodbye(consumer, counted)
    futures = [connection.register(stats_id) for stats_id in ids[:-1]]
    left = max(0.0, deadline - consumer.engine.loop.time())
    futures.append(connection.begin_request(ids[-1], frames, timeout=left))
    return await _answered(connection, ids, futures)


def _stop_acknowledging(consumer: PartitionConsumer) -> None:
    consumer.state = State.CLOSING
    _send_acks(consumer)


def _send_acks(consumer: PartitionConsumer) -> None:
    # Order of events: first the fast path is closed, then everything acknowledged before is sent.
    consumer.acks.close_fast_path()
    consumer.acks.flush()


def _goodbye(consumer: PartitionConsumer, counted: bool) -> tuple[list[int], bytes]:
    """Return the ids and the frames of CONSUMER_STATS, of a durable subscription, and CLOSE_CONSUMER."""
    close_id = consumer.client.next_request_id()
    frame = commands.close_consumer(consumer.consumer_id, close_id)
    if not counted or consumer.config.subscription_mode is SubscriptionMode.NonDurable:
        # The subscription ends with its last consumer: what is left of that means nothing.
        return [close_id], frame
    stats_id = consumer.client.next_request_id()
    return [stats_id, close_id], commands.consumer_stats(consumer.consumer_id, stats_id) + frame


async def _answered(
    connection: Connection, ids: Sequence[int], futures: Sequence[asyncio.Future[Any]]
) -> _Counts | None:
    """Wait for the response to the close; return the statistics, whose response arrives first."""
    try:
        # If that fails, the broker drops the consumer with the connection.
        with contextlib.suppress(PulsarException):
            await connection.answer(ids[-1], futures[-1], pb.CommandSuccess)
        return _counts(futures[0])
    finally:
        for stats_id, future in zip(ids[:-1], futures[:-1], strict=True):
            connection.forget(stats_id, future)


def _counts(future: asyncio.Future[Any]) -> _Counts | None:
    answer = future.result() if future.done() and not future.exception() else None
    return answer if isinstance(answer, _Counts) else None


def close_inline(
    consumer: PartitionConsumer, timeout: float | None, then: Callable[[], None], *, counted: bool
) -> ConsumerClose | None:
    """Close a connected consumer in the calling thread; None, without effect, where that takes the loop.

    Order of events: 1. nothing is acknowledged any more; 2. acknowledgements, CONSUMER_STATS and CLOSE_CONSUMER are
    sent; 3. while the broker works on them, nothing is delivered any more, the consumer is released and `then` called,
    by the loop where it has timers or when the caller is interrupted (Ctrl-C) after 1; 4. the responses.
    """
    connection = consumer.connection
    if connection is None or not connection.begin_inline_read():
        return None
    limit = consumer.client.config.operation_timeout_seconds if timeout is None else timeout
    ids, frames = _goodbye(consumer, counted)
    waiting: list[asyncio.Future[Any]] = []
    reports: list[ConsumerClose] = []
    before = consumer.acks.sent

    def release() -> None:
        reports.append(_report(consumer, consumer.acks.sent - before))
        if consumer.uses_loop:
            consumer.stop()
            consumer.engine.call(_end, consumer, connection, then)
        else:
            _end(consumer, connection, then)

    try:
        if not consumer.begin_to_close_inline(connection):
            return None
        _send_acks(consumer)
        # If that fails, the broker drops the consumer with the connection.
        with contextlib.suppress(PulsarException):
            waiting = connection.request_inline(ids, frames, limit, release)
    except BaseException:
        consumer.engine.call(_end_interrupted, consumer, connection, then)
        raise
    finally:
        connection.end_inline_read()
    if not waiting:
        release()
        return reports[0]
    if all(future.done() and future.exception() is None for future in waiting):
        counts = _counts(waiting[0])
    else:
        counts = consumer.engine.run(_answered_on_loop(connection, ids, waiting))
    return _with_counts(reports[0], counts)


async def _answered_on_loop(
    connection: Connection, ids: Sequence[int], futures: Sequence[asyncio.Future[Any]]
) -> _Counts | None:
    connection.watch_requests()
    return await _answered(connection, ids, futures)


def _end_interrupted(consumer: PartitionConsumer, connection: Connection, then: Callable[[], None]) -> None:
    # Perhaps a second time: the broker confirms that, too.
    _write_close(consumer, connection)
    _end(consumer, connection, then)


def _end(consumer: PartitionConsumer, connection: Connection, then: Callable[[], None]) -> None:
    connection.remove_consumer(consumer.consumer_id)
    consumer.abandon()
    then()


def _report(consumer: PartitionConsumer, acks_sent: int) -> ConsumerClose:
    return ConsumerClose(
        topic=consumer.topic.full,
        subscription_name=consumer.config.subscription_name,
        consumer_name=consumer.name,
        queued=consumer.queued_messages(),
        acks_sent=acks_sent,
        acks_left=consumer.acks.unsent(),
    )


def _with_counts(report: ConsumerClose, counts: _Counts | None) -> ConsumerClose:
    if counts is None:
        return report
    return dataclasses.replace(report, unacked=counts.unackedMessages, backlog=counts.msgBacklog)


async def _close_dead_letter_router(consumer: PartitionConsumer, seconds: float) -> None:
    """Wait for dead letters in transit: the originals of stored ones are acknowledged, and not redelivered."""
    if consumer.dead_letter_router is not None:
        await consumer.dead_letter_router.close(seconds)
