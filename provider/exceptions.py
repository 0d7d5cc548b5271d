"""Airflow's exceptions for errors of the client and of the operating system.

May not do I/O. Operators and sensors raise no other ones: a permanent error (refused credentials, a wrong name) fails
the task at once, every other error fails the try.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from pulsar_native.jobs.failures import explain, is_permanent


def failure(error: BaseException, *, action: str, stage: str) -> AirflowException:
    """Return Airflow's exception for an error of the client; without retries for a permanent one."""
    kind = AirflowFailException if is_permanent(error) else AirflowException
    return kind(explain(error, action=action, stage=stage))


@contextmanager
def staged(action: str, stage: str) -> Iterator[None]:
    """Convert errors of the client and of the operating system inside the block to Airflow's, with the stage."""
    from pulsar_native import PulsarException

    try:
        yield
    except (PulsarException, OSError) as error:
        raise failure(error, action=action, stage=stage) from error
