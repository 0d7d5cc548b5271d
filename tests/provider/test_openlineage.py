"""OpenLineage events of tasks that really ran, read from the file its transport wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk.lineage import get_hook_lineage_collector

from airflow_provider_pulsar import openlineage
from airflow_provider_pulsar.hooks.pulsar import PulsarHook
from airflow_provider_pulsar.lineage import event_extra
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from airflow_provider_pulsar.transfers.pulsar_to_sql import PulsarToSqlOperator
from airflow_provider_pulsar.transfers.sql_to_pulsar import SqlToPulsarOperator
from support.brokers import Broker, NewTopic
from support.spark_submits import RecordedSubmit
from support.tasks import dag_in, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")

DEFINITION = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": ["null", "long"]}]}


def test_openlineage_of_sql_transfers(
    monkeypatch: pytest.MonkeyPatch, topic: NewTopic, connection: Callable[..., str]
) -> None:
    connection("shop", conn_type="postgres", host="db.example", port=5433, schema="shop")
    monkeypatch.setattr(PostgresHook, "get_openlineage_default_schema", lambda _: "public")
    name, by = topic(), {"task_id": "t", "sql_conn_id": "shop"}
    load = PulsarToSqlOperator(**by, topic=name, subscription="s", table="sales.orders", columns=("n",))
    publish = SqlToPulsarOperator(**by, topic=name, sql="SELECT a.n FROM orders a JOIN sales.items b ON a.n = b.n")
    found = load.get_openlineage_facets_on_start()
    assert [each.name for each in found.inputs] == [f"persistent://public/default/{name.rpartition('/')[2]}"]
    assert [(each.namespace, each.name) for each in found.outputs] == [
        ("postgres://db.example:5433", "shop.sales.orders")
    ]
    load._lineage.succeed(load, {}, PulsarHook(), {"topics": [name], "count": 3, "rows": 3})
    found = load.get_openlineage_facets_on_complete(None)
    assert found.outputs[0].outputFacets["outputStatistics"].rowCount == 3
    found = publish.get_openlineage_facets_on_start()
    assert [each.name for each in found.inputs] == ["shop.public.orders", "shop.sales.items"]
    assert len(found.outputs) == 1
    # A database that tells nothing leaves the topic.
    connection("shop", conn_type="sqlite", host="/tmp/shop.db")
    assert not load.get_openlineage_facets_on_start().outputs


@pytest.mark.proves("A23")
def test_openlineage_events_of_publish_and_consume(
    airflow_home: Path,
    tmp_path: Path,
    broker: Broker,
    topic: NewTopic,
    openlineage_events: Callable[[str], list[dict[str, Any]]],
) -> None:
    name, path, source = topic(), tmp_path / "batch.jsonl", tmp_path / "rows.jsonl"
    source.write_text('{"n": 1}\n{"n": 2}\n')
    dag = dag_in(
        airflow_home,
        "openlineage_topics",
        f"""
        publish = PublishOperator(
            task_id="publish", topic={name!r}, file={str(source)!r}, schema="json", schema_definition={DEFINITION!r}
        )
        consume = ConsumeBatchOperator(
            task_id="consume", topic={name!r}, subscription="s", path={str(path)!r}
        )

        def broken():
            yield {{"n": 3}}
            raise RuntimeError("the source broke")

        failing = PublishOperator(task_id="failing", topic={name!r}, messages=broken, deduplicate=False)

        @task
        def own():
            from airflow_provider_pulsar.hooks.pulsar import PulsarHook
            PulsarHook().report_lineage(written=[{name!r}])

        publish >> consume >> [failing, own()]
        """,
    )
    # A process of a task has a collector of its own; here it would be full of what other tests have done.
    get_hook_lineage_collector.cache_clear()
    run = dag.test()
    assert states_of(run) == {"publish": "success", "consume": "success", "failing": "failed", "own": "success"}
    events = {
        (event["job"]["name"].partition(".")[2], event["eventType"]): event for event in openlineage_events(dag.dag_id)
    }
    dataset = (broker.service_url, name)

    start, done = events["publish", "START"], events["publish", "COMPLETE"]
    assert names(start["inputs"]) == names(done["inputs"]) == [("file", str(source))]
    assert names(start["outputs"]) == names(done["outputs"]) == [dataset]
    (written,) = done["outputs"]
    assert [(each["name"], each["type"]) for each in written["facets"]["schema"]["fields"]] == [("n", "null | long")]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 2
    facet = done["run"]["facets"]["pulsar"]
    assert facet["connection"] == "pulsar_default" and facet["result"]["stored"] == 2
    assert [part["last"] for part in facet["partitions"].values()] == [
        part["last"] for part in xcom_of(run, "publish")["partitions"].values()
    ]

    done = events["consume", "COMPLETE"]
    assert names(done["inputs"]) == [dataset] and names(done["outputs"]) == [("file", str(path))]
    assert done["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 2
    assert done["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert done["run"]["facets"]["pulsar"]["result"]["subscription"] == "s"

    failed = events["failing", "FAIL"]
    assert names(failed["outputs"]) == [dataset]
    assert failed["run"]["facets"]["pulsar"]["result"]["count"] == 1
    assert failed["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1
    # Of the task without operator methods it is the hook that has told, beside what earlier tasks of this process did.
    assert dataset in names(events["own", "COMPLETE"]["outputs"])


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return namespace and name of each dataset of an event."""
    return [(each["namespace"], each["name"]) for each in datasets]


@pytest.mark.proves("A23")
def test_openlineage_events_of_spark_loads(
    airflow_home: Path,
    tmp_path: Path,
    broker: Broker,
    openlineage_events: Callable[[str], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    result = {"status": "done", "exit_code": 0, "rows": 3, "partitions": 1, "path": "/data/out", "manifest": "/none"}
    ends = {"good": f"echo '{json.dumps({'pulsar_load': result})}'", "bad": "exit 1"}
    environments = {name: str(RecordedSubmit(tmp_path / name, then).environment) for name, then in ends.items()}
    dag = dag_in(
        airflow_home,
        "openlineage_loads",
        f"""
        for name, environment in {environments!r}.items():
            PulsarSparkLoadOperator(
                task_id=name, topic="orders", output_path="/data/out", interval="all", spark_environment=environment
            )
        """,
    )
    run = dag.test()
    assert states_of(run) == {"good": "success", "bad": "failed"}
    events = {
        (event["job"]["name"].partition(".")[2], event["eventType"]): event for event in openlineage_events(dag.dag_id)
    }
    assert set(events) == {("good", "START"), ("good", "COMPLETE"), ("bad", "START"), ("bad", "FAIL")}
    for event in events.values():
        assert names(event["inputs"]) == [(broker.service_url, "persistent://public/default/orders")]
        assert names(event["outputs"]) == [("file", "/data/out")]
    (written,) = events["good", "COMPLETE"]["outputs"]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert events["good", "COMPLETE"]["run"]["facets"]["pulsar"]["result"]["rows"] == 3
    assert "outputStatistics" not in events["bad", "FAIL"]["outputs"][0].get("outputFacets", {})


@pytest.mark.proves("A23")
def test_openlineage_of_spark_load(broker: Broker) -> None:
    operator = PulsarSparkLoadOperator(
        task_id="load",
        topic="orders",
        output_path="s3://bucket/orders/hour=1/",
        interval="all",
        value_schema="customer STRING, price DECIMAL(10, 2), more STRUCT<a: INT, b: STRING>",
    )
    start = operator.get_openlineage_facets_on_start()
    (read,), (written,) = start.inputs, start.outputs
    assert (read.namespace, read.name) == (broker.service_url, "persistent://public/default/orders")
    assert (written.namespace, written.name) == ("s3://bucket", "orders/hour=1")
    columns = [(field.name, field.type) for field in written.facets["schema"].fields]
    assert columns == [("customer", "STRING"), ("price", "DECIMAL(10, 2)"), ("more", "STRUCT<a: INT, b: STRING>")]
    assert not written.outputFacets and not start.run_facets
    operator._lineage.result = {"rows": 7, "partitions": 2, "manifest": "s3://bucket/m.json", "path": "s3://bucket/o"}
    done = operator.get_openlineage_facets_on_complete(None)
    assert done.outputs[0].outputFacets["outputStatistics"].rowCount == 7
    assert done.run_facets["pulsar"].result == {"rows": 7, "manifest": "s3://bucket/m.json"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/a.jsonl", ("file", "/data/a.jsonl")),
        ("file:///data/a/", ("file", "/data/a")),
        ("s3://key@bucket/a/b", ("s3://bucket", "a/b")),
        ("gs://bucket", ("gs://bucket", "/")),
        ("abfss://raw@a.dfs.core.windows.net/t/", ("abfss://raw@a.dfs.core.windows.net", "t")),
        ("wasbs://raw:key@a.blob.core.windows.net/t", ("wasbs://raw@a.blob.core.windows.net", "t")),
        ("/data/run#1?/a", ("file", "/data/run#1?/a")),
        ("s3://bucket/run#1?/a", ("s3://bucket", "run#1?/a")),
    ],
)
def test_openlineage_path_name(path: str, name: tuple[str, str]) -> None:
    assert openlineage.path_name(path) == name


def test_openlineage_avro_fields() -> None:
    definition = (
        '{"type": "record", "name": "R", "fields": ['
        '{"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},'
        '{"name": "l", "type": {"type": "array", "items": "int"}}]}'
    )
    assert openlineage.avro_fields(definition) == [("t", "timestamp-millis"), ("l", "array")]
    assert openlineage.avro_fields("{broken") == openlineage.avro_fields(None) == []
    assert openlineage.avro_fields({"fields": [{"type": "int"}, {"name": "n", "type": "int"}]}) == [("n", "int")]


@pytest.mark.parametrize(
    ("ddl", "fields"),
    [
        ("a INT COMMENT 'x, y', b STRING", [("a", "INT"), ("b", "STRING")]),
        ('m MAP<STRING, INT> comment "a < b\\", c", z INT', [("m", "MAP<STRING, INT>"), ("z", "INT")]),
        ("s STRUCT<a: INT COMMENT 'x > y', b: INT>", [("s", "STRUCT<a: INT, b: INT>")]),
        ("`a, <``b` INT, c INT", [("a, <`b", "INT"), ("c", "INT")]),
    ],
)
def test_openlineage_ddl_fields_quoted_text(ddl: str, fields: list[tuple[str, str]]) -> None:
    assert openlineage.ddl_fields(ddl) == fields


@pytest.mark.parametrize("part", [{"count": 1}, None])
def test_lineage_partition_without_ids(part: object) -> None:
    result, ids = {"count": 1, "partitions": {"t": part}}, {"t": {"first": None, "last": None}}
    facet: Any = openlineage.lineage("c", result).run_facets["pulsar"]
    assert facet.partitions == event_extra(result)["ids"] == ids


def test_event_extra_of_a_load_has_ids_of_its_manifest() -> None:
    result = {"rows": 3, "partitions": 2, "manifest": "/m.json", "path": "/p"}
    ids = {"t-partition-0": {"first": "1:0", "last": "1:2", "rows": 3}}
    extra = event_extra(result, ids)
    assert extra == {"count": 3, "ids": {"t-partition-0": {"first": "1:0", "last": "1:2"}}, "manifest": result}
    assert event_extra(result)["ids"] == {}


def test_event_extra_is_bounded() -> None:
    parts = {str(number): {"count": 1, "first": "1:0", "last": "1:0"} for number in range(1500)}
    extra = event_extra({"count": 1500, "partitions": parts, "messages": [1] * 1500, "errors": {"count": 0}})
    assert len(extra["ids"]) == 1000 and extra["manifest"] == {"count": 1500, "partitions": 1500}


@pytest.mark.parametrize(("number", "is_listed"), [(1000, True), (1001, False)], ids=["listed", "counted"])
def test_event_extra_files_are_bounded(number: int, is_listed: bool) -> None:
    """A batch of thousands of files or topics makes no event of megabytes, which Airflow's database keeps."""
    files = [{"path": f"/out/x.part-{each:05}.jsonl", "count": 1, "size": 9} for each in range(number)]
    result = {"count": number, "path": "/out/x.jsonl", "files": files, "topics": [f"t{each}" for each in range(number)]}
    manifest = event_extra(result)["manifest"]
    assert manifest == (result if is_listed else {**result, "files": number, "topics": number})
