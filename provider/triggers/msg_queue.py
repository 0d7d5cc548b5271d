"""Event trigger for asset watchers: the matching messages of a topic, through a durable subscription.

Airflow runs it as a shared stream in ack mode: a message is acknowledged after its asset event is stored. Rules: the
subscription belongs to one trigger of Airflow's database. Airflow distributes triggers over its triggerers without
regard to what they share, so two triggers of one subscription would each see a part of the messages. A constructor
raises nothing but TypeError: any other exception ends the whole triggerer.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
from ast import literal_eval
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_pulsar.xcom import xcom_value
from pulsar_native.exceptions import InvalidTopicName
from pulsar_native.jobs import validation
from pulsar_native.jobs.matching import MessageMatch
from pulsar_native.jobs.matching_stream import StreamOptions
from pulsar_native.jobs.message_event import DEFAULT_LIMIT_BYTES
from pulsar_native.topic import TopicName

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import SharedStreamProducer

# What the triggerer knows of the watched assets, and of a deferred task; no arguments of the trigger.
ASSET, TASK = "_asset", "_task"
_SLUG_LENGTH = 40
_STREAM_ARGUMENTS = (
    "topic_pattern",
    "initial_position",
    "decode",
    "payload",
    "payload_limit_bytes",
    "receiver_queue_size",
    "max_redeliver_count",
    "dead_letter_topic",
    "private_keys",
)


# Arguments that operators render.
_NAMES = ("topic", "topic_pattern", "subscription", "dead_letter_topic", "private_keys", "pulsar_conn_id")


class WatcherRefused(TypeError, ValueError):
    """Raised for a wrong argument of a watcher, when its DAG is parsed."""


@dataclass
class StreamEvent:
    """Event on its way through the shared stream.

    `pending` counts the triggers that have got it and have not asked for the next one, that is those whose event
    Airflow has perhaps not queued.
    """

    payload: dict[str, Any] | None
    pending: int = 0


class PulsarMessageQueueTrigger(BaseEventTrigger):
    """Send an event for each message of a topic that matches, for an `AssetWatcher`, or of one to a deferred task.

    Each message is acknowledged after Airflow has stored its event; one whose event was not stored is received again,
    by any triggerer, so delivery is at least once. Messages that do not match are acknowledged at once. A message that
    cannot be decoded is published to the dead-letter topic with its cause (properties EXCEPTION_TYPE,
    EXCEPTION_MESSAGE) and acknowledged.

    :param topic: one topic or a list of them, in any spelling, partitioned or not.
    :param topic_pattern: instead of `topic`, a regular expression for whole names, tenant and namespace literally:
        `persistent://public/default/orders-.*`. Topics created later are included, those of the subscription's own
        dead letters are not, unless the pattern names `-DLQ`.
    :param match: conditions that must all hold: {"key": …, "properties": {name: …}, "jsonpath": …}. Key and properties
        are compared with a text or a list of texts. `jsonpath` is RFC 9535 on the decoded value: a query
        (`$.items[?@.price > 100]`), which must select something, or a logical expression in which `@` is the value
        (`@.amount > 100 && @.status == 'paid'`). Default: every message.
    :param match_function: dotted path of a function or coroutine function that gets the message as a mapping (value,
        encoding, key, properties, topic, message_id, times) and returns whether it matches. `[pulsar]
        callback_allowlist` of Airflow's configuration must name it. A message for which it raises is redelivered up to
        `max_redeliver_count` times, then it becomes a dead letter. Default none.
    :param decode: auto (default: by the schema each message was published with; text or base64 without one), json,
        text, or bytes (base64).
    :param payload: content of an event: value (default), ids (the same without the value), or none.
    :param payload_limit_bytes: limit of an event's size as JSON; a larger value is left out, and the event says so.
        Default 16384, at least 1024.
    :param subscription: name of the subscription. Default: made from this Airflow's deployment id, the asset, and the
        arguments. A name of your own keeps the position when arguments change; no other watcher may have it.
        Watchers of several assets in one DAG file whose arguments are equal share one: give each its own where their
        DAGs may be paused apart.
    :param initial_position: start of a subscription that does not exist yet: latest (default) or earliest.
    :param receiver_queue_size: limit of the messages received but not stored yet. Default 200, for a deferred task 1.
        Airflow's `[triggerer] shared_stream_subscriber_queue_size` limits it too.
    :param max_redeliver_count: see `match_function`. Default 16.
    :param dead_letter_topic: default `TOPIC-SUBSCRIPTION-DLQ`. It gets a subscription with the name of the watcher's.
        Not one of the topics.
    :param private_keys: decrypt messages with these keys: names, with the path or the `file:` URL of each private key,
        a PEM file of the triggerer. Events are not encrypted. A message that was encrypted becomes no dead letter: it
        stays unacknowledged, with an error in the log. Default none: encrypted messages are not received.
    :param pulsar_conn_id: the connection. Default pulsar_default.

    An event's payload is a JSON object: value, encoding (json, text, base64, null; omitted where it was too large),
    key, properties, topic, message_id, publish_time, event_time, producer, sequence_id. Raises `WatcherRefused`, a
    TypeError, for a wrong argument.
    """

    def __init__(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        topic_pattern: str | None = None,
        match: Mapping[str, Any] | None = None,
        match_function: str | None = None,
        decode: str = "auto",
        payload: str = "value",
        payload_limit_bytes: int = DEFAULT_LIMIT_BYTES,
        subscription: str | None = None,
        initial_position: str = "latest",
        receiver_queue_size: int = 200,
        max_redeliver_count: int = 16,
        dead_letter_topic: str | None = None,
        private_keys: Mapping[str, str] | None = None,
        pulsar_conn_id: str = "pulsar_default",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        is_list = isinstance(topic, Sequence) and not isinstance(topic, str | bytes)
        self.topic = list(topic) if is_list else topic  # type: ignore[arg-type]
        self.topic_pattern = topic_pattern
        self.match = dict(match) if isinstance(match, Mapping) else match
        self.match_function = match_function
        self.decode = decode
        self.payload = payload
        self.payload_limit_bytes = payload_limit_bytes
        self.subscription = subscription
        self.initial_position = initial_position
        self.receiver_queue_size = receiver_queue_size
        self.max_redeliver_count = max_redeliver_count
        self.dead_letter_topic = dead_letter_topic
        self.private_keys = dict(private_keys) if isinstance(private_keys, Mapping) else private_keys
        self.pulsar_conn_id = pulsar_conn_id
        try:
            _checked(self._arguments())
        except ValueError as error:
            raise WatcherRefused(str(error)) from error

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults, so that a new one does not change the identity."""
        parameters = inspect.signature(type(self).__init__).parameters
        return {
            name: getattr(self, name)
            for name, parameter in parameters.items()
            if name != "self" and getattr(self, name) != parameter.default
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments; in a triggerer with the watched asset or the task, for the shared stream."""
        path = "airflow_provider_pulsar.triggers.msg_queue.PulsarMessageQueueTrigger"
        asset = self._asset()
        known: dict[str, Any] = {} if asset is None else {ASSET: asset}
        if self.task_instance is not None:
            # Each deferred task has a stream of its own: of one stream all triggers would get the same message.
            known[TASK] = self.trigger_id
        return path, self._arguments() | known

    def _asset(self) -> str | None:
        """Return the name of the watched asset, the first of several; None outside a triggerer.

        Airflow stores triggers of equal arguments once for each DAG file: only the assets tell them apart.
        """
        try:
            return min(asset_names(self.asset_state_store), default=None)
        except TypeError:
            if self.subscription is None:
                raise
            return None

    def _warn_of_several_assets(self) -> None:
        """Warn of assets with one subscription: Airflow detaches those of paused DAGs from the trigger."""
        with suppress(TypeError):
            names = sorted(asset_names(self.asset_state_store))
            if len(names) > 1:
                self.log.warning(
                    "The assets %s have equal watchers, and so one subscription: while the DAG of one is paused, it "
                    "loses what the others get, or they lose it. To pause them apart, give each watcher a "
                    "subscription= of its own",
                    ", ".join(names),
                )

    # ---- shared stream -----------------------------------------------------------------------------------------------

    def shared_stream_key(self) -> Hashable:
        """Return the identity of the subscription, and of a deferred task."""
        return "pulsar", _canonical(self.serialize()[1])

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the broker's side of the stream, not connected yet."""
        from airflow_provider_pulsar.triggers.shared_stream import PulsarStreamProducer

        return PulsarStreamProducer(kwargs)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Send an event for each message, to a deferred task for one only; those that do not match are not here."""
        self._warn_of_several_assets()
        is_of_task, is_sent = self.task_instance is not None, False
        async for event in shared_stream:
            # A cancelled trigger stops at the yield. Airflow, which writes a line of its log before it queues the
            # event, counts a message as accepted whose trigger is cancelled meanwhile: pending tells the producer.
            event.pending += 1
            if is_of_task and is_sent:
                # Airflow would confirm it as stored, though no task waits for it. Cancelled, it is redelivered.
                await asyncio.Event().wait()
            # A deferred task is resumed with it; an asset's event is plain JSON.
            payload = xcom_value(event.payload) if is_of_task else event.payload
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
            event.pending -= 1
            is_sent = True

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Send events outside a shared stream, as `dag.test()` does for a deferred task.

        A message is acknowledged when the next event is asked for.
        """
        from airflow_provider_pulsar.triggers.shared_stream import PulsarStreamProducer

        producer = PulsarStreamProducer(self.serialize()[1])
        try:
            async with aclosing(producer.open_stream()) as events:
                async for event, delivery in events:
                    # A deferred task is resumed with it; an asset's event is plain JSON.
                    yield TriggerEvent(xcom_value(event.payload))  # type: ignore[no-untyped-call]
                    await producer.acknowledge(delivery)
        finally:
            await producer.aclose()


# Names and URIs of assets in the representation of a store: a literal of Python in either quotes.
_SHOWN = re.compile(r"""\b(name|uri)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def asset_names(store: object) -> list[str]:
    """Return the names of the assets that a trigger's state store is for; none outside a triggerer.

    Airflow offers no public way to them. Raises TypeError for a store that does not tell them: without the name two
    assets would share a subscription, and each would see a part of the messages.
    """
    if store is None:
        return []
    found = getattr(store, "_by_name", None)
    if isinstance(found, Mapping):
        names = list(found)
    else:
        names = [str(literal_eval(text)) for kind, text in _SHOWN.findall(repr(store)) if kind == "name"]
    if not names:
        raise TypeError(
            f"this version of Airflow does not tell which asset a watcher is for ({type(store).__name__}): name the "
            "subscription by subscription="
        )
    return names


def _checked(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for wrong arguments."""
    options = stream_options(arguments, arguments.get("subscription", "default"))
    _check_names([*options.topics, *([options.dead_letter_topic] if options.dead_letter_topic else [])])
    for name in _NAMES:
        if "{{" in str(arguments.get(name, "")):
            raise ValueError(f"{name}={arguments[name]!r} is a template: the arguments of a watcher are not rendered")
    MessageMatch(arguments.get("match"))
    validation.text("pulsar_conn_id", arguments.get("pulsar_conn_id", "pulsar_default"))
    _canonical(arguments)
    if (path := arguments.get("match_function")) is not None:
        check_allowed(path)


def _check_names(topics: Sequence[str]) -> None:
    for topic in topics:
        try:
            TopicName.parse(topic)
        except InvalidTopicName as error:
            raise ValueError(str(error)) from error


def _canonical(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(arguments, sort_keys=True, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"the arguments of a watcher must be JSON values: {error}") from error


def stream_options(
    arguments: Mapping[str, Any], subscription: str, properties: Mapping[str, str] | None = None
) -> StreamOptions:
    """Return the options of a stream; raises ValueError for a wrong argument."""
    topic = arguments.get("topic")
    if topic is not None and not isinstance(topic, str | list):
        validation.refuse(f"topic must be a text or a list of texts, not {topic!r}")
    return StreamOptions(
        subscription,
        (topic,) if isinstance(topic, str) else tuple(topic or ()),
        properties=properties or {},
        **{name: arguments[name] for name in _STREAM_ARGUMENTS if name in arguments},
    )


def check_allowed(path: object) -> None:
    """Raise unless `[pulsar] callback_allowlist` names the function; never imports it."""
    if not isinstance(path, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path):
        raise ValueError(f"match_function must be the dotted path of a function, not {path!r}")
    allowed = [each.strip() for each in conf.get("pulsar", "callback_allowlist", fallback="").split(",")]
    if not any(fnmatchcase(path, each) for each in allowed if each):
        raise ValueError(
            f"match_function={path!r} is not allowed: name it, or a pattern such as {path.rpartition('.')[0]}.*, in "
            "[pulsar] callback_allowlist of Airflow's configuration, for dag-processor and triggerer"
        )


def subscription_name(arguments: Mapping[str, Any], deployment: str) -> str:
    """Return the name of the subscription of a trigger's arguments, the watched asset included."""
    if named := arguments.get("subscription"):
        return str(named)
    lasting = {name: value for name, value in arguments.items() if name != TASK}
    digest = hashlib.sha256(_canonical(lasting).encode()).hexdigest()[:16]
    asset = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(arguments.get(ASSET, ""))).strip("-")[:_SLUG_LENGTH]
    return "-".join(part for part in ("airflow", deployment, asset, digest) if part)
