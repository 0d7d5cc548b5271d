"""Arguments that all sensors have, Airflow's own among them, in every mode."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_provider_pulsar.sensors.message import MessageSensor
from airflow_provider_pulsar.sensors.schema import SchemaSensor
from airflow_provider_pulsar.sensors.subscription import SubscriptionSensor
from airflow_provider_pulsar.sensors.topic import TopicSensor
from airflow_provider_pulsar.sensors.watching import WatchingSensor
from support.brokers import NewTopic
from support.tasks import StateStore, context_of, define_connection
from support.waiting import MODES, options_of, wait_with

SENSORS: dict[type[WatchingSensor], dict[str, Any]] = {
    TopicSensor: {},
    MessageSensor: {"subscription": "s"},
    SchemaSensor: {},
    SubscriptionSensor: {"subscription": "s", "backlog": 1},
}


@pytest.mark.parametrize("kind", SENSORS)
def test_deferrable_with_exponential_backoff_raises(kind: type[WatchingSensor]) -> None:
    options: dict[str, Any] = {"task_id": "a_task", "topic": "t", "exponential_backoff": True, **SENSORS[kind]}
    assert kind(**options, deferrable=False).exponential_backoff
    with pytest.raises(ValueError, match="exponential_backoff=True does not go with deferrable=True"):
        kind(**options, deferrable=True)


# ---- soft_fail, never_fail, silent_fail ------------------------------------------------------------------------------

TOPICS = ["t", "persistent://public/default/t"]
FLAGS: dict[str | None, type[AirflowException]] = {
    None: AirflowException,
    # Airflow skips the time-out and permanent errors by it, and lets a retry follow others.
    "soft_fail": AirflowException,
    "never_fail": AirflowSkipException,
    # The error is ignored until the time is over.
    "silent_fail": AirflowSensorTimeout,
}


def waiting(topic: str, mode: str, **options: Any) -> TopicSensor:
    """Return a sensor that looks often and not for long."""
    options = {"poke_interval": 0.2, "timeout": 1, **options_of(mode), **options}
    return TopicSensor(task_id="a_task", topic=topic, **options)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("topic_name", TOPICS, ids=["short", "full"])
@pytest.mark.parametrize("mode", MODES)
def test_flags_with_a_missing_connection(
    mode: str, topic_name: str, flag: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {} if flag is None else {flag: True}
    sensor = waiting(topic_name, mode, pulsar_conn_id="there_is_none", **options)
    context, began = context_of(store=StateStore()), datetime.now(UTC)
    # Airflow's database has the time of the first reschedule.
    monkeypatch.setattr(context["ti"], "get_first_reschedule_date", lambda _: began, raising=False)
    with pytest.raises(AirflowException) as caught:
        wait_with(sensor, mode, context)
    expected = FLAGS[flag]
    if expected is AirflowException:
        assert not isinstance(caught.value, AirflowSkipException | AirflowSensorTimeout | AirflowFailException)
        assert isinstance(caught.value, AirflowNotFoundException) or "there_is_none" in str(caught.value)
    else:
        assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("soft_fail", AirflowSkipException),
        ("never_fail", AirflowSensorTimeout),
        ("silent_fail", AirflowSensorTimeout),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_flags_at_the_time_out(
    mode: str,
    flag: str,
    expected: type[AirflowException],
    pulsar_conn: str,
    topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, began = context_of(store=StateStore()), datetime.now(UTC)
    monkeypatch.setattr(context["ti"], "get_first_reschedule_date", lambda _: began, raising=False)
    with pytest.raises(AirflowException) as caught:
        wait_with(waiting(topic(), mode, **{flag: True}), mode, context)
    assert type(caught.value) is expected


@pytest.mark.parametrize("flag", ["soft_fail", "never_fail"])
@pytest.mark.parametrize("mode", MODES)
def test_flags_with_a_wrong_argument_skip(mode: str, flag: str) -> None:
    sensor = waiting("{{ params.topic }}", mode, **{flag: True})
    sensor.topic = "a/b"
    if mode == "start_from_trigger":
        sensor.start_trigger_args.trigger_kwargs["topic"] = "a/b"
    with pytest.raises(AirflowSkipException):
        wait_with(sensor, mode)


@pytest.mark.parametrize("topic_name", ["short", "full"])
@pytest.mark.parametrize("mode", MODES)
def test_silent_fail_takes_up_a_connection(
    mode: str, topic_name: str, pulsar_conn: str, broker: Any, topic: NewTopic, client: Any, monkeypatch: Any
) -> None:
    name = topic()
    client.create_producer(name).send(b"x")
    asked = name.rpartition("/")[2] if topic_name == "short" else name
    sensor = waiting(asked, mode, timeout=30, silent_fail=True, pulsar_conn_id="later")
    later = threading.Timer(1, define_connection, (monkeypatch, "later"), {"service_url": broker.service_url})
    later.start()
    assert wait_with(sensor, mode)["topic"] == name
    later.join()
