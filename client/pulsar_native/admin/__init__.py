"""Admin interface of a Pulsar cluster: the part that loading, sensing, testing and set-up need."""

from pulsar_native.admin.client import AdminClient
from pulsar_native.admin.errors import AdminError, AlreadyExists, NotFound
from pulsar_native.admin.stats import (
    BacklogQuota,
    CompactionStatus,
    CursorStats,
    InternalStats,
    LedgerStats,
    PartitionedStats,
    PublisherStats,
    SubscriptionConsumerStats,
    SubscriptionStats,
    TopicStats,
    cursor_of,
)

__all__ = [
    "AdminClient",
    "AdminError",
    "AlreadyExists",
    "BacklogQuota",
    "CompactionStatus",
    "CursorStats",
    "InternalStats",
    "LedgerStats",
    "NotFound",
    "PartitionedStats",
    "PublisherStats",
    "SubscriptionConsumerStats",
    "SubscriptionStats",
    "TopicStats",
    "cursor_of",
]
