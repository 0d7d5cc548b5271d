"""Positions in one topic partition: `ledger:entry[:batch index]`, and the offsets options made of them.

Pure values: no I/O, no Spark. Rules: positions compare by order and never by contiguity, since ledger numbers have
gaps. A position without a batch index is before every message of its entry, so that a range `[start, end)` may begin or
end inside a batch. The JVM connector's byte arrays (a serialised MessageIdData) are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.topic import TopicName

Symbol = Literal["earliest", "latest"]

_TEXT = re.compile(r"(\d{1,19}):(\d{1,19})(?::(\d{1,10}))?")
_FORM = 'write "ledger:entry" or "ledger:entry:batchIndex"'


class Position(NamedTuple):
    """Position before a message; before the whole entry if `batch` is -1. Immutable; ordered."""

    ledger: int
    entry: int
    batch: int = -1

    @staticmethod
    def parse(text: str) -> Position:
        """Return the position written as `ledger:entry[:batch]`; raises `InvalidConfiguration`."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InvalidConfiguration(f"{text!r} is not a position; {_FORM}")
        found = Position(int(match[1]), int(match[2]), int(match[3]) if match[3] else -1)
        if max(found.ledger, found.entry) >= 1 << 63 or found.batch >= 1 << 31:
            raise InvalidConfiguration(
                f"{text!r} is not a position: ledger and entry are at most 2^63 - 1, the batch index 2^31 - 1"
            )
        return found

    @staticmethod
    def of_message(message_id: MessageId) -> Position:
        """Return the position of a message: of its first chunk if it is chunked, though its id names the last one."""
        first = message_id.first_chunk_message_id() or message_id
        return Position(first.ledger_id(), first.entry_id(), first.batch_index())

    @property
    def entry_start(self) -> Position:
        """Position before the first message of the same entry."""
        return Position(self.ledger, self.entry)

    @property
    def after_entry(self) -> Position:
        """Position after the last message of the same entry."""
        return Position(self.ledger, self.entry + 1)

    def message_id(self, partition: int = -1) -> MessageId:
        """Return the client's message id for this position."""
        return MessageId(partition, self.ledger, self.entry, self.batch)

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f":{self.batch}" if self.batch >= 0 else "")


Bound = Position | Symbol


@dataclass(frozen=True, slots=True)
class Offsets:
    """Value of `startingOffsets` or `endingOffsets`: one symbol for all partitions, or a bound for each by name."""

    option: str
    default: Symbol | None
    by_topic: Mapping[str, Bound] = field(default_factory=dict)

    def of(self, topic: str) -> Bound:
        """Return the bound of a topic partition (full name); raises `InvalidConfiguration` if it has none."""
        bound = self.by_topic.get(topic, self.default)
        if bound is None:
            known = ", ".join(sorted(self.by_topic))
            raise InvalidConfiguration(f"{self.option} says nothing about {topic}; it names {known}")
        return bound

    def check_names(self, topics: list[str]) -> None:
        """Raise `InvalidConfiguration` for a named topic that is not among the partitions read."""
        for name in self.by_topic:
            if name not in topics:
                known = ", ".join(sorted(topics))
                raise InvalidConfiguration(f"{self.option} names {name}, which is not read; the partitions are {known}")


def parse_offsets(option: str, text: str, *symbols: Symbol) -> Offsets:
    """Return the value of an offsets option; `symbols` are its allowed words.

    The JSON form maps topic partitions to such a word, to a position, or to the JVM connector's byte array. Raises
    `InvalidConfiguration` naming the option. No I/O.
    """
    symbol = _symbol(text, symbols)
    if symbol is not None:
        return Offsets(option, symbol)
    if not text.lstrip().startswith("{"):
        raise InvalidConfiguration(_advice(option, text.strip(), symbols))
    try:
        given = json.loads(text, object_pairs_hook=_no_doubles)
    except ValueError as error:
        raise InvalidConfiguration(f"{option} is not valid JSON: {error}") from error
    by_topic = {_topic(option, name): _bound(option, name, value, symbols) for name, value in given.items()}
    if not by_topic or len(by_topic) < len(given):
        raise InvalidConfiguration(f"{option} names no topic, or one topic twice")
    return Offsets(option, None, by_topic)


def format_offsets(bounds: Mapping[str, Position]) -> str:
    """Return the option text that `parse_offsets` parses to the same positions."""
    return json.dumps({topic: str(position) for topic, position in bounds.items()})


def _symbol(text: str, symbols: tuple[Symbol, ...]) -> Symbol | None:
    return next((symbol for symbol in symbols if text.strip().lower() == symbol), None)


def _advice(option: str, text: str, symbols: tuple[Symbol, ...]) -> str:
    words = " or ".join(map(repr, symbols))
    if text.lower() in ("earliest", "latest"):
        return f"{option} cannot be {text!r} in a batch read: write {words} or a JSON object of positions"
    example = '{"persistent://public/default/t-partition-0": "12:0"}'
    return f"{option} must be {words} or JSON such as {example}, not {text[:80]!r}"


def _no_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a topic is named twice")
    return found


def _topic(option: str, name: str) -> str:
    try:
        return TopicName.parse(name).full
    except PulsarException as error:
        raise InvalidConfiguration(f"{option}: {error.message}") from error


def _bound(option: str, name: str, value: object, symbols: tuple[Symbol, ...]) -> Bound:
    try:
        if isinstance(value, list):
            return _from_bytes(value, symbols)
        if isinstance(value, str):
            return _symbol(value, symbols) or Position.parse(value)
    except PulsarException as error:
        raise InvalidConfiguration(f"{option} of {name}: {error.message}") from error
    raise InvalidConfiguration(f"{option} of {name}: {value!r} is not a position; {_FORM}")


def _from_bytes(values: list[object], allowed: tuple[Symbol, ...]) -> Bound:
    found = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if len(found) < len(values) or not all(-128 <= value <= 255 for value in found):
        raise InvalidConfiguration("an array must hold the bytes of a serialised message id")
    message_id = MessageId.deserialize(bytes(value & 0xFF for value in found))
    symbols: tuple[tuple[MessageId, Symbol], ...] = ((MessageId.earliest, "earliest"), (MessageId.latest, "latest"))
    for known, word in symbols:
        if (message_id.ledger_id(), message_id.entry_id()) == (known.ledger_id(), known.entry_id()):
            if word not in allowed:
                raise InvalidConfiguration(f"the id {word!r} has no meaning here in a batch read")
            return word
    return Position.of_message(message_id)
