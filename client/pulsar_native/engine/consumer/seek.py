"""Consumer position and seek: start, last decoded and dequeued messages, the topic's end.

Rules: the positions are changed under the consumer's lock; requests and seeks are on the loop. The broker stores the
position of a durable subscription; a non-durable one sends its own with every attachment.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.enums import SubscriptionMode
from pulsar_native.exceptions import PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.ack_grouping import words_of
from pulsar_native.protocol.entry_decoder import StartFilter
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.consumer import PartitionConsumer


class ConsumerPosition:
    """Position of a `PartitionConsumer`."""

    def __init__(self, consumer: PartitionConsumer, config: ConsumerConfig) -> None:
        self._consumer = consumer
        self._durable = config.subscription_mode is SubscriptionMode.Durable
        self._inclusive_by_config = config.start_message_id_inclusive
        self._start = config.start_message_id
        self._start_inclusive = config.start_message_id_inclusive
        self.filter = StartFilter(None if self._durable else self._start, self._start_inclusive)
        # Ledger and entry of the last decoded delivery, wanted or not.
        self.last_decoded: tuple[int, int] | None = None
        self._last_place: MessageId | None = None
        self._mark_delete: MessageId | None = None
        self.is_seeking = False

    # --- position (under the lock, or thread-safe) ------------------------------------------------------------------

    @property
    def last_dequeued_message_id(self) -> MessageId | None:
        """Id of the last dequeued message. Under the lock, with an empty prefetch buffer or after `count_dequeued`."""
        message = self._consumer.last_message
        return self._last_place if message is None else message.message_id()

    def set_last_dequeued(self, place: MessageId) -> None:
        """Record the end of what was dequeued other than as messages. Called under the lock."""
        self._consumer.last_message, self._last_place = None, place

    def on_queue_dropped(self) -> None:
        """Record that the queue was dropped: everything behind the last dequeued message is redelivered. Under the
        lock.
        """
        last = self.last_dequeued_message_id
        self.last_decoded = None if last is None else (last.ledger_id(), last.entry_id())

    def start_message_id(self) -> MessageId | None:
        """Return the start of a non-durable subscription's next attachment; None for a durable one, which the broker
        stores.
        """
        if self._durable:
            return None
        last = self.last_dequeued_message_id
        if last is not None:
            # The first chunk's position does not matter: the chunks before it that are still needed are here.
            self._start, self._start_inclusive = last.without_chunks(), False
        self.filter = StartFilter(self._start, self._start_inclusive)
        return self._start

    def start_entry(self) -> tuple[int, int] | None:
        """Return ledger id and entry id of the start, None for the topic's beginning."""
        start = self._start
        return None if start is None or start.entry_id() < 0 else (start.ledger_id(), start.entry_id())

    def dequeued_entry(self) -> tuple[int, int]:
        """Return ledger id and entry id of the last dequeued message, (-1, -1) before the first. Acquires the lock."""
        self._consumer.count_dequeued()
        last = self.last_dequeued_message_id
        return (-1, -1) if last is None else (last.ledger_id(), last.entry_id())

    def is_past(self, end: MessageId) -> bool:
        """Return True if everything before `end` was decoded, judged by entry ids. Thread-safe."""
        before = end.entry_id() - (0 if end.batch_index() > 0 else 1)
        return self.last_decoded is not None and self.last_decoded >= (end.ledger_id(), before)

    # --- the topic's end (loop) -----------------------------------------------------------------------------------

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last deliverable message; entry -1 for an empty topic."""
        return await self.ask_last(await self._ready())

    async def last_and_mark(self) -> tuple[MessageId, MessageId]:
        """Return the last deliverable id, and the subscription's mark-delete position: everything up to it is
        acknowledged.
        """
        last = await self.last_message_id()
        return last, self._mark_delete or MessageId.earliest

    async def _ready(self) -> Connection:
        return await self._consumer.ready(self._consumer.client.config.operation_timeout_seconds)

    async def ask_last(self, connection: Connection) -> MessageId:
        """Return the id of the topic's last deliverable message, requested on this connection."""
        consumer = self._consumer
        request_id = consumer.client.next_request_id()
        frame = commands.get_last_message_id(consumer.consumer_id, request_id)
        answer = await consumer.ask(request_id, frame, connection, pb.CommandGetLastMessageIdResponse)
        if answer.HasField("consumer_mark_delete_position"):
            self._mark_delete = commands.message_id(answer.consumer_mark_delete_position)
        topic = consumer.topic
        return commands.message_id(answer.last_message_id, partition=topic.partition, topic=topic.full)

    async def has_message_available(self) -> bool:
        """Return True if there is a message between the current position and the topic's end."""
        consumer = self._consumer
        if consumer.has_queued():
            return True
        if not consumer.topic.is_persistent:
            # A non-persistent topic stores nothing that could be read later.
            return False
        last = await self.last_message_id()
        if last.entry_id() < 0:
            return False
        consumer.count_dequeued()
        place, inclusive = self.last_dequeued_message_id, False
        if place is None:
            place, inclusive = self._start, self._start_inclusive
        if consumer.has_queued():
            return True
        end = (last.ledger_id(), last.entry_id())
        here = (-1, -1) if place is None else (place.ledger_id(), place.entry_id())
        if (
            self.last_decoded is not None
            and self.last_decoded >= end
            and self.last_decoded > here
            and not consumer.may_have_more()
        ):
            # Everything behind the position was decoded, and nothing is left of it: acknowledged, compacted away,
            # damaged.
            return False
        if place is None or place == MessageId.earliest:
            # After a seek by time only the broker knows the position: its mark is the entry before the next delivery.
            mark = self._mark_delete
            return mark is None or (mark.ledger_id(), mark.entry_id()) < end
        if here != end:
            return here < end
        if place.batch_index() < 0 or last.batch_index() < 0:
            return inclusive
        return place.batch_index() < last.batch_index() or (inclusive and place.batch_index() == last.batch_index())

    # --- seek (loop) ------------------------------------------------------------------------------------------------

    async def move(self, position: MessageId) -> None:
        """Move as the application asks for it: behind the message, or with the configuration's word to it.

        On a durable subscription the message left out counts as acknowledged: it would come again otherwise, with the
        next consumer.
        """
        inclusive = self._inclusive_by_config
        if position == MessageId.latest and inclusive and not self._durable:
            await self.step_back()
            return
        await self.seek(position, inclusive=inclusive)
        is_message = position.entry_id() >= 0 and position != MessageId.latest
        if self._durable and not inclusive and is_message:
            self._consumer.acknowledge_skipped(position)

    async def seek(self, position: MessageId | None, publish_time: int = 0, *, inclusive: bool = True) -> None:
        """Move the subscription to an id or a publish time (ms) and subscribe again from there.

        With `inclusive` a durable subscription continues with the message itself, else behind it.
        """
        consumer = self._consumer
        connection = await self._ready()
        words = None
        sought = position
        if position is not None and self._durable:
            # Everything from its first chunk on is redelivered.
            position = position.first_chunk_message_id() or position
        if position is not None and position.batch_size() > 0:
            size = position.batch_size()
            first = position.batch_index() + (1 if self._durable and not inclusive else 0)
            if 0 < first < size:
                words = words_of(((1 << size) - 1) & ~((1 << first) - 1), size)
        request_id = consumer.client.next_request_id()
        self.is_seeking = True
        try:
            frame = commands.seek(
                consumer.consumer_id,
                request_id,
                position=position and (position.first_chunk_message_id() or position),
                words=words,
                publish_time=publish_time,
            )
            await consumer.ask(request_id, frame, connection, pb.CommandSuccess)
            with consumer.lock:
                self._forget(position, sought, inclusive)
            consumer.detached()
            connection.remove_consumer(consumer.consumer_id)
        finally:
            self.is_seeking = False
            if consumer.connection is None or not consumer.connection.is_open:
                consumer.reconnect(0.0)
        connection = await self._ready()
        if position is None and not self._durable:
            await self._pin_after_seek(connection)

    def _forget(self, position: MessageId | None, sought: MessageId | None, inclusive: bool) -> None:
        self._consumer.reclaim_prefetched()
        self._consumer.last_message = self._last_place = None
        self._consumer.forget_deliveries()
        # The broker stores the sought time for a non-durable subscription; starting at earliest does not rewind it.
        self._start = MessageId.earliest if position is None else position
        self._start_inclusive = self._durable or self._inclusive_by_config or position is None
        if self._durable:
            # Of a message in chunks `position` is the first one, and `sought`, the last one, its place.
            self.filter = StartFilter(position, True) if inclusive else StartFilter(sought, False)

    async def _pin_after_seek(self, connection: Connection) -> None:
        """Replace the sought time by a position: an unload drops the cursor, and with it the position of the time."""
        # If the request fails now, the broker's mark is requested when it is needed.
        with contextlib.suppress(PulsarException):
            await self.ask_last(connection)
            mark = self._mark_delete
            if mark is not None and self._start == MessageId.earliest:
                partition = self._consumer.topic.partition
                self._start = MessageId(partition, mark.ledger_id(), mark.entry_id(), topic=self._consumer.topic.full)
                self._start_inclusive = False

    async def pin_latest(self, connection: Connection) -> None:
        """Replace `latest` by a fixed position: without it, messages published during an outage would be skipped."""
        last = await self.ask_last(connection)
        if last.entry_id() >= 0:
            topic = self._consumer.topic
            self._start = MessageId(last.partition(), last.ledger_id(), last.entry_id(), -1, topic=topic.full)
        else:
            self._start = MessageId.earliest
        self._start_inclusive = False
        # Only for a later attachment: what is delivered now is behind the broker's own `latest`.

    async def step_back(self) -> None:
        """Seek to the last message rather than behind it: the broker's "latest" is behind it."""
        last = await self.last_message_id()
        if last.entry_id() >= 0:
            await self.seek(last)

    @property
    def starts_at_latest(self) -> bool:
        """True for a non-durable subscription that starts behind the topic's last message."""
        return not self._durable and self._start == MessageId.latest
