"""Dead letters and retry letters: which entries have failed too often, and what a copy of a message says of its origin.

Rules (names and properties as the Java client 4.x writes them): the broker
counts redeliveries per entry. An entry that arrives with the last count allowed is given out once more and remembered;
when it is refused again, it goes to the dead-letter topic instead. One that arrives with a higher count goes there at
once. What is delivered again of an entry that is on its way is dropped, and of one that has arrived acknowledged once
more, so that no dead letter is sent twice. Retry letters carry their own count, since a copy is a new message for the
broker.

Not thread-safe: the engine holds the consumer's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from pulsar_native.message_id import MessageId
from pulsar_native.protocol.unacked_tracker import EntryKey
from pulsar_native.topic import TopicName

T = TypeVar("T")

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# What older Java clients called it, by a slip of the pen; the newer ones write and read both.
ORIGIN_MESSAGE_ID_OLD = "ORIGIN_MESSAGE_IDY_TIME"
RECONSUME_TIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"

# How many of the entries that became dead letters are known again when a lost acknowledgement brings them back.
_KNOWN_AGAIN = 10_000

# The policy of a consumer with retry topic that was given none.
DEFAULT_MAX_RECONSUME_TIMES = 16


def dead_letter_topic(topic: str, subscription: str) -> str:
    """Return the name of a subscription's dead-letter topic."""
    return f"{topic}-{subscription}-DLQ"


def retry_letter_topic(topic: str, subscription: str) -> str:
    """Return the name of a subscription's retry topic."""
    return f"{topic}-{subscription}-RETRY"


def old_dead_letter_topic(topic: TopicName, subscription: str) -> str:
    """Return the name clients before 2.8 gave the dead-letter topic; still used where that topic exists."""
    return f"persistent://{topic.namespace}/{subscription}-DLQ"


def old_retry_letter_topic(topic: TopicName, subscription: str) -> str:
    """Return the name clients before 2.8 gave the retry topic; still used where that topic exists."""
    return f"persistent://{topic.namespace}/{subscription}-RETRY"


def letter_properties(
    properties: Mapping[str, str], *, topic: str, message_id: MessageId, subscription: str
) -> dict[str, str]:
    """Return the properties of a message's copy: its own, and where it came from, of a copy's copy the first origin."""
    origin = _origin(message_id)
    return {
        REAL_TOPIC: topic,
        ORIGIN_MESSAGE_ID: origin,
        ORIGIN_MESSAGE_ID_OLD: origin,
        REAL_SUBSCRIPTION: subscription,
        **properties,
    }


def _origin(message_id: MessageId) -> str:
    """Return an id as Java's toString gives it: an index only for a message of a batch, chunks from first to last."""
    first = message_id.first_chunk_message_id()
    if first is not None:
        return f"{_origin(first)};{_origin(message_id.without_chunks())}"
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    return text if message_id.batch_index() < 0 else f"{text}:{message_id.batch_index()}"


class NextTry(NamedTuple):
    """What becomes of a message that is to be consumed later."""

    properties: dict[str, str]
    is_dead: bool


def next_try(properties: Mapping[str, str], delay_ms: int, max_redeliver_count: int) -> NextTry:
    """Count one try more in a letter's properties and tell whether it was the last one allowed."""
    times = _number(properties.get(RECONSUME_TIMES)) + 1
    counted = {**properties, RECONSUME_TIMES: str(times), DELAY_TIME: str(delay_ms)}
    return NextTry(counted, times > max_redeliver_count)


def _number(text: str | None) -> int:
    # A property anyone may have written: what is no count counts as none.
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


class Verdict(Enum):
    """What becomes of an entry that has arrived."""

    GIVE = auto()
    SEND = auto()
    DROP = auto()
    ACKNOWLEDGE = auto()


class DeadLetters(Generic[T]):
    """The entries of one consumer that have failed too often, or may have next time; `T` is what is kept of them."""

    __slots__ = ("_buried", "_maximum", "_remembered", "_sending")

    def __init__(self, max_redeliver_count: int) -> None:
        self._maximum = max_redeliver_count
        self._remembered: dict[EntryKey, T] = {}
        self._sending: set[EntryKey] = set()
        self._buried: dict[EntryKey, None] = {}

    def __len__(self) -> int:
        return len(self._remembered)

    def delivered(self, entry: EntryKey, redelivery_count: int, kept: T) -> Verdict:
        """Judge an entry: give it out, send it to the dead-letter topic, or be rid of what went there before."""
        if entry in self._sending:
            return Verdict.DROP
        if entry in self._buried:
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
        """Part entries that are to be redelivered into those that are dead now, and those to ask the broker for."""
        dead, others = [], []
        for entry in entries:
            kept = self._remembered.pop(entry, None)
            if kept is not None:
                self._sending.add(entry)
                dead.append((entry, kept))
            elif entry not in self._sending:
                others.append(entry)
        return dead, others

    def arrived(self, entry: EntryKey) -> None:
        """Note that an entry is in the dead-letter topic."""
        self._sending.discard(entry)
        self._buried[entry] = None
        if len(self._buried) > _KNOWN_AGAIN:
            del self._buried[next(iter(self._buried))]

    def failed(self, entry: EntryKey) -> None:
        """Note that an entry did not get there, and is to be redelivered after all."""
        self._sending.discard(entry)

    def acknowledged(self, entry: EntryKey) -> None:
        """Forget an entry the application has acknowledged."""
        self._remembered.pop(entry, None)

    def reattached(self) -> None:
        """Forget what is remembered: over a new attachment everything comes again, with the broker's count."""
        self._remembered.clear()

    def on_seek(self) -> None:
        """Forget also what went to the dead-letter topic: after a seek it may be wanted again."""
        self._remembered.clear()
        self._buried.clear()
