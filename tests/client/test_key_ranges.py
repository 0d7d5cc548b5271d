"""Ranges of hashes and Key_Shared policies: what is refused before anything is asked of the broker."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pulsar_native.config import ConsumerConfig
from pulsar_native.enums import ConsumerType, KeySharedMode
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.key_ranges import KeySharedPolicy, checked_ranges
from pulsar_native.policies import ConsumerKeySharedPolicy


@pytest.mark.parametrize("good", [[(0, 0)], [(0, 65_535)], [[7, 9], [1, 6]], ((10, 20), (21, 21))])
def test_ranges_that_can_be(good: Any) -> None:
    assert checked_ranges("ranges", good) == tuple(tuple(each) for each in good)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (None, "at least one"),
        ([], "at least one"),
        ("0-5", "at least one"),
        ({(0, 1)}, "at least one"),
        ([5], "pairs of int"),
        ([(1, 2, 3)], "pairs of int"),
        ([(0.0, 5)], "pairs of int"),
        ([(False, 5)], "pairs of int"),
        ([("0", "5")], "pairs of int"),
        ([(-1, 5)], "0 <= first <= last <= 65535"),
        ([(0, 65_536)], "0 <= first <= last <= 65535"),
        ([(5, 4)], "0 <= first <= last <= 65535"),
        ([(0, 5), (5, 9)], r"overlap: \(0, 5\) and \(5, 9\)"),
        ([(50, 60), (0, 100)], "overlap"),
        ([(1, 2), (1, 2)], "overlap"),
    ],
)
def test_ranges_that_cannot_be(bad: Any, told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        checked_ranges("ranges", bad)
    with pytest.raises(InvalidConfiguration, match="sticky_ranges"):
        ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=bad)


def test_policies() -> None:
    split = ConsumerKeySharedPolicy()
    assert (split.key_shared_mode, split.allow_out_of_order_delivery, split.sticky_ranges) == (
        KeySharedMode.AutoSplit,
        False,
        None,
    )
    policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, True, [(0, 5)])
    assert policy == KeySharedPolicy(
        key_shared_mode=KeySharedMode.Sticky, allow_out_of_order_delivery=True, sticky_ranges=((0, 5),)
    )
    assert pickle.loads(pickle.dumps(policy)) == policy
    for wrong in ({"key_shared_mode": 1}, {"allow_out_of_order_delivery": "yes"}, {"sticky_ranges": [(0, 5)]}):
        with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
            ConsumerKeySharedPolicy(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="KeyShared"):
        ConsumerConfig(subscription_name="s", consumer_type=ConsumerType.Shared, key_shared_policy=policy)
