"""Databases for tests of transfers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest


@pytest.fixture
def database(tmp_path: Path, connection: Callable[..., str]) -> Callable[[str], Path]:
    """Give a function that makes a SQLite database by a script, with the connection "shop", and returns its path."""

    def make(script: str) -> Path:
        path = tmp_path / "shop.db"
        with closing(sqlite3.connect(path)) as made:
            made.executescript(script)
        connection("shop", conn_type="sqlite", host=str(path))
        return path

    return make
