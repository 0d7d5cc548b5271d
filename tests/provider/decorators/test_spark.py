"""`@task.pulsar_spark` on a real Spark Connect server, which runs in Spark's own environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.decorators.spark import pulsar_spark_task
from airflow_provider_pulsar.hooks.pulsar import PulsarHook
from airflow_provider_pulsar.task_client import TaskKilled
from environments import ROOT
from pulsar_native import Client
from pyspark_pulsar import connection_options
from support.brokers import Broker, NewTopic
from support.tasks import context_of, dag_in, states_of, xcom_of
from support.until import wait_until

_SPARK = ROOT / ".envs" / "spark"
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what a session of Spark Connect sets for its process: another Spark of this process would obey it."""
    # A main module without a file, as xdist's workers have, is taken for PySpark's own doctests, and the process ends.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    kept = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(scope="module")
def connect_port(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[int]:
    """Run a Spark Connect server for this file, whose configuration names the broker, and give its port."""
    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    home = next(_SPARK.glob("lib/python3*/site-packages/pyspark"))
    python = str(_SPARK / "bin" / "python")
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.pulsar.service.url": broker.service_url,
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--class", _SERVER]
    command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    env = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "spark-internal"], env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_listening(port, server, folder / "log")
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(20)


def wait_listening(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + 120
    while True:
        assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)


@pytest.mark.spark
@pytest.mark.proves("A7")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pulsar_conn")
def test_task_spark_reads_topic_with_connection(
    connect_port: int, airflow_home: Path, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": connect_port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_REMOTE", json.dumps(spark))
    name = topic()
    producer = client.create_producer(name)
    for number in range(3):
        producer.send(str(number).encode())
    producer.close()
    dag = dag_in(
        airflow_home,
        "decorated_spark",
        f"""
        @task.pulsar_spark(conn_id="spark_remote")
        def numbers(factor, spark, pulsar, ti):
            frame = spark.read.format("pulsar").options(**pulsar).option("topic", {name!r}).load()
            found = [int(bytes(row.value)) for row in frame.select("value").collect()]
            return {{"found": sorted(factor * each for each in found), "task": ti.task_id}}

        numbers(factor=10)
        """,
    )
    run = dag.test()
    assert states_of(run) == {"numbers": "success"}
    assert xcom_of(run, "numbers") == {"found": [0, 10, 20], "task": "numbers"}


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.timeout(600)
def test_connection_options_of_a_connect_session(
    connect_port: int, client: Client, topic: NewTopic, broker: Broker
) -> None:
    from pyspark.sql import SparkSession

    name = topic()
    client.create_producer(name).send(b"1")
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{connect_port}").getOrCreate()
    try:
        options = connection_options(spark)
        rows = spark.read.format("pulsar").options(**options).option("topic", name).load().count()
    finally:
        spark.stop()
    assert (options, rows) == ({"service.url": broker.service_url}, 1)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pulsar_conn")
def test_task_spark_coroutine_function_runs(
    connect_port: int, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": connect_port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_REMOTE", json.dumps(spark))
    dag = dag_in(
        airflow_home,
        "decorated_spark_coroutine",
        """
        @task.pulsar_spark(conn_id="spark_remote")
        async def counted(spark, pulsar):
            return spark.range(3).count()

        counted()
        """,
    )
    run = dag.test()
    assert states_of(run) == {"counted": "success"}
    assert xcom_of(run, "counted") == 3


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pulsar_conn")
def test_task_spark_killed_commits_nothing(connect_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    spark = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": connect_port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_REMOTE", json.dumps(spark))
    target = tmp_path / "written"

    @pulsar_spark_task(conn_id="spark_remote")
    def slow(spark: Any) -> None:
        waits = "java_method('java.lang.Thread', 'sleep', 500L)"
        spark.sql(f"select {waits} as waited from range(0, 40, 1, 1)").write.parquet(str(target))

    operator = slow().operator
    operator.op_args, operator.op_kwargs = [], {}

    ended = threading.Event()

    def kill() -> None:
        wait_until(lambda: ended.is_set() or list(target.rglob("*.parquet")), 240)
        os.kill(os.getpid(), signal.SIGUSR1)

    # As Airflow does it at SIGTERM, in the thread that waits for Spark.
    kept = signal.signal(signal.SIGUSR1, lambda *_: operator.on_kill())
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(TaskKilled, match="the task was killed"):
            operator.execute(context_of())
    finally:
        ended.set()
        killer.join()
        signal.signal(signal.SIGUSR1, kept)
    # The server has one core: it is free when the work has ended.
    after = SparkSession.builder.remote(f"sc://127.0.0.1:{connect_port}").getOrCreate()
    try:
        assert after.range(0, 3, 1, 1).count() == 3
    finally:
        after.stop()
    assert not (target / "_SUCCESS").exists()


class Session:
    """A session of a server that does not answer."""

    def __init__(self) -> None:
        self.stopped, self.released = threading.Event(), threading.Event()
        self.dataSource = SimpleNamespace(register=lambda source: None)

    def interruptAll(self) -> None:
        """Wait for the server."""
        self.released.wait(60)
        raise OSError("the server is away")

    def stop(self) -> None:
        """End the session."""
        self.stopped.set()


def nothing(spark: Any) -> None:
    """Do nothing."""


def test_task_spark_kill_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_pulsar.decorators.spark._KILL_SECONDS", 0.1)
    operator, session = pulsar_spark_task(nothing)().operator, Session()
    operator.on_kill()
    operator._session = session
    operator.on_kill()
    assert not session.stopped.is_set()
    session.released.set()
    assert session.stopped.wait(20)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, pulsar_conn: Any) -> Callable[[Callable[[Any], Any]], Any]:
    """Return a function that returns a task's operator; its argument is called with it before the task's function."""
    from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator

    def operator_of(before: Callable[[Any], Any]) -> Any:
        def connect(self: Any) -> Any:
            before(self)
            return self.python_callable(spark=Session())

        monkeypatch.setattr(PySparkOperator, "execute_callable", connect)
        return pulsar_spark_task(nothing)().operator

    return operator_of


def test_task_spark_killed_before_session_runs_nothing(connected: Any) -> None:
    with pytest.raises(TaskKilled):
        connected(lambda operator: operator.on_kill()).execute_callable()


def test_task_spark_error_after_kill_names_the_kill(connected: Any) -> None:
    def ended(operator: Any) -> None:
        operator.on_kill()
        raise ValueError("no active session")

    with pytest.raises(TaskKilled, match="the task was killed") as raised:
        connected(ended).execute_callable()
    assert isinstance(raised.value.__cause__, ValueError)


def test_task_spark_killed_after_timeout_runs_again(connected: Any) -> None:
    operator = connected(lambda operator: None)
    operator.execute_callable()
    # As Airflow does it after an execution time-out.
    operator.on_kill()
    assert operator.execute_callable() is None


def test_task_spark_generator_raises_at_parsing() -> None:
    def numbers(spark: Any) -> Iterator[int]:
        yield 1

    with pytest.raises(ValueError, match=r"the function of @task\.pulsar_spark is a generator function"):
        pulsar_spark_task(numbers)()


def test_task_spark_positional_only_raises_at_parsing() -> None:
    def numbers(spark: Any, /) -> None:
        """Do nothing."""

    with pytest.raises(ValueError, match="gives spark to its function by name: leave out the /"):
        pulsar_spark_task(numbers)()


def one(spark: Any, pulsar: Any, x: int = 0) -> None:
    """Do nothing."""


def any_names(**names: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize("function", [one, any_names])
@pytest.mark.parametrize("name", ["spark", "pulsar"])
def test_task_spark_own_parameter_given_raises(function: Any, name: str) -> None:
    with DAG("d", schedule=None), pytest.raises(ValueError, match=f"gives {name} to its function: leave it out"):
        pulsar_spark_task(function)(**{name: 1})


@pytest.mark.parametrize("name", ["spark", "pulsar"])
def test_task_spark_own_parameter_expanded_raises(name: str) -> None:
    with DAG("d", schedule=None):
        decorated: Any = pulsar_spark_task(one)
        with pytest.raises(TypeError, match=rf"expand\(\) got an unexpected keyword argument '{name}'"):
            decorated.expand(**{name: [1]})
        with pytest.raises(TypeError, match=rf"partial\(\) got an unexpected keyword argument '{name}'"):
            decorated.partial(**{name: 1})


def test_task_spark_mapped_own_parameter_raises() -> None:
    with DAG("d", schedule=None):

        @task
        def given() -> list[dict[str, int]]:
            return []

        mapped: Any = pulsar_spark_task(any_names).expand_kwargs(given())
    with pytest.raises(AirflowFailException, match="gives spark to its function"):
        mapped.operator.unmap({"op_kwargs": {"spark": 1}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"pulsar_conn_id": None}, "pulsar_conn_id must be a text", id="no_pulsar_conn_id"),
        pytest.param({"pulsar_conn_id": ["a"]}, "pulsar_conn_id must be a text", id="pulsar_conn_ids"),
        pytest.param({"conn_id": ["a"]}, "conn_id must be the id of a connection of Spark", id="conn_ids"),
    ],
)
def test_task_spark_connection_wrong_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pulsar_spark_task(**options)(nothing)()


def test_task_spark_arguments_of_other_kinds_pass() -> None:
    with DAG("d", schedule=None) as dag:

        @task
        def conn() -> str:
            return "spark_default"

        pulsar_spark_task(one, conn_id=conn())(x=1)
        pulsar_spark_task(conn_id="{{ params.spark }}", multiple_outputs=True)(any_names).partial(y=1).expand(x=[1])
        pulsar_spark_task(dict_of).override(task_id="o")()
    assert dag.get_task("o").multiple_outputs
    assert sorted(dag.task_dict) == ["any_names", "conn", "o", "one"]


def dict_of(spark: Any) -> dict[str, int]:
    """Return a dict, whose keys are XComs."""
    return {}


def test_task_spark_own_variable_is_kept(connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_CREDENTIALS", "of the user")
    conn_id = connection(service_url="pulsar://h:1", token="a-secret-token")

    @pulsar_spark_task
    def numbers(spark: Any) -> None:
        """Do nothing."""

    with numbers().operator._credentials(PulsarHook(conn_id)) as reference:
        assert reference == "env:PULSAR_CREDENTIALS"
        assert json.loads(os.environ["PULSAR_CREDENTIALS"])["token"] == "a-secret-token"
    assert os.environ["PULSAR_CREDENTIALS"] == "of the user"


@pytest.mark.proves("K6")
@pytest.mark.parametrize(
    "fields",
    [
        {"host": "spark://master", "port": 1},
        {"host": "local", "extra": {"spark.master": "spark://master:1"}},
        {"extra": {"spark.remote": "sc://master:1"}},
    ],
)
def test_task_spark_secret_for_remote_spark_is_refused(
    fields: dict[str, Any], connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_REMOTE", json.dumps({"conn_type": "spark", **fields}))
    connection(service_url=broker.service_url, token="a-secret-token")

    @pulsar_spark_task(conn_id="remote")
    def numbers(spark: Any, pulsar: Any) -> None:
        """Do nothing."""

    operator = numbers().operator
    operator.op_kwargs = {}
    with pytest.raises(AirflowException, match="spark_credentials_ref") as caught:
        operator.execute_callable()
    assert "a-secret-token" not in str(caught.value)
