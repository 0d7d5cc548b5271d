"""SQLite connections that refuse statements, as connections to databases that do not have them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any


class LimitedSqlite:
    """Connection, and cursor of itself, that refuses statements by their beginning and records all."""

    def __init__(self, connection: sqlite3.Connection, lacks: tuple[str, ...]) -> None:
        self.connection = connection
        self._lacks = lacks
        self.asked: list[str] = []

    @property
    def in_transaction(self) -> bool:
        """True while a transaction is open."""
        return self.connection.in_transaction

    def rollback(self) -> None:
        """Roll the transaction back."""
        self.connection.rollback()

    def cursor(self) -> LimitedSqlite:
        """Return itself."""
        return self

    def close(self) -> None:
        """Close nothing: the connection is its owner's."""

    def execute(self, statement: str, values: Iterable[Any] = ()) -> None:
        """Run a statement, or raise as for wrong syntax."""
        self.asked.append(statement)
        if statement.startswith(self._lacks):
            raise sqlite3.OperationalError("syntax error")
        self.connection.execute(statement, tuple(values))

    def executemany(self, statement: str, rows: Iterable[Any]) -> None:
        """Run a statement for each row."""
        self.connection.executemany(statement, rows)
