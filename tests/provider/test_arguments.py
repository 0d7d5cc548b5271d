"""Arguments of mapped tasks that are None or empty, on the real broker: nothing is sent, taken or submitted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.nativetypes import NativeEnvironment

from airflow_provider_pulsar.decorators.consume import _ConsumeDecoratedOperator
from airflow_provider_pulsar.decorators.publish import _PublishDecoratedOperator
from airflow_provider_pulsar.decorators.spark import _SparkDecoratedOperator
from airflow_provider_pulsar.exceptions import ArgumentRefused
from airflow_provider_pulsar.operators.admin import PulsarCreateTopicOperator, PulsarResetCursorOperator
from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.policies import PulsarSetPoliciesOperator
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from airflow_provider_pulsar.operators.spark_submit import PulsarSparkSubmitMixin
from airflow_provider_pulsar.sensors.message import MessageSensor
from airflow_provider_pulsar.sensors.schema import SchemaSensor
from airflow_provider_pulsar.sensors.topic import TopicSensor
from airflow_provider_pulsar.transfers.pulsar_to_sql import PulsarToSqlOperator
from airflow_provider_pulsar.transfers.sql_to_pulsar import SqlToPulsarOperator
from pulsar_native import AdminClient, Client, InitialPosition
from support.brokers import Broker, NewTopic
from support.consuming import fill
from support.publish_tasks import read_all, texts
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
        (PublishOperator, {"messages": ["a"]}, "properties", "was given by expand"),
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
SQL = {"sql_conn_id": "shop"}
TABLE = {"subscription": "s", "table": "t", "columns": ["a"]}


@pytest.mark.parametrize(
    ("operator", "options", "name", "value"),
    [
        (ConsumeBatchOperator, {**CONSUME, "max_messages": TEMPLATE}, "max_messages", None),
        (ConsumeBatchOperator, {**CONSUME, "process": lambda manifest, more: None}, "process", lambda a, b: None),
        (PublishOperator, {"messages": TEMPLATE}, "messages", None),
        (PublishOperator, {"messages": TEMPLATE}, "messages", 5),
        (PublishOperator, {"messages": ["a"], "key_field": "k"}, "messages", ["a"]),
        (PublishOperator, {"messages": ["a"], "properties": TEMPLATE}, "properties", None),
        (PublishOperator, {"messages": ["a"], "properties": TEMPLATE}, "properties", ""),
        (PublishOperator, {"messages": ["a"], "properties": TEMPLATE}, "properties", 0),
        (PublishOperator, {"messages": ["a"], "op_kwargs": TEMPLATE}, "op_kwargs", None),
        (PublishOperator, {"messages": ["a"], "op_kwargs": TEMPLATE}, "op_kwargs", 7),
        (SqlToPulsarOperator, {**SQL, "sql": "SELECT 1", "properties": TEMPLATE}, "properties", None),
        (SqlToPulsarOperator, {**SQL, "sql": "SELECT 1", "parameters": TEMPLATE}, "parameters", None),
        (_PublishDecoratedOperator, {"python_callable": list, "properties": TEMPLATE}, "properties", None),
        (PulsarCreateTopicOperator, {}, "topic", None),
        (PulsarResetCursorOperator, {"subscription": "s", "position": TEMPLATE}, "position", "foo"),
        (PulsarSetPoliciesOperator, {"message_ttl_seconds": 5}, "topic", " "),
        (PulsarSparkLoadOperator, {**LOAD, "commits": TEMPLATE}, "commits", ""),
        (TopicSensor, {"messages": TEMPLATE}, "messages", "x"),
    ],
    ids=[
        *("limit", "process", "messages-none", "messages-number", "message"),
        *("properties-none", "properties-empty", "properties-number", "op-kwargs-none", "op-kwargs-number"),
        *("sql-properties", "sql-parameters", "decorator-properties", "topic"),
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


class OwnSubmit(PulsarSparkSubmitMixin, SparkSubmitOperator):
    """Operator of a DAG's author."""


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        (PublishOperator, {"topic": "t", "messages": None}),
        (ConsumeBatchOperator, {"topic": "t", **CONSUME, "subscription_type": "Sharde"}),
        (PulsarCreateTopicOperator, {"topic": "t", "partitions": -1}),
        (PulsarResetCursorOperator, {"topic": "t", "subscription": "s"}),
        (PulsarSetPoliciesOperator, {"topic": "t", "message_ttl_seconds": -1}),
        (PulsarSparkLoadOperator, {"topic": "t", **LOAD, "value_format": "jsn"}),
        (OwnSubmit, {"application": "/a.py", "conf": 5}),
        (MessageSensor, {"topic": "t", "subscription": "s", "match": {"nope": 1}}),
        (TopicSensor, {"topic": "t", "messages": 0}),
        (TopicSensor, {"topic": "https://t"}),
        (SchemaSensor, {"topic": "t", "schema_type": "nope"}),
        (SqlToPulsarOperator, {"topic": "t", **SQL, "sql": "SELECT 1", "fetch_size": 0}),
        (PulsarToSqlOperator, {"topic": "t", **SQL, **TABLE, "columns": []}),
        (PulsarToSqlOperator, {"topic": "t", **SQL, **TABLE, "state_table": 5}),
        (_PublishDecoratedOperator, {"topic": "t", "python_callable": list, "messages": ["a"]}),
        (_ConsumeDecoratedOperator, {"topic": "t", "subscription": "s", "python_callable": list, "process": list}),
        (_SparkDecoratedOperator, {"python_callable": print, "config_kwargs": 5}),
    ],
    ids=[
        *("publish", "consume", "create-topic", "reset-cursor", "policies", "load", "submit"),
        *("message-sensor", "topic-sensor", "topic-name", "schema-sensor", "from-sql", "to-sql", "state-table"),
        *("publish-task", "consume-task", "spark-task"),
    ],
)
def test_constructor_wrong_argument_is_not_retried(operator: Any, options: dict[str, Any]) -> None:
    """The worker calls it for a mapped task, and whoever parses the DAG for any other."""
    with pytest.raises(ArgumentRefused) as refused:
        operator(task_id="a_task", **options)
    assert isinstance(refused.value, ValueError) and isinstance(refused.value, AirflowFailException)


def test_constructor_value_error_of_author_passes() -> None:
    class Own(TopicSensor):
        def __init__(self, *, region: str, **kwargs: Any) -> None:
            if not region:
                raise ValueError("the service names no region")
            super().__init__(topic=f"a/b/{region}", **kwargs)

    with pytest.raises(ValueError, match="no region") as failed:
        Own(task_id="a_task", region="")
    assert not isinstance(failed.value, AirflowFailException)
    with pytest.raises(ArgumentRefused, match="messages"):
        Own(task_id="a_task", region="eu", messages=0)


def test_mapped_wrong_argument_fails_in_one_try(airflow_home: Path) -> None:
    dag = dag_in(
        airflow_home,
        "mapped_to_wrong",
        """
        @task
        def wrong(value):
            return [value]

        tries = dict(topic="t", retries=2, retry_delay=datetime.timedelta(0))
        PublishOperator.partial(task_id="publish", **tries).expand(messages=wrong(None))
        TopicSensor.partial(task_id="wait", **tries).expand(messages=wrong(0))
        MessageSensor.partial(task_id="match", subscription="s", **tries).expand(match=wrong({"nope": 1}))
        ConsumeBatchOperator.partial(task_id="take", subscription="s", inline=True, **tries).expand(
            subscription_type=wrong("Sharde")
        )
        """,
    )
    tried = {ti.task_id: (str(ti.state), ti.try_number) for ti in dag.test().get_task_instances() if ti.map_index >= 0}
    assert tried == dict.fromkeys(("publish", "wait", "match", "take"), ("failed", 1))


def test_undefined_native_template_fails_in_one_try(airflow_home: Path) -> None:
    """An undefined template can be iterated: as `messages` it was an empty list, and as a part of one a message."""
    dag = dag_in(
        airflow_home,
        "native_undefined",
        """
        dag.render_template_as_native_obj = True
        tries = dict(topic="t", retries=2, retry_delay=datetime.timedelta(0))
        PublishOperator(task_id="messages", messages="{{ params.typo }}", **tries)
        PublishOperator(task_id="part", messages=["a", {"n": "{{ params.typo }}"}], **tries)
        MessageSensor(task_id="match", subscription="s", match={"key": "{{ params.typo }}"}, **tries)
        ConsumeBatchOperator(task_id="path", subscription="s", path="{{ params.typo }}", **tries)
        PulsarSparkLoadOperator(task_id="load", output_path="{{ params.typo }}", since="last_success", **tries)
        """,
    )
    tried = {ti.task_id: (str(ti.state), ti.try_number) for ti in dag.test().get_task_instances()}
    assert tried == dict.fromkeys(("messages", "part", "match", "path", "load"), ("failed", 1))


def test_undefined_template_names_what_is_missing() -> None:
    env = NativeEnvironment(undefined=StrictUndefined)
    made = PublishOperator(
        task_id="a_task", topic="t", messages="{{ params.typo }}", render_template_as_native_obj=True
    )
    with pytest.raises(ArgumentRefused, match=r"params\.typo }}' is undefined: 'dict object' has no attribute 'typo'"):
        made.render_template_fields({"params": {}}, env)  # type: ignore[typeddict-item]
    made.messages = "{{ params.typo | default([1]) }}"
    made.render_template_fields({"params": {}}, env)  # type: ignore[typeddict-item]
    assert made.messages == [1]


TEXTS = ["line\n", "a\r\nb", "1.50", "True", "", "'quoted'", {"price": "1.10"}]


@pytest.mark.usefixtures("pulsar_conn")
@pytest.mark.parametrize("native", [False, True])
def test_text_without_template_is_unchanged(native: bool, airflow_home: Path, broker: Broker, topic: NewTopic) -> None:
    """Jinja drops a newline at the end, and native rendering reads a text as a literal of Python."""
    name = topic()
    dag = dag_in(
        airflow_home,
        f"plain_texts_{native}",
        f"""
        dag.render_template_as_native_obj = {native}
        messages = [*{TEXTS!r}, "{{{{ task.task_id }}}}", "{{% if True %}}yes{{% endif %}}{{# no #}}"]
        PublishOperator(
            task_id="publish", topic={name!r}, messages=messages, properties={{"version": "1"}}, deduplicate=False
        )
        """,
    )
    run = dag.test()
    assert states_of(run) == {"publish": "success"}
    found = read_all(broker, name)
    assert [each.data().decode() for each in found] == [*TEXTS[:-1], '{"price":"1.10"}', "publish", "yes"]
    assert {each.properties()["version"] for each in found} == {"1"}
    assert not any(each.has_null_value() for each in found)


@pytest.mark.parametrize(
    ("text", "options", "rendered"),
    [
        pytest.param(
            "[[ params.a ]]", {"variable_start_string": "[[", "variable_end_string": "]]"}, "1", id="variable"
        ),
        pytest.param("% set b = 2\n{}", {"line_statement_prefix": "%"}, "{}", id="statement"),
        pytest.param("// a\nb", {"line_comment_prefix": "//"}, "\nb", id="comment"),
        pytest.param("% {{ params.a }}", {}, "% 1", id="default"),
    ],
)
def test_template_of_other_delimiters_is_rendered(text: str, options: dict[str, Any], rendered: str) -> None:
    made = PublishOperator(task_id="a_task", topic="t", messages=[text, "[ \n"])
    made.render_template_fields({"params": {"a": 1}}, Environment(**options))  # type: ignore[typeddict-item]
    assert made.messages == [rendered, "[ \n"]


def test_template_file_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "plain.sql").write_text("select 1\n")
    made = SqlToPulsarOperator(task_id="a_task", sql_conn_id="shop", sql="plain.sql", topic="t")
    made.render_template_fields({}, Environment(loader=FileSystemLoader(tmp_path)))  # type: ignore[typeddict-item]
    assert made.sql == "select 1"


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
        PublishOperator.partial(task_id="named", messages=["named"], **publish).expand(properties=values())
        """,
    )
    states = states_of(dag.test())
    failed = [*(f"{name}[{index}]" for name in ("each", "wait", "take") for index in (0, 1)), "some[0]", "named[0]"]
    assert {name: state for name, state in states.items() if "[" in name} == {
        **dict.fromkeys(failed, "failed"),
        # Of properties, an empty mapping means none.
        **dict.fromkeys(["some[1]", "named[1]"], "success"),
    }
    assert sorted(texts(broker, plain)) == ["named", "sent"]
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
