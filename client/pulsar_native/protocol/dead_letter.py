"""Dead-letter and retry topics: entries redelivered too often, and the properties of a message's copy.

Rules (names and properties as the Java client 4.x writes them): the broker counts redeliveries per entry. An entry that
arrives with the last count allowed is delivered once more and remembered; when it is to be redelivered again, it goes
to the dead-letter topic instead. One that arrives with a higher count goes there immediately. A redelivery of an entry
whose dead letter is being sent is dropped, and one of an entry whose dead letter is stored is acknowledged once more,
so that no dead letter is sent twice. Copies in the retry topic carry a reconsume count of their own, since a copy is a
new message for the broker.

Not thread-safe: the engine holds the consumer's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from pulsar_native.message_id import MessageId
from pulsar_native.topic import TopicName
from pulsar_native.wire.entry import EntryKey

T = TypeVar("T")

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# Misspelt property name of older Java clients; newer ones write and read both.
ORIGIN_MESSAGE_ID_OLD = "ORIGIN_MESSAGE_IDY_TIME"
RECONSUME_TIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"

# Number of dead-lettered entries that are recognised when a lost acknowledgement causes their redelivery.
_KNOWN_AGAIN = 10_000
# Seconds for which they are recognised on a new attachment: acknowledgements older than this are stored by any broker,
# and what it delivers again was asked for, as by a reset of the subscription's cursor.
_ACKNOWLEDGED_AFTER = 60.0

# For a consumer with a retry topic and no dead-letter policy.
DEFAULT_MAX_RECONSUME_TIMES = 16


def dead_letter_topic(topic: str, subscription: str) -> str:
    """Return the name of a subscription's dead-letter topic."""
    return f"{topic}-{subscription}-DLQ"


def retry_letter_topic(topic: str, subscription: str) -> str:
    """Return the name of a subscription's retry topic."""
    return f"{topic}-{subscription}-RETRY"


def old_dead_letter_topic(topic: TopicName, subscription: str) -> str:
    """Return the dead-letter topic name of clients before 2.8; used where that topic exists."""
    return f"persistent://{topic.namespace}/{subscription}-DLQ"


def old_retry_letter_topic(topic: TopicName, subscription: str) -> str:
    """Return the retry topic name of clients before 2.8; used where that topic exists."""
    return f"persistent://{topic.namespace}/{subscription}-RETRY"


def letter_properties(
    properties: Mapping[str, str], *, topic: str, message_id: MessageId, subscription: str
) -> dict[str, str]:
    """Return the properties of a message's copy: its own and its origin; a copy of a copy keeps the first origin."""
    origin = _origin(message_id)
    return {
        REAL_TOPIC: topic,
        ORIGIN_MESSAGE_ID: origin,
        ORIGIN_MESSAGE_ID_OLD: origin,
        REAL_SUBSCRIPTION: subscription,
        **properties,
    }


def _origin(message_id: MessageId) -> str:
    """Return an id as Java's toString formats it: batch index only in a batch, chunks from first to last."""
    first = message_id.first_chunk_message_id()
    if first is not None:
        return f"{_origin(first)};{_origin(message_id.without_chunks())}"
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    return text if message_id.batch_index() < 0 else f"{text}:{message_id.batch_index()}"


class NextTry(NamedTuple):
    """Destination and properties of a message passed to `reconsume_later`."""

    properties: dict[str, str]
    is_dead: bool


def next_try(properties: Mapping[str, str], delay_ms: int, max_redeliver_count: int) -> NextTry:
    """Increment the reconsume count in a message's properties and return the destination of its copy."""
    times = _number(properties.get(RECONSUME_TIMES)) + 1
    counted = {**properties, RECONSUME_TIMES: str(times), DELAY_TIME: str(delay_ms)}
    return NextTry(counted, times > max_redeliver_count)


def _number(text: str | None) -> int:
    # Any producer may have written the property: a value that is no count reads as none.
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


class Verdict(Enum):
    """Decision about a delivered entry."""

    GIVE = auto()
    SEND = auto()
    DROP = auto()
    ACKNOWLEDGE = auto()


class DeadLetterTracker(Generic[T]):
    """Entries of one consumer that reached the redelivery limit; `T` is the data kept of each."""

    __slots__ = ("_dead_lettered", "_maximum", "_remembered", "_sending")

    def __init__(self, max_redeliver_count: int) -> None:
        self._maximum = max_redeliver_count
        self._remembered: dict[EntryKey, T] = {}
        self._sending: set[EntryKey] = set()
        # With the times at which their dead letters were stored, oldest first.
        self._dead_lettered: dict[EntryKey, float] = {}

    def __len__(self) -> int:
        return len(self._remembered)

    def delivered(self, entry: EntryKey, redelivery_count: int, kept: T) -> Verdict:
        """Return the decision about an entry: deliver it, send it to the dead-letter topic, or drop or acknowledge
        it.
        """
        if entry in self._sending:
            return Verdict.DROP
        if entry in self._dead_lettered:
            return Verdict.ACKNOWLEDGE
        self._remembered.pop(entry, None)
        if redelivery_count < self._maximum:
            return Verdict.GIVE
        if redelivery_count > self._maximum:
            self._sending.add(entry)
            return Verdict.SEND
        self._remembered[entry] = kept
        return Verdict.GIVE

    def refused(self, entries: Iterable[EntryKey]) -> tuple[list[tuple[EntryKey, T]], list[EntryKey]]:
        """Split entries to redeliver into those for the dead-letter topic, and those to request from the broker."""
        dead, others = [], []
        for entry in entries:
            kept = self._remembered.pop(entry, None)
            if kept is not None:
                self._sending.add(entry)
                dead.append((entry, kept))
            elif entry not in self._sending:
                others.append(entry)
        return dead, others

    def arrived(self, entry: EntryKey, now: float) -> None:
        """Record that the dead letter of an entry is stored."""
        self._sending.discard(entry)
        self._dead_lettered[entry] = now
        if len(self._dead_lettered) > _KNOWN_AGAIN:
            del self._dead_lettered[next(iter(self._dead_lettered))]

    def failed(self, entry: EntryKey) -> None:
        """Record that the dead letter of an entry could not be sent: the entry is to be redelivered."""
        self._sending.discard(entry)

    def acknowledged(self, entry: EntryKey) -> None:
        """Remove an entry that the application acknowledged."""
        self._remembered.pop(entry, None)

    def reattached(self, now: float) -> None:
        """Forget entries at their last delivery: with a new attachment the broker redelivers them with their counts.

        Forget dead-lettered ones, too, whose acknowledgements are certainly stored.
        """
        self._remembered.clear()
        for entry, stored in list(self._dead_lettered.items()):
            if now - stored <= _ACKNOWLEDGED_AFTER:
                break
            del self._dead_lettered[entry]

    def on_seek(self) -> None:
        """Forget dead-lettered entries too: after a seek the application may want them again."""
        self._remembered.clear()
        self._dead_lettered.clear()
