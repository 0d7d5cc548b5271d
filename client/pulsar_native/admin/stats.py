"""Types of the admin interface's statistics: the fields this project reads, with the broker's names.

Rules: types for type checkers only; the dictionaries are the broker's JSON, unchanged, and hold more fields than these.
`cursor_of` reads the one field whose keys the broker encodes.
"""

from __future__ import annotations

from typing import Literal, TypedDict
from urllib.parse import quote_plus

BacklogQuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
BACKLOG_QUOTA_POLICIES = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")


class SubscriptionConsumerStats(TypedDict, total=False):
    """One connected consumer of a subscription."""

    consumerName: str
    address: str
    clientVersion: str
    connectedSince: str
    availablePermits: int
    unackedMessages: int
    msgOutCounter: int
    msgRateOut: float


class SubscriptionStats(TypedDict, total=False):
    """One subscription. `msgBacklog` is estimated from counters unless the precise backlog was requested."""

    type: str
    msgBacklog: int
    msgBacklogNoDelayed: int
    backlogSize: int
    msgOutCounter: int
    unackedMessages: int
    msgDelayed: int
    consumers: list[SubscriptionConsumerStats]
    isDurable: bool
    isReplicated: bool


class PublisherStats(TypedDict, total=False):
    """One connected producer."""

    producerId: int
    producerName: str
    accessMode: str
    address: str
    clientVersion: str
    msgRateIn: float
    averageMsgSize: float
    metadata: dict[str, str]


class TopicStats(TypedDict, total=False):
    """One topic, or one partition. Counters restart at zero when the topic is loaded again."""

    msgInCounter: int
    bytesInCounter: int
    msgOutCounter: int
    bytesOutCounter: int
    msgRateIn: float
    msgRateOut: float
    averageMsgSize: float
    storageSize: int
    backlogSize: int
    publishers: list[PublisherStats]
    subscriptions: dict[str, SubscriptionStats]
    deduplicationStatus: str
    ownerBroker: str
    topicCreationTimeStamp: int
    lastPublishTimeStamp: int


class PartitionedMetadata(TypedDict, total=False):
    """Metadata of a partitioned topic apart from its partitions."""

    partitions: int


class PartitionedStats(TopicStats, total=False):
    """A partitioned topic: sums, and the statistics by full partition name (only of partitions that are loaded)."""

    metadata: PartitionedMetadata
    partitions: dict[str, TopicStats]


class LedgerStats(TypedDict, total=False):
    """One ledger of a topic, oldest first; the open one, the last, has 0 entries and 0 bytes here."""

    ledgerId: int
    entries: int
    size: int
    offloaded: bool


class CursorStats(TypedDict, total=False):
    """Position of one subscription, as "ledger:entry" texts."""

    markDeletePosition: str
    readPosition: str
    individuallyDeletedMessages: str
    messagesConsumedCounter: int
    active: bool
    state: str


class InternalStats(TypedDict, total=False):
    """Storage of a topic. `lastConfirmedEntry` is "ledger:entry", "L:-1" while empty, and counts markers too."""

    entriesAddedCounter: int  # since the broker loaded the topic, so it may be less than what is stored
    numberOfEntries: int
    totalSize: int
    currentLedgerEntries: int
    currentLedgerSize: int
    lastConfirmedEntry: str
    state: str
    ledgers: list[LedgerStats]
    cursors: dict[str, CursorStats]  # by encoded names: see `cursor_of`
    compactedLedger: LedgerStats  # -1 without one


def cursor_of(stats: InternalStats, subscription: str) -> CursorStats | None:
    """Return the position of a subscription in a topic's internal statistics, None if there is no such subscription.

    Needed since the broker names cursors there, and only there, by the encoded name (broker-behaviour.md#cursor-names).

    :param stats: what `AdminClient.internal_stats` returned.
    :param subscription: name of the subscription, as consumers give it.
    """
    # Java's URLEncoder differs from Python's for two characters.
    encoded = quote_plus(subscription, safe="*").replace("~", "%7E")
    return (stats.get("cursors") or {}).get(encoded)


class CompactionStatus(TypedDict, total=False):
    """State of the last compaction: NOT_RUN, RUNNING, SUCCESS or ERROR."""

    status: str
    lastError: str


class BacklogQuota(TypedDict, total=False):
    """Limit of a backlog: `limitSize` in bytes, `limitTime` in seconds, -1 without one, and what happens then."""

    limitSize: int
    limitTime: int
    policy: str
