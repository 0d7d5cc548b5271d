#!/usr/bin/env python3
"""List every feature row of docs/rows.toml with the tests that prove it, and write the list to .results/features.md.

Standard library only. Rules: only tests of the last whole run of their suite (.results/SUITE.json) count; a row is
proved when every test that names it passed, at least one; a failed one unproves it, whatever the others say. A proof is
real (a broker, Airflow, Spark, the Java client or a browser took part), fake (a peer of tests/support that does what a
real one cannot be made to do) or unit. A test that names an unknown row, and a suite without results, are errors.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environments import ROOT
from test import RESULTS, SUITES

ROWS = ROOT / "docs" / "rows.toml"
COMPARISON = ROOT / "docs" / "features.md"
LIST = RESULTS / "features.md"
KINDS = ("real", "fake", "unit")


class FeaturesError(Exception):
    """Raised when rows or results contradict each other."""


@dataclass
class Row:
    """One feature: id, area, text, and the tests that prove it (name to kind)."""

    id: str
    area: str
    text: str
    passed: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @property
    def state(self) -> str:
        """proved, open (no test passed), or failed (a test that names it did not pass)."""
        return "failed" if self.failed else "proved" if self.passed else "open"

    @property
    def kind(self) -> str:
        """Return the strongest kind among the proofs, "" for none."""
        return next((kind for kind in KINDS if kind in self.passed.values()), "")


def read_rows(path: Path = ROWS) -> dict[str, Row]:
    """Return the rows by id, in the file's order."""
    content = tomllib.loads(path.read_text())
    areas: Mapping[str, str] = content["areas"]
    rows: dict[str, Row] = {}
    for name, row in content["rows"].items():
        if row["area"] not in areas:
            raise FeaturesError(f"row {name} is in the unknown area {row['area']!r}")
        rows[name] = Row(name, areas[row["area"]], row["text"])
    return rows


def add_proofs(rows: Mapping[str, Row], folder: Path = RESULTS) -> list[str]:
    """Add the tests of every suite to the rows they name; return the commits the suites were run at."""
    commits: dict[str, None] = {}
    for suite in SUITES:
        # What runs the tests of another suite again proves no row that the other does not.
        if suite.again or not (ROOT / suite.folder).is_dir():
            continue
        written = folder / f"{suite.name}.json"
        if not written.exists():
            raise FeaturesError(f"no results of {suite.folder}: run `make test` first")
        content = json.loads(written.read_text())
        commits[content.get("commit", "unknown")] = None
        for name, test in content["tests"].items():
            for proved in test["rows"]:
                if proved not in rows:
                    raise FeaturesError(f"{name} proves the unknown row {proved}")
                if test["outcome"] == "passed":
                    rows[proved].passed[name] = test.get("kind", "unit")
                else:
                    rows[proved].failed.add(name)
    return list(commits)


def page(rows: Mapping[str, Row], commits: Sequence[str]) -> str:
    """Return the list as Markdown."""
    areas: dict[str, list[Row]] = {}
    for row in rows.values():
        areas.setdefault(row.area, []).append(row)
    lines = [
        "# Features and the tests that prove them",
        "",
        f"Results of commit {', '.join(commits)}. {summary(rows)}.",
        "",
        "| area | proved | rows |",
        "| --- | ---: | ---: |",
        *(f"| {area} | {sum(row.state == 'proved' for row in of)} | {len(of)} |" for area, of in areas.items()),
    ]
    for area, of in areas.items():
        lines += ["", f"## {area}", "", "| row | feature | state | kind | tests |", "| --- | --- | --- | --- | --- |"]
        lines += [_line(row) for row in of]
    return "\n".join(lines) + "\n"


def summary(rows: Mapping[str, Row]) -> str:
    """Return the counts in words."""
    proved = [row for row in rows.values() if row.state == "proved"]
    kinds = ", ".join(f"{sum(row.kind == kind for row in proved)} {kind}" for kind in KINDS)
    failed = sum(row.state == "failed" for row in rows.values())
    return f"{len(proved)} of {len(rows)} rows proved ({kinds})" + (f", {failed} failed" if failed else "")


def _line(row: Row) -> str:
    # Parameters of a test are left out: one name for all of them.
    names = sorted({test.partition("[")[0].removeprefix("tests/") for test in row.failed or row.passed})
    tests = "<br>".join(f"`{name}`" for name in names)
    text = row.text.replace("|", "\\|")
    return f"| {row.id} | {text} | {row.state} | {row.kind} | {tests} |"


def unknown_in_comparison(rows: Mapping[str, Row], path: Path = COMPARISON) -> list[str]:
    """Return the row ids that docs/features.md names and docs/rows.toml does not know."""
    named = re.findall(r"\b([CNAKSD]\d+)\b", path.read_text())
    return sorted({name for name in named if name not in rows})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when no row is failed."""
    parser = argparse.ArgumentParser(prog="dev/features.py", description="List the features and their proofs.")
    parser.add_argument("--open", action="store_true", help="print only rows that are not proved")
    options = parser.parse_args(arguments)
    try:
        rows = read_rows()
        commits = add_proofs(rows)
    except FeaturesError as error:
        print(f"features: {error}", file=sys.stderr)
        return 1
    for row in rows.values():
        if not options.open or row.state != "proved":
            names = sorted({test.partition("[")[0].removeprefix("tests/") for test in row.failed or row.passed})
            print(f"{row.id:5} {row.state:6} {row.kind:4}  {row.text}")
            print("".join(f"        {name}\n" for name in names), end="")
    LIST.write_text(page(rows, commits))
    print(f"features: {summary(rows)}; commit {', '.join(commits)}; written to {LIST.relative_to(ROOT)}")
    return 1 if any(row.state == "failed" for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
