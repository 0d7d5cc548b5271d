"""The one tree of errors a user of this client can meet.

Every error knows where it happened (topic, broker, request, attempts) and whether trying again can help.
The names are those of the official Python client, so that `except pulsar.Timeout` keeps working. What is
retryable is decided in this module only, from the protocol's ServerError codes; no other module keeps a list.

May not do: I/O, logging, imports from any other module of the client but `enums`.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.enums import Result


class PulsarException(Exception):
    """Tell that a Pulsar operation failed; the base of every error raised by this client.

    Attributes:
        topic: the topic concerned, if one was.
        broker: address of the broker that answered or could not be reached.
        request_id: number of the protocol request, for comparing with the broker's log.
        attempts: how often the operation was tried.
        retryable: whether the same call may succeed later without any change.
    """

    retryable: bool = False
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
        """Make an error: of a text, of nothing, or of a `Result` and a text as the official asyncio module does."""
        super().__init__(*args if msg is None else (*args, msg))
        self.message = str(self.args[0]) if self.args else ""
        self.topic = topic
        self.broker = broker
        self.request_id = request_id
        self.attempts = attempts
        if self.args and isinstance(self.args[0], Result):
            self.result = self.args[0]
            self.message = " ".join((str(int(self.result)), self.result.name))
            if len(self.args) > 1 and self.args[1]:
                self.message = f"{self.message}: {self.args[1]}"
        elif len(self.args) > 1:
            self.message = str(self.args)

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
        state = {key: value for key, value in self.__dict__.items() if key != "message"}
        return (type(self), self.args, state)

    def error(self) -> Result:
        """Return the official client's result code for this error."""
        return self.result


class UnknownError(PulsarException):
    """Tell that the broker failed without saying how; trying again may help."""

    retryable = True
    result = Result.UnknownError


class InvalidConfiguration(PulsarException, ValueError, TypeError):
    """Raised when an option, or a combination of options, is not usable.

    It is a ValueError and a TypeError, since the official client raises now one, now the other.
    """

    result = Result.InvalidConfiguration


class Timeout(PulsarException, TimeoutError):
    """Tell that an operation was not finished within its time-out."""

    retryable = True
    result = Result.Timeout


class LookupError(PulsarException):
    """Tell that no broker could be found for a topic."""

    retryable = True
    result = Result.LookupError


class ConnectError(PulsarException, ConnectionError):
    """Tell that a broker could not be reached."""

    retryable = True
    result = Result.ConnectError


class ReadError(PulsarException):
    """Tell that reading from a broker's connection failed."""

    retryable = True
    result = Result.ReadError


class ProtocolViolation(ReadError):
    """Tell that the peer sent bytes that are not the Pulsar protocol; the connection is closed."""


class AuthenticationError(PulsarException):
    """Tell that the broker does not believe who we are."""

    result = Result.AuthenticationError


class CertificateFileError(AuthenticationError, InvalidConfiguration):
    """Raised when a file of certificates or keys cannot be used for TLS."""


class AuthorizationError(PulsarException):
    """Tell that the broker knows us but refuses this operation."""

    result = Result.AuthorizationError


class ErrorGettingAuthenticationData(AuthenticationError):
    """Tell that the credentials could not be read or fetched."""

    result = Result.ErrorGettingAuthenticationData


class BrokerMetadataError(PulsarException):
    """Tell that the broker failed on its metadata."""

    retryable = True
    result = Result.BrokerMetadataError


class BrokerPersistenceError(PulsarException):
    """Tell that the broker failed to store or read data."""

    retryable = True
    result = Result.BrokerPersistenceError


class ChecksumError(PulsarException):
    """Tell that bytes were damaged between producer, broker and consumer."""

    result = Result.ChecksumError


class ConsumerBusy(PulsarException):
    """Tell that the subscription already has the only consumer it may have, or one of another type."""

    result = Result.ConsumerBusy


class NotConnected(PulsarException):
    """Tell that there is no connection to the broker at this moment."""

    retryable = True
    result = Result.NotConnected


class AlreadyClosed(PulsarException):
    """Tell that the client, producer, consumer or reader was closed before."""

    result = Result.AlreadyClosed


class InvalidMessage(PulsarException, ValueError, TypeError):
    """Raised when a message cannot be sent, or cannot be read, as it is.

    It is a ValueError and a TypeError, since the official client raises now one, now the other.
    """

    result = Result.InvalidMessage


class ConsumerNotInitialized(PulsarException):
    """Tell that the consumer is not subscribed yet."""

    result = Result.ConsumerNotInitialized


class ProducerNotInitialized(PulsarException):
    """Tell that the producer is not created yet."""

    result = Result.ProducerNotInitialized


class ProducerBusy(PulsarException):
    """Tell that a producer of that name is connected, or an exclusive one holds the topic."""

    result = Result.ProducerBusy


class TooManyLookupRequestException(PulsarException):
    """Tell that more lookups are under way than the client or the broker allows."""

    retryable = True
    result = Result.TooManyLookupRequestException


class InvalidTopicName(PulsarException, ValueError):
    """Tell that a topic name is not of the form `{persistent|non-persistent}://tenant/namespace/topic`."""

    result = Result.InvalidTopicName


class InvalidUrl(PulsarException, ValueError):
    """Tell that a service URL cannot be used."""

    result = Result.InvalidUrl


class ServiceUnitNotReady(PulsarException):
    """Tell that the topic's bundle is being moved; the client looks it up again by itself."""

    retryable = True
    result = Result.ServiceUnitNotReady


class OperationNotSupported(PulsarException):
    """Tell that this object, or this broker, cannot do that."""

    result = Result.OperationNotSupported


class ProducerBlockedQuotaExceededError(PulsarException):
    """Tell that the backlog quota holds producers back; it ends when consumers catch up."""

    retryable = True
    result = Result.ProducerBlockedQuotaExceededError


class ProducerBlockedQuotaExceededException(PulsarException):
    """Tell that the backlog quota refuses producers."""

    result = Result.ProducerBlockedQuotaExceededException


class ProducerQueueIsFull(PulsarException):
    """Tell that as many messages wait for their receipts as the producer may hold."""

    retryable = True
    result = Result.ProducerQueueIsFull


class MessageTooBig(InvalidMessage):
    """Tell that a message is larger than the broker takes."""

    result = Result.MessageTooBig


class TopicNotFound(PulsarException):
    """Tell that the topic, its namespace or its partition does not exist."""

    result = Result.TopicNotFound


class SubscriptionNotFound(PulsarException):
    """Tell that the subscription does not exist."""

    result = Result.SubscriptionNotFound


class ConsumerNotFound(PulsarException):
    """Tell that the broker does not know this consumer."""

    retryable = True
    result = Result.ConsumerNotFound


class UnsupportedVersionError(PulsarException):
    """Tell that the peer's protocol version cannot do that."""

    result = Result.UnsupportedVersionError


class TopicTerminated(PulsarException):
    """Tell that the topic was terminated: nothing can be published to it any more."""

    result = Result.TopicTerminated


class CryptoError(PulsarException):
    """Tell that a message could not be encrypted or decrypted."""

    result = Result.CryptoError


class IncompatibleSchema(PulsarException):
    """Tell that the schema does not fit the one registered for the topic."""

    result = Result.IncompatibleSchema


class ConsumerAssignError(PulsarException):
    """Tell that the broker could not give this consumer its share of the keys."""

    result = Result.ConsumerAssignError


class CumulativeAcknowledgementNotAllowedError(PulsarException):
    """Tell that a Shared or Key_Shared subscription cannot acknowledge cumulatively."""

    result = Result.CumulativeAcknowledgementNotAllowedError


class TransactionCoordinatorNotFoundError(PulsarException):
    """Tell that the transaction coordinator is not (yet) on that broker."""

    retryable = True
    result = Result.TransactionCoordinatorNotFoundError


class InvalidTxnStatusError(PulsarException):
    """Tell that the transaction is not in a state that allows this."""

    result = Result.InvalidTxnStatusError


class NotAllowedError(PulsarException):
    """Tell that the broker's configuration or the topic's kind forbids this."""

    result = Result.NotAllowedError


class TransactionConflict(PulsarException):
    """Tell that another transaction has acknowledged the same message."""

    result = Result.TransactionConflict


class TransactionNotFound(PulsarException):
    """Tell that the transaction does not exist or has ended."""

    result = Result.TransactionNotFound


class ProducerFenced(PulsarException):
    """Tell that another producer has exclusive access to the topic."""

    result = Result.ProducerFenced


class MemoryBufferIsFull(PulsarException):
    """Tell that the client's limit of bytes waiting for receipts is reached."""

    retryable = True
    result = Result.MemoryBufferIsFull


class BulkSendError(PulsarException):
    """Tell that not every message of a `send_many` or `send_table` is stored; the first failure is `__cause__`.

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


# Index = the protocol's ServerError number. Whether to try again is an attribute of the class, so this
# table is the single place where a broker's answer is judged.
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
