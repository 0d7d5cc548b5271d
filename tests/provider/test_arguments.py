"""Arguments of mapped tasks that are None or empty, on the real broker: nothing is sent, taken or submitted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pulsar.exceptions import ArgumentRefused
from airflow_provider_pulsar.operators.admin import PulsarCreateTopicOperator, PulsarResetCursorOperator
from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.policies import PulsarSetPoliciesOperator
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from airflow_provider_pulsar.sensors.message import MessageSensor
from airflow_provider_pulsar.sensors.topic import TopicSensor
from pulsar_native import AdminClient, Client, InitialPosition
from support.brokers import Broker, NewTopic
from support.consuming import fill
from support.publish_tasks import texts
from support.tasks import context_of, dag_in, states_of

LOAD = {"output_path": "/x", "since": "last_success"}


@pytest.mark.parametrize(
    ("operator", "options", "name", "words"),
    [
        (PublishOperator, {"messages": ["a"]}, "encryption_keys", "was given by expand"),
        (ConsumeBatchOperator, {"subscription": "s", "inline": True}, "max_messages", "was given by expand"),
        (MessageSensor, {"subscription": "s"}, "match", "was given by expand"),
        (PulsarSparkLoadOperator, LOAD, "commits", "was given by expand"),
        (PulsarSparkLoadOperator, LOAD, "interval_start", "was rendered to"),
    ],
)
def test_mapped_argument_none_raises(operator: Any, options: dict[str, Any], name: str, words: str) -> None:
    with DAG("mapped", schedule=None, start_date=datetime(2026, 1, 1)):
        mapped = operator.partial(task_id="a_task", topic="t", **options).expand(**{name: [None]})
    # As Airflow does it: the constructor gets the resolved value.
    with pytest.raises(ValueError, match=f"{name} {words}"):
        mapped.unmap({name: None}).execute(context_of())


TEMPLATE = "{{ params.x }}"
CONSUME = {"subscription": "s", "path": "/x"}


@pytest.mark.parametrize(
    ("operator", "options", "name", "value"),
    [
        (ConsumeBatchOperator, {**CONSUME, "max_messages": TEMPLATE}, "max_messages", None),
        (ConsumeBatchOperator, {**CONSUME, "process": lambda manifest, more: None}, "process", lambda a, b: None),
        (PublishOperator, {"messages": TEMPLATE}, "messages", None),
        (PublishOperator, {"messages": TEMPLATE}, "messages", 5),
        (PublishOperator, {"messages": ["a"], "key_field": "k"}, "messages", ["a"]),
        (PulsarCreateTopicOperator, {}, "topic", None),
        (PulsarResetCursorOperator, {"subscription": "s", "position": TEMPLATE}, "position", "foo"),
        (PulsarSetPoliciesOperator, {"message_ttl_seconds": 5}, "topic", " "),
        (PulsarSparkLoadOperator, {**LOAD, "commits": TEMPLATE}, "commits", ""),
        (TopicSensor, {"messages": TEMPLATE}, "messages", "x"),
    ],
    ids=[
        *("limit", "process", "messages-none", "messages-number", "message", "topic"),
        *("position", "policies", "commits", "sensor"),
    ],
)
def test_wrong_rendered_argument_fails_at_once(
    operator: Any, options: dict[str, Any], name: str, value: object, connection: Callable[..., str]
) -> None:
    connection(service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
    made = operator(task_id="a_task", **{"topic": "t", **options})
    setattr(made, name, value)
    with pytest.raises(ArgumentRefused) as refused:
        made.execute(context_of())
    assert isinstance(refused.value, ValueError) and isinstance(refused.value, AirflowFailException)


def test_publish_callable_value_error_is_retried(connection: Callable[..., str]) -> None:
    """An error of a function of the DAG's author may be gone at the next try."""
    connection(service_url="pulsar://127.0.0.1:1")

    def rows() -> list[str]:
        raise ValueError("the service sent no JSON")

    with pytest.raises(ValueError, match="sent no JSON") as failed:
        PublishOperator(task_id="a_task", topic="t", messages=rows).execute(context_of())
    assert not isinstance(failed.value, AirflowFailException)


@pytest.mark.usefixtures("pulsar_conn")
def test_mapped_results_none_or_empty_fail_the_tasks(
    airflow_home: Path, broker: Broker, client: Client, admin: AdminClient, topic: NewTopic
) -> None:
    plain, source = topic(), topic()
    fill(client, source, ["x"])
    for name in ("wait", "take"):
        client.subscribe(source, name, initial_position=InitialPosition.Earliest).close()
    dag = dag_in(
        airflow_home,
        "mapped_to_nothing",
        f"""
        @task
        def values():
            return [None, {{}}]

        @task
        def arguments():
            return [{{"encryption_keys": None}}, {{"messages": ["sent"]}}]

        publish = dict(topic={plain!r}, deduplicate=False)
        PublishOperator.partial(task_id="each", messages=["a"], **publish).expand(encryption_keys=values())
        # An argument of `partial` is the author's.
        PublishOperator.partial(task_id="some", create_subscription=None, **publish).expand_kwargs(
            arguments().map(lambda given: {{"messages": ["a"], **given}})
        )
        MessageSensor.partial(
            task_id="wait", topic={source!r}, subscription="wait", timeout=5, poke_interval=0.5
        ).expand(match=values())
        ConsumeBatchOperator.partial(task_id="take", topic={source!r}, subscription="take", inline=True).expand(
            max_messages=values()
        )
        """,
    )
    states = states_of(dag.test())
    failed = [f"{name}[{index}]" for name in ("each", "wait", "take") for index in (0, 1)]
    assert {name: states[name] for name in (*failed, "some[0]", "some[1]")} == {
        **dict.fromkeys([*failed, "some[0]"], "failed"),
        "some[1]": "success",
    }
    assert texts(broker, plain) == ["sent"]
    subscriptions = admin.stats(source, precise_backlog=True)["subscriptions"]
    assert {name: each["msgBacklog"] for name, each in subscriptions.items()} == {"wait": 1, "take": 1}


@pytest.mark.usefixtures("pulsar_conn")
def test_mapped_subclass_default_is_not_given(airflow_home: Path, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    dag = dag_in(
        airflow_home,
        "mapped_subclass",
        f"""
        class Own(PublishOperator):
            def __init__(self, *, encryption_keys=None, **kwargs):
                super().__init__(encryption_keys=encryption_keys, deduplicate=False, **kwargs)

        Own.partial(task_id="own", topic={name!r}).expand_kwargs([{{"messages": ["a"]}}, {{"messages": ["b"]}}])
        """,
    )
    assert states_of(dag.test()) == {"own[0]": "success", "own[1]": "success"}
    assert sorted(texts(broker, name)) == ["a", "b"]
