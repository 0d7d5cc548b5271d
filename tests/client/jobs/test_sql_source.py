"""Rows of a query as messages: read in portions, and checked before the first message."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pulsar_native.jobs.sql_source import query_source, streaming_cursor

Connect = Callable[[], Any]


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    """Give what opens a database with a table of five rows."""
    path = tmp_path / "orders.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE orders (id INTEGER, city TEXT, picture BLOB)")
        made.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(n, f"city {n % 2}", b"\x00") for n in range(5)])
    made.close()
    return lambda: sqlite3.connect(path)


def rows(connect: Connect, sql: str, *parameters: Any, **options: Any) -> list[Any]:
    """Return the rows that a source gives."""
    return list(query_source(connect, sql, *parameters, **options))


def test_query_rows_are_dicts_by_column(connect: Connect) -> None:
    found = rows(connect, "SELECT id, city AS town, picture FROM orders ORDER BY id", fetch_size=2)
    assert found == [{"id": n, "town": f"city {n % 2}", "picture": b"\x00"} for n in range(5)]


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [("SELECT id FROM orders WHERE city = ?", ("city 1",)), ("SELECT id FROM orders WHERE city = :c", {"c": "city 1"})],
)
def test_query_parameters_are_bound(connect: Connect, sql: str, parameters: Any) -> None:
    assert [row["id"] for row in rows(connect, sql, parameters)] == [1, 3]


def test_query_runs_only_when_read(connect: Connect) -> None:
    opened: list[Any] = []
    source = query_source(lambda: opened.append(connect()) or opened[-1], "SELECT id FROM orders")
    assert opened == []
    assert len(list(source)) == 5
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


def test_query_is_fetched_in_portions(connect: Connect) -> None:
    fetched: list[int] = []

    class Counting(sqlite3.Cursor):
        def fetchmany(self, size: int | None = 1) -> list[Any]:
            fetched.append(size or 0)
            return super().fetchmany(size)

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Counting)

    path = connect().execute("PRAGMA database_list").fetchone()[2]
    source = query_source(lambda: sqlite3.connect(path, factory=Connection), "SELECT id FROM orders", fetch_size=2)
    reading = iter(source)
    assert next(reading) == {"id": 0}
    assert fetched == [2], "nothing is fetched ahead"
    assert len(list(reading)) == 4 and fetched == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("DELETE FROM orders", "sql returns no rows"),
        ("SELECT id, city AS id FROM orders", "several columns named 'id'"),
    ],
)
def test_query_that_is_no_table_raises(connect: Connect, sql: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        rows(connect, sql)


def test_query_rows_of_a_dictionary_cursor_keep_values(connect: Connect) -> None:
    def by_name() -> Any:
        connection = connect()
        connection.row_factory = lambda cursor, row: dict(
            zip((each[0] for each in cursor.description), row, strict=True)
        )
        return connection

    assert rows(by_name, "SELECT id, city FROM orders WHERE id = 3") == [{"id": 3, "city": "city 1"}]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "MySQLdb", "pymysql", "another"])
def test_streaming_cursor_is_kept_at_the_server(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    base = type(
        "Connection", (), {"__module__": f"{driver}.connections", "cursor": lambda _, *given: asked.append(given)}
    )
    cursors = ModuleType(f"{driver}.cursors")
    cursors.SSCursor = object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, cursors.__name__, cursors)
    # A class of the application's own is recognized by its base.
    streaming_cursor(type("Own", (base,), {"__module__": "own"})())
    expected = {"psycopg": ("pulsar_native",), "psycopg2": ("pulsar_native",), "another": ()}
    assert asked == [expected.get(driver, (cursors.SSCursor,))]
