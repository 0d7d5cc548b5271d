"""The context of functions has the official client's methods, since the functions runtime implements those."""

from __future__ import annotations

import inspect

import pulsar
import pytest

from pulsar_native.functions import Context

NAMES = [name for name, each in vars(pulsar.Context).items() if inspect.isfunction(each) and name[0] != "_"]


@pytest.mark.parametrize("name", NAMES)
def test_context_method_has_the_official_signature(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (Context, pulsar.Context))
    assert [(each.name, each.default, each.kind) for each in ours.values()] == [
        (each.name, each.default, each.kind) for each in theirs.values()
    ]


def test_context_has_no_other_methods() -> None:
    assert {name for name, each in vars(Context).items() if inspect.isfunction(each)} == set(NAMES)
