"""Send operations: entries with their bytes until the receipt arrives, the callbacks to call then, and their queue.

Rules: an entry keeps its exact bytes, so that a resend has the batch boundaries the broker's deduplication has
recorded; a chunk is an entry, and the last chunk of a message carries the message's callback. An application's callback
may be wrapped in a one-element tuple: it is then called with a result code, which saves one object per message.

Receipts arrive in the order of the queue, except that plain entries may overtake those of transactions: the broker
stores these one by one, and not before the topic's transaction buffer is recovered. A lower sequence id belongs to an
entry that was given up; a higher one means that client and broker are out of step. Entries of a transaction are removed
when they must not be written, or written again. Not thread-safe: the engine holds the producer's lock around every call
of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum, auto
from typing import Any

from pulsar_native._callback_errors import callback_errors
from pulsar_native._loggers import get_logger
from pulsar_native._message_fields import call_back
from pulsar_native.enums import Result
from pulsar_native.exceptions import PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.transaction import TransactionCore
from pulsar_native.wire.checksum import crc32c

_log = get_logger(__name__)

Callback = Callable[[PulsarException | None, MessageId | None], None]
ResultCallback = Callable[[Result, MessageId], Any]
# The id of a message that is not stored, for callbacks of the official form: they always get one.
UNSTORED = MessageId()
# Callback of a message: an internal one, or a tuple with one of the official client's signature.
SendCallback = Callback | tuple[ResultCallback]


def as_callback(given: SendCallback | None) -> Callback | None:
    """Return a callback in the internal signature."""
    if not isinstance(given, tuple):
        return given
    (callback,) = given

    def on_result(error: PulsarException | None, message_id: MessageId | None) -> None:
        callback(Result.Ok if error is None else error.result, message_id or UNSTORED)

    return on_result


class SendOp:
    """One entry that is sent and not confirmed: its bytes and callbacks."""

    __slots__ = (
        "callbacks",
        "count",
        "created",
        "highest_sequence_id",
        "may_be_stored",
        "parts",
        "sequence_id",
        "size",
        "transaction",
        "was_damaged",
        # Time of the first write; set only when latency is measured.
        "written",
    )
    written: float

    def __init__(
        self,
        sequence_id: int,
        highest_sequence_id: int,
        parts: Sequence[bytes | memoryview],
        callbacks: Sequence[SendCallback | None],
        size: int,
        created: float,
    ) -> None:
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.parts = parts
        self.callbacks = callbacks
        self.count = len(callbacks)
        self.size = size
        self.created = created
        # Written to a connection that was lost before the receipt.
        self.may_be_stored = False
        # The broker rejected it with ChecksumError, so that copy was not stored.
        self.was_damaged = False
        # Also a resent entry stays in the transaction it was sent in.
        self.transaction: TransactionCore | None = None

    def complete(self, error: PulsarException | None, place: tuple[int, int, int] | None, topic: str) -> None:
        """Call the callbacks, each with its own message id; `place` is (partition, ledger id, entry id)."""
        callbacks = self.callbacks
        if not any(callbacks):
            return
        result = Result.Ok if error is None else error.result

        def failed() -> None:
            # An application's callback may raise: the callbacks of the other messages must still be called. sys.exit
            # would end the client's thread, for all that it does.
            _log.exception("A send callback failed for a message to %s", topic)

        if self.count > 1:
            call_back(callbacks, (error, result), place, topic, UNSTORED, failed)
            return
        (callback,) = callbacks
        message_id = None if place is None else self._id(place, topic)
        try:
            if type(callback) is tuple:
                callback[0](result, message_id or UNSTORED)
            else:
                callback(error, message_id)  # type: ignore[operator, misc]
        except callback_errors():
            failed()

    def _id(self, place: tuple[int, int, int], topic: str) -> MessageId:
        return MessageId(*place, -1, topic=topic)

    def is_named_by(self, sequence_id: int) -> bool:
        """Return True if SEND_ERROR names this entry by an id (docs/broker-behaviour.md#send-error-ids)."""
        return sequence_id == max(self.sequence_id, self.highest_sequence_id)

    def is_intact(self) -> bool:
        """Return True if the bytes still have their checksum: then they were damaged in transit."""
        head, body = self.parts
        start = 8 + int.from_bytes(head[4:8], "big") + 2
        return crc32c(body, crc32c(head[start + 4 :])) == int.from_bytes(head[start : start + 4], "big")


class ChunkOp(SendOp):
    """One chunk of a message; the last one carries the message's callback and size.

    All chunks have the same sequence id, and only the last may count as published: the others report the previous id.
    """

    __slots__ = ("_places", "is_alone", "is_last")

    def __init__(
        self,
        sequence_id: int,
        parts: Sequence[bytes | memoryview],
        callback: SendCallback | None,
        size: int,
        created: float,
        *,
        is_last: bool,
        places: list[tuple[int, int, int]],
    ) -> None:
        super().__init__(sequence_id, sequence_id if is_last else sequence_id - 1, parts, [callback], size, created)
        self.is_last = is_last
        # A last chunk that goes without the others, as the broker has the message: it is to be dropped as a duplicate.
        self.is_alone = False
        # Shared by the chunks of a message: the positions of those with a receipt.
        self._places = places

    def complete(self, error: PulsarException | None, place: tuple[int, int, int] | None, topic: str) -> None:
        """Record the chunk's position; on the last chunk call the callback with the message's id."""
        if place is not None:
            self._places.append(place)
        super().complete(error, place, topic)

    def _id(self, place: tuple[int, int, int], topic: str) -> MessageId:
        # Of a duplicate message the broker drops the last chunk only, and sends its receipt immediately, before the
        # receipts of the other chunks. Whichever chunk that receipt was matched with, the message is a duplicate.
        for each in self._places:
            if each[1] < 0:
                return MessageId(*each, -1, topic=topic)
        return MessageId(*place, -1, topic=topic, first_chunk=MessageId(*self._places[0], -1, topic=topic))


class SendReceipt(Enum):
    """Classification of a receipt."""

    COMPLETED = auto()
    IGNORED = auto()
    OUT_OF_STEP = auto()


class PendingQueue:
    """Entries that wait for their receipts, in the order in which they are written, and the ids that receipts named."""

    __slots__ = ("bytes", "last_published", "messages", "ops", "refused", "stored")

    def __init__(self, last_published: int) -> None:
        self.ops: deque[SendOp] = deque()
        # Messages and payload bytes of all entries.
        self.messages = 0
        self.bytes = 0
        # Entries that the broker has rejected permanently, with their errors, behind others that wait for receipts.
        self.refused: dict[SendOp, PulsarException] = {}
        self.last_published = last_published
        # Highest sequence id known to be stored; the broker's deduplication drops everything up to it.
        self.stored = -1

    def append(self, op: SendOp) -> None:
        """Add an entry, to be written after all others."""
        self.ops.append(op)
        self.messages += op.count
        self.bytes += op.size

    def disconnected(self) -> None:
        """Record that the connection is lost: it is unknown which of the entries the broker has stored."""
        for op in self.ops:
            op.may_be_stored = True

    def receipt(self, sequence_id: int) -> tuple[SendReceipt, SendOp | None]:
        """Match a receipt with the oldest entry, or the oldest plain one behind entries of transactions.

        A lower id was given up before, a higher one means out of step.
        """
        if not self.ops:
            return SendReceipt.IGNORED, None
        oldest = self.ops[0].sequence_id
        if sequence_id == oldest:
            op = self._pop()
        elif (overtaking := self._overtaking(sequence_id)) is not None:
            op = overtaking
            self.ops.remove(op)
            self._uncount(op)
        else:
            return (SendReceipt.IGNORED if sequence_id < oldest else SendReceipt.OUT_OF_STEP), None
        self.last_published = max(self.last_published, op.highest_sequence_id)
        self.stored = max(self.stored, op.highest_sequence_id)
        return SendReceipt.COMPLETED, op

    def _overtaking(self, sequence_id: int) -> SendOp | None:
        """Return the oldest plain entry if it has this id."""
        plain = next((op for op in self.ops if op.transaction is None), None)
        return plain if plain is not None and plain.sequence_id == sequence_id else None

    def damaged(self, sequence_id: int) -> None:
        """Record that the broker rejected an entry with ChecksumError; it is to be sent again."""
        for op in self.ops:
            if op.is_named_by(sequence_id):
                op.was_damaged = True

    def is_intact(self, sequence_id: int) -> bool:
        """Return True unless an entry that SEND_ERROR names was damaged here."""
        return all(op.is_intact() for op in self.ops if op.is_named_by(sequence_id))

    def refuse(self, sequence_id: int, error: PulsarException) -> None:
        """Record that the broker rejected an entry permanently: `take_refused` returns it after those before it.

        The broker sends the error at once, and receipts of earlier entries later.
        """
        named = next((op for op in self.ops if op.is_named_by(sequence_id)), None)
        if named is not None:
            self.refused[named] = error

    def take_refused(self) -> list[tuple[SendOp, PulsarException]]:
        """Remove and return the rejected entries that are the oldest, with their errors.

        The other chunks of a chunked message are removed with it; the last one, which has the callback, is returned.
        """
        taken = []
        while self.ops and (error := self.refused.get(self.ops[0])) is not None:
            op = self._pop()
            while isinstance(op, ChunkOp) and not op.is_last:
                op = self._pop()
            taken.append((op, error))
        return taken

    def remove(self, is_wanted: Callable[[SendOp], bool]) -> list[SendOp]:
        """Remove and return some entries, oldest first."""
        taken = [op for op in self.ops if is_wanted(op)]
        if taken:
            gone = set(taken)
            self.ops = deque(op for op in self.ops if op not in gone)
        for op in taken:
            self._uncount(op)
        return taken

    def keep_last_chunks(self, last_sequence_id: int) -> None:
        """Remove the other chunks of messages up to an id that the broker has: it would store them again, and drop the
        last one first, so that receipts would come out of order.
        """
        others = self.remove(
            lambda op: isinstance(op, ChunkOp) and not op.is_last and op.sequence_id <= last_sequence_id
        )
        if others:
            known = {op.sequence_id for op in others}
            for op in self.ops:
                if isinstance(op, ChunkOp) and op.sequence_id in known:
                    op.is_alone = True

    def remove_doubtful(self) -> list[SendOp]:
        """Remove and return entries of transactions that may be stored: a resend would duplicate them there."""
        return self.remove(lambda op: op.may_be_stored and op.transaction is not None)

    def drain(self) -> list[SendOp]:
        """Remove and return all entries, oldest first."""
        ops = list(self.ops)
        self.ops.clear()
        self.refused.clear()
        self.messages = self.bytes = 0
        return ops

    def _pop(self) -> SendOp:
        op = self.ops.popleft()
        self._uncount(op)
        return op

    def _uncount(self, op: SendOp) -> None:
        self.messages -= op.count
        self.bytes -= op.size
        if self.refused:
            self.refused.pop(op, None)


FlushDone = Callable[[PulsarException | None], None]
"""Callback of a flush, with the error of its last entry or None."""


class FlushWaiters:
    """Callbacks that wait for all receipts of earlier messages, each with the last entry it waits for; in order.

    Called under the producer's lock, except where said.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[tuple[SendOp, FlushDone]] = deque()

    def add(self, last: SendOp, done: FlushDone) -> None:
        """Call `done` when an entry is completed."""
        self.waiting.append((last, done))

    def completed(self, op: SendOp, error: PulsarException | None) -> None:
        """Call the callbacks that waited for an entry. Without the lock."""
        while self.waiting and self.waiting[0][0] is op:
            self.waiting.popleft()[1](error)

    def without(self, gone: Collection[SendOp], queue: Iterable[SendOp]) -> list[FlushDone]:
        """Move callbacks of removed entries to the entry before it; return those with nothing left to wait for."""
        last_kept = None
        stands_before: dict[SendOp, SendOp | None] = {}
        for op in queue:
            if op in gone:
                stands_before[op] = last_kept
            else:
                last_kept = op
        moved = [(stands_before.get(op, op), done) for op, done in self.waiting]
        self.waiting = deque((op, done) for op, done in moved if op is not None)
        return [done for op, done in moved if op is None]
