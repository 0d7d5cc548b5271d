"""SqlToPulsarOperator on a real broker and a real SQLite database."""

from __future__ import annotations

import json
import sqlite3
from collections import UserList
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pulsar.exceptions import ArgumentRefused
from airflow_provider_pulsar.operators.publish import PublishFailed
from airflow_provider_pulsar.transfers.sql_to_pulsar import SqlToPulsarOperator
from support.brokers import Broker, NewTopic
from support.publish_tasks import read_all
from support.tasks import StateStore, clear_and_run, context_of, dag_in, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")
NewDatabase = Callable[[str], Path]

ORDERS = """
    CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, total REAL, at TEXT, note BLOB);
    INSERT INTO orders VALUES (1, 'ada', 10.5, '2026-01-01T10:00:00', NULL), (2, 'bob', 20, '2026-01-01T11:00:00', 'x'),
        (3, 'ada', 0.25, '2026-01-02T00:00:00', NULL);
"""
SELECT = "SELECT id, customer, total, at FROM orders ORDER BY id"


def transfer(topic: str, sql: str = SELECT, **options: Any) -> SqlToPulsarOperator:
    """Return the operator; without deduplication unless asked for."""
    options.setdefault("deduplicate", False)
    return SqlToPulsarOperator(task_id="a_task", sql=sql, sql_conn_id="shop", topic=topic, **options)


def test_sql_rows_become_messages(database: NewDatabase, topic: NewTopic, broker: Broker) -> None:
    database(ORDERS)
    name = topic()
    options = {"key_field": "customer", "event_time_field": "at", "property_fields": ["id"]}
    manifest = transfer(name, fetch_size=2, **options).execute(context_of())
    assert (manifest["count"], manifest["stored"]) == (3, 3)
    messages = read_all(broker, name)
    assert json.loads(messages[0].data()) == {
        "id": 1,
        "customer": "ada",
        "total": 10.5,
        "at": "2026-01-01T10:00:00",
    }
    assert [message.partition_key() for message in messages] == ["ada", "bob", "ada"]
    assert messages[2].event_timestamp() == 1767312000000
    assert [message.properties()["id"] for message in messages] == ["1", "2", "3"]


def test_sql_rows_fit_an_avro_schema(database: NewDatabase, topic: NewTopic, broker: Broker) -> None:
    from pulsar_native import Client, MessageId
    from pulsar_native.schema import AvroSchema

    database(ORDERS)
    name = topic()
    fields = [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "bytes"]}]
    definition = {"type": "record", "name": "Order", "fields": fields}
    sql = "SELECT id, CAST(note AS BLOB) AS note FROM orders ORDER BY id"
    transfer(name, sql, schema="avro", schema_definition=definition).execute(context_of())
    with Client(broker.service_url) as client:
        reader = client.create_reader(name, MessageId.earliest, schema=AvroSchema(None, definition))
        assert [reader.read_next(5000).value() for _ in range(3)] == [
            {"id": 1, "note": None},
            {"id": 2, "note": b"x"},
            {"id": 3, "note": None},
        ]


def test_sql_parameters_reach_the_query(database: NewDatabase, topic: NewTopic) -> None:
    database(ORDERS)
    sql = "SELECT id FROM orders WHERE customer = ? AND id > ?"
    assert transfer(topic(), sql, parameters=["ada", 1]).execute(context_of())["count"] == 1
    named = "SELECT id FROM orders WHERE customer = :who"
    assert transfer(topic(), named, parameters={"who": "ada"}).execute(context_of())["count"] == 2


def test_sql_is_streamed(database: NewDatabase, topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.sqlite.hooks.sqlite import SqliteHook

    database("CREATE TABLE n (n INTEGER)")
    sizes: list[int] = []

    class Cursor(sqlite3.Cursor):
        def fetchmany(self, size: int | None = None) -> Any:
            rows = super().fetchmany(size or 1)
            sizes.append(len(rows))
            return rows

        def fetchall(self) -> Any:
            raise AssertionError("the whole result was fetched at once")

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    path = SqliteHook(sqlite_conn_id="shop").get_uri().removeprefix("sqlite:///")
    monkeypatch.setattr(SqliteHook, "get_conn", lambda self: sqlite3.connect(path, factory=Connection))
    numbers = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 2500) SELECT n FROM c"
    assert transfer(topic(), numbers, fetch_size=1000).execute(context_of())["count"] == 2500
    assert sizes == [1000, 1000, 500, 0]


def test_sql_retry_stores_each_row_once(database: NewDatabase, once: Callable[..., str], broker: Broker) -> None:
    database(ORDERS)
    name, store = once(), StateStore()
    first = transfer(name, deduplicate=True).execute(context_of(store=store))
    again = transfer(name, deduplicate=True).execute(context_of(store=store))
    assert (first["stored"], again["stored"], again["duplicates"]) == (3, 0, 3)
    assert len(read_all(broker, name)) == 3


def test_sql_changed_rows_fail_the_retry(database: NewDatabase, once: Callable[..., str], broker: Broker) -> None:
    path = database(ORDERS)
    name, store = once(), StateStore()
    transfer(name, deduplicate=True).execute(context_of(store=store))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE orders SET total = 11 WHERE id = 1")
    connection.close()
    with pytest.raises(PublishFailed, match="message"):
        transfer(name, deduplicate=True).execute(context_of(store=store))
    assert len(read_all(broker, name)) == 3
    republished = transfer(name, deduplicate=True, on_changed="republish").execute(context_of(store=store))
    assert (republished["stored"], republished["generation"]) == (3, 2)


def test_sql_error_reports_the_stored_rows(database: NewDatabase, topic: NewTopic, broker: Broker) -> None:
    database(ORDERS)
    name = topic()
    # The third row cannot be computed: SQLite finds that when it is fetched.
    sql = "SELECT id, CASE id WHEN 3 THEN json('{') ELSE total END AS total FROM orders ORDER BY id"
    with pytest.raises(PublishFailed, match="malformed JSON") as caught:
        transfer(name, sql, fetch_size=1).execute(context_of())
    # SQLite itself reads one row ahead.
    assert caught.value.manifest["stored"] == len(read_all(broker, name)) == 1


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT id, id FROM orders", "several columns named 'id'"),
        ("DELETE FROM orders WHERE id = 99", "returns no rows"),
        ("SELECT colour FROM orders", "no such column: colour"),
    ],
)
def test_sql_wrong_statement_publishes_nothing(
    sql: str, reason: str, database: NewDatabase, topic: NewTopic, broker: Broker
) -> None:
    database(ORDERS)
    name = topic()
    with pytest.raises(PublishFailed, match=reason):
        transfer(name, sql).execute(context_of())
    assert read_all(broker, name) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"messages": [1]}, "leave messages out"),
        ({"file": "a.jsonl"}, "leave file out"),
        ({"fetch_size": 0}, "fetch_size"),
        ({"sql": ["SELECT 1"]}, "sql must be the text"),
        ({"sql_conn_id": " "}, "sql_conn_id"),
        ({"key_feld": "id"}, "key_feld"),
    ],
)
def test_sql_wrong_argument_raises(options: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"task_id": "a", "topic": "t", "sql": "SELECT 1", "sql_conn_id": "shop"}
    with pytest.raises((ValueError, TypeError), match=reason):
        SqlToPulsarOperator(**given | options)


@pytest.mark.parametrize("given", ["ada", b"x", 5, True, {1}, iter([1])], ids=lambda given: type(given).__name__)
def test_sql_parameters_of_another_type_raise(given: Any, database: NewDatabase, topic: NewTopic) -> None:
    """A text would be a sequence of characters for the driver."""
    database(ORDERS)
    with pytest.raises(ArgumentRefused, match=f"parameters must be .*, not {type(given).__name__};"):
        transfer(topic(), "SELECT id FROM orders WHERE customer = ?", parameters=given).execute(context_of())


@pytest.mark.parametrize("given", [["ada"], ("ada",), UserList(["ada"])], ids=["list", "tuple", "sequence"])
def test_sql_parameters_may_be_any_sequence(given: Any, database: NewDatabase, topic: NewTopic) -> None:
    database(ORDERS)
    sql = "SELECT id FROM orders WHERE customer = ?"
    assert transfer(topic(), sql, parameters=given).execute(context_of())["count"] == 2


def test_sql_connection_of_another_type_raises(connection: Callable[..., str], topic: NewTopic) -> None:
    connection("shop", conn_type="pulsar", service_url="pulsar://127.0.0.1:1")
    with pytest.raises(ValueError, match="no database"):
        transfer(topic()).execute(context_of())


def test_sql_hook_params_of_another_type_raise(topic: NewTopic) -> None:
    with pytest.raises(ValueError, match="sql_hook_params must be a mapping"):
        transfer(topic(), sql_hook_params="x").execute(context_of())


def test_sql_task_in_a_dag(database: NewDatabase, once: Callable[..., str], broker: Broker, airflow_home: Path) -> None:
    database(ORDERS)
    name = once(partitions=2)
    (airflow_home / "dags" / "orders.sql").write_text(
        "SELECT id, customer FROM orders WHERE customer = '{{ dag.dag_id[-3:] }}' ORDER BY id\n"
    )
    dag = dag_in(
        airflow_home,
        "sql_to_pulsar_ada",
        f"""
        from airflow_provider_pulsar.transfers.sql_to_pulsar import SqlToPulsarOperator
        SqlToPulsarOperator(task_id="t", sql="orders.sql", sql_conn_id="shop", topic={name!r}, key_field="customer")
        """,
    )
    run = dag.test()
    assert states_of(run) == {"t": "success"}
    assert (xcom_of(run, "t")["stored"], xcom_of(run, "t")["deduplicated"]) == (2, True)
    again = clear_and_run(dag, run)
    assert states_of(again) == {"t": "success"}
    assert sorted(json.loads(message.data())["id"] for message in read_all(broker, name)) == [1, 3]
