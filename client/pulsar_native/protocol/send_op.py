"""Send operations: entries with their bytes until the receipt arrives, and the callbacks to call then.

Rules: an entry keeps its exact bytes, so that a resend has the batch boundaries the broker's deduplication has
recorded; a chunk is an entry, and the last chunk of a message carries the message's callback. An application's callback
may be wrapped in a one-element tuple: it is then called with a result code, which saves one object per message.
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
                    callback[0](result, message_id or UNSTORED)
                else:
                    callback(error, message_id)  # type: ignore[operator]
            except Exception:
                # An application's callback may raise: the callbacks of the other messages must still be called.
                _log.exception("A send callback failed for a message to %s", topic)

    def _id(self, place: tuple[int, int, int], topic: str) -> MessageId:
        return MessageId(*place, -1, topic=topic)

    def is_intact(self) -> bool:
        """Return True if the bytes still have their checksum: then they were damaged in transit."""
        head, body = self.parts
        start = 8 + int.from_bytes(head[4:8], "big") + 2
        return crc32c(body, crc32c(head[start + 4 :])) == int.from_bytes(head[start : start + 4], "big")


class ChunkOp(SendOp):
    """One chunk of a message; the last one carries the message's callback and size.

    All chunks have the same sequence id, and only the last may count as published: the others report the previous id.
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
