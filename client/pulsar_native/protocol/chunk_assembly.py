"""Chunked message assembly: the entries of one large message, which may arrive interleaved with others, twice, or
never.

Rules:
- A message is complete when its last chunk is present, and has that chunk's position in the topic.
- Chunk 0 starts the message again: a producer that lost its connection sends all chunks again, and those of the first
  attempt are superseded. A chunk that is present already is superseded too, unless it is the same entry redelivered.
- Chunks of a message that is complete already are superseded as well: the broker's deduplication lets some pass.
- Any other chunk without its predecessor is an orphan: it stays unacknowledged, so that it is redelivered with the
  others, until it is older than the expiry time.
- Beyond `max_pending` incomplete messages the oldest is dropped, acknowledged or not as configured. One that received
  no further chunk for the expiry time is dropped and acknowledged; time without deliveries does not count, see
  `restart_ages`.
- The entries of a delivered message are kept until they are acknowledged: they are acknowledged, and redelivered,
  together.

Not thread-safe: the engine holds the consumer's lock. `now` is monotonic seconds; no clock is read here.
"""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_native.protocol.redelivered import RedeliveredEntries
from pulsar_native.wire.entry import EntryKey, ParsedEntry


class ChunkedMessage:
    """A message whose chunks 0 to n have been received."""

    __slots__ = ("count", "entries", "pieces", "touched")

    def __init__(self, count: int, now: float) -> None:
        self.count = count
        self.entries: list[EntryKey] = []
        self.pieces: list[bytes | memoryview] = []
        self.touched = now

    @property
    def first(self) -> EntryKey:
        """Entry of the first chunk."""
        return self.entries[0]

    def body(self) -> bytes:
        """Return the whole body, still compressed."""
        return b"".join(self.pieces)


# Number of complete messages whose superseded chunks are recognised: a producer resends soon, or never.
_REMEMBERED = 100


class ChunkAssembly:
    """Incomplete messages of one consumer, and the entries of the chunked messages it delivered."""

    __slots__ = (
        "_auto_ack",
        "_complete",
        "_expiry",
        "_max_pending",
        "_pending",
        "_redelivered",
        "acknowledge",
        "delivered",
        "orphans",
        "unusable",
    )

    def __init__(
        self,
        *,
        max_pending: int = 10,
        auto_ack_oldest: bool = False,
        expiry: float = 60.0,
        note_orphans: bool = False,
    ) -> None:
        self._max_pending = max_pending
        self._auto_ack = auto_ack_oldest
        self._expiry = expiry
        # By uuid, oldest first.
        self._pending: dict[str, ChunkedMessage] = {}
        # Entries of the last complete messages, by uuid.
        self._complete: dict[str, list[EntryKey]] = {}
        self._redelivered = RedeliveredEntries()
        self.delivered: dict[EntryKey, tuple[EntryKey, ...]] = {}
        """All entries of each delivered, unacknowledged message, by its last entry."""
        self.acknowledge: list[EntryKey] = []
        """Superseded or expired entries: the engine acknowledges them and empties the list."""
        self.unusable: list[EntryKey] = []
        """Entries dropped without acknowledgement: the broker is to redeliver them."""
        self.orphans: dict[str, EntryKey] | None = {} if note_orphans else None
        """Entry of the last chunk of each message that could not be assembled, by uuid; None when not recorded."""

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __len__(self) -> int:
        return len(self._pending)

    def is_incomplete(self, uuid: str) -> bool:
        """Return True if further chunks of a message are awaited."""
        return uuid in self._pending

    def keep_all(self) -> None:
        """Drop no incomplete message from now on, neither for their number nor for their age."""
        self._max_pending = 0
        self._expiry = 0.0

    # --- chunks in --------------------------------------------------------------------------------------------------

    def add(
        self, entry: EntryKey, parsed: ParsedEntry, piece: bytes | memoryview, now: float, wall_ms: int
    ) -> ChunkedMessage | None:
        """Add a chunk, decrypted but not decompressed; return its message when it is complete."""
        metadata = parsed.metadata
        uuid, chunk_id = metadata.uuid, metadata.chunk_id
        message = self._pending.get(uuid)
        if message is not None and entry in message.entries:
            # Redelivered while it is present: the broker counts on this entry, so it is not superseded.
            return None
        if chunk_id == 0:
            if message is not None:
                self.acknowledge += self._pending.pop(uuid).entries
            message = self._begin(uuid, metadata.num_chunks_from_msg, now)
        elif message is None or chunk_id > len(message.entries):
            self._orphan(entry, parsed, wall_ms)
            return None
        elif chunk_id < len(message.entries):
            self.acknowledge.append(entry)
            return None
        message.entries.append(entry)
        message.pieces.append(piece)
        message.touched = now
        if len(message.entries) < message.count:
            return None
        del self._pending[uuid]
        self._complete[uuid] = message.entries
        if len(self._complete) > _REMEMBERED:
            del self._complete[next(iter(self._complete))]
        return message

    def _begin(self, uuid: str, count: int, now: float) -> ChunkedMessage:
        self._complete.pop(uuid, None)
        message = self._pending[uuid] = ChunkedMessage(count, now)
        if 0 < self._max_pending < len(self._pending):
            oldest = self._pending.pop(next(iter(self._pending)))
            (self.acknowledge if self._auto_ack else self.unusable).extend(oldest.entries)
        return message

    def _orphan(self, entry: EntryKey, parsed: ParsedEntry, wall_ms: int) -> None:
        metadata = parsed.metadata
        if entry not in self._complete.get(metadata.uuid, (entry,)):
            self.acknowledge.append(entry)
            return
        message = self._pending.pop(metadata.uuid, None)
        if message is not None:
            self.unusable += message.entries
        if self.orphans is not None and metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            # The message has the position of the first one, if its last chunk was sent again.
            self.orphans.setdefault(metadata.uuid, entry)
        expired = self._expiry and wall_ms > metadata.publish_time + self._expiry * 1000
        (self.acknowledge if expired else self.unusable).append(entry)

    def next_expiry(self) -> float | None:
        """Return when the next incomplete message expires, None when there is none or they never do."""
        if not self._pending or not self._expiry:
            return None
        return min(message.touched for message in self._pending.values()) + self._expiry

    def restart_ages(self, now: float) -> None:
        """Count the expiry time of the incomplete messages from now on: no chunk could arrive before."""
        for message in self._pending.values():
            message.touched = now

    def expire(self, now: float) -> int:
        """Drop, and list for acknowledgement, messages without a further chunk in time; return their number."""
        if not self._expiry:
            return 0
        old = [uuid for uuid, message in self._pending.items() if message.touched + self._expiry <= now]
        for uuid in old:
            self.acknowledge += self._pending.pop(uuid).entries
        return len(old)

    def drop_incomplete(self) -> None:
        """Forget the incomplete messages: all of their chunks are redelivered."""
        self._pending.clear()

    def clear(self) -> None:
        """Forget everything: the subscription's position was moved."""
        self._pending.clear()
        self._complete.clear()
        self.delivered.clear()
        self._redelivered.clear()
        if self.orphans is not None:
            self.orphans.clear()

    # --- entries of whole messages ----------------------------------------------------------------------------------

    def give(self, message: ChunkedMessage) -> None:
        """Record that a message is delivered to the application."""
        self._redelivered.discard(message.entries[-1])
        self.delivered[message.entries[-1]] = tuple(message.entries)

    def pop_entries(self, last: EntryKey) -> tuple[EntryKey, ...]:
        """Remove and return the entries of an acknowledged message; empty when it is not a chunked one."""
        return self.delivered.pop(last, ())

    def redelivered(self, entries: Iterable[EntryKey]) -> list[EntryKey]:
        """Return the entries to redeliver, each last chunk extended by all chunks of its message."""
        known = [(entry, self.delivered.get(entry)) for entry in entries]
        for last in self._redelivered.add(entry for entry, chunks in known if chunks):
            self.delivered.pop(last, None)
        return [each for entry, chunks in known for each in chunks or (entry,)]

    def safe_position(self, position: EntryKey) -> EntryKey:
        """Return the position up to which everything may be acknowledged, and forget the messages before it.

        A message that ends behind the position keeps its chunks before it: if they were acknowledged, they would be
        missing when the message is redelivered.
        """
        for last in [last for last in self.delivered if last <= position]:
            del self.delivered[last]
        open_from = [message.first for message in self._pending.values()]
        open_from += [entries[0] for entries in self.delivered.values()]
        first = min(open_from, default=None)
        return position if first is None or first > position else (first[0], first[1] - 1)
