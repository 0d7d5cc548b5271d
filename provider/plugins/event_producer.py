"""Plugin `pulsar_event_producer`: state changes of DAG runs and task instances as messages, by Airflow's listeners.

Rules: listeners run in the scheduler's loop, in the api-server and in every task's process, so a listener never waits
for the broker and never raises: it puts the event into a bounded queue that one daemon thread of the process sends
from. Only `before_stopping` waits, for at most `topic_check_timeout` seconds, so that a task's last event is stored. No
producer is created for a topic that does not exist; its events are dropped until it is there, and the log then has
their number. Nothing is imported from the client, and no thread is started, before the first event. A forked process
makes a queue and a client of its own.

Each message is a JSON object with schema_version, source, event, timestamp and the fields of the run or task; its key
is "dag_id/run_id", so that the events of a run are in one partition, in their order.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk.configuration import conf

from airflow_provider_pulsar.context import error_text, redacted

if TYPE_CHECKING:
    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native import Client, Producer

SECTION = "pulsar_event_producer"
SCHEMA_VERSION = 1
# Events of one process that wait for the broker.
_MOST_WAITING = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filter:
    """Glob patterns of ids. A denied id is refused in any case; no allowed ones means all."""

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    @staticmethod
    def configured(name: str) -> Filter:
        """Return the filter of the options NAME_allowlist and NAME_denylist, patterns with commas between."""
        found = (conf.get(SECTION, f"{name}_{kind}", fallback="") or "" for kind in ("allowlist", "denylist"))
        allowed, denied = (tuple(part.strip() for part in text.split(",") if part.strip()) for text in found)
        return Filter(allowed, denied)

    def passes(self, name: str) -> bool:
        """Return True if events of this id are published."""
        if any(fnmatchcase(name, pattern) for pattern in self.denied):
            return False
        return not self.allowed or any(fnmatchcase(name, pattern) for pattern in self.allowed)


@dataclass(frozen=True)
class Options:
    """Options of the section `[pulsar_event_producer]` but for those of one listener."""

    pulsar_conn_id: str = "pulsar_default"
    source: str = ""
    topic_check_timeout: float = 10
    topic_check_retry_interval: float = 60

    @staticmethod
    def configured() -> Options:
        """Return what Airflow's configuration says."""
        from airflow.utils.net import get_hostname

        host: str = get_hostname()  # type: ignore[no-untyped-call]
        return Options(
            pulsar_conn_id=conf.get(SECTION, "pulsar_conn_id", fallback="") or "pulsar_default",
            source=conf.get(SECTION, "source", fallback="") or host,
            topic_check_timeout=_seconds("topic_check_timeout", 0.1, Options.topic_check_timeout),
            topic_check_retry_interval=_seconds("topic_check_retry_interval", 0, Options.topic_check_retry_interval),
        )


def _seconds(option: str, least: float, default: float) -> float:
    """Return an option in seconds; log a wrong one and return the default in its place."""
    text = conf.get(SECTION, option, fallback="") or str(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if least <= value < math.inf:
        return value
    what = f"must be a number of seconds, at least {least:g}, not {text!r}"
    _log.warning("[%s] %s %s: the default %g is used", SECTION, option, what, default)
    return default


@dataclass(frozen=True)
class _Event:
    topic: str
    key: str
    content: bytes


class EventPublisher:
    """Queue and thread that publish the events of one process. `put` may be called from any thread."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._waiting: queue.Queue[_Event | threading.Event] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._hook: PulsarHook | None = None
        self._client: Client | None = None
        self._producers: dict[str, Producer[Any]] = {}
        self._retry_after: dict[str, float] = {}
        self._dropped: Counter[str] = Counter()

    def put(self, topic: str, key: str, body: dict[str, Any]) -> None:
        """Queue an event; drop it, and log that, when the queue is full.

        In a task's process it blocks once, for reading the connection.
        """
        self._start()
        try:
            self._waiting.put_nowait(_Event(topic, key, json.dumps(body, default=str).encode()))
        except queue.Full:
            self._drop(topic, "the queue is full")

    def flush(self, seconds: float) -> bool:
        """Wait until what was queued has a receipt or an error; return False after so many seconds."""
        if self._thread is None:
            return True
        done, deadline = threading.Event(), time.monotonic() + seconds
        try:
            # A full queue has no place before the broker answers.
            self._waiting.put(done, timeout=seconds)
        except queue.Full:
            return False
        return done.wait(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            if _is_in_task():
                # Read here: a task's process has one channel to its supervisor, used by the task's thread.
                self._read_connection()
            self._thread = threading.Thread(target=self._run, name="pulsar-event-producer", daemon=True)
            self._thread.start()

    def _read_connection(self) -> None:
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        hook = PulsarHook(self._options.pulsar_conn_id)
        hook.client_config()
        self._hook = hook

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            try:
                if isinstance(item, threading.Event):
                    self._flush_producers()
                    item.set()
                else:
                    self._publish(item)
            except Exception as error:
                _log.warning("Events to Pulsar: %s: %s", type(error).__name__, error)

    def _publish(self, event: _Event) -> None:
        if time.monotonic() < self._retry_after.get(event.topic, 0):
            self._drop(event.topic, None)
            return
        try:
            producer = self._producer(event.topic)
            producer.send_async(event.content, self._on_receipt(event.topic), partition_key=event.key)
        except Exception as error:
            self._give_up(event.topic, error)

    def _producer(self, topic: str) -> Producer[Any]:
        """Return the producer of a topic that exists; raises what the client raises."""
        found = self._producers.get(topic)
        if found is None:
            client = self._opened()
            self._require(topic)
            # A full queue raises, so that one topic does not hold up the other.
            found = client.create_producer(self._name(topic), block_if_queue_full=False, batching_enabled=True)
            self._producers[topic] = found
            _log.info("Events go to %s as %s", topic, self._options.source)
            with self._lock:
                dropped = self._dropped.pop(topic, 0)
            if dropped:
                _log.warning("The topic %s is there after %s lost events of this process", topic, dropped)
        return found

    def _opened(self) -> Client:
        if self._client is None:
            from dataclasses import replace

            from pulsar_native import Client

            if self._hook is None:
                # In this thread, which has a database session of its own: the scheduler's is in the middle of a
                # transaction while it calls listeners.
                self._read_connection()
            assert self._hook is not None
            config = self._hook.client_config()
            seconds = min(self._options.topic_check_timeout, config.operation_timeout_seconds)
            self._client = Client.from_config(replace(config, operation_timeout_seconds=seconds))
        return self._client

    def _require(self, topic: str) -> None:
        """Raise `TopicNotFound` unless the topic exists: a producer would create it, without its partitions."""
        assert self._hook is not None and self._client is not None
        admin = self._hook.get_admin(self._client.config.operation_timeout_seconds)
        if admin is None:
            self._client.get_partition_count(self._name(topic))
            return
        with admin:
            admin.partitions(self._name(topic))

    def _name(self, topic: str) -> str:
        assert self._hook is not None
        return self._hook.topic_name(topic)

    def _on_receipt(self, topic: str) -> Callable[..., None]:
        def receipt(result: Any, message_id: object) -> None:
            if result.name != "Ok":
                self._drop(topic, f"the broker did not confirm an event ({result.name})")

        return receipt

    def _give_up(self, topic: str, error: Exception) -> None:
        """Drop events of a topic until the next look at it."""
        from pulsar_native.exceptions import ProducerQueueIsFull

        if isinstance(error, ProducerQueueIsFull):
            self._drop(topic, "the broker does not keep up")
            return
        seconds = self._options.topic_check_retry_interval
        self._retry_after[topic] = time.monotonic() + seconds
        self._drop(topic, f"{type(error).__name__}: {error}; the next try is in {seconds:g} s")
        _close(self._producers.pop(topic, None))
        if not self._producers and not _is_in_task():
            # The connection may be corrected until then: a hook reads it once.
            client, self._client, self._hook = self._client, None, None
            _close(client)

    def _drop(self, topic: str, reason: str | None) -> None:
        # Called by three threads: that of a listener, this object's own, and that of receipts.
        with self._lock:
            self._dropped[topic] += 1
            dropped = self._dropped[topic]
        if reason is not None:
            _log.warning("An event for %s is lost: %s (%s lost so far)", topic, reason, dropped)

    def _flush_producers(self) -> None:
        for topic, producer in list(self._producers.items()):
            try:
                producer.flush()
            except Exception as error:
                self._give_up(topic, error)


def _close(opened: Client | Producer[Any] | None) -> None:
    """Close what has failed; log that it cannot be closed, which must not keep the others from their work."""
    try:
        if opened is not None:
            opened.close()
    except Exception as error:
        _log.warning("Events to Pulsar: %s: %s", type(error).__name__, error)


def _is_in_task() -> bool:
    """Return True in the process of a task, which asks its supervisor for connections."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return getattr(runner, "SUPERVISOR_COMMS", None) is not None


class _Sender:
    """Builds events and gives them to the publisher of this process; never raises."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._publisher: EventPublisher | None = None
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._publisher = None

    def send(self, topic: str, event: str, dag_id: str, run_id: str, fields: Callable[[], dict[str, Any]]) -> None:
        """Queue an event with these fields."""
        try:
            if self._publisher is None:
                self._publisher = EventPublisher(self._options)
            body = {
                "schema_version": SCHEMA_VERSION,
                "source": self._options.source,
                "event": event,
                "timestamp": datetime.now(UTC).isoformat(),
                **fields(),
            }
            self._publisher.put(topic, f"{dag_id}/{run_id}", body)
        except Exception as error:
            from pulsar_native.jobs.failures import reason_of

            _log.warning("The event %s of %s is lost: %s", event, dag_id, reason_of(error, redacted))

    def flush(self) -> None:
        """Wait for the receipts of what was queued."""
        if self._publisher is not None and not self._publisher.flush(self._options.topic_check_timeout):
            _log.warning(
                "Events to Pulsar may be lost: there was no receipt in %s s", self._options.topic_check_timeout
            )


class DagRunListener:
    """Publishes the state changes of DAG runs, from the scheduler and, for changes by hand, the api-server."""

    def __init__(self, sender: _Sender, topic: str, dags: Filter) -> None:
        self._sender, self._topic, self._dags = sender, topic, dags

    @hookimpl
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:
        """Publish dag_run.running."""
        self._send("running", dag_run, msg)

    @hookimpl
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        """Publish dag_run.success."""
        self._send("success", dag_run, msg)

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        """Publish dag_run.failed."""
        self._send("failed", dag_run, msg)

    def _send(self, state: str, run: Any, msg: str) -> None:
        if not self._dags.passes(run.dag_id):
            return
        event = f"dag_run.{state}"
        self._sender.send(self._topic, event, run.dag_id, run.run_id, lambda: _run_fields(run, msg))


class TaskInstanceListener:
    """Publishes the state changes of task instances, from their own processes and the api-server."""

    def __init__(self, sender: _Sender, topic: str, dags: Filter, tasks: Filter) -> None:
        self._sender, self._topic, self._dags, self._tasks = sender, topic, dags, tasks

    @hookimpl
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None:
        """Publish task_instance.running."""
        self._send("running", previous_state, task_instance)

    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        """Publish task_instance.success."""
        self._send("success", previous_state, task_instance)

    @hookimpl
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: object) -> None:
        """Publish task_instance.failed, with the error's text without secrets."""
        self._send("failed", previous_state, task_instance, error)

    @hookimpl
    def on_task_instance_skipped(self, previous_state: Any, task_instance: Any) -> None:
        """Publish task_instance.skipped."""
        self._send("skipped", previous_state, task_instance)

    def _send(self, state: str, previous: Any, ti: Any, error: object = None) -> None:
        if not (self._dags.passes(ti.dag_id) and self._tasks.passes(ti.task_id)):
            return
        event = f"task_instance.{state}"
        self._sender.send(self._topic, event, ti.dag_id, ti.run_id, lambda: _task_fields(ti, previous, error))


class LifecycleListener:
    """Waits for the last receipts before a component, or a task's process, ends."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender

    @hookimpl
    def before_stopping(self, component: object) -> None:
        """Flush; blocks for at most `topic_check_timeout` seconds."""
        self._sender.flush()


def enabled_listeners() -> list[object]:
    """Return the listeners that Airflow's configuration switches on, none by default."""
    runs = conf.getboolean(SECTION, "dag_run_events_enabled", fallback=False)
    tasks = conf.getboolean(SECTION, "task_instance_events_enabled", fallback=False)
    if not runs and not tasks:
        return []
    sender = _Sender(Options.configured())
    found: list[object] = []
    if runs:
        found.append(DagRunListener(sender, _topic("dagrun_topic"), Filter.configured("dag_run_dag_id")))
    if tasks:
        dags, names = Filter.configured("task_instance_dag_id"), Filter.configured("task_instance_task_id")
        found.append(TaskInstanceListener(sender, _topic("task_instance_topic"), dags, names))
    return [*found, LifecycleListener(sender)]


def _topic(option: str) -> str:
    return str(conf.get(SECTION, option, fallback="") or "airflow.events")


def _run_fields(run: Any, msg: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"dag_id": run.dag_id, "run_id": run.run_id}
    for name in ("run_type", "logical_date", "start_date", "end_date"):
        fields[name] = _text(getattr(run, name, None))
    return {**fields, "msg": msg or ""}


def _task_fields(ti: Any, previous: object, error: object) -> dict[str, Any]:
    fields = {name: getattr(ti, name, None) for name in ("dag_id", "task_id", "run_id", "try_number", "map_index")}
    # A task's process has the SDK's enumeration, whose text is its member's name, the api-server one of its own.
    state = getattr(previous, "value", previous)
    fields["previous_state"] = None if state is None else str(state)
    if error is not None:
        fields["error"] = error_text(error)
    return fields


def _text(value: object) -> str:
    return "" if value is None else value.isoformat() if isinstance(value, datetime) else str(value)


class PulsarEventProducerPlugin(AirflowPlugin):
    """Plugin that publishes the state changes of DAG runs and task instances; see `[pulsar_event_producer]`."""

    name = SECTION
    # Airflow imports this module once; what is switched on later needs its processes to start again.
    listeners = enabled_listeners()
