"""Every program does the same on the official client and on ours, but for the accepted differences."""

from __future__ import annotations

import pytest

from compat.conftest import Pair
from compat.program import PROGRAMS
from compat.runner import compare, load_accepted
from compat.worker import load

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
    assert all(len(each.why) > 20 and each.why.endswith(".") for each in accepted)


def test_programs_are_many() -> None:
    assert len(PROGRAMS) >= 150
