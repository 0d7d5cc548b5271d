"""The Spark load and the sensor in a real Airflow: intervals, re-runs, killed tasks, brokers that are down or forget.

The broker is one as Pulsar is installed: nothing is retained without a subscription, messages are not numbered.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest

from environments import ROOT
from pulsar_native import AdminClient, Client, InitialPosition
from support.airflow_stack import AirflowStack
from support.brokers import Broker

pytestmark = pytest.mark.timeout(600)

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
_LOAD = """
PulsarSparkLoadOperator(
    task_id="load",
    topic={topic!r},
    output_path={output!r},
    value_schema="number INT",
    pulsar_conn_id="installed",
    conn_id="spark_here",
    conf={{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}},
    spark_environment=os.environ["SPARK_ENVIRONMENT"],
    {more}
)
"""


@pytest.fixture
def stack(airflow: AirflowStack, default_broker: Broker) -> AirflowStack:
    """Give the real Airflow with connections to the broker and to Spark on this machine."""
    airflow.define_connection("installed", service_url=default_broker.service_url, admin_url=default_broker.admin_url)
    airflow.define_connection("spark_here", conn_type="spark", host="local[1]")
    return airflow


def new_topic(broker: Broker, name: str, *, held: bool = True) -> str:
    """Return a topic, held by a subscription where wanted."""
    topic = f"persistent://public/default/{name}-{time.time_ns()}"
    if held:
        with Client(broker.service_url) as client:
            client.subscribe(topic, "held", initial_position=InitialPosition.Earliest).close()
    return topic


def publish(broker: Broker, topic: str, numbers: range, at: Callable[[int], datetime] | None = None) -> None:
    """Publish numbers as JSON, each at a publish time of its own where one is given."""
    with Client(broker.service_url) as client:
        producer = client.create_producer(topic)
        for number in numbers:
            if at is None:
                producer.send(json.dumps({"number": number}).encode())
                continue
            with mock.patch("time.time_ns", return_value=int(at(number).timestamp() * 1e9)):
                producer.send(json.dumps({"number": number}).encode())
        producer.close()


def rows(folder: Path, pattern: str = "*") -> list[int]:
    """Return the numbers in all outputs below a folder, sorted."""
    found: list[int] = []
    for part in sorted(folder.glob(pattern)):
        found += pq.read_table(part, columns=["number"])["number"].to_pylist()
    return sorted(found)


def load_dag(stack: AirflowStack, dag_id: str, topic: str, output: Path, more: str, **dag: str) -> str:
    """Write a DAG of one load."""
    body = _LOAD.format(topic=topic, output=str(output), more=more)
    return stack.write_dag(dag_id, body, header="import os", **dag)


BOUNDS = 'interval_start="{{ data_interval_start }}", interval_end="{{ data_interval_end }}"'
HOURLY = 'CronDataIntervalTimetable("0 * * * *", timezone="UTC")'


# ---- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A27")
def test_hourly_runs_load_each_row_once(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "hourly")
    # Every 20 minutes, also at the very moment an hour begins.
    publish(default_broker, topic, range(12), lambda number: MIDNIGHT + timedelta(minutes=20 * number))
    dag_id = load_dag(
        stack,
        "load_hourly",
        topic,
        tmp_path / "hour={{ ts_nodash }}",
        BOUNDS,
        schedule=HOURLY,
        options="start_date=datetime.datetime(2026, 3, 1), end_date=datetime.datetime(2026, 3, 1, 2), catchup=True",
    )
    runs = stack.wait_runs(dag_id, 3, timeout=400)
    assert [run.state for run in runs] == ["success"] * 3, runs[0].report()
    assert rows(tmp_path) == list(range(9))
    assert rows(tmp_path, "hour=20260301T010000") == [3, 4, 5]
    # Cleared, a run leaves the same rows.
    stack.clear(runs[1]).succeeded()
    assert rows(tmp_path) == list(range(9))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.proves("A27")
def test_backfill_of_a_day_loads_each_row_once(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "backfill")
    publish(default_broker, topic, range(72), lambda number: MIDNIGHT + timedelta(minutes=20 * number))
    dag_id = load_dag(
        stack,
        "load_backfill",
        topic,
        tmp_path / "hour={{ ts_nodash }}",
        BOUNDS,
        schedule=HOURLY,
        options="start_date=datetime.datetime(2026, 3, 1), catchup=False",
    )
    stack.pause(dag_id)
    runs = stack.backfill(dag_id, MIDNIGHT, MIDNIGHT + timedelta(hours=23), timeout=1500)
    assert Counter(run.state for run in runs) == {"success": 24}
    assert rows(tmp_path) == list(range(72))


def test_plain_hourly_schedule_is_refused(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "plain")
    publish(default_broker, topic, range(3))
    dag_id = load_dag(
        stack, "load_plain", topic, tmp_path / "out", BOUNDS, schedule='"@hourly"', options="catchup=False"
    )
    run = stack.run(dag_id, logical_date=MIDNIGHT)
    assert run.state == "failed"
    assert "The interval is empty" in run.log("load") and "CronDataIntervalTimetable" in run.log("load")
    assert "Spark-Submit cmd" not in run.log("load") and not (tmp_path / "out").exists()


@pytest.mark.proves("A27")
def test_since_last_success_over_reruns(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "since")
    more = 'since="last_success", interval_start="2026-01-01T00:00:00Z", subscription="load"'
    dag_id = load_dag(stack, "load_since", topic, tmp_path / "run={{ run_id }}", more)
    publish(default_broker, topic, range(5))
    first = stack.run(dag_id, run_id="first").succeeded()
    publish(default_broker, topic, range(5, 10))
    stack.run(dag_id, run_id="second").succeeded()
    assert rows(tmp_path, "run=*") == list(range(10))
    # The run is forgotten with all that Airflow keeps of it, and made again: it loads what it loaded.
    stack.delete_run(first)
    shutil.rmtree(tmp_path / "run=first")
    assert stack.run(dag_id, run_id="first").succeeded().xcom("load")["replayed"]
    assert rows(tmp_path, "run=*") == list(range(10))
    # Nothing new is a success, for the last message that was loaded is still there.
    assert stack.run(dag_id, run_id="third").succeeded().xcom("load")["rows"] == 0


# ---- killed, failed, marked ------------------------------------------------------------------------------------------


@pytest.mark.proves("K6", "A27")
def test_killed_load_is_retried_with_the_same_rows(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "killed")
    publish(default_broker, topic, range(20))
    more = 'interval="all", retries=1, retry_delay=datetime.timedelta(seconds=1)'
    dag_id = load_dag(stack, "load_killed", topic, tmp_path / "out", more)
    run = stack.run(dag_id, wait=False)
    stack.wait_log(run, "load", "planned 1 topic partitions")
    before = spark_processes(dag_id)
    stack.kill_task(run, "load")
    run.wait().succeeded()
    assert run.tries() == {"load": 2}
    assert rows(tmp_path) == list(range(20))
    assert not list(tmp_path.glob(".out.writing*")), "what the killed try staged is removed"
    assert before and not any(Path(f"/proc/{pid}").exists() for pid in before), "its Spark ended with it"


def spark_processes(dag_id: str) -> list[int]:
    """Return the JVMs that run a load into the output of a test."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"SparkSubmit" in line and b"load.py" in line:
                found.append(int(entry.name))
    return found


def test_marked_failed_ends_the_load(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "marked")
    publish(default_broker, topic, range(20))
    dag_id = load_dag(stack, "load_marked", topic, tmp_path / "out", 'interval="all"')
    run = stack.run(dag_id, wait=False)
    stack.wait_log(run, "load", "Spark-Submit cmd")
    stack.mark_failed(run, "load")
    run.wait()
    deadline = time.monotonic() + 60
    while spark_processes(dag_id):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert not (tmp_path / "out").exists()
    stack.clear(run).succeeded()
    assert rows(tmp_path) == list(range(20))


# ---- a broker that forgets, a broker that is down --------------------------------------------------------------------


@pytest.mark.proves("A27")
def test_deleted_topic_is_no_green_zero(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "deleted", held=False)
    start = datetime.now(UTC)
    publish(default_broker, topic, range(5))
    end = datetime.now(UTC) + timedelta(seconds=1)
    more = f'interval_start="{start.isoformat()}", interval_end="{end.isoformat()}"'
    dag_id = load_dag(stack, "load_deleted", topic, tmp_path / "out", more)
    with AdminClient(default_broker.admin_url) as admin:
        # What the broker does by itself a minute later.
        admin.delete_topic(topic, force=True)
    run = stack.run(dag_id)
    assert run.state == "failed" and "set a retention for the namespace" in run.log("load")
    # Made again by whoever touches it, it is empty.
    new = topic
    with Client(default_broker.service_url) as client:
        client.create_producer(new).close()
    stack.clear(run)
    assert run.state == "failed" and "nothing shows that none were lost" in run.log("load", 2)
    assert not (tmp_path / "out").exists()


@pytest.mark.proves("K10")
def test_broker_down_fails_in_time_naming_the_stage(airflow: AirflowStack) -> None:
    with socket.socket() as listener:
        # One that accepts and never says a word: the worst of those that are down.
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        url = f"pulsar://127.0.0.1:{listener.getsockname()[1]}"
        airflow.define_connection("down", service_url=url, operation_timeout_seconds=3)
        airflow.write_dag(
            "broker_down",
            """
            common = {"topic": "t", "pulsar_conn_id": "down"}
            PublishOperator(task_id="publish", messages=["a"], deduplicate=False, **common)
            ConsumeBatchOperator(task_id="consume", subscription="s", inline=True, **common)
            for mode in ("poke", "reschedule"):
                TopicSensor(task_id=mode, mode=mode, timeout=10, poke_interval=1, **common)
            TopicSensor(task_id="deferrable", deferrable=True, timeout=10, poke_interval=1, **common)
            """,
        )
        started = time.monotonic()
        run = airflow.run("broker_down")
        assert time.monotonic() - started < 200
    assert set(run.task_states().values()) == {"failed"}, run.report()
    for task, stage in (
        ("publish", "connect"),
        ("consume", "subscribe"),
        ("poke", "look-up"),
        ("reschedule", "look-up"),
        ("deferrable", "look-up"),
    ):
        assert f"failed at the stage '{stage}'" in run.log(task), run.log(task)[-2000:]
    assert "Waiting for the topic" in "".join(
        path.read_text() for path in run.log_files("deferrable") if "trigger" in path.name
    ), "the triggerer's log says what it sees"


# ---- the README ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A27")
@pytest.mark.parametrize(
    ("page", "heading"), [("README.md", "A DAG"), ("docs/airflow-operators.md", "All four in one DAG")]
)
def test_printed_dag_runs_as_printed(
    page: str, heading: str, stack: AirflowStack, default_broker: Broker, tmp_path: Path
) -> None:
    found = re.search(rf"## {heading}\n+```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert found is not None
    name = f"orders-{time.time_ns()}"
    dag_id = f"printed_{heading.split()[0].lower()}_orders"
    # Only the places are this test's: the paths, the topic, the connections' names and the environment of Spark.
    program = found[1]
    for folder in ("data", "warehouse", "audit"):
        program = program.replace(f'"/{folder}/', f'"{tmp_path}/{folder}/')
    program = program.replace('topic="orders"', f'topic="{name}", pulsar_conn_id="installed"')
    program = program.replace('topic="clicks"', 'topic="no-clicks", pulsar_conn_id="installed"')
    spark = f'task_id="load", conn_id="spark_here", spark_environment={str(ROOT / ".envs" / "spark")!r}'
    program = program.replace('task_id="load"', spark)
    program = program.replace('DAG("orders"', f'DAG("{dag_id}"').replace('DAG("clicks"', f'DAG("{dag_id}_clicks"')
    # No runs but those of this test.
    program = program.replace("catchup=False", "catchup=False, end_date=datetime(2026, 1, 1, 2)")
    stack.write_dag_file(dag_id, program)
    (tmp_path / "data" / "orders").mkdir(parents=True)
    (tmp_path / "audit").mkdir()
    for number in range(2):
        hour = datetime(2026, 1, 1, number, tzinfo=UTC)
        lines = [json.dumps({"customer": f"c{number}-{index}", "amount": index}) for index in range(100)]
        (tmp_path / "data" / "orders" / f"{hour:%Y%m%dT%H%M%S}.jsonl").write_text("\n".join(lines) + "\n")
        run = stack.run(dag_id, data_interval=(hour, hour + timedelta(hours=1)), logical_date=hour).succeeded()
        assert (run.xcom("publish")["count"], run.xcom("load")["rows"]) == (100, 100)
    everything = [pq.read_table(path) for path in sorted((tmp_path / "warehouse" / "orders").glob("run=*"))]
    customers = [name for table in everything for name in table["customer"].to_pylist()]
    assert len(customers) == len(set(customers)) == 200
