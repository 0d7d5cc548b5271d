"""Public names of the sync API of a complete Apache Pulsar client in Python.

A program written for the official client runs after `import pulsar_native as pulsar`. The asyncio API has the same
names in `pulsar_native.asyncio`. What needs the engine, protobuf or a schema is imported when it is first used (PEP
562): many processes import this package for a configuration or an exception, as those that parse DAGs do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pulsar_native import exceptions
from pulsar_native._version import __version__
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerBatchReceivePolicy,
    ConsumerConfig,
    ConsumerDeadLetterPolicy,
    ConsumerEventListener,
    ConsumerKeySharedPolicy,
    DeadLetterPolicy,
    DeadLetterPolicyBuilder,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    ProducerConfig,
    ReaderConfig,
    RedeliveryBackoff,
    TopicsChangedListener,
)
from pulsar_native.crypto import (
    CryptoKeyReader,
    DefaultCryptoKeyReader,
    EncryptionContext,
    EncryptionKey,
    EncryptionKeyInfo,
)
from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    KeySharedMode,
    LoggerLevel,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerCryptoFailureAction,
    RegexSubscriptionMode,
    Result,
    TransactionState,
)
from pulsar_native.exceptions import (
    AlreadyClosed,
    AuthenticationError,
    AuthorizationError,
    BrokerMetadataError,
    BrokerPersistenceError,
    BulkSendError,
    CertificateFileError,
    ChecksumError,
    ConnectError,
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerNotFound,
    ConsumerNotInitialized,
    CryptoError,
    CumulativeAcknowledgementNotAllowedError,
    ErrorGettingAuthenticationData,
    IncompatibleSchema,
    Interrupted,
    InvalidConfiguration,
    InvalidMessage,
    InvalidTopicName,
    InvalidTxnStatusError,
    InvalidUrl,
    LookupError,
    MemoryBufferIsFull,
    MessageTooBig,
    NotAllowedError,
    NotConnected,
    OperationNotSupported,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    ProducerNotInitialized,
    ProducerQueueIsFull,
    PulsarException,
    ReadError,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
    TooManyLookupRequestException,
    TopicNotFound,
    TopicTerminated,
    TransactionConflict,
    TransactionCoordinatorNotFoundError,
    TransactionNotFound,
    UnknownError,
    UnsupportedVersionError,
)
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message import Message, NewMessage, OutgoingMessage, RoutedMessage
from pulsar_native.message_id import MessageId
from pulsar_native.message_ids import MessageIds
from pulsar_native.stats import ClientStats, CloseReport, ConsumerClose, ConsumerStats, ProducerClose, ProducerStats
from pulsar_native.txn_id import TxnId

if TYPE_CHECKING:
    from pulsar_native._log_target import ConsoleLogger, FileLogger
    from pulsar_native.admin import AdminClient
    from pulsar_native.arrow.batch import ArrowBatch, EntryRange
    from pulsar_native.arrow.columns import ALL_COLUMNS, arrow_schema
    from pulsar_native.auth import (
        Authentication,
        AuthenticationAthenz,
        AuthenticationBasic,
        AuthenticationOauth2,
        AuthenticationTLS,
        AuthenticationToken,
    )
    from pulsar_native.functions import Context, Function, IdentitySerDe, PickleSerDe, SerDe
    from pulsar_native.message_batch import MessageBatch
    from pulsar_native.push.config import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeFromWhere,
        ConsumeOrder,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        MessageModel,
        PushConsumerConfig,
        PushConsumerStats,
        ShutdownReport,
    )
    from pulsar_native.schema import BytesSchema
    from pulsar_native.service_info import AutoClusterFailover, PolledServiceInfo, ServiceInfo, ServiceInfoProvider
    from pulsar_native.sync import Client, Consumer, Producer, PushConsumer, Reader, TableView, Transaction

# By module, the names of the imports above.
_IMPORTED_AT_USE = {
    "pulsar_native._log_target": ("ConsoleLogger", "FileLogger"),
    "pulsar_native.admin": ("AdminClient",),
    "pulsar_native.arrow.batch": ("ArrowBatch", "EntryRange"),
    "pulsar_native.arrow.columns": ("ALL_COLUMNS", "arrow_schema"),
    "pulsar_native.auth": (
        "Authentication",
        "AuthenticationAthenz",
        "AuthenticationBasic",
        "AuthenticationOauth2",
        "AuthenticationTLS",
        "AuthenticationToken",
    ),
    "pulsar_native.functions": ("Context", "Function", "IdentitySerDe", "PickleSerDe", "SerDe"),
    "pulsar_native.message_batch": ("MessageBatch",),
    "pulsar_native.push.config": (
        "ConsumeConcurrentlyContext",
        "ConsumeConcurrentlyStatus",
        "ConsumeFromWhere",
        "ConsumeOrder",
        "ConsumeOrderlyContext",
        "ConsumeOrderlyStatus",
        "MessageModel",
        "PushConsumerConfig",
        "PushConsumerStats",
        "ShutdownReport",
    ),
    "pulsar_native.schema": ("BytesSchema",),
    "pulsar_native.service_info": ("AutoClusterFailover", "PolledServiceInfo", "ServiceInfo", "ServiceInfoProvider"),
    "pulsar_native.sync": ("Client", "Consumer", "Producer", "PushConsumer", "Reader", "TableView", "Transaction"),
}
_MODULE_OF = {name: module for module, names in _IMPORTED_AT_USE.items() for name in names}
# Attributes of the package without an import of their own, as in the official client.
_SUBMODULES = frozenset(("admin", "arrow", "auth", "functions", "push", "schema", "service_info", "sync", "tableview"))

__all__ = [
    "ALL_COLUMNS",
    "AdminClient",
    "AlreadyClosed",
    "ArrowBatch",
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationError",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AuthorizationError",
    "AutoClusterFailover",
    "BatchReceivePolicy",
    "BatchingType",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "BulkSendError",
    "BytesSchema",
    "CertificateFileError",
    "ChecksumError",
    "Client",
    "ClientConfig",
    "ClientStats",
    "CloseReport",
    "CompressionType",
    "ConnectError",
    "ConsoleLogger",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrder",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "Consumer",
    "ConsumerAssignError",
    "ConsumerBatchReceivePolicy",
    "ConsumerBusy",
    "ConsumerClose",
    "ConsumerConfig",
    "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy",
    "ConsumerEventListener",
    "ConsumerInterceptor",
    "ConsumerKeySharedPolicy",
    "ConsumerNotFound",
    "ConsumerNotInitialized",
    "ConsumerStats",
    "ConsumerType",
    "Context",
    "CryptoError",
    "CryptoKeyReader",
    "CumulativeAcknowledgementNotAllowedError",
    "DeadLetterPolicy",
    "DeadLetterPolicyBuilder",
    "DefaultCryptoKeyReader",
    "EncryptionContext",
    "EncryptionKey",
    "EncryptionKeyInfo",
    "EntryRange",
    "ErrorGettingAuthenticationData",
    "FileLogger",
    "Function",
    "HashingScheme",
    "IdentitySerDe",
    "IncompatibleSchema",
    "InitialPosition",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "KeySharedMode",
    "KeySharedPolicy",
    "LoggerLevel",
    "LookupError",
    "MemoryBufferIsFull",
    "Message",
    "MessageBatch",
    "MessageId",
    "MessageIds",
    "MessageModel",
    "MessageTooBig",
    "MultiplierRedeliveryBackoff",
    "NewMessage",
    "NotAllowedError",
    "NotConnected",
    "OperationNotSupported",
    "OutgoingMessage",
    "PartitionsRoutingMode",
    "PickleSerDe",
    "PolledServiceInfo",
    "Producer",
    "ProducerAccessMode",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerClose",
    "ProducerConfig",
    "ProducerCryptoFailureAction",
    "ProducerFenced",
    "ProducerInterceptor",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "ProducerStats",
    "PulsarException",
    "PushConsumer",
    "PushConsumerConfig",
    "PushConsumerStats",
    "ReadError",
    "Reader",
    "ReaderConfig",
    "ReaderInterceptor",
    "RedeliveryBackoff",
    "RegexSubscriptionMode",
    "Result",
    "RoutedMessage",
    "SerDe",
    "ServiceInfo",
    "ServiceInfoProvider",
    "ServiceUnitNotReady",
    "ShutdownReport",
    "SubscriptionNotFound",
    "TableView",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicNotFound",
    "TopicTerminated",
    "TopicsChangedListener",
    "Transaction",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionNotFound",
    "TransactionState",
    "TxnId",
    "UnknownError",
    "UnsupportedVersionError",
    "__version__",
    "arrow_schema",
    "exceptions",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
