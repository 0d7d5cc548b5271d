"""The guard of a publication: does the broker drop repeated messages, and will it drop those of earlier tries?

Rules: messages are never stored twice silently. Refused before anything is sent: a publication that demands
deduplication where it is off; one whose earlier try the broker has forgotten; one to a topic with more partitions than
before, as messages would go elsewhere; and a first try under a producer name that the broker already knows. Where the
admin interface cannot be asked, the first message tells: the broker knows a producer's sequence ids afterwards only
with deduplication.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.publication import ContentChanged

if TYPE_CHECKING:
    from pulsar_native import AdminClient, Client
    from pulsar_native.jobs.interfaces import JobLog
    from pulsar_native.jobs.publication import Record

FIX = (
    "Turn it on for the namespace (pulsar-admin namespaces set-deduplication TENANT/NAMESPACE --enable), for the "
    "topic, or with brokerDeduplicationEnabled=true in broker.conf"
)
# A broker may forget a producer after its brokerDeduplicationProducerInactivityTimeoutMinutes, 360 by default; a
# shorter setting than this is unheard of.
_FORGETS_SECONDS = 30 * 60


class Deduplication:
    """Decide about the deduplication of one publication. Used by one thread; blocks."""

    def __init__(self, topic: str, demanded: bool | str, log: JobLog) -> None:
        self._topic = topic
        self._demanded = demanded
        self._log = log

    def ask(self, admin: AdminClient | None, partitions: int, known: int, *, is_persistent: bool) -> bool | None:
        """Return whether the broker deduplicates the topic, None where only a message can tell.

        `known` is the highest sequence id the broker knows of the producer. Raises `JobRefused` where deduplication is
        demanded and off.
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
            states = self._states(admin, partitions)
        except PulsarException as error:
            self._log.info("Whether %s has deduplication on could not be asked: %s", self._topic, error)
            return None
        off = [state for state in states if state in ("Disabled", "Removing", "Failed")]
        if off:
            return self.without(f"it is {off[0].lower()} at the broker")
        return True if states and all(states) else None

    def without(self, why: str) -> bool:
        """Return False, and log it, for a topic without deduplication; raises `JobRefused` where it is demanded."""
        if self._demanded is True:
            raise JobRefused(
                f"deduplicate=True, but {self._topic} has no deduplication: {why}. {FIX}; or pass deduplicate='auto' "
                "and accept that a retry publishes messages again"
            )
        self._log.info("%s has no deduplication (%s): a retry publishes all messages again. %s", self._topic, why, FIX)
        return False

    def _states(self, admin: AdminClient, partitions: int) -> list[str]:
        if not partitions:
            return [admin.stats(self._topic).get("deduplicationStatus", "")]
        found = admin.partitioned_stats(self._topic).get("partitions", {})
        return [stats.get("deduplicationStatus", "") for stats in found.values()]

    # ---- first tries and repetitions ---------------------------------------------------------------------------------

    def check_first(self, producer_name: str, known: int) -> None:
        """Refuse a first try under a name that the broker knows, with `ContentChanged`: nothing can be compared."""
        if known < 0:
            return
        raise ContentChanged(
            f"nothing is remembered of an earlier try, but the broker knows the producer {producer_name!r} of "
            f"{self._topic} up to message {known}, and would drop messages as duplicates that may be others. Either "
            "this run was published before, and was then deleted and made again, or its state was removed "
            "([state_store] clear_on_success, or by hand): if its messages are to stay as they are, mark the task as "
            "a success. Or another Airflow, or another task, publishes under the same deployment_id and identity: "
            "give each its own"
        )

    def check_repetition(self, client: Client, record: Record, known: int, partitions: int) -> None:
        """Refuse a repetition that the broker would store twice; `record` is what the earlier try left."""
        last = int(record["last"])
        is_unsure = last < 0 and record["phase"] == "sending" and time.time() - record["at"] > _FORGETS_SECONDS
        if (last < 0 and not is_unsure) or _is_empty(client, self._topic):
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
        """Log what a repetition without deduplication may store a second time."""
        stored, ids = record["stored"], ", ".join(record["ids"]) or "none known"
        if record["phase"] == "sending":
            self._log.warning(
                "An earlier try published to %s without deduplication and was killed: at least %s messages were stored "
                "(ids %s), and may be there twice after this try, as may those sent after that count",
                self._topic, stored, ids,
            )  # fmt: skip
        elif stored:
            self._log.warning(
                "An earlier try stored %s messages in %s without deduplication (ids %s): they will be there twice "
                "after this try", stored, self._topic, ids,
            )  # fmt: skip


def check_switched_off(topic: str, record: Record, deduplicated: bool | None, demanded: bool | str) -> None:
    """Refuse a repetition without the deduplication that the earlier try had, unless it was asked for."""
    if record["deduplicated"] and deduplicated is False and demanded is not False and record["last"] >= 0:
        raise JobRefused(
            f"Nothing was published: {topic} had deduplication when this job published to it before, and has none "
            f"now, so that {record['stored']} messages would be stored twice. {FIX}; or accept that with "
            "deduplicate=False"
        )


def _is_empty(client: Client, topic: str) -> bool:
    """Return whether the topic holds nothing: it was deleted since, so nothing can be there twice."""
    from pulsar_native import MessageId

    with client.create_reader(topic, MessageId.earliest) as reader:
        found: list[Any] = list(reader.get_last_message_ids())
        return all(message_id.entry_id() < 0 for message_id in found)
