"""`@task.pulsar_publish` and `@task.pulsar_consume`: functions as tasks, run by Airflow on the real broker."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pulsar.decorators.consume import pulsar_consume_task
from airflow_provider_pulsar.decorators.publish import pulsar_publish_task
from pulsar_native import AdminClient, Client
from support.brokers import Broker, NewTopic
from support.consuming import fill
from support.publish_tasks import read_all
from support.tasks import clear_and_run, dag_in, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")


@pytest.mark.proves("A7")
def test_task_publish_and_consume_in_a_dag(
    airflow_home: Path, broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    name, parts = topic(), [topic(), topic()]
    dag = dag_in(
        airflow_home,
        "decorated_topics",
        f"""
        @task
        def count():
            return 3

        @task.pulsar_publish(topic={name!r}, key_field="n", deduplicate=False)
        def rows(count, prefix, *, run_id):
            for number in range(count):
                yield {{"n": number, "text": prefix, "run": run_id}}

        @task.pulsar_publish(topic="{{{{ params.other }}}}", params={{"other": {parts[0]!r}}}, multiple_outputs=False)
        async def later():
            return ["a", "b"]

        @task.pulsar_consume(topic={name!r}, subscription="s", decode="json")
        def bill(factor, messages, manifest, ti):
            assert manifest["count"] == len(messages)
            return {{"sum": factor * sum(each["value"]["n"] for each in messages), "task": ti.task_id}}

        @task.pulsar_consume(topic={name!r}, subscription="async")
        async def counted(messages=None):
            return len(messages)

        published = rows(count(), prefix="x")
        published >> [bill(factor=10), counted()]
        later()
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    read = read_all(broker, name)
    assert [json.loads(each.data()) for each in read] == [
        {"n": number, "text": "x", "run": run.run_id} for number in range(3)
    ]
    assert [each.partition_key() for each in read] == ["0", "1", "2"]
    assert [each.data() for each in read_all(broker, parts[0])] == [b"a", b"b"]
    assert xcom_of(run, "rows")["count"] == 3
    assert xcom_of(run, "bill") == {"sum": 30, "task": "bill"}
    manifest = xcom_of(run, "bill", "manifest")
    assert manifest["count"] == 3 and "messages" not in manifest
    assert xcom_of(run, "counted") == 3
    assert admin.stats(name, precise_backlog=True)["subscriptions"]["s"]["msgBacklog"] == 0
    # A cleared run hands the function the same messages.
    again = clear_and_run(dag, run)
    assert xcom_of(again, "bill")["sum"] == 30


@pytest.mark.proves("A7")
def test_task_consume_failing_function_acknowledges_nothing(
    airflow_home: Path, broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    name = topic()
    dag = dag_in(
        airflow_home,
        "decorated_failing",
        f"""
        @task.pulsar_publish(topic={name!r}, deduplicate=False)
        def rows():
            return [1, 2]

        @task.pulsar_consume(topic={name!r}, subscription="s")
        def bill(messages):
            raise RuntimeError("cannot bill")

        rows() >> bill()
        """,
    )
    run = dag.test()
    assert states_of(run) == {"rows": "success", "bill": "failed"}
    assert admin.stats(name, precise_backlog=True)["subscriptions"]["s"]["msgBacklog"] > 0


def test_task_consume_airflows_keys_are_text(
    client: Client, airflow_home: Path, topic: NewTopic, admin: AdminClient
) -> None:
    name = topic()
    fill(client, name, ['{"id": 1}', '{"id": 2, "__classname__": "x"}'], batch=1)
    dag = dag_in(
        airflow_home,
        "decorated_reserved",
        f"""
        common = dict(topic={name!r}, decode="json")

        @task.pulsar_consume(subscription="list", **common)
        def triage(messages):
            return [each["value"] for each in messages]

        @task.pulsar_consume(subscription="outputs", **common)
        def last(messages) -> dict:
            return messages[-1]["value"]

        triage()
        last()
        """,
    )
    run = dag.test()
    # A dict for several XComs cannot become a text, and fails before it is acknowledged.
    assert states_of(run) == {"triage": "success", "last": "failed"}
    assert xcom_of(run, "triage") == [{"id": 1}, '{"id": 2, "__classname__": "x"}']
    stats = admin.stats(name, precise_backlog=True)["subscriptions"]
    backlogs = {key: each["msgBacklog"] for key, each in stats.items()}
    assert backlogs == {"list": 0, "outputs": 2}


@pytest.mark.proves("A7")
def test_task_publish_mapped_over_inputs(airflow_home: Path, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    dag = dag_in(
        airflow_home,
        "decorated_mapped",
        f"""
        @task.pulsar_publish(topic={name!r}, deduplicate=False)
        def rows(number):
            return [number, number + 1]

        @task.pulsar_consume(topic={name!r}, subscription="all", decode="json")
        def read(messages, limit):
            return sorted(each["value"] for each in messages)[:limit]

        rows.expand(number=[10, 20]) >> read.partial(limit=3).expand_kwargs([{{}}])
        """,
    )
    run = dag.test()
    assert states_of(run) == {"rows[0]": "success", "rows[1]": "success", "read[0]": "success"}
    assert sorted(int(each.data()) for each in read_all(broker, name)) == [10, 11, 20, 21]
    assert len(xcom_of(run, "read")) == 3


def test_task_publish_call_is_checked_at_parsing() -> None:
    @pulsar_publish_task(topic="t")
    def rows(count: int) -> list[int]:
        return list(range(count))

    with pytest.raises(TypeError, match="count"):
        rows()


def test_task_consume_generator_raises_at_parsing() -> None:
    async def bill(messages: Any) -> Any:
        yield messages

    with pytest.raises(ValueError, match=r"the function of @task\.pulsar_consume is a generator function"):
        pulsar_consume_task(topic="t", subscription="s")(bill)()


def handle_any(**names: Any) -> None:
    """Do nothing."""


def handle_some(messages: Any, manifest: Any = None, limit: int = 0) -> OrderedDict[str, int]:
    """Do nothing."""
    return OrderedDict()


@pytest.mark.parametrize("function", [handle_some, handle_any])
@pytest.mark.parametrize("name", ["messages", "manifest"])
def test_task_consume_own_parameter_given_raises(function: Any, name: str) -> None:
    decorated = pulsar_consume_task(topic="t", subscription="s")(function)
    with DAG("d", schedule=None), pytest.raises(ValueError, match=f"gives {name} to its function: leave it out"):
        decorated(**{name: 1})


@pytest.mark.parametrize("name", ["messages", "manifest"])
def test_task_consume_mapped_own_parameter_raises(name: str) -> None:
    for decorated in (
        pulsar_consume_task(topic="t", subscription="s")(handle_some),
        pulsar_consume_task(handle_some, topic="t", subscription="s"),
    ):
        with DAG("d", schedule=None):
            with pytest.raises(TypeError, match=rf"expand\(\) got an unexpected keyword argument '{name}'"):
                decorated.expand(**{name: [1]})
            with pytest.raises(TypeError, match=rf"partial\(\) got an unexpected keyword argument '{name}'"):
                decorated.partial(**{name: 1})
            with pytest.raises(TypeError, match="unexpected keyword argument"):
                decorated.partial(limit=1).expand(**{name: [1]})
    # The names are known in the worker only, where they are refused before anything is received.
    with DAG("d", schedule=None):
        mapped: Any = pulsar_consume_task(topic="t", subscription="s")(handle_any).expand(**{name: [1]})
    with pytest.raises(AirflowFailException, match=f"gives {name} to its function"):
        mapped.operator.unmap({"op_kwargs": {name: 1}})


def test_task_consume_other_arguments_pass() -> None:
    with DAG("d", schedule=None) as dag:
        pulsar_consume_task(topic="t", subscription="s")(handle_some).partial(limit=1).expand_kwargs([{}])
        once: Any = pulsar_consume_task(handle_some, topic="t", subscription="s").override(task_id="once")
        once(limit=1)
        pulsar_consume_task(topic="t", subscription="s")(handle_any).expand(x=[1])
    assert sorted(dag.task_dict) == ["handle_any", "handle_some", "once"]
    # By the function's annotation, which is a text to be read where the function is.
    assert dag.get_task("once").multiple_outputs


@pytest.mark.parametrize("given", [{}, {"process": None}], ids=["left out", "none"])
def test_task_consume_default_args_leave_process_alone(given: dict[str, Any]) -> None:
    with DAG("d", schedule=None, default_args={"process": print, "max_messages": 3}):
        made = pulsar_consume_task(topic="t", subscription="s", **given)(handle_some)(limit=1).operator
    assert made.process is None and made.max_messages == 3


def test_task_consume_of_no_function_raises() -> None:
    with pytest.raises(TypeError, match="use named arguments instead"):
        pulsar_consume_task("orders")  # type: ignore[arg-type]  # as @task.pulsar_consume("orders")


@pytest.mark.parametrize(
    ("decorator", "options", "message"),
    [
        (pulsar_publish_task, {"topic": "t", "messages": [1]}, "leave messages and file out"),
        (pulsar_publish_task, {"topic": "t", "file": "/f.jsonl"}, "leave messages and file out"),
        (pulsar_consume_task, {"topic": "t", "subscription": "s", "process": print}, "leave process out"),
        (pulsar_consume_task, {"topic": "t", "subscription": "s", "path": "/f.jsonl"}, "needs inline=True"),
    ],
)
def test_task_wrong_options_raise_at_parsing(decorator: Any, options: dict[str, Any], message: str) -> None:
    def handle(messages: Any = None) -> None:
        """Do nothing."""

    with pytest.raises(ValueError, match=message):
        decorator(**options)(handle)()
