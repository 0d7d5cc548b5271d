"""The Spark load and the sensor in a real Airflow: intervals, re-runs, killed tasks, brokers that are down or forget.

The broker is one as Pulsar is installed: nothing is retained without a subscription, messages are not numbered.
"""

from __future__ import annotations

import json
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

from pulsar_native import AdminClient, Client, InitialPosition
from support.airflow_run import Run
from support.airflow_stack import AirflowStack
from support.brokers import Broker
from support.dag_blocks import dag_blocks
from support.processes import command_lines
from support.relay import NewRelay
from support.until import wait_until

pytestmark = pytest.mark.timeout(1200)

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
_LOAD = """
PulsarSparkLoadOperator(
    task_id="load",
    topic={topic!r},
    output_path={output!r},
    value_schema="number INT",
    pulsar_conn_id={conn_id!r},
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


def rows(folder: Path, pattern: str = "[!.]*") -> list[int]:
    """Return the numbers in all outputs below a folder, sorted."""
    found: list[int] = []
    for part in sorted(folder.glob(pattern)):
        found += pq.read_table(part, columns=["number"])["number"].to_pylist()
    return sorted(found)


def load_dag(
    stack: AirflowStack, dag_id: str, topic: str, output: Path, more: str, conn_id: str = "installed", **dag: str
) -> str:
    """Write a DAG of one load."""
    body = _LOAD.format(topic=topic, output=str(output), more=more, conn_id=conn_id)
    return stack.write_dag(dag_id, body, header="import os", **dag)


BOUNDS = 'interval_start="{{ data_interval_start }}", interval_end="{{ data_interval_end }}"'
HOURLY = 'CronDataIntervalTimetable("0 * * * *", timezone="UTC")'


# ---- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
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
        # Ended long ago, so the timetable itself makes no run; a paused DAG's backfill would wait.
        options="start_date=datetime.datetime(2026, 3, 1), end_date=datetime.datetime(2026, 3, 1, 23), catchup=False",
    )
    runs = stack.backfill(dag_id, MIDNIGHT, MIDNIGHT + timedelta(hours=23), timeout=1500)
    assert Counter(run.state for run in runs) == {"success": 24}
    assert rows(tmp_path) == list(range(72))
    assert len(stack.runs(dag_id)) == 24


def test_plain_hourly_schedule_raises(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
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
    before = spark_commands(topic)
    stack.kill_task(run, "load")
    run.wait().succeeded()
    assert run.tries() == {"load": 2}
    assert rows(tmp_path) == list(range(20))
    assert not list(tmp_path.glob(".out.writing*")), "what the killed try staged is removed"
    assert before and not before & command_lines(), "its Spark ended with it"


def spark_commands(topic: str) -> set[str]:
    """Return the command lines of the JVMs that run a load of the topic."""
    return {line for line in command_lines() if "SparkSubmit" in line and topic in line}


def no_spark_is_left(topic: str) -> None:
    """Wait until no JVM runs a load of the topic."""
    wait_until(lambda: not spark_commands(topic), 60)


@pytest.fixture
def stalled(stack: AirflowStack, default_broker: Broker, relay: NewRelay) -> str:
    """Give a connection whose broker does not answer: a load runs, however fast the machine loads 20 rows."""
    between = relay(default_broker.service_url)
    between.stall()
    stack.define_connection("stalled", service_url=between.service_url, admin_url=default_broker.admin_url)
    return "stalled"


def test_marked_failed_ends_the_load(stack: AirflowStack, default_broker: Broker, stalled: str, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "marked")
    publish(default_broker, topic, range(20))
    dag_id = load_dag(stack, "load_marked", topic, tmp_path / "out", 'interval="all"', stalled)
    run = stack.run(dag_id, wait=False)
    stack.wait_log(run, "load", "Spark-Submit cmd")
    stack.mark_failed(run, "load")
    run.wait()
    no_spark_is_left(topic)
    assert not (tmp_path / "out").exists()
    load_dag(stack, "load_marked", topic, tmp_path / "out", 'interval="all"')
    stack.clear(run).succeeded()
    assert rows(tmp_path) == list(range(20))


@pytest.mark.proves("A27")
def test_expired_and_deleted_loads_are_replayed(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "replayed")
    publish(default_broker, topic, range(20), lambda number: MIDNIGHT + timedelta(minutes=number))
    end = MIDNIGHT + timedelta(hours=1)
    more = f'interval_start="{MIDNIGHT.isoformat()}", interval_end="{end.isoformat()}"'
    dag_id = load_dag(stack, "load_replayed", topic, tmp_path / "out", more)
    run = stack.run(dag_id, run_id="the_run").succeeded()
    # What Airflow keeps of a load that is done is nothing; a backend that lost its rows changes nothing.
    assert not stack.task_state(run, "load")
    stack.clear(run).succeeded()
    assert run.xcom("load")["replayed"] is True and rows(tmp_path, "out") == list(range(20))
    stack.delete_run(run)
    again = stack.run(dag_id, run_id="the_run").succeeded()
    assert again.xcom("load")["replayed"] is True and rows(tmp_path, "out") == list(range(20))


@pytest.mark.proves("A27", "A29")
def test_timed_out_load_ends_and_leaves_nothing(
    stack: AirflowStack, default_broker: Broker, stalled: str, tmp_path: Path
) -> None:
    topic = new_topic(default_broker, "late")
    publish(default_broker, topic, range(20))
    more = 'interval="all", execution_timeout=datetime.timedelta(seconds=4)'
    dag_id = load_dag(stack, "load_late", topic, tmp_path / "out", more, stalled)
    run = stack.run(dag_id)
    assert run.task_states() == {"load": "failed"} and "AirflowTaskTimeout" in run.log("load")
    assert "Spark-Submit cmd" in run.log("load")
    no_spark_is_left(topic)
    assert not (tmp_path / "out").exists()
    load_dag(stack, "load_late", topic, tmp_path / "out", 'interval="all"')
    stack.clear(run).succeeded()
    assert rows(tmp_path, "out") == list(range(20))


@pytest.mark.slow
@pytest.mark.proves("A27")
def test_two_loads_at_once_leave_one_whole_output(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(default_broker, "twice")
    publish(default_broker, topic, range(20))
    # Two deployments that load the same interval into the same path do what two runs of one do.
    for name in ("one", "other"):
        stack.define_connection(
            f"installed_{name}",
            service_url=default_broker.service_url,
            admin_url=default_broker.admin_url,
            deployment_id=name,
        )
    end = datetime.now(UTC) + timedelta(seconds=1)
    more = f'interval_start="2026-01-01T00:00:00Z", interval_end="{end.isoformat()}", retries=1'
    more += ", retry_delay=datetime.timedelta(seconds=1)"
    runs = []
    for name in ("one", "other"):
        dag_id = load_dag(stack, f"load_twice_{name}", topic, tmp_path / "out", more, f"installed_{name}")
        runs.append(stack.run(dag_id, wait=False))
    for run in runs:
        run.wait(400).succeeded()
    assert rows(tmp_path, "out") == list(range(20))
    assert not list(tmp_path.glob(".out.writing*"))


# ---- a broker that forgets, a broker that is down --------------------------------------------------------------------


@pytest.mark.proves("A27")
def test_deleted_topic_fails_instead_of_zero_rows(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> None:
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
        ("consume", "look-up"),
        ("poke", "look-up"),
        ("reschedule", "look-up"),
        ("deferrable", "look-up"),
    ):
        assert f"failed at the stage '{stage}'" in run.log(task), run.log(task)[-2000:]
    assert "Waiting for the topic" in "".join(
        path.read_text() for path in run.log_files("deferrable") if "trigger" in path.name
    ), "the triggerer's log says what it sees"


# ---- the DAGs of the pages -------------------------------------------------------------------------------------------

PRINTED = {block.page: block for block in dag_blocks()}
HOURS = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(2)]


@pytest.fixture
def printed(stack: AirflowStack, default_broker: Broker, tmp_path: Path) -> Callable[[str], str]:
    """Give the function that puts a page's DAGs into Airflow, with the default connections; it returns the suffix."""
    stack.define_connection(service_url=default_broker.service_url, admin_url=default_broker.admin_url)
    stack.define_connection("spark_default", conn_type="spark", host="local[1]")

    def write(page: str) -> str:
        suffix = f"-{time.time_ns()}"
        block = PRINTED[page].moved(tmp_path, suffix)
        # No runs but those of the test.
        text = block.text.replace("catchup=False", "catchup=False, end_date=datetime(2026, 1, 1, 2)")
        stack.write_dag_file(block.dag_ids[0], text)
        return suffix

    return write


def hourly_run(stack: AirflowStack, dag_id: str, hour: datetime) -> Run:
    """Run a DAG for an hour, as its timetable would."""
    interval = (hour, hour + timedelta(hours=1))
    return stack.run(dag_id, data_interval=interval, logical_date=hour).succeeded()


def orders(hour: datetime) -> list[dict[str, object]]:
    """Return the rows of an hour of the printed DAGs."""
    return [{"customer": f"c{hour:%H}-{index}", "amount": float(index)} for index in range(100)]


def run_orders(stack: AirflowStack, name: str, suffix: str, folder: Path) -> list[Run]:
    """Run the printed DAG of this name for both hours, each with its input file."""
    runs = []
    for hour in HOURS:
        lines = [json.dumps(row) + "\n" for row in orders(hour)]
        (folder / "data" / name / f"{hour:%Y%m%dT%H%M%S}.jsonl").write_text("".join(lines))
        runs.append(hourly_run(stack, f"{name}{suffix}", hour))
        assert (runs[-1].xcom("publish")["count"], runs[-1].xcom("load")["rows"]) == (100, 100)
    return runs


def customers(paths: list[Path]) -> list[str]:
    """Return the customers in Parquet outputs, sorted."""
    return sorted(each for path in paths for each in pq.read_table(path, columns=["customer"])["customer"].to_pylist())


def test_every_printed_dag_is_run() -> None:
    # Those of the events are run by triggers/test_msg_queue_airflow.py and by test_wheels.py.
    assert {page: block.dag_ids for page, block in PRINTED.items()} == {
        "README.md": ["orders", "clicks"],
        "docs/airflow-events.md": ["large-orders"],
        "docs/airflow-operators.md": ["orders-audited"],
        "docs/getting-started/airflow.md": ["greetings"],
        "docs/getting-started/event-driven.md": ["paid-orders"],
    }
    assert len(dag_blocks()) == len(PRINTED)


@pytest.mark.proves("A27")
def test_readme_dags_run_as_printed(
    printed: Callable[[str], str], stack: AirflowStack, default_broker: Broker, tmp_path: Path
) -> None:
    suffix = printed("README.md")
    run_orders(stack, "orders", suffix, tmp_path)
    expected = sorted(str(row["customer"]) for hour in HOURS for row in orders(hour))
    assert customers(sorted((tmp_path / "warehouse" / "orders").glob("run=*"))) == expected
    # The other DAG loads what others publish, by the hour of the publish time.
    topic = f"clicks{suffix}"
    with Client(default_broker.service_url) as client:
        client.subscribe(topic, "held", initial_position=InitialPosition.Earliest).close()
        producer = client.create_producer(topic)
        for number in range(6):
            moment = HOURS[0] + timedelta(minutes=20 * number)
            with mock.patch("time.time_ns", return_value=int(moment.timestamp() * 1e9)):
                producer.send(json.dumps({"page": f"p{number}"}).encode())
    for index, hour in enumerate(HOURS):
        hourly_run(stack, f"clicks{suffix}", hour)
        output = tmp_path / "warehouse" / "clicks" / f"hour={hour:%Y%m%dT%H%M%S}"
        pages = pq.read_table(output, columns=["page"])["page"].to_pylist()
        assert sorted(pages) == [f"p{number}" for number in range(3 * index, 3 * index + 3)]


@pytest.mark.proves("A27")
def test_operators_page_dag_runs_as_printed(printed: Callable[[str], str], stack: AirflowStack, tmp_path: Path) -> None:
    suffix = printed("docs/airflow-operators.md")
    runs = run_orders(stack, "orders-audited", suffix, tmp_path)
    expected = sorted(str(row["customer"]) for hour in HOURS for row in orders(hour))
    assert customers(sorted((tmp_path / "warehouse" / "orders-audited").glob("run=*"))) == expected
    audited = [json.loads(value) for run in runs for value in audit_values(run)]
    assert sorted(row["customer"] for row in audited) == expected


def audit_values(run: Run) -> list[bytes]:
    """Return the values of the messages that the task `audit` of a run wrote."""
    manifest = run.xcom("audit")
    assert manifest["count"] == 100
    return list(pq.read_table(manifest["path"], columns=["value"])["value"].to_pylist())


def test_getting_started_dag_runs_as_printed(printed: Callable[[str], str], stack: AirflowStack) -> None:
    suffix = printed("docs/getting-started/airflow.md")
    # As the trigger button, an asset or the command line starts it, with and without a logical date.
    for date in (None, datetime.now(UTC)):
        run = stack.run(f"greetings{suffix}", logical_date=date).succeeded()
        manifest = run.xcom("consume")
        assert manifest["count"] == 1
        (line,) = Path(manifest["path"]).read_text().splitlines()
        assert json.loads(json.loads(line)["value"]) == {"text": "hello"}
