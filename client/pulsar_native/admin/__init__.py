"""Admin interface of a Pulsar cluster: the part that loading, sensing and testing need."""

from pulsar_native.admin.client import AdminClient
from pulsar_native.admin.errors import AdminError, AlreadyExists, NotFound
from pulsar_native.admin.stats import (
    CompactionStatus,
    CursorStats,
    InternalStats,
    LedgerStats,
    PartitionedStats,
    PublisherStats,
    SubscriptionConsumerStats,
    SubscriptionStats,
    TopicStats,
)

__all__ = [
    "AdminClient",
    "AdminError",
    "AlreadyExists",
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
]
