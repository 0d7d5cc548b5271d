"""Deployment id: identifies one of several Airflows, so that none takes another's messages for its own.

Rules: it must differ between two deployments of the same DAGs, and be the same for all workers of one and over
restarts. Airflow has no such id, and its URLs are often equal in two deployments. Sources, in this order: the field of
the connection, `[pulsar] deployment_id` of the configuration, and a random id created on first use and stored in
Airflow's metadata database as the variable `pulsar_deployment_id`. A copy of a database for another deployment copies
the variable too; publishing with it then fails with its name, since the broker knows the producer.
"""

from __future__ import annotations

import re
import time
import uuid

from airflow.sdk import Variable
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException

VARIABLE = "pulsar_deployment_id"
# Shortest wait for ids that others store: longer than it takes from finding no id to storing one.
_SETTLE_SECONDS = 2.0
# The wait, where that took long here: it takes others as long.
_SETTLE_TIMES = 3
_VALID = re.compile(r"[\w.-]{1,64}")
_DESCRIPTION = (
    "Id of this Airflow in the names of Pulsar producers and subscriptions. Do not copy it to another Airflow, and do "
    "not change it: runs published under the old one are not recognised any more when their state is gone, and "
    "watchers lose their subscriptions."
)


def deployment_id(of_connection: str | None) -> str:
    """Return the id of this Airflow; `of_connection` is the field of the connection.

    Blocks for Airflow's answer. Raises AirflowException for an id with other characters, and if none can be stored.
    """
    if of_connection:
        return of_connection
    configured = conf.get("pulsar", "deployment_id", fallback="")
    if configured:
        return _checked(configured, "[pulsar] deployment_id of Airflow's configuration")
    try:
        found = Variable.get(VARIABLE, default=None)
        if found is None:
            _create()
            found = Variable.get(VARIABLE)
    except Exception as error:
        raise AirflowException(
            f"The variable {VARIABLE} with this Airflow's deployment id can be neither read nor made "
            f"({type(error).__name__}: {error}): give deployment_id in the connection, or [pulsar] deployment_id in "
            "Airflow's configuration"
        ) from error
    return _checked(str(found), f"the variable {VARIABLE}")


def _create() -> None:
    """Store a random id unless there is one; raises Airflow's error if that cannot be known."""
    started = time.monotonic()
    # A variable that cannot be read just now is not found by `get`, as one that does not exist. Another id in its place
    # would cost every watcher its subscription, and every publishing task its record.
    if VARIABLE in Variable.keys(prefix=VARIABLE):
        return
    Variable.set(VARIABLE, uuid.uuid4().hex[:16], description=_DESCRIPTION)
    # Others may create one at the same moment, each its own: the last one stored is for all of them.
    time.sleep(max(_SETTLE_SECONDS, _SETTLE_TIMES * (time.monotonic() - started)))


def _checked(found: str, where: str) -> str:
    if not _VALID.fullmatch(found):
        raise AirflowException(f"{where} may have letters, digits and - _ . only, and at most 64 of them")
    return found
