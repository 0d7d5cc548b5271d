"""Immutable, validated configuration of clients, producers, consumers and readers.

Rules: every configuration is frozen and picklable, so that an Airflow connection or a Spark task can carry it; live
clients are made from it where they are used. Validation happens here, at construction, and names the fix.

Options: each class documents its options as `:param name:` fields, with unit, default and errors. The methods of both
APIs that take the same options show these texts (`_option_docs`).
"""

from pulsar_native.config.base import Config
from pulsar_native.config.client import ClientConfig
from pulsar_native.config.consumer import (
    ConsumerConfig,
    ConsumerEventListener,
    MessageListenerExecutor,
    TopicsChangedListener,
)
from pulsar_native.config.policies import (
    BatchReceivePolicy,
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    DeadLetterPolicy,
    DeadLetterPolicyBuilder,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    Range,
    RedeliveryBackoff,
    TopicConfiguration,
    checked_ranges,
)
from pulsar_native.config.producer import ProducerConfig, Router
from pulsar_native.config.reader import ReaderConfig

__all__ = [
    "BatchReceivePolicy",
    "ClientConfig",
    "Config",
    "ConsumerBatchReceivePolicy",
    "ConsumerConfig",
    "ConsumerDeadLetterPolicy",
    "ConsumerEventListener",
    "ConsumerKeySharedPolicy",
    "DeadLetterPolicy",
    "DeadLetterPolicyBuilder",
    "KeySharedPolicy",
    "MessageListenerExecutor",
    "MultiplierRedeliveryBackoff",
    "ProducerConfig",
    "Range",
    "ReaderConfig",
    "RedeliveryBackoff",
    "Router",
    "TopicConfiguration",
    "TopicsChangedListener",
    "checked_ranges",
]
