"""Topics pattern: the topics a regular expression matches, and changes of that list. Pure: no I/O, no clock.

Rules: tenant and namespace are read from the pattern's text and are literal; the domain is removed on both sides before
names are compared, so that the subscription's mode decides about it; a name matches as a whole or not at all. The
broker lists partitions, each by its name: they are collapsed into their topic. The broker's regular expressions are
RE2's; where ours cannot be expressed in them, the broker is asked for a superset and the filter here decides alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pulsar_native.config.base import check_encodable
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName
from pulsar_native.topic import TopicName

# System topics the broker creates in users' namespaces.
_OF_THE_BROKER = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_indexes",
        "__transaction_buffer_snapshot_segments",
    }
)
_PENDING_ACKS = "__transaction_pending_ack"


class TopicListing(NamedTuple):
    """Broker's response with the topics of a namespace."""

    topics: list[str]
    filtered: bool = False
    changed: bool = True
    hash: str = ""


@dataclass(frozen=True)
class TopicPattern:
    """A regular expression over the topics of one namespace."""

    text: str
    namespace: str
    for_broker: str
    _compiled: re.Pattern[str]

    @staticmethod
    def parse(pattern: re.Pattern[str] | str) -> TopicPattern:
        """Return the pattern of a text, or raise `InvalidConfiguration` or `InvalidTopicName`. Does no I/O."""
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise InvalidConfiguration(f"The topic pattern {pattern!r} is no regular expression: {error}") from error
        text = compiled.pattern
        if not isinstance(text, str):
            raise InvalidConfiguration("A topic pattern must be one of str, not of bytes")
        check_encodable("A topic pattern", text)
        namespace, without_domain = _split(text)
        flags = compiled.flags & ~re.UNICODE
        return TopicPattern(
            text,
            namespace,
            # Flags cannot be expressed in the text the broker receives: all topics are requested, and the filter here
            # decides.
            without_domain if not flags else f"{namespace}/.*",
            re.compile(without_domain, compiled.flags),
        )

    def matches(self, topic: TopicName) -> bool:
        """Return True if the pattern matches a topic, or the topic of a partition."""
        name = topic.base
        return self._compiled.fullmatch(f"{name.namespace}/{name.local_name}") is not None

    def collapsed(self, names: Iterable[str]) -> dict[TopicName, set[int]]:
        """Return the matching topics, each with its listed partitions; an empty set for an unpartitioned topic.

        A partition also matches by its own name, since the broker compares that: `a-partition-1` alone may match.
        """
        found: dict[TopicName, set[int]] = {}
        for text in names:
            try:
                name = TopicName.parse(text)
            except InvalidTopicName:
                # Four-part topic names (with a cluster) of old versions.
                continue
            if _is_of_the_broker(name.base.local_name):
                continue
            if not self.matches(name) and self._compiled.fullmatch(f"{name.namespace}/{name.local_name}") is None:
                continue
            partitions = found.setdefault(name.base, set())
            if name.is_partition:
                partitions.add(name.partition)
        return found


def _split(text: str) -> tuple[str, str]:
    """Return the namespace and the pattern without its domain."""
    rest = text.removeprefix("^")
    domain, separator, behind = rest.partition("://")
    if separator:
        if domain not in ("persistent", "non-persistent"):
            raise InvalidTopicName(
                f"Invalid domain {domain!r} in the topic pattern {text!r}: it must be persistent or non-persistent, "
                "and flags belong into re.compile"
            )
        rest = behind
    parts = rest.split("/", 2)
    if len(parts) == 1 and not separator:
        parts = ["public", "default", rest]
    if len(parts) != 3 or not parts[2]:
        raise InvalidTopicName(
            f"Invalid topic pattern {text!r}: write 'topic', 'tenant/namespace/topic' or "
            "'persistent://tenant/namespace/topic', where the topic is the regular expression"
        )
    tenant, namespace, local = parts
    try:
        checked = TopicName.parse(f"persistent://{tenant}/{namespace}/any")
    except InvalidTopicName as error:
        raise InvalidTopicName(
            f"Invalid topic pattern {text!r}: tenant and namespace must be plain names ({error.message})"
        ) from error
    return checked.namespace, f"{tenant}/{namespace}/{local}"


def _is_of_the_broker(local_name: str) -> bool:
    return local_name in _OF_THE_BROKER or local_name.endswith(_PENDING_ACKS)


class TopicChange(NamedTuple):
    """Topics to subscribe to, to leave, and to extend by partitions."""

    added: list[TopicName]
    removed: list[TopicName]
    grown: list[TopicName]


class WantedTopics:
    """Topics a pattern currently matches. Not thread-safe."""

    def __init__(self, pattern: TopicPattern) -> None:
        self._pattern = pattern
        self._names: set[str] = set()
        self._topics: dict[TopicName, set[int]] = {}
        self._left: set[TopicName] = set()
        # Hash of the topic list; a broker whose list has the same hash omits the list from its response.
        self.hash = ""

    def replace(self, names: Iterable[str], hash_of_list: str) -> None:
        """Replace the list by a complete one."""
        self._apply(set(names), hash_of_list)

    def update(self, new: Iterable[str], deleted: Iterable[str], hash_of_list: str) -> None:
        """Apply the changes since the previous list."""
        self._apply((self._names - set(deleted)) | set(new), hash_of_list)

    def _apply(self, names: set[str], hash_of_list: str) -> None:
        self._names = names
        self._topics = self._pattern.collapsed(names)
        self.hash = hash_of_list
        self._left &= self._topics.keys()

    def leave(self, topic: TopicName) -> None:
        """Exclude a topic until it was deleted and created again: the application unsubscribed from it."""
        self._left.add(topic)

    def stay(self, topic: TopicName) -> None:
        """Undo `leave`."""
        self._left.discard(topic)

    def change(self, subscribed: Mapping[TopicName, int]) -> TopicChange:
        """Return the changes needed, given the subscribed topics with their partition counts.

        A topic that was deleted and created again with partitions instead of none, or without, is removed and added.
        """
        wanted = self._topics
        recreated = {topic for topic, count in subscribed.items() if self._is_recreated(topic, count)}
        added = {topic for topic in wanted if topic not in subscribed and topic not in self._left}
        return TopicChange(
            sorted(added | recreated, key=str),
            sorted(recreated.union(topic for topic in subscribed if topic not in wanted), key=str),
            sorted((topic for topic, count in subscribed.items() if _exceeds(wanted.get(topic), count)), key=str),
        )

    def _is_recreated(self, topic: TopicName, count: int) -> bool:
        partitions = self._topics.get(topic)
        if partitions is None:
            return False
        # Beside a topic without partitions there may be others with the names of partitions.
        return not partitions if count else bool(partitions) and topic.full not in self._names


def _exceeds(partitions: set[int] | None, known: int) -> bool:
    return bool(partitions) and known > 0 and max(partitions or ()) >= known
