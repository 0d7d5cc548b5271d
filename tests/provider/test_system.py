"""The example DAGs of tests/system as they are printed in the documentation, each run by real Airflow.

Rule: a file is run as it is. Its short topic names are those of a namespace of the test, the default of the connection.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from environments import ROOT
from pulsar_native import AdminClient, Client
from support.brokers import Broker
from support.publish_tasks import read_all
from support.tasks import clear_and_run, states_of, xcom_of

SYSTEM = ROOT / "tests" / "system"


@pytest.fixture
def space(
    namespace: Callable[[], str], admin: AdminClient, broker: Broker, connection: Callable[..., str]
) -> Callable[[str], str]:
    """Give a function that returns a topic's name in the test's namespace, the default of the connection."""
    name = namespace()
    admin.set_deduplication(name, True)
    connection(service_url=broker.service_url, admin_url=broker.admin_url, default_namespace=name)
    return lambda topic: f"persistent://{name}/{topic}"


@pytest.fixture
def example(airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Give a function that returns an example's DAG; its files are below `tmp_path`."""
    monkeypatch.setenv("EXAMPLES_FOLDER", str(tmp_path))

    def load(name: str) -> Any:
        path = airflow_home / "dags" / f"{name}.py"
        shutil.copy(SYSTEM / f"{name}.py", path)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.dag

    return load


def put(client: Client, topic: str, values: list[Any]) -> None:
    """Publish values as JSON, an entry each."""
    producer = client.create_producer(topic)
    for value in values:
        producer.send(json.dumps(value).encode())
    producer.close()


def values_in(broker: Broker, topic: str) -> list[Any]:
    """Return the JSON values in a topic."""
    return [json.loads(message.data()) for message in read_all(broker, topic)]


def test_example_files_are_all_run() -> None:
    here = Path(__file__)
    files = (here, here.with_name("test_system_airflow.py"), here.parent / "operators" / "test_spark_submit.py")
    tests = "".join(path.read_text() for path in files)
    assert [path.stem for path in SYSTEM.glob("*.py") if f'"{path.stem}"' not in tests] == []


@pytest.mark.proves("A30")
def test_example_dead_letters_are_mended(
    example: Callable[[str], Any], space: Callable[[str], str], client: Client, broker: Broker, admin: AdminClient
) -> None:
    payments = space("payments")
    put(client, payments, [{"cents": 100}, {"cents": "250"}, {"cents": None}, {"cents": 1.0}])
    dag = example("example_dead_letter_triage")
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    assert xcom_of(run, "book")["errors"]["dead_letters"] == 3
    # No other one, whose backlog nobody reads.
    assert admin.subscriptions(space("payments-dead")) == ["triage"]
    assert values_in(broker, payments)[4:] == [{"cents": 250}, {"cents": 1}]
    again = dag.test()
    assert (xcom_of(again, "book")["count"], xcom_of(again, "book")["errors"]["dead_letters"]) == (2, 0)


def test_example_fan_out_publishes_once(
    example: Callable[[str], Any], space: Callable[[str], str], broker: Broker
) -> None:
    dag = example("example_fan_out_publish")
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    assert xcom_of(run, "total") == 300
    again = clear_and_run(dag, run)
    assert set(states_of(again).values()) == {"success"}, states_of(again)
    for region, last in (("north", 110), ("south", 90), ("west", 100)):
        found = values_in(broker, space(f"prices-{region}"))
        assert len(found) == 100 and found[-1] == {"item": 100, "price": last}


def test_example_transaction_bills_each_order_once(
    example: Callable[[str], Any], space: Callable[[str], str], client: Client, broker: Broker, admin: AdminClient
) -> None:
    waiting, invoices = space("orders-to-bill"), space("invoices")
    # The last order cannot be billed: its batch is aborted, with every invoice of it.
    put(client, waiting, [*({"id": n, "count": n % 5, "price": 3} for n in range(120)), {"id": 120}])
    dag = example("example_transaction")
    dag.task_dict["invoice"].retries = 0
    assert states_of(dag.test()) == {"invoice": "failed"}
    assert [each["order"] for each in values_in(broker, invoices)] == list(range(100))
    assert admin.subscriptions(invoices) == ["accounting"]
    backlog = admin.stats(waiting)["subscriptions"]["invoicing"]["msgBacklog"]
    assert backlog == 21
    # Without the order that stops it, the rest is billed, and nothing twice.
    consumer = client.subscribe(waiting, "invoicing")
    for _ in range(backlog):
        message = consumer.receive(10_000)
        if json.loads(message.data()) == {"id": 120}:
            consumer.acknowledge(message)
    consumer.close()
    run = dag.test()
    assert (states_of(run), xcom_of(run, "invoice")) == ({"invoice": "success"}, 20)
    assert [each["order"] for each in values_in(broker, invoices)] == list(range(120))


def test_example_gate_holds_a_bad_batch(
    example: Callable[[str], Any], space: Callable[[str], str], client: Client, broker: Broker, admin: AdminClient
) -> None:
    readings, checked = space("readings"), space("readings-checked")
    put(client, readings, [{"celsius": n % 40} for n in range(100)])
    dag = example("example_quality_gate")
    run = dag.test()
    assert states_of(run) == {"take": "success", "pass_on": "success"}
    assert values_in(broker, checked) == [{"celsius": n % 40} for n in range(100)]
    assert admin.stats(checked)["subscriptions"]["dashboard"]["msgBacklog"] > 0
    put(client, readings, [{"celsius": 999 if n % 10 == 0 else 20} for n in range(50)])
    run = dag.test()
    assert states_of(run) == {"take": "failed", "pass_on": "upstream_failed"}
    assert admin.stats(readings)["subscriptions"]["gate"]["msgBacklog"] == 50
    assert len(values_in(broker, checked)) == 100


def test_example_sql_reaches_parquet(
    example: Callable[[str], Any],
    space: Callable[[str], str],
    tmp_path: Path,
    connection: Callable[..., str],
    admin: AdminClient,
) -> None:
    # As installed: a cleared task publishes all messages again.
    admin.set_deduplication(space("").removeprefix("persistent://").rstrip("/"), False)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, total REAL, day TEXT)")
        rows = [(n, f"c{n % 7}", n / 4, "2026-01-01" if n % 2 else "2026-01-02") for n in range(1000)]
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
        shop.commit()
    connection("shop", conn_type="sqlite", host=str(tmp_path / "shop.db"))
    dag = example("example_sql_to_parquet")
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    found = pq.read_table(tmp_path / "orders" / "day=2026-01-01" / "orders.parquet")
    assert found.num_rows == 500
    assert Counter(found["__key"].to_pylist()) == Counter(f"c{n % 7}".encode() for n in range(1, 1000, 2))
    # What a cleared run publishes again is no part of the next run of the day.
    for again in (clear_and_run(dag, run), dag.test()):
        assert set(states_of(again).values()) == {"success"}, states_of(again)
        assert pq.read_table(tmp_path / "orders" / "day=2026-01-01" / "orders.parquet").num_rows == 500
    none = dag.test(run_conf={"day": "2026-01-03"})
    assert set(states_of(none).values()) == {"success"}, states_of(none)
    assert pq.read_table(tmp_path / "orders" / "day=2026-01-03" / "orders.parquet").num_rows == 0
