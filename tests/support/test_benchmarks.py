"""Results of benchmarks compared: by the ratios of one run, and marked only where the ranges do not overlap."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from environments import ROOT


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    """Import benchmarks/compare.py."""
    spec = importlib.util.spec_from_file_location("compare", ROOT / "benchmarks" / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(official: list[float], ours: list[float], **fields: Any) -> dict[str, Any]:
    """Return the result of a run with one case."""
    sides = {"official": {"wall": official, "cpu": official}, "ours": {"wall": ours, "cpu": ours}}
    return {"python": "3.11", "cpus": 2, "processor": "p", "versions": {}, "cases": {"receive": sides}, **fields}


def test_compare_slower_machine_is_no_change(compare: ModuleType) -> None:
    lines, is_worse = compare.compare(result([4, 4, 4], [2, 2, 2]), result([8, 8, 8], [4, 4, 4]))
    assert not is_worse
    assert lines[1].split() == ["receive", "ours", "2.00", "->", "2.00", "2.00", "->", "2.00"]


def test_compare_ranges_that_overlap_are_unmarked(compare: ModuleType) -> None:
    lines, is_worse = compare.compare(result([4, 4, 4], [2, 2, 1]), result([4, 4, 4], [2, 4, 4]))
    assert not is_worse and "worse" not in lines[1]


@pytest.mark.parametrize(("ours", "verdict"), [([1.0, 1.0, 1.1], "better"), ([3.0, 3.0, 3.1], "worse")])
def test_compare_change_is_marked(compare: ModuleType, ours: list[float], verdict: str) -> None:
    lines, is_worse = compare.compare(result([4, 4, 4], [2, 2, 2]), result([4, 4, 4], ours))
    assert lines[1].count(verdict) == 2
    assert is_worse is (verdict == "worse")


def test_compare_new_case_is_left_out(compare: ModuleType) -> None:
    lines, is_worse = compare.compare(result([4], [2]) | {"cases": {}}, result([4], [2]))
    assert len(lines) == 1 and not is_worse


def test_compare_command_names_another_machine(
    compare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(result([4, 4], [2, 2])))
    new.write_text(json.dumps(result([4, 4], [3, 3], cpus=4)))
    assert compare.main([str(old), str(new)]) == 1
    assert "cpus: 2 before, 4 after" in capsys.readouterr().out
