"""A consumer of one topic or partition: deliveries in, messages out, acknowledgements back.

Rules: the loop only appends whole deliveries; the thread that receives verifies, decodes and splits them, under the
consumer's lock. Permits are given back in bulk at half the queue, counted in messages. What the application has not
taken when the connection is lost is dropped, since the broker delivers it again. Acknowledgements are gathered and
outlive the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import string
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.acknowledging import BY_ENTRY, Acknowledging
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.handler import Handler, State
from pulsar_native.enums import SubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    NotConnected,
    PulsarException,
    Timeout,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.acks import bits_of, words_of
from pulsar_native.protocol.entries import Corrupt, Decoded, Delivery, StartFilter, Undecryptable, decode
from pulsar_native.protocol.redelivery import EntryKey
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.columns import EntrySlice
from pulsar_native.wire.entry import parse_entry

if TYPE_CHECKING:
    from pulsar_native.engine.client import ClientCore

_log = logging.getLogger("pulsar_native.consumer")


class PartitionConsumer(Handler):
    """The engine's consumer. Taking and acknowledging are thread-safe and never block; all else is on the loop."""

    def __init__(
        self,
        client: ClientCore,
        config: ConsumerConfig,
        topic: TopicName,
        *,
        queue_size: int,
        schema: Any,
        wire_schema: pb.Schema | None,
        on_arrival: Callable[[PartitionConsumer], None],
    ) -> None:
        super().__init__(client, topic)
        self.config = config
        self.consumer_id = client.next_consumer_id()
        self.name = config.consumer_name or "".join(random.choices(string.ascii_lowercase + string.digits, k=5))
        self.schema = schema
        self.reached_end = False
        self.is_active: bool | None = None
        self.queued = False
        self.discarded: deque[MessageId] = deque(maxlen=1000)
        self.discarded_count = 0
        self._seen: tuple[int, int] | None = None
        self._wire_schema = wire_schema
        self._on_arrival = on_arrival
        self._queue_size = queue_size
        self._refill = max(1, queue_size // 2)
        self.lock = threading.Lock()
        self._deliveries: deque[Delivery] = deque()
        self._messages: deque[Message] = deque()
        self._decoded: Decoded | None = None
        self._given = 0
        self._attachment = 0
        self._epoch = 0
        self._acks = Acknowledging(self, config)
        self._durable = config.subscription_mode is SubscriptionMode.Durable
        self._start = config.start_message_id
        self._start_inclusive = config.start_message_id_inclusive
        self._filter = StartFilter(None if self._durable else self._start, self._start_inclusive)
        # The last message given out, as itself: its id is only made when somebody asks.
        self._last_message: Message | None = None
        self._last_place: MessageId | None = None
        self._seeking = False
        self._mark_delete: MessageId | None = None

    def describe(self) -> str:
        """Return a short name for logs."""
        return f"Consumer {self.name} of {self.topic} ({self.config.subscription_name})"

    # --- connection -----------------------------------------------------------------------------------------------

    async def attach(self, connection: Connection) -> None:
        """Subscribe, send what was acknowledged meanwhile, and grant the first permits."""
        with self.lock:
            start = self._resume_at()
            self._drop_queued()
            self._attachment += 1
        request_id = self.client.next_request_id()
        frame = commands.subscribe(
            self.config,
            topic=self.topic.full,
            consumer_id=self.consumer_id,
            request_id=request_id,
            consumer_name=self.name,
            start=start,
            schema=self._wire_schema,
            epoch=self._epoch,
        )
        connection.add_consumer(self.consumer_id, self)
        try:
            await self.ask(request_id, frame, connection, pb.CommandSuccess)
            if start == MessageId.latest and not self._durable:
                await self._pin_latest(connection)
        except BaseException as error:
            connection.remove_consumer(self.consumer_id)
            if isinstance(error, Timeout | asyncio.CancelledError):
                connection.write([commands.close_consumer(self.consumer_id, self.client.next_request_id())])
            raise
        # The broker's next words may have been that it closes the consumer again (an unload): read, and dispatched,
        # before this task went on.
        attached = connection.is_open and connection.has_consumer(self.consumer_id)
        if self.state not in (State.CONNECTING, State.READY) or not attached:
            connection.remove_consumer(self.consumer_id)
            connection.write([commands.close_consumer(self.consumer_id, self.client.next_request_id())])
            raise NotConnected("The consumer was closed, or the connection lost, meanwhile", topic=self.topic.full)
        with self.lock:
            self.connection = connection
            self._acks.group.reattached()
            # Before the permits, so that the broker does not deliver again what is acknowledged.
            self._acks.send()
            self._given = 0
            connection.write([commands.flow(self.consumer_id, self._queue_size)])
        self._acks.start_unacked_timer()

    async def open(self) -> None:
        """Subscribe for the first time, within one operation time-out."""
        start = None if self._durable else self._start
        await super().open()
        if start == MessageId.latest and self.config.start_message_id_inclusive:
            # "latest" is behind the last message for the broker: including that one takes a step back.
            last = await self.last_message_id()
            if last.entry_id() >= 0:
                await self.seek(last)

    async def _pin_latest(self, connection: Connection) -> None:
        """Turn `latest` into a fixed place: without it, what is published during an outage would be skipped."""
        last = await self._ask_last(connection)
        if last.entry_id() >= 0:
            self._start = MessageId(last.partition(), last.ledger_id(), last.entry_id(), -1, topic=self.topic.full)
        else:
            self._start = MessageId.earliest
        self._start_inclusive = False
        # Only for a later attachment: what is delivered now lies behind `latest` by the broker's own word.

    def _resume_at(self) -> MessageId | None:
        """Return where a non-durable subscription goes on; the broker keeps the place of a durable one."""
        if self._durable:
            return None
        if self._last_taken is not None:
            self._start, self._start_inclusive = self._last_taken, False
        self._filter = StartFilter(self._start, self._start_inclusive)
        return self._start

    def _drop_queued(self) -> None:
        self._deliveries.clear()
        self._messages.clear()
        self._decoded = None
        last = self._last_taken
        self._seen = None if last is None else (last.ledger_id(), last.entry_id())

    def detached(self) -> None:
        """Forget the connection."""
        with self.lock:
            super().detached()

    def on_closed_by_broker(self, connection: Connection) -> None:
        """Come back, unless the broker only answers a seek, which resubscribes by itself."""
        if self._seeking and connection is self.connection:
            self.detached()
            return
        super().on_closed_by_broker(connection)

    def gave_up(self, error: PulsarException) -> None:
        """Wake whoever waits for messages: they get the error."""
        self.state = State.FAILED
        self.leave()
        self._on_arrival(self)

    # --- deliveries (loop) ----------------------------------------------------------------------------------------

    def on_message(self, message: pb.CommandMessage, payload: bytes, connection: Connection) -> None:
        """Queue a delivery as it is."""
        if message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch:
            # Sent before our last request to deliver everything again: the same message follows.
            self._give_back_unread(Delivery(message, payload, self._attachment))
            return
        self._deliveries.append(Delivery(message, payload, self._attachment))
        self._on_arrival(self)

    def on_active_change(self, is_active: bool) -> None:
        """Note whether this consumer of a Failover subscription is the one that gets messages."""
        self.is_active = is_active

    def on_end_of_topic(self) -> None:
        """Note that the topic is terminated and everything acknowledged."""
        self.reached_end = True
        self._on_arrival(self)

    def _give_back_unread(self, delivery: Delivery) -> None:
        with self.lock:
            self._grant(_permits_of(delivery))

    # --- taking (any thread) --------------------------------------------------------------------------------------

    def take(self) -> Message | None:
        """Return the next message, None when there is none yet. Thread-safe."""
        with self.lock:
            messages = self._messages
            if not messages and not self._decode_wanted():
                return None
            message = messages.popleft()
            self._last_message = message
            unacked = self._acks.unacked
            if unacked is not None:
                unacked.add((message.entry.ledger_id, message.entry.entry_id))
            self._given += 1
            if self._given >= self._refill:
                self._grant(0)
            return message

    def _decode_wanted(self) -> bool:
        """Decode deliveries until there is a message to give out; False when there is none yet."""
        while not self._messages:
            if not self._decode_next():
                return False
            if self._decoded is not None:
                self._messages.extend(self._decoded.messages())
        return True

    def take_slice(self) -> EntrySlice | None:
        """Return the rest of the current entry, or the next one, for columns; None when there is none yet."""
        with self.lock:
            first = 0
            if self._messages:
                first = max(0, self._messages[0].batch_index)
                self._messages.clear()
            else:
                while self._decode_next():
                    if self._decoded is not None:
                        break
                else:
                    return None
            assert self._decoded is not None
            part = self._decoded.slice(first)
            entry = self._decoded.entry
            left = part.last - first - (part.skip.count(1, first) if part.skip else 0)
            last = part.last - 1 if entry.is_batch else -1
            place = MessageId(self.topic.partition, entry.ledger_id, entry.entry_id, last, batch_size=entry.batch_size)
            self._last_message, self._last_place = None, place
            if self._acks.unacked is not None:
                self._acks.unacked.add(entry.key)
            self._grant(left)
            return part

    @property
    def _last_taken(self) -> MessageId | None:
        """The id of the last message given out."""
        return self._last_place if self._last_message is None else self._last_message.message_id()

    def _grant(self, count: int) -> None:
        """Count permits to give back and send them once they are half a queue."""
        self._given += count
        if self._given >= self._refill and self.connection is not None:
            self.connection.write([commands.flow(self.consumer_id, self._given)])
            self._given = 0

    def _decode_next(self) -> bool:
        """Decode one delivery into `_decoded` (None when nothing of it is wanted); False when there is none."""
        try:
            delivery = self._deliveries.popleft()
        except IndexError:
            return False
        self._decoded = None
        key = (delivery.ledger_id, delivery.entry_id)
        if delivery.attachment != self._attachment:
            return True
        self._seen = key
        if self._acks.group.covers(key):
            self._grant(_permits_of(delivery))
            return True
        partial = self._acks.group.partial(key)
        try:
            decoded = decode(
                delivery,
                topic=self.topic.full,
                partition=self.topic.partition,
                schema=self.schema,
                start=self._filter,
                missing=partial,
                max_message_size=self.connection.max_message_size if self.connection else 1 << 23,
            )
        except Corrupt as error:
            self._discard(delivery, error)
            return True
        except Undecryptable as error:
            _log.error("%s: entry %d:%d is not delivered: %s", self.describe(), *key, error)
            self._grant(error.permits)
            return True
        if delivery.ack_words is not None and decoded.entry.is_batch:
            self._acks.group.add_entry(key, bits_of(delivery.ack_words), decoded.entry.batch_size)
        if partial is not None and _delivered(delivery, decoded.entry.batch_size) & ~partial:
            # An acknowledgement on its way when the connection broke may not have arrived; the messages stay skipped
            # here, but the broker must hear of them before another consumer gets them.
            self._acks.resend(key)
        expected = _expected_permits(decoded.entry.parsed.num_messages, delivery)
        self._grant(max(0, expected - decoded.wanted))
        if decoded.wanted:
            self._decoded = decoded
        return True

    @property
    def is_reader(self) -> bool:
        """Whether the broker keeps no position for this subscription."""
        return not self._durable

    def _discard(self, delivery: Delivery, error: Corrupt) -> None:
        place = MessageId(self.topic.partition, delivery.ledger_id, delivery.entry_id, -1, topic=self.topic.full)
        self.discarded.append(place)
        self.discarded_count += 1
        _log.error("%s: discarding entry %s, which cannot be read: %s", self.describe(), place, error)
        if self.connection is not None:
            item = (delivery.ledger_id, delivery.entry_id, None)
            self.connection.write(
                [commands.ack(self.consumer_id, [item], cumulative=False, validation_error=error.reason)]
            )
        self._grant(error.permits)

    def has_queued(self) -> bool:
        """Return whether a message can be taken at once, decoding as far as needed to be sure. Thread-safe."""
        with self.lock:
            return self._decode_wanted()

    def position(self) -> tuple[int, int] | None:
        """Return ledger and entry of the last delivery looked at, wanted or not. Thread-safe."""
        return self._seen

    def start_entry(self) -> tuple[int, int] | None:
        """Return ledger and entry of the start, None for the topic's beginning."""
        start = self._start
        return None if start is None or start.entry_id() < 0 else (start.ledger_id(), start.entry_id())

    def is_past(self, end: MessageId) -> bool:
        """Return whether everything before `end` was looked at, as far as entry numbers tell. Thread-safe."""
        before = end.entry_id() - (0 if end.batch_index() > 0 else 1)
        return self._seen is not None and self._seen >= (end.ledger_id(), before)

    def may_have_more(self) -> bool:
        """Return whether taking again may give a message. Thread-safe, without lock."""
        return bool(self._messages or self._deliveries)

    # --- acknowledging and redelivery (any thread) ------------------------------------------------------------------

    def acknowledge_message(self, message: Message) -> None:
        """Note a message as done; it is sent within the group time. Thread-safe."""
        self._check_usable()
        entry, index = message.entry, message.batch_index
        self._acks.add((entry.ledger_id, entry.entry_id), index, entry.batch_size)

    def acknowledge(self, ids: Iterable[MessageId]) -> None:
        """Note messages as done; they are sent within the group time. Thread-safe."""
        self._check_usable()
        self._acks.add_ids(ids)

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Note everything up to and including a message as done. Thread-safe."""
        self._check_usable()
        self._acks.add_cumulative(message_id)

    def negative_acknowledge(self, message_id: MessageId) -> None:
        """Ask for a message again after the configured delay. Thread-safe."""
        self._check_usable()
        self._acks.refuse((message_id.ledger_id(), message_id.entry_id()))

    def redeliver(self, entries: list[EntryKey] | None) -> None:
        """Ask the broker for entries again, or for everything unacknowledged (None). Thread-safe."""
        self._check_usable()
        with self.lock:
            connection = self.connection
            if connection is None:
                # The broker delivers everything unacknowledged again anyway once we are back.
                return
            if entries is not None and self._acks.request_entries(entries):
                return
            returned = len(self._messages) + sum(map(_permits_of, self._deliveries))
            self._drop_queued()
            self._acks.forget_redelivery()
            epoch: int | None = None
            if self.config.consumer_type not in BY_ENTRY:
                self._epoch += 1
                epoch = self._epoch
            connection.write([commands.redeliver(self.consumer_id, (), epoch=epoch)])
            if returned:
                self._grant(returned)

    def size_of(self, key: EntryKey) -> int:
        """Return the size of the batch being given out when that is the entry, else 0. Called under the lock."""
        decoded = self._decoded
        return decoded.entry.batch_size if decoded is not None and decoded.entry.key == key else 0

    @property
    def is_alive(self) -> bool:
        """Whether the consumer is neither closed nor failed."""
        return self.state is State.READY or self.state is State.CONNECTING

    def _check_usable(self) -> None:
        if self.state is not State.READY and self.state is not State.CONNECTING:
            raise self.failure or AlreadyClosed("The consumer is closed", topic=self.topic.full)

    # --- positions (loop) -----------------------------------------------------------------------------------------

    async def seek(self, position: MessageId | None, publish_time: int = 0) -> None:
        """Move the subscription to an id or a publish time (ms) and subscribe again from there."""
        connection = await self.ready(self.client.config.operation_timeout_seconds)
        words = None
        if position is not None and position.batch_index() > 0 and position.batch_size() > 0:
            size = position.batch_size()
            words = words_of(((1 << size) - 1) & ~((1 << position.batch_index()) - 1), size)
        request_id = self.client.next_request_id()
        self._seeking = True
        try:
            frame = commands.seek(
                self.consumer_id, request_id, position=position, words=words, publish_time=publish_time
            )
            await self.ask(request_id, frame, connection, pb.CommandSuccess)
            with self.lock:
                self._forget_position(position)
            self.detached()
            connection.remove_consumer(self.consumer_id)
        finally:
            self._seeking = False
            if self.connection is None or not self.connection.is_open:
                self.reconnect(0.0)
        await self.ready(self.client.config.operation_timeout_seconds)

    def _forget_position(self, position: MessageId | None) -> None:
        self._drop_queued()
        self._acks.forget()
        self._last_message = self._last_place = None
        self.reached_end = False
        # The broker keeps the sought time for a non-durable subscription; starting at earliest does not rewind it.
        self._start = MessageId.earliest if position is None else position
        self._start_inclusive = self._durable or self.config.start_message_id_inclusive or position is None
        if self._durable:
            self._filter = StartFilter(position, True)

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last deliverable message; entry -1 for an empty topic."""
        connection = await self.ready(self.client.config.operation_timeout_seconds)
        return await self._ask_last(connection)

    async def positions(self) -> tuple[MessageId, MessageId]:
        """Return the last deliverable id, and the subscription's mark-delete position: up to it all is acknowledged."""
        last = await self.last_message_id()
        return last, self._mark_delete or MessageId.earliest

    async def _ask_last(self, connection: Connection) -> MessageId:
        request_id = self.client.next_request_id()
        frame = commands.get_last_message_id(self.consumer_id, request_id)
        answer = await self.ask(request_id, frame, connection, pb.CommandGetLastMessageIdResponse)
        if answer.HasField("consumer_mark_delete_position"):
            self._mark_delete = commands.message_id(answer.consumer_mark_delete_position)
        return commands.message_id(answer.last_message_id, partition=self.topic.partition, topic=self.topic.full)

    async def has_message_available(self) -> bool:
        """Return whether a message lies between the place reached and the topic's end."""
        if self.has_queued():
            return True
        last = await self.last_message_id()
        if last.entry_id() < 0:
            return False
        place, inclusive = self._last_taken, False
        if place is None:
            place, inclusive = self._start, self._start_inclusive
        if self.has_queued():
            return True
        if place is None or place == MessageId.earliest:
            # After a seek by time only the broker knows the place: its mark is the entry before the next one to come.
            mark = self._mark_delete
            return mark is None or (mark.ledger_id(), mark.entry_id()) < (last.ledger_id(), last.entry_id())
        here, end = (place.ledger_id(), place.entry_id()), (last.ledger_id(), last.entry_id())
        if here != end:
            return here < end
        if place.batch_index() < 0 or last.batch_index() < 0:
            return inclusive
        return place.batch_index() < last.batch_index() or (inclusive and place.batch_index() == last.batch_index())

    # --- end ------------------------------------------------------------------------------------------------------

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Remove the subscription at the broker and close; on failure the consumer goes on."""
        connection = await self.ready(self.client.config.operation_timeout_seconds)
        self._acks.flush()
        self.state = State.CLOSING
        request_id = self.client.next_request_id()
        try:
            frame = commands.unsubscribe(self.consumer_id, request_id, force=force)
            await self.ask(request_id, frame, connection, pb.CommandSuccess)
        except PulsarException:
            self.state = State.CONNECTING if self.connection is None else State.READY
            if self.connection is None:
                # Lost meanwhile: nothing came back for a consumer that was about to go.
                self.reconnect()
            raise
        connection.remove_consumer(self.consumer_id)
        self.abandon()

    async def close(self) -> None:
        """Send what was acknowledged and leave the subscription, which stays at the broker."""
        if self.state not in (State.CONNECTING, State.READY):
            self.state = State.CLOSED
            return
        self._acks.flush()
        self.state = State.CLOSING
        connection = self.connection
        if connection is not None and connection.is_open:
            request_id = self.client.next_request_id()
            # If that fails, the broker forgets the consumer with the connection.
            with contextlib.suppress(PulsarException):
                frame = commands.close_consumer(self.consumer_id, request_id)
                await connection.request(request_id, frame, pb.CommandSuccess)
            connection.remove_consumer(self.consumer_id)
        self.abandon()

    def abandon(self) -> None:
        """Close without a word to the broker; whoever waits gets `AlreadyClosed`."""
        self.state = State.CLOSED
        self._acks.stop()
        self.leave()
        self._on_arrival(self)


def _delivered(delivery: Delivery, size: int) -> int:
    """Return the bit set of the messages the broker thinks are to be delivered."""
    return (1 << size) - 1 if delivery.ack_words is None else bits_of(delivery.ack_words)


def _expected_permits(count: int, delivery: Delivery) -> int:
    """Return how many permits a delivery cost: of a partly acknowledged batch only what is left (client.md F.5)."""
    return count if delivery.ack_words is None else bits_of(delivery.ack_words).bit_count()


def _permits_of(delivery: Delivery) -> int:
    try:
        return _expected_permits(parse_entry(delivery.payload, verify=False).num_messages, delivery)
    except PulsarException:
        return 1
