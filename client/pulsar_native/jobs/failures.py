"""Texts and classification of failures: stage, topic, reason and fix.

May not do I/O or raise. Only `is_permanent` and `is_permanent_result` decide whether a job can be retried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pulsar_native.exceptions import PulsarException
from pulsar_native.jobs import validation
from pulsar_native.jobs.json_values import encodable

if TYPE_CHECKING:
    from pulsar_native.enums import Result


class JobRefused(PulsarException):
    """Raised when a job is rejected before anything is sent or received. Not retryable: the text names the fix."""


class JobFailed(PulsarException):
    """Raised when a job fails and a retry may succeed."""


_HINTS = {
    "AuthenticationError": "check the credentials of the connection",
    "ErrorGettingAuthenticationData": "check the credentials of the connection",
    "AuthorizationError": "the role of the connection needs a grant for this on the topic or its namespace",
    "ConnectError": "check the service URL of the connection, and that the broker is up",
    "TopicNotFound": "create the topic or its namespace, or correct the name",
    "ConsumerBusy": "another consumer holds the subscription: wait for it, or choose subscription_type='Shared'",
    "ProducerBusy": "another producer holds the topic or this name: a try of the same task may still be running",
    "IncompatibleSchema": "the topic has another schema: publish with that one, or to another topic",
    "MessageTooBig": "make it smaller, or raise the broker's maxMessageSize",
    "TopicTerminated": "the topic was terminated: choose another one",
}


def is_permanent(error: BaseException) -> bool:
    """Return True if the same call will always fail: waiting and retrying do not help."""
    return isinstance(error, (JobRefused, validation.InvalidValue, *_permanent_errors()))


def is_permanent_result(result: Result) -> bool:
    """Return True if a message with this result has it in every try."""
    return any(result is kind.result for kind in _permanent_errors())


def _permanent_errors() -> tuple[type[PulsarException], ...]:
    from pulsar_native import exceptions as errors

    return (
        errors.AuthenticationError,
        errors.AuthorizationError,
        errors.CryptoError,
        errors.ErrorGettingAuthenticationData,
        errors.IncompatibleSchema,
        errors.InvalidConfiguration,
        errors.InvalidTopicName,
        errors.InvalidUrl,
        errors.MessageTooBig,
        errors.OperationNotSupported,
        errors.TopicTerminated,
        errors.UnsupportedVersionError,
    )


def counted(messages: int) -> str:
    """Return "1 message", "2 messages" and so on."""
    return f"{messages:,} {'message' if messages == 1 else 'messages'}"


def text_of(error: object) -> str:
    """Return the text of an error; its type's name where `__str__` of a user's class raises or returns no text."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def reason_of(error: BaseException, redact: Callable[[str], str] = str, limit: int = 300) -> str:
    """Return type and text of an error for a record: without secrets, and as every encoder and database takes it."""
    text: str = encodable(redact(text_of(error).rstrip("."))[:limit])
    return f"{type(error).__name__}: {text}"


def explain(error: BaseException, *, action: str, stage: str) -> str:
    """Return one line: action, stage, reason and fix."""
    hint = _HINTS.get(type(error).__name__)
    reason = text_of(error).rstrip(".") or type(error).__name__
    return f"{action} failed at the stage '{stage}': {type(error).__name__}: {reason}" + (f" - {hint}" if hint else "")
