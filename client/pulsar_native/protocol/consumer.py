"""Consumer state machine for one topic or partition: deliveries, messages, permits, position, epoch, pauses.

Rules: the unit is the entry. The loop appends whole deliveries; the thread that receives decodes them. Message objects
are created when they are needed: the rest of an entry is a number of messages. Order: prefetch buffer, created
messages, the rest of the entry, deliveries. Every message that leaves, dequeued, dropped or filtered out, is counted by
`permits`, which return them in bulk. With every attachment to a broker, and with every request to redeliver everything,
what is queued is dropped, since the broker redelivers it: its deliveries are recognised by their attachment or epoch.

A strict pause withholds what is queued; on shared subscriptions it is handed back to the broker, each entry once, since
an entry that arrives a second time has no other consumer and would only increase its redelivery count.

Commands for the broker collect in `outgoing`, in order; the engine writes them after each call. Not thread-safe, but
for `append` (loop) and what is documented so: the engine holds the consumer's lock around every call. No clock, no I/O.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import merge
from itertools import takewhile
from typing import Any, Protocol

from pulsar_native._message_fields import make_deliveries
from pulsar_native.exceptions import PulsarException
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.ack_grouping import NO_ENTRY
from pulsar_native.protocol.consumer_position import ConsumerPosition
from pulsar_native.protocol.data_keys import KeyWanted
from pulsar_native.protocol.entry_decoder import (
    Corrupt,
    Decoded,
    Delivery,
    NotDecoded,
    ReceivedEntry,
    StartFilter,
    Undecryptable,
    Unprocessable,
)
from pulsar_native.protocol.permits import AutoScaledPermits, Permits, ReceiverMemory
from pulsar_native.protocol.prefetch_buffer import PrefetchBuffer
from pulsar_native.protocol.unacked_tracker import in_blocks
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey, parse_entry
from pulsar_native.wire.frames import Frame

Arriving = Callable[[list[Message]], list[Message]]
"""Function that interceptors see arriving messages with; returns those to queue."""
# Entries of at most `_FEW` messages are decoded ahead of their dequeuing, up to this number of messages and bytes.
_FEW = 8
_AHEAD_MESSAGES = 128
_AHEAD_BYTES = 128 * 1024
Slice = tuple[ReceivedEntry, Sequence[int]]
"""Messages of one entry, by their indexes in it."""


def _place_of(message: Message) -> tuple[int, int, int]:
    return message.entry.ledger_id, message.entry.entry_id, message.batch_index


def _run_of(messages: Iterable[Message]) -> list[Message]:
    """Return the first messages as far as they are of one entry, in its order.

    Those that several receivers of a shared subscription put back may be in another.
    """
    run: list[Message] = []
    for message in messages:
        if run and (message.entry is not run[0].entry or message.batch_index <= run[-1].batch_index):
            break
        run.append(message)
    return run


class Decoding(Protocol):
    """Decoding of deliveries, with what is known of them: acknowledgements, dead letters, keys, statistics."""

    def is_acknowledged(self, key: EntryKey) -> bool:
        """Return True if the entry was acknowledged here and must not be delivered."""

    def decode(self, delivery: Delivery, start: StartFilter) -> Decoded | None:
        """Return the decoded delivery, None for a chunk of a message that is not complete yet.

        Raises `KeyWanted`, `Corrupt`, `Undecryptable` and `Unprocessable`.
        """

    def decode_singles(
        self, deliveries: deque[Delivery], attachment: int, epoch: int, after: EntryKey, most: int, most_bytes: int
    ) -> list[Message]:
        """Remove and decode entries of one message, up to the first that needs more than parsing, is of another
        attachment or epoch, or is not behind `after` and the one before it; may return none.
        """

    def on_undecodable(self, delivery: Delivery, error: NotDecoded) -> int:
        """Handle an undecodable delivery and return its permits."""

    def admit(self, decoded: Decoded) -> int:
        """Return how many messages to deliver and count them; 0 where the entry goes to the dead-letter topic."""

    def fetch_key(self, wanted: KeyWanted) -> None:
        """Have a private key read; deliveries wait until `ConsumerCore.on_key_fetched`."""

    def on_dropped(self, messages: int, size: int) -> None:
        """Count decoded messages that are dropped, and their payload bytes."""


class Budget(Protocol):
    """Rows and bytes still to collect: see `arrow.entry_slice.BatchBudget`."""

    locked: ReceivedEntry | None

    def spend(self, sizes: Sequence[int]) -> int: ...


class ConsumerCore:
    """Consumer state machine. Not thread-safe, except where said."""

    def __init__(
        self,
        consumer_id: int,
        queue_size: int,
        position: ConsumerPosition,
        decoding: Decoding,
        *,
        scaled_within: ReceiverMemory | None = None,
        redelivers_entries: bool = False,
        rewinds: bool = False,
        in_order: bool = False,
        arriving: Arriving | None = None,
    ) -> None:
        self._consumer_id = consumer_id
        self._position = position
        self._decoding = decoding
        # Subscriptions that redeliver single entries to any consumer with permits; and those where a request to
        # redeliver everything moves the cursor.
        self._redelivers_entries = redelivers_entries
        self.rewinds = rewinds
        # Subscriptions that deliver each entry once in an attachment, in order, until everything is redelivered; and
        # the last entry decoded in this one, None where an entry may be delivered again.
        self._in_order = in_order
        self._delivered_to: EntryKey | None = None
        # All deliveries and created messages; and the same for the application: the same objects, or empty ones during
        # a strict pause.
        self.all_deliveries: deque[Delivery] = deque()
        self._all_messages: deque[Message] = deque()
        self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self._decoded: Decoded | None = None
        # Index from which the messages of that entry are neither dequeued nor created; None when all are created.
        self._cut_at: int | None = None
        # True if the last entry was one of a single message that needs nothing but parsing: the next may be one, too.
        # To parse a batch in vain would double its cost.
        self._may_be_single = False
        # Buffer the APIs dequeue from without the lock, and whether it is in use.
        self.prefetch = PrefetchBuffer()
        self._prefetches = False
        self._prefetches_entries = False
        # Commands for the broker.
        self.outgoing: list[bytes] = []
        self._scaled: AutoScaledPermits | None = None
        if scaled_within is not None:
            self._scaled = AutoScaledPermits(queue_size, self._grant, scaled_within, self.is_empty)
        self.permits = self._scaled or Permits(queue_size, self._grant)
        # Number of attachments to a broker, and of requests to redeliver everything.
        self.attachment = 0
        self.epoch = 0
        # Number of events after which messages dequeued before are redelivered, or not wanted any more: seeks, requests
        # to redeliver everything, and attachments of a durable subscription.
        self.restarts = 0
        # Id of the last entry that arrived since the broker's cursor was last moved.
        self.newest: pb.MessageIdData | None = None
        self.is_held = False
        self._handed_back: set[EntryKey] = set()
        # Shows messages to interceptors, from `open_arrived` or dequeuing.
        self._arriving = arriving
        self._awaits_key = False

    def _grant(self, number: int) -> None:
        self.outgoing.append(commands.flow(self._consumer_id, number))

    # --- deliveries (loop) ------------------------------------------------------------------------------------------

    def append(self, message: pb.CommandMessage, payload: bytes) -> bool:
        """Queue a delivery undecoded; return False for an outdated one, which is not queued. On the loop, without the
        lock.

        Outdated is what the broker sent before the last request to redeliver everything: it follows again. Order of
        events: the epoch is read before the delivery is queued. If another thread calls `redeliver_all` in between, the
        queued delivery has an older epoch, and `_decode_next` drops it.
        """
        self.newest = message.message_id
        epoch = self.epoch
        # For each delivery: without such a request there is nothing to compare.
        if epoch and message.HasField("consumer_epoch") and message.consumer_epoch < epoch:
            return False
        delivery = Delivery(message, payload, self.attachment, epoch)
        if self._scaled is not None:
            # First: the thread that dequeues it removes it from the count.
            self._scaled.on_queued(delivery)
        self.all_deliveries.append(delivery)
        return True

    def return_outdated(self, message: pb.CommandMessage, payload: bytes) -> None:
        """Return the permits of an outdated delivery."""
        self.permits.count(Delivery(message, payload, self.attachment).undecoded_cost())

    def append_all(self, frames: list[Frame]) -> bool:
        """Queue deliveries undecoded, as `append` does; return False, without effect, where some may be outdated. On
        the loop, without the lock.
        """
        if self.epoch:
            return False
        self.newest = frames[-1].command.message.message_id
        # Of epoch 0, whatever another thread has requested since: see `append`.
        deliveries = make_deliveries(Delivery, frames, self.attachment)
        if self._scaled is not None:
            for delivery in deliveries:
                self._scaled.on_queued(delivery)
        self.all_deliveries.extend(deliveries)
        return True

    # --- attachment -------------------------------------------------------------------------------------------------

    def begin_attachment(self) -> MessageId | None:
        """Drop what is queued, as the broker redelivers it, and return the start of a non-durable subscription."""
        if not self.attachment:
            # The first: nothing has been queued.
            start = self._position.start_message_id()
        else:
            self.reclaim_prefetched()
            start = self._with_chunks(self._position.start_message_id())
            self.drop_queued()
            if self._position.is_durable and self._position.is_stored:
                self.restarts += 1
        if not self.is_held:
            # After `break_off`.
            self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self.attachment += 1
        self._delivered_to = NO_ENTRY if self._in_order else None
        self.newest = None
        return start

    def _with_chunks(self, start: MessageId | None) -> MessageId | None:
        """Return the start of a non-durable subscription, or, before it, the first chunk of a message that is queued.

        Its chunks are put together, and dropped with it: those around other messages would not come again. What else
        comes from there is filtered out.
        """
        if start is None:
            return None
        entries = [message.entry for message in self._all_messages]
        if self._decoded is not None:
            entries.append(self._decoded.entry)
        return min([start, *(entry.first_chunk for entry in entries if entry.first_chunk is not None)])

    def attached(self) -> None:
        """Grant the first permits of an attachment; those of a paused consumer collect until it resumes."""
        self.permits.begin()

    def detached(self) -> None:
        """Grant nothing until the next attachment."""
        self.permits.is_attached = False
        # What was not written yet was for this one.
        self.outgoing.clear()

    def break_off(self) -> None:
        """Drop what is queued, and deliver nothing until the next attachment, at which the broker redelivers it.

        After a call that an exception ended at some step: entries may be gone, and permits not counted.
        """
        self.drop_queued()
        self._deliveries, self._messages = deque(), deque()

    @property
    def may_wait(self) -> bool:
        """True if nothing in `outgoing` is urgent, after a dequeuing: it need not be written before the next one.

        As long as what is queued here fills the queue, judged by the last entry, the broker sends nothing whatever
        permits it gets.
        """
        decoded = self._decoded
        count = 1 if decoded is None else decoded.entry.parsed.num_messages
        return len(self._deliveries) * count >= self.permits.size

    # --- dequeue ----------------------------------------------------------------------------------------------------

    def dequeue(self, prefetch: int = 0) -> Message | None:
        """Return the next message, None when there is none yet; up to `prefetch` following ones may be prefetched."""
        if self._prefetches:
            return self._dequeue_prefetching(prefetch)
        messages = self._messages
        if not messages and not self._decode_wanted():
            return None
        message = messages.popleft()
        self._position.last_message = message
        permits = self.permits
        permits.to_return += 1
        if permits.to_return >= permits.threshold:
            permits.release()
        return message

    def next_size(self) -> int | None:
        """Return the payload bytes of the message that is dequeued next, None when there is none yet."""
        if self.prefetch.uncounted:
            size = self.prefetch.messages.first_size()
            if size >= 0:
                return size
            self.count_dequeued()
        if not self._messages:
            if self._prefetches and self._begin_slice():
                assert self._decoded is not None and self._cut_at is not None
                return self._decoded.sizes(self._decoded.indexes(self._cut_at)[:1])[0]
            if self._prefetches or not self._decode_wanted():
                return None
        return len(self._messages[0])

    def _dequeue_prefetching(self, prefetch: int) -> Message | None:
        """Return the next message of a consumer that prefetches: from the buffer, refilling it where possible."""
        if self.prefetch.uncounted:
            with contextlib.suppress(IndexError):
                # Other threads may dequeue the last one concurrently.
                return self.prefetch.messages.popleft()
            self.count_dequeued()
        try:
            return self._next_prefetching(prefetch)
        except BaseException:
            # Filled, or half-way to it: nothing of it counts as dequeued.
            self.prefetch.messages.clear()
            self.prefetch.uncounted = 0
            raise

    def _next_prefetching(self, prefetch: int) -> Message | None:
        """Return the next message, and fill the prefetch buffer, which is empty and counted."""
        if not self._messages:
            if prefetch and self._may_be_single and self._cut_at is None and self._deliveries:
                message = self._dequeue_single(min(prefetch, _AHEAD_MESSAGES))
                if message is not None:
                    return message
            if not self._begin_slice():
                return None
            decoded, first = self._decoded, self._cut_at
            assert decoded is not None and first is not None
            if not decoded.is_readable:
                prefetch = 0
            if prefetch and decoded.wanted <= _FEW and self._prefetches_entries and not decoded.has_writer:
                return self._dequeue_few(decoded, min(prefetch, _AHEAD_MESSAGES))
            if decoded.is_whole_batch:
                return self._dequeue_from_batch(decoded, first, prefetch)
            self._open_cut()
        message = self._messages.popleft()
        self._position.last_message = message
        permits = self.permits
        permits.to_return += 1
        if permits.to_return >= permits.threshold:
            permits.release()
        return message

    def _dequeue_from_batch(self, decoded: Decoded, first: int, prefetch: int) -> Message:
        message = decoded.message_at(first)
        permits = self.permits
        permits.to_return += 1
        if permits.to_return >= permits.threshold:
            permits.release()
        stop = first + 1
        if prefetch:
            # As many as do not make permits due.
            stop = min(decoded.wanted, stop + prefetch, max(stop, first + permits.threshold - permits.to_return))
            if stop > first + 1:
                self.prefetch.fill_from(decoded, first + 1, stop)
        self._cut_at = stop if stop < decoded.wanted else None
        # At last: interrupted before, the position is still in front of the message.
        self._position.last_message = message
        return message

    def _dequeue_single(self, most: int) -> Message | None:
        """As `_dequeue_few` for an entry of one message that needs only parsing; None where the next is another."""
        ahead = self._decode_singles(min(most, max(1, self._left_before_permits())), _AHEAD_BYTES)
        if not ahead:
            self._may_be_single = False
            return None
        return self._dequeue_ahead(ahead, sum(map(len, ahead)), most)

    def _dequeue_few(self, decoded: Decoded, most: int) -> Message:
        """Return the next message of an entry of few messages, and prefetch the others and such entries behind it."""
        assert self._cut_at is not None
        ahead = decoded.messages_from(self._cut_at)
        self._cut_at = None
        self._may_be_single = decoded.is_single
        return self._dequeue_ahead(ahead, decoded.payload_bytes(), most)

    def _dequeue_ahead(self, ahead: list[Message], size: int, most: int) -> Message:
        """Return the first of messages with `size` payload bytes, and prefetch the others and those behind them."""
        message = ahead.pop(0)
        self.permits.count(1)
        while (
            self._deliveries
            and size < _AHEAD_BYTES
            and (fitting := min(most, self._left_before_permits()) - len(ahead)) > 0
        ):
            singles = self._decode_singles(fitting, _AHEAD_BYTES - size) if self._may_be_single else ()
            if singles:
                ahead += singles
                size += sum(map(len, singles))
                continue
            if not self._decode_next():
                break
            following = self._decoded
            if following is None:
                continue
            self._may_be_single = following.is_single
            if following.wanted > _FEW:
                self._cut_at = 0
                break
            ahead += following.messages()
            size += following.payload_bytes()
        # Entries that are not delivered return permits, too: their number may have become too large meanwhile.
        fitting = max(0, self._left_before_permits())
        self._all_messages.extend(ahead[fitting:])
        del ahead[fitting:]
        if ahead:
            self.prefetch.fill(ahead)
        # As in `_dequeue_from_batch`.
        self._position.last_message = message
        return message

    def _decode_singles(self, most: int, most_bytes: int) -> list[Message]:
        """Decode entries of one message each as far as they need nothing else, and return their messages."""
        after = max(self._position.filter.covered_to, self._delivered_to or NO_ENTRY)
        messages = self._decoding.decode_singles(self._deliveries, self.attachment, self.epoch, after, most, most_bytes)
        if messages:
            self._decoded = None
            entry = messages[-1].entry
            self._on_decoded((entry.ledger_id, entry.entry_id))
        return messages

    def _left_before_permits(self) -> int:
        """Return how many messages can be dequeued without making permits due."""
        return self.permits.threshold - self.permits.to_return - 1

    def enable_prefetch(self, *, entries: bool = True) -> None:
        """Fill the prefetch buffer from now on, unless each dequeued message needs processing here.

        With `entries` also from several entries of one message each.
        """
        processed = self._arriving is not None or self._scaled is not None or self.permits.on_demand
        self._prefetches = not processed
        self._prefetches_entries = entries

    def count_dequeued(self) -> None:
        """Count what was dequeued from the prefetch buffer since the last call, and update the position."""
        taken, last = self.prefetch.taken()
        if last is not None:
            self._position.last_message = last
            self.permits.count(taken)

    def reclaim_prefetched(self) -> None:
        """Empty the prefetch buffer: its messages are queued again, as objects."""
        if self.prefetch.uncounted:
            back = self.prefetch.reclaim()
            self.count_dequeued()
            self._all_messages.extendleft(back)
            self._open_cut()

    def dequeue_slice(self, budget: Budget | None = None) -> Slice | None:
        """Return as much of the current entry, or of the next one, as the budget allows; None when there is none.

        Without a budget all of it. With one, an entry that cannot be decrypted is None, and `budget.locked`.
        """
        self.reclaim_prefetched()
        messages = self._messages
        if messages:
            entry: Any = messages[0].entry
            run = _run_of(messages)
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
        last = indexes[count - 1] if entry.is_batch else -1
        place = MessageId(entry.partition, entry.ledger_id, entry.entry_id, last, batch_size=entry.batch_size)
        self._position.set_last_dequeued(place)
        self.permits.count(count)
        return entry, indexes[:count]

    def dequeue_slice_before(self, before: EntryKey) -> Slice | None:
        """Return the next entry as `dequeue_slice` does; None also while a decoded message is queued, or if the entry
        is not before `before`.
        """
        if self._scaled is not None or self._arriving is not None:
            return None
        while not self.has_decoded and (deliveries := self._deliveries):
            if (deliveries[0].ledger_id, deliveries[0].entry_id) >= before or not self._decode_next():
                return None
            if self._decoded is not None:
                self._cut_at = 0
                return self.dequeue_slice()
        return None

    def dequeue_singles(self, before: EntryKey, most: int, most_bytes: int) -> list[Message]:
        """Return the messages of the next entries, up to the first that has several or needs more than parsing.

        All are of entries before `before`; there are at most `most`, and none more when they have `most_bytes` payload
        bytes. Empty while a decoded message is queued.
        """
        if self.has_decoded or self._awaits_key or self._scaled is not None or self._arriving is not None:
            return []
        # A copy: the loop may append meanwhile.
        waiting = takewhile(lambda delivery: (delivery.ledger_id, delivery.entry_id) < before, list(self._deliveries))
        messages = self._decode_singles(min(most, sum(1 for _ in waiting)), most_bytes)
        if messages:
            self._position.last_message = messages[-1]
            self.permits.count(len(messages))
        return messages

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put messages back at the head of the queue: the application did not receive them."""
        self._open_cut()
        waiting = self._all_messages
        others: list[Message] = []
        if messages and not self._redelivers_entries:
            # Another receiver, that took turns with this one, may have put its own back: the order stays, and a
            # reader's position is before both.
            while waiting and _place_of(waiting[0]) < _place_of(messages[-1]):
                others.append(waiting.popleft())
        waiting.extendleft(reversed(list(merge(others, messages, key=_place_of))))
        self.permits.to_return -= len(messages)
        if messages:
            self._position.put_back(waiting[0])

    # --- decoding ---------------------------------------------------------------------------------------------------

    def _decode_wanted(self) -> bool:
        """Decode deliveries until there is a message to deliver; return False when there is none yet."""
        self._open_cut()
        while not self._messages:
            if not self._decode_next():
                return False
            self._open_decoded()
        return True

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

    def _open_decoded(self) -> None:
        if self._decoded is not None:
            messages = self._decoded.messages()
            self._messages.extend(messages if self._arriving is None else self._arriving(messages))

    def open_arrived(self) -> None:
        """Decode all deliveries now, rather than when they are dequeued, so that interceptors see them."""
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
            scaled.on_removed(delivery)
        return delivery

    def _decode_next(self) -> bool:
        """Decode one delivery into `_decoded` (None when nothing of it is wanted); return False when there is none
        yet.
        """
        delivery = self._next_delivery()
        if delivery is None:
            return False
        self._decoded = None
        key = (delivery.ledger_id, delivery.entry_id)
        if delivery.attachment != self.attachment:
            return True
        decoding, position = self._decoding, self._position
        if delivery.epoch != self.epoch or self._is_unwanted(key):
            self.permits.count(delivery.undecoded_cost())
            return True
        try:
            start = position.filter if position.sought_entry is None else position.filter_of_next(key)
            decoded = decoding.decode(delivery, start)
        except KeyWanted as wanted:
            self._wait_for_key(delivery, wanted)
            return False
        except (Corrupt, Undecryptable, Unprocessable) as error:
            self._on_decoded(key)
            self.permits.count(decoding.on_undecodable(delivery, error))
            return True
        self._on_decoded(key)
        if decoded is None:
            # A chunk of a message that is not complete yet.
            self.permits.count(1)
            return True
        given = decoding.admit(decoded)
        # Negative if a payload processor made more messages than were published.
        unused = delivery.cost(decoded.num_published) - given
        if unused:
            self.permits.count(unused)
        if given:
            self._decoded = decoded
            if self._scaled is not None:
                self._scaled.on_decoded(given)
        return True

    def _is_unwanted(self, key: EntryKey) -> bool:
        """True if an entry was acknowledged here, or delivered twice: the broker may do so after a seek of a reader."""
        if self._delivered_to is not None and key <= self._delivered_to:
            return True
        if self._decoding.is_acknowledged(key):
            self._on_decoded(key)
            return True
        return False

    def _on_decoded(self, key: EntryKey) -> None:
        self._position.last_decoded = key
        if self._delivered_to is not None:
            self._delivered_to = key

    def _wait_for_key(self, delivery: Delivery, wanted: KeyWanted) -> None:
        """Have a private key read; deliveries wait in order meanwhile."""
        self._deliveries.appendleft(delivery)
        if self._scaled is not None:
            self._scaled.on_queued(delivery)
        # Asked for before it is awaited: interrupted in between, it is asked for again.
        self._decoding.fetch_key(wanted)
        self._awaits_key = True

    def on_key_fetched(self) -> None:
        """Go on decoding: the key was read, or is known to be missing."""
        self._awaits_key = False

    # --- pause, redelivery, drop ------------------------------------------------------------------------------------

    def pause(self, *, strict: bool) -> bool:
        """Grant no more permits; if strict, deliver nothing more either. Return True if `hand_back` is to follow."""
        self.permits.is_paused = True
        if not strict or self.is_held:
            return False
        self.is_held = True
        self._open_cut()
        self._deliveries, self._messages = deque(), deque()
        return self._redelivers_entries

    def resume(self) -> None:
        """Grant collected permits, and deliver what was withheld."""
        self.is_held = False
        self._handed_back.clear()
        self._deliveries, self._messages = self.all_deliveries, self._all_messages
        self.permits.resume()

    def hand_back(self, *, latest_only: bool = False) -> None:
        """During a strict pause, have the broker redeliver undecoded deliveries, to other consumers or later.

        On the loop, where deliveries are queued: none can arrive in between.
        """
        if not self.is_held or not self.permits.is_attached or not self._redelivers_entries:
            return
        queued = self.all_deliveries
        back: list[EntryKey] = []
        rest: deque[Delivery] = deque()
        while queued:
            delivery = queued.pop()
            if self._stays(delivery):
                rest.appendleft(delivery)
            else:
                key = (delivery.ledger_id, delivery.entry_id)
                self._handed_back.add(key)
                back.append(key)
                # A REDELIVER returns no permits: they wait until the pause ends.
                self.permits.to_return += delivery.undecoded_cost()
                if self._scaled is not None:
                    self._scaled.on_removed(delivery)
            if latest_only:
                break
        queued.extend(rest)
        back.reverse()
        self.redeliver_entries(back)

    def _stays(self, delivery: Delivery) -> bool:
        """True if a delivery stays here: it was handed back before, or the other chunks of its message are here."""
        if (delivery.ledger_id, delivery.entry_id) in self._handed_back or delivery.attachment != self.attachment:
            return True
        with contextlib.suppress(PulsarException):
            return parse_entry(delivery.payload, verify=False).is_chunk
        return False

    def redeliver_entries(self, entries: Iterable[EntryKey]) -> None:
        """Have the broker redeliver entries, each named once."""
        for block in in_blocks(dict.fromkeys(entries)):
            self.outgoing.append(commands.redeliver(self._consumer_id, block, epoch=None))

    def redeliver_all(self) -> None:
        """Have the broker redeliver everything unacknowledged; what is queued is dropped.

        Where the cursor is moved, only `rewind` writes the request, and no permits are granted until `end_rewind`.
        """
        messages = self.opened()[0]
        returned = messages + sum(map(Delivery.undecoded_cost, self.redeliver_all_at_attachment()))
        if self.rewinds:
            self.epoch += 1
            self.permits.to_return += returned
            self.permits.is_withheld = True
            return
        self.outgoing.append(commands.redeliver(self._consumer_id, (), epoch=None))
        if returned:
            self.permits.count(returned)

    def redeliver_all_at_attachment(self) -> list[Delivery]:
        """Drop what is queued and request nothing: the broker redelivers everything unacknowledged at an attachment.

        Return the dropped deliveries.
        """
        self._delivered_to = None
        self.restarts += 1
        return self.drop_queued()

    def rewind(self) -> None:
        """Request the redelivery of everything, which moves the cursor."""
        self.newest = None
        self.outgoing.append(commands.redeliver(self._consumer_id, (), epoch=self.epoch))

    def end_rewind(self) -> None:
        """Grant the permits withheld since `redeliver_all`."""
        self.permits.resume_rewound()

    def on_seek(self, position: MessageId | None, sought: MessageId | None, *, inclusive: bool) -> None:
        """Drop what is queued: the subscription was moved."""
        self.reclaim_prefetched()
        self._position.on_seek(position, sought, inclusive=inclusive)
        self.drop_queued()
        self.restarts += 1

    def drop_queued(self) -> list[Delivery]:
        """Drop everything queued: it is redelivered, or not wanted any more. Return the deliveries among it."""
        messages, size = self.opened()
        if messages:
            self._decoding.on_dropped(messages, size)
        # One by one: the loop may append meanwhile, and what is not returned here stays queued.
        deliveries = [self.all_deliveries.popleft() for _ in range(len(self.all_deliveries))]
        if self._scaled is not None:
            for delivery in deliveries:
                self._scaled.on_removed(delivery)
        self._all_messages.clear()
        self._decoded = None
        self._position.on_queue_dropped()
        return deliveries

    def drop_messages_of(self, entries: Collection[EntryKey]) -> None:
        """Drop created messages of entries that are redelivered as a whole."""
        before, size = self.opened()
        waiting = self._all_messages
        kept = [each for each in waiting if (each.entry.ledger_id, each.entry.entry_id) not in entries]
        dropped = before - len(kept)
        if dropped:
            waiting.clear()
            waiting.extend(kept)
            self._decoding.on_dropped(dropped, size - sum(map(len, kept)))
            self.permits.count(dropped)

    # --- state ------------------------------------------------------------------------------------------------------

    def may_have_more(self) -> bool:
        """Return True if dequeuing may return a message. Thread-safe, without lock."""
        return bool(
            self._messages
            or self._cut_at is not None
            or self.prefetch.messages
            or (self._deliveries and not self._awaits_key)
        )

    @property
    def has_decoded(self) -> bool:
        """True while a decoded message is not dequeued. Thread-safe, without lock."""
        return bool(self._all_messages or self._cut_at is not None or self.prefetch.messages)

    def is_empty(self) -> bool:
        """Return True if nothing is queued, withheld or not."""
        return not (self.all_deliveries or self.has_decoded)

    def has_queued(self) -> bool:
        """Return True if a message can be dequeued immediately, decoding as far as needed to be sure."""
        return bool(self.prefetch.messages or self._cut_at is not None) or self._decode_wanted()

    @property
    def has_undecoded(self) -> bool:
        """True while a delivery is not decoded. Thread-safe, without lock."""
        return bool(self.all_deliveries)

    def may_receive(self) -> bool:
        """Return True if the broker has permits left for this consumer."""
        return self.permits.is_attached and self.permits.outstanding() > self.queued()[0]

    def opened(self) -> tuple[int, int]:
        """Return the number and payload bytes of messages decoded and not dequeued."""
        self._open_cut()
        return len(self._all_messages), sum(map(len, self._all_messages))

    def queued(self) -> tuple[int, int]:
        """Return the number of messages queued, and their bytes: payload bytes, and all bytes of undecoded entries."""
        count, size = self.opened()
        # The loop may append meanwhile.
        waiting = list(self.all_deliveries)
        return count + sum(map(Delivery.undecoded_cost, waiting)), size + sum(
            len(delivery.payload) for delivery in waiting
        )

    def size_of(self, key: EntryKey) -> int:
        """Return the batch size if the entry is the one being dequeued, else 0."""
        decoded = self._decoded
        # With interceptors later entries may be decoded already.
        if self._arriving is None and decoded is not None and decoded.entry.key == key:
            return decoded.entry.batch_size
        # Of entries that were decoded together, the one of the last dequeued message.
        self.count_dequeued()
        last = self._position.last_message
        if last is None or (last.entry.ledger_id, last.entry.entry_id) != key:
            return 0
        return last.entry.batch_size
