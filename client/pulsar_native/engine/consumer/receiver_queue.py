"""What has come of a topic or partition and was not taken: deliveries, of one entry messages, and what is prefetched.

Rules: the loop only appends whole deliveries; the thread that receives has them opened, under the lock. Messages are
made of an entry when they are wanted, not before: of what is left of it a number is known. In order: what is prefetched
(see `prefetch_buffer`), messages that are made, the rest of the entry, deliveries. Permits are given back in bulk at
half the queue, counted in messages.
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
from pulsar_native.protocol.unacked_tracker import EntryKey
from pulsar_native.topic import TopicName

if TYPE_CHECKING:
    from pulsar_native.engine.client import ClientCore
    from pulsar_native.engine.consumer.ack_grouping_tracker import AckGroupingTracker
    from pulsar_native.engine.consumer.dead_letter import DeadLetterRouter
    from pulsar_native.engine.consumer.entry_decoder import EntryDecoder
    from pulsar_native.engine.consumer.seek import Positions

Shows = Callable[[list[Message]], list[Message]]


class ReceiverQueue(Handler):
    """The queue of a `PartitionConsumer`, which is one itself, and makes the parts it works with."""

    permits: Permits
    dead_letter_router: DeadLetterRouter | None
    decoder: EntryDecoder
    positions: Positions
    # None while recording is off; told of entries, never of messages.
    stats: ConsumerRecorder | None
    _acks: AckGroupingTracker
    _scaled: ScaledPermits | None
    # Whether the permits are told of each delivery.
    _tells_arrivals: bool
    # Whether entries are looked at for more than their messages, once each.
    _watches_entries: bool

    def __init__(self, client: ClientCore, topic: TopicName) -> None:
        super().__init__(client, topic)
        self.lock: contextlib.AbstractContextManager[bool] = threading.Lock()
        # What has arrived, and what of it is opened; and the same within reach of the application: the very same, or
        # nothing at all during a strict pause.
        self.all_deliveries: deque[Delivery] = deque()
        self._all_messages: deque[Message] = deque()
        self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self._decoded: Decoded | None = None
        # From which index on the messages of that entry are neither taken nor opened. Then none are opened.
        self._cut_at: int | None = None
        # Where an API takes messages without the lock, and whether it does.
        self.prefetch = PrefetchBuffer()
        self._prefetches = False
        # Permits to give back, and how many of them are sent together: set by `permits`.
        self.permits_to_return = self.flow_threshold = 0
        # How often the consumer was attached: what is unacknowledged comes again with every attachment.
        self.attachment = 0
        # The last message given out, as itself: its id is only made when somebody asks.
        self.last_message: Message | None = None
        # Shows messages to interceptors that want to see them arrive, and returns those to queue.
        self._shows: Shows | None = None
        self._awaits_key = False
        self._key_task: asyncio.Task[None] | None = None

    @abstractmethod
    def look_again(self) -> None:
        """Have whoever waits for messages look again. On the loop."""

    # --- taking (any thread) --------------------------------------------------------------------------------------

    def take(self, prefetch: bool = False) -> Message | None:
        """Return the next message, None when there is none yet; those behind it may be prefetched. Thread-safe."""
        with self.lock:
            if self._prefetches:
                return self._take_prefetching(prefetch)
            messages = self._messages
            if not messages and not self._decode_wanted():
                return None
            message = messages.popleft()
            self._took(message)
            unacked = self._acks.unacked
            if unacked is not None:
                unacked.add((message.entry.ledger_id, message.entry.entry_id))
            return message

    def _take_prefetching(self, prefetch: bool) -> Message | None:
        """Return the next message of a consumer that prefetches: from the buffer, and now perhaps into it."""
        if self.prefetch:
            with contextlib.suppress(IndexError):
                # Others may take the last one at this moment.
                return self.prefetch.messages.popleft()
            self._count_taken()
        if not self._messages:
            if not self._begin_slice():
                return None
            decoded, first = self._decoded, self._cut_at
            assert decoded is not None and first is not None
            if decoded.is_whole_batch:
                return self._take_from_batch(decoded, first, prefetch)
            self._open_cut()
        message = self._messages.popleft()
        self._took(message)
        return message

    def _take_from_batch(self, decoded: Decoded, first: int, prefetch: bool) -> Message:
        (message,) = decoded.messages_between(first, first + 1)
        self._took(message)
        stop = first + 1
        if prefetch:
            # As many as do not make permits due.
            stop = min(decoded.wanted, max(stop, first + self.flow_threshold - self.permits_to_return))
            self.prefetch.fill(decoded, first + 1, stop)
        self._cut_at = stop if stop < decoded.wanted else None
        return message

    def _took(self, message: Message) -> None:
        """Count a message as given out. Called under the lock."""
        self.last_message = message
        self.permits_to_return += 1
        if self.permits_to_return >= self.flow_threshold:
            self.permits.send()

    def enable_prefetch(self) -> None:
        """Fill the prefetch buffer from now on, unless something is to be done for each message when it is taken."""
        watched = self._shows is not None or self._scaled is not None or self._acks.unacked is not None
        self._prefetches = not watched and not self.permits.on_demand

    def disable_prefetch(self) -> None:
        """Put no more messages into the prefetch buffer, and take back those that are there. Thread-safe."""
        with self.lock:
            self._prefetches = False
            self.reclaim_prefetched()

    def count_taken(self) -> None:
        """Bring `last_message` up to what was taken from the prefetch buffer. Thread-safe."""
        with self.lock:
            self._count_taken()

    def _count_taken(self) -> None:
        taken, last = self.prefetch.taken()
        if last is not None:
            self.last_message = last
            self._grant(taken)

    def reclaim_prefetched(self) -> None:
        """Have the prefetch buffer empty: what was not taken is queued again, as itself. Called under the lock."""
        if self.prefetch:
            back = self.prefetch.reclaim()
            self._count_taken()
            self._all_messages.extendleft(back)
            self._open_cut()

    def take_rows(self) -> EntryRows | None:
        """Return the rest of the current entry, or the next one, for columns; None when there is none yet."""
        entry_slice = self.take_slice()
        if entry_slice is None:
            return None
        if entry_slice.entry.decryption_failed:
            # Not fit for columns; the range being read sees by this that it is incomplete.
            self.decoder.undecrypted_count += 1
        return entry_slice.part

    def take_slice(self, budget: BatchBudget | None = None) -> EntrySlice | None:
        """Return as much of the current entry, or of the next one, as there is room for; None when there is none.

        Without room all of it. An entry that cannot be decrypted is none for a budget. Thread-safe.
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
            count = len(indexes) if budget is None else budget.take(sizes)
            if not count:
                return None
            for _ in range(count if messages else 0):
                messages.popleft()
            if self._cut_at is not None:
                self._cut_at = indexes[count] if count < len(indexes) else None
            entry_slice = EntrySlice(entry, indexes[:count])
            last = entry_slice.part.last - 1 if entry.is_batch else -1
            place = MessageId(self.topic.partition, entry.ledger_id, entry.entry_id, last, batch_size=entry.batch_size)
            self.positions.set_last_dequeued(place)
            if self._acks.unacked is not None:
                self._acks.unacked.add(entry.key)
            self._grant(count)
            return entry_slice

    def _begin_slice(self) -> bool:
        """Have an entry with messages to give out decoded; False when there is none yet."""
        while self._cut_at is None:
            if not self._decode_next():
                return False
            if self._decoded is not None:
                self._cut_at = 0
        return True

    def _open_cut(self) -> None:
        """Make messages of what a entry_slice has left of its entry: somebody asks for them, or counts them."""
        self.reclaim_prefetched()
        if self._cut_at is not None and self._decoded is not None:
            self._all_messages.extend(self._decoded.messages_from(self._cut_at))
        self._cut_at = None

    def put_back(self, messages: list[Message]) -> None:
        """Give messages out again later, ahead of all others: the application did not get them. Thread-safe."""
        with self.lock:
            if self.is_alive:
                self._open_cut()
                self._all_messages.extendleft(reversed(messages))
                self.permits_to_return -= len(messages)

    # --- out of reach, back, or gone ----------------------------------------------------------------------------------

    def pause_delivery(self) -> None:
        """Give out nothing more: what is here, and what still comes, is kept aside. Called under the lock."""
        self._open_cut()
        self._deliveries, self._messages = deque(), deque()
        self._tells_arrivals = True

    def resume_delivery(self) -> None:
        """Give out again what is here and what comes. Called under the lock."""
        self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self._tells_arrivals = self._scaled is not None

    def _grant(self, count: int) -> None:
        """Count permits to give back and send them once they are half a queue."""
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
        self.positions.on_queue_dropped()

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

    # --- opening (any thread, under the lock unless said otherwise) ---------------------------------------------------

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
        """Decode one delivery into `_decoded` (None when nothing of it is wanted); False when there is none yet."""
        delivery = self._next_delivery()
        if delivery is None:
            return False
        self._decoded = None
        self._acks.catch_up()
        key = (delivery.ledger_id, delivery.entry_id)
        if delivery.attachment != self.attachment:
            return True
        if self._acks.group.covers(key):
            self.positions.last_decoded = key
            self._grant(permits_of(delivery))
            return True
        try:
            decoded = self.decoder.decode(delivery, self.connection)
        except KeyWanted as wanted:
            self._wait_for_key(delivery, wanted)
            return False
        except (Corrupt, Undecryptable) as error:
            self.positions.last_decoded = key
            self._grant(self.decoder.on_undecodable(delivery, error, self.connection))
            return True
        self.positions.last_decoded = key
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

    # --- what is here (thread-safe) -----------------------------------------------------------------------------------

    def may_have_more(self) -> bool:
        """Return whether taking again may give a message. Thread-safe, without lock."""
        return bool(
            self._messages
            or self._cut_at is not None
            or self.prefetch.messages
            or (self._deliveries and not self._awaits_key)
        )

    @property
    def has_local(self) -> bool:
        """Whether anything is here that was not given out. Called under the lock."""
        return bool(self._all_messages or self.all_deliveries or self._cut_at is not None or self.prefetch.messages)

    def has_queued(self) -> bool:
        """Return whether a message can be taken at once, decoding as far as needed to be sure. Thread-safe."""
        with self.lock:
            return bool(self.prefetch.messages or self._cut_at is not None) or self._decode_wanted()

    @property
    def has_undecoded(self) -> bool:
        """Whether a delivery was not looked at yet. Thread-safe, without lock."""
        return bool(self.all_deliveries)

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

    @property
    def is_alive(self) -> bool:
        """Whether the consumer is neither closed nor failed."""
        return self.state is State.READY or self.state is State.CONNECTING
