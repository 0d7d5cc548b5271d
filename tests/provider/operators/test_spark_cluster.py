"""Loads and users' applications on a real Spark standalone cluster: drivers started by REST, credentials as files."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralTimeout, TaskDeferred

import py_files
from airflow_provider_pulsar import credentials_file
from airflow_provider_pulsar.hooks.spark_rest import DriverStatus, SparkRestServer
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from airflow_provider_pulsar.operators.spark_submit import PulsarSparkSubmitMixin
from airflow_provider_pulsar.triggers.spark import SparkDriverTrigger
from environments import ROOT
from pulsar_native import Client
from support.brokers import Broker, NewTopic
from support.consuming import fill
from support.spark_cluster import JAVA_CONF, SparkCluster
from support.tasks import StateStore, context_of, dag_in, states_of, xcom_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("pulsar_conn")]
SPARK = ROOT / ".envs" / "spark"
OPTIONS: dict[str, Any] = {
    "interval": "all",
    "value_schema": "n INT",
    "conn_id": "standalone",
    "driver_memory": "512m",
    "executor_memory": "512m",
    "conf": {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.pyspark.python": str(SPARK / "bin" / "python"),
        **JAVA_CONF,
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Give a cluster whose master has its REST server: a worker for the driver, one for the executor."""
    (home,) = SPARK.glob("lib/python3*/site-packages/pyspark")
    folder = tmp_path_factory.mktemp("standalone")
    made = SparkCluster(folder, home=home, python=SPARK / "bin" / "python", rest=True)
    try:
        yield made.start()
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def standalone(cluster: SparkCluster, connection: Callable[..., str]) -> SparkRestServer:
    """Define the connection to the cluster, and give the master's REST server."""
    host, _, port = cluster.url.removeprefix("spark://").partition(":")
    extra = {"deploy-mode": "cluster", "rest-port": cluster.rest_port}
    connection("standalone", conn_type="spark", host=f"spark://{host}", port=int(port), **extra)
    return SparkRestServer([f"http://127.0.0.1:{cluster.rest_port}"])


@pytest.fixture
def filled(client: Client, topic: NewTopic) -> str:
    """Give a topic with the numbers to 99."""
    name = topic(partitions=2)
    fill(client, name, [json.dumps({"n": n}) for n in range(100)], batch=10)
    return name


def load(topic: str, path: Path, **options: Any) -> PulsarSparkLoadOperator:
    """Return the operator."""
    return PulsarSparkLoadOperator(task_id="a_task", topic=topic, output_path=str(path), **OPTIONS | options)


def numbers(path: Path) -> list[int]:
    """Return the numbers loaded, sorted."""
    return sorted(pq.read_table(path, columns=["n"])["n"].to_pylist())


@pytest.mark.proves("A28")
def test_load_deferred_until_the_driver_is_done(
    standalone: SparkRestServer, filled: str, airflow_home: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    dag = dag_in(
        airflow_home,
        "spark_standalone",
        f"""
        from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
        PulsarSparkLoadOperator(
            task_id="load", topic={filled!r}, output_path={str(path)!r}, deferrable=True, **{OPTIONS!r}
        )
        """,
    )
    run = dag.test()
    assert states_of(run) == {"load": "success"}
    assert (xcom_of(run, "load")["rows"], numbers(path)) == (100, list(range(100)))


@pytest.mark.slow
@pytest.mark.proves("A28")
def test_load_retry_attaches_to_the_running_driver(
    standalone: SparkRestServer, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, store = tmp_path / "out", StateStore()
    created: list[str] = []
    real = SparkRestServer.create

    def counted(*args: Any) -> str:
        created.append(real(*args))
        return created[-1]

    monkeypatch.setattr(SparkRestServer, "create", counted)

    def dies(*_: object) -> None:
        raise RuntimeError("the worker died")

    with monkeypatch.context() as patch:
        patch.setattr(SparkRestServer, "status", dies)
        with pytest.raises(RuntimeError, match="the worker died"):
            load(filled, path).execute(context_of(store=store))
    result = load(filled, path).execute(context_of(store=store))
    assert (result["rows"], len(created), numbers(path)) == (100, 1, list(range(100)))
    assert standalone.status(created[0]).state == "FINISHED"


@pytest.mark.slow
@pytest.mark.proves("A28")
def test_load_of_changed_topic_replaces_driver(
    standalone: SparkRestServer,
    client: Client,
    topic: NewTopic,
    filled: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong, path, store = topic(partitions=1), tmp_path / "out", StateStore()
    fill(client, wrong, [json.dumps({"n": n}) for n in range(500, 510)], batch=10)

    def dies(*_: object) -> None:
        raise RuntimeError("the worker died")

    with monkeypatch.context() as patch:
        patch.setattr(SparkRestServer, "wait", dies)
        with pytest.raises(RuntimeError, match="the worker died"):
            load(wrong, path).execute(context_of(store=store))
    first = store["spark_job_id"]
    result = load(filled, path).execute(context_of(store=store))
    assert (result["rows"], numbers(path)) == (100, list(range(100)))
    assert standalone.status(first).state == "KILLED"


@pytest.mark.slow
@pytest.mark.proves("A28")
def test_load_of_unknown_driver_is_submitted_again(standalone: SparkRestServer, filled: str, tmp_path: Path) -> None:
    # As after a restart of the master without recovery.
    store = StateStore({"spark_job_id": "driver-20260101000000-0000", "pulsar_load": {"attempt": "a"}})
    assert standalone.status(store["spark_job_id"]).state == "NOT_FOUND"
    result = load(filled, tmp_path / "out").execute(context_of(store=store))
    assert (result["rows"], store) == (100, {})


@pytest.mark.slow
@pytest.mark.proves("A28")
def test_load_of_a_failed_driver_fails(standalone: SparkRestServer, filled: str, tmp_path: Path) -> None:
    operator = load(filled, tmp_path / "out", deferrable=True, value_schema="n NOTHING")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(store=(store := StateStore())))
    trigger = deferred.value.trigger
    path, arguments = trigger.serialize()
    assert path.endswith("SparkDriverTrigger")
    event = asyncio.run(anext(SparkDriverTrigger(**arguments).run()))  # type: ignore[arg-type]
    assert event.payload["state"] in ("FAILED", "ERROR")
    with pytest.raises(AirflowException, match=rf"its driver {arguments['driver_id']} ended as (FAILED|ERROR)"):
        operator.execute_complete(context_of(store=store), event.payload, **deferred.value.kwargs or {})
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.proves("A28", "A29")
def test_load_killed_while_deferred_ends_the_driver(standalone: SparkRestServer, filled: str, tmp_path: Path) -> None:
    operator = load(filled, tmp_path / "out", deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(store=StateStore()))
    trigger = deferred.value.trigger
    asyncio.run(trigger.on_kill())
    deadline = time.monotonic() + 30
    driver_id = trigger.serialize()[1]["driver_id"]
    while standalone.status(driver_id).is_active:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert standalone.status(driver_id).state == "KILLED"


@pytest.mark.slow
@pytest.mark.proves("A28", "A29")
def test_load_deferred_timeout_ends_the_driver(standalone: SparkRestServer, filled: str, tmp_path: Path) -> None:
    operator = load(filled, tmp_path / "out", deferrable=True, execution_timeout=timedelta(milliseconds=1))
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(store=(store := StateStore())))
    event = asyncio.run(anext(deferred.value.trigger.run()))  # type: ignore[call-overload]
    with pytest.raises(TaskDeferralTimeout, match=r"longer than execution_timeout .*: it was killed"):
        operator.execute_complete(context_of(store=store), event.payload, **deferred.value.kwargs or {})
    assert standalone.wait(event.payload["driver_id"], 0.1).state == "KILLED"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.proves("A27", "S2")
def test_load_in_cluster_mode_with_the_packages_as_a_zip(
    standalone: SparkRestServer, filled: str, tmp_path: Path
) -> None:
    code = "import pathlib, sys, support.spark_cluster as c; print(c.bare_python(pathlib.Path(sys.argv[1])))"
    made = subprocess.run(
        [str(SPARK / "bin" / "python"), "-c", code, str(tmp_path / "bare")],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/tests:{ROOT}/dev"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    conf = {**OPTIONS["conf"], "spark.pyspark.python": made.stdout.strip()}
    with pytest.raises(AirflowException, match=r"ended as (FAILED|ERROR)"):
        load(filled, tmp_path / "none", conf=conf).execute(context_of(store=StateStore()))
    zipped = py_files.build(tmp_path / "py-files" / "pulsar.zip")
    result = load(filled, tmp_path / "out", conf=conf, py_files=str(zipped)).execute(context_of(store=StateStore()))
    assert (result["rows"], numbers(tmp_path / "out")) == (100, list(range(100)))


def test_load_secret_is_not_given_to_the_master(
    standalone: SparkRestServer, cluster: SparkCluster, connection: Callable[..., str], broker: Broker, tmp_path: Path
) -> None:
    connection(service_url=broker.service_url, auth_method="token", token="very.secret")
    with pytest.raises(AirflowFailException, match="spark_credentials_ref"):
        load("any", tmp_path / "out").execute(context_of())
    assert "very.secret" not in (cluster.folder / "master.log").read_text()
    with pytest.raises(AirflowException, match=r"spark\.master\.rest\.enabled=true"):
        SparkRestServer(["http://127.0.0.1:1"]).status("driver-1")


# ---- applications of users -------------------------------------------------------------------------------------------

_APPLICATION = """
import json, sys
from pyspark.sql import SparkSession
from pyspark_pulsar import connection_options

topic, path = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
options = connection_options(spark)
rows = spark.read.format("pulsar").options(**options).option("topic", topic).load().count()
with open(path, "w") as file:
    json.dump({"rows": rows, "reference": options.get("credentialsRef")}, file)
spark.stop()
"""


class Application(PulsarSparkSubmitMixin, SparkSubmitOperator):
    """SparkSubmitOperator with a Pulsar connection."""


def application(topic: str, folder: Path, conn_id: str) -> Application:
    """Return the operator of an application that writes what it found to the file `found` of a folder."""
    (folder / "job.py").write_text(_APPLICATION)
    options = {name: OPTIONS[name] for name in ("driver_memory", "executor_memory", "conf")}
    return Application(
        task_id="job",
        application=str(folder / "job.py"),
        application_args=[topic, str(folder / "found")],
        conn_id=conn_id,
        spark_environment=str(SPARK),
        **options,
    )


@pytest.mark.proves("A27")
def test_application_on_a_cluster_gets_the_secret_as_a_file(
    cluster: SparkCluster, connection: Callable[..., str], broker: Broker, filled: str, tmp_path: Path
) -> None:
    host, _, port = cluster.url.removeprefix("spark://").partition(":")
    connection("client_mode", conn_type="spark", host=f"spark://{host}", port=int(port))
    connection(service_url=broker.service_url, auth_method="token", token="very.secret")
    application(filled, tmp_path, "client_mode").execute(context_of())
    found = json.loads((tmp_path / "found").read_text())
    kind, _, name = found["reference"].partition(":")
    # A reference that no task could resolve would have failed it.
    assert (found["rows"], kind) == (100, "file")
    assert not (credentials_file.folder() / name).exists()


@pytest.mark.proves("A27", "A28")
def test_cluster_mode_uses_credentials_of_the_workers(
    standalone: SparkRestServer, connection: Callable[..., str], broker: Broker, filled: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("very.secret")
    connection(service_url=broker.service_url, token="other", spark_credentials_ref=f"file:{token}")
    operator, store = application(filled, tmp_path, "standalone"), StateStore()
    operator.execute(context_of(store=store))
    assert json.loads((tmp_path / "found").read_text()) == {"rows": 100, "reference": f"file:{token}"}
    assert standalone.status(operator._hook._driver_id).state == "FINISHED"
    # A cleared run submits again.
    assert store == {}


def test_application_of_a_failed_driver_fails(
    standalone: SparkRestServer,
    connection: Callable[..., str],
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    connection(service_url=broker.service_url)
    states = iter([DriverStatus("RUNNING"), DriverStatus("FAILED", "out of memory")])
    monkeypatch.setattr(SparkRestServer, "create", lambda *_: "driver-1")
    monkeypatch.setattr(SparkRestServer, "status", lambda *_: next(states))
    with pytest.raises(RuntimeError, match="driver-1 exited with status FAILED"):
        application("any", tmp_path, "standalone").execute(context_of(store=StateStore()))
    assert "out of memory" in caplog.text + capfd.readouterr().out
