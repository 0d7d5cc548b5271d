"""Differences between the DB-API drivers and their databases, for reading and writing rows.

Rule: no driver is imported that the caller has not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

# Classes of PEP 249, by name: the drivers' errors have no common base class.
_ROW_ERRORS = frozenset(("IntegrityError", "DataError"))
# SQLSTATEs of a row that drivers give other classes: classes 22 and 23, 44 (check option of a view), a type that the
# column does not take, a value too large for an index, one nested too deeply, an exception raised by a trigger.
_ROW_STATES = ("22", "23", "44", "42804", "54000", "54001", "P0001")


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


def is_row_error(error: Exception) -> bool:
    """Return True if a row's values caused an error of an insert, so that other rows may be inserted."""
    # What a driver itself cannot convert: NUL in text (psycopg2), half a surrogate, a large integer (sqlite3).
    if isinstance(error, ValueError | OverflowError):
        return True
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _ROW_ERRORS) or (isinstance(state, str) and state.startswith(_ROW_STATES))


def interruption_behind(error: BaseException) -> BaseException | None:
    """Return what interrupted a statement (a time-out, Ctrl-C) where the driver's clean-up raised an error instead."""
    seen: set[int] = set()
    context = error.__context__
    while context is not None and id(context) not in seen:
        if not isinstance(context, Exception):
            return context
        seen.add(id(context))
        context = context.__context__
    return None


class Savepoints:
    """Savepoints of a connection without autocommit: what a failed statement has changed is undone alone.

    One savepoint is set before the first rows of a transaction and stays until its commit; within it each insert has
    one of its own. The outer one matters for SQLite, where a savepoint outside of a transaction begins one, and the
    release of that one commits.
    """

    def __init__(self, connection: Any) -> None:
        """Set the connection; nothing is asked of the database yet."""
        self._connection = connection
        self._begun = self._works = self._releases = False

    def set(self) -> None:
        """Set the savepoint of the next insert. Before the first one the transaction must be empty: it may end."""
        # SQLite's driver tells whether a transaction is open, that is whether the outer savepoint is still there.
        if not self._begun or not getattr(self._connection, "in_transaction", True):
            self._begun = True
            self._begin()
        if self._works:
            self._run("SAVEPOINT pulsar_rows")

    def _begin(self) -> None:
        """Find out which statements the database has: Oracle releases no savepoint, some databases have none."""
        self._works = self._releases = False
        for releases in (True, False):
            try:
                self._run("SAVEPOINT pulsar_batch")
                if releases:
                    self._run("SAVEPOINT pulsar_rows")
                    self._run("RELEASE SAVEPOINT pulsar_rows")
            except Exception:
                self._connection.rollback()
            else:
                self._works, self._releases = True, releases
                return

    def release(self) -> None:
        """Keep what was changed since `set`."""
        if self._releases:
            self._run("RELEASE SAVEPOINT pulsar_rows")

    def undo(self) -> bool:
        """Undo what was changed since `set`; False, with nothing undone, where the database has no savepoints."""
        if self._works:
            self._run("ROLLBACK TO SAVEPOINT pulsar_rows")
            self.release()
        return self._works

    def _run(self, statement: str) -> None:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement)
