"""Deployment id: identifies one of several Airflows, so that none takes another's messages for its own.

Rules: it must differ between two deployments of the same DAGs, and be the same for all workers of one and over
restarts. Airflow has no such id, and its URLs are often equal in two deployments. Sources, in this order: the field of
the connection, `[pulsar] deployment_id` of the configuration, and a random id created on first use and stored in
Airflow's metadata database as the variable `pulsar_deployment_id`. A copy of a database for another deployment copies
the variable too; publishing with it then fails with its name, since the broker knows the producer.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Sequence
from typing import Any

from airflow.sdk import Variable
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException

_log = logging.getLogger(__name__)

VARIABLE = "pulsar_deployment_id"
# How long a new id must stay as it is before it is used: others may store theirs as late as Airflow repeats a request.
_UNCHANGED_SECONDS = 10
_MOST_WAITS = 6
_VALID = re.compile(r"[\w.-]{1,64}")
_DESCRIPTION = (
    "Id of this Airflow in the names of Pulsar producers and subscriptions. Do not copy it to another Airflow, and do "
    "not change it: runs published under the old one are not recognised any more when their state is gone, and "
    "watchers lose their subscriptions."
)


def deployment_id(of_connection: str | None) -> str:
    """Return the id of this Airflow; `of_connection` is the field of the connection.

    Blocks for Airflow's answer; where it creates the id, for 10 s or more. Raises AirflowException for an id with other
    characters, and if none can be read or stored.
    """
    if of_connection:
        return of_connection
    configured = conf.get("pulsar", "deployment_id", fallback="")
    if configured:
        return _checked(configured, "[pulsar] deployment_id of Airflow's configuration")
    try:
        found = Variable.get(VARIABLE, default=None)
        if found is None:
            found = _found_or_created()
    except Exception as error:
        raise AirflowException(
            f"The variable {VARIABLE} with this Airflow's deployment id can be neither read nor made "
            f"({type(error).__name__}: {error}): give deployment_id in the connection, or [pulsar] deployment_id in "
            "Airflow's configuration"
        ) from error
    return _checked(found, f"the variable {VARIABLE}")


def _found_or_created() -> str:
    """Return the id that `Variable.get` did not find, or store one; raises if it cannot be known whether there is one.

    `get` does not find a variable that cannot be read just now. Another id in its place would cost every watcher its
    subscription, and every publishing task its record.
    """
    started = time.monotonic()
    for backend in _secrets_backends():
        found = backend.get_variable(key=VARIABLE)
        if found is not None:
            return str(found)
    # The backend of Airflow's own API does not raise.
    if VARIABLE in Variable.keys(prefix=VARIABLE):
        return str(Variable.get(VARIABLE))
    created = uuid.uuid4().hex[:16]
    Variable.set(VARIABLE, created, description=_DESCRIPTION)
    took = time.monotonic() - started
    if took >= _UNCHANGED_SECONDS:
        # Airflow cannot store a variable only if there is none. What was replaced by this one cannot be known.
        _log.warning(
            "It took %d s to store the deployment id of this Airflow: a task or watcher that has created another one "
            "meanwhile goes on with that. Restart the triggerers, so that no watcher does; with [pulsar] deployment_id "
            "in Airflow's configuration nothing is stored",
            took,
        )
    return _unchanged(created)


def _secrets_backends() -> Sequence[Any]:
    """Return what `Variable.get` asks, one after another."""
    try:
        from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded
    except ImportError:
        # Not a public name: another version of Airflow may lack it.
        return ()
    return ensure_secrets_backend_loaded()


def _unchanged(created: str) -> str:
    """Return the id once nobody has replaced it for a while: of several that are created at once, the last stored."""
    _log.info(
        "Created the deployment id of this Airflow as the variable %s: waiting %d s, or longer, for others that create "
        "one at the same moment. That happens once in the life of an Airflow, and not at all with [pulsar] "
        "deployment_id in its configuration",
        VARIABLE, _UNCHANGED_SECONDS,
    )  # fmt: skip
    found = created
    for _ in range(_MOST_WAITS):
        before = found
        time.sleep(_UNCHANGED_SECONDS)
        found = str(Variable.get(VARIABLE))
        if found == before:
            break
    return found


def _checked(found: str, where: str) -> str:
    if not _VALID.fullmatch(found):
        raise AirflowException(f"{where} may have letters, digits and - _ . only, and at most 64 of them")
    return found
