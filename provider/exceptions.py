"""Airflow's exceptions for errors of the client and of the operating system.

May not do I/O. Operators and sensors raise no other ones: a permanent error (refused credentials, a wrong name or
argument) fails the task at once, every other error fails the try.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from pulsar_native.jobs.failures import explain, is_permanent
from pulsar_native.jobs.validation import InvalidValue


class ArgumentRefused(AirflowFailException, ValueError):
    """Raised when an argument is wrong once its template or the result of another task is rendered."""


def failure(error: BaseException, *, action: str, stage: str) -> AirflowException:
    """Return Airflow's exception for an error of the client; without retries for a permanent one."""
    if isinstance(error, InvalidValue):
        # Of an argument the text names it, as when the DAG file is parsed.
        return ArgumentRefused(str(error) if stage == "arguments" else explain(error, action=action, stage=stage))
    kind = AirflowFailException if is_permanent(error) else AirflowException
    return kind(explain(error, action=action, stage=stage))


@contextmanager
def staged(action: str, stage: str) -> Iterator[None]:
    """Convert errors of the client, the operating system and arguments in the block to Airflow's, with the stage.

    Other errors, such as those of functions of the DAG's author, pass.
    """
    from pulsar_native import PulsarException

    try:
        yield
    except (PulsarException, OSError, InvalidValue) as error:
        raise failure(error, action=action, stage=stage) from error
