"""Event producer plugin: filters, what listeners send, and that nothing they meet makes them wait or raise."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import TaskInstanceState
from airflow.sdk.api.datamodels._generated import TaskInstanceState as SdkState
from airflow.utils.state import TaskInstanceState as CoreState

from airflow_provider_pulsar.get_provider_info import get_provider_info
from airflow_provider_pulsar.plugins import event_producer
from airflow_provider_pulsar.plugins.event_producer import (
    DagRunListener,
    EventPublisher,
    Filter,
    LifecycleListener,
    Options,
    PulsarEventProducerPlugin,
    TaskInstanceListener,
    enabled_listeners,
)
from pulsar_native import AdminClient
from support.brokers import Broker, NewTopic
from support.clock import stopped_clock
from support.errors import Unprintable
from support.publish_tasks import read_all
from support.tasks import dag_in

TI = SimpleNamespace(dag_id="d", task_id="t", run_id="r", try_number=2, map_index=-1)
RUN = SimpleNamespace(dag_id="d", run_id="r", run_type="manual")
Configure = Callable[..., list[Any]]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Give a function that returns the listeners of options of the configuration."""

    def listeners(**options: object) -> list[Any]:
        for name, value in options.items():
            monkeypatch.setenv(f"AIRFLOW__PULSAR_EVENT_PRODUCER__{name.upper()}", str(value))
        return enabled_listeners()

    return listeners


@pytest.mark.proves("A24")
@pytest.mark.usefixtures("pulsar_conn")
def test_listeners_publish_to_their_topics(
    configure: Configure, broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    runs, tasks = topic("runs"), topic("tasks", partitions=2)
    admin.create_topic(runs)
    on_run, on_task, life = configure(
        dag_run_events_enabled=True,
        task_instance_events_enabled=True,
        dagrun_topic=runs,
        task_instance_topic=tasks,
        source="here",
    )
    assert (type(on_run), type(on_task), type(life)) == (DagRunListener, TaskInstanceListener, LifecycleListener)
    on_run.on_dag_run_running(dag_run=RUN, msg="")
    on_run.on_dag_run_success(dag_run=RUN, msg="done")
    on_task.on_task_instance_running(previous_state=None, task_instance=TI)
    on_task.on_task_instance_failed(previous_state="running", task_instance=TI, error=ValueError("wrong"))
    on_task.on_task_instance_skipped(previous_state="running", task_instance=TI)
    life.before_stopping(component=None)
    events = [json.loads(each.data()) for each in read_all(broker, runs)]
    assert [(each["event"], each["msg"]) for each in events] == [("dag_run.running", ""), ("dag_run.success", "done")]
    assert events[0].items() >= {"source": "here", "dag_id": "d", "run_id": "r", "logical_date": ""}.items()
    messages = read_all(broker, tasks)
    events = [json.loads(each.data()) for each in messages]
    assert [each["event"].partition(".")[2] for each in events] == ["running", "failed", "skipped"]
    assert (events[1]["error"], events[1]["previous_state"], events[0]["previous_state"]) == ("wrong", "running", None)
    # One run's events are in one partition.
    assert {each.partition_key() for each in messages} == {"d/r"}
    assert len({each.message_id().partition() for each in messages}) == 1


@pytest.mark.proves("A24")
@pytest.mark.usefixtures("pulsar_conn")
def test_listeners_called_by_airflow_in_a_run(
    configure: Configure, airflow_home: Path, broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    from airflow.listeners.listener import get_listener_manager as of_scheduler
    from airflow.sdk.listener import get_listener_manager as of_tasks

    name = topic()
    admin.create_topic(name)
    switched_on = {"dag_run_events_enabled": True, "task_instance_events_enabled": True}
    listeners = configure(**switched_on, dagrun_topic=name, task_instance_topic=name)
    managers = {id(manager): manager for manager in (of_scheduler(), of_tasks())}.values()
    dag = dag_in(
        airflow_home,
        "listened_to",
        """
        @task
        def good():
            pass

        @task
        def bad():
            raise RuntimeError("no more")

        good() >> bad()
        """,
    )
    try:
        for manager in managers:
            for listener in listeners:
                manager.add_listener(listener)
        run = dag.test()
    finally:
        for manager in managers:
            for listener in listeners:
                manager.pm.unregister(listener)
    listeners[-1].before_stopping(component=None)
    events = [json.loads(each.data()) for each in read_all(broker, name)]
    assert {each["run_id"] for each in events} == {run.run_id}
    assert [(each["event"], each.get("task_id")) for each in events if "task_id" in each] == [
        ("task_instance.running", "good"),
        ("task_instance.success", "good"),
        ("task_instance.running", "bad"),
        ("task_instance.failed", "bad"),
    ]
    (ended,) = [each for each in events if each["event"] == "dag_run.failed"]
    assert ended["run_type"] == "manual" and ended["start_date"] and ended["logical_date"]


@pytest.mark.proves("A24")
@pytest.mark.usefixtures("pulsar_conn")
def test_missing_topic_is_not_created_and_found_later(
    configure: Configure, broker: Broker, topic: NewTopic, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    listener, life = configure(
        dag_run_events_enabled=True, dagrun_topic=name, topic_check_retry_interval=0.2, topic_check_timeout=5
    )
    with caplog.at_level(logging.WARNING, event_producer.__name__):
        listener.on_dag_run_running(dag_run=RUN, msg="")
        life.before_stopping(component=None)
    assert name not in admin.topics("public/default")
    assert "is lost: TopicNotFound" in caplog.text and "next try is in 0.2 s" in caplog.text
    admin.create_topic(name)
    deadline = time.monotonic() + 10
    while not read_all(broker, name):
        assert time.monotonic() < deadline
        listener.on_dag_run_success(dag_run=RUN, msg="")
        life.before_stopping(component=None)


@pytest.mark.proves("A24")
def test_broker_down_neither_waits_nor_raises(
    configure: Configure, connection: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    connection("events_down", service_url="pulsar://127.0.0.1:1")
    options = {"task_instance_events_enabled": True, "pulsar_conn_id": "events_down", "topic_check_timeout": 1}
    listener, life = configure(**options)
    with caplog.at_level(logging.WARNING, event_producer.__name__):
        started = time.monotonic()
        for _ in range(20):
            listener.on_task_instance_success(previous_state=None, task_instance=TI)
        assert time.monotonic() - started < 5, "a second each, if they waited"
        life.before_stopping(component=None)
        assert time.monotonic() - started < 10
    assert "is lost" in caplog.text or "may be lost" in caplog.text


def test_corrected_connection_is_taken_up(
    configure: Configure, connection: Callable[..., str], broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    name = topic()
    admin.create_topic(name)
    options = {"pulsar_conn_id": "events_corrected", "topic_check_timeout": 0.5, "topic_check_retry_interval": 0}
    connection("events_corrected", service_url="pulsar://127.0.0.1:1")
    listener, _ = configure(dag_run_events_enabled=True, dagrun_topic=name, **options)
    listener.on_dag_run_running(dag_run=RUN, msg="")
    publisher = listener._sender._publisher
    assert publisher.flush(20) and publisher._dropped == {name: 1}
    connection("events_corrected", service_url=broker.service_url)
    listener.on_dag_run_success(dag_run=RUN, msg="")
    assert publisher.flush(20)
    assert [json.loads(each.data())["event"] for each in read_all(broker, name)] == ["dag_run.success"]


@pytest.mark.usefixtures("pulsar_conn")
def test_failed_event_any_error_text_is_published(
    configure: Configure, broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    name = topic()
    admin.create_topic(name)
    listener, life = configure(task_instance_events_enabled=True, task_instance_topic=name)
    for error in (Unprintable(), RuntimeError("x" * 6_000_000)):
        listener.on_task_instance_failed(previous_state="running", task_instance=TI, error=error)
        life.before_stopping(component=None)
    events = [json.loads(each.data()) for each in read_all(broker, name)]
    assert [each["error"] for each in events] == ["Unprintable", "x" * 65_536]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(SdkState, id="sdk"), pytest.param(CoreState, id="core"), pytest.param(TaskInstanceState, id="task")],
)
def test_task_fields_previous_state_is_its_value(kind: Any) -> None:
    assert event_producer._task_fields(TI, kind.QUEUED, None)["previous_state"] == "queued"


class NoState:
    """A state without a text."""

    def __str__(self) -> str:
        raise Unprintable


def test_listener_field_error_is_logged_not_raised(configure: Configure, caplog: pytest.LogCaptureFixture) -> None:
    listener, _ = configure(task_instance_events_enabled=True)
    with caplog.at_level(logging.WARNING, event_producer.__name__):
        listener.on_task_instance_success(previous_state=NoState(), task_instance=TI)
    assert "The event task_instance.success of d is lost: Unprintable" in caplog.text


@pytest.mark.usefixtures("pulsar_conn")
def test_lost_events_are_counted_when_topic_is_there(
    configure: Configure, topic: NewTopic, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    listener, life = configure(dag_run_events_enabled=True, dagrun_topic=name, topic_check_retry_interval=0)
    for _ in range(3):
        listener.on_dag_run_running(dag_run=RUN, msg="")
    life.before_stopping(component=None)
    admin.create_topic(name)
    with caplog.at_level(logging.WARNING, event_producer.__name__):
        listener.on_dag_run_success(dag_run=RUN, msg="")
        life.before_stopping(component=None)
    assert "is there after 3 lost events" in caplog.text


class FakeClient:
    """Client of producers that only their topic's name tells apart; closing anything raises."""

    def create_producer(self, topic: str, **_: object) -> Any:
        """Return a producer."""
        return SimpleNamespace(topic=topic, close=self.close)

    def close(self) -> None:
        """Raise."""
        raise OSError("cannot be closed")


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a publisher whose client needs no broker, and whose topics are there."""
    made: Any = EventPublisher(Options())
    monkeypatch.setattr(made, "_hook", SimpleNamespace(topic_name=str))
    monkeypatch.setattr(made, "_client", FakeClient())
    monkeypatch.setattr(made, "_require", lambda topic: None)
    return made


def test_lost_events_are_counted_by_topic(publisher: Any, caplog: pytest.LogCaptureFixture) -> None:
    for topic in ("a", "a", "b"):
        publisher._drop(topic, "for a test")
    assert "An event for b is lost: for a test (1 lost so far)" in caplog.text
    for topic in ("b", "a", "c"):
        publisher._producer(topic)
        # As after a failure: the producer is made anew, and its losses were told.
        del publisher._producers[topic]
        publisher._producer(topic)
    told = [each.getMessage() for each in caplog.records if "lost events" in each.getMessage()]
    assert told == [
        f"The topic {name} is there after {n} lost events of this process" for name, n in (("b", 1), ("a", 2))
    ]


def test_lost_event_counts_if_close_raises(publisher: Any, caplog: pytest.LogCaptureFixture) -> None:
    publisher._producer("a")
    publisher._give_up("a", RuntimeError("no broker"))
    assert publisher._dropped == {"a": 1} and (publisher._client, publisher._hook) == (None, None)
    assert caplog.text.count("cannot be closed") == 2


def test_flush_with_a_full_queue_keeps_its_limit(publisher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waited = stopped_clock(monkeypatch, event_producer), []

    def put(done: Any, timeout: float) -> None:
        clock.advance(timeout * 0.75)
        monkeypatch.setattr(done, "wait", waited.append)

    monkeypatch.setattr(publisher, "_thread", object())
    monkeypatch.setattr(publisher, "_waiting", SimpleNamespace(put=put))
    publisher.flush(8)
    assert waited == [pytest.approx(2)]


@pytest.mark.usefixtures("pulsar_conn")
def test_silent_admin_url_ends_the_look_in_time(
    configure: Configure, connection: Callable[..., str], broker: Broker, topic: NewTopic
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        connection("events_silent_admin", service_url=broker.service_url, admin_url=url)
        options = {"dagrun_topic": topic(), "pulsar_conn_id": "events_silent_admin", "topic_check_timeout": 0.5}
        listener, _ = configure(dag_run_events_enabled=True, **options)
        listener.on_dag_run_running(dag_run=RUN, msg="")
        publisher = listener._sender._publisher
        # Twenty seconds at most; the connection's own time-out is 30.
        assert publisher.flush(20)
        assert publisher._dropped == {listener._topic: 1}


@pytest.mark.parametrize(
    ("option", "wrong", "default"),
    [
        *(("topic_check_timeout", wrong, 10.0) for wrong in ("-1", "0", "nan", "inf", "abc")),
        *(("topic_check_retry_interval", wrong, 60.0) for wrong in ("-5", "nan", "inf", "abc")),
    ],
)
def test_option_wrong_is_logged_and_default_used(
    option: str, wrong: str, default: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"AIRFLOW__PULSAR_EVENT_PRODUCER__{option.upper()}", wrong)
    with caplog.at_level(logging.WARNING, event_producer.__name__):
        assert getattr(Options.configured(), option) == default
    assert f"[pulsar_event_producer] {option} must be a number of seconds" in caplog.text and repr(wrong) in caplog.text


def test_wrong_connection_is_logged_not_raised(configure: Configure, caplog: pytest.LogCaptureFixture) -> None:
    listener, life = configure(dag_run_events_enabled=True, pulsar_conn_id="there_is_no_such_connection")
    with caplog.at_level(logging.WARNING, event_producer.__name__):
        listener.on_dag_run_running(dag_run=RUN, msg="")
        life.before_stopping(component=None)
    assert "An event for airflow.events is lost" in caplog.text


@pytest.mark.usefixtures("pulsar_conn")
def test_forked_process_publishes_itself(
    configure: Configure, broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    name = topic()
    admin.create_topic(name)
    listener, life = configure(dag_run_events_enabled=True, dagrun_topic=name)
    listener.on_dag_run_running(dag_run=RUN, msg="parent")
    life.before_stopping(component=None)
    child = os.fork()
    if child == 0:
        try:
            listener.on_dag_run_success(dag_run=RUN, msg="child")
            life.before_stopping(component=None)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [json.loads(each.data())["msg"] for each in read_all(broker, name)] == ["parent", "child"]


def test_plugin_has_no_listeners_by_default(configure: Configure) -> None:
    assert PulsarEventProducerPlugin.listeners == [] == configure()
    assert PulsarEventProducerPlugin.name == get_provider_info()["plugins"][0]["name"]


@pytest.mark.proves("A24")
def test_plugin_imported_with_options_has_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("DAG_RUN", "TASK_INSTANCE"):
        monkeypatch.setenv(f"AIRFLOW__PULSAR_EVENT_PRODUCER__{kind}_EVENTS_ENABLED", "True")
    spec = importlib.util.spec_from_file_location("a_second_copy", event_producer.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "a_second_copy", module)
    spec.loader.exec_module(module)
    kinds = [type(each).__name__ for each in module.PulsarEventProducerPlugin.listeners]
    assert kinds == ["DagRunListener", "TaskInstanceListener", "LifecycleListener"]


@pytest.mark.parametrize(
    ("allowed", "denied", "passing"),
    [
        ("", "", {"sales_a", "sales_b", "test"}),
        ("sales_*", "", {"sales_a", "sales_b"}),
        ("sales_*, test", "*_b", {"sales_a", "test"}),
        ("", "*", set()),
    ],
)
def test_filter_of_configuration(allowed: str, denied: str, passing: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__PULSAR_EVENT_PRODUCER__DAG_RUN_DAG_ID_ALLOWLIST", allowed)
    monkeypatch.setenv("AIRFLOW__PULSAR_EVENT_PRODUCER__DAG_RUN_DAG_ID_DENYLIST", denied)
    chosen = Filter.configured("dag_run_dag_id")
    assert {name for name in ("sales_a", "sales_b", "test") if chosen.passes(name)} == passing


def test_configuration_options_are_those_the_plugin_reads() -> None:
    described = set(get_provider_info()["config"][event_producer.SECTION]["options"])
    lists = {f"{kind}_{end}" for kind in ("dag_run_dag_id", "task_instance_dag_id", "task_instance_task_id")
             for end in ("allowlist", "denylist")}  # fmt: skip
    assert described == lists | {
        *("dag_run_events_enabled", "task_instance_events_enabled", "pulsar_conn_id", "source"),
        *("dagrun_topic", "task_instance_topic", "topic_check_timeout", "topic_check_retry_interval"),
    }
