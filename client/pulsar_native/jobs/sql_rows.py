"""Differences between the DB-API drivers, for reading and writing rows.

Rule: no driver is imported that the caller has not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any


def row_values(row: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any]:
    """Return the values of a row, in the order of its columns: a dictionary cursor gives them by name."""
    return tuple(row.values()) if isinstance(row, Mapping) else row


def drivers_of(connection: Any) -> set[str]:
    """Return the top-level packages of a connection's class and its bases: applications have classes of their own."""
    return {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}


def insert_many(connection: Any, cursor: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """Run a statement for each row, in few requests where the driver's executemany makes one for each (psycopg2)."""
    extras = sys.modules.get("psycopg2.extras")
    if extras is not None and "psycopg2" in drivers_of(connection):
        extras.execute_batch(cursor, statement, rows, page_size=len(rows))
    else:
        cursor.executemany(statement, rows)
