"""Backpressure of a producer: refusals for a full queue or memory limit, with errors that name the fix, and waiters."""

from __future__ import annotations

import copy
from collections import deque
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
    """Refusal of a message, with a way to be woken when there is capacity."""

    error: PulsarException
    wait_for_room: Callable[[Callable[[], None]], None]
    # For a message that interceptors have seen, or that has its partition: retry without calling interceptors or the
    # router twice; and report that a message was given up.
    retry: Callable[[], Backpressure | None] | None = None
    on_give_up: Callable[[PulsarException], None] | None = None
    # True for reasons other than capacity: the caller waits whatever block_if_queue_full is.
    always_waits: bool = False

    def refusal(self) -> PulsarException:
        """Return the error to raise, for a caller that does not wait."""
        if self.on_give_up is not None:
            self.on_give_up(self.error)
        return self.error

    def retried_by(self, attempt: Callable[[], Backpressure | None]) -> Backpressure:
        """Return it with another way to retry, of this time and all later ones."""

        def retry() -> Backpressure | None:
            full = attempt()
            return None if full is None else full.retried_by(attempt)

        return self._replace(retry=retry)


class CapacityWaiters:
    """Callbacks that wait for capacity in the queue, each for a number of messages or chunks; in order.

    Called under the producer's lock; the callbacks themselves are called without it.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def add(self, needed: int, wake: Callable[[], None]) -> None:
        """Call `wake` when there is capacity for `needed` messages or chunks."""
        self.waiting.append((needed, wake))

    def pop_ready(self, capacity: int | None) -> list[Callable[[], None]]:
        """Remove and return the callbacks to call, in order, up to one that does not fit yet; None is unlimited
        capacity.

        A woken sender that finds the capacity used up waits again.
        """
        woken: list[Callable[[], None]] = []
        while self.waiting and (capacity is None or self.waiting[0][0] <= capacity):
            woken.append(self.waiting.popleft()[1])
        return woken


def queue_full(limit: int, topic: str) -> PulsarException:
    """Return the error for a full pending queue."""
    return ProducerQueueIsFull(
        f"{limit} messages wait for their receipts; raise max_pending_messages, send slower, or "
        "set block_if_queue_full=True",
        topic=topic,
    )


def memory_full(limit: int, topic: str) -> PulsarException:
    """Return the error for a reached memory limit."""
    return MemoryBufferIsFull(
        f"{limit} bytes of messages wait for their receipts, or in auto-scaled receiver "
        "queues; raise memory_limit_bytes of the client, send slower, or set block_if_queue_full=True",
        topic=topic,
    )


def not_joined(topic: str) -> PulsarException:
    """Return the error for a transaction's first message in a thread that must not wait."""
    return OperationNotSupported(
        "The first message of a transaction to a partition waits for the broker, which a callback of the client "
        "cannot do: send one from another thread first",
        topic=topic,
    )


def may_be_stored(topic: str, reason: str) -> PulsarException:
    """Return the error for a message of a transaction whose producer was disconnected before its receipt."""
    return NotConnected(
        f"The broker did not confirm the message ({reason}), and the topic has no deduplication: resent, it may be in "
        "the transaction twice. The transaction can only be aborted; repeat it in a new one. Turn on deduplication for "
        "the namespace to have transactions outlive connections",
        topic=topic,
    )


def as_unconfirmed(error: PulsarException) -> PulsarException:
    """Return a copy of an error, which others may share, for a message that the broker may have stored before."""
    unconfirmed = copy.copy(error)
    unconfirmed.__cause__ = error.__cause__
    unconfirmed.may_be_stored = True
    return unconfirmed


def overtaken(topic: str) -> PulsarException:
    """Return the error for a resent message of a transaction that the broker dropped as older than plain ones."""
    return NotConnected(
        "The connection was lost before the broker confirmed the message, but after it had confirmed later ones "
        "outside the transaction: deduplication dropped the resent message as older than those, whether it was stored "
        "or not. The transaction can only be aborted; repeat it in a new one",
        topic=topic,
    )


def incomplete(topic: str) -> PulsarException:
    """Return the error for a message of which the broker stored the last chunk, after it had said to have them all.

    It had, where deduplication was switched off since; not where it had counted an earlier chunk as the message.
    """
    error = NotConnected(
        "The broker had counted the message in chunks as stored, so that only its last chunk was sent, and then it "
        "stored that, as when deduplication was switched off meanwhile: the message may be stored whole or not. See "
        "whether consumers get it; only if not, send it again with a new sequence id",
        topic=topic,
    )
    error.may_be_stored = True
    return error


def lost_to_deduplication(topic: str) -> PulsarException:
    """Return the error for a damaged message that the broker dropped when it was resent."""
    return ChecksumError(
        "The message was damaged in transit, and the broker's deduplication dropped it when it was resent, as "
        "later ones were stored already: it is most likely lost. Send it again with a new sequence id",
        topic=topic,
    )
