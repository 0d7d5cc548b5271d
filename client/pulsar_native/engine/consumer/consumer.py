"""Consumer of one topic or partition: deliveries, messages and acknowledgements.

Rules: the loop only appends whole deliveries; the thread that receives decodes them, under the consumer's lock (see
`receiver_queue`). Messages the application has not dequeued when the connection is lost are dropped, since the broker
redelivers them. Acknowledgements are grouped and outlive the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pulsar_native.arrow.batch import EntryRange
from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.ack_grouping_tracker import BY_ENTRY, AckGroupingTracker
from pulsar_native.engine.consumer.ack_receipts import Done
from pulsar_native.engine.consumer.chunk_assembler import assembly_of
from pulsar_native.engine.consumer.close import close, unsubscribe
from pulsar_native.engine.consumer.dead_letter import DeadLetterClient, DeadLetterRouter
from pulsar_native.engine.consumer.entry_decoder import EntryDecoder
from pulsar_native.engine.consumer.permits import Permits, ScaledPermits, permits_of
from pulsar_native.engine.consumer.receiver_queue import ReceiverQueue
from pulsar_native.engine.consumer.redeliver_all import RedeliverAll
from pulsar_native.engine.consumer.seek import ConsumerPosition
from pulsar_native.engine.handler import State
from pulsar_native.engine.metrics.statistics import ConsumerRecorder
from pulsar_native.enums import SubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    NotConnected,
    PulsarException,
    Timeout,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.entry_decoder import Delivery
from pulsar_native.service_url import Address
from pulsar_native.stats import ConsumerClose
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey

_log = logging.getLogger("pulsar_native.consumer")


class ConsumerClient(DeadLetterClient, Protocol):
    """Client of a partition's consumer."""

    def consumer_recorder(self) -> ConsumerRecorder | None: ...


class PartitionConsumer(ReceiverQueue):
    """Engine side of a consumer. Dequeuing and acknowledging are thread-safe and never block; everything else is on the
    loop.
    """

    client: ConsumerClient

    def __init__(
        self,
        client: ConsumerClient,
        config: ConsumerConfig,
        topic: TopicName,
        *,
        name: str,
        queue_size: int,
        schema: Any,
        wire_schema: pb.Schema | None,
        on_arrival: Callable[[PartitionConsumer], None],
        create_topic: bool = True,
    ) -> None:
        super().__init__(client, topic)
        self.config = config
        self.consumer_id = client.next_consumer_id()
        self.name = name
        self.schema = schema
        self.reached_end = False
        # True for the active consumer of a Failover subscription, as reported by the broker on this connection.
        self.is_active: bool | None = None
        self.on_activity: Callable[[bool, int], None] | None = None
        self.queued = False
        self._create_topic = create_topic
        self._wire_schema = wire_schema
        self._on_arrival = on_arrival
        self._scaled = ScaledPermits(self, queue_size) if config.auto_scaled_receiver_queue_size_enabled else None
        self.permits = self._scaled or Permits(self, queue_size)
        self._tells_arrivals = self._scaled is not None
        self._epoch = 0
        policy = config.dead_letter_policy
        self.dead_letter_router = DeadLetterRouter(self, policy) if policy is not None else None
        self.stats = client.consumer_recorder()
        self.chunks = assembly_of(config)
        self._acks = AckGroupingTracker(self, config, self.chunks)
        self.decoder = EntryDecoder(self, self.chunks, self._acks)
        self._watches_entries = self.dead_letter_router is not None or self._acks.late is not None
        self._durable = config.subscription_mode is SubscriptionMode.Durable
        self.position = ConsumerPosition(self, config)
        # Called with the entries to be redelivered, and why, when there are interceptors.
        self.on_redelivery: Callable[[str, list[EntryKey]], None] | None = None
        # The last entry received since the broker's cursor was last moved.
        self.newest: pb.MessageIdData | None = None
        # On these subscriptions a request to redeliver everything moves the cursor, but only when no read is in
        # progress.
        rewinds = config.consumer_type not in BY_ENTRY and topic.is_persistent
        self._redeliver_all = RedeliverAll(self) if rewinds else None

    def describe(self) -> str:
        """Return a short name for logs."""
        return f"Consumer {self.name} of {self.topic} ({self.config.subscription_name})"

    # --- connection -----------------------------------------------------------------------------------------------

    def is_registered(self, connection: Connection) -> bool:
        """Return True if the connection passes the broker's frames to this consumer."""
        return connection.is_open and connection.has_consumer(self.consumer_id)

    async def attach(self, connection: Connection) -> None:
        """Subscribe, send pending acknowledgements, and grant the first permits."""
        with self.lock:
            self.reclaim_prefetched()
            start = self.position.start_message_id()
            self._drop_queued()
            if self._durable:
                # They are redelivered, or go to another consumer. A reader continues behind its last message: its
                # chunks may be before that.
                self.chunks.drop_incomplete()
            self.attachment += 1
            self.newest = None
        request_id = self.client.next_request_id()
        frame = commands.subscribe(
            self.config,
            topic=self.topic.full,
            consumer_id=self.consumer_id,
            request_id=request_id,
            consumer_name=self.name,
            # For a chunked message, from its first chunk: without it the others cannot be assembled.
            start=start and (start.first_chunk_message_id() or start),
            schema=self._wire_schema,
            epoch=self._epoch,
            create_topic=self._create_topic,
        )
        connection.add_consumer(self.consumer_id, self)
        try:
            await self.ask(request_id, frame, connection, pb.CommandSuccess)
            if start == MessageId.latest:
                await self.position.pin_latest(connection)
        except BaseException as error:
            connection.remove_consumer(self.consumer_id)
            if isinstance(error, Timeout | asyncio.CancelledError | KeyboardInterrupt):
                connection.write([commands.close_consumer(self.consumer_id, self.client.next_request_id())])
            raise
        # The broker's next frame may close the consumer again (an unload): read, and dispatched, before this task
        # continued.
        attached = connection.is_open and connection.has_consumer(self.consumer_id)
        if self.state not in (State.CONNECTING, State.READY) or not attached:
            connection.remove_consumer(self.consumer_id)
            connection.write([commands.close_consumer(self.consumer_id, self.client.next_request_id())])
            raise NotConnected("The consumer was closed, or the connection lost, meanwhile", topic=self.topic.full)
        with self.lock:
            self.connection = connection
            self._acks.reattached()
            # Before the permits, so that the broker does not redeliver acknowledged messages.
            self._acks.send()
            # Permits of a paused consumer collect until it resumes.
            self.permits.begin()
        self._acks.start_unacked_timer()
        if self.permits.on_demand:
            # With a queue of 0 a waiting receiver requests its permit again.
            self._on_arrival(self)

    async def open(self) -> None:
        """Subscribe for the first time, within one operation time-out."""
        steps_back = self.position.starts_at_latest and self.config.start_message_id_inclusive
        await super().open()
        if steps_back:
            await self.position.step_back()

    def detached(self) -> None:
        """Forget the connection."""
        with self.lock:
            super().detached()
            self.is_active = None
            self._acks.detached()

    def on_closed_by_broker(self, connection: Connection, assigned: Address | None) -> None:
        """Reconnect, unless the broker closed the consumer for a seek, which resubscribes by itself."""
        if self.position.is_seeking and connection is self.connection:
            self.detached()
            return
        super().on_closed_by_broker(connection, assigned)

    def gave_up(self, error: PulsarException) -> None:
        """Wake those who wait for messages: they receive the error."""
        self.state = State.FAILED
        self._acks.stop()
        self.leave()
        self._on_arrival(self)

    # --- deliveries (loop) ----------------------------------------------------------------------------------------

    def on_message(self, message: pb.CommandMessage, payload: bytes, connection: Connection) -> None:
        """Queue a delivery undecoded."""
        self.newest = message.message_id
        if message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch:
            # Sent before our last request to redeliver everything: the same message follows.
            self._give_back_unread(Delivery(message, payload, self.attachment))
            return
        delivery = Delivery(message, payload, self.attachment)
        self.all_deliveries.append(delivery)
        if self._tells_arrivals:
            self.permits.on_delivery(delivery)
            if self.permits.held:
                return
        self._on_arrival(self)

    def on_active_change(self, is_active: bool) -> None:
        """Record whether this consumer of a Failover subscription is the active one."""
        changed, self.is_active = is_active is not self.is_active, is_active
        if changed and self.on_activity is not None:
            self.on_activity(is_active, self.topic.partition)

    def on_end_of_topic(self) -> None:
        """Record that the topic is terminated and everything acknowledged."""
        self.reached_end = True
        self._on_arrival(self)

    def _give_back_unread(self, delivery: Delivery) -> None:
        with self.lock:
            self._grant(permits_of(delivery))
        if self.permits.on_demand:
            self._on_arrival(self)

    def look_again(self) -> None:
        """Wake those who wait for messages. On the loop."""
        self._on_arrival(self)

    def forget_deliveries(self) -> None:
        """Drop all deliveries and acknowledgements: the position has moved. Called under the lock."""
        self.chunks.clear()
        self._acks.forget()
        self._drop_queued()
        self.reached_end = False

    @property
    def is_reader(self) -> bool:
        """True if the broker stores no position for this subscription."""
        return not self._durable

    def note(self, name: str, number: int = 1) -> None:
        """Count a rare event, when recording is on. Thread-safe."""
        if self.stats is not None:
            self.stats.count(name, number)

    @property
    def acks_sent(self) -> int:
        """Number of messages whose acknowledgement was sent, a cumulative one counted once."""
        return self._acks.sent

    # --- acknowledging and redelivery (any thread) ------------------------------------------------------------------

    def acknowledge_message(self, message: Message, done: Done | None = None) -> None:
        """Acknowledge a message; sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        entry, index = message.entry, message.batch_index
        self._acks.add((entry.ledger_id, entry.entry_id), index, entry.batch_size, done)

    def acknowledge(self, ids: Iterable[MessageId], done: Done | None = None) -> None:
        """Acknowledge messages; sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self._acks.add_ids(ids, done)

    def acknowledge_skipped(self, place: MessageId) -> None:
        """Note the message a seek went behind as done, where nothing of its entry is left. Thread-safe."""
        if place.batch_index() + 1 < place.batch_size() or (place.batch_index() >= 0 and not place.batch_size()):
            # The rest of the batch is still to come; the broker knows from the seek what is left of it.
            return
        entry = MessageId(
            place.partition(), place.ledger_id(), place.entry_id(), first_chunk=place.first_chunk_message_id()
        )
        self.acknowledge([entry])

    def acknowledge_ranges(self, ranges: Iterable[EntryRange], done: Done | None = None) -> None:
        """Acknowledge entries; sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self._acks.add_ranges(ranges, done)

    def acknowledge_cumulative(self, message_id: MessageId, done: Done | None = None) -> None:
        """Acknowledge everything up to and including a message. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self._acks.add_cumulative(message_id, done)

    def negative_acknowledge(self, message_id: MessageId, redelivery_count: int = 0) -> None:
        """Request redelivery of a message after the configured delay. Thread-safe."""
        self.check_usable()
        self._acks.negative_acknowledge((message_id.ledger_id(), message_id.entry_id()), redelivery_count)

    def redeliver(self, entries: list[EntryKey] | None) -> None:
        """Request redelivery of entries, or of everything unacknowledged (None). Thread-safe."""
        self.check_usable()
        with self.lock:
            connection = self.connection
            if connection is None:
                # The broker redelivers everything unacknowledged after the reconnect anyway.
                return
            if entries is not None and self._acks.request_entries(entries):
                return
            returned = self.opened()[0] + sum(map(permits_of, self.all_deliveries))
            self._drop_queued()
            self.chunks.drop_incomplete()
            self._acks.forget_redelivery()
            if self._redeliver_all is not None:
                self._epoch += 1
                self.permits_to_return += returned
                self._redeliver_all.start()
                return
            connection.write([commands.redeliver(self.consumer_id, (), epoch=None)])
            if returned:
                self._grant(returned)
        if self.permits.on_demand:
            self.engine.call(self._on_arrival, self)

    def outstanding(self) -> int:
        """Return how many permits the broker has left, when nothing is queued here."""
        return self.permits.size - self.permits_to_return

    @property
    def is_rewinding(self) -> bool:
        """True while no permits are granted, so that the broker stops reading."""
        return self._redeliver_all is not None and self._redeliver_all.is_waiting

    def rewind(self, attachment: int) -> None:
        """Have the broker redeliver everything unacknowledged, if this is still the attachment. Under the lock."""
        if self.connection is not None and self.attachment == attachment:
            self.newest = None
            self.connection.write([commands.redeliver(self.consumer_id, (), epoch=self._epoch)])

    def grant_rewound(self) -> None:
        """Grant the permits that were withheld meanwhile. Under the lock."""
        self._grant(0)

    @property
    def acks(self) -> AckGroupingTracker:
        """Ack grouping tracker of this consumer."""
        return self._acks

    def size_of(self, key: EntryKey) -> int:
        """Return the batch size if the entry is the one being dequeued, else 0. Called under the lock."""
        if self._shows is not None and self.last_message is not None:
            # Later entries may be decoded already.
            entry = self.last_message.entry
            return entry.batch_size if (entry.ledger_id, entry.entry_id) == key else 0
        decoded = self._decoded
        return decoded.entry.batch_size if decoded is not None and decoded.entry.key == key else 0

    def check_usable(self) -> None:
        """Raise when the consumer is closed or has failed."""
        if self.state is not State.READY and self.state is not State.CONNECTING:
            self.note("acks_failed")
            raise self.failure or AlreadyClosed("The consumer is closed", topic=self.topic.full)

    # --- end ------------------------------------------------------------------------------------------------------

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription at the broker and close; on failure the consumer goes on."""
        await unsubscribe(self, force=force)

    async def close(self, timeout: float | None = None) -> ConsumerClose:
        """Send acknowledgements and close; the subscription stays at the broker. See `close.close`."""
        return await close(self, timeout)

    def begin_to_close_inline(self, connection: Connection) -> bool:
        """Accept no more acknowledgements, if it is attached to the connection and its close needs nothing of the loop
        but `abandon`. Thread-safe.
        """
        with self.lock:
            needs_loop = self.dead_letter_router is not None or self._key_task is not None or self._acks.has_receipts
            if self.state is not State.READY or self.connection is not connection or needs_loop:
                return False
            self.state = State.CLOSING
            return True

    def stop(self) -> None:
        """Deliver and acknowledge nothing more. Thread-safe, unless `needs_loop` of `begin_to_close_inline`."""
        if self.state is not State.CLOSED:
            self.note("acks_failed", self._acks.unsent())
        self.state = State.CLOSED
        if self._key_task is not None:
            self._key_task.cancel()
        self._acks.stop()
        if self.dead_letter_router is not None:
            self.dead_letter_router.abandon()
        with self.lock:
            # A closed consumer delivers nothing more; the broker stores what was not acknowledged.
            self._drop_queued()

    def abandon(self) -> None:
        """Close without a message to the broker; those who wait receive `AlreadyClosed`."""
        self.stop()
        self.leave()
        self._on_arrival(self)
