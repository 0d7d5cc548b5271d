"""Table and arguments of `lag`."""

from __future__ import annotations

from pulsar_native.cli.lag import _table
from pulsar_native.jobs.backlog import Backlog
from support.cli import run


def test_lag_needs_the_admin_interface() -> None:
    found = run("lag", "t")
    assert (found.code, found.out) == (2, b"")
    assert "lag needs the admin interface: give --admin-url, or PULSAR_ADMIN_URL" in found.err


def test_lag_negative_limit_exits_with_2() -> None:
    assert "--max must be at least 0" in run("lag", "t", "--max", "-1", "--admin-url", "http://127.0.0.1:1").err


def test_lag_table_is_aligned() -> None:
    rows = [Backlog("t", "a-name", 1200, 3, 0, 1, "Shared"), Backlog("t", "b", 0, 0, 0, 0, "Exclusive")]
    assert _table(rows) == (
        "TOPIC  SUBSCRIPTION  TYPE       ENTRIES  UNACKED  DELAYED  CONSUMERS\n"
        "t      a-name        Shared     1200     3        0        1\n"
        "t      b             Exclusive  0        0        0        0\n"
    )
    assert _table([]).count("\n") == 1
