"""Acknowledgements grouped per entry until they are sent.

Rules: of cumulative acknowledgements only the highest is kept; individual ones are a set of entries; a batch is
acknowledged when all its messages are, or, with batch-index acknowledgement, by the 64-bit words of what is still
unacknowledged. A lost connection loses nothing: acknowledgements stay until they are drained for a live one.

Not thread-safe: the engine holds the consumer's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pulsar_native._message_fields import AckRun, PendingAcks
from pulsar_native.protocol.redelivered import RedeliveredEntries
from pulsar_native.wire.commands import AckItem
from pulsar_native.wire.entry import EntryKey

_WORD = (1 << 64) - 1
NO_ENTRY: EntryKey = (-1, -1)
"""Position before every entry."""

# All messages of a batch of unknown size.
_ALL = -1


def words_of(bits: int, size: int) -> list[int]:
    """Return the 64-bit words (signed, lowest first) of a bit set of `size` bits, as Java's BitSet.toLongArray does."""
    words = []
    for shift in range(0, max(size, 1), 64):
        word = bits >> shift & _WORD
        words.append(word - (1 << 64) if word >> 63 else word)
    while words and not words[-1]:
        words.pop()
    return words


def bits_of(words: Sequence[int]) -> int:
    """Return the bit set of 64-bit words."""
    bits = 0
    for index, word in enumerate(words):
        bits |= (word & _WORD) << (64 * index)
    return bits


class AckGroup:
    """Acknowledgements not sent yet, and the partly acknowledged batches."""

    __slots__ = (
        "_batch_index",
        "_complete",
        "_complete_words",
        "_counted",
        "_cumulative",
        "_cumulative_sent",
        "_partial",
        "_partial_dirty",
        "_redelivered",
        "taken",
    )

    def __init__(self, *, batch_index: bool) -> None:
        self._batch_index = batch_index
        # Complete entries, with their numbers of messages.
        self._complete: dict[EntryKey, int] = {}
        # For complete entries partly acknowledged by others: the words of their messages, to be excluded.
        self._complete_words: dict[EntryKey, list[int]] = {}
        # Open bits, batch size, and the open bits at the entry's last delivery.
        self._partial: dict[EntryKey, tuple[int, int, int]] = {}
        self._partial_dirty: dict[EntryKey, None] = {}
        self._redelivered = RedeliveredEntries()
        self._cumulative: tuple[int, int, int, int] | None = None
        self._cumulative_sent: tuple[int, int] | None = None
        # Statistics: messages drained so far, and how many of them belong to batches that are still partly open.
        self.taken = 0
        self._counted: dict[EntryKey, int] = {}

    def __len__(self) -> int:
        return len(self._complete) + len(self._partial_dirty) + (self._cumulative is not None)

    def covers(self, entry: EntryKey) -> bool:
        """Return True if the whole entry is acknowledged, so that a late delivery of it is a duplicate."""
        if entry in self._complete:
            return True
        # In the entry of the cumulative position some messages may be open: only earlier entries are certainly done.
        last = self._cumulative
        if last is not None and (entry < last[:2] or (entry == last[:2] and last[2] < 0)):
            return True
        return self._cumulative_sent is not None and entry <= self._cumulative_sent

    @property
    def covered_to(self) -> EntryKey:
        """Entry up to which a cumulative acknowledgement reaches, `NO_ENTRY` when there is none."""
        last, sent = self._cumulative, self._cumulative_sent
        return max(NO_ENTRY if last is None else last[:2], sent or NO_ENTRY)

    @property
    def complete(self) -> Mapping[EntryKey, int]:
        """Whole entries that were acknowledged individually and are not sent yet."""
        return self._complete

    def partial(self, entry: EntryKey) -> int | None:
        """Return the bit set of a partly acknowledged entry's open messages, None when it is unknown."""
        known = self._partial.get(entry)
        return known[0] if known else None

    def open_here(self, entry: EntryKey) -> int | None:
        """Return the bit set of messages not acknowledged by this consumer, None when none of the entry was.

        Messages that others had acknowledged when the entry was delivered may be open again: in an aborted transaction.
        """
        known = self._partial.get(entry)
        return known[0] | ~known[2] if known else None

    def size_of(self, entry: EntryKey) -> int:
        """Return the size of a partly acknowledged batch, 0 when it is unknown."""
        known = self._partial.get(entry)
        return known[1] if known else 0

    def add(self, entry: EntryKey, batch_index: int, batch_size: int, several: int = 0) -> bool:
        """Acknowledge one message, or the whole entry with index -1; return True if the entry is now complete.

        With any other index, `several` may be a bit set of indexes to use instead.

        Size 0 = unknown (an id created elsewhere): such a batch is not complete before its size is known.
        """
        if entry in self._complete:
            return True
        if batch_index < 0 or batch_size == 1:
            self._partial.pop(entry, None)
            self._partial_dirty.pop(entry, None)
            self._complete[entry] = batch_size or 1
            return True
        known = self._partial.get(entry)
        # Messages of a batch after the first, without a call: this runs for each message.
        bits, size, opened = known if known is not None and known[1] else self._open(entry, batch_size)
        bits &= ~(several or 1 << batch_index)
        if not bits:
            theirs = ((1 << size) - 1) & ~opened
            if theirs:
                # The others' acknowledgements may be in an uncommitted transaction: they must not be sent as ours.
                self._complete_words[entry] = words_of(theirs, size)
            return self.add(entry, -1, size)
        self._partial[entry] = (bits, size, opened)
        # Words for an unknown size would omit its upper messages, and omitted ones count as acknowledged.
        if self._batch_index and size:
            self._partial_dirty[entry] = None
        return False

    def add_taken(self, pending: PendingAcks) -> list[AckRun]:
        """Acknowledge the whole entries of what waits to be grouped, and return the rest, parts of entries."""
        return pending.take_parts(self._complete, self._partial)

    def _open(self, entry: EntryKey, batch_size: int) -> tuple[int, int, int]:
        bits, size, opened = self._partial.get(entry, (_ALL, 0, _ALL))
        return (bits, size, opened) if size or not batch_size else (bits & ((1 << batch_size) - 1), batch_size, opened)

    def add_entry(self, entry: EntryKey, bits: int, size: int) -> None:
        """Record the unacknowledged messages of a batch as the broker delivered it (its ack_set, or all)."""
        mine = self.open_here(entry)
        self._redelivered.discard(entry)
        if mine is None:
            self._partial[entry] = (bits, size, bits)
        else:
            # The broker reports our own acknowledgements too: they stay ours, as it forgets them at an unload.
            self._partial[entry] = (bits & mine, size, bits | ((1 << size) - 1) & ~mine)
        if self._batch_index:
            # Those acknowledged at the broker were counted before.
            self._counted.setdefault(entry, size - bits.bit_count())

    def redelivered(self, entries: Iterable[EntryKey]) -> None:
        """Note that the broker is to redeliver entries, to this consumer or another one."""
        for entry in self._redelivered.add(entry for entry in entries if entry in self._partial):
            for known in (self._partial, self._partial_dirty, self._counted):
                known.pop(entry, None)

    def resend(self, entry: EntryKey) -> bool:
        """Mark the acknowledged part of a batch for resending: the broker redelivered it without that part.

        Return True if there is something to send.
        """
        if not self._batch_index or entry not in self._partial:
            return False
        self._partial_dirty[entry] = None
        return True

    def add_cumulative(self, entry: EntryKey, batch_index: int, batch_size: int) -> None:
        """Acknowledge everything up to and including a message; only the highest such position is kept."""
        if self._cumulative_sent is not None and entry <= self._cumulative_sent:
            return
        position = (*entry, batch_index, 0)
        if batch_index >= 0:
            bits, size, opened = self._open(entry, batch_size)
            bits &= _ALL << (batch_index + 1)
            self._partial[entry] = (bits, size, opened)
            # It was the last message, or all behind it were acknowledged individually before; without the size (an id
            # created elsewhere) only the entries before it are certainly covered.
            position = (*entry, batch_index if bits else -1, size) if size else (entry[0], entry[1] - 1, -1, 0)
        if position[1] >= 0 and (self._cumulative is None or _order(self._cumulative) < _order(position)):
            self._cumulative = position

    def drain(self) -> tuple[list[AckItem], AckItem | None]:
        """Remove and return the acknowledgements to send: individual items, and the cumulative one."""
        cumulative = self._drain_cumulative()
        if self._cumulative_sent is not None:
            self._forget_up_to(self._cumulative_sent)
        items: list[AckItem] = [(ledger, entry, None) for ledger, entry in self._complete]
        if self._complete_words:
            words = self._complete_words
            items = [(*key, words.get(key)) for key in self._complete]
            self._complete_words = {}
        self.taken += sum(self._complete.values()) + (cumulative is not None)
        for key in self._partial_dirty:
            bits, size, _ = self._partial[key]
            items.append((*key, words_of(bits, size)))
            done = size - bits.bit_count()
            self.taken += done - self._counted.get(key, 0)
            self._counted[key] = done
        if self._counted:
            for key in self._complete.keys() & self._counted.keys():
                self.taken -= self._counted.pop(key)
        self._complete = {}
        self._partial_dirty = {}
        return items, cumulative

    def _drain_cumulative(self) -> AckItem | None:
        last = self._cumulative
        if last is None:
            return None
        self._cumulative = None
        ledger, entry, index, size = last
        if index < 0:
            self._cumulative_sent = (ledger, entry)
            return (ledger, entry, None)
        self._cumulative_sent = (ledger, entry - 1)
        # Inside a batch the entry's remaining messages are sent along, as Java 4.x does.
        return (ledger, entry, words_of(((1 << size) - 1) & (_ALL << (index + 1)), size))

    def _forget_up_to(self, last: EntryKey) -> None:
        for known in (self._complete, self._complete_words, self._partial, self._partial_dirty, self._counted):
            for key in [key for key in known if key <= last]:
                del known[key]

    def reattached(self, *, by_entry: bool = False) -> None:
        """Forget what was sent over an earlier connection: from now on the broker reports what is acknowledged.

        Acknowledgements lost with that connection, or undone by a seek, cause redelivery; treating that redelivery as a
        duplicate would hide the message from the application permanently. With `by_entry` another consumer may get the
        rest of the batches.
        """
        self._cumulative_sent = None
        if by_entry:
            # Not those with something to send: nothing of it may be lost with a connection.
            self.redelivered([entry for entry in self._partial if entry not in self._partial_dirty])

    def put_back(self, items: Sequence[AckItem], cumulative: AckItem | None) -> None:
        """Put back what could not be sent, unless something newer replaced it."""
        for ledger, entry, words in items:
            key = (ledger, entry)
            if words is None or key not in self._partial:
                if key not in self._complete:
                    # Counted already with all its messages; drained again, it counts as one.
                    self._complete[key] = 1
                    self.taken -= 1
                    if words is not None:
                        self._complete_words[key] = list(words)
            else:
                self._partial_dirty[key] = None
        if cumulative is not None:
            ledger, entry, words = cumulative
            bits = bits_of(words or ())
            # Words begin at the first open message, and their highest bit is the batch's last message.
            index = (bits & -bits).bit_length() - 2 if bits else -1
            position = (ledger, entry, index, bits.bit_length())
            if self._cumulative is None or _order(self._cumulative) < _order(position):
                self._cumulative = position
                self.taken -= 1

    def clear(self) -> None:
        """Forget everything: a seek moved the subscription's position."""
        self._complete = {}
        self._complete_words = {}
        self._partial = {}
        self._partial_dirty = {}
        self._counted = {}
        self._redelivered.clear()
        self._cumulative = None
        self._cumulative_sent = None


def _order(position: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return the sort key of a cumulative position: index -1, the whole entry, is above any index in it."""
    ledger, entry, index, _ = position
    return (ledger, entry, int(index < 0), index)
