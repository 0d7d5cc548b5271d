"""Rows of a query as messages, over any DB-API 2.0 connection.

Rules: rows are fetched in portions, with a server-side cursor where the driver has one, so that a result larger than
the memory can be read. A row becomes a dict by column name. The connection is opened for one reading and closed after
it. Nothing is written to the database, and no driver is imported that the caller has not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.sources import Source
from pulsar_native.jobs.sql_rows import drivers_of, row_values

FETCH_SIZE = 5000
"""Default number of rows fetched at once."""
_CURSOR_NAME = "pulsar_native"
# What PostgreSQL reports for the last statement, the declaration of that cursor.
_DECLARED = "DECLARE CURSOR"
# Drivers whose usual cursor loads the whole result: the module with the class of their unbuffered cursor.
_UNBUFFERED = {"MySQLdb": "MySQLdb.cursors", "pymysql": "pymysql.cursors"}


def query_source(
    connect: Callable[[], Any],
    sql: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    fetch_size: int = FETCH_SIZE,
) -> Source:
    """Return the source of a query's rows; the query runs when the source is read.

    :param connect: opens a DB-API connection, which is closed after the reading.
    :param sql: one statement that returns rows.
    :param parameters: its parameters, in the driver's style; default none.
    :param fetch_size: rows fetched at once, from 1.

    A reading raises ValueError for a statement without rows or with two columns of one name, and the driver's errors.
    """
    return Source(lambda: _rows(connect, sql, parameters, fetch_size), rows="table")


def _rows(connect: Callable[[], Any], sql: str, parameters: Any, fetch_size: int) -> Iterator[dict[str, Any]]:
    with closing(connect()) as connection, closing(streaming_cursor(connection)) as cursor:
        cursor.arraysize = fetch_size
        cursor.execute(sql, parameters) if parameters else cursor.execute(sql)
        _check_one_statement(connection, cursor)
        names: list[str] | None = None
        while True:
            # A named cursor of psycopg2 has a description after the first fetch only; without a result some drivers
            # raise there and others return nothing.
            if names is None and cursor.description is not None:
                names = _names(cursor.description)
            rows = cursor.fetchmany(fetch_size)
            if names is None:
                if cursor.description is None:
                    validation.refuse("sql returns no rows: it must be one statement such as SELECT")
                names = _names(cursor.description)
            if not rows:
                return
            for row in rows:
                yield dict(zip(names, map(_plain, row_values(row)), strict=True))


def _check_one_statement(connection: Any, cursor: Any) -> None:
    """Raise where psycopg2 has run a second statement, whose rows its cursor does not have; other drivers refuse it."""
    if "psycopg2" in drivers_of(connection) and cursor.statusmessage != _DECLARED:
        validation.refuse("sql must be one statement: only the rows of the first one could be read")


def _names(description: Sequence[Sequence[Any]]) -> list[str]:
    names = [str(column[0]) for column in description]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        validation.refuse(f"the result of sql has several columns named {twice[0]!r}: give all but one an alias (AS)")
    return names


def _plain(value: Any) -> Any:
    """Return a value without the driver's own wrapper of binary data."""
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def streaming_cursor(connection: Any) -> Any:
    """Return a cursor that keeps the result at the server, where the driver has one, else the usual cursor.

    Known are psycopg2 and psycopg (a named cursor), MySQLdb and pymysql (SSCursor). The usual cursor of sqlite3,
    oracledb, pyodbc, pymssql and most others streams by itself.
    """
    drivers = drivers_of(connection)
    if drivers & {"psycopg2", "psycopg"}:
        return connection.cursor(_CURSOR_NAME)
    for driver, module in _UNBUFFERED.items():
        if driver in drivers:
            return connection.cursor(sys.modules[module].SSCursor)
    return connection.cursor()
