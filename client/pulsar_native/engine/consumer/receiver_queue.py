"""Receiver queue of a topic or partition: undecoded deliveries, the messages of one entry, and the prefetch buffer.

Rules: the loop only appends whole deliveries; the thread that receives decodes them, under the lock. Message objects
are created when they are needed: the rest of an entry is a number of messages. Order: prefetch buffer, created
messages, the rest of the entry, deliveries. Permits are returned in bulk at half the queue, counted in messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pulsar_native.arrow.columns import EntryRows
from pulsar_native.arrow.entry_slice import BatchBudget, EntrySlice
from pulsar_native.engine.consumer.permits import Permits, ScaledPermits, expected_permits, permits_of
from pulsar_native.engine.consumer.prefetch_buffer import PrefetchBuffer
from pulsar_native.engine.handler import Handler, State
from pulsar_native.engine.metrics.statistics import ConsumerRecorder
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.data_keys import KeyWanted
from pulsar_native.protocol.entry_decoder import Corrupt, Decoded, Delivery, Undecryptable
from pulsar_native.topic import TopicName
from pulsar_native.wire.entry import EntryKey

if TYPE_CHECKING:
    from pulsar_native.engine.client_context import ClientContext
    from pulsar_native.engine.consumer.ack_grouping_tracker import AckGroupingTracker
    from pulsar_native.engine.consumer.dead_letter import DeadLetterRouter
    from pulsar_native.engine.consumer.entry_decoder import EntryDecoder
    from pulsar_native.engine.consumer.seek import ConsumerPosition

Shows = Callable[[list[Message]], list[Message]]


class ReceiverQueue(Handler):
    """Receiver queue of a `PartitionConsumer`, which inherits it, and creates the parts it works with."""

    permits: Permits
    dead_letter_router: DeadLetterRouter | None
    decoder: EntryDecoder
    position: ConsumerPosition
    # None while recording is off; called per entry, never per message.
    stats: ConsumerRecorder | None
    _acks: AckGroupingTracker
    _scaled: ScaledPermits | None
    # True if the permits are notified of each delivery.
    _tells_arrivals: bool
    # True if each decoded entry is passed to trackers or the dead-letter router.
    _watches_entries: bool

    def __init__(self, client: ClientContext, topic: TopicName) -> None:
        super().__init__(client, topic)
        self.lock: contextlib.AbstractContextManager[bool] = threading.Lock()
        # All deliveries and decoded messages; and the same for the application: the same objects, or empty ones during
        # a strict pause.
        self.all_deliveries: deque[Delivery] = deque()
        self._all_messages: deque[Message] = deque()
        self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self._decoded: Decoded | None = None
        # Index from which the messages of that entry are neither dequeued nor created; None when all are created.
        self._cut_at: int | None = None
        # Buffer the APIs dequeue from without the lock, and whether it is in use.
        self.prefetch = PrefetchBuffer()
        self._prefetches = False
        # Permits to return, and the number that is sent at once: set by `permits`.
        self.permits_to_return = self.flow_threshold = 0
        # Number of attachments: with every attachment unacknowledged messages are redelivered.
        self.attachment = 0
        # Last dequeued message, as an object: its id is created on demand.
        self.last_message: Message | None = None
        # Passes arriving messages to interceptors, and returns those to queue.
        self._shows: Shows | None = None
        self._awaits_key = False
        self._key_task: asyncio.Task[None] | None = None

    @abstractmethod
    def look_again(self) -> None:
        """Wake those who wait for messages. On the loop."""

    # --- dequeue (any thread) ---------------------------------------------------------------------------------------

    def dequeue(self, prefetch: bool = False) -> Message | None:
        """Return the next message, None when there is none yet; the following ones may be prefetched. Thread-safe."""
        with self.lock:
            if self._prefetches:
                return self._dequeue_prefetching(prefetch)
            messages = self._messages
            if not messages and not self._decode_wanted():
                return None
            message = messages.popleft()
            self._on_dequeued(message)
            unacked = self._acks.unacked
            if unacked is not None:
                unacked.add((message.entry.ledger_id, message.entry.entry_id))
            return message

    def _dequeue_prefetching(self, prefetch: bool) -> Message | None:
        """Return the next message of a consumer that prefetches: from the buffer, refilling it where possible."""
        if self.prefetch:
            with contextlib.suppress(IndexError):
                # Other threads may dequeue the last one concurrently.
                return self.prefetch.messages.popleft()
            self._count_dequeued()
        if not self._messages:
            if not self._begin_slice():
                return None
            decoded, first = self._decoded, self._cut_at
            assert decoded is not None and first is not None
            if decoded.is_whole_batch:
                return self._dequeue_from_batch(decoded, first, prefetch)
            self._open_cut()
        message = self._messages.popleft()
        self._on_dequeued(message)
        return message

    def _dequeue_from_batch(self, decoded: Decoded, first: int, prefetch: bool) -> Message:
        (message,) = decoded.messages_between(first, first + 1)
        self._on_dequeued(message)
        stop = first + 1
        if prefetch:
            # As many as do not make permits due.
            stop = min(decoded.wanted, max(stop, first + self.flow_threshold - self.permits_to_return))
            self.prefetch.fill(decoded, first + 1, stop)
        self._cut_at = stop if stop < decoded.wanted else None
        return message

    def _on_dequeued(self, message: Message) -> None:
        """Count a message as dequeued. Called under the lock."""
        self.last_message = message
        self.permits_to_return += 1
        if self.permits_to_return >= self.flow_threshold:
            self.permits.send()

    def enable_prefetch(self) -> None:
        """Fill the prefetch buffer from now on, unless each dequeued message needs processing."""
        watched = self._shows is not None or self._scaled is not None or self._acks.unacked is not None
        self._prefetches = not watched and not self.permits.on_demand

    def disable_prefetch(self) -> None:
        """Stop filling the prefetch buffer, and reclaim its messages. Thread-safe."""
        with self.lock:
            self._prefetches = False
            self.reclaim_prefetched()

    def count_dequeued(self) -> None:
        """Update `last_message` to what was dequeued from the prefetch buffer. Thread-safe."""
        with self.lock:
            self._count_dequeued()

    def _count_dequeued(self) -> None:
        taken, last = self.prefetch.taken()
        if last is not None:
            self.last_message = last
            self._grant(taken)

    def reclaim_prefetched(self) -> None:
        """Empty the prefetch buffer: its messages are queued again, as objects. Called under the lock."""
        if self.prefetch:
            back = self.prefetch.reclaim()
            self._count_dequeued()
            self._all_messages.extendleft(back)
            self._open_cut()

    def dequeue_rows(self) -> EntryRows | None:
        """Return the rest of the current entry, or the next one, for columns; None when there is none yet."""
        entry_slice = self.dequeue_slice()
        if entry_slice is None:
            return None
        if entry_slice.entry.decryption_failed:
            # Not possible as columns; the range reader detects by this that the range is incomplete.
            self.decoder.undecrypted_count += 1
        return entry_slice.part

    def dequeue_slice(self, budget: BatchBudget | None = None) -> EntrySlice | None:
        """Return as much of the current entry, or of the next one, as the budget allows; None when there is none.

        Without a budget all of it. With one, an entry that cannot be decrypted is None. Thread-safe.
        """
        with self.lock:
            self.reclaim_prefetched()
            messages = self._messages
            if messages:
                entry: Any = messages[0].entry
                run = list(takewhile(lambda message: message.entry is entry, messages))
                indexes: Sequence[int] = [max(0, message.batch_index) for message in run]
                sizes = [] if budget is None else list(map(len, run))
            elif self._begin_slice():
                assert self._decoded is not None and self._cut_at is not None
                entry = self._decoded.entry
                indexes = self._decoded.indexes(self._cut_at)
                sizes = [] if budget is None else self._decoded.sizes(indexes)
            else:
                return None
            if budget is not None and entry.decryption_failed:
                budget.locked = entry
                return None
            count = len(indexes) if budget is None else budget.spend(sizes)
            if not count:
                return None
            for _ in range(count if messages else 0):
                messages.popleft()
            if self._cut_at is not None:
                self._cut_at = indexes[count] if count < len(indexes) else None
            entry_slice = EntrySlice(entry, indexes[:count])
            last = entry_slice.part.last - 1 if entry.is_batch else -1
            place = MessageId(self.topic.partition, entry.ledger_id, entry.entry_id, last, batch_size=entry.batch_size)
            self.position.set_last_dequeued(place)
            if self._acks.unacked is not None:
                self._acks.unacked.add(entry.key)
            self._grant(count)
            return entry_slice

    def _begin_slice(self) -> bool:
        """Decode up to an entry with messages to deliver; return False when there is none yet."""
        while self._cut_at is None:
            if not self._decode_next():
                return False
            if self._decoded is not None:
                self._cut_at = 0
        return True

    def _open_cut(self) -> None:
        """Create the messages a slice has left of its entry: they are needed, or counted."""
        self.reclaim_prefetched()
        if self._cut_at is not None and self._decoded is not None:
            self._all_messages.extend(self._decoded.messages_from(self._cut_at))
        self._cut_at = None

    def put_back(self, messages: list[Message]) -> None:
        """Put messages back at the head of the queue: the application did not receive them. Thread-safe."""
        with self.lock:
            if self.is_alive:
                self._open_cut()
                self._all_messages.extendleft(reversed(messages))
                self.permits_to_return -= len(messages)

    # --- pause, resume, drop ----------------------------------------------------------------------------------------

    def pause_delivery(self) -> None:
        """Deliver nothing more: what is queued, and what still arrives, is kept aside. Called under the lock."""
        self._open_cut()
        self._deliveries, self._messages = deque(), deque()
        self._tells_arrivals = True

    def resume_delivery(self) -> None:
        """Deliver again what is queued and what arrives. Called under the lock."""
        self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self._tells_arrivals = self._scaled is not None

    def _grant(self, count: int) -> None:
        """Count permits to return and send them once they are half a queue."""
        self.permits_to_return += count
        if self.permits_to_return >= self.flow_threshold:
            self.permits.send()

    def _drop_queued(self) -> None:
        self._open_cut()
        if self.stats is not None and self._all_messages:
            messages, size = self.opened()
            self.stats.received(-messages, -size)
        if self._scaled is not None:
            for delivery in self.all_deliveries:
                self._scaled.on_dequeue(delivery)
        self.all_deliveries.clear()
        self._all_messages.clear()
        self._decoded = None
        self.position.on_queue_dropped()

    def drop_queued(self) -> None:
        """Drop queued messages: the topic is not read any more. Thread-safe."""
        with self.lock:
            self._drop_queued()

    def drop_messages_of(self, entries: Collection[EntryKey]) -> None:
        """Drop queued messages of entries that are redelivered as a whole. Thread-safe."""
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

    # --- decoding (any thread, under the lock unless said otherwise) ------------------------------------------------

    def _decode_wanted(self) -> bool:
        """Decode deliveries until there is a message to deliver; return False when there is none yet."""
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
        """Pass all messages to `shows` on arrival, from `open_arrived` or dequeuing. Set before the first delivery."""
        self._shows = shows
        # An interceptor may acknowledge the message from its callback.
        self.lock = threading.RLock()

    def open_arrived(self) -> None:
        """Decode all deliveries now, rather than when they are dequeued, so that interceptors see them. Thread-safe."""
        with self.lock:
            self._open_cut()
            while self._decode_next():
                self._open_decoded()

    def _next_delivery(self) -> Delivery | None:
        if self._awaits_key:
            return None
        scaled = self._scaled
        try:
            delivery = self._deliveries.popleft()
        except IndexError:
            if scaled is not None:
                scaled.on_queue_empty()
            return None
        if scaled is not None:
            scaled.on_dequeue(delivery)
        return delivery

    def _decode_next(self) -> bool:
        """Decode one delivery into `_decoded` (None when nothing of it is wanted); return False when there is none
        yet.
        """
        delivery = self._next_delivery()
        if delivery is None:
            return False
        self._decoded = None
        self._acks.catch_up()
        key = (delivery.ledger_id, delivery.entry_id)
        if delivery.attachment != self.attachment:
            return True
        if self._acks.group.covers(key):
            self.position.last_decoded = key
            self._grant(permits_of(delivery))
            return True
        try:
            decoded = self.decoder.decode(delivery, self.connection)
        except KeyWanted as wanted:
            self._wait_for_key(delivery, wanted)
            return False
        except (Corrupt, Undecryptable) as error:
            self.position.last_decoded = key
            self._grant(self.decoder.on_undecodable(delivery, error, self.connection))
            return True
        self.position.last_decoded = key
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
        """Record an entry's redelivery count; return True if it goes to the dead-letter topic instead."""
        if self._acks.late is not None:
            self._acks.late.delivered(decoded.entry.key, decoded.entry.redelivery_count)
        return (
            self.dead_letter_router is not None
            and decoded.wanted > 0
            and self.dead_letter_router.should_redirect(decoded)
        )

    def _count(self, decoded: Decoded) -> None:
        if self.stats is not None:
            self.stats.received(decoded.wanted, decoded.payload_bytes())
        if self._scaled is not None:
            self._scaled.passed += decoded.wanted

    def _wait_for_key(self, delivery: Delivery, wanted: KeyWanted) -> None:
        """Have a private key read in another thread; deliveries wait in order meanwhile."""
        self._deliveries.appendleft(delivery)
        if self._scaled is not None:
            self._scaled.on_retained(delivery)
        self._awaits_key = True
        self.engine.call(self._fetch_key, wanted)

    def _fetch_key(self, wanted: KeyWanted) -> None:
        if self.is_alive:
            self._key_task = self.engine.spawn(self._learn_key(wanted))

    async def _learn_key(self, wanted: KeyWanted) -> None:
        learn = await asyncio.to_thread(self.decoder.fetch_key, wanted)
        with self.lock:
            learn()
            self._awaits_key = False
        self.look_again()

    # --- queue state (thread-safe) ----------------------------------------------------------------------------------

    def may_have_more(self) -> bool:
        """Return True if dequeuing may return a message. Thread-safe, without lock."""
        return bool(
            self._messages
            or self._cut_at is not None
            or self.prefetch.messages
            or (self._deliveries and not self._awaits_key)
        )

    @property
    def has_local(self) -> bool:
        """True while any message is queued. Called under the lock."""
        return bool(self._all_messages or self.all_deliveries or self._cut_at is not None or self.prefetch.messages)

    def has_queued(self) -> bool:
        """Return True if a message can be dequeued immediately, decoding as far as needed to be sure. Thread-safe."""
        with self.lock:
            return bool(self.prefetch.messages or self._cut_at is not None) or self._decode_wanted()

    @property
    def has_undecoded(self) -> bool:
        """True while a delivery is not decoded. Thread-safe, without lock."""
        return bool(self.all_deliveries)

    def opened(self) -> tuple[int, int]:
        """Return the number and payload bytes of messages decoded and not dequeued. Called under the lock."""
        self._open_cut()
        return len(self._all_messages), sum(map(len, self._all_messages))

    def queued_messages(self) -> int:
        """Return the number of messages received and not dequeued. Thread-safe."""
        with self.lock:
            opened, waiting = self.opened()[0], list(self.all_deliveries)
        return opened + sum(map(permits_of, waiting))

    def queued_bytes(self) -> int:
        """Return the bytes received and not dequeued: payload bytes, and all bytes of undecoded entries.
        Thread-safe.
        """
        with self.lock:
            return self.opened()[1] + sum(len(delivery.payload) for delivery in self.all_deliveries)

    @property
    def is_alive(self) -> bool:
        """True unless the consumer is closed or failed."""
        return self.state is State.READY or self.state is State.CONNECTING
