"""Differences between the DB-API drivers: rows by name, inserts in few requests, errors of rows, savepoints."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pulsar_native.jobs.sql_rows import Savepoints, drivers_of, insert_many, is_row_error, row_values
from support.limited_sqlite import LimitedSqlite


def test_row_values_of_tuples_and_dicts() -> None:
    assert row_values((1, "a")) == (1, "a")
    assert row_values({"n": 1, "k": "a"}) == (1, "a")


class Cursor:
    """A cursor that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def executemany(self, *given: Any) -> None:
        self.asked.append(("executemany", *given))


@pytest.mark.parametrize(
    ("driver", "imported", "asked"),
    [
        ("psycopg2", True, [("execute_batch", "INSERT", [(1,), (2,)], 2)]),
        ("psycopg2", False, [("executemany", "INSERT", [(1,), (2,)])]),
        ("psycopg", True, [("executemany", "INSERT", [(1,), (2,)])]),
        ("another", True, [("executemany", "INSERT", [(1,), (2,)])]),
    ],
)
def test_insert_many_of_psycopg2_takes_one_request(
    driver: str, imported: bool, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute_batch(cursor: Cursor, *given: Any, page_size: int) -> None:
        cursor.asked.append(("execute_batch", *given, page_size))

    extras = ModuleType("psycopg2.extras")
    extras.execute_batch = execute_batch  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, extras.__name__, raising=False)
    if imported:
        monkeypatch.setitem(sys.modules, extras.__name__, extras)
    base = type("connection", (), {"__module__": f"{driver}.extensions"})
    connection = type("Own", (base,), {"__module__": "own"})()
    assert drivers_of(connection) >= {driver, "own"}
    cursor = Cursor()
    insert_many(connection, cursor, "INSERT", [(1,), (2,)])
    assert cursor.asked == asked


def error(name: str, **attributes: object) -> Exception:
    """Return an error of a class of a driver's with one of its standard bases."""
    base = type(name, (Exception,), {})
    made: Exception = type("Own", (base,), attributes)("refused")
    return made


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (error("IntegrityError"), True),
        (error("DataError"), True),
        (error("OperationalError"), False),
        (error("ProgrammingError"), False),
        (error("InterfaceError"), False),
        (error("ProgrammingError", sqlstate="42804"), True),
        (error("ProgrammingError", pgcode="44000"), True),
        (error("InternalError", pgcode="P0001"), True),
        (error("OperationalError", sqlstate="54000"), True),
        # No table, no grant, a deadlock, no answer.
        (error("ProgrammingError", sqlstate="42P01"), False),
        (error("ProgrammingError", sqlstate="42501"), False),
        (error("OperationalError", sqlstate="40P01"), False),
        (error("OperationalError", sqlstate=None, pgcode=None), False),
        (ValueError("A string literal cannot contain NUL"), True),
        (OverflowError("too large"), True),
        (TypeError("not all arguments converted"), False),
        (OSError("no route"), False),
    ],
)
def test_row_errors_are_those_of_values(raised: Exception, expected: bool) -> None:
    assert is_row_error(raised) is expected


@pytest.mark.parametrize(
    ("lacks", "kept"), [((), [1, 3]), (("RELEASE",), [1, 3]), (("SAVEPOINT", "RELEASE", "ROLLBACK TO"), [1, 2, 3])]
)
def test_savepoint_undoes_what_came_after(lacks: tuple[str, ...], kept: list[int], tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE t (n INTEGER)")
    savepoints = Savepoints(LimitedSqlite(connection, lacks))
    for ends in (connection.rollback, connection.commit):
        for n in (1, 2, 3):
            savepoints.set()
            connection.execute("INSERT INTO t VALUES (?)", [n])
            if n == 2:
                assert savepoints.undo() is ("SAVEPOINT" not in lacks)
            else:
                savepoints.release()
        # A release commits nothing.
        assert connection.in_transaction
        ends()
    assert [n for (n,) in connection.execute("SELECT n FROM t")] == kept
    connection.close()


def test_savepoints_that_are_missing_are_asked_for_once(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE t (n INTEGER)")
    database = LimitedSqlite(connection, ("SAVEPOINT",))
    savepoints = Savepoints(database)
    savepoints.set()
    asked = len(database.asked)
    connection.execute("INSERT INTO t VALUES (1)")
    for _ in range(3):
        savepoints.set()
        savepoints.release()
    assert len(database.asked) == asked and connection.in_transaction
    connection.close()
