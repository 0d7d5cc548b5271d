"""Deduplication check of a publication: does the broker drop repeated messages, and those of earlier tries?

Rules: messages are never stored twice silently. Rejected before anything is sent: a publication that requires
deduplication where it is off; one whose earlier try the broker has forgotten; one to a topic with more partitions than
before, as messages would be routed differently; a first try under a producer name that the broker already knows.
A topic that was created again since the earlier try has none of its messages, and gets all of them.
Without the admin interface the first message decides: afterwards the broker has the producer's sequence id only with
deduplication.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.failures import JobRefused, counted
from pulsar_native.jobs.publication import ContentChanged

if TYPE_CHECKING:
    from pulsar_native import AdminClient, Client
    from pulsar_native.jobs.interfaces import JobLog
    from pulsar_native.jobs.publication import Record

FIX = (
    "Turn it on for the namespace (pulsar-admin namespaces set-deduplication TENANT/NAMESPACE --enable), for the "
    "topic, or with brokerDeduplicationEnabled=true in broker.conf"
)
# A broker forgets an inactive producer after brokerDeduplicationProducerInactivityTimeoutMinutes, 360 by default;
# a shorter setting is not expected.
_FORGETS_SECONDS = 30 * 60
# A broker applies a changed policy to a topic it has loaded within moments, later when it is busy.
_APPLIES_SECONDS = 15.0
_POLL_SECONDS = 0.25


class Deduplication:
    """Deduplication check of one publication. For one thread; blocks."""

    def __init__(self, topic: str, demanded: bool | str, log: JobLog) -> None:
        self._topic = topic
        self._demanded = demanded
        self._log = log

    def ask(self, admin: AdminClient | None, partitions: int, known: int, *, is_persistent: bool) -> bool | None:
        """Return True or False as the broker deduplicates the topic, None if only a message can show it.

        `known` is the highest sequence id the broker has for the producer. Raises `JobRefused` if deduplication is
        required and off.
        """
        if self._demanded is False:
            return False
        if not is_persistent:
            return self.without("the topic is not persistent")
        if known >= 0:
            return True
        if admin is None:
            return None
        from pulsar_native import PulsarException

        try:
            states = self._applied_states(admin, partitions)
        except PulsarException as error:
            self._log.info("Whether %s has deduplication on could not be asked: %s", self._topic, error)
            return None
        off = [state for state in states if state in ("Disabled", "Removing", "Failed")]
        if off:
            return self.without(f"it is {off[0].lower()} at the broker")
        return True if states and all(states) else None

    def without(self, why: str) -> bool:
        """Log and return False for a topic without deduplication; raises `JobRefused` if it is required."""
        if self._demanded is True:
            raise JobRefused(
                f"deduplicate=True, but {self._topic} has no deduplication: {why}. {FIX}; or pass deduplicate='auto' "
                "and accept that a retry publishes messages again"
            )
        self._log.info("%s has no deduplication (%s): a retry publishes all messages again. %s", self._topic, why, FIX)
        return False

    def _applied_states(self, admin: AdminClient, partitions: int) -> list[str]:
        """Return the states, after waiting for a policy that enables deduplication and is not applied yet."""
        states = self._states(admin, partitions)
        if "Disabled" not in states or not self._is_enabled_by_policy(admin):
            return states
        self._log.info("Deduplication is enabled for %s, and the broker has not applied that yet: waiting", self._topic)
        deadline = time.monotonic() + _APPLIES_SECONDS
        while "Disabled" in states and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            states = self._states(admin, partitions)
        return states

    def _is_enabled_by_policy(self, admin: AdminClient) -> bool:
        from pulsar_native import PulsarException
        from pulsar_native.topic import TopicName

        for place in (self._topic, TopicName.parse(self._topic).namespace):
            # A broker without topic policies rejects the first request, one of another role both: what the broker says
            # of the topic itself stands then.
            with contextlib.suppress(PulsarException):
                found = admin.get_deduplication(place)
                if found is not None:
                    return found
        return False

    def _states(self, admin: AdminClient, partitions: int) -> list[str]:
        return [stats.get("deduplicationStatus", "") for stats in self._stats(admin, partitions).values()]

    def _stats(self, admin: AdminClient, partitions: int) -> Mapping[str, Mapping[str, Any]]:
        """Return the statistics of each partition by its name, or of the topic alone."""
        if not partitions:
            return {"": admin.stats(self._topic)}
        found: Mapping[str, Mapping[str, Any]] = admin.partitioned_stats(self._topic).get("partitions", {})
        return found

    def creation(self, client: Client, admin: AdminClient | None, partitions: int) -> dict[str, Any]:
        """Return the fields of a record for `is_created_again`: cluster, and when each partition was created.

        Empty if that is unknown: without the admin interface, and from brokers of old versions.
        """
        from pulsar_native import PulsarException

        if admin is None:
            return {}
        try:
            stats = self._stats(admin, partitions)
        except PulsarException:
            return {}
        created = {
            name: each["topicCreationTimeStamp"] for name, each in stats.items() if "topicCreationTimeStamp" in each
        }
        return {"cluster": client.get_service_info().service_url, "created": created} if any(created.values()) else {}

    # ---- first tries and repetitions ---------------------------------------------------------------------------------

    def check_first(self, producer_name: str, known: int) -> None:
        """Raise `ContentChanged` for a first try under a name that the broker knows: nothing can be compared."""
        if known < 0:
            return
        raise ContentChanged(
            f"nothing is remembered of an earlier try, but the broker knows the producer {producer_name!r} of "
            f"{self._topic} up to message {known}, and would drop messages as duplicates that may be others. Either "
            "this run was published before, and was then deleted and made again, or its state was removed "
            "([state_store] clear_on_success, or manually): if its messages are to stay as they are, mark the task as "
            "a success. Or another Airflow, or another task, publishes under the same deployment_id and identity: "
            "give each its own"
        )

    def check_repetition(
        self, client: Client, record: Record, known: int, partitions: int, creation: Mapping[str, Any]
    ) -> None:
        """Raise for a repetition that the broker would store twice; `record` is that of the earlier try, `creation`
        what `creation` returns now.
        """
        last = int(record["last"])
        is_unsure = last < 0 and record["phase"] == "sending" and time.time() - record["at"] > _FORGETS_SECONDS
        if last < 0 and not is_unsure:
            return
        # An empty topic was deleted since, so nothing can be stored twice; or its messages were consumed and removed.
        if not _is_same(record, creation) and _is_empty(client, self._topic):
            return
        if record["partitions"] != partitions:
            raise JobRefused(
                f"Nothing was published: {self._topic} had {record['partitions']} partitions when this job published "
                f"to it before, and has {partitions} now, so that messages would go to other partitions and be stored "
                "twice. Publish them by a new run, or under another identity"
            )
        if known < last or (is_unsure and known < 0):
            raise JobRefused(
                f"Nothing was published: the broker no longer knows what this job published to {self._topic} before "
                f"(up to message {last}, it remembers {known}), and would store it twice. It forgets a producer "
                "that is gone for brokerDeduplicationProducerInactivityTimeoutMinutes. To publish all the same, start "
                "a new run, or give another identity"
            )

    def warn_of_repetition(self, record: Record) -> None:
        """Log the messages that a repetition without deduplication may store a second time."""
        stored, ids = record["stored"], ", ".join(record["ids"]) or "none known"
        if record["phase"] == "sending":
            self._log.warning(
                "An earlier try published to %s without deduplication and was killed: at least %s messages were stored "
                "(ids %s), and may be there twice after this try, as may those sent after that count",
                self._topic, stored, ids,
            )  # fmt: skip
        elif stored:
            self._log.warning(
                "An earlier try stored %s in %s without deduplication (ids %s): they will be there twice after this "
                "try if it has the same messages", counted(stored), self._topic, ids,
            )  # fmt: skip


def is_created_again(record: Record, creation: Mapping[str, Any]) -> bool:
    """Return True if the topic is certainly another one of the same name than in the record of an earlier try."""
    then, now = record.get("created", {}), creation.get("created", {})
    # In another cluster the times are other ones, and replication may have stored the messages there.
    if record.get("cluster") != creation.get("cluster") or then.keys().isdisjoint(now):
        return False
    return all(then[name] != now[name] for name in then.keys() & now.keys())


def _is_same(record: Record, creation: Mapping[str, Any]) -> bool:
    """Return True if the topic is certainly the one of the earlier try."""
    is_known = bool(creation) and record.get("cluster") == creation["cluster"]
    return is_known and record.get("created") == creation["created"]


def check_switched_off(topic: str, record: Record, deduplicated: bool | None, demanded: bool | str) -> None:
    """Raise for a repetition without the deduplication of the earlier try, unless it was asked for."""
    if record["deduplicated"] and deduplicated is False and demanded is not False and record["last"] >= 0:
        raise JobRefused(
            f"Nothing was published: {topic} had deduplication when this job published to it before, and has none "
            f"now, so that {record['stored']} messages would be stored twice. {FIX}; or accept that with "
            "deduplicate=False"
        )


def _is_empty(client: Client, topic: str) -> bool:
    """Return True if the topic is empty."""
    from pulsar_native import MessageId

    with client.create_reader(topic, MessageId.earliest) as reader:
        found: list[Any] = list(reader.get_last_message_ids())
        return all(message_id.entry_id() < 0 for message_id in found)
