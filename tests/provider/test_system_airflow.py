"""The example DAGs of tests/system by a real scheduler: event-driven, backfilled by the hour, and all others once.

Rule: a file is run as it is. Its short topic names are those of a namespace of the test, the default of the connection.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest

from environments import ROOT
from pulsar_native import AdminClient, Client, InitialPosition, TopicNotFound
from pulsar_native.admin import NotFound
from support.airflow_stack import AirflowStack
from support.brokers import Broker

SYSTEM = ROOT / "tests" / "system"


@pytest.fixture
def space(airflow: AirflowStack, namespace: Callable[[], str], broker: Broker) -> Callable[[str], str]:
    """Give a function that returns a topic's name in the test's namespace, the default of the connection."""
    name = namespace()
    airflow.define_connection(service_url=broker.service_url, admin_url=broker.admin_url, default_namespace=name)
    return lambda topic: f"persistent://{name}/{topic}"


@pytest.fixture
def warehouse(airflow: AirflowStack, tmp_path: Path) -> Iterator[Path]:
    """Give the path of a database with the table of orders, and define its connection."""
    path = tmp_path / "warehouse.db"
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE orders (id INTEGER, customer TEXT, status TEXT, message_id TEXT UNIQUE)")
    airflow.define_connection("warehouse", conn_type="sqlite", host=str(path))
    yield path
    # Watchers outlive the file of their DAG.
    airflow.metadata.rows("DELETE FROM asset_watcher")


def example(airflow: AirflowStack, name: str) -> str:
    """Write an example's file as it is into the folder of DAGs, and return the id of its DAG."""
    return airflow.write_dag_file(name, (SYSTEM / f"{name}.py").read_text())


@pytest.mark.proves("A18", "A30")
def test_example_events_load_every_order_once(
    airflow: AirflowStack, space: Callable[[str], str], warehouse: Path, client: Client, admin: AdminClient
) -> None:
    dag_id = example(airflow, "example_event_driven")
    topic = space("orders")

    def subscribed() -> bool:
        with contextlib.suppress(NotFound, TopicNotFound):
            return bool(admin.subscriptions(topic))
        return False

    airflow.processes.wait_for("the watcher's subscription", subscribed, 60)
    producer = client.create_producer(topic)

    def loaded() -> list[int]:
        with contextlib.closing(sqlite3.connect(warehouse)) as database:
            return [number for (number,) in database.execute("SELECT id FROM orders ORDER BY id")]

    for first in (0, 5):
        for number in range(first, first + 5):
            # The last one is paid: its event comes when all of them are in the topic.
            status = "paid" if number in (0, first + 4) else "open"
            producer.send(json.dumps({"id": number, "customer": "ada", "status": status}).encode())
        expected = list(range(first + 5))
        airflow.processes.wait_for(f"{len(expected)} orders", lambda wanted=expected: loaded() == wanted, 90)  # type: ignore[misc]
    assert {run.wait().state for run in airflow.runs(dag_id)} == {"success"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.proves("A27", "A30")
def test_example_hours_are_backfilled(airflow: AirflowStack, default_broker: Broker) -> None:
    # Publish times are the messages' own: this broker does not stamp entries with its own time.
    urls = {"service_url": default_broker.service_url, "admin_url": default_broker.admin_url}
    airflow.define_connection(**urls)
    airflow.define_connection("spark_default", conn_type="spark", host="local[1]")
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    with Client(default_broker.service_url) as client:
        # Holds the messages: the broker retains nothing.
        client.subscribe("measurements", "held", initial_position=InitialPosition.Earliest).close()
        producer = client.create_producer("measurements")
        for minute in (-1, 0, 59, 60, 61, 119, 120):
            at = midnight + timedelta(minutes=minute)
            with mock.patch("time.time_ns", return_value=int(at.timestamp() * 1e9)):
                producer.send(json.dumps({"sensor": str(minute), "celsius": 20.5}).encode())
        producer.close()
    dag_id = example(airflow, "example_hourly_load")
    runs = airflow.backfill(dag_id, midnight, midnight + timedelta(hours=1), timeout=400)
    assert [run.state for run in runs] == ["success", "success"]
    folder = airflow.home.parent / "examples" / "measurements"
    found = {each.name: sorted(pq.read_table(each)["sensor"].to_pylist()) for each in folder.glob("hour=2026-03-*")}
    assert found == {"hour=2026-03-01T00": ["0", "59"], "hour=2026-03-01T01": ["119", "60", "61"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.proves("A30")
def test_example_tasks_are_run_by_the_scheduler(
    airflow: AirflowStack, space: Callable[[str], str], client: Client, tmp_path: Path
) -> None:
    airflow.define_connection("spark_default", conn_type="spark", host="local[1]")
    airflow.define_connection("shop", conn_type="sqlite", host=str(tmp_path / "shop.db"))
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, total REAL, day TEXT)")
        shop.executemany("INSERT INTO orders VALUES (?, 'ada', 1.5, '2026-01-01')", [(n,) for n in range(20)])
        shop.commit()
    waiting: dict[str, list[dict[str, object]]] = {
        "payments": [{"cents": 100}, {"cents": "250"}],
        "orders-to-bill": [{"id": n, "count": n, "price": 3} for n in range(20)],
        "readings": [{"celsius": n} for n in range(20)],
        "orders": [{"customer": "ada", "amount": 1.5}, {"customer": "ada", "amount": 2}],
    }
    for topic, values in waiting.items():
        client.create_producer(space(topic)).send_many(json.dumps(value).encode() for value in values)
    tasks = {
        "example_dead_letter_triage": "book",
        "example_fan_out_publish": "total",
        "example_quality_gate": "pass_on",
        "example_spark_application": "totals",
        "example_sql_to_parquet": "lake",
        "example_transaction": "invoice",
    }
    conf = {"topic": space("orders")}
    runs = {name: airflow.run(example(airflow, name), conf=conf, wait=False) for name in tasks}
    found = {name: run.wait().succeeded().xcom(tasks[name]) for name, run in runs.items()}
    assert found["example_dead_letter_triage"]["errors"]["dead_letters"] == 1
    assert (found["example_fan_out_publish"], found["example_transaction"]) == (300, 20)
    assert (found["example_quality_gate"]["count"], found["example_sql_to_parquet"]["count"]) == (20, 20)
    totals = pq.read_table(airflow.home.parent / "examples" / "totals")
    assert totals.to_pylist() == [{"customer": "ada", "total": 3.5}]
    assert found["example_spark_application"] is None
