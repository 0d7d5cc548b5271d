"""Why a producer does not take a message, or gives one up, in words that name the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pulsar_native.exceptions import (
    ChecksumError,
    MemoryBufferIsFull,
    NotConnected,
    OperationNotSupported,
    ProducerQueueIsFull,
    PulsarException,
)


class Backpressure(NamedTuple):
    """Why a message was not taken, and how to be woken when there is room."""

    error: PulsarException
    wait_for_room: Callable[[Callable[[], None]], None]
    # Of a message that interceptors have seen: how to try again without showing it to them twice, and to give up.
    retry: Callable[[], Backpressure | None] | None = None
    on_give_up: Callable[[PulsarException], None] | None = None
    # Not for want of room: to be waited for whatever block_if_queue_full says.
    always_waits: bool = False

    def refusal(self) -> PulsarException:
        """Return the error to raise, for a caller that does not wait."""
        if self.on_give_up is not None:
            self.on_give_up(self.error)
        return self.error


def queue_full(limit: int, topic: str) -> PulsarException:
    """Return the error for a message too many."""
    return ProducerQueueIsFull(
        f"{limit} messages wait for their receipts; raise max_pending_messages, send slower, or "
        "set block_if_queue_full=True",
        topic=topic,
    )


def memory_full(limit: int, topic: str) -> PulsarException:
    """Return the error for a byte too many."""
    return MemoryBufferIsFull(
        f"{limit} bytes of messages wait for their receipts, or to be taken by consumers "
        "whose queues scale; raise memory_limit_bytes of the client, send slower, or set block_if_queue_full=True",
        topic=topic,
    )


def not_joined(topic: str) -> PulsarException:
    """Return the error for a first message of a transaction that cannot be waited for."""
    return OperationNotSupported(
        "The first message of a transaction to a partition waits for the broker, which a callback of the client "
        "cannot do: send one from another thread first",
        topic=topic,
    )


def may_be_stored(topic: str) -> PulsarException:
    """Return the error for a message of a transaction whose connection was lost before its receipt."""
    return NotConnected(
        "The connection was lost before the broker confirmed the message, and the topic has no deduplication: sent "
        "again, it may be in the transaction twice. The transaction can only be aborted; do it again in a new one. "
        "Turn on deduplication for the namespace to have transactions outlive connections",
        topic=topic,
    )


def lost_to_deduplication(topic: str) -> PulsarException:
    """Return the error for a damaged message that the broker did not take when it came again."""
    return ChecksumError(
        "The message was damaged on its way, and the broker's deduplication dropped it when it came again, as "
        "those behind it were stored already: it is most likely lost. Send it anew, with a new sequence id",
        topic=topic,
    )
