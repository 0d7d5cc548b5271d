"""Texts and classification of failures: the stage, the topic, the reason and the fix.

May not do I/O and may not raise. `is_permanent` is the only place that decides whether a repeated job can help.
"""

from __future__ import annotations

from pulsar_native.exceptions import PulsarException


class JobRefused(PulsarException):
    """Raised when a job is refused before anything is sent or received. Not retryable: the text names the fix."""


class JobFailed(PulsarException):
    """Raised when a job fails in a way that another try may mend."""


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
    """Return whether the same call will fail again whenever it is tried: nothing to wait or to retry for."""
    from pulsar_native import exceptions as errors

    return isinstance(
        error,
        (
            JobRefused,
            errors.AuthenticationError,
            errors.AuthorizationError,
            errors.ErrorGettingAuthenticationData,
            errors.IncompatibleSchema,
            errors.InvalidConfiguration,
            errors.InvalidTopicName,
            errors.InvalidUrl,
            errors.OperationNotSupported,
            errors.TopicTerminated,
            errors.UnsupportedVersionError,
        ),
    )


def explain(error: BaseException, *, action: str, stage: str) -> str:
    """Return one line: what was done, at which stage it failed, why, and what helps."""
    hint = _HINTS.get(type(error).__name__)
    reason = str(error).rstrip(".") or type(error).__name__
    return f"{action} failed at the stage '{stage}': {type(error).__name__}: {reason}" + (f" - {hint}" if hint else "")
