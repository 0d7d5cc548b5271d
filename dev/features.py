#!/usr/bin/env python3
"""Write docs/features.md: every feature row of docs/rows.toml, whether a test proves it, and which.

Standard library only. Rules: only tests that passed in the last whole run of their suite (.results/SUITE.json) prove
anything; a test that names an unknown row, and a suite with tests but no results, are errors.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environments import ROOT
from test import RESULTS, SUITES

ROWS = ROOT / "docs" / "rows.toml"
PAGE = ROOT / "docs" / "features.md"


class FeaturesError(Exception):
    """Say what is wrong with the rows or the results."""


@dataclass
class Row:
    """One feature: its id, the area it belongs to, our sentence about it, and the tests that prove it."""

    id: str
    area: str
    text: str
    tests: list[str] = field(default_factory=list)


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


def add_proofs(rows: Mapping[str, Row], folder: Path = RESULTS) -> None:
    """Add the passed tests of every suite to the rows they name."""
    for suite in SUITES:
        if not (ROOT / suite.folder).is_dir():
            continue
        written = folder / f"{suite.name}.json"
        if not written.exists():
            raise FeaturesError(f"no results of {suite.folder}: run `make test` first")
        for name, test in json.loads(written.read_text())["tests"].items():
            for proved in test["rows"]:
                if proved not in rows:
                    raise FeaturesError(f"{name} proves the unknown row {proved}")
                if test["outcome"] == "passed":
                    rows[proved].tests.append(name)


def page(rows: Mapping[str, Row]) -> str:
    """Return the text of docs/features.md."""
    areas: dict[str, list[Row]] = {}
    for row in rows.values():
        areas.setdefault(row.area, []).append(row)
    proved = sum(1 for row in rows.values() if row.tests)
    lines = [
        "# Features and their proofs",
        "",
        "Written by `make features` from `docs/rows.toml` and the results of the last test run; not edited by hand.",
        'A row is proved when a test marked `@pytest.mark.proves("…")` with its id passed against the real thing.',
        "",
        f"**{proved} of {len(rows)} rows are proved.**",
        "",
        "| area | proved | rows |",
        "| --- | ---: | ---: |",
        *(f"| {area} | {sum(1 for row in of if row.tests)} | {len(of)} |" for area, of in areas.items()),
    ]
    for area, of in areas.items():
        lines += ["", f"## {area}", "", "| row | feature | state | proved by |", "| --- | --- | --- | --- |"]
        lines += [_line(row) for row in of]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    # Parameters of a test are left out: one name for all of them.
    names = sorted({test.partition("[")[0].removeprefix("tests/") for test in row.tests})
    tests = "<br>".join(f"`{name}`" for name in names)
    text = row.text.replace("|", "\\|")
    return f"| {row.id} | {text} | {'proved' if names else 'open'} | {tests} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if the page was written (or, with --check, is what it should be)."""
    parser = argparse.ArgumentParser(prog="dev/features.py", description="Write docs/features.md from test results.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    options = parser.parse_args(arguments)
    try:
        rows = read_rows()
        add_proofs(rows)
    except FeaturesError as error:
        print(f"features: {error}", file=sys.stderr)
        return 1
    text = page(rows)
    if options.check:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print("features: docs/features.md is not up to date: run `make features`", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    proved = sum(1 for row in rows.values() if row.tests)
    print(f"features: {proved} of {len(rows)} rows proved; wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
