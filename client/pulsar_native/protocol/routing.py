"""Message routing: choice of the partition of each message.

Rules: a key selects the partition by its hash, in every routing mode (same hash functions as the Java client). Without
a key, round robin switches the partition per message, or with batching per time slice, so that batches fill; single
partition keeps the partition chosen at creation. A message with an explicit sequence id and no key goes to partition
`sequence_id % partitions`: the broker records sequence ids per partition, so a retry of an id must reach the same
partition to be recognised as a duplicate.
"""

from __future__ import annotations

from typing import Protocol

from pulsar_native.config import Router
from pulsar_native.enums import HashingScheme
from pulsar_native.exceptions import InvalidConfiguration, WrongPartition
from pulsar_native.message import OutgoingMessage, RoutedMessage
from pulsar_native.wire.hashing import choose_partition


class Routing(Protocol):
    """Message router; `now` is monotonic seconds."""

    def choose(self, message: OutgoingMessage, partitions: int, now: float) -> int: ...
    def choose_plain(self, payload: bytes, partitions: int, now: float) -> int:
        """Return the partition for a message that has nothing but a payload."""
        ...


def _by_content(message: OutgoingMessage, partitions: int, scheme: HashingScheme) -> int:
    if message.partition_key is not None:
        return choose_partition(message.partition_key, scheme, partitions)
    if message.sequence_id is not None:
        return message.sequence_id % partitions
    return -1


class RoundRobinRouting:
    """Round-robin router for messages without a key. With batching the partition changes every `switch_seconds`."""

    __slots__ = ("_counter", "_scheme", "_start", "_switch_seconds")

    def __init__(self, scheme: HashingScheme, start: int, *, switch_seconds: float = 0.0) -> None:
        self._scheme = scheme
        self._start = start
        self._counter = start
        self._switch_seconds = switch_seconds

    def choose(self, message: OutgoingMessage, partitions: int, now: float) -> int:
        """Return the partition for this message."""
        chosen = _by_content(message, partitions, self._scheme)
        if chosen >= 0:
            return chosen
        return self.choose_plain(b"", partitions, now)

    def choose_plain(self, _payload: bytes, partitions: int, now: float) -> int:
        """Return the partition for a message without key and sequence id."""
        if self._switch_seconds > 0:
            return (int(now / self._switch_seconds) + self._start) % partitions
        self._counter += 1
        return self._counter % partitions


class SingleRouting:
    """Router that sends messages without a key to one partition, chosen when the producer is created."""

    __slots__ = ("_chosen", "_scheme")

    def __init__(self, scheme: HashingScheme, chosen: int) -> None:
        self._scheme = scheme
        self._chosen = chosen

    def choose(self, message: OutgoingMessage, partitions: int, now: float) -> int:
        """Return the partition for this message."""
        chosen = _by_content(message, partitions, self._scheme)
        return chosen if chosen >= 0 else self._chosen % partitions

    def choose_plain(self, _payload: bytes, partitions: int, _now: float) -> int:
        """Return the partition for a message without key and sequence id."""
        return self._chosen % partitions


class CustomRouting:
    """Router that calls the application's message router."""

    __slots__ = ("_router",)

    def __init__(self, router: Router) -> None:
        self._router = router

    def choose(self, message: OutgoingMessage, partitions: int, now: float) -> int:
        """Return the router's answer.

        Another one than a partition raises before anything is sent: `WrongPartition`, and `InvalidConfiguration` for
        what is no number.
        """
        answer = self._router(RoutedMessage(message), partitions)
        try:
            chosen = int(answer)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidConfiguration(_astray(answer, partitions)) from error
        if not 0 <= chosen < partitions:
            raise WrongPartition(_astray(answer, partitions))
        return chosen

    def choose_plain(self, payload: bytes, partitions: int, now: float) -> int:
        """Return the application router's partition for a message with this payload."""
        return self.choose(OutgoingMessage(payload), partitions, now)


def _astray(answer: object, partitions: int) -> str:
    return f"The message router answered {answer!r}; it must be 0 <= n < {partitions}"
