"""PulsarNotifier: publishes one message from a callback of a DAG or a task, or from a deadline alert.

Rules: the message is confirmed by the broker before the notifier returns; nothing waits longer than the send time-out
and the connection's own. Callbacks run outside of tasks, also in the DAG processor: nothing is kept in a state store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseNotifier

from airflow_provider_pulsar.context import error_text
from airflow_provider_pulsar.exceptions import failure, staged
from pulsar_native.jobs import validation
from pulsar_native.jobs.json_values import json_safe

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

_TEXTS = ("dag_id", "task_id", "run_id")


class PulsarNotifier(BaseNotifier):
    """Publish a message when a task or a DAG run succeeds, fails, is retried or misses a deadline.

    `DAG(..., on_failure_callback=PulsarNotifier(topic="alerts"))`.

    :param topic: the topic, in any spelling. Templated.
    :param message: the value: a text or bytes as they are, anything else as JSON (NaN, infinity and values without a
        form in JSON as text). Templated. Default: a JSON object with dag_id, task_id, run_id, map_index, try_number,
        logical_date, state, deadline_time, reason and exception (the first 65,536 characters), as far as the callback's
        context has them; a callback of a task sees no state.
    :param key: the message's key. Templated. Default "dag_id/run_id", so that one partition has a run's messages.
    :param properties: properties, texts by text. Templated. Default none; airflow.dag_id, airflow.task_id and
        airflow.run_id are always there where the context has them.
    :param send_timeout_seconds: seconds to wait for the broker's receipt, from 0.1, default 30.
    :param pulsar_conn_id: the connection, default pulsar_default.

    In templates `exception` is that text, without the secrets that Airflow masks. A failure raises AirflowException,
    which Airflow logs; it does not change the outcome of the task or the run.
    """

    template_fields: Sequence[str] = ("topic", "message", "key", "properties")

    def __init__(
        self,
        *,
        topic: str,
        message: object = None,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        send_timeout_seconds: float = 30,
        pulsar_conn_id: str = "pulsar_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        validation.text("topic", topic)
        validation.number("send_timeout_seconds", send_timeout_seconds, 0.1)
        self.topic = topic
        self.message = message
        self.key = key
        self.properties = dict(_mapping({} if properties is None else properties))
        self.send_timeout_seconds = send_timeout_seconds
        self.pulsar_conn_id = pulsar_conn_id

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Render the templates, to which an exception is its text without secrets."""
        values: Any = context
        if values.get("exception") is not None:
            values = {**context, "exception": _ErrorText(values["exception"])}
        super().render_template_fields(values, jinja_env)

    def notify(self, context: Context) -> None:
        """Publish the message and wait for its receipt."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        hook = PulsarHook(self.pulsar_conn_id)
        with staged(self._action(), "publish"), hook.get_client() as client:
            topic, millis = hook.topic_name(self.topic), int(self.send_timeout_seconds * 1000)
            with client.create_producer(topic, send_timeout_millis=millis, batching_enabled=False) as producer:
                content, fields = self._built(context)
                message_id = producer.send(content, **fields)
        self.log.info("%s: %s", self._action(), message_id)

    async def async_notify(self, context: Context) -> None:
        """Publish the message from within the triggerer's loop, without a thread."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        hook = PulsarHook(self.pulsar_conn_id)
        with staged(self._action(), "publish"):
            async with await hook.get_async_client() as client:
                # The connection is read by now: this does not ask Airflow, which would block the loop.
                topic, millis = hook.topic_name(self.topic), int(self.send_timeout_seconds * 1000)
                made = client.create_producer(topic, send_timeout_millis=millis, batching_enabled=False)
                async with await made as producer:
                    content, fields = self._built(context)
                    message_id = await producer.send(content, **fields)
        self.log.info("%s: %s", self._action(), message_id)

    def _action(self) -> str:
        return f"Notifying {self.topic}"

    def _built(self, context: Context) -> tuple[bytes, dict[str, Any]]:
        """Return the content, and key and properties; raises AirflowException for a wrong template or value."""
        try:
            return self._checked(context)
        except Exception as error:
            # Values are the author's objects, which may raise any exception.
            raise failure(error, action=self._action(), stage="message") from error

    def _checked(self, context: Context) -> tuple[bytes, dict[str, Any]]:
        facts = _facts(context)
        value = facts if self.message is None else self.message
        if isinstance(value, bytes):
            content = value
        else:
            content = (value if isinstance(value, str) else json.dumps(json_safe(value))).encode()
        properties = {f"airflow.{name}": str(facts[name]) for name in _TEXTS if facts.get(name)}
        properties |= {str(name): str(text) for name, text in _mapping(self.properties).items()}
        key = self.key
        if key is not None and not isinstance(key, str):
            validation.refuse(f"key must be a text, not {type(key).__name__}")
        if key is None and facts.get("dag_id"):
            key = f"{facts['dag_id']}/{facts.get('run_id', '')}"
        return content, {"partition_key": key, "properties": properties}


class _ErrorText(str):
    """The text of an exception as `error_text` returns it, with the attributes of the exception without secrets."""

    _error: object = None

    def __new__(cls, error: object) -> Self:
        made = super().__new__(cls, error_text(error))
        made._error = error
        return made

    def __getattr__(self, name: str) -> Any:
        from airflow.sdk.log import redact  # type: ignore[attr-defined]  # not in its __all__

        value = getattr(self._error, name)
        return error_text(value) if isinstance(value, str) else redact(value)


def _mapping(properties: object) -> Mapping[str, str]:
    if not isinstance(properties, Mapping):
        validation.refuse(f"properties must be a dict of texts, not {type(properties).__name__}")
    return properties


def _facts(context: Context) -> dict[str, Any]:
    """Return what the context tells of the task or run, as JSON values, without what is not there."""
    given: Mapping[str, Any] = context
    ti, run, deadline = given.get("ti") or given.get("task_instance"), given.get("dag_run"), given.get("deadline")
    names = {name: _field(ti, name) for name in ("dag_id", "task_id", "run_id", "map_index", "try_number")}
    state = _field(run if ti is None else ti, "state")
    found: dict[str, Any] = {
        **names,
        "dag_id": names["dag_id"] or _field(run, "dag_id") or _field(given.get("dag"), "dag_id"),
        "run_id": names["run_id"] or _field(run, "run_id") or _field(run, "dag_run_id") or given.get("run_id"),
        "logical_date": given.get("logical_date") or _field(run, "logical_date"),
        # A run that misses its deadline may still run.
        "state": _final(state) if deadline is None else state,
        "deadline_time": _field(deadline, "deadline_time"),
        "reason": given.get("reason"),
        # An exception of the author's code may repeat a secret.
        "exception": None if given.get("exception") is None else error_text(given["exception"]),
    }
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _field(thing: object, name: str) -> Any:
    """Return a field of a task, a run or a deadline, None where there is none; deadline alerts give mappings."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _final(state: object) -> object:
    """Return a state but "running": the callback of a task that has just ended may still see that."""
    text = getattr(state, "value", state)
    return None if text == "running" else text


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    return _as_text(value)


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
