"""Every program does the same on the official client and on ours, but for the accepted differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.conftest import Pair
from compat.program import PROGRAMS
from compat.runner import compare, load_accepted, load_groups
from compat.worker import load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"

load()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(pair: Pair, name: str) -> None:
    program = PROGRAMS[name]
    official, ours = pair.run(program)
    wrong = compare(program, official, ours, load_accepted())
    assert not wrong, "\n".join([*wrong, ours.get("where", ours.get("hung", ""))])


def test_accepted_differences_name_programs() -> None:
    accepted = load_accepted()
    assert {each.program for each in accepted} <= set(PROGRAMS)
    assert len({(each.program, each.field) for each in accepted}) == len(accepted)


def test_migration_page_lists_accepted_groups() -> None:
    # The page has one row a group, title and reason, in the file's order.
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| **")]
    assert rows == [f"| **{group.title}** | {group.why} |" for group in load_groups()]


def test_programs_are_many() -> None:
    assert len(PROGRAMS) >= 150
