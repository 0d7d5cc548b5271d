"""Entries on their way: their bytes until the receipt, and whom to tell then.

Rules: an entry keeps its exact bytes, so that a resend has the boundaries the broker's deduplication knows; a chunk is
an entry, and the last one of a message answers for it. An application's callback may stand in a tuple
by itself: it is called with a result code then, without an object around it for each message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_native.enums import Result
from pulsar_native.exceptions import PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.transaction import TransactionCore
from pulsar_native.wire.checksum import crc32c

_log = logging.getLogger(__name__)

Callback = Callable[[PulsarException | None, MessageId | None], None]
ResultCallback = Callable[[Result, MessageId | None], Any]
# Whom to tell of a message: a callback of our own, or one of the official form.
SendCallback = Callback | tuple[ResultCallback]


def as_callback(told: SendCallback | None) -> Callback | None:
    """Return our own form of a callback, for who calls it."""
    if not isinstance(told, tuple):
        return told
    (callback,) = told

    def tell(error: PulsarException | None, message_id: MessageId | None) -> None:
        callback(Result.Ok if error is None else error.result, message_id)

    return tell


class SendOp:
    """One entry on its way: its bytes, and whom to tell."""

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
        # When it was first written; set by who measures it, and only then.
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
        # The broker refused it for its checksum, so it cannot have it from then.
        self.was_damaged = False
        # Resent or not, it stays in the transaction it was sent in.
        self.transaction: TransactionCore | None = None

    def complete(self, error: PulsarException | None, place: tuple[int, int, int] | None, topic: str) -> None:
        """Call the callbacks, each with its own message id; `place` is (partition, ledger, entry)."""
        callbacks, count = self.callbacks, self.count
        if not any(callbacks):
            return
        result = Result.Ok if error is None else error.result
        message_id: MessageId | None = None
        for index, callback in enumerate(callbacks):
            if callback is None:
                continue
            if place is not None:
                if count > 1:
                    message_id = MessageId(*place, index, batch_size=count, topic=topic)
                else:
                    message_id = self._id(place, topic)
            try:
                if type(callback) is tuple:
                    callback[0](result, message_id)
                else:
                    callback(error, message_id)  # type: ignore[operator]
            except Exception:
                # The application's callback is not ours to trust: the other messages' callbacks are still owed.
                _log.exception("A send callback failed for a message to %s", topic)

    def _id(self, place: tuple[int, int, int], topic: str) -> MessageId:
        return MessageId(*place, -1, topic=topic)

    def is_intact(self) -> bool:
        """Return whether the bytes still have the checksum they were given: if so, they were damaged on the way."""
        head, body = self.parts
        start = 8 + int.from_bytes(head[4:8], "big") + 2
        return crc32c(body, crc32c(head[start + 4 :])) == int.from_bytes(head[start : start + 4], "big")


class ChunkOp(SendOp):
    """One chunk of a message; the last one carries the message's callback and size.

    All chunks share the sequence id, so only the last may count as published: the others name the id before.
    """

    __slots__ = ("_places", "is_last")

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
        # Shared by the message's chunks: where those with a receipt lie.
        self._places = places

    def complete(self, error: PulsarException | None, place: tuple[int, int, int] | None, topic: str) -> None:
        """Note the chunk's place; call the callback with the message's when this is the last one."""
        if place is not None:
            self._places.append(place)
        super().complete(error, place, topic)

    def _id(self, place: tuple[int, int, int], topic: str) -> MessageId:
        # Of a message it has already, the broker drops the last chunk only, and says so at once, before the receipts of
        # the others: whichever it was taken for, the message is a duplicate.
        for each in self._places:
            if each[1] < 0:
                return MessageId(*each, -1, topic=topic)
        return MessageId(*place, -1, topic=topic, first_chunk=MessageId(*self._places[0], -1, topic=topic))
