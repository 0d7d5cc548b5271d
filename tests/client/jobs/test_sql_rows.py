"""Differences between the DB-API drivers: rows by name, and inserts in few requests."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pulsar_native.jobs.sql_rows import drivers_of, insert_many, row_values


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
