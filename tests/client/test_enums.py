"""Enumerations: the official client's members, numbers and text."""

from __future__ import annotations

import copy
import pickle
from enum import Enum

import _pulsar
import pytest

import pulsar_native
from pulsar_native import enums
from pulsar_native.enums import OfficialEnum
from pulsar_native.wire import pulsar_api_pb2 as pb

OFFICIAL = [
    kind
    for kind in vars(enums).values()
    if isinstance(kind, type) and issubclass(kind, OfficialEnum) and kind is not OfficialEnum
]


@pytest.mark.parametrize(
    "kind", [kind for kind in OFFICIAL if hasattr(_pulsar, kind.__name__)], ids=lambda kind: kind.__name__
)
def test_enum_has_the_official_members(kind: type[OfficialEnum]) -> None:
    theirs = {name: int(value) for name, value in getattr(_pulsar, kind.__name__).__members__.items()}
    assert theirs.items() <= {name: int(value) for name, value in kind.__members__.items()}.items()


@pytest.mark.parametrize("kind", OFFICIAL, ids=lambda kind: kind.__name__)
def test_enum_member_is_a_true_number(kind: type[OfficialEnum]) -> None:
    for member in kind:
        assert bool(member) and member == int(member) and kind(int(member)) is member
        assert str(member) == f"{member}" == f"{kind.__name__}.{member.name}"
        assert pickle.loads(pickle.dumps(member)) is member is copy.deepcopy(member)
    with pytest.raises(ValueError, match=kind.__name__):
        kind(1000)


def test_enum_format_takes_the_text() -> None:
    assert f"{enums.Result.Ok:>10}" == " Result.Ok"


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        (enums.CompressionType, pb.CompressionType),
        (enums.ProducerAccessMode, pb.ProducerAccessMode),
        (enums.KeySharedMode, pb.KeySharedMode),
    ],
)
def test_enum_numbers_are_the_protocols(kind: type[Enum], wire: type) -> None:
    names = {name.replace("_", "").lower(): number for name, number in wire.items()}  # type: ignore[attr-defined]
    assert {member.name.lower(): member.value for member in kind} == names


def test_results_name_their_exceptions() -> None:
    for result in enums.Result:
        if result is not enums.Result.Ok:
            kind = getattr(pulsar_native.exceptions, result.name)
            assert kind("x").result is result
