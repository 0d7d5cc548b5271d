"""Databases for tests of transfers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.postgres import Postgres, Shop


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


@pytest.fixture(params=["psycopg", "psycopg2"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the driver that Airflow's hook uses: psycopg where it is installed, else psycopg2."""
    chosen: str = request.param
    monkeypatch.setattr("airflow.providers.postgres.hooks.postgres.USE_PSYCOPG3", chosen == "psycopg")
    return chosen


@pytest.fixture
def shop(postgres: Postgres, connection: Callable[..., str]) -> Iterator[Shop]:
    """Give a PostgreSQL database of the test with the connection "shop"."""
    with postgres.database() as name:
        yield Shop(postgres, name, connection)
