"""PulsarSparkLoadOperator: the load by real Spark, and where the connection's secret is while it runs."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import pulsar_native
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from broker import Standalone
from support.brokers import NewTopic
from support.tasks import dag_in, rendered_of, states_of, xcom_of

ROOT = Path(__file__).resolve().parents[3]
SPARK_ENVIRONMENT = ROOT / ".envs" / "spark"
QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
SCHEMA = "number INT, name STRING"


def load(topic: str, output: Path, **options: Any) -> PulsarSparkLoadOperator:
    """Return the operator on Spark's environment."""
    options.setdefault("conf", QUIET)
    return PulsarSparkLoadOperator(
        task_id="load",
        topic=topic,
        output_path=str(output),
        value_schema=SCHEMA,
        spark_environment=str(SPARK_ENVIRONMENT),
        **options,
    )


def context(run_id: str = "scheduled__2026-01-01") -> Any:
    """Return what the operator needs of Airflow's context."""
    return {"run_id": run_id}


@pytest.fixture
def spark_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Define spark_default as this machine."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet path, in the order of their numbers."""
    return sorted(pq.read_table(path).to_pylist(), key=lambda row: row["number"])


def publish(client: pulsar_native.Client, topic: str, numbers: range) -> None:
    """Publish JSON rows in batches."""
    producer = client.create_producer(topic, batching_enabled=True)
    for number in numbers:
        producer.send_async(json.dumps({"number": number, "name": f"n{number}"}).encode(), None)
    producer.flush()
    producer.close()


class Watch:
    """What the process list showed of spark-submit and what it started, looked at all the time."""

    def __init__(self) -> None:
        self.command_lines: set[str] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.wait(0.05):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    except OSError:
                        continue
                    if "pulsar-load" in text or "pyspark" in text:
                        self.command_lines.add(text)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture
def secured(secure_broker: Standalone, connection: Callable[..., str]) -> Iterator[tuple[str, pulsar_native.Client]]:
    """Give the token of a connection pulsar_default to the broker that demands one, and a client."""
    token = secure_broker.token()
    connection(
        service_url=secure_broker.service_url, admin_url=secure_broker.admin_url, auth_method="token", token=token
    )
    authentication = pulsar_native.AuthenticationToken(token)
    with pulsar_native.Client(secure_broker.service_url, authentication) as client:
        yield token, client


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark_local")
@pytest.mark.proves("A27", "S17", "K6")
def test_a_load_with_a_token_that_is_nowhere_to_be_found(
    secured: tuple[str, pulsar_native.Client],
    secure_broker: Standalone,
    airflow_home: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    token, client = secured
    topic = f"persistent://public/default/load-{time.time_ns()}"
    publish(client, topic, range(50))
    between = int(time.time() * 1000) + 50
    time.sleep(0.2)
    publish(client, topic, range(50, 80))
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        **QUIET,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }
    names = {
        "topic": topic, "output": str(tmp_path / "out"), "schema": SCHEMA, "conf": conf,
        "environment": str(SPARK_ENVIRONMENT), "between": between,
    }  # fmt: skip
    dag = dag_in(
        airflow_home,
        "load_with_a_token",
        f"""
        names = {names!r}
        PulsarSparkLoadOperator(
            task_id="load", topic=names["topic"], output_path=names["output"], value_schema=names["schema"],
            conf=names["conf"], interval_end="{{{{ params.between }}}}", spark_environment=names["environment"],
            params={{"between": names["between"]}},
        )
        """,
    )
    with Watch() as watch:
        run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    loaded = rows(tmp_path / "out")
    assert [(row["number"], row["name"]) for row in loaded] == [(number, f"n{number}") for number in range(50)]
    result = xcom_of(run, "load")
    assert result["rows"] == 50 and result["path"] == str(tmp_path / "out")

    assert any("--request" in line for line in watch.command_lines), "the process list was not seen"
    printed = capfd.readouterr()
    places = {
        "process list": "\n".join(watch.command_lines),
        "task log": caplog.text + printed.out + printed.err,
        "rendered fields": json.dumps(rendered_of(run, "load"), default=str),
        "XCom": json.dumps(result),
        "Spark event log": "\n".join(path.read_text() for path in events.rglob("*") if path.is_file()),
        "manifest": Path(result["manifest"]).read_text(),
    }
    assert len(places["Spark event log"]) > 1000
    assert [place for place, text in places.items() if token in text] == []


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark_local", "pulsar_conn")
def test_a_second_try_replaces_the_path_with_the_same_rows(broker: Any, topic: NewTopic, tmp_path: Path) -> None:
    name = topic(partitions=2)
    with pulsar_native.Client(broker.service_url) as client:
        publish(client, name, range(40))
        first = load(name, tmp_path / "out").execute(context())
        # What comes later does not belong to a run that is tried again: its ends are in the manifest.
        publish(client, name, range(40, 60))
        # The range has no end of its own, so a finished run takes what is there now when it runs again.
        again = load(name, tmp_path / "out", source_options={"endingOffsets": "latest"}).execute(context("other"))
    assert (first["rows"], again["rows"]) == (40, 60)
    assert [row["number"] for row in rows(tmp_path / "out")] == list(range(60))


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark_local", "pulsar_conn")
def test_a_wrong_option_fails_without_retry_and_names_the_right_one(topic: NewTopic, tmp_path: Path) -> None:
    operator = load(topic(partitions=1), tmp_path / "out", source_options={"failOnDataLos": "true"})
    with pytest.raises(AirflowFailException, match=r"(?i)failOnDataLos.*failOnDataLoss"):
        operator.execute(context())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": "", "output_path": "/x"}, "topic"),
        ({"topic": "t", "output_path": "/x", "value_format": "jsn"}, "json"),
        ({"topic": "t", "output_path": "/x", "partition_by": "day"}, "partition_by"),
        ({"topic": "t", "output_path": "/x", "application_args": ["--request", "{}"]}, "application_args"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_read(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PulsarSparkLoadOperator(task_id="load", **arguments)


def test_an_environment_without_spark_is_named(connection: Callable[..., str], tmp_path: Path) -> None:
    connection(service_url="pulsar://127.0.0.1:1")
    operator = PulsarSparkLoadOperator(
        task_id="load", topic="t", output_path=str(tmp_path / "out"), spark_environment=str(tmp_path)
    )
    with pytest.raises(ValueError, match="spark-submit"):
        operator.execute(context())


def test_a_cluster_gets_the_secret_as_a_file_of_the_owner_alone(
    connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connection(service_url="pulsar://127.0.0.1:1", auth_method="token", token="hush-hush")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "spark://c", "port": 7}))
    # A spark-submit that only tells how it was called: no cluster is there to run on.
    folder = tmp_path / "spark" / "bin"
    folder.mkdir(parents=True)
    seen = tmp_path / "seen"
    script = folder / "spark-submit"
    script.write_text(
        "#!/bin/sh\n"
        f'printf "%s\\n" "$@" > {seen}\n'
        "prev=\n"
        'for word in "$@"; do\n'
        f'  [ "$prev" = --files ] && cp -p "$word" {seen}.file && printf "%s" "$word" > {seen}.path\n'
        '  prev="$word"\n'
        "done\n"
        "exit 1\n"
    )
    script.chmod(0o755)
    (folder / "python").symlink_to("/bin/true")
    operator = PulsarSparkLoadOperator(
        task_id="load", topic="t", output_path="/nowhere", spark_environment=str(tmp_path / "spark")
    )
    with pytest.raises(AirflowException) as failure:
        operator.execute(context())
    words = seen.read_text()
    handed = Path(f"{seen}.file")
    assert json.loads(handed.read_text()) == {"method": "token", "token": "hush-hush"}
    assert stat.S_IMODE(os.stat(handed).st_mode) == 0o600
    name = Path(f"{seen}.path").read_text()
    assert f'"credentialsRef": "file:{Path(name).name}"' in words
    assert "hush-hush" not in words and "hush-hush" not in str(failure.value)
    assert not Path(name).exists(), "the file must be gone after the task"
