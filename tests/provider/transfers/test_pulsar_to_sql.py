"""PulsarToSqlOperator on a real broker and a real SQLite database: each message once in the table, whatever fails."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.task_client import TaskKilled
from airflow_provider_pulsar.transfers import pulsar_to_sql
from airflow_provider_pulsar.transfers.pulsar_to_sql import PulsarToSqlOperator
from pulsar_native import AdminClient, Client, Consumer
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.jobs import sql_sink
from pulsar_native.jobs.receiver import BatchReceiver
from pulsar_native.schema import AvroSchema
from support.brokers import Broker, NewTopic
from support.consuming import fill
from support.publish_tasks import read_all
from support.tasks import StateStore, clear_and_run, context_of, dag_in, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")
NewDatabase = Callable[[str], Path]

TABLE = "CREATE TABLE numbers (n INTEGER NOT NULL CHECK (n >= 0), k TEXT)"


def transfer(topic: str, columns: Any = ("n",), **options: Any) -> PulsarToSqlOperator:
    """Return the operator on the subscription "sub" into the table numbers."""
    given: dict[str, Any] = {"subscription": "sub", "table": "numbers", "sql_conn_id": "shop", "decode": "json"}
    return PulsarToSqlOperator(task_id="a_task", topic=topic, columns=columns, **given | options)


def put(client: Client, topic: str, numbers: range | list[int], **options: Any) -> None:
    """Publish {"n": number} for each number."""
    fill(client, topic, [json.dumps({"n": n}) for n in numbers], **options)


def rows(path: Path, sql: str = "SELECT n FROM numbers ORDER BY rowid") -> list[Any]:
    """Return the rows of a query, single columns as values."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(sql).fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


def states(path: Path) -> set[str]:
    """Return the states of the records."""
    return set(rows(path, "SELECT state FROM airflow_pulsar_batches"))


def backlog(admin: AdminClient, topic: str) -> int:
    """Return the backlog of the subscription."""
    return int(admin.stats(topic)["subscriptions"]["sub"]["msgBacklog"])


def die_after_commit(operator: PulsarToSqlOperator, run_id: str = "a_run") -> None:
    """Run a task that loses the broker between the commit and the acknowledgement."""

    def lost(*_: object, **__: object) -> None:
        raise ConnectionResetError("the broker has gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulsar_native.jobs.consuming.acknowledge", lost)
        with pytest.raises(AirflowException, match="the broker has gone"):
            operator.execute(context_of(run_id))


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_load_batches_follow_each_other(
    database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, name = database(TABLE), topic()
    put(client, name, range(100), batch=7)
    first = transfer(name, max_messages=60, rows_per_insert=25).execute(context_of("a"))
    assert (first["table"], first["rows"], first["stop_reason"]) == ("numbers", 60, "max_messages")
    assert rows(path) == list(range(60))
    second = transfer(name).execute(context_of("b"))
    assert (second["rows"], second["stop_reason"]) == (40, "end")
    assert rows(path) == list(range(100))
    assert backlog(admin, name) == 0
    assert "path" not in second and json.dumps(second)


def test_load_columns_take_fields_and_metadata(database: NewDatabase, client: Client, topic: NewTopic) -> None:
    path = database("CREATE TABLE t (city TEXT, tags TEXT, key TEXT, at TEXT, who TEXT, id TEXT, missing TEXT)")
    name = topic()
    value = {"address": {"city": "Ulm"}, "tags": ["a", "ü"]}
    fill(
        client, name, [json.dumps(value)],
        batch=1, partition_key="k1", event_timestamp=1767312000123, properties={"who": "ada"},
    )  # fmt: skip
    columns = {
        "city": "address.city",
        "tags": "tags",
        "key": "__key",
        "at": "__eventTime",
        "who": "__messageProperties.who",
        "id": "__messageId",
        "missing": "nothing",
    }
    manifest = transfer(name, columns, table="t", allow_missing=True).execute(context_of())
    (row,) = rows(path, "SELECT * FROM t")
    (partition,) = manifest["partitions"].values()
    expected = ("Ulm", '["a", "ü"]', "k1", "2026-01-02T00:00:00.123000+00:00", "ada", partition["first"], None)
    assert row == expected


def test_load_avro_values_keep_their_types(database: NewDatabase, client: Client, topic: NewTopic) -> None:
    path, name = database("CREATE TABLE t (n INTEGER, data BLOB, half REAL)"), topic()
    fields = [{"name": "n", "type": "long"}, {"name": "data", "type": "bytes"}, {"name": "half", "type": "double"}]
    schema = AvroSchema(None, {"type": "record", "name": "R", "fields": fields})
    fill(client, name, [{"n": n, "data": bytes([n, 255]), "half": n / 2} for n in range(3)], schema=schema)
    transfer(name, ["n", "data", "half"], table="t", decode="auto").execute(context_of())
    assert rows(path, "SELECT * FROM t") == [(n, bytes([n, 255]), n / 2) for n in range(3)]


def test_load_message_without_a_field_is_a_letter(
    database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, name = database(TABLE), topic()
    fill(client, name, ['{"n": 1}', '{"m": 2}', "[3]", "no JSON", '{"n": 4}'])
    manifest = transfer(name, on_error="dead_letter").execute(context_of())
    assert (manifest["rows"], manifest["errors"]["dead_letters"], rows(path)) == (2, 3, [1, 4])
    assert "no field 'n'" in manifest["errors"]["messages"][0]["error"]
    assert admin.stats(f"{name}-sub-DLQ")["msgInCounter"] == 3
    assert backlog(admin, name) == 0


def test_load_failed_message_leaves_no_row(database: NewDatabase, client: Client, topic: NewTopic) -> None:
    path, name = database(TABLE), topic()
    fill(client, name, ['{"n": 1}', '{"m": 2}'])
    with pytest.raises(AirflowException, match=r"no field 'n'.*allow_missing"):
        transfer(name, rows_per_insert=1).execute(context_of())
    assert rows(path) == []


def test_load_text_value_names_the_decoder(database: NewDatabase, client: Client, topic: NewTopic) -> None:
    database(TABLE)
    name = topic()
    put(client, name, range(1))
    with pytest.raises(AirflowException, match="decode='json' reads JSON"):
        transfer(name, decode="auto").execute(context_of())


def test_load_replace_keeps_the_last_of_a_key(database: NewDatabase, client: Client, topic: NewTopic) -> None:
    path, name = database("CREATE TABLE t (k TEXT PRIMARY KEY, n INTEGER)"), topic()
    fill(client, name, [json.dumps({"k": str(n % 3), "n": n}) for n in range(10)])
    manifest = transfer(name, ["k", "n"], table="t", replace=True).execute(context_of())
    assert manifest["rows"] == 10
    assert rows(path, "SELECT k, n FROM t ORDER BY k") == [("0", 9), ("1", 7), ("2", 8)]


# ---- once ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A12")
def test_load_rejected_row_stores_nothing(
    database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, name = database(TABLE), topic()
    put(client, name, [*range(50), -1], batch=1)
    with pytest.raises(AirflowException, match=r"rejected its row for numbers: IntegrityError.*on_error='skip'"):
        transfer(name, rows_per_insert=10).execute(context_of())
    assert rows(path) == []
    assert backlog(admin, name) == 51


@pytest.mark.proves("A12")
@pytest.mark.parametrize("rows_per_insert", [1, 7, 1000])
def test_load_rejected_rows_become_dead_letters(
    rows_per_insert: int, database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient, broker: Broker
) -> None:
    path, name = database(TABLE), topic()
    bad = {"a": '{"n": -1}', "b": '{"n": null}', "c": f'{{"n": {2**70}}}', "d": "no JSON"}
    for key, first in zip(bad, range(0, 40, 10), strict=True):
        put(client, name, range(first, first + 10), batch=4)
        fill(client, name, [bad[key]], partition_key=key)
    manifest = transfer(name, on_error="dead_letter", rows_per_insert=rows_per_insert).execute(context_of("a"))
    assert (manifest["rows"], manifest["errors"]["dead_letters"], rows(path)) == (40, 4, list(range(40)))
    dead_letters = read_all(broker, f"{name}-sub-DLQ")
    assert sorted(message.partition_key() for message in dead_letters) == sorted(bad)
    assert all(message.data().decode() == bad[message.partition_key()] for message in dead_letters)
    causes = {message.partition_key(): message.properties()["EXCEPTION_MESSAGE"] for message in dead_letters}
    assert causes["a"] == "the database rejected its row for numbers: IntegrityError: CHECK constraint failed: n >= 0"
    assert (
        "NOT NULL constraint failed" in causes["b"]
        and "OverflowError" in causes["c"]
        and len(manifest["errors"]["messages"]) == 4
    )
    # Nothing is left, and the next run begins after the batch.
    assert backlog(admin, name) == 0
    put(client, name, [40])
    assert transfer(name).execute(context_of("b"))["rows"] == 1
    assert rows(path) == list(range(41))


@pytest.mark.proves("A12")
def test_load_rejected_rows_beyond_max_errors_store_nothing(
    database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, name = database(TABLE), topic()
    put(client, name, [*range(10), -1, -2, -3, 10], batch=1)
    with pytest.raises(AirflowException, match=r"more than max_errors=2 messages failed; the last, .*IntegrityError"):
        transfer(name, on_error="skip", max_errors=2).execute(context_of())
    assert (rows(path), backlog(admin, name)) == ([], 14)
    manifest = transfer(name, on_error="skip", max_errors=3).execute(context_of())
    assert (manifest["rows"], manifest["errors"]["skipped"], rows(path)) == (11, 3, list(range(11)))
    assert backlog(admin, name) == 0


@pytest.mark.proves("A12")
def test_load_rejected_rows_then_dies_before_acknowledging(
    database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, name = database(TABLE), topic(partitions=2)
    put(client, name, [n if n % 5 else -1 for n in range(30)], batch=4)
    die_after_commit(transfer(name, on_error="skip"))
    expected = [n for n in range(30) if n % 5]
    assert sorted(rows(path)) == expected
    # The same try again finds its record: nothing is inserted or rejected a second time, and all is acknowledged.
    manifest = transfer(name, on_error="skip").execute(context_of())
    assert (manifest["rows"], manifest["errors"]["skipped"], sorted(rows(path))) == (24, 6, expected)
    assert sum(backlog(admin, f"{name}-partition-{number}") for number in range(2)) == 0


def test_load_other_errors_are_no_failed_messages(
    database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    database(TABLE)
    name = topic()
    put(client, name, range(3), batch=1)
    with pytest.raises(AirflowException, match="rejected rows 1 to 3 for others: OperationalError: no such table"):
        transfer(name, table="others", on_error="skip").execute(context_of())
    assert backlog(admin, name) == 3


@pytest.mark.proves("A12")
@pytest.mark.parametrize("next_run", ["a_run", "another_run"])
def test_load_dies_after_commit_then_nothing_doubles(
    next_run: str, database: NewDatabase, client: Client, topic: NewTopic
) -> None:
    path, name = database(TABLE), topic(partitions=2)
    put(client, name, range(30), batch=4)
    die_after_commit(transfer(name))
    assert sorted(rows(path)) == list(range(30))
    put(client, name, range(30, 35))
    # Airflow's own state is empty: what is committed is known from the database.
    manifest = transfer(name).execute(context_of(next_run, store=StateStore()))
    if next_run == "a_run":
        assert (manifest["rows"], sorted(rows(path))) == (30, list(range(30)))
        manifest = transfer(name).execute(context_of("third"))
    assert manifest["rows"] == 5
    assert sorted(rows(path)) == list(range(35))
    assert states(path) == {"acknowledged", "claim"}


@pytest.mark.proves("A12")
@pytest.mark.parametrize("change", ["reordered", "added", "fewer", "pattern"])
def test_load_other_topics_after_crash_nothing_doubles(
    change: str, database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, stem = database(TABLE), topic()
    names = [f"{stem}-{letter}" for letter in "abc"]
    for first, name in enumerate(names):
        put(client, name, range(10 * first, 10 * first + 10), batch=4)
    die_after_commit(transfer(names[:2]))
    found = {"reordered": [names[1], names[0]], "added": names, "fewer": names[:1], "pattern": None}[change]
    pattern = {"topic_pattern": f"{stem}-.*"} if found is None else {}
    manifest = transfer(found, **pattern).execute(context_of("next"))
    new = change in ("added", "pattern")
    assert (manifest["rows"], sorted(rows(path))) == (10 * new, list(range(20 + 10 * new)))
    if change == "fewer":
        # The rest of the batch waits for a task that consumes its topic.
        assert (states(path), backlog(admin, names[1])) == ({"consumed", "acknowledged", "claim"}, 3)
        assert transfer(names[1]).execute(context_of("third"))["rows"] == 0
    assert states(path) == {"acknowledged", "claim"}
    assert [backlog(admin, name) for name in names[: 2 + new]] == [0] * (2 + new)


def test_load_retry_with_reordered_topics_keeps_batch(database: NewDatabase, client: Client, topic: NewTopic) -> None:
    path, names = database(TABLE), [topic(), topic()]
    for first, name in enumerate(names):
        put(client, name, [first])
    die_after_commit(transfer(names))
    assert transfer(names[::-1]).execute(context_of())["rows"] == 2
    assert sorted(rows(path)) == [0, 1]


def test_load_overlapping_topics_overtaken_cannot_commit(
    database: NewDatabase, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence is one of each topic: a task that was given another topic besides takes the subscription over."""
    path, names = database(TABLE), [topic(), topic()]
    put(client, names[0], range(10))
    put(client, names[1], range(10, 20))
    real, overtaking = sql_sink.SqlBatchState._pass_fence, list[dict[str, Any]]()
    connect, held = pulsar_to_sql._transactional, list[Any]()

    def connected(database_hook: Any) -> Any:
        held.append(connect(database_hook))
        return held[-1]

    def overtaken(state: sql_sink.SqlBatchState) -> None:
        if not overtaking:
            overtaking.append({})
            # As in the test above.
            held[0].rollback()
            slow._task_client._client.shutdown()  # type: ignore[union-attr]
            overtaking[0] = transfer(names).execute(context_of("next"))
        real(state)

    monkeypatch.setattr(pulsar_to_sql, "_transactional", connected)
    monkeypatch.setattr(sql_sink.SqlBatchState, "_pass_fence", overtaken)
    slow = transfer(names[0])
    with pytest.raises(AirflowException, match="taken over this subscription"):
        slow.execute(context_of())
    assert (overtaking[0]["rows"], sorted(rows(path))) == (20, list(range(20)))


def test_load_topic_recreated_after_crash_goes_on(
    database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, name = database(TABLE), topic()
    put(client, name, range(5), batch=1)
    die_after_commit(transfer(name))
    admin.delete_topic(name, force=True)
    put(client, name, range(100, 103))
    # The run itself keeps its batch, and names what is to be removed.
    with pytest.raises(AirflowException, match="remove the rows of airflow_pulsar_batches whose record_id is") as error:
        transfer(name).execute(context_of())
    (record,) = rows(path, "SELECT record_id FROM airflow_pulsar_batches WHERE state = 'consumed'")
    assert f"'{record}', and clear the task" in str(error.value)
    assert transfer(name).execute(context_of("next"))["rows"] == 3
    assert sorted(rows(path)) == [*range(5), *range(100, 103)]
    assert states(path) == {"acknowledged", "claim"}
    put(client, name, [103])
    assert transfer(name).execute(context_of("third"))["rows"] == 1


@pytest.mark.parametrize("next_run", ["a_run", "another_run"])
def test_load_pattern_topic_deleted_after_crash_goes_on(
    next_run: str, database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, stem = database(TABLE), topic()
    names = [f"{stem}-{letter}" for letter in "ab"]
    for first, name in enumerate(names):
        put(client, name, [first])
    pattern = f"{stem}-.*"
    die_after_commit(transfer(None, topic_pattern=pattern))
    admin.delete_topic(names[1], force=True)
    put(client, names[0], [2])
    manifest = transfer(None, topic_pattern=pattern).execute(context_of(next_run))
    assert manifest["rows"] == (2 if next_run == "a_run" else 1)
    assert states(path) == {"acknowledged", "claim"}
    manifest = transfer(None, topic_pattern=pattern).execute(context_of("third"))
    assert manifest["rows"] == (1 if next_run == "a_run" else 0)
    assert (sorted(rows(path)), backlog(admin, names[0])) == ([0, 1, 2], 0)


@pytest.mark.parametrize("next_run", ["a_run", "another_run"])
def test_load_without_retry_topic_after_crash_goes_on(
    next_run: str, database: NewDatabase, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    path, name = database(TABLE), topic()
    put(client, name, [0])
    put(client, f"{name}-sub-RETRY", [1])
    retrying = {"on_error": "retry_letter", "max_redeliver_count": 3}
    die_after_commit(transfer(name, **retrying))
    assert transfer(name).execute(context_of(next_run))["rows"] == (2 if next_run == "a_run" else 0)
    assert (sorted(rows(path)), backlog(admin, name)) == ([0, 1], 0)
    # Whoever consumes the retry topic again acknowledges what is in the table before anything is received.
    assert (states(path) >= {"consumed"}, backlog(admin, f"{name}-sub-RETRY")) == (True, 1)
    assert transfer(name, **retrying).execute(context_of("third"))["rows"] == 0
    assert (sorted(rows(path)), backlog(admin, f"{name}-sub-RETRY")) == ([0, 1], 0)
    assert states(path) == {"acknowledged", "claim"}


@pytest.mark.proves("A12")
def test_load_dies_before_commit_then_nothing_is_lost(
    database: NewDatabase, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = database(TABLE), topic()
    put(client, name, range(30))
    with monkeypatch.context() as patch:
        patch.setattr(sql_sink.SqlBatchState, "_pass_fence", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
        with pytest.raises(AirflowException, match="no disk"):
            transfer(name).execute(context_of())
    assert rows(path) == []
    assert transfer(name).execute(context_of())["rows"] == 30
    assert rows(path) == list(range(30))


@pytest.mark.proves("A12")
def test_load_overtaken_try_cannot_commit(
    database: NewDatabase, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = database(TABLE), topic()
    put(client, name, range(10))
    real = sql_sink.SqlBatchState._pass_fence
    overtaking: list[dict[str, Any]] = []

    def overtaken(state: sql_sink.SqlBatchState) -> None:
        if not overtaking:
            overtaking.append({})
            # The first try has lost its connection to the broker; SQLite has one writer, so it has not inserted yet.
            held.rollback()
            slow._task_client._client.shutdown()  # type: ignore[union-attr]
            overtaking[0] = transfer(name).execute(context_of("next"))
        real(state)

    monkeypatch.setattr(sql_sink.SqlBatchState, "_pass_fence", overtaken)
    connect = pulsar_to_sql._transactional
    held: Any = None

    def connected(database_hook: Any) -> Any:
        nonlocal held
        found = connect(database_hook)
        held = held or found
        return found

    monkeypatch.setattr(pulsar_to_sql, "_transactional", connected)
    slow = transfer(name)
    with pytest.raises(AirflowException, match="taken over this subscription"):
        slow.execute(context_of())
    assert overtaking[0]["rows"] == 10
    assert rows(path) == list(range(10))


def test_load_killed_while_waiting_says_so(
    database: NewDatabase, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = database(TABLE), topic()
    client.subscribe(name, "sub").close()
    operator = transfer(name, until_end=False, max_seconds=60)
    receive = BatchReceiver.next

    def killed(receiver: BatchReceiver, millis: float) -> Any:
        operator.on_kill()
        # That drops the client in a thread of its own, at any time.
        operator._task_client._client.shutdown()  # type: ignore[union-attr]
        return receive(receiver, millis)

    monkeypatch.setattr(BatchReceiver, "next", killed)
    with pytest.raises(TaskKilled, match="the task was killed") as caught:
        operator.execute(context_of())
    assert isinstance(caught.value.__context__, AlreadyClosed)
    assert rows(path) == []


@pytest.mark.proves("A12")
def test_load_without_state_table_repeats_the_run(database: NewDatabase, client: Client, topic: NewTopic) -> None:
    path, name, store = database(TABLE), topic(), StateStore()
    put(client, name, range(5))
    first = transfer(name, state_table=None).execute(context_of(store=store))
    assert store["consumed"]["state"] == "acknowledged"
    assert transfer(name, state_table=None).execute(context_of(store=store)) == first
    assert rows(path) == list(range(5))
    assert rows(path, "SELECT name FROM sqlite_master WHERE name LIKE 'airflow%'") == []


def test_load_many_ids_fill_several_parts(database: NewDatabase, client: Client, topic: NewTopic) -> None:
    path, name = database(TABLE), topic(partitions=40)
    put(client, name, range(400), batch=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Consumer, "close", lambda *_: (_ for _ in ()).throw(OSError("cut")))
        with pytest.raises(AirflowException, match="cut"):
            transfer(name).execute(context_of())
    assert max(rows(path, "SELECT part FROM airflow_pulsar_batches WHERE state = 'consumed'")) >= 1
    assert transfer(name).execute(context_of())["rows"] == 400
    assert sorted(rows(path)) == list(range(400))


def test_load_task_in_a_dag(database: NewDatabase, client: Client, topic: NewTopic, airflow_home: Path) -> None:
    path, name = database(TABLE), topic()
    put(client, name, range(20))
    dag = dag_in(
        airflow_home,
        "pulsar_to_sql_numbers",
        f"""
        from airflow_provider_pulsar.transfers.pulsar_to_sql import PulsarToSqlOperator
        PulsarToSqlOperator(task_id="t", topic={name!r}, subscription="sub", decode="json", sql_conn_id="shop",
            table="{{{{ dag.dag_id.rpartition('_')[2] }}}}", columns=["n"])
        """,
    )
    run = dag.test()
    assert states_of(run) == {"t": "success"}
    assert xcom_of(run, "t")["rows"] == 20
    again = clear_and_run(dag, run)
    assert (states_of(again), xcom_of(again, "t")["rows"]) == ({"t": "success"}, 20)
    assert rows(path) == list(range(20))


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"path": "a.jsonl"}, "leave path out"),
        ({"inline": True}, "leave inline out"),
        ({"columns": []}, "columns must be"),
        ({"columns": "n"}, "columns must be"),
        ({"columns": {"a": "__keys"}}, "did you mean '__key'"),
        ({"state_table": "a; DROP TABLE b"}, "state_table must be"),
        ({"replace_index": ["n"]}, "belongs to replace=True"),
        ({"rows_per_insert": 0}, "rows_per_insert"),
        ({"sql_conn_id": ""}, "sql_conn_id"),
        ({"subscription_tpye": "Shared"}, "subscription_tpye"),
    ],
)
def test_load_wrong_argument_raises(options: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"topic": "t", "columns": ["n"]}
    with pytest.raises((ValueError, TypeError), match=reason):
        transfer(**given | options)
