"""Extra links: computed in the task, stored by Airflow, and shown from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pulsar.links.pulsar import PulsarTopicLink, SparkUILink
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.topic_url import topic_url
from support.brokers import Broker, NewTopic
from support.tasks import TaskInstance, dag_in, states_of, xcom_of

TEMPLATE = "https://console.example.org/#/{tenant}/{namespace}/{topic}?d={domain}&n={full_name}"


@pytest.mark.proves("A25")
def test_topic_link_is_stored_by_airflow(
    airflow_home: Path, broker: Broker, topic: NewTopic, connection: Callable[..., str], tmp_path: Path
) -> None:
    connection(service_url=broker.service_url, admin_url=broker.admin_url, topic_url_template=TEMPLATE)
    name = topic()
    dag = dag_in(
        airflow_home,
        "linked_topics",
        f"""
        publish = PublishOperator(
            task_id="publish", topic="{{{{ params.topic }}}}", params={{"topic": {name!r}}}, messages=[1]
        )
        consume = ConsumeBatchOperator(
            task_id="consume", topic=[{name!r}], subscription="s", path={str(tmp_path / "o.jsonl")!r}
        )
        for deferrable in (False, True):
            wait = TopicSensor(
                task_id=f"wait_{{deferrable}}", topic={name!r}, messages=1, deferrable=deferrable, poke_interval=1
            )
            publish >> wait >> consume
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}
    short = name.rpartition("/")[2]
    quoted = f"persistent%3A%2F%2Fpublic%2Fdefault%2F{short}"
    url = f"https://console.example.org/#/public/default/{short}?d=persistent&n={quoted}"
    assert [xcom_of(run, task, PulsarTopicLink().xcom_key) for task in states_of(run)] == [url] * 4


@pytest.mark.proves("A25")
def test_links_are_known_to_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    registered = ProvidersManager().extra_links_class_names
    for link in (PulsarTopicLink, SparkUILink):
        assert f"{link.__module__}.{link.__name__}" in registered
    # The scheduler reads DAGs without links, and what this process ran before may have set that.
    monkeypatch.setattr(DagSerialization, "_load_operator_extra_links", True)
    with DAG("linked") as dag:
        PublishOperator(task_id="publish", topic="t", messages=[1])
    read = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)).task_dict["publish"]
    (link,) = read.operator_extra_links
    assert (link.name, link.xcom_key) == ("Pulsar topic", "_link_PulsarTopicLink")


def test_topic_link_without_template_is_empty(connection: Callable[..., str]) -> None:
    connection(service_url="pulsar://h:1")
    key: Any = None
    assert PulsarTopicLink().get_link(PublishOperator(task_id="p", topic="t", messages=[1]), ti_key=key) == ""


@pytest.mark.parametrize("wrong", [{"topic": "a/b"}, {"pulsar_conn_id": "missing"}])
def test_topic_link_wrong_topic_or_connection_is_empty(wrong: dict[str, str], connection: Callable[..., str]) -> None:
    connection(service_url="pulsar://h:1", topic_url_template=TEMPLATE)
    key: Any = None
    operator = PublishOperator(**{"task_id": "p", "topic": "t", "messages": [1], **wrong})  # type: ignore[arg-type]
    assert PulsarTopicLink().get_link(operator, ti_key=key) == ""


def test_topic_url_encodes_each_part() -> None:
    assert topic_url("http://c/{topic}/x", "a/b/c d?e/".rstrip("/")) == "http://c/c%20d%3Fe/x"
    with pytest.raises(ValueError, match=r"unknown name \{name\}"):
        topic_url("http://c/{name}", "t")


@pytest.mark.proves("A25")
@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("INFO SparkUI: Bound SparkUI to 0.0.0.0, and started at http://driver:4040", "http://driver:4040"),
        (
            "INFO Client: \t tracking URL: https://yarn:8090/proxy/application_1_2/",
            "https://yarn:8090/proxy/application_1_2/",
        ),
        ("INFO SparkContext: nothing to see at http://elsewhere", ""),
    ],
)
def test_spark_ui_link_while_the_load_runs(
    line: str, url: str, connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    connection(service_url="pulsar://h:1")
    binaries = tmp_path / "spark" / "bin"
    binaries.mkdir(parents=True)
    result = {"pulsar_load": {"exit_code": 0, "status": "done", "rows": 0, "partitions": 0, "path": "/p"}}
    script = f"#!/bin/sh\nprintf '%s\\n' '{line}' '{json.dumps(result)}'\n".replace('": {', '":{', 1)
    (binaries / "spark-submit").write_text(script)
    (binaries / "spark-submit").chmod(0o755)
    (binaries / "python").symlink_to("/bin/true")
    operator = PulsarSparkLoadOperator(
        task_id="load",
        topic="t",
        output_path="/p",
        interval="all",
        value_format="raw",
        spark_environment=str(binaries.parent),
    )
    ti = TaskInstance()
    operator.execute({"run_id": "r", "ti": ti})  # type: ignore[arg-type,typeddict-item]  # what it needs of a context
    key: Any = None
    assert SparkUILink().get_link(operator, ti_key=key) == url
    assert ti.xcoms.get(SparkUILink().xcom_key, "") == url
