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
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.consuming.acknowledging import BY_ENTRY, Acknowledging
from pulsar_native.engine.consuming.chunking import assembly_of
from pulsar_native.engine.consuming.hand import Hand
from pulsar_native.engine.consuming.leaving import close, unsubscribe
from pulsar_native.engine.consuming.letters import Letters
from pulsar_native.engine.consuming.opening import Opening
from pulsar_native.engine.consuming.permits import Permits, ScaledPermits, expected_permits, permits_of
from pulsar_native.engine.consuming.positions import Positions
from pulsar_native.engine.consuming.receipts import Done
from pulsar_native.engine.consuming.rewinding import Rewinding
from pulsar_native.engine.network.connection import Connection
from pulsar_native.engine.network.handler import Handler, State
from pulsar_native.engine.observing.statistics import ConsumerRecorder
from pulsar_native.enums import SubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    NotConnected,
    PulsarException,
    Timeout,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.encryption import KeyWanted
from pulsar_native.protocol.entries import Corrupt, Decoded, Delivery, Undecryptable
from pulsar_native.protocol.pieces import Piece, Room
from pulsar_native.protocol.redelivery import EntryKey
from pulsar_native.received_rows import EntryRange
from pulsar_native.service_url import Address
from pulsar_native.stats import ConsumerClose
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.columns import EntrySlice

if TYPE_CHECKING:
    from pulsar_native.engine.client import ClientCore

_log = logging.getLogger("pulsar_native.consumer")

Shows = Callable[[list[Message]], list[Message]]


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
        create_topic: bool = True,
    ) -> None:
        super().__init__(client, topic)
        self.config = config
        self.consumer_id = client.next_consumer_id()
        self.name = config.consumer_name or "".join(random.choices(string.ascii_lowercase + string.digits, k=5))
        self.schema = schema
        self.reached_end = False
        # Whether this is the active consumer of a Failover subscription, by the broker's word on this connection.
        self.is_active: bool | None = None
        self.on_activity: Callable[[bool, int], None] | None = None
        self.queued = False
        self._create_topic = create_topic
        self._wire_schema = wire_schema
        self._on_arrival = on_arrival
        self.lock: contextlib.AbstractContextManager[bool] = threading.Lock()
        # What has arrived, and what of it is opened; and the same within reach of the application: the very same, or
        # nothing at all during a strict pause.
        self.all_deliveries: deque[Delivery] = deque()
        self._all_messages: deque[Message] = deque()
        self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self._decoded: Decoded | None = None
        # From which index on the messages of that entry are neither taken nor opened, when it is taken in pieces.
        self._cut_at: int | None = None
        # Where a face takes messages without the lock, and whether it does.
        self.hand = Hand()
        self._lends = False
        # Permits to give back, and how many of them are sent together: set by `permits`.
        self.given = self.refill = 0
        self._scaled = ScaledPermits(self, queue_size) if config.auto_scaled_receiver_queue_size_enabled else None
        self.permits = self._scaled or Permits(self, queue_size)
        # Whether the permits are told of each delivery.
        self._tells_arrivals = self._scaled is not None
        self._attachment = 0
        self._epoch = 0
        policy = config.dead_letter_policy
        self.letters = Letters(self, policy) if policy is not None else None
        # None while recording is off; told of entries, never of messages.
        self.stats: ConsumerRecorder | None = client.consumer_recorder()
        self.chunks = assembly_of(config)
        self._acks = Acknowledging(self, config, self.chunks)
        self.opening = Opening(self, self.chunks, self._acks)
        # Whether entries are looked at for more than their messages, once each.
        self._watches_entries = self.letters is not None or self._acks.late is not None
        self._durable = config.subscription_mode is SubscriptionMode.Durable
        # The last message given out, as itself: its id is only made when somebody asks.
        self.last_message: Message | None = None
        self.positions = Positions(self, config)
        # Told which entries are asked for again, and why, when there are interceptors.
        self.on_redelivery: Callable[[str, list[EntryKey]], None] | None = None
        # The last entry that came since the broker's cursor was last moved.
        self.newest: pb.MessageIdData | None = None
        # Where asking for everything again moves the cursor, when it stands still only.
        rewinds = config.consumer_type not in BY_ENTRY and topic.is_persistent
        self._rewinding = Rewinding(self) if rewinds else None
        # Shows messages to interceptors that want to see them arrive, and returns those to queue.
        self._shows: Shows | None = None
        self._awaits_key = False
        self._key_task: asyncio.Task[None] | None = None

    def describe(self) -> str:
        """Return a short name for logs."""
        return f"Consumer {self.name} of {self.topic} ({self.config.subscription_name})"

    # --- connection -----------------------------------------------------------------------------------------------

    async def attach(self, connection: Connection) -> None:
        """Subscribe, send what was acknowledged meanwhile, and grant the first permits."""
        with self.lock:
            self.call_back()
            start = self.positions.resume_at()
            self._drop_queued()
            if self._durable:
                # They come again, or go to another consumer. A reader goes on behind its last message: the chunks it
                # has may lie before that.
                self.chunks.drop_incomplete()
            self._attachment += 1
            self.newest = None
        request_id = self.client.next_request_id()
        frame = commands.subscribe(
            self.config,
            topic=self.topic.full,
            consumer_id=self.consumer_id,
            request_id=request_id,
            consumer_name=self.name,
            # Of a message in chunks, from its first one: none of them would be a whole without the others.
            start=start and (start.first_chunk_message_id() or start),
            schema=self._wire_schema,
            epoch=self._epoch,
            create_topic=self._create_topic,
        )
        connection.add_consumer(self.consumer_id, self)
        try:
            await self.ask(request_id, frame, connection, pb.CommandSuccess)
            if start == MessageId.latest:
                await self.positions.pin_latest(connection)
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
            self._acks.reattached()
            # Before the permits, so that the broker does not deliver again what is acknowledged.
            self._acks.send()
            # What a paused consumer may ask for collects until it goes on.
            self.permits.begin()
        self._acks.start_unacked_timer()
        if self.permits.on_demand:
            # Whoever waits asks again.
            self._on_arrival(self)

    async def open(self) -> None:
        """Subscribe for the first time, within one operation time-out."""
        steps_back = self.positions.starts_at_latest and self.config.start_message_id_inclusive
        await super().open()
        if steps_back:
            await self.positions.step_back()

    def _drop_queued(self) -> None:
        self._open_cut()
        if self.stats is not None and self._all_messages:
            messages, size = self.opened()
            self.stats.received(-messages, -size)
        if self._scaled is not None:
            for delivery in self.all_deliveries:
                self._scaled.taken(delivery)
        self.all_deliveries.clear()
        self._all_messages.clear()
        self._decoded = None
        self.positions.dropped()

    def detached(self) -> None:
        """Forget the connection."""
        with self.lock:
            super().detached()
            self.is_active = None
            self._acks.detached()

    def on_closed_by_broker(self, connection: Connection, assigned: Address | None) -> None:
        """Come back, unless the broker only answers a seek, which resubscribes by itself."""
        if self.positions.is_seeking and connection is self.connection:
            self.detached()
            return
        super().on_closed_by_broker(connection, assigned)

    def gave_up(self, error: PulsarException) -> None:
        """Wake whoever waits for messages: they get the error."""
        self.state = State.FAILED
        self._acks.stop()
        self.leave()
        self._on_arrival(self)

    # --- deliveries (loop) ----------------------------------------------------------------------------------------

    def on_message(self, message: pb.CommandMessage, payload: bytes, connection: Connection) -> None:
        """Queue a delivery as it is."""
        self.newest = message.message_id
        if message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch:
            # Sent before our last request to deliver everything again: the same message follows.
            self._give_back_unread(Delivery(message, payload, self._attachment))
            return
        delivery = Delivery(message, payload, self._attachment)
        self.all_deliveries.append(delivery)
        if self._tells_arrivals:
            self.permits.arrived(delivery)
            if self.permits.held:
                return
        self._on_arrival(self)

    def on_active_change(self, is_active: bool) -> None:
        """Note whether this consumer of a Failover subscription is the one that gets messages."""
        changed, self.is_active = is_active is not self.is_active, is_active
        if changed and self.on_activity is not None:
            self.on_activity(is_active, self.topic.partition)

    def on_end_of_topic(self) -> None:
        """Note that the topic is terminated and everything acknowledged."""
        self.reached_end = True
        self._on_arrival(self)

    def _give_back_unread(self, delivery: Delivery) -> None:
        with self.lock:
            self._grant(permits_of(delivery))
        if self.permits.on_demand:
            self._on_arrival(self)

    # --- taking (any thread) --------------------------------------------------------------------------------------

    def take(self, lend: bool = False) -> Message | None:
        """Return the next message, None when there is none yet; those behind it may be lent. Thread-safe."""
        with self.lock:
            if self.hand:
                with contextlib.suppress(IndexError):
                    # Others may take the last one at this moment.
                    return self.hand.messages.popleft()
                self._count_taken()
            if not self._lends or self._messages:
                return self._take_queued()
            if not self._begin_piece():
                return None
            decoded, first = self._decoded, self._cut_at
            assert decoded is not None and first is not None
            if not decoded.is_whole_batch:
                self._open_cut()
                return self._take_queued()
            (message,) = decoded.messages_between(first, first + 1)
            self._took(message)
            stop = first + 1
            if lend:
                # As many as do not make permits due.
                stop = min(decoded.wanted, max(stop, first + self.refill - self.given))
                self.hand.lend(decoded, first + 1, stop)
            self._cut_at = stop if stop < decoded.wanted else None
            return message

    def _take_queued(self) -> Message | None:
        """Return the next message of those that are opened. Called under the lock."""
        messages = self._messages
        if not messages and not self._decode_wanted():
            return None
        message = messages.popleft()
        self._took(message)
        unacked = self._acks.unacked
        if unacked is not None:
            unacked.add((message.entry.ledger_id, message.entry.entry_id))
        return message

    def _took(self, message: Message) -> None:
        """Count a message as given out. Called under the lock."""
        self.last_message = message
        self.given += 1
        if self.given >= self.refill:
            self.permits.send()

    def begin_to_lend(self) -> None:
        """Put messages into the hand from now on, unless something is to be done for each when it is taken."""
        watched = self._shows is not None or self._scaled is not None or self._acks.unacked is not None
        self._lends = not watched and not self.permits.on_demand

    def end_lending(self) -> None:
        """Put no more messages into the hand, and take back those that are there. Thread-safe."""
        with self.lock:
            self._lends = False
            self.call_back()

    def count_taken(self) -> None:
        """Bring `last_message` up to what was taken from the hand. Thread-safe."""
        with self.lock:
            self._count_taken()

    def _count_taken(self) -> None:
        taken, last = self.hand.count()
        if last is not None:
            self.last_message = last
            self._grant(taken)

    def call_back(self) -> None:
        """Have nothing in hand: what was not taken is queued again, as itself. Called under the lock."""
        if self.hand:
            back = self.hand.call_back()
            self._count_taken()
            self._all_messages.extendleft(back)
            self._open_cut()

    def _decode_wanted(self) -> bool:
        """Decode deliveries until there is a message to give out; False when there is none yet."""
        self._open_cut()
        while not self._messages:
            if not self._decode_next():
                return False
            self._open_decoded()
        return True

    def _open_decoded(self) -> None:
        if self._decoded is not None:
            messages = self._decoded.messages()
            self._messages.extend(messages if self._shows is None else self._shows(messages))

    def show_arrivals(self, shows: Shows) -> None:
        """Show all messages as they arrive, from `open_arrived` or whoever takes. Before anything has arrived."""
        self._shows = shows
        # What is shown may be acknowledged on the spot.
        self.lock = threading.RLock()

    def open_arrived(self) -> None:
        """Decode all that has arrived, rather than when it is taken, so that it is shown. Thread-safe."""
        with self.lock:
            self._open_cut()
            while self._decode_next():
                self._open_decoded()

    def take_slice(self) -> EntrySlice | None:
        """Return the rest of the current entry, or the next one, for columns; None when there is none yet."""
        piece = self.take_piece()
        if piece is None:
            return None
        if piece.entry.decryption_failed:
            # Not fit for columns; the range being read sees by this that it is incomplete.
            self.opening.undecrypted_count += 1
        return piece.part

    def take_piece(self, room: Room | None = None) -> Piece | None:
        """Return as much of the current entry, or of the next one, as there is room for; None when there is none.

        Without room all of it. An entry that cannot be decrypted is none for a room. Thread-safe.
        """
        with self.lock:
            self.call_back()
            messages = self._messages
            if messages:
                entry: Any = messages[0].entry
                run = list(takewhile(lambda message: message.entry is entry, messages))
                indexes: Sequence[int] = [max(0, message.batch_index) for message in run]
                sizes = [] if room is None else list(map(len, run))
            elif self._begin_piece():
                assert self._decoded is not None and self._cut_at is not None
                entry = self._decoded.entry
                indexes = self._decoded.indexes(self._cut_at)
                sizes = [] if room is None else self._decoded.sizes(indexes)
            else:
                return None
            if room is not None and entry.decryption_failed:
                room.locked = entry
                return None
            count = len(indexes) if room is None else room.take(sizes)
            if not count:
                return None
            for _ in range(count if messages else 0):
                messages.popleft()
            if self._cut_at is not None:
                self._cut_at = indexes[count] if count < len(indexes) else None
            piece = Piece(entry, indexes[:count])
            last = piece.part.last - 1 if entry.is_batch else -1
            place = MessageId(self.topic.partition, entry.ledger_id, entry.entry_id, last, batch_size=entry.batch_size)
            self.positions.took(place)
            if self._acks.unacked is not None:
                self._acks.unacked.add(entry.key)
            self._grant(count)
            return piece

    def _begin_piece(self) -> bool:
        """Have an entry with messages to give out decoded; False when there is none yet."""
        while self._cut_at is None:
            if not self._decode_next():
                return False
            if self._decoded is not None:
                self._cut_at = 0
        return True

    def _open_cut(self) -> None:
        """Make messages of what a piece has left of its entry: somebody asks for them, or counts them."""
        self.call_back()
        if self._cut_at is not None and self._decoded is not None:
            self._all_messages.extend(self._decoded.messages_from(self._cut_at))
        self._cut_at = None

    def _grant(self, count: int) -> None:
        """Count permits to give back and send them once they are half a queue."""
        self.given += count
        if self.given >= self.refill:
            self.permits.send()

    def put_out_of_reach(self) -> None:
        """Give out nothing more: what is here, and what still comes, is kept aside. Called under the lock."""
        self._open_cut()
        self._deliveries, self._messages = deque(), deque()
        self._tells_arrivals = True

    def put_within_reach(self) -> None:
        """Give out again what is here and what comes. Called under the lock."""
        self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self._tells_arrivals = self._scaled is not None

    def put_back(self, messages: list[Message]) -> None:
        """Give messages out again later, ahead of all others: the application did not get them. Thread-safe."""
        with self.lock:
            if self.is_alive:
                self._open_cut()
                self._all_messages.extendleft(reversed(messages))
                self.given -= len(messages)

    def look_again(self) -> None:
        """Have whoever waits for messages look again. On the loop."""
        self._on_arrival(self)

    @property
    def has_local(self) -> bool:
        """Whether anything is here that was not given out. Called under the lock."""
        return bool(self._all_messages or self.all_deliveries or self._cut_at is not None or self.hand.messages)

    def forget_deliveries(self) -> None:
        """Forget all that arrived and what was acknowledged of it: the place has moved. Called under the lock."""
        self.chunks.clear()
        self._acks.forget()
        self._drop_queued()
        self.reached_end = False

    def drop_queued(self) -> None:
        """Forget what was not taken: the topic is not read any more. Thread-safe."""
        with self.lock:
            self._drop_queued()

    def drop_messages_of(self, entries: Collection[EntryKey]) -> None:
        """Forget what was not taken of entries that come again as a whole. Thread-safe."""
        with self.lock:
            self._open_cut()
            waiting = self._all_messages
            kept = [each for each in waiting if (each.entry.ledger_id, each.entry.entry_id) not in entries]
            dropped = len(waiting) - len(kept)
            if dropped:
                messages, size = self.opened()
                waiting.clear()
                waiting.extend(kept)
                if self.stats is not None:
                    self.stats.received(len(kept) - messages, self.opened()[1] - size)
                self._grant(dropped)

    def _next_delivery(self) -> Delivery | None:
        if self._awaits_key:
            return None
        scaled = self._scaled
        try:
            delivery = self._deliveries.popleft()
        except IndexError:
            if scaled is not None:
                scaled.drained()
            return None
        if scaled is not None:
            scaled.taken(delivery)
        return delivery

    def _decode_next(self) -> bool:
        """Decode one delivery into `_decoded` (None when nothing of it is wanted); False when there is none yet."""
        delivery = self._next_delivery()
        if delivery is None:
            return False
        self._decoded = None
        self._acks.catch_up()
        key = (delivery.ledger_id, delivery.entry_id)
        if delivery.attachment != self._attachment:
            return True
        if self._acks.group.covers(key):
            self.positions.seen = key
            self._grant(permits_of(delivery))
            return True
        try:
            decoded = self.opening.open(delivery, self.connection)
        except KeyWanted as wanted:
            self._wait_for_key(delivery, wanted)
            return False
        except (Corrupt, Undecryptable) as error:
            self.positions.seen = key
            self._grant(self.opening.refuse(delivery, error, self.connection))
            return True
        self.positions.seen = key
        if decoded is None:
            # A chunk of a message that is not complete yet.
            self._grant(1)
            return True
        expected = expected_permits(decoded.entry.parsed.num_messages, delivery)
        given = 0 if self._watches_entries and self._keeps_back(decoded) else decoded.wanted
        self._grant(max(0, expected - given))
        if given:
            self._decoded = decoded
            self._count(decoded)
        return True

    def _keeps_back(self, decoded: Decoded) -> bool:
        """Note how often an entry was redelivered; True when it goes to the dead-letter topic instead."""
        if self._acks.late is not None:
            self._acks.late.delivered(decoded.entry.key, decoded.entry.redelivery_count)
        return self.letters is not None and decoded.wanted > 0 and self.letters.keeps(decoded)

    def _count(self, decoded: Decoded) -> None:
        if self.stats is not None:
            self.stats.received(decoded.wanted, decoded.payload_bytes())
        if self._scaled is not None:
            self._scaled.passed += decoded.wanted

    @property
    def is_reader(self) -> bool:
        """Whether the broker keeps no position for this subscription."""
        return not self._durable

    def _wait_for_key(self, delivery: Delivery, wanted: KeyWanted) -> None:
        """Have a private key read in another thread; deliveries wait in order meanwhile."""
        self._deliveries.appendleft(delivery)
        if self._scaled is not None:
            self._scaled.kept(delivery)
        self._awaits_key = True
        self.engine.call(self._fetch_key, wanted)

    def _fetch_key(self, wanted: KeyWanted) -> None:
        if self.is_alive:
            self._key_task = self.engine.spawn(self._learn_key(wanted))

    async def _learn_key(self, wanted: KeyWanted) -> None:
        learn = await asyncio.to_thread(self.opening.fetch_key, wanted)
        with self.lock:
            learn()
            self._awaits_key = False
        self._on_arrival(self)

    def has_queued(self) -> bool:
        """Return whether a message can be taken at once, decoding as far as needed to be sure. Thread-safe."""
        with self.lock:
            return bool(self.hand.messages or self._cut_at is not None) or self._decode_wanted()

    def opened(self) -> tuple[int, int]:
        """Return messages, and bytes of payload, that are decoded and not taken yet. Called under the lock."""
        self._open_cut()
        return len(self._all_messages), sum(map(len, self._all_messages))

    def queued_messages(self) -> int:
        """Return how many messages have arrived and were not taken. Thread-safe."""
        with self.lock:
            opened, waiting = self.opened()[0], list(self.all_deliveries)
        return opened + sum(map(permits_of, waiting))

    def queued_bytes(self) -> int:
        """Return the bytes that have arrived and were not taken: payloads, and of entries not looked at all of it."""
        with self.lock:
            return self.opened()[1] + sum(len(delivery.payload) for delivery in self.all_deliveries)

    def note(self, name: str, number: int = 1) -> None:
        """Count something rare, when recording is on. Thread-safe."""
        if self.stats is not None:
            self.stats.count(name, number)

    @property
    def acks_sent(self) -> int:
        """Messages whose acknowledgement was sent, a cumulative one counted once."""
        return self._acks.sent

    @property
    def has_undecoded(self) -> bool:
        """Whether a delivery was not looked at yet. Thread-safe, without lock."""
        return bool(self.all_deliveries)

    def may_have_more(self) -> bool:
        """Return whether taking again may give a message. Thread-safe, without lock."""
        return bool(
            self._messages
            or self._cut_at is not None
            or self.hand.messages
            or (self._deliveries and not self._awaits_key)
        )

    # --- acknowledging and redelivery (any thread) ------------------------------------------------------------------

    def acknowledge_message(self, message: Message, done: Done | None = None) -> None:
        """Note a message as done; it is sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        entry, index = message.entry, message.batch_index
        self._acks.add((entry.ledger_id, entry.entry_id), index, entry.batch_size, done)

    def acknowledge(self, ids: Iterable[MessageId], done: Done | None = None) -> None:
        """Note messages as done; they are sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self._acks.add_ids(ids, done)

    def acknowledge_ranges(self, ranges: Iterable[EntryRange], done: Done | None = None) -> None:
        """Note entries as done; they are sent within the group time. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self._acks.add_ranges(ranges, done)

    def acknowledge_cumulative(self, message_id: MessageId, done: Done | None = None) -> None:
        """Note everything up to and including a message as done. `done` waits for the receipt. Thread-safe."""
        self.check_usable()
        self._acks.add_cumulative(message_id, done)

    def negative_acknowledge(self, message_id: MessageId, redelivery_count: int = 0) -> None:
        """Ask for a message again after the configured delay. Thread-safe."""
        self.check_usable()
        self._acks.refuse((message_id.ledger_id(), message_id.entry_id()), redelivery_count)

    def redeliver(self, entries: list[EntryKey] | None) -> None:
        """Ask the broker for entries again, or for everything unacknowledged (None). Thread-safe."""
        self.check_usable()
        with self.lock:
            connection = self.connection
            if connection is None:
                # The broker delivers everything unacknowledged again anyway once we are back.
                return
            if entries is not None and self._acks.request_entries(entries):
                return
            returned = self.opened()[0] + sum(map(permits_of, self.all_deliveries))
            self._drop_queued()
            self.chunks.drop_incomplete()
            self._acks.forget_redelivery()
            if self._rewinding is not None:
                self._epoch += 1
                self.given += returned
                self._rewinding.start()
                return
            connection.write([commands.redeliver(self.consumer_id, (), epoch=None)])
            if returned:
                self._grant(returned)
        if self.permits.on_demand:
            self.engine.call(self._on_arrival, self)

    def outstanding(self) -> int:
        """Return how many permits the broker has left, when nothing is queued here."""
        return self.permits.size - self.given

    @property
    def is_rewinding(self) -> bool:
        """Whether no permits are given, so that the broker's cursor comes to stand still."""
        return self._rewinding is not None and self._rewinding.is_waiting

    def rewind(self, attachment: int) -> None:
        """Have the broker deliver everything unacknowledged again, if that is the attachment still. Under the lock."""
        if self.connection is not None and self._attachment == attachment:
            self.newest = None
            self.connection.write([commands.redeliver(self.consumer_id, (), epoch=self._epoch)])
        self._grant(0)

    @property
    def acks(self) -> Acknowledging:
        """What it owes the broker."""
        return self._acks

    @property
    def attachment(self) -> int:
        """How often the consumer was attached: what is unacknowledged comes again with every attachment."""
        return self._attachment

    def size_of(self, key: EntryKey) -> int:
        """Return the size of the batch being given out when that is the entry, else 0. Called under the lock."""
        if self._shows is not None and self.last_message is not None:
            # More may be decoded already.
            entry = self.last_message.entry
            return entry.batch_size if (entry.ledger_id, entry.entry_id) == key else 0
        decoded = self._decoded
        return decoded.entry.batch_size if decoded is not None and decoded.entry.key == key else 0

    @property
    def is_alive(self) -> bool:
        """Whether the consumer is neither closed nor failed."""
        return self.state is State.READY or self.state is State.CONNECTING

    def check_usable(self) -> None:
        """Raise when the consumer is closed or has failed."""
        if self.state is not State.READY and self.state is not State.CONNECTING:
            self.note("acks_failed")
            raise self.failure or AlreadyClosed("The consumer is closed", topic=self.topic.full)

    # --- end ------------------------------------------------------------------------------------------------------

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Remove the subscription at the broker and close; on failure the consumer goes on."""
        await unsubscribe(self, force=force)

    async def close(self, timeout: float | None = None) -> ConsumerClose:
        """Send what was acknowledged and leave the subscription, which stays at the broker. See `leaving.close`."""
        return await close(self, timeout)

    def abandon(self) -> None:
        """Close without a word to the broker; whoever waits gets `AlreadyClosed`."""
        if self.state is not State.CLOSED:
            self.note("acks_failed", self._acks.unsent())
        self.state = State.CLOSED
        if self._key_task is not None:
            self._key_task.cancel()
        self._acks.stop()
        if self.letters is not None:
            self.letters.abandon()
        with self.lock:
            # A closed consumer gives out nothing more; the broker keeps what was not acknowledged.
            self._drop_queued()
        self.leave()
        self._on_arrival(self)
