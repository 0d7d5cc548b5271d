"""Message sensor: waits for a message of a subscription that matches, acknowledges it, and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_pulsar.arguments import known_values
from airflow_provider_pulsar.assets.pulsar import cluster_uri
from airflow_provider_pulsar.exceptions import staged
from airflow_provider_pulsar.sensors.watching import WatchingSensor
from airflow_provider_pulsar.state import TaskState, cycle_of
from airflow_provider_pulsar.xcom import xcom_value
from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.private_keys import checked_paths
from pulsar_native.jobs.watching import arguments_of
from pulsar_native.jobs.watching_message import CLUSTER, IDS, MessageCondition, MessageWatcher, acknowledge_found

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook

# Key of the message that was acknowledged, in the task state.
_STATE = "message_found"


class MessageSensor(WatchingSensor):
    """Wait for a message that matches, and return it.

    The subscription knows which messages were handed over: it is created if it does not exist, and stays. The triggerer
    acknowledges no match; the worker does so, after noting the message in the task's state. A retry returns the noted
    message, a task that is cleared waits for another one. Delivery is at least once. Runs that overlap get different
    messages by an exclusive subscription only: with another type set `max_active_runs=1`, or use a subscription per
    run.

    :param topic: the topic, in any spelling; a partitioned one is read as a whole. Templated.
    :param subscription: the name of the subscription. Templated.
    :param match: conditions that all must hold: `key` (a text or a list), `properties` (names to texts or lists),
        `jsonpath` (RFC 9535, on the decoded value, or on the JSON in its text). Default None: any message. Templated.
    :param acknowledge: acknowledge the message. Default True. With False it is delivered again to the next
        consumer of the subscription, for instance to `ConsumeBatchOperator`.
    :param unmatched: what becomes of messages before it that do not match: keep (default; they are looked at again each
        time) or acknowledge.
    :param subscription_type: exclusive (default), shared, failover or key_shared.
    :param initial_position: where a new subscription begins, earliest (default) or latest.
    :param decode: auto (default: by the schema the message was published with; else text or base64), json, text, bytes.
    :param value_limit_bytes: a larger payload is left out of the result: its `value` is None, and `value_bytes` its
        size. Default 49152.
    :param private_keys: decrypt messages with these keys: names, with the path or the `file:` URL of each private key,
        a PEM file of the worker, and with `deferrable` of the triggerer too. The result is not encrypted. Default none.
        Templated.
    :param deferrable: wait in the triggerer.
    :param start_from_trigger: begin in the triggerer, without a worker for the first look; needs `deferrable`. Not for
        mapped tasks, nor for arguments that are the result of another task.
    :param pulsar_conn_id: the connection.
    :param poke_interval: seconds between two looks. A look checks all messages there are.

    A message that `private_keys` do not decrypt can match by key and properties, unless it is in a batch, and is
    returned with its encrypted bytes in base64 and an `error`. Where the payload is needed the task fails; the message
    stays. A key file that cannot be read fails the task, too.

    Returns value, encoding, key, properties, event_time, publish_time, topic, message_id, producer and sequence_id.
    """

    template_fields: Sequence[str] = ("topic", "subscription", "match", "private_keys")
    trigger_class = "airflow_provider_pulsar.triggers.message.MessageTrigger"

    def __init__(
        self,
        *,
        topic: str,
        subscription: str,
        match: Mapping[str, Any] | None = None,
        acknowledge: bool = True,
        unmatched: str = "keep",
        subscription_type: str = "exclusive",
        initial_position: str = "earliest",
        decode: str = "auto",
        value_limit_bytes: int = 48 * 1024,
        private_keys: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.subscription = subscription
        self.match = match
        self.acknowledge = acknowledge
        self.unmatched = unmatched
        self.subscription_type = subscription_type
        self.initial_position = initial_position
        self.decode = decode
        self.value_limit_bytes = value_limit_bytes
        self.private_keys = private_keys
        if isinstance(private_keys, Mapping):
            # Also where other arguments are templates, which are checked later: Airflow stores this one as it is.
            checked_paths(known_values(private_keys))
        self._noted: dict[str, Any] | None = None
        self._taken: dict[str, Any] | None = None
        self.prepare()

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        return arguments_of(MessageCondition, self)

    def watcher(self) -> MessageWatcher:
        """Return the watcher."""
        return MessageWatcher(MessageCondition.of(**self.condition()))

    def found_at(self, hook: PulsarHook, found: dict[str, Any]) -> dict[str, Any]:
        """Return the message with its cluster."""
        return {**found, CLUSTER: cluster_uri(hook.service_url())}

    # ---- acknowledgement ---------------------------------------------------------------------------------------------

    def restore(self, context: Context) -> None:
        """Read what an earlier try has noted, unless the task was cleared since."""
        noted = TaskState(context, _STATE).get() if self.acknowledge else None
        is_own = noted is not None and noted["wanted"] == self._wanted(context)
        self._noted = noted["found"] if noted is not None and is_own else None

    def _wanted(self, context: Context) -> dict[str, Any]:
        return {"topic": self.topic, "subscription": self.subscription, **cycle_of(context, self.retries)}

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once, and acknowledge the message. Raises permanent errors only."""
        self.begin(context)
        if self._noted is not None:
            return PokeReturnValue(True, self._noted)
        looked = super().poke(context)
        if looked and not self._acknowledged(context, looked.xcom_value):
            return PokeReturnValue(False)
        return looked

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Return what an earlier try has noted, else the trigger's result, or raise its error."""
        self._name_topic()
        self.restore(context)
        if self._noted is not None:
            return self.completed(context, self._noted)
        return super().execute_complete(context, event)

    def completed(self, context: Context, found: Any) -> Any:
        """Acknowledge the message if that is still to be done, and return it; look again if it is not to be had."""
        if found is not self._taken and not self._acknowledged(context, found):
            return self.execute(context)
        return xcom_value({name: value for name, value in found.items() if name not in (IDS, CLUSTER)})

    def _acknowledged(self, context: Context, found: Any) -> bool:
        """Acknowledge the message if wanted, and return True; return False if another run or cluster has it."""
        if self.acknowledge:
            from airflow_provider_pulsar.hooks.pulsar import PulsarHook

            def note() -> None:
                TaskState(context, _STATE).set({"wanted": self._wanted(context), "found": found})
                self._noted = found

            action = f"Acknowledging {found['message_id']} of {found['topic']} as {self.subscription}"
            before = None if found is self._noted else note
            with staged(action, "acknowledge"):
                hook = PulsarHook(self.pulsar_conn_id)
                if not self._is_of_cluster(cluster_uri(hook.service_url()), found):
                    return False
                with hook.get_client() as client:
                    if not acknowledge_found(client, MessageCondition.of(**self.condition()), found, before):
                        self.log.info("Another run has acknowledged %s; waiting for the next one", found["message_id"])
                        return False
            self.log.info("Acknowledged %s", found["message_id"])
        self._taken = found
        return True

    def _is_of_cluster(self, here: str, found: dict[str, Any]) -> bool:
        """Return True if the message is of this cluster: its id may be another message's elsewhere.

        Raises `JobRefused` for one that an earlier try has noted, and perhaps acknowledged there.
        """
        # Notes and events of earlier versions do not tell.
        there = found.get(CLUSTER, here)
        if there == here:
            return True
        if found is self._noted:
            raise JobRefused(
                f"the message is of {there}, and is perhaps not acknowledged there, but the connection leads to "
                f"{here}: nothing is acknowledged here. Clear the task to wait for another message, where the "
                "connection leads then"
            )
        self.log.info(
            "%s was found in %s, but the connection leads to %s: looking here", found["message_id"], there, here
        )
        return False
