"""The guard of a deduplicated publication: will the broker really drop what it has already?

Rules: messages are never stored twice silently. It refuses, before anything is sent, when deduplication is off, when
the broker has forgotten the producer since an earlier try, and when the topic has got more partitions since, as
messages would then go elsewhere. Where the admin interface cannot be asked, it looks afterwards, and warns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs.failures import JobRefused

if TYPE_CHECKING:
    from pulsar_native import AdminClient, Client, Producer
    from pulsar_native.jobs.interfaces import JobLog, JobState

_FIX = (
    "Turn it on for the namespace (pulsar-admin namespaces set-deduplication TENANT/NAMESPACE --enable), for the "
    "topic, or with brokerDeduplicationEnabled=true in broker.conf; or pass deduplicate=False and accept that a retry "
    "publishes messages again"
)


class Deduplication:
    """Watch over one deduplicated publication. Used once, by one thread; blocks."""

    def __init__(self, topic: str, partitions: int, state: JobState, log: JobLog) -> None:
        self._topic = topic
        self._partitions = partitions
        self._state = state
        self._log = log
        self._proven = False
        self._last = -1

    def before(self, client: Client, admin: AdminClient | None, producer: Producer) -> None:
        """Check before anything is sent; `producer` was just opened. Raises `JobRefused`."""
        if admin is not None:
            with admin:
                self._ask(admin)
        else:
            self._log.warning(
                "The connection has no admin URL: whether %s has deduplication on shows only afterwards", self._topic
            )
        earlier = self._state.get()
        if earlier is not None and earlier.get("topic") == producer.topic():
            self._compare(earlier, client, producer)
        self._last = producer.last_sequence_id()
        self._remember(producer)

    def _ask(self, admin: AdminClient) -> None:
        from pulsar_native import PulsarException

        try:
            states = self._states(admin)
        except PulsarException as error:
            self._log.warning("Whether %s has deduplication on could not be asked: %s", self._topic, error)
            return
        off = [state for state in states if state in ("Disabled", "Removing", "Failed")]
        if off:
            raise JobRefused(
                f"Nothing was published to {self._topic}: deduplicate=True, but its deduplication is "
                f"{off[0].lower()} at the broker. {_FIX}"
            )
        self._proven = bool(states)

    def _states(self, admin: AdminClient) -> list[str]:
        if not self._partitions:
            return [admin.stats(self._topic).get("deduplicationStatus", "")]
        found = admin.partitioned_stats(self._topic).get("partitions", {})
        return [stats.get("deduplicationStatus", "") for stats in found.values()]

    def _compare(self, earlier: dict[str, Any], client: Client, producer: Producer) -> None:
        known, last = producer.last_sequence_id(), int(earlier.get("last", -1))
        if last < 0 or _is_empty(client, self._topic):
            return
        if earlier.get("partitions") != self._partitions:
            raise JobRefused(
                f"Nothing was published: {self._topic} had {earlier.get('partitions')} partitions when this job "
                f"published to it before, and has {self._partitions} now, so that messages would go to other "
                "partitions and be stored twice. Publish them by a new run"
            )
        if known < last:
            raise JobRefused(
                f"Nothing was published: the broker no longer knows what this job published to {self._topic} before "
                f"(up to message {last}, it remembers {known}), and would store it twice. It forgets a producer "
                "that is gone for brokerDeduplicationProducerInactivityTimeoutMinutes. To publish all the same, start "
                "a new run"
            )

    def _remember(self, producer: Producer) -> None:
        self._state.set({"topic": producer.topic(), "partitions": self._partitions, "last": self._last})

    def note(self, producer: Producer) -> None:
        """Remember how far it went, also when it failed."""
        self._last = max(self._last, producer.last_sequence_id())
        try:
            self._remember(producer)
        except Exception as error:
            # What was published is published: the guard of a later try is not worth failing this one.
            self._log.warning("The caller did not store the state of this publication: %s", error)

    def after(self, reopen: Callable[[], Producer]) -> None:
        """See whether the broker remembers what was published, where that was not proven before."""
        if self._proven or self._last < 0:
            return
        if reopen().last_sequence_id() < self._last:
            self._log.warning(
                "%s has no deduplication: a retry of this job publishes its messages again. %s",
                self._topic, _FIX,
            )  # fmt: skip


def _is_empty(client: Client, topic: str) -> bool:
    """Return whether the topic holds nothing: it was deleted since, so nothing can be there twice."""
    from pulsar_native import MessageId

    with client.create_reader(topic, MessageId.earliest) as reader:
        return all(message_id.entry_id() < 0 for message_id in reader.get_last_message_ids())
