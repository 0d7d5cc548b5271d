"""The admin interface of a Pulsar cluster: the small part that loading, sensing and testing need."""

from pulsar_native.admin.client import AdminClient
from pulsar_native.admin.errors import AdminError, AlreadyExists, NotFound
from pulsar_native.admin.stats import (
    CompactionStatus,
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    PartitionedStats,
    PublisherStats,
    SubscriptionStats,
    TopicStats,
)

__all__ = [
    "AdminClient",
    "AdminError",
    "AlreadyExists",
    "CompactionStatus",
    "ConsumerStats",
    "CursorStats",
    "InternalStats",
    "LedgerStats",
    "NotFound",
    "PartitionedStats",
    "PublisherStats",
    "SubscriptionStats",
    "TopicStats",
]
