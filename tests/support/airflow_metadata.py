"""Metadata databases of a real Airflow: SQLite in its home, or a PostgreSQL, read and blocked by tests.

Statements have ? for a value, whatever the database. May not import Airflow.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from support.postgres import USER, Postgres


class Metadata(Protocol):
    """One metadata database; blocking."""

    @property
    def url(self) -> str:
        """URL for Airflow's setting sql_alchemy_conn."""

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Run one statement, commit it, and return its rows."""

    def no_events_stored(self) -> contextlib.AbstractContextManager[None]:
        """Keep Airflow from storing asset events; it may read."""


class SqliteMetadata:
    """SQLite in a file. Airflow keeps it in WAL mode; who finds it locked waits instead of failing after 5 s."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}?timeout=60"

    def _connect(self) -> contextlib.closing[sqlite3.Connection]:
        return contextlib.closing(sqlite3.connect(self._path, timeout=60, isolation_level=None))

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Run one statement, commit it, and return its rows."""
        with self._connect() as connection:
            return connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def no_events_stored(self) -> Iterator[None]:
        """Keep Airflow from storing anything."""
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")


class PostgresMetadata:
    """A database of a PostgreSQL server."""

    def __init__(self, server: Postgres, name: str) -> None:
        self._server, self._name = server, name
        self.url = f"postgresql+psycopg2://{USER}:{server.password}@127.0.0.1:{server.port}/{name}"

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Run one statement, commit it, and return its rows."""
        with contextlib.closing(self._server.connect(self._name)) as connection, connection.cursor() as cursor:
            cursor.execute(statement.replace("?", "%s"), values)
            return list(cursor.fetchall()) if cursor.description is not None else []

    @contextlib.contextmanager
    def no_events_stored(self) -> Iterator[None]:
        """Keep Airflow from storing asset events; its other tables can be written."""
        with contextlib.closing(self._server.connect(self._name)) as connection, connection.cursor() as cursor:
            connection.autocommit = False
            cursor.execute("LOCK TABLE asset_event IN EXCLUSIVE MODE")
            try:
                yield
            finally:
                connection.rollback()
