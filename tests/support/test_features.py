"""The page of features counts only what passed in a whole run, and refuses rows nobody knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import features
from features import FeaturesError, Row, add_proofs, page, read_rows
from test import Suite


def results(folder: Path, **tests: tuple[str, list[str]]) -> Path:
    """Write the results of the suite "support"."""
    content = {"tests": {f"tests/support/{name}": {"outcome": o, "rows": rows} for name, (o, rows) in tests.items()}}
    (folder / "support.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(autouse=True)
def one_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be one suite only."""
    monkeypatch.setattr(features, "SUITES", (Suite("support", ("dev",)),))


def test_every_row_has_an_area_and_a_sentence_of_its_own() -> None:
    rows = read_rows()
    assert len(rows) > 300
    assert all(row.text and len(row.text) < 160 for row in rows.values())
    assert len({row.text for row in rows.values()}) == len(rows)


def test_only_passed_tests_prove(tmp_path: Path) -> None:
    rows = {"C1": Row("C1", "area", "one"), "C2": Row("C2", "area", "two | three")}
    add_proofs(rows, results(tmp_path, good=("passed", ["C1"]), bad=("failed", ["C1", "C2"])))
    assert rows["C1"].tests == ["tests/support/good"] and rows["C2"].tests == []
    text = page(rows)
    assert "**1 of 2 rows are proved.**" in text
    assert "| C1 | one | proved | `support/good` |" in text
    assert "| C2 | two \\| three | open |  |" in text


def test_unknown_rows_and_missing_results_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FeaturesError, match="no results of tests/support"):
        add_proofs({}, tmp_path)
    with pytest.raises(FeaturesError, match="unknown row X9"):
        add_proofs({}, results(tmp_path, odd=("failed", ["X9"])))
