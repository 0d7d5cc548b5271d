"""PulsarSparkLoadOperator: the load by real Spark, and where the connection's secret is while it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors

import pulsar_native
from airflow_provider_pulsar import credentials_file, spark_options
from airflow_provider_pulsar.hooks.spark_rest import SparkRestServer
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from broker import Standalone
from pyspark_pulsar import options, request, tables
from support.brokers import NewTopic
from support.processes import ProcessWatch
from support.spark_submits import RecordedSubmit
from support.tasks import StateStore, TaskInstance, dag_in, rendered_of, states_of, xcom_of

ROOT = Path(__file__).resolve().parents[3]
SPARK_ENVIRONMENT = ROOT / ".envs" / "spark"
QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
SCHEMA = "number INT, name STRING"


def load(topic: str, output: Path, **options: Any) -> PulsarSparkLoadOperator:
    """Return the operator on Spark's environment."""
    options.setdefault("conf", QUIET)
    if not {"interval_start", "interval_end", "since"} & set(options):
        options.setdefault("interval", "all")
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


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_local")
@pytest.mark.proves("A27", "S17", "K6")
def test_load_never_shows_the_token(
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
            conf=names["conf"], interval_start=0, interval_end="{{{{ params.between }}}}",
            spark_environment=names["environment"], params={{"between": names["between"]}},
        )
        """,
    )
    with ProcessWatch("pulsar-load", "pyspark") as watch:
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


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_local", "pulsar_conn")
@pytest.mark.proves("A22", "A23")
def test_load_retry_replaces_path_with_same_rows(broker: Any, topic: NewTopic, tmp_path: Path) -> None:
    name, outlet, events = topic(partitions=2), Asset("x-load:out"), OutletEventAccessors()
    with pulsar_native.Client(broker.service_url) as client:
        publish(client, name, range(40))
        operator = load(name, tmp_path / "out", outlets=[outlet])
        first = operator.execute({**context(), "outlet_events": events})
        # What comes later does not belong to a run that is tried again: its ends are in the manifest.
        publish(client, name, range(40, 60))
        # The range has no end of its own, so a finished run takes what is there now when it runs again.
        again = load(name, tmp_path / "out").execute(context("other"))
    assert (first["rows"], again["rows"]) == (40, 60)
    assert [row["number"] for row in rows(tmp_path / "out")] == list(range(60))
    extra = events[outlet].extra
    assert (extra["count"], extra["manifest"]) == (40, first)
    assert set(extra["ids"]) <= {f"{name}-partition-{index}" for index in range(2)} and extra["ids"]
    done = operator.get_openlineage_facets_on_complete(None)
    assert done.outputs[0].outputFacets["outputStatistics"].rowCount == 40
    assert done.inputs[0].name == name and done.outputs[0].name == str(tmp_path / "out")


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_local", "pulsar_conn")
def test_load_wrong_request_fails_without_retry(topic: NewTopic, tmp_path: Path) -> None:
    operator = load(topic(partitions=1), tmp_path / "out", derive={"late": "nmber > 1"})
    with pytest.raises(AirflowFailException, match=r"derive\.late is not an expression of the columns: .*nmber"):
        operator.execute(context())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": "", "output_path": "/x"}, "topic"),
        ({"topic": "t", "output_path": "/x", "value_format": "jsn"}, "json"),
        ({"topic": "t", "output_path": "/x", "value_format": "auto", "value_schema": "a INT"}, "value_schema is for"),
        ({"topic": "t", "output_path": "/x", "value_mode": "PERMISSIVE"}, "value_mode needs value_format='auto'"),
        ({"topic": "t", "output_path": "/x", "corrupt_column": "c"}, "corrupt_column needs value_format='auto'"),
        ({"topic": "t", "output_path": "/x", "value_format": "auto", "value_mode": "FAIL"}, "value_mode='fail'"),
        ({"topic": "t", "output_path": "/x", "value_format": "auto", "corrupt_column": "c"}, "value_mode='PERMISSIVE'"),
        ({"topic": "t", "output_path": "/x", "output_format": "orc"}, "output_format='orc' is not known"),
        ({"topic": "t", "output_path": "/x", "output_writer": "arrow"}, "output_writer='arrow' is not known"),
        ({"topic": "t", "output_path": "/x", "table": "a.b"}, "table needs output_format"),
        ({"topic": "t", "output_path": "/x", "write_mode": "merge"}, "write_mode needs output_format"),
        ({"topic": "t", "output_path": "/x", "replace_where": "a = 1"}, "replace_where needs output_format"),
        ({"topic": "t", "output_path": "/x", "output_format": "iceberg"}, "needs table, such as"),
        ({"topic": "t", "output_path": "/x", "output_format": "delta", "write_mode": "append"}, "write_mode='append'"),
        (
            {"topic": "t", "output_path": "/x", "output_format": "delta", "write_mode": "merge", "replace_where": "a"},
            "a merge goes by message",
        ),
        ({"topic": "t", "output_path": "/x", "partition_by": "day"}, "partition_by"),
        ({"topic": "t", "output_path": "/x", "application_args": ["--request", "{}"]}, "application_args"),
        ({"topic": b"t", "output_path": "/x"}, "topic must be a text"),
        ({"topic": "t", "output_path": ["/x"]}, "output_path must be a text"),
        ({"topic": "t", "output_path": "/x", "value_format": "avro", "value_schema": {"a": 1}}, "value_schema must be"),
        ({"topic": "t", "output_path": "/x", "output_format": "delta", "table": ""}, "table must be a text"),
        ({"topic": "t", "output_path": "/x", "output_format": "delta", "replace_where": 1}, "replace_where must be"),
        ({"topic": "t", "output_path": "/x", "subscription": 5}, "subscription must be a text"),
        ({"topic": "t", "output_path": "/x", "value_format": "auto", "value_mode": True}, "value_mode='true'"),
        ({"topic": "t", "output_path": "/x", "derive": 5}, "derive must be a dict"),
        ({"topic": "t", "output_path": "/x", "partition_by": None}, "partition_by must be a list"),
        ({"topic": "t", "output_path": "/x", "metadata": 5}, "metadata must be a list"),
        ({"topic": "t", "output_path": "/x", "metadata": "__key"}, "metadata must be a list"),
        ({"topic": "t", "output_path": "/x", "source_options": ["a"]}, "source_options must be a mapping"),
        ({"topic": "t", "output_path": "/x", "source_options": {5: "x"}}, "source_options must be a mapping"),
        ({"topic": "t", "output_path": "/x", "source_options": {"a": 5}}, "source_options must be a mapping"),
        ({"topic": "t", "output_path": "/x", "source_options": 0}, "source_options must be a mapping"),
        ({"topic": "t", "output_path": "/x", "source_options": ""}, "source_options must be a mapping"),
        ({"topic": "t", "output_path": "/x", "source_options": {"Topic": "b"}}, "must not have 'Topic'"),
        ({"topic": "t", "output_path": "/x", "source_options": {"topicsPattern": "b"}}, "not have 'topicsPattern'"),
        ({"topic": "t", "output_path": "/x", "source_options": {"Service.URL": "pulsar://h"}}, "spark_service_url"),
    ],
)
def test_load_wrong_arguments_raise_at_parsing(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PulsarSparkLoadOperator(task_id="load", interval="all", **arguments)


def test_load_table_of_last_success_raises() -> None:
    with pytest.raises(ValueError, match="since='last_success' writes Parquet only"):
        load("t", Path("/x"), since="last_success", interval_start="2026-01-01", output_format="delta")


def test_load_choices_equal_the_applications() -> None:
    assert set(spark_options.VALUE_FORMATS) == set(request.FORMATS)
    assert spark_options.OUTPUT_FORMATS == tables.FORMATS
    assert spark_options.WRITE_MODES == (tables.OVERWRITE, tables.MERGE)
    assert spark_options.VALUE_MODES == (options.FAILFAST, options.DROPMALFORMED, options.PERMISSIVE)


def test_load_without_spark_names_the_package(connection: Callable[..., str], tmp_path: Path) -> None:
    connection(service_url="pulsar://127.0.0.1:1")
    operator = PulsarSparkLoadOperator(
        task_id="load", topic="t", output_path=str(tmp_path / "out"), interval="all", value_schema=SCHEMA,
        spark_environment=str(tmp_path),
    )  # fmt: skip
    with pytest.raises(ValueError, match="spark-submit"):
        operator.execute(context())


class Submitted(RecordedSubmit):
    """A spark-submit of loads that only records how it was called."""

    @property
    def request(self) -> dict[str, Any]:
        """The request of the command line."""
        found: dict[str, Any] = json.loads(self.words[self.words.index("--request") + 1])
        return found

    def operator(self, **options: Any) -> PulsarSparkLoadOperator:
        """Return the operator on this spark-submit."""
        options = {"topic": "t", "output_path": "/nowhere/out", "interval": "all", "value_schema": SCHEMA, **options}
        return PulsarSparkLoadOperator(task_id="load", spark_environment=str(self.environment), **options)


@pytest.fixture
def cluster(connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Define a connection with a token, and Spark as a cluster."""
    connection(service_url="pulsar://127.0.0.1:1", auth_method="token", token="hush-hush")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "spark://c", "port": 7}))


@pytest.mark.usefixtures("cluster")
def test_load_cluster_secret_file_is_private(tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    with pytest.raises(AirflowException) as failure:
        spark.operator().execute(context())
    handed, place = spark.file
    assert json.loads(handed.read_text()) == {"method": "token", "token": "hush-hush"}
    assert stat.S_IMODE(os.stat(handed).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(place.parent).st_mode) == 0o700
    assert spark.request["source"]["credentialsRef"] == f"file:{place.name}"
    assert "hush-hush" not in " ".join(spark.words) and "hush-hush" not in str(failure.value)
    assert not place.exists(), "the file must be gone after the task"


@pytest.mark.usefixtures("cluster")
@pytest.mark.proves("K6")
def test_load_killed_removes_credentials(tmp_path: Path) -> None:
    spark = Submitted(tmp_path, "sleep 60")
    child = os.fork()
    if child == 0:  # the task's process, which is killed while spark-submit runs
        try:
            spark.operator().execute(context())
        finally:
            os._exit(0)
    place = Path(f"{tmp_path}/seen.path")
    deadline = time.monotonic() + 60
    while not (place.exists() and place.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    left = spark.file[1]
    submitted = [int(pid) for pid in children(child)]
    assert left.exists() and submitted
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # The kernel ends spark-submit with its task: a retry finds nobody writing.
    while any(is_running(pid) for pid in submitted):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert left.exists(), "nobody could remove it"
    ours = credentials_file.write("other")
    assert not left.exists() and ours.exists(), "the next one does, and leaves those of living processes"
    credentials_file.remove_stale()
    assert ours.exists()
    ours.unlink()


def children(pid: int) -> list[str]:
    """Return the child processes of a process."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_running(pid: int) -> bool:
    """Return whether a process has not ended (one that nobody waits for has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_load_shared_credentials_folder_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / f"airflow-pulsar-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(AirflowException, match="0700"):
        credentials_file.write("secret")


# ---- the interval ----------------------------------------------------------------------------------------------------

HOUR = {"interval_start": "2026-01-01T00:00:00Z", "interval_end": "2026-01-01T01:00:00+00:00"}
WHOLE = "interval='all'"


@pytest.mark.proves("A27")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, f"interval_start and interval_end are missing: .*{WHOLE}.*CronDataIntervalTimetable"),
        ({"interval_start": "{{ data_interval_start }}"}, "interval_end is missing"),
        ({"interval_end": "{{ data_interval_end }}"}, "interval_start is missing"),
        ({**HOUR, "interval_end": HOUR["interval_start"]}, "interval is empty: .*CronDataIntervalTimetable"),
        ({"interval_start": HOUR["interval_end"], "interval_end": HOUR["interval_start"]}, "reversed"),
        ({**HOUR, "interval": "all"}, "leave out interval_start"),
        ({"interval": "whole"}, "can only be 'all'"),
        ({**HOUR, "since": "last_success"}, "leave out interval_end"),
        ({"since": "yesterday"}, "can only be 'last_success'"),
        ({**HOUR, "source_options": {"startingOffsets": "earliest"}}, "interval_start or the source option startingO"),
        ({"interval_end": "1", "source_options": {"endingTime": "2"}}, "interval_end or the source option endingTime"),
        ({**HOUR, "min_rows": -1}, "min_rows"),
    ],
)
def test_load_wrong_interval_raises_at_parsing(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PulsarSparkLoadOperator(task_id="load", topic="t", output_path="/x", **arguments)


@pytest.mark.proves("A27")
@pytest.mark.parametrize("rendered", ["", " ", "None", None])
@pytest.mark.parametrize("name", ["interval_start", "interval_end"])
def test_load_bound_rendered_empty_raises(name: str, rendered: str | None, tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    arguments = {"interval_start": "{{ a }}", "interval_end": "{{ b }}"}
    operator = spark.operator(interval=None, **arguments)
    for bound, value in (HOUR | {name: rendered}).items():
        setattr(operator, bound, value)
    with pytest.raises(ValueError, match=f"{name} is missing"):
        operator.execute(context())
    assert not (tmp_path / "seen").exists(), "nothing was submitted"


@pytest.mark.parametrize("rendered", ["", None])
@pytest.mark.parametrize(
    "name", ["topic", "output_path", "table", "replace_where", "commits", "subscription", "manifest"]
)
def test_load_argument_rendered_empty_raises(name: str, rendered: str | None, tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    more: dict[str, Any] = {"output_format": "delta", "write_mode": "merge"} if name == "table" else {}
    if name == "replace_where":
        more = {"output_format": "delta"}
    elif name == "commits":
        more = {"interval": None, "since": "last_success"}
    operator = spark.operator(**{name: "{{ a }}"}, **more)
    setattr(operator, name, rendered)
    with pytest.raises(ValueError, match=f"^{name} "):
        operator.execute(context())
    assert not (tmp_path / "seen").exists(), "nothing was submitted"


@pytest.mark.usefixtures("cluster")
def test_load_path_objects_are_accepted(tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    with pytest.raises(AirflowException):
        spark.operator(output_path=tmp_path / "out", manifest=tmp_path / "manifest").execute(context())
    assert (spark.request["output"]["path"], spark.request["manifest"]) == (f"{tmp_path}/out", f"{tmp_path}/manifest")


def test_load_bounds_rendered_equal_raise(tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    operator = spark.operator(interval=None, interval_start="{{ a }}", interval_end="{{ b }}")
    operator.interval_start = operator.interval_end = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match=r"interval is empty: .*CronDataIntervalTimetable"):
        operator.execute(context())
    since = spark.operator(interval=None, since="last_success", interval_start="{{ a }}")
    since.interval_start = ""
    with pytest.raises(ValueError, match="interval_start was rendered to ''"):
        since.execute(context())
    assert not (tmp_path / "seen").exists()


@pytest.mark.usefixtures("cluster")
def test_load_request_has_the_interval(tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    with pytest.raises(AirflowException):
        spark.operator(interval=None, interval_start=datetime(2026, 1, 1), interval_end="2026-01-01T01:00").execute(
            context()
        )
    source = spark.request["source"]
    assert source["startingTime"] == "2026-01-01T00:00:00.000+00:00"
    assert source["endingTime"] == "2026-01-01T01:00:00.000+00:00"
    more = {"since": "last_success", "subscription": "load", "min_rows": 5, "allow_empty": True}
    with pytest.raises(AirflowException):
        spark.operator(interval=None, **more).execute({**context(), "ti": TaskInstance(dag_id="d", map_index=3)})
    request = spark.request
    assert {name: request[name] for name in more} == more
    assert (request["run"], request["map_index"]) == ("scheduled__2026-01-01", 3)
    assert re.fullmatch(r"/nowhere/\.d\.load\.[0-9a-f]{16}\.commits", request["commits"])


# ---- commit log of since ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_load_commit_log_is_named_by_topic(tmp_path: Path) -> None:
    def log(topic: str = "t", dag_id: str = "d", map_index: int = -1, **options: Any) -> str:
        spark = Submitted(tmp_path / f"{time.monotonic_ns()}")
        options = {"interval": None, "since": "last_success", **options}
        with pytest.raises(AirflowException):
            spark.operator(topic=topic, **options).execute(
                {**context(), "ti": TaskInstance(dag_id=dag_id, map_index=map_index)}
            )
        return str(spark.request["commits"])

    # In another run the list of the mapped tasks may be another one, or the task not mapped.
    same = {log(map_index=index) for index in (-1, 0, 7)} | {log("persistent://public/default/t")}
    assert len(same) == 1
    others = [log("u"), log("t-partition-0"), log(dag_id="d.load"), log(output_path="/elsewhere/out")]
    assert len({*same, *others}) == 5
    assert len(Path(log(dag_id="d" * 250)).name) < 255
    assert log(map_index=3, commits="/notes/log") == "/notes/log"
    assert "/" not in log(output_path="out")
    assert log(output_path="daily/out/").startswith("daily/.d.load.")
    with pytest.raises(AirflowFailException, match="Invalid short topic name"):
        Submitted(tmp_path / "wrong").operator(topic="a/b", interval=None, since="last_success").execute(context())


@pytest.mark.usefixtures("cluster")
def test_load_path_with_a_colon_raises(tmp_path: Path) -> None:
    spark, run = Submitted(tmp_path), context("scheduled__2026-01-01T00:00:00+00:00")
    plain, advised = (
        spark.operator(output_path=f"/nowhere/run={template}")
        for template in ("{{ run_id }}", "{{ run_id | replace(':', '') }}")
    )
    plain.render_template_fields(run)
    with pytest.raises(AirflowFailException, match=r"output\.path is .* \{\{ run_id \| replace\(':', ''\) \}\}"):
        plain.execute(run)
    advised.render_template_fields(run)
    with pytest.raises(AirflowException):
        advised.execute(run)
    assert spark.request["output"]["path"] == "/nowhere/run=scheduled__2026-01-01T000000+0000"


@pytest.mark.parametrize(
    "folder",
    [
        "/w/{{ ds }}",
        "/w/{{ macros.ds_add(ds, 1) }}/a",
        "{{ data_interval_start | ts }}",
        "/w/run={{ run_id }}",
        "/w/{% if logical_date %}a{% endif %}",
        "/w/{{ ti.map_index }}",
        "/w/{{ dag_run.conf['folder'] }}",
    ],
)
def test_load_log_in_a_folder_of_the_run_raises(folder: str) -> None:
    since = {"task_id": "load", "topic": "t", "since": "last_success", "output_path": f"{folder}/out"}
    with pytest.raises(ValueError, match="another one in each run: each would load everything again"):
        PulsarSparkLoadOperator(**since)
    PulsarSparkLoadOperator(**since, commits="/w/.log")
    PulsarSparkLoadOperator(**{**since, "since": None, "interval": "all"})


@pytest.mark.parametrize(
    "path",
    [
        "/w/run={{ run_id }}",
        "/w/{{ ds }}/",
        "{{ var.value.ds }}/out",
        "{{ var.json['ts'] }}/out",
        "/w/{{ dag.dag_id }}/{{ ti.task_id }}/{{ ds }}",
        "/w/ds/{{ params.run_id }}/out",
    ],
)
def test_load_log_in_a_folder_that_stays(path: str) -> None:
    PulsarSparkLoadOperator(task_id="load", topic="t", since="last_success", output_path=path)


@pytest.mark.usefixtures("cluster")
def test_load_over_connections_has_a_log_of_each(tmp_path: Path, connection: Callable[..., str]) -> None:
    connection("eu", service_url="pulsar://127.0.0.1:1")
    connection("us", service_url="pulsar://127.0.0.1:2")
    spark, logs = Submitted(tmp_path), set()
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)):
        partial = PulsarSparkLoadOperator.partial(
            task_id="load", topic="t", output_path="/nowhere/out", since="last_success",
            value_schema=SCHEMA, spark_environment=str(spark.environment),
        )  # fmt: skip
        mapped: Any = partial.expand(pulsar_conn_id=["eu", "us"])
    for index, conn_id in ((0, "eu"), (1, "us"), (0, "us")):
        with pytest.raises(AirflowException):
            mapped.unmap({"pulsar_conn_id": conn_id}).execute(
                {**context(), "ti": TaskInstance(dag_id="d", map_index=index)}
            )
        logs.add(spark.request["commits"])
    assert len(logs) == 2


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_local", "pulsar_conn")
@pytest.mark.proves("A27")
def test_mapped_since_goes_on_when_the_list_changes(
    client: pulsar_native.Client, airflow_home: Path, tmp_path: Path, topic: NewTopic
) -> None:
    names = [topic(), topic()]
    for name in names:
        publish(client, name, range(5))
    dag = dag_in(
        airflow_home,
        "load_of_a_list",
        f"""
        @task
        def each(params, run_id):
            folder = {str(tmp_path)!r} + "/run=" + params["run"]
            return [dict(topic=name, output_path=folder + "-" + name.rpartition("/")[2]) for name in params["topics"]]

        PulsarSparkLoadOperator.partial(
            task_id="load", since="last_success", interval_start="2026-01-01", value_schema={SCHEMA!r}, conf={QUIET!r},
            spark_environment={str(SPARK_ENVIRONMENT)!r}, allow_empty=True,
        ).expand_kwargs(each())
        """,
    )

    def run(run: str, topics: list[str]) -> list[int]:
        done = dag.test(run_conf={"run": run, "topics": topics})
        assert set(states_of(done).values()) == {"success"}, states_of(done)
        return [len(rows(tmp_path / f"run={run}-{name.rpartition('/')[2]}")) for name in topics]

    assert run("a", names[1:]) == [5]
    publish(client, names[1], range(5, 7))
    assert run("b", names) == [5, 2]


@pytest.mark.usefixtures("cluster")
def test_load_request_has_values_and_table(tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    bounds = {"interval": None, "interval_start": "2026-01-01", "interval_end": "2026-01-02"}
    value = {"value_format": "AUTO", "value_mode": "permissive", "corrupt_column": "_bad"}
    table = {"output_format": "iceberg", "table": "lake.db.t", "write_mode": "overwrite", "replace_where": "hour = 1"}
    table["output_writer"] = "PyArrow"
    source = {"admin.url": "http://127.0.0.1:1"}
    with pytest.raises(AirflowException):
        spark.operator(**bounds, **value, **table, value_schema=None, source_options=source).execute(context())
    assert spark.request["value"] == {"format": "auto", "mode": "permissive", "corrupt_column": "_bad"}
    assert spark.request["output"] == {
        "path": "/nowhere/out",
        "partition_by": [],
        "writer": "pyarrow",
        "format": "iceberg",
        "table": "lake.db.t",
        "mode": "overwrite",
        "replace_where": "hour = 1",
    }
    parsed = request.LoadRequest.parse(json.dumps(spark.request))
    assert parsed.table == tables.TableOptions("iceberg", "lake.db.t", "overwrite", "hour = 1")
    assert parsed.writer == "pyarrow"
    assert parsed.value_options == {"mode": "permissive", "columnNameOfCorruptRecord": "_bad"}


# ---- secrets in options ----------------------------------------------------------------------------------------------


@pytest.mark.proves("K6")
@pytest.mark.parametrize(
    "options",
    [
        {"pulsar.client.authParams": "token:hush-hush"},
        {"PULSAR.CLIENT.AUTHPARAMS": "hush-hush"},
        {"auth-params": "hush-hush"},
        {"Token": "hush-hush"},
        {"pass_word": "hush-hush"},
        {"clientSecret": "hush-hush"},
        {"private.key": "hush-hush"},
        {"pulsar.client.tlsKeyPassphrase": "hush-hush"},
        {"credentialsRef": "hush-hush"},
        {"subscriptionPrefix": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodXNoLWh1c2gifQ.hush-hush"},
        {"service.url": "pulsar://me:hush-hush@host:6650"},
    ],
)
def test_load_secret_in_source_options_raises(options: dict[str, str], tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    with pytest.raises(ValueError, match="must not hold a secret") as refused:
        spark.operator(source_options=options)
    assert "hush-hush" not in str(refused.value)
    # The same when it is a template that has brought it.
    operator = spark.operator(source_options="{{ params.options }}")
    with pytest.raises(ValueError, match="must not hold a secret") as refused:
        operator.params = {"options": 1}
        operator.source_options = options
        operator.render_template_fields(context())
    assert "hush-hush" not in str(refused.value)
    with pytest.raises(ValueError, match="must not hold a secret"):
        operator.execute(context())
    assert not (tmp_path / "seen").exists(), "nothing was submitted"


@pytest.mark.parametrize(
    "arguments",
    [
        {"conf": {"spark.pulsar.client.authParams": "token:hush-hush"}},
        {"conf": {"spark.my.key": "hush-hush"}, "source_options": {"credentialsRef": "conf:spark.my.key"}},
        {"env_vars": {"PULSAR_TOKEN": "hush-hush"}},
    ],
)
def test_load_secret_in_spark_options_raises(arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not hold Pulsar's secrets") as refused:
        Submitted(tmp_path).operator(**arguments)
    assert "hush-hush" not in str(refused.value)


def test_load_references_of_secrets_are_accepted(tmp_path: Path) -> None:
    Submitted(tmp_path).operator(
        source_options={
            "credentialsRef": "env:PULSAR_TOKEN",
            "pulsar.client.tlsKeyFilePath": "/keys/key.pem",
            "timeSlackMs": "1000",
        },
        conf={"spark.hadoop.fs.s3a.secret.key": "not ours to judge"},
    )


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", ["credentialsRef", "CREDENTIALSREF"])
def test_load_own_source_options_win(name: str, tmp_path: Path) -> None:
    spark = Submitted(tmp_path)
    insecure = "pulsar.client.TLSALLOWINSECURECONNECTION"
    with pytest.raises(AirflowException):
        spark.operator(source_options={name: "env:MINE", insecure: "true"}).execute(context())
    source = request.LoadRequest.parse(json.dumps(spark.request)).source
    assert [option for option in source if option.lower() == "credentialsref"] == [name]
    assert (source[name], source[insecure]) == ("env:MINE", "true")
    assert "--files" not in spark.words, "the connection's secret is not handed over"


# ---- lineage ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_load_passes_openlineage_properties(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = {"type": "http", "url": "http://127.0.0.1:1"}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    line = json.dumps({"pulsar_load": {"status": "done", "exit_code": 0, "rows": 1}})
    spark = Submitted(tmp_path, f"echo '{line}'")
    dag = dag_in(
        airflow_home,
        "load_with_lineage",
        f"""
        PulsarSparkLoadOperator(
            task_id="load", topic="t", output_path="/nowhere/out", interval="all", value_schema="a INT",
            spark_environment={str(spark.environment)!r}, conf={{"spark.own": "kept"}},
            openlineage_inject_parent_job_info=True, openlineage_inject_transport_info=True,
        )
        """,
    )
    run = dag.test()
    assert states_of(run) == {"load": "success"}
    properties = spark.properties
    assert properties["spark.own"] == "kept"
    assert properties["spark.openlineage.parentJobName"] == "load_with_lineage.load"
    assert properties["spark.openlineage.rootParentJobName"] == "load_with_lineage"
    assert len(properties["spark.openlineage.parentRunId"]) == 36
    assert properties["spark.openlineage.transport.url"] == "http://127.0.0.1:1"
    assert "hush-hush" not in " ".join(spark.words)


# ---- success is what the load reports --------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_load_exit_code_0_without_result_fails(tmp_path: Path) -> None:
    with pytest.raises(AirflowException, match="printed no result"):
        Submitted(tmp_path, "exit 0").operator().execute(context())


@pytest.mark.usefixtures("cluster")
def test_load_failed_result_fails_for_any_exit_code(tmp_path: Path) -> None:
    line = json.dumps({"pulsar_load": {"status": "failed", "exit_code": 3, "error": "gone", "stage": "plan"}})
    with pytest.raises(AirflowFailException, match=r"failed at the stage 'plan': gone .*no longer in the topic"):
        Submitted(tmp_path, f"echo '{line}'; exit 0").operator().execute(context())


@pytest.fixture
def yarn(connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Define Spark as a YARN cluster whose driver runs elsewhere."""
    connection(service_url="pulsar://127.0.0.1:1")
    extra = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(extra))


@pytest.mark.usefixtures("yarn")
def test_load_cluster_mode_reads_the_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / ".out.manifest.json"
    done = {"status": "done", "rows": 7, "seconds": 1.5, "partitions": [{}, {}]}
    # As the driver does, far away: the manifest is written, nothing of its output is seen.
    attempt = """attempt=$(sed -n 's/.*"attempt": "\\([0-9a-f]*\\)".*/\\1/p' SEEN)"""
    write = f"""{attempt}; printf '%s' 'DONE' | sed "s/ATTEMPT/$attempt/" > {manifest}; exit 0"""
    write = write.replace("SEEN", str(tmp_path / "seen"))

    def spark(folder: str, then: str) -> PulsarSparkLoadOperator:
        (tmp_path / folder).mkdir()
        script = then.replace(str(tmp_path / "seen"), str(tmp_path / folder / "seen"))
        return Submitted(tmp_path / folder, script).operator(output_path=str(tmp_path / "out"), durable=False)

    for folder, then, message in (
        ("none", "exit 0", r"manifest .* cannot be read .*verify_manifest=False"),
        (
            "planned",
            write.replace("DONE", json.dumps({**done, "status": "planned", "attempt": "ATTEMPT"})),
            "'planned'",
        ),
        ("older", write.replace("DONE", json.dumps({**done, "attempt": "0"})), "written by another try"),
    ):
        with pytest.raises(AirflowException, match=message):
            spark(folder, then).execute(context())
    found = spark("done", write.replace("DONE", json.dumps({**done, "attempt": "ATTEMPT"}))).execute(context())
    assert (found["rows"], found["partitions"], found["manifest"]) == (7, 2, str(manifest))
    trusted = Submitted(tmp_path / "trusted", "exit 0").operator(durable=False, verify_manifest=False)
    assert trusted.execute(context())["status"] == "done"


_DRIVER_OF_A_TABLE = """
import json, sys
from pathlib import Path
from pyspark_pulsar.request import LoadRequest

request = LoadRequest.parse(next(line for line in Path(sys.argv[1]).read_text().splitlines() if line[0] == "{"))
done = {"status": "done", "rows": 7, "seconds": 1.5, "partitions": [{}], "attempt": request.attempt}
Path(request.manifest).write_text(json.dumps(done))
"""


@pytest.mark.usefixtures("yarn")
def test_load_cluster_mode_reads_a_tables_manifest(tmp_path: Path) -> None:
    # The name of the manifest has a digest of the request.
    (driver := tmp_path / "driver.py").write_text(_DRIVER_OF_A_TABLE)
    spark = Submitted(tmp_path, f"{sys.executable} {driver} {tmp_path}/seen")
    bounds = {"interval": None, "interval_start": "2026-01-01", "interval_end": "2026-01-02"}
    metadata = ["__publishTime"]
    operator = spark.operator(
        output_path=str(tmp_path / "out"), durable=False, output_format="delta", metadata=metadata, **bounds
    )
    found = operator.execute(context())
    assert found["rows"] == 7
    assert re.fullmatch(r"\.out-[0-9a-f]{16}\.manifest\.json", Path(found["manifest"]).name)


def test_load_deferred_reads_a_tables_manifest(
    connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Airflow goes on in another process, which has submitted nothing.
    connection(service_url="pulsar://h:1", spark_credentials_ref="env:A")
    master = {"conn_type": "spark", "host": "spark://c", "port": 7, "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(master))
    submitted: list[str] = []
    monkeypatch.setattr(SparkRestServer, "create", lambda _, words, *more: submitted.extend(words) or "driver-1")
    arguments: dict[str, Any] = {
        "topic": "t", "output_path": str(tmp_path / "out"), "output_format": "delta", "metadata": ["__publishTime"],
        "interval_start": "2026-01-01", "interval_end": "2026-01-02", "deferrable": True, "durable": False,
        "value_schema": SCHEMA,
    }  # fmt: skip
    with pytest.raises(TaskDeferred) as deferred:
        PulsarSparkLoadOperator(task_id="load", **arguments).execute(context())
    made = request.LoadRequest.parse(submitted[submitted.index("--request") + 1])
    assert made.source["credentialsRef"] == "env:A"
    done = {"status": "done", "rows": 7, "seconds": 1.5, "partitions": [{}], "attempt": made.attempt}
    Path(made.manifest).write_text(json.dumps(done))
    event = {"driver_id": "driver-1", "state": "FINISHED", "message": ""}
    found = PulsarSparkLoadOperator(task_id="load", **arguments).execute_complete(
        context(), event, **deferred.value.kwargs or {}
    )
    assert (found["rows"], found["manifest"]) == (7, made.manifest)


@pytest.mark.usefixtures("yarn")
def test_load_cleared_after_success_loads_again(tmp_path: Path) -> None:
    store = StateStore({"spark_job_id": "application_1", "k8s_driver_status": "Succeeded"})
    operator = Submitted(tmp_path, "exit 0").operator(durable=False, verify_manifest=False)
    operator.execute({**context(), "task_state_store": store})
    assert store == {}


# ---- broker down -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark_local")
@pytest.mark.proves("K10")
@pytest.mark.parametrize("silent", [False, True])
def test_load_broker_down_fails_in_time(silent: bool, connection: Callable[..., str], tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if silent:
            listener.listen(50)
        connection(service_url=f"pulsar://127.0.0.1:{listener.getsockname()[1]}", operation_timeout_seconds=3)
        started = time.monotonic()
        with pytest.raises(AirflowException, match="failed at the stage 'plan'"):
            load("t", tmp_path / "out").execute(context())
    # Starting Spark takes most of it on a busy machine.
    assert time.monotonic() - started < 120
    assert not (tmp_path / "out").exists()
