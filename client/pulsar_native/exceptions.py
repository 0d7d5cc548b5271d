"""Exceptions of the client, in one tree.

Every exception has topic, broker, request id, number of attempts, and whether the call can be retried. Names are those
of the official Python client, so that `except pulsar.Timeout` works unchanged. Only this module decides what is
retryable, from the protocol's ServerError codes.

May not do: I/O, logging, imports from any other module of the client but `enums`.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.enums import Result


class PulsarException(Exception):
    """Raised when a Pulsar operation failed; the base of every error raised by this client.

    Attributes:
        topic: the topic concerned, if one was.
        broker: address of the broker that answered or could not be reached.
        request_id: number of the protocol request, for comparing with the broker's log.
        attempts: how often the operation was tried.
        retryable: whether the same call may succeed later without any change.
        may_be_stored: whether the broker may have stored the message that the error is about: it was written to a
            connection that was lost before the receipt.
    """

    retryable: bool = False
    may_be_stored: bool = False
    result: Result = Result.UnknownError

    def __init__(
        self,
        *args: Any,
        topic: str | None = None,
        broker: str | None = None,
        request_id: int | None = None,
        attempts: int | None = None,
        msg: str | None = None,
    ) -> None:
        """Create an error from a text, nothing, or a `Result` and a text as in the official asyncio module."""
        super().__init__(*args if msg is None else (*args, msg))
        self.message = str(self.args[0]) if self.args else ""
        self.topic = topic
        self.broker = broker
        self.request_id = request_id
        self.attempts = attempts
        if len(self.args) > 1:
            self.message = str(self.args)
        if self.args and isinstance(self.args[0], Result):
            self.result = self.args[0]
            if type(self) is PulsarException:
                text = f": {self.args[1]}" if len(self.args) > 1 and self.args[1] else ""
                self.message = f"{int(self.result)} {self.result.name}{text}"

    def __str__(self) -> str:
        context = [
            f"{name}={value}"
            for name, value in (
                ("topic", self.topic),
                ("broker", self.broker),
                ("request_id", self.request_id),
                ("attempts", self.attempts),
            )
            if value is not None
        ]
        return f"{self.message} [{', '.join(context)}]" if context else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # The state holds the message, too: it may have been completed after the error was made.
        return (type(self), self.args, dict(self.__dict__))

    def error(self) -> Result:
        """Return the official client's result code for this error."""
        return self.result


def log_text(error: BaseException) -> str:
    """Return the text of an error for a log line: without the text of an application's own error. Pure."""
    return PulsarException.__str__(error) if isinstance(error, PulsarException) else str(error)


class UnknownError(PulsarException):
    """Raised when the broker failed without a specific error code. Retryable."""

    retryable = True
    result = Result.UnknownError


class InvalidConfiguration(PulsarException, ValueError, TypeError):
    """Raised when an option, or a combination of options, is invalid.

    It is a ValueError and a TypeError, since the official client raises either of them.
    """

    result = Result.InvalidConfiguration


class WrongPartition(InvalidConfiguration, UnknownError):
    """Raised when a message router's answer is no partition of the topic.

    It is an UnknownError, and reported to the callback of `send_async`, as by the official client.
    """

    retryable = False
    result = Result.UnknownError


class Timeout(PulsarException, TimeoutError):
    """Raised when an operation was not finished within its time-out."""

    retryable = True
    result = Result.Timeout


class LookupError(PulsarException):
    """Raised when no broker could be found for a topic."""

    retryable = True
    result = Result.LookupError


class ConnectError(PulsarException, ConnectionError):
    """Raised when a broker could not be reached."""

    retryable = True
    result = Result.ConnectError


class ConnectTimeout(ConnectError, Timeout):
    """Raised when a broker could not be reached in time: within the connect time-out, or the operation time-out."""


class ReadError(PulsarException):
    """Raised when reading from a broker's connection failed."""

    retryable = True
    result = Result.ReadError


class ProtocolViolation(ReadError):
    """Raised when the peer sent bytes that are not the Pulsar protocol; the connection is closed."""


class AuthenticationError(PulsarException):
    """Raised when the broker rejects the client's credentials. Not retryable."""

    result = Result.AuthenticationError


class CertificateFileError(AuthenticationError, ConnectError, InvalidConfiguration):
    """Raised when a file of certificates or keys cannot be used for TLS. Not retryable.

    The official client raises AuthenticationError for a file that is missing, and ConnectError for one that holds
    something else.
    """

    retryable = False


class AuthorizationError(PulsarException):
    """Raised when the broker knows the client's role but refuses this operation."""

    result = Result.AuthorizationError


class ErrorGettingAuthenticationData(AuthenticationError):
    """Raised when the credentials could not be read or fetched.

    Attributes:
        supplier_error: text of the error of an application's token supplier, None without one. It is part of `str()`,
            and of no log line, since it may hold what was fetched.
    """

    result = Result.ErrorGettingAuthenticationData
    supplier_error: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}: {self.supplier_error}" if self.supplier_error else text


class BrokerMetadataError(PulsarException):
    """Raised when the broker failed on its metadata."""

    retryable = True
    result = Result.BrokerMetadataError


class BrokerPersistenceError(PulsarException):
    """Raised when the broker failed to store or read data."""

    retryable = True
    result = Result.BrokerPersistenceError


class ChecksumError(PulsarException):
    """Raised when bytes were damaged between producer, broker and consumer."""

    result = Result.ChecksumError


class ConsumerBusy(PulsarException):
    """Raised when the subscription already has the only consumer it may have, or one of another type."""

    result = Result.ConsumerBusy


class NotConnected(PulsarException):
    """Raised when there is no connection to the broker at this moment."""

    retryable = True
    result = Result.NotConnected


class AlreadyClosed(PulsarException):
    """Raised when the client, producer, consumer or reader was closed before."""

    result = Result.AlreadyClosed


class InvalidMessage(PulsarException, ValueError, TypeError):
    """Raised when a message, or an argument that names one, is invalid.

    It is a ValueError and a TypeError, since the official client raises either of them.
    """

    result = Result.InvalidMessage


class ConsumerNotInitialized(PulsarException):
    """Raised when the consumer is not subscribed yet."""

    result = Result.ConsumerNotInitialized


class ProducerNotInitialized(PulsarException):
    """Raised when the producer is not created yet."""

    result = Result.ProducerNotInitialized


class ProducerBusy(PulsarException):
    """Raised when a producer of that name is connected, or an exclusive one holds the topic."""

    result = Result.ProducerBusy


class TooManyLookupRequestException(PulsarException):
    """Raised when more lookups are under way than the client or the broker allows."""

    retryable = True
    result = Result.TooManyLookupRequestException


class InvalidTopicName(PulsarException, ValueError):
    """Raised when a topic name is not of the form `{persistent|non-persistent}://tenant/namespace/topic`."""

    result = Result.InvalidTopicName


class InvalidUrl(PulsarException, ValueError):
    """Raised when a service URL cannot be used."""

    result = Result.InvalidUrl


class ServiceUnitNotReady(PulsarException):
    """Raised when the topic's bundle is being moved; the client looks it up again by itself."""

    retryable = True
    result = Result.ServiceUnitNotReady


class OperationNotSupported(PulsarException):
    """Raised when the object or the broker does not support the operation."""

    result = Result.OperationNotSupported


class ProducerBlockedQuotaExceededError(PulsarException):
    """Raised when the backlog quota blocks producers until consumers catch up. Retryable."""

    retryable = True
    result = Result.ProducerBlockedQuotaExceededError


class ProducerBlockedQuotaExceededException(PulsarException):
    """Raised when the backlog quota rejects producers."""

    result = Result.ProducerBlockedQuotaExceededException


class ProducerQueueIsFull(PulsarException):
    """Raised when the producer has `max_pending_messages` messages without a receipt. Retryable."""

    retryable = True
    result = Result.ProducerQueueIsFull


class MessageTooBig(InvalidMessage):
    """Raised when a message is larger than the broker's maximum message size."""

    result = Result.MessageTooBig


class TopicNotFound(PulsarException):
    """Raised when the topic, its namespace or its partition does not exist."""

    result = Result.TopicNotFound


class SubscriptionNotFound(PulsarException):
    """Raised when the subscription does not exist."""

    result = Result.SubscriptionNotFound


class ConsumerNotFound(PulsarException):
    """Raised when the broker does not know this consumer."""

    retryable = True
    result = Result.ConsumerNotFound


class UnsupportedVersionError(PulsarException):
    """Raised when the protocol version of the broker does not support the operation."""

    result = Result.UnsupportedVersionError


class TopicTerminated(PulsarException):
    """Raised when the topic is terminated: messages cannot be published to it any more."""

    result = Result.TopicTerminated


class CryptoError(PulsarException):
    """Raised when a message could not be encrypted or decrypted."""

    result = Result.CryptoError


class IncompatibleSchema(PulsarException):
    """Raised when the schema is incompatible with the topic's registered schemas."""

    result = Result.IncompatibleSchema


class ConsumerAssignError(PulsarException):
    """Raised when the broker could not assign key ranges to a Key_Shared consumer."""

    result = Result.ConsumerAssignError


class CumulativeAcknowledgementNotAllowedError(PulsarException):
    """Raised when a Shared or Key_Shared subscription cannot acknowledge cumulatively."""

    result = Result.CumulativeAcknowledgementNotAllowedError


class TransactionCoordinatorNotFoundError(PulsarException):
    """Raised when the transaction coordinator is not (yet) on that broker."""

    retryable = True
    result = Result.TransactionCoordinatorNotFoundError


class InvalidTxnStatusError(PulsarException):
    """Raised when the state of the transaction does not allow the operation."""

    result = Result.InvalidTxnStatusError


class NotAllowedError(PulsarException):
    """Raised when the broker's configuration or the topic's type does not allow the operation."""

    result = Result.NotAllowedError


class TransactionConflict(PulsarException):
    """Raised when another transaction has acknowledged the same message."""

    result = Result.TransactionConflict


class TransactionNotFound(PulsarException):
    """Raised when the transaction does not exist or has ended."""

    result = Result.TransactionNotFound


class ProducerFenced(PulsarException):
    """Raised when another producer has exclusive access to the topic."""

    result = Result.ProducerFenced


class MemoryBufferIsFull(PulsarException):
    """Raised when the client's `memory_limit_bytes` is reached. Retryable."""

    retryable = True
    result = Result.MemoryBufferIsFull


class BulkSendError(PulsarException):
    """Raised when not every message of a `send_many` or `send_table` is stored; the first failure is `__cause__`.

    Attributes:
        stored: ranges of row numbers (from 0) that the broker confirmed.
        unconfirmed: ranges that were sent and not confirmed: the broker may have them.
        not_stored: ranges that the broker does not have: refused, or never sent.
        message_ids: the ids by row; `message_ids.get(row)` is None for a row that is not in `stored`.
    """

    def __init__(
        self,
        message: str = "",
        *,
        stored: tuple[range, ...] = (),
        unconfirmed: tuple[range, ...] = (),
        not_stored: tuple[range, ...] = (),
        message_ids: Any = (),
        retryable: bool = False,
        result: Result = Result.UnknownError,
        **context: Any,
    ) -> None:
        super().__init__(message, **context)
        self.stored = stored
        self.unconfirmed = unconfirmed
        self.not_stored = not_stored
        self.message_ids = message_ids
        self.retryable = retryable
        self.result = result


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread when Ctrl-C ends a call that waits for the broker or for messages.

    It is a KeyboardInterrupt and no PulsarException, so that `except Exception` does not swallow it.
    """

    result = Result.Interrupted
    retryable = True

    def error(self) -> Result:
        """Return the official client's result code for this error."""
        return self.result


# Index = the protocol's ServerError number. Retryability is an attribute of the class, so this table alone determines
# whether a broker's error is retryable.
_SERVER_ERRORS: tuple[type[PulsarException], ...] = (
    UnknownError,
    BrokerMetadataError,
    BrokerPersistenceError,
    AuthenticationError,
    AuthorizationError,
    ConsumerBusy,
    ServiceUnitNotReady,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ChecksumError,
    UnsupportedVersionError,
    TopicNotFound,
    SubscriptionNotFound,
    ConsumerNotFound,
    TooManyLookupRequestException,
    TopicTerminated,
    ProducerBusy,
    InvalidTopicName,
    IncompatibleSchema,
    ConsumerAssignError,
    TransactionCoordinatorNotFoundError,
    InvalidTxnStatusError,
    NotAllowedError,
    TransactionConflict,
    TransactionNotFound,
    ProducerFenced,
)


def from_server_error(
    code: int,
    message: str,
    *,
    topic: str | None = None,
    broker: str | None = None,
    request_id: int | None = None,
    attempts: int | None = None,
) -> PulsarException:
    """Return the error for a broker's ServerError number; unknown numbers become `UnknownError`."""
    kind = _SERVER_ERRORS[code] if 0 <= code < len(_SERVER_ERRORS) else UnknownError
    return kind(message, topic=topic, broker=broker, request_id=request_id, attempts=attempts)
