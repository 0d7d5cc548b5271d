"""Transfers on a real broker and a real PostgreSQL, by both of Airflow's drivers."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.operators.publish import PublishFailed
from airflow_provider_pulsar.transfers.pulsar_to_sql import PulsarToSqlOperator
from airflow_provider_pulsar.transfers.sql_to_pulsar import SqlToPulsarOperator
from pulsar_native import AdminClient, Client
from pulsar_native.jobs import sql_sink
from pulsar_native.schema import AvroSchema
from support.brokers import Broker, NewTopic
from support.consuming import fill
from support.postgres import Shop
from support.publish_tasks import read_all
from support.tasks import StateStore, context_of
from support.until import wait_until

pytestmark = pytest.mark.usefixtures("pulsar_conn", "driver")

NUMBERS = "CREATE TABLE numbers (n INTEGER NOT NULL CHECK (n >= 0), k TEXT)"


def to_sql(topic: str, columns: Any = ("n",), **options: Any) -> PulsarToSqlOperator:
    """Return the operator on the subscription "sub" into the table numbers."""
    given: dict[str, Any] = {"subscription": "sub", "table": "numbers", "sql_conn_id": "shop", "decode": "json"}
    return PulsarToSqlOperator(task_id="a_task", topic=topic, columns=columns, **given | options)


def from_sql(topic: str, sql: str, **options: Any) -> SqlToPulsarOperator:
    """Return the operator; without deduplication unless asked for."""
    options.setdefault("deduplicate", False)
    return SqlToPulsarOperator(task_id="a_task", sql=sql, sql_conn_id="shop", topic=topic, **options)


def values(broker: Broker, topic: str) -> list[Any]:
    """Return the JSON values in a topic."""
    return [json.loads(message.data()) for message in read_all(broker, topic)]


def put(client: Client, topic: str, numbers: range | list[int], **options: Any) -> None:
    """Publish {"n": number} for each number."""
    fill(client, topic, [json.dumps({"n": n}) for n in numbers], **options)


def backlog(admin: AdminClient, topic: str) -> int:
    """Return the backlog of the subscription."""
    parts = admin.partitions(topic)
    names = [f"{topic}-partition-{number}" for number in range(parts)] or [topic]
    return sum(int(admin.stats(name)["subscriptions"]["sub"]["msgBacklog"]) for name in names)


# ---- rows to messages ------------------------------------------------------------------------------------------------

TYPED = """
    SELECT 1::bigint AS id, 12345678901234567890.1234::numeric AS amount,
        timestamptz '2026-01-02 03:04:05.678901+02' AS at, timestamp '2026-01-02 03:04:05' AS local,
        date '2026-01-02' AS day, time '03:04:05' AS clock, interval '90 minutes' AS took,
        interval '-2 days -0.25 seconds' AS ago, inet '10.0.0.1' AS host,
        '{"a": [1, {"b": null}]}'::jsonb AS doc, '{"x": 1.5}'::json AS plain, true AS flag,
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS ident, ARRAY[1, NULL, 3] AS list, NULL::text AS missing,
        'ü'::text AS letter
"""


def test_postgres_types_become_json(shop: Shop, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    from_sql(name, TYPED).execute(context_of())
    (found,) = values(broker, name)
    assert datetime.datetime.fromisoformat(found.pop("at")) == datetime.datetime(
        2026, 1, 2, 1, 4, 5, 678901, tzinfo=datetime.UTC
    )
    assert found == {
        "id": 1,
        "amount": "12345678901234567890.1234",
        "local": "2026-01-02T03:04:05",
        "day": "2026-01-02",
        "clock": "03:04:05",
        "took": "P0DT5400S",
        "ago": "P-2DT-0.25S",
        "host": "10.0.0.1",
        "doc": {"a": [1, {"b": None}]},
        "plain": {"x": 1.5},
        "flag": True,
        "ident": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "list": [1, None, 3],
        "missing": None,
        "letter": "ü",
    }


@pytest.mark.parametrize(
    "cell",
    ["'\\x00ff'::bytea", "'NaN'::float8", "'infinity'::float4", "'NaN'::numeric", "ARRAY['a'::bytea]"],
)
def test_postgres_cell_without_json_names_its_column(cell: str, shop: Shop, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    with pytest.raises(PublishFailed, match=r"cannot be written in JSON.*the field 'cell'"):
        from_sql(name, f"SELECT 1 AS id, {cell} AS cell").execute(context_of())
    assert read_all(broker, name) == []


@pytest.mark.parametrize("cursor", ["dictcursor", "namedtuplecursor", "realdictcursor"])
def test_postgres_cursor_of_connection_is_no_matter(
    cursor: str, driver: str, shop: Shop, topic: NewTopic, broker: Broker, client: Client
) -> None:
    if (cursor, driver) == ("realdictcursor", "psycopg"):
        cursor = "dictcursor"  # Airflow's hook refuses it for psycopg
    shop.define(cursor=cursor)
    name = topic()
    from_sql(name, "SELECT 7 AS n, 'seven' AS k").execute(context_of())
    assert values(broker, name) == [{"n": 7, "k": "seven"}]
    shop.rows(NUMBERS)
    for run_id in ("a", "a", "b"):
        to_sql(name, ["n", "k"]).execute(context_of(run_id))
    assert shop.rows("SELECT n, k FROM numbers") == [(7, "seven")]


def test_postgres_large_result_keeps_memory_bounded(
    driver: str, shop: Shop, topic: NewTopic, broker: Broker, admin: AdminClient
) -> None:
    count, width = 60_000, 3_000
    script = f"""
import resource
import airflow.providers.postgres.hooks.postgres as hooks
from airflow_provider_pulsar.transfers.sql_to_pulsar import SqlToPulsarOperator
from support.tasks import context_of

hooks.USE_PSYCOPG3 = {driver == "psycopg"}
def publish(count, topic):
    sql = f"SELECT n, repeat(chr(65 + n % 26), {width}) AS text FROM generate_series(1, {{count}}) n"
    operator = SqlToPulsarOperator(
        task_id="t", sql=sql, sql_conn_id="shop", topic=topic, deduplicate=False, fetch_size=1000
    )
    return operator.execute(context_of())["stored"]
def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
publish(10_000, {topic()!r})
before = most()
print(publish({count}, {topic()!r}), most() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, cwd="tests")
    assert done.returncode == 0, done.stderr[-2000:]
    stored, grown = map(int, done.stdout.split()[-2:])
    assert stored == count
    # The whole result has 180 MB, and more as objects of Python.
    assert grown < 60


def test_postgres_parameters_reach_the_query(shop: Shop, topic: NewTopic, broker: Broker) -> None:
    shop.rows("CREATE TABLE orders AS SELECT n AS id, 'c' || n % 2 AS who FROM generate_series(1, 6) n")
    name = topic()
    sql = "SELECT id FROM orders WHERE who = %s AND id > %s AND who LIKE 'c%%' ORDER BY id"
    assert from_sql(name, sql, parameters=["c1", 1]).execute(context_of())["count"] == 2
    named = "SELECT id FROM orders WHERE id = %(id)s"
    assert from_sql(name, named, parameters={"id": 6}).execute(context_of())["count"] == 1
    # Without parameters % is itself.
    plain = "SELECT id FROM orders WHERE id % 6 = 0 AND who LIKE 'c%'"
    assert from_sql(name, plain).execute(context_of())["count"] == 1
    assert [value["id"] for value in values(broker, name)] == [3, 5, 6, 6]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT 1 AS n, 2 AS n", "several columns named 'n'"),
        ("DELETE FROM orders", 'at or near "DELETE"'),
        ("SELECT colour FROM orders", 'column "colour" does not exist'),
        ("SELECT id FROM orders; DELETE FROM orders", "one statement|multiple commands"),
        ("SELECT id FROM orders; SELECT 2 AS id", "one statement|multiple commands"),
    ],
    ids=["columns", "change", "column", "second-change", "second-select"],
)
def test_postgres_wrong_statement_publishes_nothing(
    sql: str, reason: str, shop: Shop, topic: NewTopic, broker: Broker
) -> None:
    shop.rows("CREATE TABLE orders AS SELECT 1 AS id")
    name = topic()
    with pytest.raises(PublishFailed, match=reason):
        from_sql(name, sql).execute(context_of())
    assert values(broker, name) == []
    assert shop.rows("SELECT id FROM orders") == [1]


@pytest.mark.parametrize(
    "end", [";", " ;; ", "; -- that is all", " -- ; SELECT 2"], ids=["one", "two", "comment", "within-comment"]
)
def test_postgres_end_of_a_statement_is_no_second(end: str, shop: Shop, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    from_sql(name, f"SELECT 'a;b' AS id{end}").execute(context_of())
    assert values(broker, name) == [{"id": "a;b"}]


def test_postgres_error_in_a_later_row_reports_stored(shop: Shop, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    sql = "SELECT 10 / (50 - n) AS x FROM generate_series(1, 60) n"
    with pytest.raises(PublishFailed, match="division by zero") as caught:
        from_sql(name, sql, fetch_size=10).execute(context_of())
    assert caught.value.manifest["stored"] == len(values(broker, name)) == 40


def test_postgres_retry_stores_each_row_once(shop: Shop, once: Callable[..., str], broker: Broker) -> None:
    shop.rows("CREATE TABLE orders AS SELECT n AS id, now() AS at FROM generate_series(1, 500) n")
    name, store, sql = once(), StateStore(), "SELECT id, at FROM orders ORDER BY id"
    first = from_sql(name, sql, deduplicate=True).execute(context_of(store=store))
    again = from_sql(name, sql, deduplicate=True).execute(context_of(store=store))
    assert (first["stored"], again["stored"], again["duplicates"]) == (500, 0, 500)
    assert [value["id"] for value in values(broker, name)] == list(range(1, 501))


# ---- messages to rows ------------------------------------------------------------------------------------------------


def test_postgres_json_fields_fit_typed_columns(shop: Shop, client: Client, topic: NewTopic) -> None:
    shop.rows(
        "CREATE TABLE t (id BIGINT, amount NUMERIC(30, 4), at TIMESTAMPTZ, day DATE, doc JSONB, list JSON, "
        "flag BOOLEAN, ratio FLOAT8, ident UUID, missing TEXT, raw JSONB, published TIMESTAMPTZ)"
    )
    name = topic()
    value = {
        "id": 2**62,
        "amount": "12345678901234567890.1234",
        "at": "2026-01-02T03:04:05.678901+02:00",
        "day": "2026-01-02",
        "doc": {"a": [1, {"ü": None}]},
        "list": [1, "x"],
        "flag": False,
        "ratio": 0.5,
        "ident": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "missing": None,
        "raw": {"base64": "AP8="},
    }
    fill(client, name, [json.dumps(value), json.dumps(value | {"id": 1, "doc": None, "list": None, "ratio": 1})])
    columns = {column: column for column in value} | {"published": "__publishTime"}
    to_sql(name, columns, table="t").execute(context_of())
    found = shop.rows(
        "SELECT id, amount, at, day, doc, list, flag, ratio, ident::text, missing, raw FROM t ORDER BY id"
    )
    row = (
        decimal.Decimal(value["amount"]),  # type: ignore[arg-type]
        datetime.datetime(2026, 1, 2, 1, 4, 5, 678901, tzinfo=datetime.UTC),
        datetime.date(2026, 1, 2),
    )
    more = (False, 0.5, value["ident"], None, {"base64": "AP8="})
    assert found[0] == (1, *row, None, None, False, 1.0, *more[2:])
    assert found[1] == (2**62, *row, value["doc"], [1, "x"], *more)
    assert shop.rows("SELECT count(*) FROM t WHERE now() - published < interval '10 minutes'") == [2]


def test_postgres_avro_values_keep_their_types(shop: Shop, client: Client, topic: NewTopic) -> None:
    shop.rows("CREATE TABLE t (n BIGINT, data BYTEA, half FLOAT8, at TIMESTAMPTZ, amount NUMERIC, day DATE)")
    name = topic()
    fields = [
        {"name": "n", "type": "long"},
        {"name": "data", "type": ["null", "bytes"]},
        {"name": "half", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ]
    schema = AvroSchema(None, {"type": "record", "name": "R", "fields": fields})
    at, day = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC), datetime.date(2026, 1, 2)
    amount = decimal.Decimal("1234567.8901")
    rows = [
        {"n": n, "data": None if n == 1 else bytes([0, n, 255]), "half": n / 2, "at": at, "amount": amount, "day": day}
        for n in range(3)
    ]
    fill(client, name, rows, schema=schema)
    to_sql(name, [field["name"] for field in fields], table="t", decode="auto").execute(context_of())
    found = shop.rows("SELECT n, data, half, at, amount, day FROM t ORDER BY n")
    assert [(n, None if data is None else bytes(data), *more) for n, data, *more in found] == [
        tuple(row.values()) for row in rows
    ]


def test_postgres_payloads_stay_as_they_are(shop: Shop, client: Client, topic: NewTopic) -> None:
    shop.rows("CREATE TABLE t (data BYTEA); CREATE TABLE texts (data TEXT)")
    payloads = [b"abc", b"\xff\x00", b"/wA=", b"\\x41", b"a\\000b", b""]
    name = topic()
    fill(client, name, payloads)
    columns = {"data": "__value"}
    to_sql(name, columns, table="t", decode="bytes").execute(context_of("one"))
    assert [bytes(data) for data in shop.rows("SELECT data FROM t")] == payloads
    # By default payloads are stored as text, where one that is none has no place.
    options = {"table": "texts", "decode": "auto", "subscription": "texts", "on_error": "skip"}
    manifest = to_sql(name, columns, **options).execute(context_of("two"))
    assert shop.rows("SELECT data FROM texts") == ["abc", "/wA=", "\\x41", "a\\000b", ""]
    (error,) = manifest["errors"]["messages"]
    assert "the column 'data' takes the value as text" in error["error"]
    assert error["id"]


def test_postgres_rows_travel_and_come_back(shop: Shop, topic: NewTopic) -> None:
    shop.rows(
        "CREATE TABLE a AS SELECT n AS id, n / 7.0 AS amount, timestamptz '2026-01-01' + n * interval '1.5 s' AS at, "
        "jsonb_build_object('n', n, 'list', jsonb_build_array(n, NULL)) AS doc, md5(n::text)::uuid AS ident "
        "FROM generate_series(1, 3000) n"
    )
    shop.rows("CREATE TABLE b (LIKE a)")
    name = topic(partitions=3)
    columns = ["id", "amount", "at", "doc", "ident"]
    from_sql(name, "SELECT * FROM a ORDER BY id", key_field="id").execute(context_of())
    assert to_sql(name, columns, table="b").execute(context_of())["rows"] == 3000
    assert shop.rows("(TABLE a EXCEPT ALL TABLE b) UNION ALL (TABLE b EXCEPT ALL TABLE a)") == []
    assert shop.rows("SELECT count(*) FROM b") == [3000]


@pytest.mark.parametrize("given", [{"replace_index": "k"}, {"replace_index": ["k"]}, {}])
def test_postgres_replace_keeps_the_last_of_a_key(
    given: dict[str, Any], shop: Shop, client: Client, topic: NewTopic
) -> None:
    shop.rows("CREATE SCHEMA sales; CREATE TABLE sales.t (k TEXT PRIMARY KEY, n INTEGER, kept TEXT DEFAULT 'kept')")
    shop.rows("INSERT INTO sales.t VALUES ('1', -1, 'own')")
    name = topic()
    fill(client, name, [json.dumps({"k": str(n % 3), "n": n}) for n in range(10)])
    options = {"table": "sales.t", "state_table": "sales.batches", "replace": True, **given}
    manifest = to_sql(name, ["k", "n"], **options).execute(context_of())
    assert manifest["rows"] == 10
    assert shop.rows("SELECT * FROM sales.t ORDER BY k") == [("0", 9, "kept"), ("1", 7, "own"), ("2", 8, "kept")]
    assert "acknowledged" in shop.rows("SELECT state FROM sales.batches")


@pytest.mark.parametrize(
    "table", ["t", "public.t", '"order"', '"Sales"."T.x"'], ids=["plain", "schema", "reserved", "mixed"]
)
@pytest.mark.parametrize("key", ["k", "user", '"Key"'], ids=["plain-key", "reserved-key", "mixed-key"])
def test_postgres_replace_finds_the_primary_key(
    table: str, key: str, shop: Shop, client: Client, topic: NewTopic
) -> None:
    """Of a table that the search path finds, and of names that must be quoted."""
    column = f'"{key}"' if key == "user" else key
    shop.rows(f'CREATE SCHEMA "Sales"; CREATE TABLE {table} ({column} TEXT PRIMARY KEY, n INTEGER)')
    name = topic()
    fill(client, name, [json.dumps({"k": str(n % 2), "n": n}) for n in range(4)])
    to_sql(name, {key: "k", "n": "n"}, table=table, replace=True, rows_per_insert=1).execute(context_of())
    assert shop.rows(f"SELECT {column}, n FROM {table} ORDER BY n") == [("0", 2), ("1", 3)]


def test_postgres_replace_without_a_key_says_so(shop: Shop, client: Client, topic: NewTopic) -> None:
    shop.rows(NUMBERS)
    name = topic()
    put(client, name, range(3))
    with pytest.raises(AirflowException, match="unique index"):
        to_sql(name, replace=True).execute(context_of())
    assert shop.rows("SELECT * FROM numbers") == []


# ---- once ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A12")
def test_postgres_rejected_row_stores_nothing(shop: Shop, client: Client, topic: NewTopic, admin: AdminClient) -> None:
    shop.rows(NUMBERS)
    name = topic()
    put(client, name, [*range(50), -1], batch=1)
    with pytest.raises(AirflowException, match=r"rejected its row for numbers: CheckViolation"):
        to_sql(name, rows_per_insert=10).execute(context_of())
    assert shop.rows("SELECT n FROM numbers") == []
    assert backlog(admin, name) == 51


REJECTED = {
    # A constraint, NULL, a wrong type twice (as text, and as a type that is not converted), a number out of range.
    "check": {"n": -1},
    "null": {"n": None},
    "text": {"n": "seven"},
    "bool": {"n": True},
    "range": {"n": 2**40},
    # In the driver, before anything is sent; psycopg2 cannot encode the surrogate, psycopg neither.
    "nul": {"n": 1, "k": "a\x00b"},
    "surrogate": {"n": 1, "k": "\ud800"},
    # A trigger, a view of no more than its rows, a value too large for an index.
    "trigger": {"n": 13},
    "index": {"n": 1, "long": 1},
}


@pytest.mark.proves("A12")
@pytest.mark.parametrize("rows_per_insert", [8, 1000])
def test_postgres_rejected_rows_become_dead_letters(
    rows_per_insert: int, shop: Shop, client: Client, topic: NewTopic, admin: AdminClient, broker: Broker
) -> None:
    shop.rows(NUMBERS)
    shop.rows("CREATE INDEX ON numbers (k)")
    shop.rows(
        "CREATE FUNCTION luck() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.n = 13 THEN RAISE EXCEPTION 'no luck'; END IF; RETURN new; END $$"
    )
    shop.rows("CREATE TRIGGER luck BEFORE INSERT ON numbers FOR EACH ROW EXECUTE FUNCTION luck()")
    name = topic()
    source = random.Random(14)
    values = {key: {"k": key} | value for key, value in REJECTED.items()}
    # Random, as PostgreSQL compresses.
    values["index"]["k"] = "".join(chr(source.randrange(33, 0x3000)) for _ in range(9000))
    for number, (key, value) in enumerate(values.items()):
        fill(client, name, [json.dumps({"n": n, "k": "good"}) for n in range(100 * number, 100 * number + 7)], batch=3)
        fill(client, name, [json.dumps(value)], partition_key=key)
    manifest = to_sql(name, ["n", "k"], on_error="dead_letter", rows_per_insert=rows_per_insert).execute(context_of())
    good = [n for number in range(len(values)) for n in range(100 * number, 100 * number + 7)]
    dead_letters = {message.partition_key(): message for message in read_all(broker, f"{name}-sub-DLQ")}
    causes = {key: message.properties()["EXCEPTION_MESSAGE"] for key, message in dead_letters.items()}
    assert set(causes) == set(values), causes
    assert {key: json.loads(message.data()) for key, message in dead_letters.items()} == values
    assert shop.rows("SELECT n FROM numbers ORDER BY n") == good
    assert shop.rows("SELECT DISTINCT k FROM numbers") == ["good"]
    assert (manifest["rows"], manifest["errors"]["dead_letters"]) == (len(good), len(values))
    assert all(cause.startswith("the database rejected its row for numbers: ") for cause in causes.values())
    assert "CheckViolation" in causes["check"] and "no luck" in causes["trigger"] and "NUL" in causes["nul"]
    assert backlog(admin, name) == 0


@pytest.mark.proves("A12")
def test_postgres_rejected_rows_then_dies_before_commit(
    shop: Shop, client: Client, topic: NewTopic, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.rows("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
    name = topic(partitions=2)
    # Each number twice, in one partition: the second one is rejected.
    for n in range(100):
        fill(client, name, [json.dumps({"n": n})] * 2, batch=1, partition_key=str(n))

    def cut(*_: object) -> None:
        raise OSError("no disk")

    with monkeypatch.context() as patch:
        patch.setattr(sql_sink.SqlBatchState, "_pass_fence", cut)
        with pytest.raises(AirflowException, match="no disk"):
            to_sql(name, on_error="skip", rows_per_insert=30).execute(context_of())
    assert (shop.rows("SELECT n FROM numbers"), backlog(admin, name)) == ([], 200)
    manifest = to_sql(name, on_error="skip", rows_per_insert=30).execute(context_of())
    assert (manifest["rows"], manifest["errors"]["skipped"]) == (100, 100)
    assert sorted(shop.rows("SELECT n FROM numbers")) == list(range(100))
    assert backlog(admin, name) == 0


def test_postgres_other_errors_are_no_failed_messages(
    shop: Shop, client: Client, topic: NewTopic, admin: AdminClient
) -> None:
    """With on_error="skip" a missing table, a missing right, and a constraint that is checked at the commit."""
    name = topic()
    put(client, name, [1, 1, 2], batch=1)
    with pytest.raises(AirflowException, match="rejected rows 1 to 3 for numbers: UndefinedTable"):
        to_sql(name, on_error="skip").execute(context_of())
    shop.rows("CREATE TABLE numbers (n INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(Exception, match="duplicate key value violates unique constraint"):
        to_sql(name, on_error="skip").execute(context_of())
    shop.rows("CREATE TABLE batches (LIKE airflow_pulsar_batches INCLUDING ALL)")
    with shop.role("ALL ON batches", "SELECT ON numbers") as role:
        shop.define(options=f"-c role={role}")
        with pytest.raises(AirflowException, match="rejected rows 1 to 3 for numbers: InsufficientPrivilege"):
            to_sql(name, on_error="skip", state_table="batches").execute(context_of())
    assert (shop.rows("SELECT n FROM numbers"), backlog(admin, name)) == ([], 3)


@pytest.mark.proves("A12")
@pytest.mark.parametrize("next_run", ["a_run", "another_run"])
def test_postgres_dies_after_commit_then_nothing_doubles(
    next_run: str,
    shop: Shop,
    client: Client,
    topic: NewTopic,
    admin: AdminClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop.rows(NUMBERS)
    name = topic(partitions=2)
    put(client, name, range(3000), batch=100)

    def lost(*_: object, **__: object) -> None:
        raise ConnectionResetError("the broker has gone")

    with monkeypatch.context() as patch:
        patch.setattr("pulsar_native.jobs.consuming.acknowledge", lost)
        with pytest.raises(AirflowException, match="the broker has gone"):
            to_sql(name).execute(context_of("a_run"))
    assert sorted(shop.rows("SELECT n FROM numbers")) == list(range(3000))
    put(client, name, range(3000, 3005))
    manifest = to_sql(name).execute(context_of(next_run, store=StateStore()))
    if next_run == "a_run":
        assert manifest["rows"] == 3000
        manifest = to_sql(name).execute(context_of("third"))
    assert manifest["rows"] == 5
    assert sorted(shop.rows("SELECT n FROM numbers")) == list(range(3005))
    assert set(shop.rows("SELECT state FROM airflow_pulsar_batches")) == {"acknowledged", "claim"}
    assert backlog(admin, name) == 0


@pytest.mark.proves("A12")
def test_postgres_overtaken_try_cannot_commit(
    shop: Shop, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both tries have inserted the same keys: the second one waits for the end of the first one's transaction.
    shop.rows("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
    name = topic()
    put(client, name, range(10))
    real, overtaking = sql_sink.SqlBatchState._pass_fence, threading.Event()
    second: list[Any] = []

    def overtake() -> None:
        second.append(to_sql(name).execute(context_of("next")))

    other = threading.Thread(target=overtake)

    def overtaken(state: sql_sink.SqlBatchState) -> None:
        if not overtaking.is_set():
            overtaking.set()
            slow._task_client._client.shutdown()  # type: ignore[union-attr]
            other.start()
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
            wait_until(lambda: shop.rows(waits, [shop.name]) == [1])
        real(state)

    monkeypatch.setattr(sql_sink.SqlBatchState, "_pass_fence", overtaken)
    slow = to_sql(name)
    with pytest.raises(AirflowException, match="taken over this subscription"):
        slow.execute(context_of())
    other.join(60)
    assert second[0]["rows"] == 10
    assert sorted(shop.rows("SELECT n FROM numbers")) == list(range(10))


@pytest.mark.proves("A12")
def test_postgres_server_ends_before_commit_then_retry(
    shop: Shop, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.rows(NUMBERS)
    name, store = topic(), StateStore()
    put(client, name, range(2000))

    def cut(state: sql_sink.SqlBatchState) -> None:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = %s"
        assert shop.rows(others, [shop.name]) == [True]
        real(state)

    real = sql_sink.SqlBatchState._pass_fence
    with monkeypatch.context() as patch:
        patch.setattr(sql_sink.SqlBatchState, "_pass_fence", cut)
        with pytest.raises(Exception, match=r"terminating connection|server closed the connection"):
            to_sql(name).execute(context_of(store=store))
    assert shop.rows("SELECT n FROM numbers") == []
    assert to_sql(name).execute(context_of(store=store))["rows"] == 2000
    assert sorted(shop.rows("SELECT n FROM numbers")) == list(range(2000))


def test_postgres_first_tries_at_once_both_begin(shop: Shop, driver: str) -> None:
    """Two subscriptions' first tries make one state table; two of one subscription make one claim."""
    from airflow_provider_pulsar.transfers._db_hook import db_hook
    from airflow_provider_pulsar.transfers.pulsar_to_sql import _transactional

    failed: list[BaseException] = []
    together = threading.Barrier(6)

    def begin(connection: Any, number: int) -> None:
        table = sql_sink.StateTable("batches", "%s")
        state = sql_sink.SqlBatchState(connection, table, number, "sub", [number % 2, 2])
        try:
            together.wait(10)
            state.begin()
        except BaseException as error:
            failed.append(error)

    connections = [_transactional(db_hook("shop", None)) for _ in range(6)]
    threads = [threading.Thread(target=begin, args=(each, n)) for n, each in enumerate(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for connection in connections:
        connection.close()
    assert failed == []
    assert shop.rows("SELECT state, count(*) FROM batches GROUP BY state") == [("claim", 3)]


def test_postgres_role_without_create_needs_the_table(shop: Shop, client: Client, topic: NewTopic) -> None:
    shop.rows(NUMBERS)
    shop.rows("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with shop.role("ALL ON numbers") as role:
        shop.define(options=f"-c role={role}")
        name = topic()
        put(client, name, range(3))
        with pytest.raises(AirflowException, match=r"(?s)airflow_pulsar_batches cannot be used.*permission denied"):
            to_sql(name).execute(context_of())
        shop.rows(
            "CREATE TABLE airflow_pulsar_batches (record_id VARCHAR(40), subscription_id VARCHAR(40), part INTEGER, "
            "state VARCHAR(20), content VARCHAR(4000), PRIMARY KEY (record_id, part)); "
            f"GRANT ALL ON airflow_pulsar_batches TO {role}"
        )
        assert to_sql(name).execute(context_of())["rows"] == 3
