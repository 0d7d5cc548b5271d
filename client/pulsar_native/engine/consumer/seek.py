"""Seek of a partition's consumer, on the loop, and questions about its position that the broker answers, which the
calling thread may begin (`Engine.run_eager`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from pulsar_native._loggers import get_logger
from pulsar_native.config import ConsumerConfig
from pulsar_native.config.base import MAX_I64
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.enums import InitialPosition, SubscriptionMode
from pulsar_native.exceptions import (
    AuthorizationError,
    BrokerMetadataError,
    ConsumerBusy,
    NotAllowedError,
    NotConnected,
    OperationNotSupported,
    PulsarException,
    ServiceUnitNotReady,
)
from pulsar_native.message_id import MessageId
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

_log = get_logger("pulsar_native.consumer")

# Of a request to a consumer that the broker has closed: how often it is sent again, and after how many seconds.
_MOST_RETRIES = 10
_RETRY_SECONDS = 0.1


async def _ready(consumer: PartitionConsumer) -> Connection:
    return await consumer.ready(consumer.client.config.operation_timeout_seconds)


async def open_at_start(consumer: PartitionConsumer, deadline: float | None = None) -> None:
    """Subscribe for the first time until the deadline, by default within one operation time-out; an inclusive start at
    `latest` is the last message, where the broker starts behind it.
    """
    position, config = consumer.position, consumer.config
    steps_back = position.starts_at_latest and position.inclusive_by_config and config.is_reader
    await consumer.open(deadline)
    if steps_back:
        await _step_back(consumer)


async def last_message_id(consumer: PartitionConsumer) -> MessageId:
    """Return the id of the topic's last deliverable message; entry -1 for an empty topic.

    Raises `OperationNotSupported` for a non-persistent topic.
    """
    if not consumer.topic.is_persistent:
        raise OperationNotSupported(
            "A non-persistent topic stores no messages, and so has no id of a last one", topic=consumer.topic.full
        )
    return await _last(consumer)


async def _last(consumer: PartitionConsumer, *, ahead_only: bool = False) -> MessageId:
    """Return the last id; with `ahead_only` none where the subscription has no backlog, and the broker no last id."""
    for _ in range(_MOST_RETRIES):
        with contextlib.suppress(BrokerMetadataError, ServiceUnitNotReady):
            return await _ask_last(consumer, ahead_only=ahead_only)
        # The broker has closed the consumer, as in an unload, and its command that tells of it is on the way.
        await consumer.engine.enter_loop()
        await asyncio.sleep(_RETRY_SECONDS)
    return await _ask_last(consumer, ahead_only=ahead_only)


async def _ask_last(consumer: PartitionConsumer, *, ahead_only: bool) -> MessageId:
    connection = await _ready(consumer)
    if consumer.core.newest is None and consumer.position.mark_delete is None:
        # Not asked before, and nothing has arrived yet: the first entries are likely to arrive before the answer.
        await consumer.engine.enter_loop()
    last = await consumer.ask_last(connection)
    if last.entry_id() >= 0 or consumer.config.is_read_compacted:
        # Of a compacted topic everything stored may have been removed: nothing that a search finds need ever arrive.
        return last
    # Nothing can be delivered; or the topic was terminated while its last ledger was empty.
    await consumer.engine.enter_loop()
    if consumer.searched_last is None and not (ahead_only and await _backlog(consumer, connection) == 0):
        try:
            consumer.searched_last = await _search_last(consumer, connection) or last
        except (AuthorizationError, ConsumerBusy, NotAllowedError) as error:
            # Such as a limit of subscriptions: the broker's answer stands.
            consumer.searched_last = last
            _log.warning("The broker has no last message id of %s, and refused to search it: %s", consumer.topic, error)
    return consumer.searched_last or last


async def _backlog(consumer: PartitionConsumer, connection: Connection) -> int:
    """Return the number of entries the subscription has not acknowledged."""
    request_id = consumer.client.next_request_id()
    frame = commands.consumer_stats(consumer.consumer_id, request_id)
    return (await consumer.ask(request_id, frame, connection, pb.CommandConsumerStatsResponse)).msgBacklog


async def _search_last(consumer: PartitionConsumer, connection: Connection) -> MessageId | None:
    """Return the id of the last entry of a topic that was terminated with an empty last ledger, None for others.

    Once it is loaded again, the broker has no last id of such a topic; its search by publish time finds the entries all
    the same. Order of events: 1. a temporary subscription at `latest` begins behind the last entry stored; for such a
    topic, and an empty one, there is none; 2. it seeks behind everything.
    """
    client, topic = consumer.client, consumer.topic
    config = ConsumerConfig(
        subscription_name=f"{consumer.config.subscription_name}-last-{os.urandom(5).hex()}",
        subscription_mode=SubscriptionMode.NonDurable,
        initial_position=InitialPosition.Latest,
    )
    consumer_id = client.next_consumer_id()

    async def mark() -> MessageId | None:
        """Subscribe, and return the mark-delete position; None of a broker that does not name it."""
        request_id = client.next_request_id()
        frame = commands.subscribe(
            config,
            topic=topic.full,
            consumer_id=consumer_id,
            request_id=request_id,
            consumer_name=consumer.name,
            start=MessageId.latest,
            schema=None,
            epoch=0,
            create_topic=False,
        )
        await consumer.ask(request_id, frame, connection, pb.CommandSuccess)
        request_id = client.next_request_id()
        frame = commands.get_last_message_id(consumer_id, request_id)
        answer = await consumer.ask(request_id, frame, connection, pb.CommandGetLastMessageIdResponse)
        if not answer.HasField("consumer_mark_delete_position"):
            return None
        return commands.message_id(answer.consumer_mark_delete_position, partition=topic.partition, topic=topic.full)

    try:
        newest = await mark()
        if newest is None or newest.entry_id() >= 0:
            return None
        request_id = client.next_request_id()
        frame = commands.seek(consumer_id, request_id, position=None, words=None, publish_time=MAX_I64)
        await consumer.ask(request_id, frame, connection, pb.CommandSuccess)
        # The broker has closed it for the seek.
        found = await mark()
        return None if found is None or found.entry_id() < 0 else found
    finally:
        connection.write([commands.close_consumer(consumer_id, client.next_request_id())])


async def last_and_mark(consumer: PartitionConsumer) -> tuple[MessageId, MessageId]:
    """Return the last deliverable id, and the subscription's mark-delete position: everything up to it is
    acknowledged.
    """
    last = await last_message_id(consumer)
    return last, consumer.position.mark_delete or MessageId.earliest


async def end_ahead(consumer: PartitionConsumer) -> MessageId | None:
    """Return the id of the topic's last deliverable message if it is still to be dequeued, else None.

    Requires that nothing is queued. The broker's last message may be none: see `is_ahead`.
    """
    if not consumer.topic.is_persistent:
        # A non-persistent topic stores nothing that could be read later.
        return None
    last = await _last(consumer, ahead_only=True)
    return last if last.entry_id() >= 0 and is_ahead(consumer, last) else None


def is_ahead(consumer: PartitionConsumer, last: MessageId) -> bool:
    """Return True if a message is queued, or if one up to `last` is still to arrive: the broker's last entry may also
    be a chunk that its producer left behind, which shows when it is decoded.
    """
    consumer.count_dequeued()
    return consumer.has_queued() or consumer.position.is_before(last, may_have_more=consumer.may_have_more())


async def move(consumer: PartitionConsumer, target: MessageId | int) -> None:
    """Seek as the application asks for it, to a message id or a publish time (ms), one seek after the other."""
    async with consumer.seek_lock:
        if isinstance(target, MessageId):
            await _move_to_id(consumer, target)
        else:
            await seek(consumer, None, target)


async def _move_to_id(consumer: PartitionConsumer, position: MessageId) -> None:
    """Seek behind the message, or to it with `start_message_id_inclusive`.

    But for a reader, the message left out counts as acknowledged: it would come again otherwise, with the next
    consumer.
    """
    state, is_reader = consumer.position, consumer.config.is_reader
    inclusive = state.inclusive_by_config
    if position == MessageId.latest and inclusive and is_reader and consumer.topic.is_persistent:
        await _step_back(consumer)
        return
    await seek(consumer, position, inclusive=inclusive)
    is_message = position.entry_id() >= 0 and position != MessageId.latest
    if not is_reader and not inclusive and is_message:
        _acknowledge_skipped(consumer, position)


async def seek(
    consumer: PartitionConsumer,
    position: MessageId | None,
    publish_time: int = 0,
    *,
    inclusive: bool = True,
    is_last: bool = False,
) -> None:
    """Move the subscription to an id or a publish time (ms) and subscribe again from there.

    With `inclusive` a durable subscription continues with the message itself, else behind it. With `is_last` the
    position is the one that the broker names as the last: of a message in chunks it has only the last chunk.
    """
    await consumer.engine.enter_loop()
    if position is not None or consumer.position.is_durable or not consumer.topic.is_persistent:
        # The position outlasts the connection: the broker stores it, or every attachment names it.
        await _seek_once(consumer, position, publish_time, inclusive=inclusive, is_last=is_last)
        return
    for _ in range(_MOST_RETRIES + 1):
        connection = await _seek_once(consumer, None, publish_time)
        # Where only the request fails, the broker still has the time: the mark is requested when it is needed.
        with contextlib.suppress(PulsarException):
            await consumer.ask_last(await _ready(consumer))
            if connection.is_open:
                consumer.position.pin_mark()
        if connection.is_open:
            return
    raise NotConnected(
        "The connection was lost in each attempt to seek to a time; call seek again", topic=consumer.topic.full
    )


async def _seek_once(
    consumer: PartitionConsumer,
    position: MessageId | None,
    publish_time: int,
    *,
    inclusive: bool = True,
    is_last: bool = False,
) -> Connection:
    """Seek and subscribe again; return the connection that carried the request."""
    connection = await _ready(consumer)
    state = consumer.position
    words = None
    sought = position
    if position is not None and state.is_durable:
        # Everything from its first chunk on is redelivered.
        position = position.first_chunk_message_id() or position
    if position is not None and position.batch_size() > 0:
        words = state.sought_words(position, inclusive=inclusive)
    request_id = consumer.client.next_request_id()
    frame = commands.seek(
        consumer.consumer_id,
        request_id,
        position=position and (position.first_chunk_message_id() or position),
        words=words,
        publish_time=publish_time,
    )
    consumer.begin_seek()
    try:
        await consumer.ask(request_id, frame, connection, pb.CommandSuccess)
        consumer.on_seek(position, sought, inclusive=inclusive)
        if is_last:
            # When the entry arrives it is known whether it is a chunk, so that other messages cost nothing.
            state.look_for_first_chunk()
        consumer.detached()
        connection.remove_consumer(consumer.consumer_id)
    finally:
        consumer.end_seek()
        if consumer.connection is None or not consumer.connection.is_open:
            consumer.reconnect(0.0)
    await _ready(consumer)
    return connection


async def _step_back(consumer: PartitionConsumer) -> None:
    """Seek to the last message rather than behind it: the broker's "latest" is behind it."""
    last = await last_message_id(consumer)
    if last.entry_id() >= 0:
        await seek(consumer, last, is_last=True)


def _acknowledge_skipped(consumer: PartitionConsumer, place: MessageId) -> None:
    """Acknowledge the message a seek went behind, where nothing of its entry is left."""
    if place.batch_index() + 1 < place.batch_size() or (place.batch_index() >= 0 and not place.batch_size()):
        # The rest of the batch is still to come; the broker knows from the seek what is left of it.
        return
    entry = MessageId(
        place.partition(), place.ledger_id(), place.entry_id(), first_chunk=place.first_chunk_message_id()
    )
    consumer.acknowledge([entry])
