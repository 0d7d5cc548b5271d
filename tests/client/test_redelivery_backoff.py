"""Delays that grow with each redelivery."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.redelivery_backoff import MultiplierRedeliveryBackoff


@pytest.mark.proves("C147")
def test_the_defaults_are_javas() -> None:
    backoff = MultiplierRedeliveryBackoff()
    assert [backoff.next(count) for count in range(8)] == [
        10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000, 600_000,
    ]  # fmt: skip
    assert backoff.next(-1) == 10_000 and backoff.next(10**6) == 600_000
    assert pickle.loads(pickle.dumps(backoff)) == backoff


@pytest.mark.proves("C147")
@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({"min_delay_ms": 100, "max_delay_ms": 100}, [100, 100, 100]),
        ({"min_delay_ms": 0, "max_delay_ms": 1000}, [0, 0, 0]),
        ({"min_delay_ms": 100, "max_delay_ms": 1000, "multiplier": 1.5}, [100, 150, 225, 337, 506, 759, 1000]),
        ({"min_delay_ms": 100, "max_delay_ms": 1000, "multiplier": 1}, [100, 100, 100]),
    ],
)
def test_other_delays(options: dict[str, Any], delays: list[int]) -> None:
    backoff = MultiplierRedeliveryBackoff(**options)
    assert [backoff.next(count) for count in range(len(delays))] == delays


@pytest.mark.parametrize(
    "options",
    [{"min_delay_ms": -1}, {"min_delay_ms": 700_000}, {"multiplier": 0.5}, {"multiplier": "2"}, {"max_delay_ms": True},
     {"multiplier": float("nan")}],
)  # fmt: skip
def test_what_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration):
        MultiplierRedeliveryBackoff(**options)
