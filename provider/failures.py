"""What went wrong, as a task shows it: the stage, the topic, the reason and what helps.

May not do I/O. Rules: errors of the client become Airflow's here and nowhere else in operators and sensors; what no
retry can help (refused credentials, a bad name) fails the task at once, everything else fails this try.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

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


def failure(error: BaseException, *, action: str, stage: str) -> AirflowException:
    """Return Airflow's exception for an error of the client; one that forbids retries where they cannot help."""
    kind = AirflowFailException if is_permanent(error) else AirflowException
    return kind(explain(error, action=action, stage=stage))


@contextmanager
def staged(action: str, stage: str) -> Iterator[None]:
    """Turn errors of the client and of the operating system inside the block into Airflow's, naming the stage."""
    from pulsar_native import PulsarException

    try:
        yield
    except (PulsarException, OSError) as error:
        raise failure(error, action=action, stage=stage) from error
