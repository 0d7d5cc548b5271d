"""Tests named in docs/reliability.md: each one must exist in the file named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
_NAMED = re.compile(r"`([\w./]*test_\w+\.py)?(?:::(test_\w+))?`")


def named_tests(text: str) -> list[tuple[str, str]]:
    """Return file and test of each reference; `::test` is in the last file of its line, a file alone has no test."""
    found = []
    for line in text.splitlines():
        file = ""
        for match in _NAMED.finditer(line):
            file = match[1] or file
            found.append((file, match[2] or ""))
    return found


def missing_tests(references: list[tuple[str, str]], folder: Path) -> list[str]:
    """Return the references without a file below `folder`, or without a test in it."""
    names: dict[str, set[str]] = {}
    for file, _ in references:
        path = folder / file
        tree = ast.parse(path.read_text()) if path.is_file() else None
        # The empty name is a reference to the file alone.
        names[file] = set() if tree is None else {"", *(getattr(node, "name", "") for node in ast.walk(tree))}
    return [f"{file}::{test}" for file, test in references if test not in names[file]]


def test_reliability_page_names_existing_tests() -> None:
    references = named_tests(PAGE.read_text())
    # Every mention of a test or test file is a reference, so none is left unchecked.
    mentions = re.findall(r"(?:::test_\w+|test_\w+\.py)", PAGE.read_text())
    assert len(mentions) == sum(bool(test) for _, test in references) + len(
        re.findall(r"test_\w+\.py", PAGE.read_text())
    )
    assert len(references) > 50
    assert missing_tests(references, ROOT / "tests" / "provider") == []


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("| `operators/test_a.py::test_one`, `::test_two` |", []),
        ("| `operators/test_a.py` |", []),
        ("| `operators/test_a.py::test_three`, `::test_two` |", ["operators/test_a.py::test_three"]),
        ("| `operators/test_a.py::test_one`, `::test_four` |", ["operators/test_a.py::test_four"]),
        ("| `test_b.py::test_one` |", ["test_b.py::test_one"]),
    ],
)
def test_reliability_reference_missing_is_found(tmp_path: Path, line: str, missing: list[str]) -> None:
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "test_a.py").write_text(
        "def test_one(): ...\nclass T:\n    async def test_two(self): ...\n"
    )
    assert missing_tests(named_tests(line), tmp_path) == missing
