"""Position of a consumer: where it starts, the last decoded and the last dequeued message, the subscription's mark.

Rules: the broker stores the position of a durable subscription; a non-durable one sends its own with every attachment.
Changed under the consumer's lock.
"""

from __future__ import annotations

from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.ack_grouping import words_of
from pulsar_native.protocol.entry_decoder import StartFilter
from pulsar_native.wire.entry import EntryKey

# How many entries before its other chunks a first chunk is looked for, between those of other messages.
_INTERLEAVED = 1000
_BEHIND_EVERYTHING = StartFilter(MessageId(-1, 1 << 62, 0), inclusive=False)
_BEHIND_NOTHING = StartFilter(None, inclusive=False)


class ConsumerPosition:
    """Position of the consumer of one topic or partition."""

    def __init__(
        self,
        topic: str,
        partition: int,
        start: MessageId | None,
        *,
        inclusive: bool,
        is_durable: bool,
        is_reader: bool = False,
        is_stored: bool = True,
        is_compacted: bool = False,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self.is_durable = is_durable
        self._is_reader = is_reader
        # False for a non-persistent topic: all its messages have the same id, which no position can be compared with.
        self.is_stored = is_stored
        self._is_compacted = is_compacted
        self.inclusive_by_config = inclusive
        self._start = start
        self._start_inclusive = inclusive
        # Also where a fixed position has replaced `latest`.
        self._from_latest = start == MessageId.latest
        # True from `start_at_first_chunk` until the next attachment, or a seek.
        self.is_moving_back = False
        # How far before its other chunks the first one may still be looked for, the next distance last.
        self._further_back: list[int] = []
        self.filter = self._filter_of(start if is_stored and not is_durable else None, inclusive)
        # First entry after a seek of a durable subscription to an id, until one before it arrives.
        self.sought_entry: EntryKey | None = None
        # Ledger and entry of the last decoded delivery, wanted or not.
        self.last_decoded: tuple[int, int] | None = None
        # Last dequeued message, as an object, since its id is created on demand; or, dequeued otherwise, its id.
        self.last_message: Message | None = None
        self._last_id: MessageId | None = None
        self.mark_delete: MessageId | None = None

    # --- dequeued ---------------------------------------------------------------------------------------------------

    @property
    def last_dequeued_message_id(self) -> MessageId | None:
        """Id of the last dequeued message, None before the first."""
        return self._last_id if self.last_message is None else self.last_message.message_id()

    @property
    def last_dequeued(self) -> object:
        """Last dequeued message, or its id, as an object that another one replaces; None before the first."""
        return self._last_id if self.last_message is None else self.last_message

    def read_to(self) -> tuple[int, int] | None:
        """Return the entry up to which a reader has returned everything, None if it has returned nothing.

        Nothing decoded may be queued.
        """
        place = self.last_dequeued_message_id
        if place is None:
            start = self.start_entry()
            if start is None or self._start_inclusive or self.last_decoded is None or self.last_decoded < start:
                return None
            # The message it starts behind came all the same.
            place = self._start
        assert place is not None
        ledger, entry = place.ledger_id(), place.entry_id()
        if not _ends_entry(place):
            entry -= 1
        return (ledger, entry) if entry >= 0 else None

    def set_last_dequeued(self, message_id: MessageId) -> None:
        """Record the end of what was dequeued other than as messages."""
        self.last_message, self._last_id = None, message_id

    def put_back(self, first: Message) -> None:
        """Record that messages from `first` on are queued again: a non-durable subscription continues with it."""
        if not self.is_durable and self.is_stored:
            self.last_message = self._last_id = None
            self._start, self._start_inclusive = first.message_id(), True

    def on_queue_dropped(self) -> None:
        """Record that the queue was dropped: everything behind the last dequeued message is redelivered."""
        last = self.last_dequeued_message_id
        self.last_decoded = None if last is None else (last.ledger_id(), last.entry_id())

    # --- start ------------------------------------------------------------------------------------------------------

    @property
    def starts_at_latest(self) -> bool:
        """True for a non-durable subscription that starts behind the topic's last stored message."""
        return self.is_stored and not self.is_durable and self._start == MessageId.latest

    def start_message_id(self) -> MessageId | None:
        """Return the start of a non-durable subscription's next attachment; None for a durable one, which the broker
        stores.
        """
        self.is_moving_back = False
        if self.is_durable:
            return None
        if not self.is_stored:
            return self._start
        last = self.last_dequeued_message_id
        if last is not None:
            # The first chunk's position does not matter: the chunks before it that are still needed are here.
            self._start_behind(last.without_chunks())
        self.filter = self._filter_of(self._start, self._start_inclusive)
        return self._start

    def _start_behind(self, place: MessageId) -> None:
        """Record that a non-durable subscription continues behind a message."""
        if self._is_reader or not _ends_entry(place):
            self._start, self._start_inclusive = place, False
        else:
            # The entry itself may come all the same, from another consumer of the subscription that had it.
            behind = MessageId(self._partition, place.ledger_id(), place.entry_id() + 1, topic=self._topic)
            self._start, self._start_inclusive = behind, True

    def _filter_of(self, start: MessageId | None, inclusive: bool) -> StartFilter:
        # Entries before the start of a subscription with several consumers may come from another one.
        return StartFilter(start, inclusive, drops_entries=self._is_reader)

    def filter_of_next(self, entry: EntryKey) -> StartFilter:
        """Return the filter of an entry that is decoded next, after a seek that set `sought_entry`."""
        if self.sought_entry is not None and entry < self.sought_entry:
            # Others have moved the subscription back since the seek, which has no effect any more.
            self.filter, self.sought_entry = _BEHIND_NOTHING, None
        return self.filter

    def start_entry(self) -> tuple[int, int] | None:
        """Return ledger id and entry id of the start, None for the topic's beginning."""
        start = self._start
        return None if start is None or start.entry_id() < 0 else (start.ledger_id(), start.entry_id())

    def look_for_first_chunk(self) -> None:
        """Allow `start_at_first_chunk`: the start is the topic's last entry, which may be the last chunk of many."""
        self._further_back = [_INTERLEAVED, 0]

    def start_at_first_chunk(self, entry: tuple[int, int], chunk_id: int) -> bool:
        """Move the start back to where the first chunk should be of a message of which a later chunk is at the start.

        Return False where it is not, or nothing is left to try. Until the next attachment everything is filtered out:
        what is behind that message would come before it.
        """
        start = self._start
        if start is None or entry != self.start_entry() or not self._further_back or chunk_id > entry[1]:
            return False
        tried = start.first_chunk_message_id() or start
        first = max(0, entry[1] - chunk_id - self._further_back.pop())
        if first >= tried.entry_id():
            return False
        place = MessageId(self._partition, entry[0], first, topic=self._topic)
        self._start = MessageId(self._partition, *entry, topic=self._topic, first_chunk=place)
        self.filter, self.is_moving_back = _BEHIND_EVERYTHING, True
        return True

    def pin_latest(self, last: MessageId) -> None:
        """Replace `latest` by a fixed position: without it, messages published during an outage would be skipped.

        Only for a later attachment: what is delivered now is behind the broker's own `latest`.
        """
        place = self.mark_delete if last.entry_id() < 0 else last
        if place is not None:
            # Without a last id the topic is empty, or was terminated while its last ledger was: nothing is ahead.
            self._start_behind(MessageId(last.partition(), place.ledger_id(), place.entry_id(), -1, topic=self._topic))
        else:
            self._start, self._start_inclusive = MessageId.earliest, False

    def pin_mark(self) -> None:
        """Replace a sought time by the mark-delete position: an unload drops the cursor, and with it the time."""
        mark = self._reliable_mark()
        if mark is not None and self._start == MessageId.earliest:
            self._start_behind(MessageId(self._partition, mark.ledger_id(), mark.entry_id(), topic=self._topic))

    # --- seek -------------------------------------------------------------------------------------------------------

    def sought_words(self, position: MessageId, *, inclusive: bool) -> list[int] | None:
        """Return the ack set of a seek into a batch, None for a whole entry."""
        size = position.batch_size()
        first = position.batch_index() + (1 if self.is_durable and not inclusive else 0)
        return words_of(((1 << size) - 1) & ~((1 << first) - 1), size) if 0 < first < size else None

    def on_seek(self, position: MessageId | None, sought: MessageId | None, *, inclusive: bool) -> None:
        """Record a seek to a position, None for one by time. `sought` is the place of a chunked message."""
        self.last_message = self._last_id = None
        self.is_moving_back, self._further_back = False, []
        if not self.is_stored:
            return
        # The broker stores the sought time for a non-durable subscription; starting at earliest does not rewind it.
        self._start = MessageId.earliest if position is None else position
        self._start_inclusive = self.is_durable or self.inclusive_by_config or position is None
        self._from_latest = position == MessageId.latest
        if self.is_durable:
            self.sought_entry = self.start_entry()
            # Of a message in chunks `position` is the first one, and `sought`, the last one, its place.
            self.filter = StartFilter(position, True) if inclusive else StartFilter(sought, False)

    # --- end --------------------------------------------------------------------------------------------------------

    def is_past(self, end: MessageId) -> bool:
        """Return True if everything before `end` was decoded, dequeued or not, judged by entry ids. Thread-safe."""
        before = end.entry_id() - (0 if end.batch_index() > 0 else 1)
        return self.last_decoded is not None and self.last_decoded >= (end.ledger_id(), before)

    def is_marked(self, entry: tuple[int, int]) -> bool:
        """Return True if the subscription's mark shows that nothing up to this entry is still to be delivered.

        The mark is the entry before the broker's next delivery, also behind `latest` or a time, which name no entry.
        """
        mark = self._reliable_mark()
        return mark is not None and entry <= (mark.ledger_id(), mark.entry_id())

    def _reliable_mark(self) -> MessageId | None:
        mark = self.mark_delete
        if mark is not None and self._is_compacted and mark.entry_id() < 0 and not self._from_latest:
            # Before a ledger's first entry: compacted messages whose own ledgers are removed are still delivered.
            return None
        return mark

    def is_before(self, last: MessageId, *, may_have_more: bool) -> bool:
        """Return True if a message up to `last`, the topic's last deliverable one, is still to be dequeued.

        Nothing decoded may be queued. `may_have_more` is True while undecoded deliveries are.
        """
        if self.is_moving_back:
            return True
        place, inclusive = self.last_dequeued_message_id, False
        if place is None:
            place, inclusive = self._start, self._start_inclusive
        end = (last.ledger_id(), last.entry_id())
        here = (-1, -1) if place is None else (place.ledger_id(), place.entry_id())
        decoded = self.last_decoded
        if decoded is not None and decoded >= end and (decoded > here or inclusive) and not may_have_more:
            # Everything behind the position was decoded, and nothing is left of it: acknowledged, compacted away,
            # damaged.
            return False
        if place is None or place == MessageId.earliest:
            # After a seek by time only the broker knows the position.
            return not self.is_marked(end)
        if here != end:
            return here < end
        if place.batch_index() < 0 or last.batch_index() < 0:
            return inclusive
        return place.batch_index() < last.batch_index() or (inclusive and place.batch_index() == last.batch_index())


def _ends_entry(place: MessageId) -> bool:
    """Return True if nothing of the entry is behind this message, as far as its id tells."""
    return place.batch_index() < 0 or 0 < place.batch_size() <= place.batch_index() + 1
