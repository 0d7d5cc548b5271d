"""Consumer of one topic or partition: drives its `ConsumerCore` with a lock, a connection and timers.

Rules: the loop only appends whole deliveries; the thread that receives decodes them. Every call of the core is under
the consumer's lock, and its commands are written before the lock is released. Messages the application has not dequeued
when the connection is lost are dropped, since the broker redelivers them. Acknowledgements are grouped and outlive the
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, Protocol

from pulsar_native._loggers import get_logger
from pulsar_native.arrow.batch import EntryRange
from pulsar_native.arrow.columns import EntryRows
from pulsar_native.arrow.entry_slice import BatchBudget, EntrySlice
from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.ack_grouping_tracker import BY_ENTRY, AckGroupingTracker
from pulsar_native.engine.consumer.ack_receipts import Done
from pulsar_native.engine.consumer.chunk_assembler import ChunkAssembler, assembly_of
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.engine.consumer.dead_letter import DeadLetterClient, DeadLetterRouter
from pulsar_native.engine.consumer.first_subscribe import FirstSubscribe
from pulsar_native.engine.consumer.redeliver_all import RedeliverAll
from pulsar_native.engine.consumer.undecodable import UndecodableEntries
from pulsar_native.engine.handler import Handler, State, is_unanswered
from pulsar_native.engine.metrics.statistics import ConsumerRecorder
from pulsar_native.enums import ConsumerType, SubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    NotConnected,
    PulsarException,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.consumer import Arriving, ConsumerCore
from pulsar_native.protocol.consumer_position import ConsumerPosition
from pulsar_native.protocol.entry_decoder import EntryDecoder
from pulsar_native.schema.versions import TopicDecoder
from pulsar_native.service_url import Address
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey
from pulsar_native.wire.frames import Frame

_log = get_logger("pulsar_native.consumer")

# Assumed without a connection, in bytes.
_MAX_MESSAGE_SIZE = 1 << 23


class ConsumerClient(DeadLetterClient, Protocol):
    """Client of a partition's consumer."""

    def consumer_recorder(self) -> ConsumerRecorder | None: ...


class _OnError:
    """Context manager that calls a function when its block is left by an exception. Usable any number of times."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: object) -> None:
        if kind is not None:
            self._function()


class PartitionConsumer(Handler):
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
        topic_decoder: TopicDecoder,
        wire_schema: pb.Schema | None,
        on_arrival: Callable[[PartitionConsumer], None],
        on_active_change: Callable[[bool, int], None] | None = None,
        on_redelivery: Callable[[str, list[EntryKey]], None] | None = None,
        arriving: Arriving | None = None,
        create_topic: bool = True,
        first: FirstSubscribe | None = None,
    ) -> None:
        super().__init__(client, topic)
        self.config = config
        # What has been sent, or is to be sent, at the first attachment, if it was built before.
        self._first = first
        self.consumer_id = client.next_consumer_id() if first is None else first.consumer_id
        self.name = name
        # An interceptor may acknowledge the message from its callback.
        self.lock: contextlib.AbstractContextManager[bool] = threading.Lock() if arriving is None else threading.RLock()
        self.reached_end = False
        # Of a reader: what it had returned last when it acknowledged, and up to which entry, in this attachment.
        self._read: tuple[object, EntryKey | None] = (None, None)
        # Last id of a topic of which the broker has none, as found by a search in this attachment.
        self.searched_last: MessageId | None = None
        # True for the active consumer of a Failover subscription, as reported by the broker on this connection.
        self.is_active: bool | None = None
        self._on_active_change = on_active_change
        # True while it is in the ring of its `MultiTopicsConsumer`, and between `begin_seek` and `end_seek`.
        self.queued = self.is_seeking = False
        self._seek_ended = asyncio.Event()
        # The broker refuses a seek that comes while another one is in progress.
        self.seek_lock = asyncio.Lock()
        self._create_topic = create_topic
        self._wire_schema = wire_schema
        self._topic_decoder = topic_decoder
        self._on_arrival = on_arrival
        self._durable = config.subscription_mode is SubscriptionMode.Durable
        # None while recording is off; called per entry, never per message.
        self.stats = client.consumer_recorder()
        self.position = ConsumerPosition(
            topic.full,
            topic.partition,
            config.start,
            inclusive=config.start_message_id_inclusive,
            is_durable=self._durable,
            is_reader=config.is_reader,
            is_stored=topic.is_persistent,
            is_compacted=config.is_read_compacted,
        )
        self._context = context = self._context_for_helpers()
        policy = config.dead_letter_policy
        self.dead_letter_router = (
            DeadLetterRouter(context, policy, client, self.redeliver) if policy is not None else None
        )
        self.chunks = assembly_of(config)
        # Without one, nothing is acknowledged: see `begin_seek`.
        acknowledging = dataclasses.replace(context, connection=lambda: None if self.is_seeking else self.connection)
        self.acks = AckGroupingTracker(
            acknowledging,
            self.chunks,
            self.dead_letter_router,
            redeliver=self.redeliver,
            on_redelivery=on_redelivery,
            batch_size_of=lambda key: self.core.size_of(key),
            next_request_id=client.next_request_id,
        )
        self.undecodable = UndecodableEntries(acknowledging, self.chunks, self.acks.watch, self._key_fetched)
        self._chunk_assembler = ChunkAssembler(
            context,
            self.chunks,
            self.acks,
            has_undecoded=lambda: self.core.has_undecoded,
            # An inactive consumer of a Failover subscription gets nothing.
            may_receive=lambda: self.is_active is not False and self.core.may_receive(),
            on_orphan=self._on_orphan,
        )
        self._entry_decoder = EntryDecoder(
            topic.full,
            topic.partition,
            topic_decoder.current,
            acks=self.acks,
            together=self._chunk_assembler.assemble,
            decryptor=self.undecodable.decryptor,
            undecodable=self.undecodable,
            dead_letters=self.dead_letter_router,
            recorder=self.stats,
            max_message_size=self._max_message_size,
            processor=config.message_payload_processor,
        )
        by_entry = config.consumer_type in BY_ENTRY
        self.core = ConsumerCore(
            self.consumer_id,
            queue_size,
            self.position,
            self._entry_decoder,
            scaled_within=client.memory if config.auto_scaled_receiver_queue_size_enabled else None,
            redelivers_entries=by_entry and topic.is_persistent,
            # On these subscriptions a request to redeliver everything moves the cursor, but only when no read is in
            # progress.
            rewinds=not by_entry and topic.is_persistent,
            in_order=config.consumer_type is ConsumerType.Exclusive and topic.is_persistent and not self._durable,
            arriving=arriving,
        )
        self._redeliver_all = RedeliverAll(
            context,
            self.core,
            ask_last=self.ask_last,
            is_active=lambda: self.is_active,
            write_outgoing=self.write_outgoing,
            look_again=self.look_again,
            reattach=self.reattach if self._durable else None,
        )
        self._unacked = self.acks.unacked
        self._start_over_on_error = _OnError(self._start_over)

    def _context_for_helpers(self) -> ConsumerContext:
        return ConsumerContext(
            self.topic,
            self.config,
            self.consumer_id,
            self.name,
            self.engine,
            self.lock,
            connection=lambda: self.connection,
            # While it is closing, too: an unsubscribe may be rejected, and their timers go on then.
            is_alive=lambda: not self.has_ended,
            check_usable=self.check_usable,
            call_later=self.call_later,
            note=self.note,
        )

    def describe(self) -> str:
        """Return a short name for logs."""
        return self._context.describe()

    def write_outgoing(self) -> None:
        """Write the commands of the core. Called under the lock."""
        frames, self.core.outgoing = self.core.outgoing, []
        if frames and self.connection is not None:
            self.connection.write(frames)

    # --- connection -----------------------------------------------------------------------------------------------

    def is_registered(self, connection: Connection) -> bool:
        """Return True if the connection passes the broker's frames to this consumer."""
        return connection.is_open and connection.has_consumer(self.consumer_id)

    async def attach(self, connection: Connection) -> None:
        """Subscribe, send pending acknowledgements, and grant the first permits."""
        with self.lock:
            start = self.core.begin_attachment()
            # Nothing is queued now: what comes is of this attachment.
            self._entry_decoder.use_schema(self._topic_decoder.current)
            if self._durable:
                # They are redelivered, or go to another consumer. A reader continues behind its last message: its
                # chunks may be before that.
                self.chunks.drop_incomplete()
        if self._first is None or self._first.connection is not connection:
            # Otherwise added before; the broker may have closed it again, which the check below is to find.
            connection.add_consumer(self.consumer_id, self)
        is_subscribed = False
        try:
            await self._subscribe(start, connection)
            is_subscribed = True
            if self.position.starts_at_latest:
                self.position.pin_latest(await self.ask_last(connection))
        except BaseException as error:
            connection.remove_consumer(self.consumer_id)
            if is_subscribed or is_unanswered(error):
                connection.write([commands.close_consumer(self.consumer_id, self.client.next_request_id())])
            raise
        # The broker's next frame may close the consumer again (an unload): read, and dispatched, before this task
        # continued.
        attached = connection.is_open and connection.has_consumer(self.consumer_id)
        if self.state not in (State.CONNECTING, State.READY) or not attached:
            connection.remove_consumer(self.consumer_id)
            connection.write([commands.close_consumer(self.consumer_id, self.client.next_request_id())])
            raise NotConnected("The consumer was closed, or the connection lost, meanwhile", topic=self.topic.full)
        self._use_attachment(connection)

    def attach_at_once(self) -> Connection | None:
        """Use the subscription that the calling thread has made, if the broker has confirmed it."""
        connection = None if self._first is None else self._first.confirmed()
        # The broker's next frame may have closed the consumer again.
        if connection is None or not self.is_registered(connection) or self.state is not State.CONNECTING:
            return None
        if self.position.starts_at_latest:
            # It is pinned by the id of the last message, which is still to be asked for.
            return None
        self._first = None
        with self.lock:
            self.core.begin_attachment()
        self._use_attachment(connection)
        return connection

    def _use_attachment(self, connection: Connection) -> None:
        """Send pending acknowledgements, and grant the first permits."""
        with self.lock:
            self.connection = connection
            self._read = (None, None)
            self.acks.reattached()
            # Before the permits, so that the broker does not redeliver acknowledged messages.
            self.acks.send()
            self.core.attached()
            self._chunk_assembler.restart_ages()
            self.write_outgoing()
        self.acks.start_unacked_timer()
        if self.core.permits.on_demand:
            # With a queue of 0 a waiting receiver requests its permit again.
            self._on_arrival(self)

    async def _subscribe(self, start: MessageId | None, connection: Connection) -> None:
        first, self._first = self._first, None
        if first is not None and first.answer is not None and first.connection is connection:
            answer = connection.answer(first.request_id, first.answer, pb.CommandSuccess)
            await self.answered(answer)
            return
        request_id = self.client.next_request_id()
        frame = commands.subscribe(
            self.config,
            topic=self.topic.full,
            consumer_id=self.consumer_id,
            request_id=request_id,
            consumer_name=self.name,
            start=start,
            schema=self._wire_schema,
            epoch=self.core.epoch,
            create_topic=self._create_topic,
        )
        await self.ask(request_id, frame, connection, pb.CommandSuccess)

    def detached(self) -> None:
        """Forget the connection."""
        with self.lock:
            super().detached()
            self.core.detached()
            self._topic_decoder.renew()
            self.is_active = self.searched_last = None
            self.acks.detached()

    async def reattach(self, connection: Connection) -> None:
        """Close the consumer at the broker and attach again: what is unacknowledged is redelivered."""
        request_id = self.client.next_request_id()
        try:
            await self.ask(
                request_id, commands.close_consumer(self.consumer_id, request_id), connection, pb.CommandSuccess
            )
        finally:
            # Without an answer, too: the broker may have closed it, and handles requests in order.
            connection.remove_consumer(self.consumer_id)
            if connection is self.connection:
                self.detached()
                self.reconnect(0.0)

    def _on_orphan(self, entry: EntryKey, chunk_id: int) -> None:
        """Start further back if the chunk is one of the message a reader starts at. Called under the lock.

        Order of events: 1. from now on everything is filtered out; 2. the consumer attaches again, from the first
        chunk; 3. that message comes, then what was filtered out. A seek, or a lost connection, in between is as good.
        """
        if self.position.start_at_first_chunk(entry, chunk_id):
            self.chunks.clear()
            self.engine.call(self._move_back)

    def _move_back(self) -> None:
        self.engine.spawn(self._attach_further_back())

    async def _attach_further_back(self) -> None:
        async with self.seek_lock:
            # Without a connection, or after an error, the next attachment starts there.
            with contextlib.suppress(PulsarException):
                connection = await self.ready(self.client.config.operation_timeout_seconds)
                if self.position.is_moving_back:
                    await self.reattach(connection)

    def on_closed_by_broker(self, connection: Connection, assigned: Address | None) -> None:
        """Reconnect, unless the broker closed the consumer for a seek, which resubscribes by itself."""
        if self.is_seeking and connection is self.connection:
            self.detached()
            return
        super().on_closed_by_broker(connection, assigned)

    def gave_up(self, error: PulsarException) -> None:
        """Wake those who wait for messages: they receive the error."""
        self.state = State.FAILED
        self.acks.stop(self.failure)
        self.leave()
        self._on_arrival(self)

    async def ask_last(self, connection: Connection) -> MessageId:
        """Return the id of the topic's last deliverable message, requested on this connection."""
        request_id = self.client.next_request_id()
        frame = commands.get_last_message_id(self.consumer_id, request_id)
        answer = await self.ask(request_id, frame, connection, pb.CommandGetLastMessageIdResponse)
        if answer.HasField("consumer_mark_delete_position"):
            self.position.mark_delete = commands.message_id(answer.consumer_mark_delete_position)
        return commands.message_id(answer.last_message_id, partition=self.topic.partition, topic=self.topic.full)

    # --- deliveries (loop) ----------------------------------------------------------------------------------------

    def on_message(self, message: pb.CommandMessage, payload: bytes, connection: Connection) -> None:
        """Queue a delivery undecoded."""
        core = self.core
        if not core.append(message, payload):
            with self.lock:
                core.return_outdated(message, payload)
                self.write_outgoing()
            if core.permits.on_demand:
                self._on_arrival(self)
            return
        if core.is_held:
            with self.lock:
                core.hand_back(latest_only=True)
                self.write_outgoing()
            return
        self._on_arrival(self)

    def on_messages(self, frames: list[Frame], connection: Connection) -> None:
        """Queue several deliveries undecoded, as `on_message` does one by one."""
        core = self.core
        # A strict pause that begins meanwhile has the loop return what is queued to the broker, when this is done.
        if core.is_held or not core.append_all(frames):
            for frame in frames:
                self.on_message(frame.command.message, frame.payload, connection)
            return
        self._on_arrival(self)

    def on_active_change(self, is_active: bool) -> None:
        """Record whether this consumer of a Failover subscription is the active one."""
        changed, self.is_active = is_active is not self.is_active, is_active
        if changed:
            with self.lock:
                self._chunk_assembler.restart_ages()
        if changed and self._on_active_change is not None:
            self._on_active_change(is_active, self.topic.partition)

    def on_end_of_topic(self) -> None:
        """Record that the topic is terminated and everything acknowledged."""
        self.reached_end = True
        self._on_arrival(self)

    def start_delivery(self, on_arrival: Callable[[PartitionConsumer], None]) -> None:
        """Report arrivals from now on, and immediately what arrived before. On the loop."""
        self._on_arrival = on_arrival
        on_arrival(self)

    def look_again(self) -> None:
        """Wake those who wait for messages. On the loop."""
        self._on_arrival(self)

    def begin_seek(self) -> None:
        """Hold acknowledgements, negative acks and ack time-outs until `end_seek`. Acquires the lock.

        The broker applies an acknowledgement that arrives between SEEK and its answer after the seek, so that the
        message does not come again.
        """
        self._seek_ended.clear()
        with self.lock:
            self.is_seeking = True

    def end_seek(self) -> None:
        """Send what was acknowledged since `begin_seek`, unless `on_seek` dropped it. Acquires the lock."""
        with self.lock:
            self.is_seeking = False
            if self.is_alive:
                self.acks.send()
            self.acks.resume_nacks()
        self._seek_ended.set()

    async def ready_to_acknowledge(self, timeout: float) -> Connection:
        """As `ready`, but also wait for the end of a seek."""
        connection = await self.ready(timeout)
        while self.is_seeking:
            await self._seek_ended.wait()
            connection = await self.ready(timeout)
        return connection

    def on_seek(self, position: MessageId | None, sought: MessageId | None, *, inclusive: bool) -> None:
        """Drop all deliveries and acknowledgements: the subscription was moved. Acquires the lock."""
        with self.lock:
            self.chunks.clear()
            self.acks.forget()
            self.core.on_seek(position, sought, inclusive=inclusive)
            self.reached_end = False

    def note(self, name: str, number: int = 1) -> None:
        """Count a rare event, when recording is on. Thread-safe."""
        if self.stats is not None:
            self.stats.count(name, number)

    # --- interrupted calls (any thread) -----------------------------------------------------------------------------

    def _start_over(self) -> None:
        """Attach again after an exception at any step of a receiving call. Called under the lock.

        Such as that of a signal's handler, which may leave an entry decoded in part, or permits unwritten. What is
        unacknowledged is redelivered, as after a lost connection.
        """
        self.core.break_off()
        self.engine.call_soon(self._begin_again, self.core.attachment)

    def _begin_again(self, attachment: int) -> None:
        if self.is_alive:
            self.engine.spawn(self._attach_again(attachment))

    async def _attach_again(self, attachment: int) -> None:
        async with self.seek_lock:
            # Without a connection, or after an error, the next attachment is to come anyway.
            with contextlib.suppress(PulsarException):
                connection = await self.ready(self.client.config.operation_timeout_seconds)
                if attachment == self.core.attachment:
                    await self.reattach(connection)

    # --- dequeue (any thread) ---------------------------------------------------------------------------------------

    def dequeue(self, prefetch: int = 0) -> Message | None:
        """Return the next message, None when there is none yet; up to `prefetch` following ones may be prefetched.
        Thread-safe.
        """
        with self.lock:
            # As with `_start_over_on_error`, without its calls.
            try:
                return self._dequeued(self.core.dequeue(prefetch))
            except BaseException:
                self._start_over()
                raise

    def dequeue_within(self, most: int, prefetch: int = 0) -> Message | Literal[False] | None:
        """As `dequeue`, but return False where the next message has more than `most` payload bytes: it stays queued.
        Thread-safe.
        """
        with self.lock, self._start_over_on_error:
            size = self.core.next_size()
            is_too_large = size is not None and size > most
            message = self._dequeued(None if size is None or is_too_large else self.core.dequeue(prefetch))
            return False if is_too_large else message

    def _dequeued(self, message: Message | None) -> Message | None:
        # Under the lock.
        if self.core.outgoing and not self.core.may_wait:
            self.write_outgoing()
        if self._unacked is not None and message is not None:
            # Messages prefetched with it are of the same entry, and the time-out is the entry's.
            self._unacked.add((message.entry.ledger_id, message.entry.entry_id))
        return message

    def dequeue_rows(self) -> EntryRows | None:
        """Return the rest of the current entry, or the next one, for columns; None when there is none yet."""
        entry_slice = self.dequeue_slice()
        return None if entry_slice is None else self._rows_of(entry_slice)

    def dequeue_rows_before(self, before: EntryKey, most: int, most_bytes: int) -> list[EntryRows]:
        """Return entries that are queued next, all before an entry; may return none. Thread-safe.

        No more when they have `most` rows or `most_bytes` payload bytes.
        """
        found = []
        with self.lock, self._start_over_on_error:
            while most > 0 and most_bytes > 0 and (taken := self.core.dequeue_slice_before(before)) is not None:
                self.acks.watch(taken[0].key)
                part = self._rows_of(EntrySlice(*taken))
                found.append(part)
                most -= len(part)
                most_bytes -= part.nbytes
                if self.core.outgoing and not self.core.may_wait:
                    self.write_outgoing()
        return found

    def _rows_of(self, entry_slice: EntrySlice) -> EntryRows:
        if entry_slice.entry.decryption_failed:
            # Not possible as columns; the range reader detects by this that the range is incomplete.
            self.undecodable.undecrypted_count += 1
        return entry_slice.part

    def dequeue_single_rows(self, before: EntryKey, most: int, most_bytes: int) -> list[EntryRows]:
        """Return entries of one message that are queued next, all before an entry; may return none. Thread-safe.

        At most `most`, and none more when they have `most_bytes` payload bytes.
        """
        if self._unacked is not None:
            # The ack time-out is noted entry by entry.
            return []
        with self.lock, self._start_over_on_error:
            messages = self.core.dequeue_singles(before, most, most_bytes)
            if not self.core.may_wait:
                self.write_outgoing()
        entries: list[Any] = [message.entry for message in messages]
        return [EntryRows(entry.parsed, entry.body, entry.ledger_id, entry.entry_id, 0, 1) for entry in entries]

    def dequeue_slice(self, budget: BatchBudget | None = None) -> EntrySlice | None:
        """Return as much of the current entry, or of the next one, as the budget allows; None when there is none.

        Without a budget all of it. With one, an entry that cannot be decrypted is None. Thread-safe.
        """
        with self.lock, self._start_over_on_error:
            found = self.core.dequeue_slice(budget)
            if not self.core.may_wait:
                self.write_outgoing()
            if found is None:
                return None
            self.acks.watch(found[0].key)
        return EntrySlice(*found)

    def enable_prefetch(self) -> None:
        """Fill the prefetch buffer from now on, unless each dequeued message needs processing. Thread-safe."""
        with self.lock:
            # The time-out of an entry begins when its first message is dequeued, not when it is decoded.
            self.core.enable_prefetch(entries=self._unacked is None)

    def count_dequeued(self) -> None:
        """Update the position to what was dequeued from the prefetch buffer. Thread-safe."""
        with self.lock, self._start_over_on_error:
            self.core.count_dequeued()
            self.write_outgoing()

    def dequeued_entry(self) -> tuple[int, int]:
        """Return ledger id and entry id of the last dequeued message, (-1, -1) before the first. Thread-safe."""
        self.count_dequeued()
        last = self.position.last_dequeued_message_id
        return (-1, -1) if last is None else (last.ledger_id(), last.entry_id())

    def put_back(self, messages: list[Message], restarts: int | None = None) -> None:
        """Put messages back at the head of the queue: the application did not receive them. Thread-safe.

        No effect if the core has counted another number of `restarts` since they were dequeued.
        """
        with self.lock, self._start_over_on_error:
            if self.has_ended or restarts not in (None, self.core.restarts):
                self.count_dropped(messages)
                return
            self.core.put_back(messages)
            if self._unacked is not None:
                for message in messages:
                    # Of a later message's entry the application may have received others.
                    if message.batch_index <= 0:
                        self._unacked.remove((message.entry.ledger_id, message.entry.entry_id))

    def count_dropped(self, messages: Sequence[Message]) -> None:
        """Count dequeued messages as not received: the application does not get them. Thread-safe."""
        if messages:
            self._entry_decoder.on_dropped(len(messages), sum(map(len, messages)))

    def on_receive_wait(self) -> None:
        """Process a waiting receiver: with a queue of 0 grant a permit for it. Thread-safe."""
        with self.lock, self._start_over_on_error:
            self.core.permits.on_receive_wait(self.core.is_empty())
            self.write_outgoing()

    def open_arrived(self) -> None:
        """Decode all deliveries now, rather than when they are dequeued, so that interceptors see them. Thread-safe."""
        with self.lock:
            self.core.open_arrived()
            self.write_outgoing()

    def pause(self, *, strict: bool) -> None:
        """Grant no more permits; if strict, deliver nothing more either. Thread-safe."""
        with self.lock:
            must_hand_back = self.core.pause(strict=strict)
            self.write_outgoing()
        if must_hand_back:
            self.engine.call(self._hand_back)

    def _hand_back(self) -> None:
        with self.lock:
            self.core.hand_back()
            self.write_outgoing()

    def resume(self) -> None:
        """Grant collected permits, and deliver what was withheld. Thread-safe."""
        with self.lock:
            self.core.resume()
            self._chunk_assembler.restart_ages()
            self.write_outgoing()
        # Waiting receivers look again, and with a queue of 0 request a permit again.
        self.engine.call(self.look_again)

    def drop_queued(self) -> None:
        """Drop queued messages: the topic is not read any more. Thread-safe."""
        with self.lock:
            self.core.drop_queued()

    def before_abort(self, acked: Collection[EntryKey]) -> None:
        """Before a transaction's abort, drop queued messages of the entries that will be redelivered as a whole.
        Thread-safe.
        """
        if self.config.consumer_type in BY_ENTRY:
            with self.lock:
                self.core.drop_messages_of(acked)
                self.write_outgoing()

    def _max_message_size(self) -> int:
        connection = self.connection
        return _MAX_MESSAGE_SIZE if connection is None else connection.max_message_size

    def _key_fetched(self) -> None:
        with self.lock:
            self.core.on_key_fetched()
        self._on_arrival(self)

    # --- queue state (thread-safe) ----------------------------------------------------------------------------------

    def may_have_more(self) -> bool:
        """Return True if dequeuing may return a message. Thread-safe, without lock."""
        return self.core.may_have_more()

    def has_queued(self) -> bool:
        """Return True if a message can be dequeued immediately, decoding as far as needed to be sure. Thread-safe."""
        with self.lock, self._start_over_on_error:
            found = self.core.has_queued()
            if self.core.outgoing:
                self.write_outgoing()
            return found

    def queued_messages(self) -> int:
        """Return the number of messages received and not dequeued. Thread-safe."""
        with self.lock:
            return self.core.queued()[0]

    def queued_bytes(self) -> int:
        """Return the bytes received and not dequeued: payload bytes, and all bytes of undecoded entries.
        Thread-safe.
        """
        with self.lock:
            return self.core.queued()[1]

    @property
    def attachment(self) -> int:
        """Number of attachments to a broker: with each one unacknowledged messages are redelivered."""
        return self.core.attachment

    @property
    def is_alive(self) -> bool:
        """True unless the consumer is closing, closed or failed."""
        return self.state is State.READY or self.state is State.CONNECTING

    @property
    def has_ended(self) -> bool:
        """True after the consumer was closed or has failed. One that is closing may go on: the broker rejects some
        unsubscribes.
        """
        return self.state is State.CLOSED or self.state is State.FAILED

    # --- acknowledging and redelivery (any thread) ------------------------------------------------------------------

    def acknowledge_message(self, message: Message, done: Done | None = None) -> None:
        """Acknowledge a message; sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        entry, index = message.entry, message.batch_index
        self.acks.add((entry.ledger_id, entry.entry_id), index, entry.batch_size, done)

    def acknowledge(self, ids: Iterable[MessageId], done: Done | None = None) -> None:
        """Acknowledge messages; sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self.acks.add_ids(ids, done)

    def acknowledge_ranges(self, ranges: Iterable[EntryRange], done: Done | None = None) -> None:
        """Acknowledge entries; sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self.acks.add_ranges(ranges, done)

    def acknowledge_cumulative(self, message_id: MessageId, done: Done | None = None) -> None:
        """Acknowledge everything up to and including a message. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self.acks.add_cumulative(message_id, done)

    def acknowledge_read(self) -> None:
        """Acknowledge what a reader has returned, unless that is done, or more is queued. Thread-safe.

        Only for the broker, which reports the end of a topic, and a backlog, by it. What the reader delivers does not
        depend on it, and its cursor ends with the attachment: nothing is kept to be sent again.
        """
        position, core = self.position, self.core
        read, acknowledged = self._read
        last = position.last_dequeued
        if last is not None and last is read and not core.prefetch.uncounted:
            return
        with self.lock, self._start_over_on_error:
            may_write = self.connection is not None and self.is_alive and not self.is_seeking
            if not may_write or not position.is_stored or core.has_queued():
                return
            core.count_dequeued()
            entry = position.read_to()
            self._read = (position.last_dequeued, entry)
            if entry is not None and entry != acknowledged:
                core.outgoing.append(commands.ack(self.consumer_id, [(*entry, None)], cumulative=True))
            self.write_outgoing()

    def negative_acknowledge(self, message_id: MessageId, redelivery_count: int = 0) -> None:
        """Request redelivery of a message after the configured delay. Thread-safe."""
        self.check_usable()
        self.acks.negative_acknowledge((message_id.ledger_id(), message_id.entry_id()), redelivery_count)

    def redeliver(self, entries: list[EntryKey] | None) -> None:
        """Request redelivery of entries, or of everything unacknowledged (None). Thread-safe."""
        # When it is closing, too: its timers go on, as the broker may reject an unsubscribe.
        if self.state is not State.CLOSING:
            self.check_usable()
        if not self.topic.is_persistent:
            # Nothing can be redelivered: what is queued is all there is.
            return
        with self.lock:
            is_attached = self.connection is not None
            if entries is not None and self.config.consumer_type in BY_ENTRY:
                # After a reconnect the broker redelivers everything unacknowledged anyway.
                if is_attached:
                    self.core.redeliver_entries(self.acks.entries_to_redeliver(entries))
                    self.write_outgoing()
                return
            if is_attached:
                # Sent later, what is acknowledged would be redelivered, too.
                self.acks.send()
                self.core.redeliver_all()
            elif self._durable:
                # What is queued must not come first: a cumulative acknowledgement of it would cover the others.
                self.core.redeliver_all_at_attachment()
            else:
                return
            self.chunks.drop_incomplete()
            self.acks.forget_redelivery()
            if not is_attached:
                return
            if self.core.rewinds:
                self._redeliver_all.start()
            self.write_outgoing()
        if self.core.permits.on_demand and not self.core.rewinds:
            self.engine.call(self._on_arrival, self)

    def check_usable(self) -> None:
        """Raise when the consumer is closed or has failed."""
        if self.state is not State.READY and self.state is not State.CONNECTING:
            self.note("acks_failed")
            raise self.failure or AlreadyClosed("The consumer is closed", topic=self.topic.full)

    # --- end ------------------------------------------------------------------------------------------------------

    def begin_to_close_inline(self, connection: Connection) -> bool:
        """Accept no more acknowledgements, if it is attached to the connection and its close needs nothing of the loop
        but `abandon`. Thread-safe.
        """
        with self.lock:
            needs_loop = (
                self.dead_letter_router is not None or self.undecodable.is_fetching_key or self.acks.has_receipts
            )
            if self.state is not State.READY or self.connection is not connection or needs_loop:
                return False
            self.state = State.CLOSING
            return True

    def stop(self) -> None:
        """Deliver and acknowledge nothing more. Thread-safe, unless `needs_loop` of `begin_to_close_inline`."""
        if self.state is not State.CLOSED:
            self.note("acks_failed", self.acks.unsent())
        self.state = State.CLOSED
        self.undecodable.stop()
        self.acks.stop(self.failure)
        if self.dead_letter_router is not None:
            self.dead_letter_router.abandon()
        with self.lock:
            # A closed consumer delivers nothing more; the broker stores what was not acknowledged.
            self.core.drop_queued()

    def abandon(self) -> None:
        """Close without a message to the broker; those who wait receive `AlreadyClosed`."""
        self.stop()
        self.leave()
        self._on_arrival(self)
