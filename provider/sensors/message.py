"""Message sensor: waits for a message of a subscription that matches, hands it over, and acknowledges it on success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.exceptions import staged
from airflow_provider_pulsar.sensors.watching import WatchingSensor
from pulsar_native.jobs.watching import arguments_of
from pulsar_native.jobs.watching_message import IDS, MessageCondition, MessageWatcher, acknowledge_found

if TYPE_CHECKING:
    from airflow.sdk import Context


class MessageSensor(WatchingSensor):
    """Wait for a message that matches, and return it.

    The subscription knows which messages were handed over: it is created if it does not exist, and stays. The triggerer
    acknowledges no match; the worker does so when it has the message, as its last step. So delivery is at least once.

    :param topic: the topic, in any spelling; a partitioned one is read as a whole. Templated.
    :param subscription: the name of the subscription. Templated.
    :param match: conditions that all must hold: `key` (a text or a list), `properties` (names to texts or lists),
        `jsonpath` (RFC 9535, on the decoded value). Default None: any message. Templated.
    :param acknowledge: acknowledge the message on success. Default True. With False it is delivered again to the next
        consumer of the subscription, for instance to `ConsumeBatchOperator`.
    :param unmatched: what becomes of messages before it that do not match: keep (default; they are looked at again each
        time) or acknowledge.
    :param subscription_type: exclusive (default), shared, failover or key_shared.
    :param initial_position: where a new subscription begins, earliest (default) or latest.
    :param decode: auto (default: by the schema the message was published with; else text or base64), json, text, bytes.
    :param value_limit_bytes: a larger payload is left out of the result: its `value` is None, and `value_bytes` its
        size. Default 49152.
    :param deferrable: wait in the triggerer.
    :param start_from_trigger: begin in the triggerer, without a worker for the first look; needs `deferrable`. Not for
        mapped tasks, nor for arguments that are the result of another task.
    :param pulsar_conn_id: the connection.
    :param poke_interval: seconds between two looks. A look checks all messages there are.

    Returns value, encoding, key, properties, event_time, publish_time, topic, message_id, producer and sequence_id.
    """

    template_fields: Sequence[str] = ("topic", "subscription", "match")
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
        self.prepare()

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        return arguments_of(MessageCondition, self)

    def watcher(self) -> MessageWatcher:
        """Return the watcher."""
        return MessageWatcher(MessageCondition.of(**self.condition()))

    def completed(self, context: Context, found: Any) -> dict[str, Any]:
        """Acknowledge the message if wanted, and return it."""
        if self.acknowledge:
            from airflow_provider_pulsar.hooks.pulsar import PulsarHook

            action = f"Acknowledging {found['message_id']} of {found['topic']} as {self.subscription}"
            with staged(action, "acknowledge"), PulsarHook(self.pulsar_conn_id).get_client() as client:
                acknowledge_found(client, MessageCondition.of(**self.condition()), found)
            self.log.info("Acknowledged %s", found["message_id"])
        return {name: value for name, value in found.items() if name != IDS}
