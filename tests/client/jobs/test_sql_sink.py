"""Messages as rows, and the record of their batch in one transaction: columns, rejections, fence."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pulsar_native.jobs.batch_output import ACKNOWLEDGED, CONSUMED, OutputTaken
from pulsar_native.jobs.sql_sink import (
    RowMapping,
    SqlBatchState,
    SqlInsertFailed,
    SqlRowRejected,
    SqlSink,
    StateTable,
    StateTableFailed,
)
from support.jobs import received
from support.limited_sqlite import LimitedSqlite

Connect = Callable[[], sqlite3.Connection]
TABLE = StateTable("batches")


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Give what opens the database; all connections are closed at the end."""
    opened: list[sqlite3.Connection] = []

    def open_one() -> sqlite3.Connection:
        opened.append(sqlite3.connect(tmp_path / "lake.db", timeout=5))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def record(value: Any, **fields: Any) -> dict[str, Any]:
    """Return the record of a message, as the consume job makes it."""
    return {"value": value, "encoding": "json", "key": "k", "topic": "t", "properties": {"source": "web"}, **fields}


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_mapping_takes_fields_and_metadata() -> None:
    mapping = RowMapping.of(
        {"id": "id", "city": "address.city", "source": "__messageProperties.source", "k": "__key", "all": "__value"},
        decodes_values=False,
    )
    value = {"id": 7, "address": {"city": "Ulm"}}
    assert mapping.row(received(properties={"source": "web"}), record(value)) == (7, "Ulm", "web", "k", value)


def test_mapping_dotted_field_name_comes_first() -> None:
    mapping = RowMapping.of(["a.b"], decodes_values=False)
    assert mapping.row(received(), record({"a.b": 1, "a": {"b": 2}})) == (1,)


def test_mapping_payload_of_bytes_is_no_base64_text() -> None:
    """It would be the same as that of the message "/wA="."""
    given, packed = {"payload": "__value", "k": "__key"}, record("/wA=", encoding="base64")
    every = RowMapping.of(given, decodes_values=False)
    assert every.row(received(b"\xff\x00"), packed) == (b"\xff\x00", "k")
    texts = RowMapping.of(given)
    assert texts.row(received(b"/wA="), record("/wA=", encoding="text")) == ("/wA=", "k")
    with pytest.raises(ValueError, match=r"column 'payload' .* not UTF-8: decode='bytes'"):
        texts.row(received(b"\xff\x00"), packed)
    assert RowMapping.of({"k": "__key"}).row(received(b"\xff\x00"), packed) == ("k",)


def test_mapping_missing_field_raises_or_is_null() -> None:
    value = record({"city": "Ulm"})
    with pytest.raises(ValueError, match=r"no field 'citi'; .*'city'.*allow_missing=True makes it NULL"):
        RowMapping.of(["citi"], decodes_values=False).row(received(), value)
    assert RowMapping.of(["citi"], allow_missing=True, decodes_values=False).row(received(), value) == (None,)


@pytest.mark.parametrize(("value", "kind"), [("text", "text"), (None, "null"), (5, "int")])
def test_mapping_field_of_no_object_raises(value: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=f"the value is {kind}"):
        RowMapping.of(["id"], decodes_values=False).row(received(), record(value))


@pytest.mark.parametrize(
    ("given", "reason"),
    [("id", "columns must be"), ({}, "columns must be"), ([], "columns must be"), ({"k": "__kee"}, "'__key'")],
)
def test_mapping_of_wrong_columns_raises(given: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        RowMapping.of(given)


def sink(connection: sqlite3.Connection) -> SqlSink:
    """Return the sink of a table of ids."""
    mapping = RowMapping.of(["id"], decodes_values=False)
    return SqlSink(connection, "orders", mapping, lambda _row: "INSERT INTO orders VALUES (?)", str)


def strict(index: int, error: Exception) -> None:
    """Raise the error of a rejected row."""
    raise error


def test_sink_writes_in_the_open_transaction(connect: Connect) -> None:
    connection = connect()
    connection.execute("CREATE TABLE orders (id INTEGER)")
    rows = sink(connection)
    rows.write([(1,), (2,)], strict)
    rows.write([], strict)
    rows.write([(3,)], strict)
    assert rows.rows == 3
    assert connect().execute("SELECT count(*) FROM orders").fetchone() == (0,)
    connection.commit()
    assert connect().execute("SELECT count(*) FROM orders").fetchone() == (3,)
    # Nor does the release of a savepoint commit in the next transaction.
    rows.write([(4,)], strict)
    assert connect().execute("SELECT count(*) FROM orders").fetchone() == (3,)
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (3,)


def test_sink_cells_are_the_drivers(connect: Connect) -> None:
    rows = sink(connect())
    found = [rows.row(received(), record({"id": value}))[0] for value in (1, None, b"x", [1, {"a": 2}], 1 + 2j)]
    assert found == [1, None, b"x", '[1, {"a": 2}]', "(1+2j)"]


def test_sink_time_out_behind_drivers_error_passes(connect: Connect) -> None:
    """As psycopg does it: the end of its pipeline raises while Airflow's time-out passes through."""

    class TimedOut(BaseException):
        pass

    class Cursor(sqlite3.Cursor):
        def executemany(self, *_: Any) -> Any:
            try:
                raise TimedOut
            finally:
                raise sqlite3.IntegrityError("cannot exit pipeline mode while busy")

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

    rejected = dict[int, Exception]()
    with closing(sqlite3.connect(":memory:", factory=Connection)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        with pytest.raises(TimedOut):
            sink(connection).write([(1,), (2,)], rejected.setdefault)
    assert rejected == {}


@pytest.mark.parametrize("bad", [[], [0], [9], [0, 1, 2], [3, 4], list(range(10)), list(range(1, 9))])
def test_sink_rejected_rows_leave_the_others_in_order(bad: list[int], connect: Connect) -> None:
    connection = connect()
    connection.execute("CREATE TABLE orders (id INTEGER CHECK (id >= 0))")
    rows, rejected = sink(connection), dict[int, Exception]()
    rows.write([(-1 if n in bad else n,) for n in range(10)], rejected.setdefault)
    assert list(rejected) == bad
    assert {str(error) for error in rejected.values()} <= {
        "the database rejected its row for orders: IntegrityError: CHECK constraint failed: id >= 0"
    }
    rows.write([(10,), (-1,)], rejected.setdefault)
    connection.commit()
    left = [n for n in range(11) if n not in bad]
    assert [n for (n,) in connect().execute("SELECT id FROM orders ORDER BY rowid")] == left
    assert rows.rows == len(left)


def test_sink_second_row_of_a_key_is_rejected(connect: Connect) -> None:
    connection = connect()
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO orders VALUES (5)")
    connection.commit()
    rows, rejected = sink(connection), dict[int, Exception]()
    rows.write([(1,), (5,), (2,), (1,), (3,), (2**70,)], rejected.setdefault)
    assert list(rejected) == [1, 3, 5]
    assert type(rejected[5].__cause__) is OverflowError
    assert [n for (n,) in connection.execute("SELECT id FROM orders")] == [1, 2, 3, 5]


def test_sink_error_of_reject_ends_the_write(connect: Connect) -> None:
    connection = connect()
    connection.execute("CREATE TABLE orders (id INTEGER NOT NULL)")
    with pytest.raises(SqlRowRejected, match="NOT NULL constraint failed"):
        sink(connection).write([(1,), (None,), (None,)], strict)


def test_sink_other_failure_names_rows_and_table(connect: Connect) -> None:
    connection = connect()
    connection.execute("CREATE TABLE orders (id INTEGER)")
    rows = sink(connection)
    rows.write([(1,)], strict)
    connection.execute("ALTER TABLE orders RENAME TO others")
    with pytest.raises(SqlInsertFailed, match="rejected rows 2 to 3 for orders: OperationalError: no such table"):
        rows.write([(2,), (3,)], strict)


@pytest.mark.parametrize("fails", [("SAVEPOINT",), ("ROLLBACK TO",)])
def test_sink_rejected_row_without_savepoints_ends_the_write(connect: Connect, fails: tuple[str, ...]) -> None:
    connection = connect()
    connection.execute("CREATE TABLE orders (id INTEGER NOT NULL)")
    rows = sink(LimitedSqlite(connection, fails))  # type: ignore[arg-type]
    rows.write([(1,)], strict)
    with pytest.raises(SqlInsertFailed, match="rejected rows 2 to 4 for orders: IntegrityError: NOT NULL"):
        rows.write([(2,), (None,), (3,)], lambda *_: None)


# ---- state -----------------------------------------------------------------------------------------------------------


def state(connection: sqlite3.Connection, run: str, *, fenced: bool = True) -> SqlBatchState:
    """Return the state of a run of one subscription, begun."""
    made = SqlBatchState(connection, TABLE, run, "subscription", ["topic"] if fenced else [])
    made.begin()
    return made


def test_state_set_commits_rows_and_record(connect: Connect) -> None:
    connection = connect()
    one = state(connection, "a")
    assert one.get() is None
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.execute("INSERT INTO orders VALUES (1)")
    value = {"state": CONSUMED, "chunks": [[1, 2]], "others": {"x": 1}}
    one.set(value)
    other = connect()
    assert other.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert state(other, "a", fenced=False).get() == value


def test_state_long_record_fills_several_parts(connect: Connect) -> None:
    one = state(connect(), "a")
    value = {"state": CONSUMED, "chunks": list(range(3000)), "others": {}}
    one.set(value)
    assert one.get() == value
    parts = connect().execute("SELECT part, length(content) FROM batches WHERE state = ? ORDER BY part", [CONSUMED])
    assert [number for number, _ in parts.fetchall()] == list(range(7))


def test_state_acknowledged_keeps_no_ids(connect: Connect) -> None:
    one = state(connect(), "a")
    one.set({"state": ACKNOWLEDGED, "chunks": [1], "others": {"x": 1}, "count": 3})
    assert one.get() == {"state": ACKNOWLEDGED, "chunks": [], "others": {}, "count": 3}


def test_state_overtaken_try_commits_nothing(connect: Connect) -> None:
    first = connect()
    one = state(first, "a")
    first.execute("CREATE TABLE orders (id INTEGER)")
    first.commit()
    two = state(connect(), "b")
    first.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(OutputTaken):
        one.set({"state": CONSUMED, "chunks": [], "others": {}})
    assert connect().execute("SELECT count(*) FROM orders").fetchone() == (0,)
    two.set({"state": CONSUMED, "chunks": [], "others": {}})
    assert one.get() is None and two.get() is not None


def test_state_without_fence_lets_both_commit(connect: Connect) -> None:
    one, two = state(connect(), "a", fenced=False), state(connect(), "b", fenced=False)
    for each in (one, two):
        each.set({"state": CONSUMED, "chunks": [], "others": {}})
    assert one.get() == two.get() is not None


def test_state_unacknowledged_are_those_of_other_runs(connect: Connect) -> None:
    for run, how in (("a", CONSUMED), ("b", ACKNOWLEDGED), ("c", CONSUMED)):
        state(connect(), run, fenced=False).set({"state": how, "chunks": [run], "others": {}})
    found = [each.get() for each in state(connect(), "c", fenced=False).unacknowledged()]
    assert found == [{"state": CONSUMED, "chunks": ["a"], "others": {}}]


def test_state_reads_rows_of_dictionary_cursors(connect: Connect) -> None:
    connection = connect()
    connection.row_factory = lambda cursor, row: dict(zip((each[0] for each in cursor.description), row, strict=True))
    value = {"state": CONSUMED, "chunks": ["a"], "others": {}}
    one = state(connection, "a")
    one.set(value)
    assert one.get() == value
    assert [each.get() for each in state(connection, "b").unacknowledged()] == [value]


def test_state_claims_of_topics_are_taken_together(connect: Connect) -> None:
    """A try of two topics takes over the tries of one of them, and leaves that of another one."""
    one, two, three, both = (
        SqlBatchState(connect(), TABLE, str(topics), "subscription", topics) for topics in ("a", "b", "c", "ba")
    )
    for each in (one, three, both, two):
        each.begin()
    value = {"state": CONSUMED, "chunks": [], "others": {}}
    for each in (one, both):
        with pytest.raises(OutputTaken):
            each.set(value)
    for each in (two, three):
        each.set(value)
    both.begin()
    both.set(value)
    assert connect().execute("SELECT count(*) FROM batches WHERE state = 'claim'").fetchone() == (3,)


def test_state_consumed_again_keeps_the_rest(connect: Connect) -> None:
    """A batch that was acknowledged in part is stored once more by the try that has committed it."""
    one = state(connect(), "a")
    value = {"state": CONSUMED, "chunks": [{"t": [1]}], "others": {}}
    one.set(value)
    one.set({**value, "left": ["t"]})
    assert one.get() == {**value, "left": ["t"]}
    found = connect().execute("SELECT DISTINCT record_id FROM batches WHERE state = ?", [CONSUMED]).fetchone()
    assert one.description == f"the rows of batches whose record_id is '{found[0]}'"


def test_state_claim_of_another_first_try_is_taken_over(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = state(connect(), "a", fenced=False), SqlBatchState(connect(), TABLE, "b", "subscription", ["topic"])
    real = SqlBatchState._insert

    def late(self: SqlBatchState, *content: str) -> None:
        # Between looking for the claim and inserting it. SQLite has locked the database by then, others have not.
        monkeypatch.setattr(SqlBatchState, "_insert", real)
        self._connection.rollback()
        state(connect(), "c")
        real(self, *content)

    monkeypatch.setattr(SqlBatchState, "_insert", late)
    two.begin()
    two.set({"state": CONSUMED, "chunks": [], "others": {}})
    assert len(list(one.unacknowledged())) == 1
    assert connect().execute("SELECT count(*) FROM batches WHERE state = 'claim'").fetchone() == (1,)


@pytest.mark.parametrize("fenced", [True, False])
def test_state_table_that_cannot_be_used_says_why(connect: Connect, fenced: bool) -> None:
    connection = connect()
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(
        StateTableFailed, match=r"batches cannot be used: .*no such table.*could not be made: .*readonly"
    ):
        state(connection, "a", fenced=fenced)
    connection.execute("PRAGMA query_only = OFF")
    connection.execute("CREATE TABLE batches (record_id TEXT)")
    with pytest.raises(StateTableFailed, match=r"batches cannot be used: OperationalError: no such column: \w+$"):
        state(connection, "a", fenced=fenced)


@pytest.mark.parametrize("name", ["a;b", "", "a b", "a..b"])
def test_state_table_of_wrong_name_raises(name: str) -> None:
    with pytest.raises(ValueError, match="state_table must be a table's name"):
        StateTable(name)
