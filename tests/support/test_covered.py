"""The summary of a coverage measurement."""

from __future__ import annotations

from typing import Any

import covered


def _file(percent: float, lines: int, statements: int, branches: int = 0, of: int = 0) -> dict[str, Any]:
    return {
        "summary": {
            "percent_covered": percent,
            "covered_lines": lines,
            "num_statements": statements,
            "covered_branches": branches,
            "num_branches": of,
        }
    }


def test_summary_lists_low_modules_lowest_first() -> None:
    found = {
        "files": {
            "client/pulsar_native/a.py": _file(94.9, 9, 10, 3, 4),
            "client/pulsar_native/b.py": _file(50.0, 5, 10),
            "client/pulsar_native/c.py": _file(95.0, 10, 10),
            "spark/pyspark_pulsar/d.py": _file(10.0, 1, 10),
        }
    }
    assert covered.summary(found) == [
        "client/pulsar_native: 80.0 % of 30 lines, 75.0 % of 4 branches",
        "spark/pyspark_pulsar: 10.0 % of 10 lines, 100.0 % of 0 branches",
        "provider: 100.0 % of 0 lines, 100.0 % of 0 branches",
        "below 95 %:  50.0 % client/pulsar_native/b.py",
        "below 95 %:  94.9 % client/pulsar_native/a.py",
    ]
