"""Public enumerations, with the official Python client's numbers.

May not do: anything but hold values; imports nothing of the client.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class OfficialEnum(IntEnum):
    """Base of the official client's enumerations: a member prints as `Result.Ok` and is always true.

    Members are integers and compare equal to them; a number without a member raises ValueError.
    """

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __bool__(self) -> bool:
        return True


class Result(OfficialEnum):
    """Outcome of an asynchronous operation, as the official client numbers it."""

    Ok = 0
    UnknownError = 1
    InvalidConfiguration = 2
    Timeout = 3
    LookupError = 4
    ConnectError = 5
    ReadError = 6
    AuthenticationError = 7
    AuthorizationError = 8
    ErrorGettingAuthenticationData = 9
    BrokerMetadataError = 10
    BrokerPersistenceError = 11
    ChecksumError = 12
    ConsumerBusy = 13
    NotConnected = 14
    AlreadyClosed = 15
    InvalidMessage = 16
    ConsumerNotInitialized = 17
    ProducerNotInitialized = 18
    ProducerBusy = 19
    TooManyLookupRequestException = 20
    InvalidTopicName = 21
    InvalidUrl = 22
    ServiceUnitNotReady = 23
    OperationNotSupported = 24
    ProducerBlockedQuotaExceededError = 25
    ProducerBlockedQuotaExceededException = 26
    ProducerQueueIsFull = 27
    MessageTooBig = 28
    TopicNotFound = 29
    SubscriptionNotFound = 30
    ConsumerNotFound = 31
    UnsupportedVersionError = 32
    TopicTerminated = 33
    CryptoError = 34
    IncompatibleSchema = 35
    ConsumerAssignError = 36
    CumulativeAcknowledgementNotAllowedError = 37
    TransactionCoordinatorNotFoundError = 38
    InvalidTxnStatusError = 39
    NotAllowedError = 40
    TransactionConflict = 41
    TransactionNotFound = 42
    ProducerFenced = 43
    MemoryBufferIsFull = 44
    Interrupted = 45


class CompressionType(OfficialEnum):
    """Compression of a batch or single message; numbers are the protocol's."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class ConsumerType(OfficialEnum):
    """Subscription type: distribution of messages to the consumers of a subscription."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(OfficialEnum):
    """Start position of a subscription that does not exist yet."""

    Latest = 0
    Earliest = 1


class PartitionsRoutingMode(OfficialEnum):
    """Choice of the partition for a message without a key."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class HashingScheme(OfficialEnum):
    """Hash of a key for choosing its partition. JavaStringHash and Murmur3_32Hash equal the Java client's.

    BoostHash equals that of the official Python client 3.13.0, which has no other; its C++ library has changed that
    hash between versions.
    """

    JavaStringHash = 0
    Murmur3_32Hash = 1
    BoostHash = 2


class ProxyProtocol(OfficialEnum):
    """Protocol of the proxy at `proxy_service_url`, with the C++ client's number.

    SNI: the proxy reads the broker's host name in the TLS handshake and passes everything on to that broker (PIP-60).
    """

    SNI = 0


class BatchingType(OfficialEnum):
    """Grouping of messages into batches: in order of sending, or one key per batch."""

    Default = 0
    KeyBased = 1


class ProducerAccessMode(OfficialEnum):
    """Access of a producer to its topic, shared with other producers or exclusive (PIP-68)."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class KeySharedMode(OfficialEnum):
    """Assignment of keys to Key_Shared consumers: by the broker, or by hash ranges of the consumers."""

    AutoSplit = 0
    Sticky = 1


class RegexSubscriptionMode(OfficialEnum):
    """Domain of the topics that a pattern subscription matches."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class ProducerCryptoFailureAction(OfficialEnum):
    """Action for a message that cannot be encrypted."""

    FAIL = 0
    SEND = 1


class ConsumerCryptoFailureAction(OfficialEnum):
    """Action for a message that cannot be decrypted."""

    FAIL = 0
    DISCARD = 1
    CONSUME = 2


class LoggerLevel(OfficialEnum):
    """Lowest level of the records that a `ConsoleLogger` or `FileLogger` writes."""

    Debug = 0
    Info = 1
    Warn = 2
    Error = 3


class SubscriptionMode(Enum):
    """Durability of a subscription: the broker keeps its position, or deletes it with the last consumer (Java)."""

    Durable = "durable"
    NonDurable = "non-durable"


class TransactionState(Enum):
    """State of a transaction (Java: Transaction.State)."""

    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"
    ERROR = "error"
    TIME_OUT = "time-out"
