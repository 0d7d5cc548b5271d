"""Topic setup before publishing: a subscription or a retention that keeps messages, or a warning without either.

Rules: a subscription is created over the binary protocol, without an admin interface, and no message is delivered to
it. Retention is set for the topic, never for its namespace, and only raised.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pulsar_native.jobs.failures import JobRefused

if TYPE_CHECKING:
    from pulsar_native import AdminClient, Client
    from pulsar_native.jobs.interfaces import JobLog

# Limit of the wait for a topic policy to reach the topic's broker.
_POLICY_SECONDS = 15.0


def create_subscription(client: Client, topic: str, name: str, log: JobLog) -> None:
    """Create a durable subscription at the earliest message unless it exists. Blocks."""
    from pulsar_native import ConsumerType, InitialPosition
    from pulsar_native.exceptions import ConsumerBusy

    for each in client.get_topic_partitions(topic):
        try:
            client.subscribe(
                each,
                name,
                # A consumer of this type may join others; with a queue of 0 no message is delivered to it.
                consumer_type=ConsumerType.Shared,
                initial_position=InitialPosition.Earliest,
                receiver_queue_size=0,
            ).close()
        except ConsumerBusy:
            continue  # It exists: others consume from it.
    log.info("The subscription %r keeps what is published to %s", name, topic)


def ensure_retention(admin: AdminClient | None, topic: str, minutes: int | None, mb: int | None, log: JobLog) -> None:
    """Raise the topic's retention to `minutes` and `mb` megabytes (-1: no limit; None: follows the other one).

    Blocks until the broker confirms it. Raises `JobRefused` without an admin interface, `AdminError` and others.
    """
    if minutes is None and mb is None:
        return
    if admin is None:
        raise JobRefused("retention_minutes and retention_mb need the admin URL of the connection")
    found = admin.get_retention(topic, applied=True) or (0, 0)
    wanted = (
        _larger(found[0], -1 if minutes is None else minutes),
        _larger(found[1], -1 if mb is None else mb),
    )
    if wanted == found:
        return
    admin.set_retention(topic, *wanted)
    deadline = time.monotonic() + _POLICY_SECONDS
    while admin.get_retention(topic, applied=True) != wanted:
        if time.monotonic() > deadline:
            raise JobRefused(
                f"The retention of {topic} was set to {wanted[0]} minutes and {wanted[1]} MB, but the broker does not "
                "apply it: topicLevelPoliciesEnabled may be off. Set the retention of the namespace instead"
            )
        time.sleep(0.1)
    log.info("The retention of %s is now %s minutes and %s MB (-1: without limit)", topic, *wanted)


def _larger(one: int, other: int) -> int:
    return -1 if -1 in (one, other) else max(one, other)


def warn_if_not_kept(admin: AdminClient | None, topic: str, partitions: int, log: JobLog) -> None:
    """Log one line if the topic has neither subscription nor retention; no effect if that cannot be determined."""
    from pulsar_native import PulsarException

    if admin is None:
        return
    try:
        found = admin.partitioned_stats(topic) if partitions else admin.stats(topic)
        if found.get("subscriptions") or (admin.get_retention(topic, applied=True) or (0, 0)) != (0, 0):
            return
    except PulsarException:
        return
    log.warning(
        "%s has neither a subscription nor retention: the broker may delete what is published now before anybody "
        "reads it. Give create_subscription='NAME' for a consumer that comes later, retention_minutes=… for readers "
        "and loads, or set the retention of the namespace", topic,
    )  # fmt: skip
