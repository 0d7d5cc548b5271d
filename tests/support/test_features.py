"""The list of features and proofs counts only whole runs, and refuses unknown rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import features
from features import COMPARISON, FeaturesError, Row, add_proofs, page, read_rows, unknown_in_comparison
from test import Suite


def results(folder: Path, **tests: tuple[str, list[str]]) -> Path:
    """Write the results of the suite "support"."""
    content = {"tests": {f"tests/support/{name}": {"outcome": o, "rows": rows} for name, (o, rows) in tests.items()}}
    (folder / "support.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(autouse=True)
def one_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be one suite only."""
    monkeypatch.setattr(features, "SUITES", (Suite("support", ("dev",)),))


def test_every_row_has_an_area_and_a_sentence_of_its_own() -> None:
    rows = read_rows()
    assert len(rows) > 300
    assert all(row.text and len(row.text) < 160 for row in rows.values())
    assert len({row.text for row in rows.values()}) == len(rows)


def test_failed_proof_unproves_its_row(tmp_path: Path) -> None:
    rows = {"C1": Row("C1", "area", "one | three"), "C2": Row("C2", "area", "two"), "C3": Row("C3", "area", "four")}
    add_proofs(
        rows, results(tmp_path, good=("passed", ["C1", "C2"]), bad=("failed", ["C2"]), other=("not run", ["C3"]))
    )
    assert [row.state for row in rows.values()] == ["proved", "failed", "failed"]
    text = page(rows, ["abc"])
    assert "1 of 3 rows proved (0 real, 0 fake, 1 unit), 2 failed" in text and "commit abc" in text
    assert "| C1 | one \\| three | proved | unit | `support/good` |" in text
    assert "| C2 | two | failed | unit | `support/bad` |" in text


def test_kind_of_a_proof_is_the_strongest(tmp_path: Path) -> None:
    rows = {"C1": Row("C1", "area", "one", {"a": "unit", "b": "real", "c": "fake"}), "C2": Row("C2", "area", "two")}
    assert (rows["C1"].kind, rows["C2"].kind, rows["C2"].state) == ("real", "", "open")


def test_comparison_names_known_rows_and_is_short() -> None:
    assert unknown_in_comparison(read_rows()) == []
    assert len(COMPARISON.read_bytes()) <= 20 * 1024


def test_unknown_rows_and_missing_results_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FeaturesError, match="no results of tests/support"):
        add_proofs({}, tmp_path)
    with pytest.raises(FeaturesError, match="unknown row X9"):
        add_proofs({}, results(tmp_path, odd=("failed", ["X9"])))
