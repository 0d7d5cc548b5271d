"""Where a consumer stands: its start, what was looked at last, the topic's end, and moving all that by a seek.

Rules: the places are changed under the consumer's lock; asking the broker and seeking are on the loop. The broker keeps
the place of a durable subscription; a non-durable one brings its own with every attachment.
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


class Positions:
    """The places of a `PartitionConsumer`."""

    def __init__(self, consumer: PartitionConsumer, config: ConsumerConfig) -> None:
        self._consumer = consumer
        self._durable = config.subscription_mode is SubscriptionMode.Durable
        self._inclusive_by_config = config.start_message_id_inclusive
        self._start = config.start_message_id
        self._start_inclusive = config.start_message_id_inclusive
        self.filter = StartFilter(None if self._durable else self._start, self._start_inclusive)
        # Ledger and entry of the last delivery looked at, wanted or not.
        self.last_decoded: tuple[int, int] | None = None
        self._last_place: MessageId | None = None
        self._mark_delete: MessageId | None = None
        self.is_seeking = False

    # --- what was reached (under the lock, or thread-safe) --------------------------------------------------------

    @property
    def last_dequeued_message_id(self) -> MessageId | None:
        """Id of the last message given out. Under the lock, with an empty prefetch buffer or after `count_taken`."""
        message = self._consumer.last_message
        return self._last_place if message is None else message.message_id()

    def set_last_dequeued(self, place: MessageId) -> None:
        """Note the end of what was given out other than as messages. Called under the lock."""
        self._consumer.last_message, self._last_place = None, place

    def on_queue_dropped(self) -> None:
        """Note that what was queued is gone: all behind the last message given out comes again. Under the lock."""
        last = self.last_dequeued_message_id
        self.last_decoded = None if last is None else (last.ledger_id(), last.entry_id())

    def start_message_id(self) -> MessageId | None:
        """Return where a non-durable subscription goes on; the broker keeps the place of a durable one."""
        if self._durable:
            return None
        last = self.last_dequeued_message_id
        if last is not None:
            # Where it began does not matter: the chunks before it that are still needed are here.
            self._start, self._start_inclusive = last.without_chunks(), False
        self.filter = StartFilter(self._start, self._start_inclusive)
        return self._start

    def start_entry(self) -> tuple[int, int] | None:
        """Return ledger and entry of the start, None for the topic's beginning."""
        start = self._start
        return None if start is None or start.entry_id() < 0 else (start.ledger_id(), start.entry_id())

    def taken_entry(self) -> tuple[int, int]:
        """Return ledger and entry of the last message given out, (-1, -1) before the first. Takes the lock."""
        self._consumer.count_taken()
        last = self.last_dequeued_message_id
        return (-1, -1) if last is None else (last.ledger_id(), last.entry_id())

    def is_past(self, end: MessageId) -> bool:
        """Return whether everything before `end` was looked at, as far as entry numbers tell. Thread-safe."""
        before = end.entry_id() - (0 if end.batch_index() > 0 else 1)
        return self.last_decoded is not None and self.last_decoded >= (end.ledger_id(), before)

    # --- the topic's end (loop) -----------------------------------------------------------------------------------

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last deliverable message; entry -1 for an empty topic."""
        return await self.ask_last(await self._ready())

    async def last_and_mark(self) -> tuple[MessageId, MessageId]:
        """Return the last deliverable id, and the subscription's mark-delete position: up to it all is acknowledged."""
        last = await self.last_message_id()
        return last, self._mark_delete or MessageId.earliest

    async def _ready(self) -> Connection:
        return await self._consumer.ready(self._consumer.client.config.operation_timeout_seconds)

    async def ask_last(self, connection: Connection) -> MessageId:
        """Return the id of the topic's last deliverable message, asked on this connection."""
        consumer = self._consumer
        request_id = consumer.client.next_request_id()
        frame = commands.get_last_message_id(consumer.consumer_id, request_id)
        answer = await consumer.ask(request_id, frame, connection, pb.CommandGetLastMessageIdResponse)
        if answer.HasField("consumer_mark_delete_position"):
            self._mark_delete = commands.message_id(answer.consumer_mark_delete_position)
        topic = consumer.topic
        return commands.message_id(answer.last_message_id, partition=topic.partition, topic=topic.full)

    async def has_message_available(self) -> bool:
        """Return whether a message lies between the place reached and the topic's end."""
        consumer = self._consumer
        if consumer.has_queued():
            return True
        if not consumer.topic.is_persistent:
            # Nothing is kept there that could be read later.
            return False
        last = await self.last_message_id()
        if last.entry_id() < 0:
            return False
        consumer.count_taken()
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
            # All behind the place was looked at, and nothing is left of it: acknowledged, compacted away, damaged.
            return False
        if place is None or place == MessageId.earliest:
            # After a seek by time only the broker knows the place: its mark is the entry before the next one to come.
            mark = self._mark_delete
            return mark is None or (mark.ledger_id(), mark.entry_id()) < end
        if here != end:
            return here < end
        if place.batch_index() < 0 or last.batch_index() < 0:
            return inclusive
        return place.batch_index() < last.batch_index() or (inclusive and place.batch_index() == last.batch_index())

    # --- moving (loop) --------------------------------------------------------------------------------------------

    async def seek(self, position: MessageId | None, publish_time: int = 0) -> None:
        """Move the subscription to an id or a publish time (ms) and subscribe again from there."""
        consumer = self._consumer
        connection = await self._ready()
        words = None
        if position is not None and self._durable:
            # Everything from its first chunk on is delivered again.
            position = position.first_chunk_message_id() or position
        if position is not None and position.batch_index() > 0 and position.batch_size() > 0:
            size = position.batch_size()
            words = words_of(((1 << size) - 1) & ~((1 << position.batch_index()) - 1), size)
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
                self._forget(position)
            consumer.detached()
            connection.remove_consumer(consumer.consumer_id)
        finally:
            self.is_seeking = False
            if consumer.connection is None or not consumer.connection.is_open:
                consumer.reconnect(0.0)
        connection = await self._ready()
        if position is None and not self._durable:
            await self._pin_after_seek(connection)

    def _forget(self, position: MessageId | None) -> None:
        self._consumer.reclaim_prefetched()
        self._consumer.last_message = self._last_place = None
        self._consumer.forget_deliveries()
        # The broker keeps the sought time for a non-durable subscription; starting at earliest does not rewind it.
        self._start = MessageId.earliest if position is None else position
        self._start_inclusive = self._durable or self._inclusive_by_config or position is None
        if self._durable:
            self.filter = StartFilter(position, True)

    async def _pin_after_seek(self, connection: Connection) -> None:
        """Turn the time sought into a place: an unload takes the cursor along, and with it where the time was."""
        # If it cannot be had now, the broker's mark is asked for when it is needed.
        with contextlib.suppress(PulsarException):
            await self.ask_last(connection)
            mark = self._mark_delete
            if mark is not None and self._start == MessageId.earliest:
                partition = self._consumer.topic.partition
                self._start = MessageId(partition, mark.ledger_id(), mark.entry_id(), topic=self._consumer.topic.full)
                self._start_inclusive = False

    async def pin_latest(self, connection: Connection) -> None:
        """Turn `latest` into a fixed place: without it, what is published during an outage would be skipped."""
        last = await self.ask_last(connection)
        if last.entry_id() >= 0:
            topic = self._consumer.topic
            self._start = MessageId(last.partition(), last.ledger_id(), last.entry_id(), -1, topic=topic.full)
        else:
            self._start = MessageId.earliest
        self._start_inclusive = False
        # Only for a later attachment: what is delivered now lies behind `latest` by the broker's own word.

    async def step_back(self) -> None:
        """Go on with the last message rather than behind it: "latest" is behind it for the broker."""
        last = await self.last_message_id()
        if last.entry_id() >= 0:
            await self.seek(last)

    @property
    def starts_at_latest(self) -> bool:
        """Whether a non-durable subscription begins behind all there is."""
        return not self._durable and self._start == MessageId.latest
