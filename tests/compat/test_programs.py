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


# Those with credentials run in one process, so that the suite starts their broker once.
_NAMES = [
    pytest.param(name, marks=[pytest.mark.xdist_group("secure")] if each.secure else [])
    for name, each in PROGRAMS.items()
]


@pytest.mark.parametrize("name", _NAMES)
def test_program(request: pytest.FixtureRequest, name: str) -> None:
    program = PROGRAMS[name]
    pair: Pair = request.getfixturevalue("secure_pair" if program.secure else "pair")
    official, ours = pair.run(program)
    wrong = compare(program, official, ours, load_accepted())
    if wrong:
        # The official client's answers vary now and then, by a race or with the programs that ran before. Ours may not.
        wrong = compare(program, pair.run_official(program), ours, load_accepted())
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
