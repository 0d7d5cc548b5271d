"""Backlog and position of a subscription from the admin interface: no consumer, and nothing is changed.

Rules: the broker counts entries, and a batch of messages is one entry. Blocks; raises `TopicNotFound`,
`SubscriptionNotFound` and other errors of the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from pulsar_native import AdminClient, MessageId
    from pulsar_native.admin.stats import CursorStats, SubscriptionStats, TopicStats


@dataclass(frozen=True)
class Backlog:
    """Backlog of one subscription in one topic or partition, in entries; `delayed` and `unacked` are part of it."""

    topic: str
    subscription: str
    entries: int
    unacked: int
    delayed: int
    consumers: int
    type: str

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return dict(self.__dict__)


def backlogs(admin: AdminClient, topic: str, subscription: str | None = None) -> list[Backlog]:
    """Return the backlogs of a topic by partition and subscription; of one subscription if it is named.

    Raises `TopicNotFound`, and `SubscriptionNotFound` if no partition has the named one.
    """
    from pulsar_native.exceptions import SubscriptionNotFound

    found = []
    for name, stats in _partitions(admin, topic):
        for own, each in sorted((stats.get("subscriptions") or {}).items()):
            if subscription in (None, own):
                found.append(_backlog(name, own, each))
    if subscription is not None and not found:
        raise SubscriptionNotFound(f"{topic} has no subscription {subscription!r}")
    return found


def _partitions(admin: AdminClient, topic: str) -> list[tuple[str, TopicStats]]:
    # Of a partitioned topic, the sums leave out partitions that no broker has loaded.
    return [(each, admin.stats(each, precise_backlog=True)) for each in _names(admin, topic)]


def _names(admin: AdminClient, topic: str) -> list[str]:
    from pulsar_native.topic import TopicName

    name = TopicName.parse(topic)
    count = 0 if name.is_partition else admin.partitions(name.full)
    return [name.with_partition(index).full for index in range(count)] or [name.full]


def _backlog(topic: str, subscription: str, stats: SubscriptionStats) -> Backlog:
    return Backlog(
        topic,
        subscription,
        stats.get("msgBacklog", 0),
        stats.get("unackedMessages", 0),
        stats.get("msgDelayed", 0),
        len(stats.get("consumers") or ()),
        stats.get("type", ""),
    )


def next_positions(
    admin: AdminClient, topic: str, subscription: str
) -> dict[str, tuple[MessageId, Callable[[MessageId], bool]]]:
    """Return by partition where a subscription is: the first entry that may be unacknowledged, and a test of ids.

    The test returns True for entries acknowledged between others. Raises `SubscriptionNotFound`.
    """
    from pulsar_native.admin import cursor_of
    from pulsar_native.exceptions import SubscriptionNotFound

    found = {}
    for each in _names(admin, topic):
        cursor = cursor_of(admin.internal_stats(each), subscription)
        if cursor is not None:
            found[each] = (_after(cursor["markDeletePosition"]), _acknowledged(cursor))
    if not found:
        raise SubscriptionNotFound(f"{topic} has no subscription {subscription!r}")
    return found


def _after(place: str) -> MessageId:
    from pulsar_native import MessageId

    ledger, entry = map(int, place.split(":"))
    return MessageId(-1, ledger, entry + 1, -1)


def _acknowledged(cursor: CursorStats) -> Callable[[MessageId], bool]:
    """Return the test by the broker's text of ranges, "[(7:1..7:3],(8:-1..8:0]]": first excluded, last included."""
    text = str(cursor.get("individuallyDeletedMessages") or "[]").strip("[]")
    ranges = []
    for part in text.replace("(", "").replace("[", "").split("]"):
        first, dots, last = part.strip(", ").partition("..")
        if dots:
            ranges.append((_place(first), _place(last)))

    def is_acknowledged(message_id: MessageId) -> bool:
        here = (message_id.ledger_id(), message_id.entry_id())
        return any(first < here <= last for first, last in ranges)

    return is_acknowledged


def _place(text: str) -> tuple[int, int]:
    ledger, _, entry = text.partition(":")
    try:
        return int(ledger), int(entry)
    except ValueError:
        validation.refuse(f"the broker told the position {text!r}, which is not LEDGER:ENTRY")
